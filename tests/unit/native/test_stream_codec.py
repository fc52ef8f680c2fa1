"""Arrow's columns become entries: what is read back is what was in the rows, however they are cut, sliced or null."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.arrow.batches import HEADERS
from fastbk.errors import ConfigError, ProtocolError, RecordTooLarge
from fastbk.native.stream_codec import HEAD_BYTES, Column, Table
from fastbk.spark.sink import Columns, table_of
from fastbk.stream.records import chunk_of

pa = pytest.importorskip("pyarrow")
ROWS = st.lists(
    st.tuples(
        st.binary(max_size=200),
        st.none() | st.binary(max_size=20),
        st.none()
        | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=40,
)
COLUMNS = Columns("value", "key", "headers")


def batch_of(rows: list[tuple[bytes, bytes | None, list[tuple[str, bytes | None]] | None]]):  # type: ignore[no-untyped-def]
    headers = [
        None if each is None else [{"key": name, "value": value} for name, value in each]
        for _, _, each in rows
    ]
    return pa.record_batch(
        {
            "value": pa.array([row[0] for row in rows], pa.binary()),
            "key": pa.array([row[1] for row in rows], pa.binary()),
            "headers": pa.array(headers, HEADERS),
        }
    )


def entries_of(table: Table, first_record: int, body_bytes: int) -> list[bytes]:
    found, row, out = [], 0, bytearray(64 * 1024)
    while row < table.count:
        size, taken = table.gather(0, first_record + row, 1000, row, body_bytes, out)
        found.append(bytes(out[:size]))
        row += taken
    return found


@given(ROWS, st.integers(0, 2000), st.integers(0, 10), st.integers(0, 100))
def test_what_is_in_the_rows_comes_out(rows, body_bytes: int, cut: int, first: int) -> None:  # type: ignore[no-untyped-def]
    cut = min(cut, len(rows) - 1)
    table = table_of(batch_of(rows).slice(cut), COLUMNS)
    entries = entries_of(table, first, body_bytes)
    chunk = chunk_of(1, 0, entries, 0, 0)
    assert len(chunk) == len(rows) - cut
    for number, (record, (value, key, headers)) in enumerate(zip(chunk, rows[cut:], strict=True)):
        assert (bytes(record.payload), record.key) == (value, key)
        assert record.headers == tuple((name, each or b"") for name, each in headers or [])
        assert (record.seq, record.txid) == (first + number, first + number + 1)
    for entry in entries[:-1]:
        assert len(entry) > HEAD_BYTES


@pytest.mark.parametrize("type_name", ["string", "large_string", "large_binary", "binary_view"])
def test_other_types_of_text_and_bytes_are_taken(type_name: str) -> None:
    values = pa.array(["a", "", "long enough not to lie in a view"], pa.string())
    batch = pa.record_batch({"value": values.cast(getattr(pa, type_name)())})
    chunk = chunk_of(1, 0, entries_of(table_of(batch, Columns()), 0, 100), 0, 0)
    assert [bytes(one.payload).decode() for one in chunk] == values.to_pylist()


def test_an_entry_is_as_large_as_was_wanted() -> None:
    batch = pa.record_batch({"value": pa.array([bytes(100)] * 1000, pa.binary())})
    entries = entries_of(table_of(batch, Columns()), 0, 10_000)
    assert {len(entry) - HEAD_BYTES <= 10_000 for entry in entries} == {True}
    assert len(entries) < 15


def test_a_record_that_does_not_fit_is_told() -> None:
    table = table_of(pa.record_batch({"value": [bytes(2000)]}), Columns())
    with pytest.raises(RecordTooLarge):
        table.gather(0, 0, 0, 0, 10, bytearray(1000))


def test_nulls_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(ConfigError, match="is not null"):
        table_of(pa.record_batch({"value": pa.array([b"a", None], pa.binary())}), Columns())
    for headers in ([[{"key": None, "value": b""}]], [[None]]):
        batch = pa.record_batch({"value": [b"a"], "headers": pa.array(headers, HEADERS)})
        with pytest.raises(ConfigError, match="headers"):
            table_of(batch, Columns(headers="headers"))


def test_buffers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ProtocolError, match="too few offsets"):
        Table(Column(array("i", [0, 1]).tobytes(), b"x", None, 0, 2))
    with pytest.raises(ProtocolError, match="too few bits"):
        Table(Column(array("i", range(10)).tobytes(), b"x", b"\0", 0, 9))
    for offsets in ([0, 2], [1, 0], [-1, 0]):
        table = Table(Column(array("i", offsets).tobytes(), b"x", None, 0, 1))
        with pytest.raises(ProtocolError, match="make no sense"):
            table.gather(0, 0, 0, 0, 10, bytearray(1000))


def test_a_header_whose_name_is_too_long_is_refused() -> None:
    headers = pa.array([[{"key": "n" * 65_536, "value": b""}]], HEADERS)
    table = table_of(
        pa.record_batch({"value": [b"a"], "headers": headers}), Columns(headers="headers")
    )
    with pytest.raises(ProtocolError, match="name is too long"):
        table.gather(0, 0, 0, 0, 10, bytearray(100_000))
