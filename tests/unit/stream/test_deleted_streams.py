"""What those meet who use a stream while it is deleted: they are told that it was deleted, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, nullcontext

import pytest

from fastbk.errors import StreamNotFound
from fastbk.stream.chain import condemn
from fastbk.stream.chain_store import ChainStore
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.deletion import delete_stream
from fastbk.stream.options import WriterOptions
from fastbk.stream.reader.search import tail_position
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.fake_streams import (
    as_client,
    context_of,
    mark_deleted,
    new_stream,
    write_segments,
)

IN_TIME_S = 1.0
"""In which the next append fails."""


async def _deleted(cluster: Cluster) -> None:
    await mark_deleted(cluster)
    await delete_stream(as_client(cluster.client()), "ab")


async def _writer(cluster: Cluster) -> StreamWriter:
    writer = StreamWriter(context_of(cluster.client()), WriterOptions())
    await writer.open()
    return writer


@pytest.mark.parametrize("records", [0, 3])
async def test_a_writer_learns_of_it_by_its_next_append(records: int) -> None:
    """INV-S19"""
    cluster = Cluster()
    await new_stream(cluster)
    writer = await _writer(cluster)
    for _ in range(records):
        await writer.append(b"x")
    await _deleted(cluster)
    async with asyncio.timeout(IN_TIME_S):
        with pytest.raises(StreamNotFound, match="test/ab was deleted") as told:
            await writer.append(b"y")
    assert told.value.outcome in ("unknown", "not_written")
    with pytest.raises(StreamNotFound, match="test/ab was deleted") as told:
        await writer.append(b"z")
    assert told.value.outcome == "not_written"
    with pytest.raises(StreamNotFound):
        await writer.close()


@pytest.mark.parametrize("is_told", [True, False])
async def test_the_end_of_its_block_says_it_where_no_call_has(is_told: bool) -> None:
    cluster = Cluster()
    await new_stream(cluster)
    with nullcontext() if is_told else pytest.raises(StreamNotFound, match="test/ab was deleted"):
        async with StreamWriter(context_of(cluster.client()), WriterOptions()) as writer:
            await writer.append(b"x")
            await _deleted(cluster)
            lost = writer.append_nowait(b"y")
            if is_told:
                with pytest.raises(StreamNotFound):
                    await writer.flush()
    assert isinstance(lost.exception(), StreamNotFound)


class Together(Plan):
    """Appends wait until they are let go."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def before(self, client: FakeClient, what: str) -> None:
        if what == "append":
            await self.may_go_on.wait()


async def test_appends_under_way_fail_in_their_order() -> None:
    """INV-S19, INV-S5"""
    plan = Together()
    cluster = Cluster(plan)
    await new_stream(cluster)
    writer = await _writer(cluster)
    await writer.append(b"x")
    plan.may_go_on.clear()
    futures = [writer.append_nowait(bytes(40_000)) for _ in range(6)]
    await asyncio.sleep(0)
    await _deleted(cluster)
    plan.may_go_on.set()
    async with asyncio.timeout(IN_TIME_S):
        ends = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(end) for end in ends] == [StreamNotFound] * 6


@asynccontextmanager
async def _condemned(cluster: Cluster) -> AsyncIterator[None]:
    """The block runs between the first and the last step of a deletion."""
    await mark_deleted(cluster)
    store = ChainStore(as_client(cluster.client()).records, "ab", 10.0, is_deleter=True)
    await store.change(condemn)
    yield
    await delete_stream(as_client(cluster.client()), "ab")


@pytest.mark.parametrize("is_at_end", [True, False])
@pytest.mark.parametrize("on_gap", ["raise", "yield"])
async def test_a_reader_is_told_that_the_stream_is_gone_and_nothing_of_loss(
    is_at_end: bool, on_gap: str
) -> None:
    """INV-S19"""
    cluster = Cluster()
    await new_stream(cluster)
    await write_segments(cluster.client(), 4)
    writer = await _writer(cluster)
    await writer.append(b"open")
    reader = StreamReader(context_of(cluster.client()), on_gap=on_gap, prefetch_bytes=1)  # type: ignore[arg-type]
    async with reader:
        for _ in range(13 if is_at_end else 2):
            await anext(reader)
        waiting = asyncio.ensure_future(anext(reader)) if is_at_end else None
        await asyncio.sleep(0)
        async with _condemned(cluster):
            if waiting is not None:
                with pytest.raises(StreamNotFound):
                    await asyncio.wait_for(waiting, 10)
            with pytest.raises(StreamNotFound):
                async with asyncio.timeout(10):
                    while True:
                        await anext(reader)
        for _ in range(3):
            with pytest.raises(StreamNotFound, match="ab any more: it was deleted"):
                await anext(reader)
        with pytest.raises(StreamNotFound):
            await reader.wait_caught_up()
    writer.abort()


async def test_a_cursor_is_told_that_the_stream_is_gone() -> None:
    """INV-S19"""
    cluster = Cluster()
    await new_stream(cluster)
    await write_segments(cluster.client(), 2)
    cursor = Cursor(context_of(cluster.client()), "c")
    await cursor.open()
    for _ in range(6):
        await anext(cursor)
    waiting = asyncio.ensure_future(anext(cursor))
    await asyncio.sleep(0)
    await _deleted(cluster)
    with pytest.raises(StreamNotFound):
        await asyncio.wait_for(waiting, 10)
    with pytest.raises(StreamNotFound):
        await anext(cursor)
    await cursor.abort()


async def test_nobody_begins_to_use_a_stream_that_is_being_deleted() -> None:
    """INV-S19"""
    cluster = Cluster()
    await new_stream(cluster)
    await write_segments(cluster.client(), 2)
    async with _condemned(cluster):
        context = context_of(cluster.client())
        begun: list[Awaitable[object]] = [
            StreamReader(context).open(),
            StreamWriter(context, WriterOptions()).open(),
            Cursor(context, "c").open(),
            tail_position(context),
        ]
        for one in begun:
            with pytest.raises(StreamNotFound, match="it was deleted"):
                await one


async def test_open_ledgers_are_fenced_before_they_are_deleted() -> None:
    """INV-S19"""
    seen: list[bool] = []

    class Watching(Plan):
        async def before(self, client: FakeClient, what: str) -> None:
            if client.name == "deleter" and what == "metadata.change":
                ledger = cluster.ledgers.get(0)
                seen.append(ledger is None or ledger.metadata.is_closed)

    cluster = Cluster(Watching())
    await new_stream(cluster)
    writer = await _writer(cluster)
    await writer.append(b"x")
    await mark_deleted(cluster)
    await delete_stream(as_client(cluster.client("deleter")), "ab")
    assert seen[0] is False and all(seen[1:]), "condemned, then fenced, then deleted"
    writer.abort()
