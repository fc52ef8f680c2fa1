"""A cluster on this machine: N bookies on loopback and their metadata, all in one folder.

`fastbk dev`, `fastbk.testing.LocalCluster`, the main job and `fastbk bench` start their service with this.
"""

from fastbk.devcluster.bookie import STOP_TIMEOUT_S, Bookie
from fastbk.devcluster.cluster import START_TIMEOUT_S, DevCluster
from fastbk.devcluster.janitor import DevJanitor
from fastbk.devcluster.metadata import DevMetadata
from fastbk.devcluster.processes import (
    cpu_seconds,
    is_alive,
    is_free,
    memory_pss_bytes,
    wait_for,
)

__all__ = [
    "START_TIMEOUT_S",
    "STOP_TIMEOUT_S",
    "Bookie",
    "DevCluster",
    "DevJanitor",
    "DevMetadata",
    "cpu_seconds",
    "is_alive",
    "is_free",
    "memory_pss_bytes",
    "wait_for",
]
