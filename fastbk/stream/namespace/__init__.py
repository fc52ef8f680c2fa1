"""Namespaces: the tree of names in metadata, policies, listing and watching.

No ledger is written here, and no record of a stream.
Begin with `namespace.py`, then `tree.py` for what one transaction changes.
"""
