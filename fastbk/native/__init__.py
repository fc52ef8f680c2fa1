"""Typed wrappers of the C extension modules, and the scripts that build them.

No other package calls C directly, and no decision about the cluster is made here. Begin with
`worker.py`, `journal.py` and `index.py`; the C code is in `src`.
"""
