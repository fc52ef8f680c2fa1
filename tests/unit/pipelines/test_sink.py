"""Entries that a sink's queue packs: each says exactly up to where outputs are in it or before it. INV-S44."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from fastbk.native.stream_codec import encode, read_head
from fastbk.pipelines.sink import OutputQueue
from fastbk.stream.options import WriterOptions
from fastbk.stream.positions import DLSN
from fastbk.stream.provenance import SourceRow, get_sources
from fastbk.stream.records import Chunk, Record, chunk_of
from fastbk.stream.writer.queue import EntryPlace

SOURCE, OTHER = 7, 8
BEGIN = SourceRow(SOURCE, 2, 9, 1, 100)
sizes = st.lists(st.lists(st.integers(0, 60), max_size=4), min_size=1, max_size=30)


def chunk_of_records(count: int) -> Chunk:
    """Return records of segment 3 from entry 5 and number 100 on."""
    data = bytes(encode(0, 0, 0, [b"x"] * count, array("q", range(count))))
    return chunk_of(3, 5, [data], 100, 0)


def payload_of(record: int, number: int, size: int) -> bytes:
    return b"%d.%d." % (record, number) + bytes(size)


def take_all(queue: OutputQueue, entries: list[bytes]) -> None:
    """Take all that waits, as the entries of one segment."""
    records = last = 0
    for number, entry in enumerate(entries):
        count = read_head(entry).record_count
        records, last = records + count, number if count else last
    while (group := queue.take(only_full=False)) is not None:
        number = len(entries)
        place = EntryPlace(1, number, records, number - last if records else 0, 0)
        entries.append(bytes(group.encode(place)))
        records, last = records + group.count, number if group.count else last


def check(entries: list[bytes], wanted: list[bytes], count: int) -> None:
    """Check what the entries hold, and that a log that ends with any of them says what it holds."""
    held: list[Record] = []
    for number, entry in enumerate(entries):
        held += chunk_of(1, number, [entry], 0, 0)
        rows = {row.stream: row for row in get_sources(entry) or ()}
        assert rows[OTHER] == SourceRow(OTHER, 1, 0, 0, 0)
        complete = rows[SOURCE].seq - 100
        place = DLSN(3, 6, 0) if complete == count else DLSN(3, 5, complete)
        assert rows[SOURCE].dlsn == (place if complete else BEGIN.dlsn)
        before = [payload for payload in wanted if int(payload.split(b".")[0]) < complete]
        assert [record.value for record in held] == before
    assert [record.txid for record in held] == list(range(len(wanted)))
    assert len(held) == len(wanted)


@given(sizes, st.integers(1, 600), st.lists(st.integers(0, 29), max_size=4))
def test_outputs_of_a_record_are_in_one_entry_whose_block_is_behind_them(
    given_sizes: list[list[int]], batch_bytes: int, takes: list[int]
) -> None:
    chunk = chunk_of_records(len(given_sizes))
    queue = queue_of(batch_bytes)
    entries: list[bytes] = []
    wanted: list[bytes] = []
    for record, outputs in enumerate(given_sizes):
        payloads = [payload_of(record, number, size) for number, size in enumerate(outputs)]
        wanted += payloads
        if payloads:
            keyed = [(payload, b"k" if record % 2 else None, b"") for payload in payloads]
            queue.put(keyed, SOURCE, chunk, record)
        if record in takes:
            take_all(queue, entries)
    queue.passed(SOURCE, chunk, len(chunk))
    queue.put_positions()
    take_all(queue, entries)
    check(entries, wanted, len(chunk))
    assert queue.positions[SOURCE] == SourceRow(SOURCE, 3, 6, 0, 100 + len(chunk))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(1, 600), st.data())
def test_one_output_for_each_record_is_packed_in_the_same_way(
    given_sizes: list[int], batch_bytes: int, data: st.DataObject
) -> None:
    chunk = chunk_of_records(len(given_sizes))
    queue = queue_of(batch_bytes)
    payloads = [payload_of(record, 0, size) for record, size in enumerate(given_sizes)]
    cut = data.draw(st.integers(0, len(payloads)))
    queue.put_each(payloads[:cut], SOURCE, chunk, 0)
    queue.put_each(payloads[cut:], SOURCE, chunk, cut)
    queue.passed(SOURCE, chunk, len(chunk))
    entries: list[bytes] = []
    take_all(queue, entries)
    check(entries, payloads, len(chunk))
    assert not queue.put_positions()


def queue_of(batch_bytes: int) -> OutputQueue:
    rows = [SourceRow(OTHER, 1, 0, 0, 0), BEGIN]
    return OutputQueue(WriterOptions(batch_bytes=batch_bytes), -1, rows, "test/b1")
