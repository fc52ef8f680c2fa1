"""The files on a bookie's disks: names, manifest, identity, and the order of a checkpoint.

Entries are never read or written here; the C code does that. Begin with README.md, which describes
the formats.
"""
