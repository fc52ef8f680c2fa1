"""Many producers for one stream: see README.md. Begin with `table.py`; the write service begins in `process.py`."""
