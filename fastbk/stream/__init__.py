"""Streams of records on ledgers: writers, readers, cursors and the janitor.

The replication protocol never lives here; it is below, in `fastbk/replication` and `fastbk/client`.
Begin with README.md and `stream.py`.
"""
