"""A cluster of Apache toys and a client on the running loop, for the tests of this folder."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator

import fastbk
from fastbk.client import Client
from fastbk.meta.memory import MemoryStore
from tests.fixtures.fake_apache_bookie import ToyApacheBookie, toy_apache_bookies
from tests.fixtures.fake_apache_frames import Asked

_names = itertools.count()
VERSIONS = ["v2", "v3"]


@contextlib.asynccontextmanager
async def apache_cluster(
    bookies: int = 3, version: str = "v3", **options: object
) -> AsyncIterator[tuple[Client, list[ToyApacheBookie], MemoryStore]]:
    store = MemoryStore(f"apache toys {next(_names)}")
    try:
        async with (
            toy_apache_bookies(store, bookies) as toys,
            fastbk.connect(store, apache_protocol=version, **options) as client,
        ):
            yield client, toys, store
    finally:
        store.close()


def asked(toys: list[ToyApacheBookie], operation: int, version: int | None = None) -> list[Asked]:
    return [
        one
        for toy in toys
        for one in toy.seen
        if one.operation == operation and version in (None, one.version)
    ]
