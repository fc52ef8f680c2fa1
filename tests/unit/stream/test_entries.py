"""Entries of streams: what is put in comes out, in chunks; and what is damaged is refused."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ProtocolError, TxidOutOfOrder
from fastbk.native import stream_codec as codec
from fastbk.stream.positions import DLSN
from fastbk.stream.records import (
    CODECS,
    Chunk,
    chunk_of,
    compressed,
    get_headers,
    put_headers,
    unpacked_parts,
)

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
