"""Values and arithmetic of the replication model: entries, ledgers, quorums and cookies.

Nothing here does I/O, reads a clock or imports a third-party library. Begin with `ledger.py` and
`quorum.py`.
"""
