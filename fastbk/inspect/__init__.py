"""Readers of the files on a bookie's disks, for people and for salvage.

Nothing here takes a lock, writes into a bookie's directories or shares the bookie's own readers.
Begin with `items.py` and `journal.py`.
"""
