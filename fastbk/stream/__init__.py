"""Streams of records on ledgers: chains of segments, writers, readers, cursors, namespaces, the janitor.

The replication protocol never lives here; it is below, in `fastbk/replication` and `fastbk/client`.
Begin with README.md and `stream.py`.
"""
