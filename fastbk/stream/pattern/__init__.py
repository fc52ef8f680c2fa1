"""Many streams of one namespace, chosen by a pattern of names such as `shop/*`, read as one.

Nothing here decides what retention deletes; it says which streams and records a pattern's cursors hold.
Begin with `reader.py`, whose source finds the streams and gives each its turn; `store.py` has what is kept of a cursor.
"""
