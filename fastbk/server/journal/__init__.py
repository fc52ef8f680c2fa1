"""The journal process: it puts all that a bookie stores into one order and syncs it.

Work for each entry is never here but in C, and reads never pass through this process. Begin with
`process.py`.
"""
