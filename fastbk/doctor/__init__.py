"""Checks a machine and a bookie's settings, directories and metadata, and names a fix.

No check repairs anything; each only writes and removes a small file in a directory. Begin with
`examine.py`.
"""
