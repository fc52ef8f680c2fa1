"""A run of entries is a sequence of `Found` like any other, without an object for those that nobody looks at."""

from __future__ import annotations

import itertools
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ProtocolError
from fastbk.model.entry import DigestType
from fastbk.native.client_codec import CheckedEntries, LedgerCodec, fill_entry_columns
from fastbk.native.ffi import NativeFullError
from fastbk.replication.entry_table import EntryTable, size_bytes_of, table_of
from fastbk.replication.procedure import Found
from tests.fixtures.entries import make_entry

LEDGER = 2**50
DATAS = st.lists(st.binary(max_size=40), min_size=1, max_size=12)


def read_run(datas: list[bytes], first: int, kind: DigestType) -> tuple[EntryTable, list[Found]]:
    """Return entries as they come out of an answer, and what they are."""
    length, entries, found = 77, [], []
    for at, data in enumerate(datas, first):
        length += len(data)
        entries.append(make_entry(LEDGER, at, at - 3, length, data, kind, b"pw"))
        found.append(Found(at, at - 3, length, data))
    sizes = b"".join(len(one).to_bytes(4, "little") for one in entries)
    answer = b"".join(entries)
    return EntryTable(answer, LedgerCodec(LEDGER, kind, b"pw").table(answer, sizes)), found


@given(DATAS, st.integers(0, 2**40), st.sampled_from(list(DigestType)), st.data())
def test_a_run_is_the_entries_that_came(
    datas: list[bytes], first: int, kind: DigestType, draw: st.DataObject
) -> None:
    run, found = read_run(datas, first, kind)
    assert list(run) == found
    assert [run[at] for at in range(-len(found), len(found))] == found * 2
    assert run.datas == datas
    assert list(run.lengths) == [one.length for one in found]
    assert size_bytes_of(run) == size_bytes_of(found) == sum(map(len, datas))
    assert run.lac_max == found[-1].lac
    some = draw.draw(st.slices(len(found)).filter(lambda one: one.step in (None, 1)))
    assert list(run[some]) == found[some]
    assert table_of(run) is run
    assert list(table_of(found)) == found


def test_what_is_not_in_a_run_is_refused() -> None:
    run, _ = read_run([b"a", b"b"], 5, DigestType.CRC32C)
    with pytest.raises(IndexError):
        run[2]
    with pytest.raises(ValueError, match="no step"):
        run[::2]


@given(st.lists(DATAS, min_size=1, max_size=4))
def test_columns_hold_what_the_runs_do(parts: list[list[bytes]]) -> None:
    tables, ids, lengths, datas = [], [], [], []
    for at, some in enumerate(parts):
        run, found = read_run(some, 100 * at, DigestType.CRC32)
        tables.append(CheckedEntries(run.data, run.words))
        ids += [one.entry_id for one in found]
        lengths += [one.length for one in found]
        datas += some
    rows = len(ids)
    got_ids, got_lengths = array("q", bytes(8 * rows)), array("q", bytes(8 * rows))
    offsets, values = array("i", bytes(4 * rows + 4)), bytearray(sum(map(len, datas)))
    fill_entry_columns(
        tables, rows, ids=got_ids, lengths=got_lengths, offsets=offsets, values=values
    )
    assert (list(got_ids), list(got_lengths)) == (ids, lengths)
    assert bytes(values) == b"".join(datas)
    cut = [bytes(values[a:b]) for a, b in itertools.pairwise(offsets)]
    assert cut == datas
    alone = bytearray(len(values))
    fill_entry_columns(tables, rows, values=alone)
    assert alone == values


def test_columns_that_are_too_small_and_tables_that_lie_are_refused() -> None:
    run, _ = read_run([b"abc", b"defg"], 0, DigestType.CRC32C)
    table = CheckedEntries(run.data, run.words)
    with pytest.raises(ValueError, match="ids has room for 1 items: 2"):
        fill_entry_columns([table], 2, ids=array("q", [0]))
    with pytest.raises(NativeFullError):
        fill_entry_columns([table], 1, ids=array("q", [0]))
    with pytest.raises(NativeFullError):
        fill_entry_columns([table], 2, values=bytearray(6))
    for word, lie in ((3, -1), (3, len(run.data)), (4, -1), (4, len(run.data)), (4, 2**62)):
        words = array("q", run.words)
        words[word] = lie
        with pytest.raises(ProtocolError):
            fill_entry_columns([CheckedEntries(run.data, words)], 2, values=bytearray(7))
