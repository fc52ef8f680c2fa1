"""Entries decoded where they were received are the same records as those that were copied out first."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ProtocolError
from fastbk.model.entry import DigestType
from fastbk.native import stream_codec as codec
from fastbk.native.client_codec import LedgerCodec
from fastbk.native.stream_codec import Sizes, fill_record_columns, sizes_of
from fastbk.replication.entry_table import EntryTable
from fastbk.stream.records import Chunk, chunk_of, chunk_of_run, compressed
from tests.fixtures.entries import make_entry

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
