"""Durable cursors: acknowledgements, where their state is stored, and what they deliver.

Entries are read in `fastbk/stream/reader`, never here, and no segment is deleted here.
Begin with `cursor.py`, then `state.py` and `store.py`.
"""
