"""Readers of the files on a bookie's disks, for people and for salvage.

Nothing here takes a lock or writes into a bookie's directories. A reader shares only checksums and
small files' decoders with the bookie: it is a second reading of the formats in
`fastbk/storage/README.md`. Begin with `items.py` and `journal.py`.

A file may be torn, damaged, half overwritten, or of another program. A reader yields what it can
prove by checksum, reports at which offset it cannot, and continues after that.
"""
