"""A reader or cursor that starts behind an entry's last record ends there with `tail=False`, and never hangs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import ClientClosed
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.sync_cursor import SyncCursor
from fastbk.stream.positions import DLSN, AtSeq, Start
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk, Record
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import context_of, new_stream, writer_of

LAST = DLSN(1, 3, 2)
"""The last record of `new_segment`: four entries of three records."""
BEHIND_SLOT = DLSN(1, 3, 3)
BEHIND_ENTRY = DLSN(1, 4, 0)
WAIT_S = 5.0


async def new_segment(cluster: Cluster, segment: str) -> None:
    """Append four entries of three records to a segment that is then open, closed or recovered."""
    await new_stream(cluster)
    writer = writer_of(cluster)
    await writer.open()
    for _ in range(4):
        await writer.append_batch([b"a", b"b", b"c"])
    if segment == "open":
        await writer.publish()
    if segment == "closed":
        await writer.close()
    writer.abort()
    if segment == "recovered":
        async with writer_of(cluster):
            pass


async def records_left(reader: StreamReader) -> list[Record]:
    async with reader:
        return [one async for one in reader if isinstance(one, Record)]


def acknowledged(records: list[Record], how: str) -> Iterator[Record]:
    """Yield the records that a consumer acknowledges: the last one, or each one out of order."""
    return iter(records[-1:] if how == "ack" else reversed(records))


async def drain_cursor(cluster: Cluster, how: str) -> int:
    """Read a cursor to the end, acknowledge everything, and return the number of records."""
    async with Cursor(context_of(cluster.client()), "c", tail=False) as cursor:
        records = [one async for one in cursor if isinstance(one, Record)]
        for record in acknowledged(records, how):
            if how == "ack":
                await cursor.ack(record)
            else:
                await cursor.ack_one(record)
    return len(records)


def drain_blocking(loop: LoopThread[Any], cluster: Cluster, how: str) -> int:
    """Do the same without `await`."""
    context = context_of(cluster.client())
    with SyncCursor(loop, lambda: Cursor(context, "c", tail=False)) as cursor:
        records = [one for chunk in cursor.chunks() if isinstance(chunk, Chunk) for one in chunk]
        for record in acknowledged(records, how):
            if how == "ack":
                cursor.ack(record).result()
            else:
                cursor.ack_one(record)
    return len(records)


VARIANTS = list(itertools.product(("open", "closed", "recovered"), ("ack", "ack_one")))


@pytest.mark.parametrize(("segment", "how"), VARIANTS)
async def test_a_drained_cursor_ends_when_it_is_opened_again(segment: str, how: str) -> None:
    cluster = Cluster()
    await new_segment(cluster, segment)
    async with asyncio.timeout(WAIT_S):
        assert await drain_cursor(cluster, how) == 12
        assert await drain_cursor(cluster, how) == 0
        async with writer_of(cluster) as writer:
            await writer.append(b"d")
        assert await drain_cursor(cluster, how) == 1, "new records are delivered"
        assert await drain_cursor(cluster, how) == 0


@pytest.mark.parametrize(("segment", "how"), VARIANTS)
def test_a_drained_blocking_cursor_ends_when_it_is_opened_again(segment: str, how: str) -> None:
    cluster = Cluster()
    client = cluster.client()
    loop = LoopThread(lambda: client)  # type: ignore[arg-type, return-value]

    found: list[int] = []

    def drain() -> None:
        with contextlib.suppress(ClientClosed):
            for _ in range(2):
                found.append(drain_blocking(loop, cluster, how))

    try:
        loop.call(lambda: new_segment(cluster, segment))
        thread = threading.Thread(target=drain, daemon=True)
        thread.start()
        thread.join(WAIT_S)
    finally:
        loop.close(WAIT_S)  # ends a drain that hangs
    assert found == [12, 0]


@pytest.mark.parametrize("segment", ["open", "closed", "recovered"])
@pytest.mark.parametrize(
    ("start", "end", "tail"),
    [
        (BEHIND_SLOT, None, False),
        (BEHIND_SLOT, BEHIND_SLOT, True),
        (BEHIND_SLOT, BEHIND_ENTRY, True),
        (DLSN(1, 3, 7), BEHIND_ENTRY, True),
        (LAST, BEHIND_SLOT, True),
        (DLSN(1, 1, 3), DLSN(1, 2, 0), True),
        (DLSN(1, 0, 0), AtSeq(12), True),
        (BEHIND_SLOT, AtSeq(12), True),
        (DLSN(1, 1, 3), AtSeq(6), True),
        (AtSeq(12), AtSeq(12), True),
    ],
)
async def test_a_reader_ends_at_an_end_that_is_there(
    segment: str, start: Start, end: Start | None, tail: bool
) -> None:
    cluster = Cluster()
    await new_segment(cluster, segment)
    expected = {LAST: 1, DLSN(1, 0, 0): 12}.get(start, 0) if isinstance(start, DLSN) else 0
    async with asyncio.timeout(WAIT_S):
        reader = StreamReader(context_of(cluster.client()), start, end=end, tail=tail)
        assert len(await records_left(reader)) == expected


async def test_a_reader_behind_the_last_slot_goes_on_in_the_next_entry() -> None:
    cluster = Cluster()
    await new_segment(cluster, "closed")
    async with asyncio.timeout(WAIT_S):
        reader = StreamReader(context_of(cluster.client()), DLSN(1, 1, 3), tail=False)
        assert [one.dlsn.entry for one in await records_left(reader)] == [2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_reader_behind_the_last_slot_has_caught_up(is_read: bool) -> None:
    cluster = Cluster()
    await new_segment(cluster, "open")
    async with (
        asyncio.timeout(WAIT_S),
        StreamReader(context_of(cluster.client()), BEHIND_SLOT) as reader,
    ):
        waiting = asyncio.ensure_future(reader.wait_caught_up())
        if is_read:
            assert await reader.read(timeout=0.05) is None
        assert await waiting in (BEHIND_SLOT, BEHIND_ENTRY)


@pytest.mark.parametrize("end", [BEHIND_SLOT, BEHIND_ENTRY, None])
async def test_a_reader_waits_for_no_more_records_at_its_end(end: DLSN | None) -> None:
    cluster = Cluster()
    await new_segment(cluster, "open")
    reader = StreamReader(context_of(cluster.client()), end=end, tail=end is not None)
    async with asyncio.timeout(WAIT_S), reader:
        chunks = [one async for one in reader.chunks(max_wait=10 * WAIT_S)]
    assert sum(map(len, chunks)) == 12
