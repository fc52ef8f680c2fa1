"""The network worker process: client connections on one side, shared rings on the other.

Work for each entry is never here but in C, and no data file is opened here. Begin with `process.py`
and `connection.py`.
"""
