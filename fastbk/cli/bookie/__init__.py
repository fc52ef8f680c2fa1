"""`fastbk bookie`: runs one bookie, and the verbs about one that runs, is stopped or is lost.

No data file is read or written here; `fastbk/server`, `fastbk/storage` and `fastbk/admin` do that. Begin with
`command.py`.
"""
