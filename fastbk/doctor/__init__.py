"""Looks over a machine, a bookie's configuration, its directories and its metadata, and says what is wrong and how to
mend it: before the first start, and when a bookie does not start.

Nothing is changed, but that a small file is written in each directory, synced and removed, as every start does it: only
real operations show what works there. A running bookie is not disturbed.
"""
