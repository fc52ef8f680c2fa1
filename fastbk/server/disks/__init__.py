"""Watches a bookie's disks: room, failures, and slow disks.

Entries are never read or written here; the journal and the index process do that. Begin with
`disk_watch.py` and `disk_reports.py`.
"""
