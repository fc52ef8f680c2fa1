"""A cluster of toys and a client on the running loop, for the tests of this folder."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import fastbk
from fastbk.client import Client
from fastbk.meta.memory import MemoryStore
from tests.fixtures.fake_bookie import ToyBookie, toy_bookies

_names = itertools.count()


@contextlib.asynccontextmanager
async def toy_cluster(
    bookies: int = 3, **options: object
) -> AsyncIterator[tuple[Client, list[ToyBookie], MemoryStore]]:
    store = MemoryStore(f"toys {next(_names)}")
    try:
        async with toy_bookies(store, bookies) as toys, fastbk.connect(store, **options) as client:
            yield client, toys, store
    finally:
        store.close()


def by_id(toys: list[ToyBookie], bookie_id: str) -> ToyBookie:
    return next(toy for toy in toys if toy.bookie_id == bookie_id)


async def some_turns() -> None:
    """Let the loop do what it can do without waiting for anything."""
    for _ in range(20):
        await asyncio.sleep(0)
