"""A cursor on ledgers in memory: what it delivers, and what it delivers again (INV-S10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext
from typing import TypeAlias

import pytest

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    CursorFenced,
    PositionTruncated,
    StreamExists,
    StreamNotFound,
)
from fastbk.stream.chain import drop_deleted, mark_deleting, truncate
from fastbk.stream.cursor import state
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.state import DATA_BYTES_MAX
from fastbk.stream.cursor.store import (
    CursorPositions,
    create_cursor,
    cursors_of,
    move_cursor,
    place_before,
    place_of,
)
from fastbk.stream.cursor.sync_cursor import SyncCursor, SyncPatternCursor
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.options import WriterOptions
from fastbk.stream.pattern.cursor import PatternCursor
from fastbk.stream.positions import DLSN, FIRST, AtSeq, AtTxid, Start
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk, Gap, Record
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.cursor_holder import make_stream
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import (
    STREAM,
    as_client,
    cluster_with_stream,
    context_of,
    filled,
    truncated_to,
    writer_of,
)
from tests.fixtures.sync_cluster import sync_cluster
from tests.fixtures.wait import wait_until, wait_until_async
from tests.unit.client.fake_cluster import fake_cluster


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    make_stream(made)
    return made


async def write(client: FakeClient, counts: Iterable[int]) -> list[DLSN]:
    """Append so many records each to a segment of its own, in entries of one record; return their positions."""
    places: list[DLSN] = []
    for count in counts:
        writer = StreamWriter(context_of(client), WriterOptions(batch_bytes=1))
        async with writer:
            for _ in range(count):
                places.append(await writer.append(b"%d" % (writer.last_txid + 1)))
    return places


@asynccontextmanager
async def opened(cluster: Cluster, **options: object) -> AsyncIterator[Cursor]:
    async with Cursor(context_of(cluster.client()), "c", **options) as cursor:  # type: ignore[arg-type]
        yield cursor


async def take(cursor: Cursor, count: int) -> list[Record]:
    found: list[Record] = []
    while len(found) < count:
        record = await anext(cursor)
        assert isinstance(record, Record)
        found.append(record)
    return found


async def rest(cursor: Cursor) -> list[int]:
    """Return the numbers of all that comes until the end."""
    return [one.seq async for one in cursor if isinstance(one, Record)]


async def test_it_goes_on_behind_what_was_acknowledged(cluster: Cluster) -> None:
    await write(cluster.client(), [4, 4, 4])
    async with opened(cluster) as cursor:
        records = await take(cursor, 6)
        cursor.ack(records[4], data={"row": 4})
        assert cursor.mark_seq == 5
    async with opened(cluster, tail=False) as cursor:
        assert (cursor.data, cursor.mark, cursor.epoch) == ({"row": 4}, DLSN(2, 0, 1), 2)
        assert await rest(cursor) == [5, 6, 7, 8, 9, 10, 11]


async def test_what_was_not_kept_is_delivered_again(cluster: Cluster) -> None:
    await write(cluster.client(), [6])
    cursor = Cursor(context_of(cluster.client()), "c", flush_interval=3600)
    await cursor.open()
    records = await take(cursor, 6)
    await cursor.ack(records[2])
    cursor.ack(records[5])
    await cursor.abort()
    async with opened(cluster, tail=False) as cursor:
        assert await rest(cursor) == [3, 4, 5]


async def test_a_single_acknowledgement_that_was_awaited_is_kept(cluster: Cluster) -> None:
    await write(cluster.client(), [6])
    cursor = Cursor(context_of(cluster.client()), "c", flush_interval=3600)
    await cursor.open()
    records = await take(cursor, 6)
    await cursor.ack_one(records[2])
    await asyncio.gather(*(cursor.ack_one(records[at]) for at in (3, 0)))
    cursor.ack_one(records[5])
    await cursor.abort()
    async with opened(cluster, tail=False) as cursor:
        assert await rest(cursor) == [1, 4, 5], "the last one was in a group that was never kept"
        cursor.ack_one((await _records(cluster))[4])
        assert cursor.mark_seq == 1, "it counts at once all the same"
    async with opened(cluster, tail=False) as cursor:
        assert await rest(cursor) == [1, 5]


async def _records(cluster: Cluster) -> list[Record]:
    return [one async for one in _all(cluster)]


async def test_single_acknowledgements_are_passed_by(cluster: Cluster) -> None:
    await write(cluster.client(), [5, 5])
    async with opened(cluster) as cursor:
        records = await take(cursor, 10)
        for at in (1, 2, 5, 8):
            await cursor.ack_one(records[at].dlsn if at == 5 else records[at])
        assert (cursor.ranges, cursor.mark_seq) == (3, 0)
    async with opened(cluster, tail=False) as cursor:
        chunks = [one async for one in cursor.chunks() if isinstance(one, Chunk)]
        assert [[one.seq for one in chunk] for chunk in chunks] == [[0], [3, 4], [6, 7], [9]]
        cursor.ack(chunks[1])
        assert (cursor.mark_seq, cursor.ranges) == (6, 1)
        assert (await cursor.backlog()).records == 3


async def test_what_was_done_meanwhile_is_not_delivered(cluster: Cluster) -> None:
    places = await write(cluster.client(), [9])
    async with opened(cluster, tail=False) as cursor:
        (first,) = await take(cursor, 1)
        others = [one async for one in _all(cluster)]
        cursor.ack(others[3])
        await cursor.ack_one(others[5])
        assert first.seq == 0
        assert await rest(cursor) == [4, 6, 7, 8]
        cursor.ack(places[8])
        with pytest.raises(ConfigError):
            cursor.ack(DLSN(7, 0, 0))


async def _all(cluster: Cluster) -> AsyncIterator[Record]:
    async with Cursor(context_of(cluster.client()), "other", tail=False) as cursor:
        async for one in cursor:
            assert isinstance(one, Record)
            yield one


async def test_the_former_holder_is_told(cluster: Cluster) -> None:
    await write(cluster.client(), [5])
    former = Cursor(context_of(cluster.client()), "c")
    await former.open()
    records = await take(former, 3)
    async with opened(cluster) as later:
        with pytest.raises(CursorFenced):
            await former.ack(records[1])
        with pytest.raises(CursorFenced):
            former.ack(records[2])
        with pytest.raises(CursorFenced):
            await anext(former)
        assert later.mark_seq == -1
        assert [one.seq for one in await take(later, 2)] == [0, 1]
    with pytest.raises(CursorFenced):
        await former.close()


async def test_it_can_be_reset_both_ways(cluster: Cluster) -> None:
    await write(cluster.client(), [4, 4])
    async with opened(cluster) as cursor:
        records = await take(cursor, 8)
        cursor.ack(records[6])
        await cursor.reset(AtSeq(2))
        assert [one.seq for one in await take(cursor, 2)] == [2, 3]
        await cursor.reset(records[5].dlsn)
        assert [one.seq for one in await take(cursor, 1)] == [5]
        assert cursor.mark_seq == 5
        await cursor.reset("earliest")
        await cursor.abort()
    async with opened(cluster, tail=False) as cursor:
        assert await rest(cursor) == list(range(8))


@pytest.mark.parametrize("how", ["ack", "ack_one", "position"])
async def test_acknowledgements_of_what_was_handed_out_before_a_reset_do_not_undo_it(
    cluster: Cluster, how: str
) -> None:
    await write(cluster.client(), [4, 4])
    async with opened(cluster) as cursor:
        before = await take(cursor, 8)
        await cursor.reset(AtSeq(2))
        act = cursor.ack_one if how == "ack_one" else cursor.ack
        late = before[6].dlsn if how == "position" else before[6]
        if how == "position":
            with pytest.raises(ConfigError):
                act(late)
        else:
            await act(late)  # a task that worked on it while the cursor was moved
        assert cursor.mark == before[2].dlsn and cursor.ranges == 0
        again = await take(cursor, 3)
        assert [one.seq for one in again] == [2, 3, 4]
        await cursor.ack(before[5])
        assert cursor.mark_seq == 2, "iteration has it at hand, and has not handed it out"
        await cursor.ack(again[1])
        assert cursor.mark_seq == 4, "what was handed out again counts"
    async with opened(cluster, tail=False) as cursor:
        assert await rest(cursor) == [4, 5, 6, 7]


@pytest.mark.parametrize("call", [Cursor.ack, Cursor.ack_one])
async def test_a_position_from_before_a_reset_does_not_bring_the_mark_back(
    cluster: Cluster, call: Callable[[Cursor, DLSN], Awaitable[None]]
) -> None:
    """Not while the number of the new mark is not known yet, either."""
    places = await write(cluster.client(), [4, 4])
    async with opened(cluster) as cursor:
        await take(cursor, 3)
        await cursor.reset(places[6])
        await call(cursor, places[1])
        assert (cursor.mark, cursor.mark_seq, cursor.ranges) == (places[6], -1, 0)
    async with opened(cluster, tail=False) as cursor:
        assert await rest(cursor) == [6, 7]


async def test_the_map_goes_with_the_mark(cluster: Cluster) -> None:
    await write(cluster.client(), [8])
    async with opened(cluster) as cursor:
        records = await take(cursor, 8)
        cursor.ack(records[5], data={"rows": 7, "file": "a"})
        cursor.ack(records[4], data={"rows": 1})
        assert cursor.data == {"rows": 7, "file": "a"}, "an older one does not bring its map back"
        for wrong in ({"a": 1.5}, {"a": 1 << 63}, {"a": "x" * DATA_BYTES_MAX}):
            with pytest.raises(ConfigError):
                cursor.ack(records[7], data=wrong)  # type: ignore[arg-type]
            assert (cursor.mark_seq, cursor.data) == (6, {"rows": 7, "file": "a"})


async def test_it_is_made_and_moved_by_somebody_who_does_not_read(cluster: Cluster) -> None:
    await write(cluster.client(), [4, 4])
    context = context_of(cluster.client())
    made = await create_cursor(context, "c", AtSeq(6), holds=False, expire_after_s=60.0)
    assert (made.mark_seq, made.holds, made.epoch) == (6, False, 1) and made.expires_at_us > 0
    with pytest.raises(StreamExists):
        await create_cursor(context, "c", "earliest", holds=True, expire_after_s=0.0)
    holder = Cursor(context_of(cluster.client()), "c", hold=False)
    await holder.open()
    records = await take(holder, 2)
    await holder.ack(records[0], data={"n": 7})
    mark, seq = await place_of(context, AtSeq(1))
    moved = await move_cursor(context, "c", mark, seq)
    assert (moved.mark_seq, moved.mark, moved.holds) == (1, mark, False)
    assert moved.data == {"n": 7} and moved.epoch == 3 and moved.ranges == 0
    with pytest.raises(CursorFenced):
        await holder.ack(records[1])
    await holder.abort()
    (info,) = await cursors_of(as_client(cluster.client()).records, STREAM)
    assert (info.mark_seq, await place_before(context, info, 1)) == (
        1,
        await place_of(context, "earliest"),
    )
    async with opened(cluster, tail=False) as cursor:
        assert await rest(cursor) == list(range(1, 8))
    with pytest.raises(StreamNotFound):
        await move_cursor(context, "other", mark, seq)


async def test_a_place_behind_the_end_is_refused_where_a_cursor_would_wait_in_silence(
    cluster: Cluster,
) -> None:
    context = context_of(cluster.client())
    for wrong in (DLSN(1, 1, 0), DLSN(3, 0, 0)):
        with pytest.raises(ConfigError, match="has no records"):
            await place_of(context, wrong)
    assert await place_of(context, "latest") == (DLSN(1, 0, 0), 0)
    places = await write(cluster.client(), [4])
    for right in (places[-1]._replace(slot=places[-1].slot + 1), DLSN(2, 0, 0), "latest"):
        assert (await place_of(context, right))[1] == 4
    for wrong in (DLSN(1, 9, 0), DLSN(2, 0, 1), DLSN(7, 0, 0)):
        with pytest.raises(ConfigError, match="behind the end"):
            await place_of(context, wrong)
        with pytest.raises(ConfigError, match="behind the end"):
            await create_cursor(context, "c", wrong, holds=True, expire_after_s=0.0)
    assert await cursors_of(as_client(cluster.client()).records, STREAM) == []


async def test_whoever_knows_the_number_of_a_mark_may_say_it(cluster: Cluster) -> None:
    await write(cluster.client(), [4, 4])
    async with opened(cluster) as cursor:
        records = await take(cursor, 8)
        await cursor.reset(records[5].dlsn, seq=5)
        assert cursor.mark_seq == 5
        await cursor.reset(records[6].dlsn)
        assert cursor.mark_seq == -1
        for where, seq in ((records[5].dlsn, -1), (AtSeq(5), 5)):
            with pytest.raises(ConfigError):
                await cursor.reset(where, seq=seq)
        await cursor.reset(DLSN(0, 0, 0), seq=7)  # it is moved to where the stream begins
        assert (cursor.mark, cursor.mark_seq) == (records[0].dlsn, -1)


async def test_a_new_one_begins_where_it_is_told_and_an_old_one_at_its_mark(
    cluster: Cluster,
) -> None:
    await write(cluster.client(), [4])
    async with opened(cluster, start=AtSeq(2)) as cursor:
        assert [one.seq for one in await take(cursor, 1)] == [2]
    async with opened(cluster, start="earliest", tail=False) as cursor:
        assert await rest(cursor) == [2, 3]
    async with Cursor(context_of(cluster.client()), "late", "latest") as cursor:
        assert (await cursor.backlog()).records == 0
        await write(cluster.client(), [2])
        assert (await cursor.backlog()).records == 2
        assert [one.seq for one in await take(cursor, 2)] == [4, 5]


async def test_a_mark_behind_a_segment_that_is_gone_is_no_gap(cluster: Cluster) -> None:
    """Its janitor deletes what all cursors have done; a holder that comes later has missed nothing."""
    await write(cluster.client(), [4])
    async with opened(cluster) as cursor:
        cursor.ack((await take(cursor, 4))[-1])
    store = context_of(cluster.client()).store
    async with Cursor(context_of(cluster.client()), "late", "latest") as late:
        assert late.mark_seq == 4
    await write(cluster.client(), [2])  # the newest closed segment is never deleted
    await store.change(lambda chain: drop_deleted(mark_deleting(chain, 2), 2, 4))
    for name in ("c", "late"):
        async with Cursor(context_of(cluster.client()), name, on_gap="yield") as cursor:
            assert await cursor.read(timeout=0) is None, "nothing was read ahead yet"
            assert [one.seq for one in await take(cursor, 2)] == [4, 5]
            assert cursor.gap_records == 0


async def test_records_that_are_gone_are_told_and_counted_once(cluster: Cluster) -> None:
    places = await write(cluster.client(), [4, 4])
    async with opened(cluster) as cursor:
        records = await take(cursor, 4)
        cursor.ack(records[1])
        await cursor.ack_one(records[3])
    await context_of(cluster.client()).store.change(lambda chain: truncate(chain, places[5]))
    async with opened(cluster, tail=False) as cursor:
        for _ in range(2):
            with pytest.raises(PositionTruncated) as told:
                await anext(cursor)
            assert told.value.first_available == str(places[5])
        assert cursor.gap_records == 0
    async with opened(cluster, tail=False, on_gap="yield") as cursor:
        gap = await anext(cursor)
        assert isinstance(gap, Gap)
        assert (gap.kind, gap.next, gap.records) == ("trimmed", places[5], 2)
        assert (cursor.gap_records, cursor.mark_seq) == (2, 5)
        assert await rest(cursor) == [5, 6, 7]
    async with opened(cluster, tail=False) as cursor:
        assert await rest(cursor) == [5, 6, 7], "what was told is behind the mark"
        assert cursor.gap_records == 2


async def test_what_was_done_may_be_truncated_without_a_word(cluster: Cluster) -> None:
    places = await write(cluster.client(), [4, 4])
    async with opened(cluster) as cursor:
        records = await take(cursor, 6)
        cursor.ack(records[3])
        await cursor.ack_one(records[4])
    await context_of(cluster.client()).store.change(lambda chain: truncate(chain, places[5]))
    async with opened(cluster, tail=False) as cursor:
        assert await rest(cursor) == [5, 6, 7]
        assert cursor.gap_records == 0


async def test_too_many_ranges_make_acknowledgements_wait(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "RANGES_MAX", 3)
    await write(cluster.client(), [20])
    async with opened(cluster) as cursor:
        records = await take(cursor, 20)
        for at in (2, 4, 6):
            await cursor.ack_one(records[at])
        waiting = [asyncio.ensure_future(cursor.ack_one(records[at])) for at in (8, 10)]
        await asyncio.sleep(0)
        await cursor.ack_one(records[3])
        while not any(one.done() for one in waiting):
            await asyncio.sleep(0)
        assert sum(one.done() for one in waiting) == 1
        assert cursor.ranges == 3
        cursor.ack(records[6])
        await asyncio.gather(*waiting)
        assert cursor.ranges == 2
        await cursor.ack_one(records[12])
        stuck = asyncio.ensure_future(cursor.ack_one(records[15]))
        await asyncio.sleep(0)
    with pytest.raises(ClientClosed):
        await stuck


async def test_reading_can_be_cut_short_and_goes_on(cluster: Cluster) -> None:
    await write(cluster.client(), [2])
    async with opened(cluster) as cursor:
        await take(cursor, 2)
        assert await cursor.read(timeout=0.01) is None
        waiting = asyncio.ensure_future(anext(cursor))
        for _ in range(20):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await write(cluster.client(), [3])
        assert [one.seq for one in await take(cursor, 3)] == [2, 3, 4]


@pytest.mark.parametrize(
    "wrong",
    [
        {"flush_interval": 0},
        {"flush_acks": 0},
        {"expire_after": 0.5},
        {"on_gap": "skip"},
        {"name": ""},
        {"name": "x" * 81},
        {"name": "a\nb"},
    ],
)
async def test_options_out_of_range_are_refused(cluster: Cluster, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Cursor(context_of(cluster.client()), **{"name": "c", **wrong})  # type: ignore[arg-type]
    cursor = Cursor(context_of(cluster.client()), "c")
    with pytest.raises(ClientClosed):
        await cursor.flush()


# Where a new cursor begins: as a reader does, also where the start was truncated; nothing is
# skipped silently.


START_WAIT_S = 5.0
TRIM = DLSN(2, 1, 1)
"""Within an entry of the second of three segments, each of three entries of two records: record 9."""


async def truncated_stream(plan: Plan | None = None, *, delete: bool = False) -> Cluster:
    """Make a stream of 18 records, of which 9 are truncated."""
    cluster, context = await cluster_with_stream(plan or Plan())
    await filled(cluster, [3, 3, 3], 2)
    await truncated_to(context, TRIM, delete)
    return cluster


async def items_of(source: StreamReader | Cursor) -> tuple[list[int | Gap], str]:
    """Return the numbers of the records, with the gaps, until the end or an error; and the error's position."""
    found: list[int | Gap] = []
    try:
        async with asyncio.timeout(START_WAIT_S), source:
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
        loop.close(START_WAIT_S)


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


# What is open after an iteration came to its end: the same with and without `await`.


PAYLOADS = [b"%d" % at for at in range(10)]


async def test_an_asyncio_cursor_and_reader_stay_open() -> None:
    async with fake_cluster() as (client, _, _):
        namespace = client.namespace("shop")
        await namespace.create()
        stream = await namespace.create_stream("orders")
        async with stream.writer() as writer:
            await writer.append_many(PAYLOADS)
            await writer.publish()
            async with stream.cursor("billing", tail=False) as cursor:
                records = [one async for one in cursor]
                cursor.ack(records[-1])
                assert (await cursor.backlog()).records == 0
                assert [one async for one in cursor] == []
                await cursor.reset("earliest")
                assert len([one async for one in cursor]) == 10
            async with stream.reader("earliest", tail=False) as reader:
                assert len([one async for one in reader]) == 10
                assert [one async for one in reader] == []
                await reader.seek("earliest")
                assert len([one async for one in reader]) == 10


def test_a_blocking_cursor_and_reader_that_were_opened_stay_open() -> None:
    with sync_cluster() as (client, _, _):
        namespace = client.namespace("shop")
        namespace.create()
        stream = namespace.create_stream("orders")
        with stream.writer() as writer:
            writer.append_many(PAYLOADS)
            writer.publish()
            with stream.cursor("billing", tail=False) as cursor:
                records = list(cursor)
                cursor.ack(records[-1]).result()
                assert cursor.backlog().records == 0
                assert list(cursor) == []
                cursor.reset("earliest")
                assert len(list(cursor)) == 10
            with stream.reader("earliest", tail=False) as reader:
                assert len(list(reader)) == 10
                assert list(reader) == []
                reader.seek("earliest")
                assert len(list(reader)) == 10
            opened = stream.cursor("by hand", tail=False)
            opened.open()
            opened.ack(list(opened)[-1])
            opened.close()
            with stream.cursor("by hand", tail=False) as cursor:
                assert list(cursor) == []


def test_a_blocking_reader_that_its_iteration_opened_is_closed_with_it() -> None:
    with sync_cluster() as (client, _, _):
        namespace = client.namespace("shop")
        namespace.create()
        stream = namespace.create_stream("orders")
        with stream.writer() as writer:
            writer.append_many(PAYLOADS)
        by_records = stream.reader("earliest", tail=False)
        next(iter(by_records))
        assert len(list(by_records)) == 9
        by_chunks = stream.reader("earliest", tail=False)
        assert sum(len(chunk) for chunk in by_chunks.chunks()) == 10
        for reader in (by_records, by_chunks):
            with pytest.raises(ClientClosed):
                _ = reader.position


# What a fenced holder of a cursor is told: once, by the first call that meets it, else by the end
# of its block.


AnyCursor: TypeAlias = Cursor[Gap] | PatternCursor[Gap]
Make = Callable[[FakeClient], AnyCursor]
Tell = Callable[[AnyCursor, list[Record]], Awaitable[object]]
WAIT_S = 10.0


def _space(client: FakeClient) -> Namespace:
    return Namespace(Catalog(as_client(client)), "shop")


def of_stream(client: FakeClient) -> Cursor[Gap]:
    return _space(client).stream("a").cursor("c", flush_interval=60, on_gap="yield")


def of_pattern(client: FakeClient) -> PatternCursor[Gap]:
    return _space(client).cursor("*", "c", flush_interval=60, on_gap="yield")


@pytest.fixture(params=[of_stream, of_pattern], ids=["stream", "pattern"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


async def filled_by_writer(cluster: Cluster) -> None:
    async with _space(cluster.client()).stream("a").writer(create=True) as writer:
        for number in range(5):
            await writer.append(b"%d" % number)


async def taken(cursor: AnyCursor, count: int) -> list[Record]:
    found = [await anext(cursor) for _ in range(count)]
    return [one for one in found if isinstance(one, Record)]


async def take_over(cluster: Cluster, make: Make) -> None:
    cursor = make(cluster.client())
    await cursor.open()
    await cursor.abort()


async def _ack(cursor: AnyCursor, records: list[Record]) -> None:
    await cursor.ack(records[1])


async def _ack_one(cursor: AnyCursor, records: list[Record]) -> None:
    await cursor.ack_one(records[1])


async def _flush(cursor: AnyCursor, records: list[Record]) -> None:
    cursor.ack(records[1])
    await cursor.flush()


async def _close(cursor: AnyCursor, records: list[Record]) -> None:
    cursor.ack(records[1])
    await cursor.close()


async def _noticed(cursor: AnyCursor, records: list[Record]) -> None:
    """It is fenced in the background: nobody has been told."""
    cursor.ack(records[1])
    cursor._alive().flusher._due()
    await wait_until_async(lambda: cursor._failure is not None, "it was fenced")


async def _read(cursor: AnyCursor, records: list[Record]) -> None:
    await _noticed(cursor, records)
    await cursor.read()


async def _next(cursor: AnyCursor, records: list[Record]) -> None:
    await _noticed(cursor, records)
    await anext(cursor)


async def _late_ack(cursor: AnyCursor, records: list[Record]) -> None:
    await _noticed(cursor, records)
    cursor.ack(records[2])


@pytest.mark.parametrize("tell", [_ack, _ack_one, _flush, _close, _read, _next, _late_ack])
async def test_the_end_of_a_block_says_nothing_that_was_said_before(make: Make, tell: Tell) -> None:
    cluster = Cluster()
    await filled_by_writer(cluster)
    async with make(cluster.client()) as cursor:
        records = await taken(cursor, 3)
        await take_over(cluster, make)
        with pytest.raises(CursorFenced, match="not stored is delivered again"):
            await tell(cursor, records)
    with pytest.raises(CursorFenced):
        await cursor.close()  # who calls this asks for it


@pytest.mark.parametrize("is_noticed", [False, True], ids=["at_the_end", "before_it"])
async def test_the_end_of_a_block_says_what_nobody_was_told(make: Make, is_noticed: bool) -> None:
    cluster = Cluster()
    await filled_by_writer(cluster)
    client = cluster.client()
    with pytest.raises(CursorFenced, match="not stored is delivered again"):
        async with make(client) as cursor:
            records = await taken(cursor, 3)
            await take_over(cluster, make)
            if is_noticed:
                await _noticed(cursor, records)
                for one in list(client.unsettled):
                    await one.until_settled()  # type: ignore[attr-defined]
            else:
                cursor.ack(records[1])


async def test_what_ends_a_block_otherwise_says_that_something_was_not_kept(make: Make) -> None:
    cluster = Cluster()
    await filled_by_writer(cluster)
    with pytest.raises(KeyError) as mine:
        async with make(cluster.client()) as cursor:
            records = await taken(cursor, 3)
            await take_over(cluster, make)
            cursor.ack(records[1])
            raise KeyError("mine")
    (note,) = mine.value.__notes__
    assert note.startswith("Closing failed, too: ") and "not stored is delivered again" in note
    with pytest.raises(CursorFenced) as fenced:
        async with make(cluster.client()) as cursor:
            records = await taken(cursor, 3)
            await take_over(cluster, make)
            await cursor.ack(records[1])
    assert not hasattr(fenced.value, "__notes__"), "the end had nothing to add"


# --- without await ------------------------------------------------------------------------------------------------


class Blocking:
    """A loop in a thread of its own, and cursors on it."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.client = self.cluster.client()

        async def closed(timeout: float | None = None) -> None:
            return None

        self.client.close = closed  # type: ignore[attr-defined]
        self.loop = LoopThread(lambda: self.client)  # type: ignore[arg-type, return-value]
        self.loop.call(lambda: filled_by_writer(self.cluster))

    def cursor(self, make: Make) -> SyncCursor[Gap] | SyncPatternCursor[Gap]:
        kind = SyncCursor if make is of_stream else SyncPatternCursor
        return kind(self.loop, lambda: make(self.client))  # type: ignore[arg-type, return-value]

    def take_over(self, make: Make) -> None:
        self.loop.call(lambda: take_over(self.cluster, make))


@pytest.mark.parametrize(
    "how", ["result", "flush", "late_ack", "read", "close", "nothing", "nothing_noticed"]
)
def test_without_await_it_is_said_once(make: Make, how: str) -> None:
    world = Blocking()
    is_told = not how.startswith("nothing")
    try:
        with (
            nullcontext() if is_told else pytest.raises(CursorFenced),
            world.cursor(make) as cursor,
        ):
            records = [next(cursor) for _ in range(3)]
            assert all(isinstance(one, Record) for one in records)
            world.take_over(make)
            pending = cursor.ack(records[1])  # type: ignore[arg-type]
            if how in ("late_ack", "read", "nothing_noticed"):
                inner = cursor._inner
                assert inner is not None
                wait_until(lambda: not cursor._acks, "the acknowledgement came to the loop")
                world.loop.call_plain(lambda: inner._alive().flusher._due())
                wait_until(lambda: inner._failure is not None, "it was fenced")
            if how == "nothing_noticed":
                cursor.ack(records[2])  # type: ignore[arg-type]
                wait_until(lambda: not cursor._acks, "that came to the loop, too")
            calls: dict[str, Callable[[], object]] = {
                "result": pending.result,
                "flush": cursor.flush,
                "late_ack": lambda: cursor.ack_one(records[2]),  # type: ignore[arg-type]
                # the first one is at hand
                "read": lambda: [cursor.read(timeout=WAIT_S) for _ in range(2)],
                "close": cursor.close,
            }
            if is_told:
                with pytest.raises(CursorFenced):
                    calls[how]()
        with pytest.raises(CursorFenced):
            cursor.close()
    finally:
        world.loop.close(WAIT_S)


def test_without_await_an_acknowledgement_that_was_refused_on_the_loop_is_told_at_the_end() -> None:
    """It was of a position that was never handed out; the next call would have said so, and there was none."""
    world = Blocking()
    try:
        with pytest.raises(ConfigError, match="not handed out"), world.cursor(of_stream) as cursor:
            cursor.ack(DLSN(7, 0, 0))
        with world.cursor(of_stream) as cursor:
            cursor.ack(DLSN(7, 0, 0))
            with pytest.raises(ConfigError, match="not handed out"):
                cursor.flush()
            cursor.close()
    finally:
        world.loop.close(WAIT_S)
