"""The replication protocol as pure state machines: they take events and return actions.

Nothing here does I/O or reads a clock, so clients and the simulator run the same code. Begin with
`procedure.py` for operations with an end (reads, recovery, repair), and with `writer_machine.py` for
the writer, which lives as long as its ledger is open.
"""
