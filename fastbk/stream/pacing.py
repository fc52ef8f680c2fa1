"""How much of what needs metadata a client's streams do at once.

Thousands of streams of one client become due to roll in the same moment. Each roll is half a dozen calls of metadata,
which one thread makes one after the other: all at once they would wait longer than a call may, and be given up while
they still happen. So only some go on at a time, and the others wait in their order; appends wait for none of it.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from fastbk.client.client import Client

WORKS_MAX = 32
"""Segments that are made or ended at once by one client, and streams that are opened."""

_works: WeakKeyDictionary[Client, asyncio.Semaphore] = WeakKeyDictionary()


def segment_works(client: Client) -> asyncio.Semaphore:
    """Return what has to be held while a segment is made or ended, or a stream is opened."""
    found = _works.get(client)
    if found is None:
        found = _works[client] = asyncio.Semaphore(WORKS_MAX)
    return found
