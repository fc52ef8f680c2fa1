"""A cluster of Apache fakes and a client on the running loop, for the tests of this folder."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator

import fastbk
from fastbk.client import Client
from fastbk.meta.sqlite import MemoryStore
from tests.fixtures.fake_apache_bookie import FakeApacheBookie, fake_apache_bookies
from tests.fixtures.fake_apache_frames import Asked

_names = itertools.count()
VERSIONS = ["v2", "v3"]


@contextlib.asynccontextmanager
async def apache_cluster(
    bookies: int = 3, version: str = "v3", **options: object
) -> AsyncIterator[tuple[Client, list[FakeApacheBookie], MemoryStore]]:
    store = MemoryStore(f"apache fakes {next(_names)}")
    try:
        async with (
            fake_apache_bookies(store, bookies) as fakes,
            fastbk.connect(store, apache_protocol=version, **options) as client,
        ):
            yield client, fakes, store
    finally:
        store.close()


def asked(fakes: list[FakeApacheBookie], operation: int, version: int | None = None) -> list[Asked]:
    return [
        one
        for fake in fakes
        for one in fake.seen
        if one.operation == operation and version in (None, one.version)
    ]
