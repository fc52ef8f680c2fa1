"""Record batches of chunks hold what the chunk's records say, whatever these are; so do those of ledgers' entries."""

from __future__ import annotations

import random
from array import array
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.arrow import (
    chunk_batch,
    chunks_batch,
    entries_batch,
    ledger_schema,
    stream_schema,
)
from fastbk.client.ledger_reader import Batch
from fastbk.errors import ConfigError, ProtocolError
from fastbk.native import stream_codec as codec
from fastbk.native.stream_codec import Sizes, fill_record_columns, sizes_of
from fastbk.replication.actions import Found
from fastbk.stream.records import CODECS, Chunk, Record, chunk_of, compressed, put_headers

Some = tuple[bytes, bytes | None, tuple[tuple[str, bytes], ...], int]
FULL = stream_schema(headers=True)

records = st.lists(
    st.tuples(
        st.binary(max_size=300),
        st.none() | st.binary(max_size=20),
        st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9)), max_size=3).map(tuple),
        st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=30,
)


def entry_of(some: list[Some], first: int, time_us: int, name: str = "none") -> bytes:
    txids, txid = array("q"), 5
    for *_, step in some:
        txid += step
        txids.append(txid)
    made = codec.encode(
        7,
        first,
        time_us,
        [one[0] for one in some],
        txids,
        [one[1] for one in some],
        [put_headers(one[2]) for one in some],
    )
    return bytes(compressed(made, CODECS[name]))  # type: ignore[index]


def chunk_with(entries: list[list[Some]], name: str = "none", segment: int = 3) -> Chunk:
    datas, first = [], 0
    for at, some in enumerate(entries):
        datas.append(entry_of(some, first, 1_700_000_000_000_000 + at, name))
        first += len(some)
    return chunk_of(segment, 40, datas, 1000, 10)


def row_of(record: Record) -> dict[str, object]:
    """What a row is to be, by the record as the ordinary reader decodes it."""
    return {
        "stream": "shop/orders",
        "partition": 0,
        "segment": record.dlsn.segment,
        "entry": record.dlsn.entry,
        "slot": record.dlsn.slot,
        "seq": record.seq,
        "txid": record.txid,
        "timestamp": record.time,
        "key": record.key,
        "value": bytes(record.payload),
        "headers": [{"key": name, "value": value} for name, value in record.headers],
    }


@given(st.lists(records, min_size=1, max_size=4), st.sampled_from(sorted(CODECS)), st.data())
def test_a_batch_says_what_the_records_say(
    entries: list[list[Some]], name: str, data: st.DataObject
) -> None:
    whole = chunk_with(entries, name)
    start = data.draw(st.integers(0, len(whole)))
    chunk = whole[start : data.draw(st.integers(start, len(whole)))]
    batch = chunk_batch(chunk, "shop/orders", FULL)
    batch.validate(full=True)
    assert batch.schema == FULL
    assert batch.to_pylist() == [row_of(one) for one in chunk]


@given(st.lists(st.lists(records, min_size=1, max_size=2), max_size=4), st.data())
def test_chunks_of_several_segments_are_one_batch(
    parts: list[list[list[Some]]], data: st.DataObject
) -> None:
    chunks = [chunk_with(entries, segment=at + 1) for at, entries in enumerate(parts)]
    chunks = [chunk[data.draw(st.integers(0, len(chunk))) :] for chunk in chunks]
    batch = chunks_batch(chunks, "shop/orders", FULL)
    batch.validate(full=True)
    assert batch.to_pylist() == [row_of(one) for chunk in chunks for one in chunk]


@given(st.lists(st.sampled_from(FULL.names), min_size=1, unique=True))
def test_any_part_of_the_columns_in_any_order_can_be_asked_for(names: list[str]) -> None:
    some: list[Some] = [(b"a", None, (("x", b"1"),), 1), (b"", b"k", (), 2)]
    chunk = chunk_with([some])
    schema = pa.schema([FULL.field(name) for name in names])
    batch = chunk_batch(chunk, "shop/orders", schema)
    batch.validate(full=True)
    assert batch.schema == schema
    assert batch.to_pylist() == [{name: row_of(one)[name] for name in names} for one in chunk]


def test_columns_and_types_are_what_is_promised() -> None:
    assert stream_schema().names == [
        "stream", "partition", "segment", "entry", "slot", "seq", "txid", "timestamp", "key", "value",
    ]  # fmt: skip
    assert stream_schema(payload=False, headers=True).names[-2:] == ["key", "headers"]
    assert stream_schema().field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert ledger_schema().names == ["ledger", "entry", "length", "value"]
    assert ledger_schema(payload=False).names == ["ledger", "entry", "length"]


def test_the_values_stay_when_the_chunk_is_gone() -> None:
    chunk = chunk_with([[(b"x" * 1000, None, (), 1)]])
    batch = chunk_batch(chunk, "s", stream_schema())
    del chunk
    assert batch.column("value").to_pylist() == [b"x" * 1000]


def test_times_are_in_utc() -> None:
    chunk = chunk_with([[(b"", None, (), 1)]])
    (found,) = chunk_batch(chunk, "s", stream_schema()).column("timestamp").to_pylist()
    assert found == datetime.fromtimestamp(1_700_000_000, UTC)


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([("seq", pa.int32())]),
        pa.schema([("sequence", pa.int64())]),
        pa.schema([("seq", pa.int64()), ("seq", pa.int64())]),
        ledger_schema(),
    ],
)
def test_other_columns_are_refused(schema: pa.Schema) -> None:
    with pytest.raises(ConfigError):
        chunk_batch(chunk_with([[(b"", None, (), 1)]]), "s", schema)


def test_values_of_2_gib_are_refused_before_anything_is_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunk = chunk_with([[(b"", None, (), 1)]])
    # 2 GiB of records would be felt; the figures are what is judged.
    sizes = {"value": Sizes(2**31, 0, 0, 0, 0), "key": Sizes(0, 2**31, 0, 0, 0)}
    for name, size in sizes.items():
        monkeypatch.setattr("fastbk.arrow.batches.sizes_of", lambda *_, size=size, **__: size)
        with pytest.raises(ConfigError, match=rf"column {name} .* fewer rows"):
            chunk_batch(chunk, "s", stream_schema())


@pytest.mark.parametrize(
    "raw",
    [
        b"\x05\x00ab",
        b"\x01\x00a\x05\x00\x00\x00xx",
        b"\x01",
        b"\x01\x00\xff\x00\x00\x00\x00",  # no UTF-8
        b"\x02\x00\xc0\x80\x00\x00\x00\x00",  # a character that is longer than it has to be
        b"\x03\x00\xed\xa0\x80\x00\x00\x00\x00",  # half of a pair
        b"\x04\x00\xf4\x90\x80\x80\x00\x00\x00\x00",  # behind the last character
    ],
)
def test_headers_that_make_no_sense_are_refused_where_they_are_wanted(raw: bytes) -> None:
    made = codec.encode(1, 0, 0, [b"a", b"b"], array("q", [0, 1]), None, [b"", raw])
    chunk = chunk_of(1, 0, [bytes(made)], 70, 0)
    with pytest.raises(
        ProtocolError, match=r"record 1\.0\.1 cannot be read: .*; behind it is 1\.1\.0"
    ):
        chunk_batch(chunk, "s", FULL)
    assert chunk_batch(chunk, "s", stream_schema()).num_rows == 2
    with pytest.raises(ProtocolError):
        list(chunk)


@pytest.mark.slow
def test_damaged_entries_give_what_the_ordinary_reader_gives(rng: random.Random) -> None:
    some: list[Some] = [
        (rng.randbytes(rng.randrange(40)), b"key", (("a", b"b"), ("ö", b"")), 3) for _ in range(20)
    ]
    good = entry_of(some, 0, 0)
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            chunk = chunk_of(1, 0, [bytes(bad)], 0, 0)
        except ProtocolError:
            continue
        try:
            wanted = [(one.key, bytes(one.payload), one.headers) for one in chunk]
        except ProtocolError:
            with pytest.raises(ProtocolError):
                chunk_batch(chunk, "s", FULL)
            continue
        batch = chunk_batch(chunk, "s", FULL.remove(FULL.get_field_index("timestamp")))
        batch.validate(full=True)
        found = [
            (row["key"], row["value"], tuple((one["key"], one["value"]) for one in row["headers"]))
            for row in batch.to_pylist()
        ]
        assert found == wanted


def test_buffers_that_do_not_fit_are_refused() -> None:
    source = chunk_with([[(b"abc", b"k", (), 1)]]).columns()
    sizes = sizes_of([source], headers=False)
    assert sizes == Sizes(3, 1, 0, 0, 0)
    with pytest.raises(ValueError, match="values has room for 2 items: 3"):
        fill_record_columns(
            [source], sizes, {"value_offsets": bytearray(8), "values": bytearray(2)}
        )
    with pytest.raises(ValueError, match="value_offsets without the rest"):
        fill_record_columns([source], sizes, {"value_offsets": bytearray(8)})
    values = bytearray(3)
    fill_record_columns([source], sizes, {"value_offsets": bytearray(8), "values": values})
    assert values == b"abc"


def some_entries(ledger_id: int, first: int, datas: list[bytes]) -> Batch:
    length, found = 1000, []
    for at, data in enumerate(datas):
        length += len(data)
        found.append(Found(first + at, first + at, length, memoryview(data)))
    return Batch(ledger_id, found)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20), st.integers(0, 2**40))
def test_a_batch_of_entries_says_what_they_say(datas: list[bytes], first: int) -> None:
    batch = some_entries(2**62, first, datas)
    made = entries_batch(batch, ledger_schema())
    made.validate(full=True)
    lengths = [1000 + sum(map(len, datas[: at + 1])) for at in range(len(datas))]
    assert made.to_pylist() == [
        {"ledger": 2**62, "entry": one.entry_id, "length": length, "value": bytes(one.data)}
        for one, length in zip(batch, lengths, strict=True)
    ]
    part = pa.schema([ledger_schema().field("entry")])
    assert entries_batch(batch, part).column("entry").to_pylist() == [one.entry_id for one in batch]
    with pytest.raises(ConfigError):
        entries_batch(batch, stream_schema())
