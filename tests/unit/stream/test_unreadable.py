"""Records and entries that make no sense: told with their position, again and again, or as a gap; never passed by."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from fastbk.arrow import stream_batches, stream_schema
from fastbk.errors import DataLost, Error, ProtocolError, StorageError
from fastbk.native.stream_codec import encode
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Gap, Record, put_headers
from tests.unit.arrow.test_streams import Harness

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
