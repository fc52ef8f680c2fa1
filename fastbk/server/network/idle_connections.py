"""Closes connections when most are in use.

A connection may be silent for as long as it likes: Apache's clients open channels that they need later.
Once three quarters of `[network] connections_max` are in use, silent connections are closed until no more
than that are left, so that new clients find room. Clients open a closed channel again when they need it.

INV-N6: where clients authenticate themselves, connections whose client has not done so yet have a share of their
own. It is a quarter of all, and at most half of what the others leave. Beyond it one of them is closed, whatever
it sends.
"""

from __future__ import annotations

import heapq
import socket
from collections import Counter
from typing import TYPE_CHECKING

from fastbk.native.worker import SILENT_CLOSED, UNAUTHENTICATED_CLOSED

if TYPE_CHECKING:
    from fastbk.native.worker import Worker
    from fastbk.server.configuration.settings import NetworkSettings
    from fastbk.server.network.connection import Connection

INTERVAL_S = 0.1
"""Between two searches for silent connections, at least."""
NEVER_HEARD_SWEEPS = 2
"""Sweeps, one a second, after which a connection that has not sent a byte counts as silent."""
SILENT_SWEEPS = 10
"""The same for a connection that has sent something, and that no request is under way for."""


class IdleConnections:
    """Finds the connections to close, first of the address that has the most."""

    def __init__(self, worker: Worker, connections: dict[int, Connection]) -> None:
        """`connections`: the open ones by slot; its owner keeps it."""
        self._worker = worker
        self._connections = connections
        self._addresses: dict[int, str] = {}
        self._counts: Counter[str] = Counter()
        self._bound = worker.connections_max - worker.connections_max // 4
        self._next_s = 0.0
        self._unauthenticated: dict[str, dict[int, None]] = {}
        """Slots by address, the oldest first."""
        self._unauthenticated_count = 0

    def opened(self, slot: int, address: str, *, is_authenticated: bool) -> None:
        """Note where a connection comes from."""
        self._addresses[slot] = address
        self._counts[address] += 1
        if not is_authenticated:
            self._unauthenticated.setdefault(address, {})[slot] = None
            self._unauthenticated_count += 1

    def authenticated(self, slot: int) -> None:
        """Note that it is known who a connection's client is."""
        address = self._addresses[slot]
        slots = self._unauthenticated.get(address, {})
        if slot in slots:
            del slots[slot]
            self._unauthenticated_count -= 1
            if not slots:
                del self._unauthenticated[address]

    def closed(self, slot: int) -> None:
        """Forget a connection."""
        if slot not in self._addresses:
            return  # its connection failed before it was noted
        self.authenticated(slot)
        address = self._addresses.pop(slot)
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def make_room(self, now_s: float) -> None:
        """Close unauthenticated connections beyond their share, and silent ones above three quarters of all."""
        self._close_unauthenticated()
        excess = len(self._connections) - self._unauthenticated_count - self._bound
        if excess <= 0 or now_s < self._next_s:
            return
        self._next_s = now_s + INTERVAL_S
        chosen = self._chosen(excess)
        self._worker.count(SILENT_CLOSED, len(chosen))
        for slot in chosen:
            self._connections[slot].abort()

    def _close_unauthenticated(self) -> None:
        others = len(self._connections) - self._unauthenticated_count
        most = self._worker.connections_max
        share = max(1, min(most // 4, (most - others) // 2))
        while self._unauthenticated_count > share:
            slots = max(self._unauthenticated.values(), key=len)
            slot = next(iter(slots))
            self.authenticated(slot)  # its end comes in a later turn of the loop
            self._worker.count(UNAUTHENTICATED_CLOSED)
            self._connections[slot].abort()

    def _chosen(self, count: int) -> list[int]:
        """Return at most `count` silent connections: of the address with the most, those that are silent longest."""
        silent: dict[str, list[tuple[bool, int, int]]] = {}
        for slot, sweeps, has_sent in self._worker.silent(self._worker.connections_max):
            address = self._addresses.get(slot)
            if address is None or slot in self._unauthenticated.get(address, ()):
                continue
            if sweeps >= (SILENT_SWEEPS if has_sent else NEVER_HEARD_SWEEPS):
                silent.setdefault(address, []).append((has_sent, -sweeps, slot))
        for found in silent.values():
            found.sort(reverse=True)  # the first to go is the last one
        addresses = [(-self._counts[address], address) for address in silent]
        heapq.heapify(addresses)
        chosen: list[int] = []
        while addresses and len(chosen) < count:
            size, address = heapq.heappop(addresses)
            chosen.append(silent[address].pop()[2])
            if silent[address]:
                heapq.heappush(addresses, (size + 1, address))
        return chosen


def keep_alive(settings: NetworkSettings) -> tuple[tuple[int, int], ...]:
    """Return the TCP options that find out a client whose machine is gone, with their values, as far as set."""
    options = (
        (socket.TCP_KEEPIDLE, settings.keep_alive_idle_s),
        (socket.TCP_KEEPINTVL, settings.keep_alive_interval_s),
        (socket.TCP_KEEPCNT, settings.keep_alive_questions_max),
    )
    return tuple((option, value) for option, value in options if value)
