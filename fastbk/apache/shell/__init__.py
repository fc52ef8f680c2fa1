"""The verbs of Apache's `bookkeeper shell`, with its options and exit codes (docs/shell.md).

Each is a thin layer: the work itself is never here. Begin with `context.py` and `ledgers.py`.
"""
