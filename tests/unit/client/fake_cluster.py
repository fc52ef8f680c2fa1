"""A cluster of fakes and a client on the running loop, for the tests of this folder."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import fastbk
from fastbk.client import Client
from fastbk.meta.sqlite import MemoryStore
from tests.fixtures.fake_bookie import FakeBookie, fake_bookies

_names = itertools.count()


@contextlib.asynccontextmanager
async def fake_cluster(
    bookies: int = 3, **options: object
) -> AsyncIterator[tuple[Client, list[FakeBookie], MemoryStore]]:
    store = MemoryStore(f"fakes {next(_names)}")
    try:
        async with fake_bookies(store, bookies) as fakes, fastbk.connect(store, **options) as client:
            yield client, fakes, store
    finally:
        store.close()


def by_id(fakes: list[FakeBookie], bookie_id: str) -> FakeBookie:
    return next(fake for fake in fakes if fake.bookie_id == bookie_id)


async def some_turns() -> None:
    """Let the loop do what it can do without waiting for anything."""
    for _ in range(20):
        await asyncio.sleep(0)
