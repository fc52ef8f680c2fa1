"""Entries of streams: what is put in comes out, in chunks; and what is damaged is refused."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import tracemalloc
from array import array
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError, ProtocolError, StorageError, TxidOutOfOrder
from fastbk.model.entry import DigestType
from fastbk.native import stream_codec as codec
from fastbk.native.client_codec import LedgerCodec
from fastbk.native.stream_codec import Sizes, fill_record_columns, sizes_of
from fastbk.replication.entry_table import EntryTable
from fastbk.stream.options import WriterOptions
from fastbk.stream.policy import Compression, StreamPolicy
from fastbk.stream.positions import DLSN, AtSeq
from fastbk.stream.reader.search import get_many
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import (
    CODECS,
    RAW_BYTES_MAX,
    RECORDS_MAX,
    Chunk,
    chunk_of,
    chunk_of_run,
    compressed,
    get_headers,
    put_headers,
    unpacked_parts,
)
from fastbk.units import MIB
from tests.fixtures.entries import make_entry
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import cluster_with_stream, context_of, writer_of

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from fastbk.stream.writer.stream_writer import StreamWriter

records = st.lists(
    st.tuples(
        st.binary(max_size=300),
        st.none() | st.binary(max_size=20),
        st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9)), max_size=2).map(tuple),
        st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=30,
)


def entry_of(
    some: list[tuple[bytes, bytes | None, tuple[tuple[str, bytes], ...], int]], first: int = 0
) -> bytearray:
    txids, txid = array("q"), 5
    for *_, step in some:
        txid += step
        txids.append(txid)
    headers = [put_headers(each) for _, _, each, _ in some]
    return codec.encode(
        7, first, 1_000_000, [one[0] for one in some], txids, [one[1] for one in some], headers
    )


@given(st.lists(records, min_size=1, max_size=4), st.sampled_from(sorted(CODECS)))
def test_what_is_put_in_comes_out(
    entries: list[list[tuple[bytes, bytes | None, tuple[tuple[str, bytes], ...], int]]], name: str
) -> None:
    datas, first = [], 0
    for some in entries:
        datas.append(bytes(compressed(entry_of(some, first), CODECS[name])))  # type: ignore[index]
        first += len(some)
    chunk = chunk_of(3, 40, datas, 1000, 10)
    wanted = [one for some in entries for one in some]
    assert len(chunk) == len(wanted)
    assert [bytes(one) for one in chunk.payloads()] == [one[0] for one in wanted]
    for number, (record, (payload, key, headers, _)) in enumerate(zip(chunk, wanted, strict=True)):
        assert (bytes(record.payload), record.key, record.headers) == (payload, key, headers)
        assert record.seq == 1000 + number
        assert record.time_us == 1_000_000
    places = [
        DLSN(3, 40 + at, slot) for at, some in enumerate(entries) for slot in range(len(some))
    ]
    assert [record.dlsn for record in chunk] == places
    assert list(chunk.txids()) == [record.txid for record in chunk]
    assert chunk.nbytes == sum(len(one[0]) for one in wanted)


def test_a_slice_is_a_chunk_of_the_same_memory() -> None:
    some = [(bytes([at]), None, (), 1) for at in range(10)]
    chunk = chunk_of(1, 0, [bytes(entry_of(some))], 0, 0)
    part = chunk[3:7]
    assert isinstance(part, Chunk)
    assert [bytes(one.payload)[0] for one in part] == [3, 4, 5, 6]
    assert (part.first_seq, part.first_dlsn, part.last_dlsn) == (3, DLSN(1, 0, 3), DLSN(1, 0, 6))
    assert part.data is chunk.data
    assert (
        chunk.index_of(DLSN(1, 0, 5)),
        chunk.index_of(DLSN(1, 1, 0)),
        part.index_of(DLSN(0, 0, 0)),
    ) == (5, 10, 0)


@pytest.mark.parametrize("txids", [[-1], [5, 4]])
def test_transaction_ids_that_fall_are_refused(txids: list[int]) -> None:
    with pytest.raises(TxidOutOfOrder):
        codec.encode(1, 0, 0, [b""] * len(txids), array("q", txids))


def test_damaged_entries_are_refused_or_read_within_their_bounds(rng: random.Random) -> None:
    some = [(rng.randbytes(rng.randrange(40)), b"key", (("a", b"b"),), 3) for _ in range(20)]
    good = bytes(entry_of(some))
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        if rng.random() < 0.3:
            del bad[rng.randrange(len(bad)) :]
        try:
            chunk = chunk_of(1, 0, [bytes(bad)], 0, 0)
            found = [len(one) for one in chunk.payloads()]
            assert sum(found) <= len(bad)
            list(chunk)
        except ProtocolError:
            continue


def test_a_body_that_lies_about_its_size_is_refused() -> None:
    entry = compressed(entry_of([(bytes(1000), None, (), 0)]), CODECS["lz4"])
    head = codec.read_head(entry)
    lying = bytearray(entry)
    codec.put_head(lying, head._replace(raw_bytes=head.raw_bytes - 1))
    with pytest.raises(ProtocolError):
        unpacked_parts(bytes(lying), codec.read_head(lying))


@pytest.mark.parametrize(
    "raw", [b"\x05\x00ab", b"\x01\x00a\x05\x00\x00\x00xx", b"\x01", b"\x01\x00\xff\x00\x00\x00\x00"]
)
def test_headers_that_end_too_early_are_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        get_headers(raw)


def test_the_format_is_what_it_was() -> None:
    raw = (Path(__file__).parents[2] / "golden" / "stream" / "records").read_bytes()[1:]
    chunk = chunk_of(1, 0, [raw], 0, 0)
    assert [(bytes(one.payload), one.key, one.headers, one.txid) for one in chunk] == [
        (b"hello", b"key", (("a", b"b"),), 0),
        (b"", None, (), 0),
        (b"x" * 40, b"", (), 300),
    ]
    headers = [put_headers(one.headers) for one in chunk]
    payloads, keys = [bytes(one) for one in chunk.payloads()], [one.key for one in chunk]
    assert codec.encode(3, 0, 1_700_000_000_000_000, payloads, chunk.txids(), keys, headers) == raw


# Entries decoded where they were received are the same records as those that were copied out
# first.


LEDGER, SEGMENT, FIRST_ENTRY, BASE_SEQ, BASE_TXID = 5, 3, 40, 1000, 77
PAYLOADS = st.lists(
    st.lists(st.binary(max_size=60), min_size=1, max_size=5), min_size=1, max_size=6
)


def run_of(entries: list[bytes]) -> EntryTable:
    """Return entries as they lie in a bookie's answer."""
    made, length = [], 0
    for at, entry in enumerate(entries, FIRST_ENTRY):
        length += len(entry)
        made.append(make_entry(LEDGER, at, at - 1, length, entry, DigestType.CRC32C, b""))
    sizes = b"".join(len(one).to_bytes(4, "little") for one in made)
    answer = memoryview(bytearray(b"".join(made))).toreadonly()
    return EntryTable(answer, LedgerCodec(LEDGER, DigestType.CRC32C).table(answer, sizes))


def entries_of(payloads: list[list[bytes]], codecs: list[int]) -> list[bytes]:
    entries, records = [], 0
    for some, kind in zip(payloads, codecs, strict=True):
        txids = array("q", range(records, records + len(some)))
        entry = codec.encode(1, records, 1_000_000 + records, some, txids)
        entries.append(bytes(compressed(bytearray(entry), kind)))
        records += len(some)
    return entries


def columns(chunk: Chunk) -> list[bytes]:
    source = chunk.columns()
    sizes = sizes_of([source], headers=False)
    values, offsets = bytearray(sizes.value_bytes), bytearray(4 * len(chunk) + 4)
    fill_record_columns([source], Sizes(*sizes), {"values": values, "value_offsets": offsets})
    ends = array("i", bytes(offsets))
    return [bytes(values[a:b]) for a, b in pairwise(ends)]


@given(PAYLOADS, st.data())
def test_the_records_are_the_same(payloads: list[list[bytes]], draw: st.DataObject) -> None:
    kinds = st.sampled_from([codec.CODEC_NONE] * 3 + [codec.CODEC_LZ4, codec.CODEC_ZSTD])
    entries = entries_of(payloads, [draw.draw(kinds) for _ in payloads])
    run = run_of(entries)
    copied = chunk_of(SEGMENT, FIRST_ENTRY, entries, BASE_SEQ, BASE_TXID)
    in_place = chunk_of_run(SEGMENT, FIRST_ENTRY, run, BASE_SEQ, BASE_TXID)
    assert list(in_place) == list(copied)
    assert columns(in_place) == columns(copied) == [one for some in payloads for one in some]
    assert list(in_place.txids()) == list(copied.txids())
    assert (in_place.first_dlsn, in_place.next_dlsn) == (copied.first_dlsn, copied.next_dlsn)
    part = EntryTable(run.data, run.words)[1:]
    if len(part) > 0:
        later = chunk_of_run(SEGMENT, FIRST_ENTRY + 1, part, BASE_SEQ, BASE_TXID)
        assert [one.payload for one in later] == [one.payload for one in copied[len(payloads[0]) :]]


def test_plain_entries_are_not_copied() -> None:
    run = run_of(entries_of([[b"a"], [b"b"]], [codec.CODEC_NONE] * 2))
    assert chunk_of_run(SEGMENT, FIRST_ENTRY, run, 0, 0).data is run.data


def test_what_is_no_entry_of_a_stream_is_refused() -> None:
    good = entries_of([[b"abc"]], [codec.CODEC_NONE])
    for bad in (b"", b"nonsense" * 10, good[0][:-1], good[0] + b"x"):
        with pytest.raises(ProtocolError):
            chunk_of_run(SEGMENT, FIRST_ENTRY, run_of([*good, bad]), 0, 0)
    run = run_of(good)
    for word, lie in ((3, -1), (3, len(run.data)), (4, -1), (4, 2**62)):
        words = array("q", run.words)
        words[word] = lie
        with pytest.raises(ProtocolError):
            codec.decode_table(run.data, words)


def test_records_and_chunks_go_through_pickle_and_say_what_they_are() -> None:
    """Process pools, Celery and dask pickle what they hand on; a view of memory cannot be."""
    entries = entries_of([[b"one", b'{"a": 2}'], [b"three" * 100, b""]], [0, 0])
    chunk = chunk_of(SEGMENT, FIRST_ENTRY, entries, BASE_SEQ, BASE_TXID)
    for some in (chunk, chunk[1:3], chunk[2:], chunk[1:1]):
        again = pickle.loads(pickle.dumps(some))
        assert (list(again), again.first_seq) == (list(some), some.first_seq)
        assert columns(again) == columns(some)
    record = chunk[1]
    assert json.loads(record.value) == {"a": 2}
    for copied in (pickle.loads(pickle.dumps(record)), copy.deepcopy(record), copy.copy(record)):
        assert copied == record and isinstance(copied.payload, memoryview)
    assert repr(record) == """<Record 3.40.1 seq=1001 txid=78: 8 bytes b'{"a": 2}'>"""
    assert repr(chunk[2]).endswith(": 500 bytes b'" + "three" * 8 + "'…>")
    assert repr(chunk) == "<Chunk of 4 records, 3.40.0 to 3.41.1, seq from 1000, 511 bytes>"
    assert repr(chunk[1:1]) == "<Chunk of no records of segment 3>"
    full = dataclasses.replace(record, key=b"k", headers=(("name", b"v"),))
    assert "key=b'k', headers=(('name', b'v'),): 8 bytes" in repr(full)
    assert pickle.loads(pickle.dumps(full)) == full


# What compressed entries may cost a reader: honest ones that shrink a thousandfold, and forged
# ones.


RECORDS = 96
RECORD_BYTES = MIB


class Peak:
    size_bytes = 0


@contextmanager
def measured() -> Iterator[Peak]:
    """Measure what Python and the decompressors allocate at most."""
    peak = Peak()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield peak
        peak.size_bytes = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def forged(body: bytes, kind: int, raw_bytes: int, records: int = 1) -> bytes:
    """Return an entry whose head declares what it likes."""
    head = bytearray(codec.HEAD_BYTES)
    declared = codec.Head(codec.KIND_RECORDS, kind, 1, records, 0, 0, 0, 1, raw_bytes, len(body))
    codec.put_head(head, declared)
    return bytes(head) + body


def unpacked(entry: bytes) -> bytes:
    return b"".join(unpacked_parts(entry, codec.read_head(entry)))


def frame_of(size_bytes: int, *, declares: bool = True) -> bytes:
    return zstandard.ZstdCompressor(3, write_content_size=declares).compress(bytes(size_bytes))


@pytest.mark.parametrize("declares", [True, False])
def test_a_frame_larger_than_the_head_declares_is_refused_before_it_is_decompressed(
    declares: bool,
) -> None:
    frame = frame_of(128 * MIB, declares=declares)
    with measured() as peak, pytest.raises(ProtocolError):
        unpacked(forged(frame, codec.CODEC_ZSTD, 1000))
    assert peak.size_bytes < MIB


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_a_head_that_declares_more_than_writers_write_is_refused(name: Compression) -> None:
    size = RAW_BYTES_MAX + 1
    body = frame_of(size) if name == "zstd" else lz4.block.compress(bytes(size), store_size=False)
    with measured() as peak, pytest.raises(ProtocolError, match=str(RAW_BYTES_MAX)):
        unpacked(forged(body, CODECS[name], size))
    assert peak.size_bytes < MIB


def test_more_records_than_writers_write_are_refused() -> None:
    """A record of four bytes takes sixty-four in the table of records."""
    size = 4 * (RECORDS_MAX + 1)
    entry = forged(frame_of(size), codec.CODEC_ZSTD, size, RECORDS_MAX + 1)
    with measured() as peak, pytest.raises(ProtocolError, match=str(RECORDS_MAX)):
        unpacked(entry)
    assert peak.size_bytes < MIB


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_the_largest_entry_that_a_writer_makes_is_read(name: Compression) -> None:
    size = WriterOptions(entry_bytes_max=RAW_BYTES_MAX).entry_bytes_max
    payload = bytes(size - codec.HEAD_BYTES - codec.RECORD_OVERHEAD_BYTES_MAX)
    entry = codec.encode(1, 0, 1, [payload], array("q", [0]))
    assert unpacked(bytes(compressed(entry, CODECS[name]))) == entry
    with pytest.raises(ConfigError, match="entry_bytes_max"):
        WriterOptions(entry_bytes_max=RAW_BYTES_MAX + 1)


async def append_to(writer: StreamWriter) -> None:
    """Append records that are large, of entries that are small."""
    for at in range(RECORDS):
        await writer.append(at.to_bytes(4, "little") + bytes(RECORD_BYTES))


async def filled(name: Compression) -> Cluster:
    cluster, _ = await cluster_with_stream()
    async with writer_of(cluster, StreamPolicy(compression=name)) as writer:
        await append_to(writer)
        await writer.roll()
    return cluster


@pytest.mark.parametrize("name", ["zstd", "lz4"])
async def test_a_reader_holds_few_decompressed_entries_at_once(name: Compression) -> None:
    cluster = await filled(name)
    context = context_of(cluster.client())
    seen: list[int] = []
    with measured() as peak:
        async with StreamReader(context, tail=False) as reader:
            async for chunk in reader.chunks():
                seen += [int.from_bytes(one.payload[:4], "little") for one in chunk]
    assert seen == list(range(RECORDS))
    assert peak.size_bytes < 16 * MIB


async def test_a_chunk_has_as_many_decompressed_entries_as_fit() -> None:
    context = context_of((await filled("zstd")).client())
    counts: list[int] = []
    async with StreamReader(context, tail=False) as reader:
        async for chunk in reader.chunks(max_bytes=4 * (RECORD_BYTES + 64)):
            assert reader.position == chunk.next_dlsn or len(counts) * 4 + 4 == RECORDS
            counts.append(len(chunk))
    assert set(counts) == {4} and sum(counts) == RECORDS


async def test_a_reader_that_begins_or_ends_within_a_split_answer_misses_nothing() -> None:
    context = context_of((await filled("zstd")).client())
    for first, end in ((5, 9), (0, 1), (94, 96), (50, 51)):
        async with StreamReader(context, AtSeq(first), end=DLSN(1, end, 0), tail=False) as reader:
            assert [one.seq async for one in reader] == list(range(first, end))


async def test_a_search_decompresses_no_entry_but_the_one_that_it_finds() -> None:
    """An open segment has no index: a search reads heads."""
    cluster, context = await cluster_with_stream()
    async with writer_of(cluster, StreamPolicy(compression="zstd")) as writer:
        await append_to(writer)
        with measured() as peak:
            (record,) = await get_many(context, [AtSeq(70)])
    assert record.payload[:4] == (70).to_bytes(4, "little")
    assert peak.size_bytes < 8 * MIB


async def test_forged_entries_end_a_reader_with_an_error_and_little_memory() -> None:
    cluster = await filled("zstd")
    entries = next(iter(cluster.ledgers.values())).entries
    frame = frame_of(128 * MIB)
    for at in range(1, 21):
        head = codec.read_head(entries[at])
        lying = bytearray(codec.HEAD_BYTES)
        codec.put_head(lying, head._replace(stored_bytes=len(frame)))
        entries[at] = bytes(lying) + frame
    context = context_of(cluster.client())
    with measured() as peak:
        async with StreamReader(context, tail=False) as reader:
            assert (await anext(reader)).seq == 0
            with pytest.raises(StorageError, match="cannot be decoded"):
                await anext(reader)
    assert peak.size_bytes < 16 * MIB
