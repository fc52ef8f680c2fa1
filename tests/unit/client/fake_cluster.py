"""A cluster of fakes and a client on the running loop, for the tests of this folder."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TypeVar

import fastbk
from fastbk.client import Client, LedgerReader, LedgerWriter
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.ledger import LedgerState
from tests.fixtures.fake_apache_bookie import FakeApacheBookie
from tests.fixtures.fake_apache_frames import Asked
from tests.fixtures.fake_bookie import FAKES_LEASE_S, FakeBookie, fake_bookies

_names = itertools.count()
VERSIONS = ["v2", "v3"]
"""Apache's protocols."""
F = TypeVar("F", bound=FakeBookie)


@contextlib.asynccontextmanager
async def _cluster(
    kind: type[F], bookies: int, **options: object
) -> AsyncIterator[tuple[Client, list[F], MemoryStore]]:
    store = MemoryStore(f"fakes {next(_names)}", FAKES_LEASE_S)
    try:
        async with (
            fake_bookies(store, bookies, kind) as fakes,
            fastbk.connect(store, **options) as client,
        ):
            yield client, fakes, store
    finally:
        store.close()


def fake_cluster(
    bookies: int = 3, **options: object
) -> AbstractAsyncContextManager[tuple[Client, list[FakeBookie], MemoryStore]]:
    return _cluster(FakeBookie, bookies, **options)


@contextlib.asynccontextmanager
async def one_ledger(
    bookies: int = 3, *, closes: bool = False, **options: object
) -> AsyncIterator[tuple[Client, list[FakeBookie], MemoryStore, LedgerWriter]]:
    """Give a `fake_cluster`, and the writer of a ledger there, which `closes` closes if nothing fails."""
    async with fake_cluster(bookies, **options) as (client, fakes, store):
        writer = await client.create_ledger()
        yield client, fakes, store, writer
        if closes:
            await writer.close()


def apache_cluster(
    bookies: int = 3, version: str = "v3", **options: object
) -> AbstractAsyncContextManager[tuple[Client, list[FakeApacheBookie], MemoryStore]]:
    """Give bookies that speak Apache's protocols only."""
    return _cluster(FakeApacheBookie, bookies, apache_protocol=version, **options)


def asked(fakes: list[FakeApacheBookie], operation: int, version: int | None = None) -> list[Asked]:
    return [
        one
        for fake in fakes
        for one in fake.seen
        if one.operation == operation and version in (None, one.version)
    ]


def by_id(fakes: list[F], bookie_id: str) -> F:
    return next(fake for fake in fakes if fake.bookie_id == bookie_id)


def numbers(first: int, end: int) -> list[bytes]:
    """Return the entries that most tests append, from `first` to before `end`."""
    return [b"%d" % one for one in range(first, end)]


async def written(
    client: Client, datas: list[bytes], ensemble: int = 3, write_quorum: int = 3, **options: object
) -> LedgerReader:
    """Write a ledger, close it, and return its reader."""
    async with await client.create_ledger(ensemble, write_quorum, **options) as writer:
        await writer.append_many(datas)
    return await client.open_ledger(writer.ledger_id)


async def read_all(client: Client, ledger_id: int, **options: object) -> list[bytes]:
    """Open a ledger, which recovers it, and read all."""
    reader = await client.open_ledger(ledger_id, **options)
    assert reader.is_closed
    return [bytes(one.data) async for one in reader.read()]


async def some_turns() -> None:
    """Let the loop do what it can do without waiting for anything."""
    for _ in range(20):
        await asyncio.sleep(0)


def taken_over(store: MemoryStore, ledger_id: int) -> None:
    """Another client has begun to recover the ledger: a writer that bookies refuse as fenced believes only this."""
    known = store.read_ledger(ledger_id)
    metadata = replace(known.metadata, state=LedgerState.IN_RECOVERY)
    store.update_ledger(ledger_id, metadata, known.version)
