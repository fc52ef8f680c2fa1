"""Reads the data of a stopped Apache bookie and imports it into a new bookie.

Apache's files are never changed, and nothing here runs in a live bookie. Begin with `import_bookie.py`.
"""
