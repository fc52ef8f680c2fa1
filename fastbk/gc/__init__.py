"""The gc process: it finds ledgers to delete and entry logs to compact.

It never writes or deletes a data file; the index process does that. Begin with `process.py` and
`dead_ledgers.py`.
"""
