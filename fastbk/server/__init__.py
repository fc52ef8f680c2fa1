"""The bookie: a supervisor and the processes that it spawns. See `topology.py` and ARCHITECTURE.md."""
