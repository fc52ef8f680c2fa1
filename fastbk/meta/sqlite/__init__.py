"""The metadata store of one machine: a sqlite file, or memory of one process. Begin with `store.py`."""
