"""Log lines and the names of counters, for every process.

Nothing here decides anything, and HTTP pages never live here. Begin with `logs.py` and `names.py`.
"""
