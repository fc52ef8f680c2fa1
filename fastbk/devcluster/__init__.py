"""Starts a cluster on this machine: bookies on loopback and metadata in one folder.

Nothing here belongs in production, and no bookie imports it. Begin with `cluster.py`.
"""

from fastbk.devcluster.cluster import (
    START_TIMEOUT_S,
    DevCluster,
    DevMetadata,
    DevService,
    DevTls,
    DevWriteService,
    dev_services,
)
from fastbk.devcluster.faults import ClusterFaults, Link
from fastbk.devcluster.processes import (
    STOP_TIMEOUT_S,
    Bookie,
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
    "ClusterFaults",
    "DevCluster",
    "DevMetadata",
    "DevService",
    "DevTls",
    "DevWriteService",
    "Link",
    "cpu_seconds",
    "dev_services",
    "is_alive",
    "is_free",
    "memory_pss_bytes",
    "wait_for",
]
