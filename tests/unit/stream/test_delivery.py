"""What is not delivered is said, once and as what it is; what is at hand is not passed by (INV-S10, INV-S11).

The simulator's harnesses with readers and cursors found each of these.
"""

from __future__ import annotations

import asyncio
import re
import struct
from array import array
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from fastbk.arrow import stream_batches, stream_schema
from fastbk.errors import DataLost, Error, PositionTruncated, ProtocolError, StorageError
from fastbk.native.stream_codec import encode
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.positions import DLSN, FIRST, AtSeq
from fastbk.stream.reader.read_ahead import ChainFollower
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk, Gap, Record, put_headers
from fastbk.stream.stream import closed_end, end_of
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import cluster_with_stream, context_of, filled, truncated_to, writer_of
from tests.unit.arrow.test_readers import Harness

if TYPE_CHECKING:
    from collections.abc import Iterator


async def test_records_that_iteration_took_come_first_when_many_are_asked_for() -> None:
    """One acknowledgement of the last record would have had those that were passed by done."""
    cluster, context = await cluster_with_stream()
    await filled(cluster, [6, 3])
    async with Cursor(context, "c", tail=False) as cursor:
        first = await anext(cursor)
        some = await cursor.read(2)
        third = await anext(cursor)
        async for rest in cursor.chunks():
            assert isinstance(rest, Chunk)
            break
    assert isinstance(first, Record) and isinstance(some, Chunk) and isinstance(third, Record)
    found = [first.seq, *(one.seq for one in some), third.seq, *(one.seq for one in rest)]
    assert found == [0, 1, 2, 3, 4, 5]


async def test_what_was_done_meanwhile_is_not_handed_out_again() -> None:
    cluster, context = await cluster_with_stream()
    await filled(cluster, [6])
    async with Cursor(context, "c", tail=False) as cursor:
        first, second = await anext(cursor), await anext(cursor)
        assert isinstance(first, Record) and isinstance(second, Record)
        cursor.ack(second)
        await cursor.ack_one(DLSN(1, 3, 0))
        some = await cursor.read()
        assert isinstance(some, Chunk) and [one.seq for one in some] == [2]
        some = await cursor.read()
        assert isinstance(some, Chunk) and [one.seq for one in some] == [4, 5]


async def test_a_truncation_is_told_once_also_where_nothing_follows_yet() -> None:
    """It was told again as lost, with the first record behind it."""
    cluster, context = await cluster_with_stream()
    records = await filled(cluster, [4])
    async with Cursor(context, "c", on_gap="yield") as cursor:
        first = await anext(cursor)
        assert isinstance(first, Record)
        cursor.ack(first)
        while await cursor.read(timeout=0) is not None:
            pass
        await cursor.reset(records[1].dlsn)
        assert isinstance(await anext(cursor), Record)
    async with Cursor(context, "c", on_gap="yield") as cursor:
        await truncated_to(context, DLSN(2, 0, 0))
        found = [await cursor.read(timeout=0.01)]
        async with writer_of(cluster) as writer:
            await writer.append(b"new")
        found.append(await cursor.read())
        assert isinstance(found[0], Gap) and found[0].kind == "trimmed"
        assert isinstance(found[1], Chunk) and found[1].first.seq == 4
        assert (cursor.gap_records, cursor.mark_seq) == (3, 4)


@pytest.mark.parametrize("on_gap", ["raise", "yield"])
async def test_a_record_that_was_truncated_with_all_behind_it_is_told(on_gap: str) -> None:
    """A reader from its number on would have begun with what is appended next, without a word."""
    cluster, context = await cluster_with_stream()
    await filled(cluster, [4, 4])
    await truncated_to(context, DLSN(3, 0, 0))
    for seq in (0, 7):
        async with StreamReader(context_of(cluster.client()), AtSeq(seq), on_gap=on_gap) as reader:  # type: ignore[arg-type]
            if on_gap == "raise":
                with pytest.raises(PositionTruncated) as raised:
                    await reader.read(timeout=5)
                assert raised.value.first_available == "3.0.0"
            else:
                gap = await reader.read(timeout=5)
                assert isinstance(gap, Gap) and (gap.first, gap.next) == (FIRST, DLSN(3, 0, 0))
    async with StreamReader(context, AtSeq(8)) as reader, writer_of(cluster) as writer:
        await writer.append(b"new")
        record = await anext(reader)
        assert isinstance(record, Record) and record.seq == 8


async def test_a_seek_knows_what_the_search_for_its_place_knew() -> None:
    """The watch had not told of the truncation yet: the reader began with the first record of the stream."""
    cluster, context = await cluster_with_stream()
    records = await filled(cluster, [4, 4])
    async with StreamReader(context, records[2].dlsn) as reader:
        assert await anext(reader) == records[2]
        await truncated_to(context_of(cluster.client()), DLSN(2, 0, 0))
        await reader.seek(AtSeq(1))
        with pytest.raises(PositionTruncated) as raised:
            await reader.read(timeout=5)
        assert raised.value.first_available == "2.0.0"


class Held(Plan):
    """Of a client's reads of metadata the first is answered late, the second at once, the third never."""

    def __init__(self) -> None:
        self.client: FakeClient | None = None
        self.reads = 0
        self.is_held, self.go_on, self.is_third = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def after(self, client: FakeClient, what: str) -> None:
        if what != "metadata.read" or client is not self.client:
            return
        self.reads += 1
        if self.reads == 1:
            self.is_held.set()
            await self.go_on.wait()
        elif self.reads == 3:
            self.is_third.set()
            await asyncio.Event().wait()


async def test_an_older_chain_that_comes_later_changes_nothing() -> None:
    held = Held()
    cluster, context = await cluster_with_stream(held)
    await filled(cluster, [4, 4])
    older = (await context.store.read()).chain
    held.client = cluster.client()
    follower = ChainFollower(context_of(held.client).store, older, asyncio.Event())
    async with asyncio.timeout(5):
        await held.is_held.wait()
        await truncated_to(context, DLSN(2, 0, 0))
        newer = await follower.refresh()
        held.go_on.set()
        await held.is_third.wait()
    assert newer != older and follower.chain == newer
    await follower.stop()


class Retires(Plan):
    """A ledger goes after it was opened, before anything is asked of it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def before(self, client: FakeClient, what: str) -> None:
        if what == "read":
            self._cluster.ledgers.clear()


async def test_a_segment_that_goes_while_the_end_is_looked_for_ends_nothing() -> None:
    """A truncation raised NoSuchLedger: the segment was empty, and somebody took the stream over just then."""
    cluster, context = await cluster_with_stream()
    writer = writer_of(cluster)
    await writer.open()
    await writer.append(b"1")
    chain = (await context.store.read()).chain
    assert chain.open_rows
    cluster.plan = Retires(cluster)
    assert await end_of(context, chain) == closed_end(chain)
    writer.abort()


# Records and entries that make no sense: told with their position, again and again, or as a gap;
# never passed by.


RECORDS = 12
BAD = 5
"""The entry with one record that is broken."""
PLACE, BEHIND = DLSN(1, BAD, 0), DLSN(1, BAD + 1, 0)
NUMBERS = [one for one in range(RECORDS) if one != BAD]


@pytest.fixture(params=["headers", "entry"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """A stream one of whose records a broken writer has stored, and its ledger keeps."""
    made = Harness()
    records = made.filled([RECORDS], 1)
    entries = made.cluster.ledger(made.rows()[0]).entries
    bad = records[BAD]
    if request.param == "headers":
        # What a header's value of items of four bytes once was: the number of items, and the bytes of all.
        raw = put_headers([("a", b"1234")])
        wrong = raw[:3] + struct.pack("<I", 1) + raw[7:]
        entries[BAD] = bytes(
            encode(1, BAD, bad.time_us, [b"x"], array("q", [bad.txid]), [b"k"], [wrong])
        )
    else:
        entries[BAD] = entries[BAD][:-1] + b"\xff\xff\xff"
    yield made
    made.loop.close(5.0)


def seqs(items: list[Record | Gap]) -> list[int]:
    return [one.seq for one in items if isinstance(one, Record)]


def gaps(items: list[Record | Gap]) -> list[Gap]:
    return [one for one in items if isinstance(one, Gap)]


def named() -> str:
    return re.escape(str(PLACE)) + ".*" + re.escape(str(BEHIND))


async def test_an_asyncio_reader_tells_it_and_does_not_pass_it(harness: Harness) -> None:
    stream = harness._stream()
    async with stream.reader(tail=False) as reader:
        got = []
        for _ in range(3):
            with pytest.raises((ProtocolError, StorageError), match=named()):
                async for record in reader:
                    got.append(record.seq)
            assert reader.position == PLACE
        assert got == list(range(BAD))
        await reader.seek(BEHIND)
        assert [record.seq async for record in reader] == list(range(BAD + 1, RECORDS))
    async with stream.reader(tail=False, on_gap="yield") as telling:
        items = [item async for item in telling]
    assert seqs(items) == NUMBERS
    (gap,) = gaps(items)
    assert (gap.kind, gap.first, gap.next) == ("lost", PLACE, BEHIND)


def test_a_reader_without_await_tells_it_and_does_not_pass_it(harness: Harness) -> None:
    with harness.stream.reader(tail=False) as reader:
        got = []
        for _ in range(3):
            with pytest.raises((ProtocolError, StorageError), match=named()):
                for record in reader:
                    got.append(record.seq)
            assert reader.position == PLACE
        assert got == list(range(BAD))
        reader.seek(BEHIND)
        assert [record.seq for record in reader] == list(range(BAD + 1, RECORDS))
    with harness.stream.reader(tail=False, on_gap="yield") as telling:
        items = list(telling)
    assert seqs(items) == NUMBERS and len(gaps(items)) == 1


@pytest.mark.parametrize("on_gap", ["raise", "yield"])
def test_a_cursor_acknowledges_nothing_that_it_did_not_hand_out(
    harness: Harness, on_gap: str
) -> None:
    """Its iteration raised once, went on behind the chunk, and the next acknowledgement was for all of it."""
    options = {"tail": False, "on_gap": on_gap}
    with harness.stream.cursor("billing", **options) as cursor:  # type: ignore[call-overload]
        got: list[Record | Gap] = []
        for _ in range(3):
            told = pytest.raises(Error, match=named()) if on_gap == "raise" else nullcontext()
            with told:
                for record in cursor:
                    got.append(record)  # noqa: PERF402 -- it raises
        records = [one for one in got if isinstance(one, Record)]
        cursor.ack(records[-1]).result()
        if on_gap == "raise":
            assert seqs(got) == list(range(BAD)) and cursor.mark_seq == BAD
            cursor.reset(BEHIND)
            assert [one.seq for one in cursor] == list(range(BAD + 1, RECORDS))
        else:
            assert seqs(got) == NUMBERS and len(gaps(got)) == 1
            assert (cursor.mark_seq, cursor.gap_records) == (RECORDS, 1)


async def test_an_asyncio_cursor_does_so_too(harness: Harness) -> None:
    stream = harness._stream()
    async with stream.cursor("billing", tail=False) as cursor:
        got = []
        for _ in range(3):
            with pytest.raises((ProtocolError, StorageError, Error), match=re.escape(str(PLACE))):
                async for record in cursor:
                    got.append(record.seq)
        assert got == list(range(BAD))
    async with stream.cursor("other", tail=False, on_gap="yield") as telling:
        items = [item async for item in telling]
        assert seqs(items) == NUMBERS and len(gaps(items)) == 1
        assert telling.gap_records == 1


@pytest.mark.parametrize("harness", ["entry"], indirect=True)
async def test_chunks_of_asyncio_say_it_again_and_pass_nothing_by(harness: Harness) -> None:
    """INV-C6: the error ended the iterator, as the end of the stream does."""
    stream = harness._stream()
    async with stream.reader(tail=False) as reader, stream.cursor("billing", tail=False) as cursor:
        for source in (reader, cursor):
            chunks, got = source.chunks(max_records=2), []
            for _ in range(3):
                with pytest.raises((StorageError, DataLost), match=re.escape(str(PLACE))):
                    while True:
                        got += [record.seq for record in await anext(chunks)]
            assert got == list(range(BAD))
        await reader.seek(BEHIND)
        found = [one.seq async for chunk in reader.chunks() for one in chunk]
        assert found == list(range(BAD + 1, RECORDS))


async def test_iteration_that_opened_its_reader_says_it_again(harness: Harness) -> None:
    """INV-C6"""
    items, got = aiter(harness._stream().reader(tail=False)), 0
    for _ in range(3):
        with pytest.raises((ProtocolError, StorageError), match=named()):
            while await anext(items):
                got += 1
    assert got == BAD


def test_batches_name_it_or_make_it_a_gap(harness: Harness) -> None:
    """The error named a number and no position, and the records before it in the same batch were lost."""
    got: list[int] = []
    with pytest.raises(
        (ProtocolError, DataLost), match=f"{re.escape(str(PLACE))}.*{re.escape(str(BEHIND))}"
    ):
        for batch in stream_batches(harness.stream, "earliest", schema=stream_schema(headers=True)):
            got += batch["seq"].to_pylist()
    assert got == list(range(BAD))
    told: list[Gap] = []
    batches = stream_batches(
        harness.stream,
        "earliest",
        schema=stream_schema(headers=True),
        skip_gaps=True,
        on_gap=told.append,
    )
    assert [seq for batch in batches for seq in batch["seq"].to_pylist()] == NUMBERS
    (gap,) = told
    assert (gap.kind, gap.first, gap.next) == ("lost", PLACE, BEHIND)
