"""Leases, elections, locks, counters and watched configuration in a namespace, and an append on a condition.

They live on records of metadata, in sqlite, ZooKeeper or by a gateway alike. docs/coordination.md says when to use
which, and what a paused holder of each can still do.
"""

from fastbk.coordination.guarded_writer import GuardedWriter
from fastbk.coordination.lease import Election, Leader, Lease, Lock
from fastbk.coordination.values import Config, ConfigValue, Counter

__all__ = ["Config", "ConfigValue", "Counter", "Election", "GuardedWriter", "Leader", "Lease", "Lock"]  # fmt: skip
