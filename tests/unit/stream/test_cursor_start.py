"""Where a new cursor begins: as a reader does, also where the start was truncated; nothing is skipped silently."""

from __future__ import annotations

import asyncio

import pytest

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import PositionTruncated
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.store import CursorPositions, cursors_of
from fastbk.stream.cursor.sync_cursor import SyncCursor
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.positions import DLSN, FIRST, AtSeq, AtTxid, Start
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Gap, Record
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.fake_streams import as_client
from tests.fixtures.streams import context_of, filled, new_stream, truncated_to, writer_of

WAIT_S = 5.0
TRIM = DLSN(2, 1, 1)
"""Within an entry of the second of three segments, each of three entries of two records: record 9."""


async def truncated_stream(plan: Plan | None = None, *, delete: bool = False) -> Cluster:
    """Make a stream of 18 records, of which 9 are truncated."""
    cluster = Cluster(plan or Plan())
    context = await new_stream(cluster)
    await filled(cluster, [3, 3, 3], 2)
    await truncated_to(context, TRIM, delete)
    return cluster


async def items_of(source: StreamReader | Cursor) -> tuple[list[int | Gap], str]:
    """Return the numbers of the records, with the gaps, until the end or an error; and the error's position."""
    found: list[int | Gap] = []
    try:
        async with asyncio.timeout(WAIT_S), source:
            async for item in source:
                found.append(item.seq if isinstance(item, Record) else item)
    except PositionTruncated as error:
        return found, error.first_available
    return found, ""


STARTS: list[Start] = [
    "earliest",
    "latest",
    *(DLSN(segment, entry, slot) for segment in (1, 2, 3) for entry in range(4) for slot in (0, 2)),
    *(AtSeq(seq) for seq in (0, 8, 9, 10, 17, 18)),
    *(AtTxid(txid) for txid in (0, 12, 19, 20)),
    TRIM,
]


@pytest.mark.parametrize("delete", [False, True])
async def test_a_new_cursor_begins_as_a_reader_does(delete: bool) -> None:
    cluster = await truncated_stream(delete=delete)
    for number, start in enumerate(STARTS):
        reader = StreamReader(context_of(cluster.client()), start, tail=False)
        cursor = Cursor(context_of(cluster.client()), f"c{number}", start, tail=False)
        expected = await items_of(reader)
        assert await items_of(cursor) == expected, start
        is_made = {one.name for one in await cursors_of(as_client(cluster.client()).records, "ab")}
        assert (f"c{number}" in is_made) == (expected[1] == ""), "a refused cursor is not made"


@pytest.mark.parametrize("delete", [False, True])
async def test_with_gaps_a_new_cursor_hands_out_the_gap(delete: bool) -> None:
    cluster = await truncated_stream(delete=delete)
    for number, start in enumerate(STARTS):
        reader = StreamReader(context_of(cluster.client()), start, tail=False, on_gap="yield")
        cursor = Cursor(
            context_of(cluster.client()), f"c{number}", start, tail=False, on_gap="yield"
        )
        expected, _ = await items_of(reader)
        found, _ = await items_of(cursor)
        assert [isinstance(one, Gap) for one in found] == [isinstance(one, Gap) for one in expected]
        assert [one for one in found if isinstance(one, int)] == [
            one for one in expected if isinstance(one, int)
        ]


async def test_a_number_that_was_truncated_counts_what_is_gone() -> None:
    cluster = await truncated_stream()
    async with Cursor(
        context_of(cluster.client()), "c", AtSeq(4), tail=False, on_gap="yield"
    ) as cursor:
        gap = await anext(cursor)
        assert isinstance(gap, Gap) and (gap.kind, gap.records, gap.next) == ("trimmed", 5, TRIM)
        assert cursor.gap_records == 5


async def test_a_number_that_is_still_to_come_is_where_it_begins() -> None:
    cluster = await truncated_stream()
    for _ in range(2):
        async with Cursor(context_of(cluster.client()), "c", AtSeq(20), tail=False) as cursor:
            assert [one async for one in cursor] == [] and cursor.mark_seq == 20
    async with writer_of(cluster) as writer:
        for _ in range(5):
            await writer.append(b"x")
    reader = StreamReader(context_of(cluster.client()), AtSeq(20), tail=False)
    cursor = Cursor(context_of(cluster.client()), "c", tail=False)
    assert await items_of(cursor) == await items_of(reader) == ([20, 21, 22], "")
    assert (await cursors_of(as_client(cluster.client()).records, "ab"))[0].mark_seq == 20


async def test_an_existing_cursor_and_reset_take_a_truncated_start() -> None:
    cluster = await truncated_stream()
    async with Cursor(context_of(cluster.client()), "c") as cursor:
        await cursor.ack(await anext(cursor))  # type: ignore[arg-type]
    async with Cursor(context_of(cluster.client()), "c", FIRST) as cursor:
        assert cursor.mark_seq == 10, "it goes on at its mark"
        await cursor.reset(FIRST)
        assert cursor.mark == TRIM, "reset is documented to go to what is still there"


def test_the_blocking_cursor_raises_too() -> None:
    loop = LoopThread(lambda: FakeClient(Cluster(), "unused"))  # type: ignore[arg-type, return-value]
    try:
        cluster = loop.call(truncated_stream)
        context = context_of(cluster.client())
        with pytest.raises(PositionTruncated) as caught:
            SyncCursor(loop, lambda: Cursor(context, "c", AtSeq(3))).open()
        assert caught.value.first_available == str(TRIM)
    finally:
        loop.close(WAIT_S)


async def test_a_start_that_is_truncated_while_the_cursor_is_made_raises_at_the_first_read() -> (
    None
):
    class Truncates(Plan):
        """Truncates right before the cursor's record is written."""

        is_on = False

        async def before(self, client: FakeClient, what: str) -> None:
            if self.is_on and what == "metadata.change":
                self.is_on = False
                await truncated_to(context_of(cluster.client()), DLSN(3, 1, 0))

    plan = Truncates()
    cluster = await truncated_stream(plan)
    plan.is_on = True
    cursor = Cursor(context_of(cluster.client()), "c", DLSN(3, 0, 0), tail=False)
    found, first_available = await items_of(cursor)
    assert (found, first_available, plan.is_on) == ([], "3.1.0", False)


async def test_marks_of_what_was_truncated_are_kept_as_they_are() -> None:
    cluster = Cluster()
    space = Namespace(Catalog(as_client(cluster.client())), "shop")
    await space.create()
    stream = await space.create_stream("s")
    async with stream.writer() as writer:
        places = [await writer.append(b"x") for _ in range(6)]
    await stream.truncate(before=places[4])
    marks = CursorPositions(Catalog(as_client(cluster.client())), "query", {"by": "test"})
    assert await marks.move({"shop/s": (places[2], 2)}) == {}
    (info,) = await stream.cursors()
    assert (info.mark, info.mark_seq) == (places[2], 2)
