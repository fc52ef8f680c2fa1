"""`fastbk ledger`: creates, writes, reads and audits ledgers.

The protocol is never here; it is in `fastbk/client`. Begin with `command.py`.
"""
