"""A cursor on ledgers in memory: what it delivers, and what it delivers again (INV-S10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import pytest

from fastbk.errors import (
    ClientClosed,
    ConfigError,
    CursorFenced,
    PositionTruncated,
    StreamExists,
    StreamNotFound,
)
from fastbk.stream.chain import truncate
from fastbk.stream.cursor import state
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.state import DATA_BYTES_MAX
from fastbk.stream.cursor.store import (
    create_cursor,
    cursors_of,
    move_cursor,
    place_before,
    place_of,
)
from fastbk.stream.options import WriterOptions
from fastbk.stream.positions import DLSN, AtSeq
from fastbk.stream.records import Chunk, Gap, Record
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.cursor_holder import make_stream
from tests.fixtures.fake_ledgers import Cluster, FakeClient
from tests.fixtures.fake_streams import as_client
from tests.fixtures.streams import STREAM, context_of


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
