"""The HTTP pages of a bookie for probes, metrics and operators.

Apache's own endpoints are never here (they are in `apache_http`), and no page touches entries.
Begin with `pages.py` and `http.py`.
"""
