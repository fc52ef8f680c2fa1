"""Blocks of provenance in entries: what is put in comes out, what is damaged is refused, readers pass by it."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ProtocolError
from fastbk.native.stream_codec import (
    CODEC_LZ4,
    HEAD_BYTES,
    KIND_PROVENANCE,
    KIND_RECORDS,
    Head,
    check_body,
    encode,
    put_head,
    read_head,
)
from fastbk.stream.positions import DLSN
from fastbk.stream.provenance import (
    NAME_BYTES_MAX,
    Provenance,
    Row,
    SourceRow,
    get_producers,
    get_rows,
    get_sources,
    put_producers,
    put_rows,
    put_sources,
)
from fastbk.stream.records import CODECS, chunk_of, compressed

NUMBERS = st.integers(0, 2**62)
rows = st.builds(
    Row,
    st.binary(min_size=1, max_size=NAME_BYTES_MAX),
    st.integers(0, 2**64 - 1),
    st.integers(-1, 2**62),
    NUMBERS,
)
provenances = st.builds(
    Provenance, st.lists(rows, max_size=20).map(tuple), st.integers(0, 2**32 - 1)
)
sources = st.lists(
    st.builds(SourceRow, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), NUMBERS,
              st.integers(0, 2**32 - 1), st.integers(-1, 2**62)),
    min_size=1, max_size=5,
)  # fmt: skip


def entry_with(block: bytes, payloads: list[bytes], first: int = 0) -> bytes:
    """Return an entry of these records behind a block; without records, of the kind that has none."""
    txids = array("q", range(first, first + len(payloads)))
    body = bytes(encode(0, 0, 0, payloads, txids)[HEAD_BYTES:]) if payloads else b""
    count, size, last = len(payloads), len(body), first + len(payloads) - 1
    kind = KIND_RECORDS if payloads else KIND_PROVENANCE
    distance = 0 if payloads or not first else 1
    head = bytearray(HEAD_BYTES)
    put_head(
        head,
        Head(kind, 0, 7, count, first, first if payloads else last, last, 5, size, size,
             len(block), distance),
    )  # fmt: skip
    return bytes(head) + block + body


@given(provenances, st.lists(st.binary(max_size=40), max_size=5), st.integers(0, 9))
def test_what_is_said_of_producers_comes_out_beside_the_records(
    provenance: Provenance, payloads: list[bytes], first: int
) -> None:
    entry = entry_with(put_producers(provenance), payloads, first)
    for codec in CODECS.values():
        packed = compressed(bytearray(entry), codec)
        assert get_producers(packed) == provenance
        assert get_sources(packed) is None
        chunk = chunk_of(1, 4, [packed], 0, 0)
        assert [bytes(record.payload) for record in chunk] == payloads
        assert chunk.next_dlsn == DLSN(1, 5, 0)


@given(sources)
def test_what_is_said_of_sources_comes_out(given_sources: list[SourceRow]) -> None:
    entry = entry_with(put_sources(given_sources), [b"a"])
    assert get_sources(entry) == tuple(given_sources)
    assert get_producers(entry) is None


@given(provenances, st.data())
def test_a_block_that_was_changed_is_refused_or_says_something_of_its_form(
    provenance: Provenance, data: st.DataObject
) -> None:
    entry = bytearray(entry_with(put_producers(provenance), [b"abc"]))
    place = data.draw(st.integers(0, len(entry) - 1))
    entry[place] ^= data.draw(st.integers(1, 255))
    try:
        found = get_producers(entry)
    except ProtocolError:
        return
    assert found is None or all(0 < len(row.name) <= NAME_BYTES_MAX for row in found.rows)


@given(st.lists(rows, max_size=9))
def test_rows_of_a_page_come_out_and_cut_ones_are_refused(some: list[Row]) -> None:
    raw = put_rows(some)
    assert get_rows(raw) == tuple(some)
    if raw:
        with pytest.raises(ProtocolError):
            get_rows(raw[:-1])


@pytest.mark.parametrize(
    ("kind", "size", "distance", "records"),
    [
        (KIND_PROVENANCE, 16, 0, 3),  # records before it, and none named
        (KIND_PROVENANCE, 16, 1, 0),
        (KIND_PROVENANCE, 0, 0, 0),  # neither records nor provenance
        (KIND_PROVENANCE, 15, 0, 0),
        (9, 16, 0, 0),
    ],
)
def test_a_head_without_records_that_contradicts_itself_is_refused(
    kind: int, size: int, distance: int, records: int
) -> None:
    head = bytearray(HEAD_BYTES)
    put_head(head, Head(kind, 0, 7, 0, records, 0, 0, 5, 0, 0, size, distance))
    block = put_producers(Provenance((), 0))
    with pytest.raises(ProtocolError):
        read_head(bytes(head) + block[:4].replace(b"\x10", bytes([size])) + block[4:size])


def test_a_block_that_is_longer_than_its_entry_is_refused() -> None:
    entry = bytearray(entry_with(put_producers(Provenance((), 0)), []))
    for size_bytes in (0, 4, 15, 17, 2**32 - 1):
        entry[HEAD_BYTES : HEAD_BYTES + 4] = size_bytes.to_bytes(4, "little")
        with pytest.raises(ProtocolError):
            read_head(entry)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.data())
def test_a_producers_records_are_cut_between_two_of_them(
    payloads: list[bytes], data: st.DataObject
) -> None:
    count = len(payloads)
    body = bytes(encode(0, 0, 0, payloads, array("q", range(count)))[HEAD_BYTES:])
    skip = data.draw(st.integers(0, count))
    place = check_body(body, count, skip)
    rest = bytearray(body[place:])
    if rest:
        rest[0] = 0
        sizes = (KIND_RECORDS, 0, 0, count - skip, 0, 0, count - skip - 1, 0, len(rest), len(rest))
        head = bytearray(HEAD_BYTES)
        put_head(head, Head(*sizes))
        chunk = chunk_of(1, 0, [bytes(head) + rest], 0, 0)
        assert [bytes(record.payload) for record in chunk] == payloads[skip:]
    for wrong in (count - 1, count + 1):
        with pytest.raises(ProtocolError):
            check_body(body, wrong)
    with pytest.raises(ProtocolError):
        check_body(body[:-1], count)


@pytest.mark.parametrize("txids", [(0, 0), (0, 2)])
def test_records_whose_ids_do_not_rise_by_one_are_none_of_a_producer(
    txids: tuple[int, int],
) -> None:
    body = bytes(encode(0, 0, 0, [b"a", b"b"], array("q", txids))[HEAD_BYTES:])
    with pytest.raises(ProtocolError):
        check_body(body, 2)


def test_what_level_4_wrote_stays_readable() -> None:
    """An entry of records with rows, one that only opens a name, and one of a pipeline, compressed."""
    folder = Path(__file__).parents[2] / "golden" / "stream_provenance"
    table = Provenance((Row(b"till-1", 1 << 32 | 1, 6, 1_700_000_000_000_000),), 3)
    opened = Provenance((Row(b"till-2", 1 << 32 | 2, -1, 1_700_000_000_000_001),), 0)
    source = (SourceRow(0xAB54A98CEB1F0AD2, 3, 120, 7, 1_000_000),)
    golden = {
        "records": entry_with(put_producers(table), [b"one", b"two"], 5),
        "opening": entry_with(put_producers(opened), [], 7),
    }
    for name, entry in golden.items():
        assert (folder / name).read_bytes() == entry
    assert get_producers((folder / "records").read_bytes()) == table
    assert get_producers((folder / "opening").read_bytes()) == opened
    packed = (folder / "source").read_bytes()
    assert read_head(packed).codec == CODEC_LZ4
    assert get_sources(packed) == source
    assert [bytes(record.payload) for record in chunk_of(1, 0, [packed], 0, 0)] == [b"x" * 500]
