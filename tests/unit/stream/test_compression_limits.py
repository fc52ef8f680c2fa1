"""What compressed entries may cost a reader: honest ones that shrink a thousandfold, and forged ones."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import lz4.block
import pytest
import zstandard

from fastbk.errors import ConfigError, ProtocolError, StorageError
from fastbk.native import stream_codec as codec
from fastbk.stream.options import WriterOptions
from fastbk.stream.policy import Compression, StreamPolicy
from fastbk.stream.positions import DLSN, AtSeq
from fastbk.stream.reader.search import get_many
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import CODECS, RAW_BYTES_MAX, RECORDS_MAX, compressed, unpacked_parts
from fastbk.stream.writer.stream_writer import StreamWriter
from fastbk.units import MIB
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import context_of, new_stream, writer_of

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
    cluster = Cluster()
    await new_stream(cluster)
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
    cluster = Cluster()
    context = await new_stream(cluster)
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
