"""The replication protocol as pure state machines: events go in, actions come out.

Nothing here does I/O or reads a clock, so the clients and the simulator run the same code. Begin
with `writer_machine.py` and `procedure.py`.
"""
