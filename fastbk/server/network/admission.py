"""What a worker needs of the system to let clients in."""

from __future__ import annotations

import resource
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastbk.server.configuration.settings import NetworkSettings

OTHER_DESCRIPTORS = 64
"""A worker's own: segments, bells, control, the loop's."""


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


def keep_alive(settings: NetworkSettings) -> tuple[tuple[int, int], ...]:
    """Return the TCP options that find out a client whose machine is gone, with their values, as far as set."""
    options = (
        (socket.TCP_KEEPIDLE, settings.keep_alive_idle_s),
        (socket.TCP_KEEPINTVL, settings.keep_alive_interval_s),
        (socket.TCP_KEEPCNT, settings.keep_alive_questions_max),
    )
    return tuple((option, value) for option, value in options if value)
