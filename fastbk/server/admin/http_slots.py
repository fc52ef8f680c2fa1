"""How many HTTP connections are open, by what they wait for (INV-B1).

A connection that is slow costs only others that are slow in the same way: when a place for incoming
requests or for unread answers is needed and none is free, the connection that has held its place longest
is closed. A complete request is never closed for another one. Pages of the server's own, `/livez`
first, need no place to be answered: no number of slow connections keeps them from answering.
"""

from __future__ import annotations

from typing import Protocol


class Abortable(Protocol):
    """What is closed: an asyncio transport."""

    def abort(self) -> None:
        """Close at once."""


class Places:
    """The places for connections that wait for their peer, oldest first."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._taken: dict[Abortable, None] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def enter(self, connection: Abortable) -> bool:
        """Give a connection a place; return whether the oldest one was closed for it."""
        is_full = len(self._taken) >= self._count_max
        if is_full:
            oldest = next(iter(self._taken))
            del self._taken[oldest]
            oldest.abort()
        self._taken[connection] = None
        return is_full

    def leave(self, connection: Abortable) -> None:
        """Free the connection's place, if it still has one."""
        self._taken.pop(connection, None)
