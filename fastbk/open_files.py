"""The limit of open files of a process that has many connections."""

from __future__ import annotations

import resource

OTHER_DESCRIPTORS = 64
"""A process's own: segments, bells, control, the loop's."""


def allow_descriptors(connections_max: int) -> int:
    """Raise this process's limit of open files so that `connections_max` fit, as far as it may.

    Return how many connections fit: fewer than asked for only where the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OTHER_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY:
        return connections_max
    return max(1, min(connections_max, soft - OTHER_DESCRIPTORS))
