"""The parts of the supervisor: it starts and ends processes, watches them, and talks to metadata.

No entry ever passes through here. Begin with `spawn.py` and `boot_order.py`; `supervisor.py` in the
folder above leads them.
"""
