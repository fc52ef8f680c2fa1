"""Record batches of chunks hold what the chunk's records say, whatever these are; so do those of ledgers' entries."""

from __future__ import annotations

import io
import os
import random
import struct
from array import array
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.arrow import chunk_batch, chunks_batch, entries_batch, ledger_schema, stream_schema
from fastbk.arrow.batches import HEADERS
from fastbk.client.ledger_reader import Batch
from fastbk.errors import ConfigError, Error, ProtocolError
from fastbk.native import stream_codec as codec
from fastbk.native.stream_codec import HEAD_BYTES, Sizes, fill_record_columns, sizes_of
from fastbk.replication.procedure import Found
from fastbk.spark.sink import Columns, table_of
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


# Batches of Arrow whose lengths, offsets and text are not what they say: an error, and no byte of
# others is read.


SCHEMA = pa.schema([("value", pa.binary()), ("key", pa.string()), ("headers", HEADERS)])
COLUMNS = Columns("value", "key", "headers")
ROWS = [
    {
        "value": b"v" * at,
        "key": None if at % 3 else "k" * at,
        "headers": [("name", b"x"), ("n", None)][: at % 3],
    }
    for at in range(20)
]
OFFSETS = (-1, 1, 1 << 30, (1 << 31) - 1, -(1 << 31))


def batch() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)


def gathered(given: pa.RecordBatch, columns: Columns = COLUMNS) -> int:
    """Make entries of a batch as a task does; return how many rows they have."""
    table, row, out = table_of(given, columns), 0, bytearray(HEAD_BYTES + 100_000)
    while row < table.count:
        _, taken = table.gather(0, 0, 0, row, 100_000, out)
        row += taken
    return row


def int32s(*numbers: int) -> pa.Buffer:
    return pa.py_buffer(struct.pack(f"<{len(numbers)}i", *numbers))


def made_array(kind: pa.DataType, offsets: pa.Buffer, data: bytes, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, offsets, pa.py_buffer(data)])


def lying(given: pa.RecordBatch, right: bytes, wrong: bytes) -> pa.RecordBatch:
    """Return a batch as it is received from a sender who says something else: Arrow checks nothing then."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, given.schema) as writer:
        writer.write_batch(given)
    raw = sink.getvalue()
    assert right in raw
    return next(iter(pa.ipc.open_stream(raw.replace(right, wrong))))


def of_values(values: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([values], names=["value"])


def test_a_right_batch_is_taken() -> None:
    assert gathered(batch()) == len(ROWS)


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_offsets_that_lead_out_of_the_values_are_refused(
    kind: pa.DataType, offset: int, at: int
) -> None:
    numbers, size = [0, 4, 8], struct.Struct("<3i")
    numbers[at] = offset if offset != 1 else 99
    given = lying(
        of_values(pa.array(["1234", "5678"], kind)), size.pack(0, 4, 8), size.pack(*numbers)
    )
    with pytest.raises(ProtocolError):
        gathered(given, Columns())


def test_fewer_offsets_and_bits_than_rows_are_refused() -> None:
    given = pa.RecordBatch.from_arrays([pa.array([b"1", None, b"3"] * 20)], names=["value"])
    more = lying(given, struct.pack("<q", 60), struct.pack("<q", 1 << 30))
    assert more.num_rows == 1 << 30
    with pytest.raises(ProtocolError, match="column value of a batch of"):
        gathered(more, Columns())


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.large_string()])
@pytest.mark.parametrize("offset", [-8, 1 << 40, (1 << 63) - 1])
def test_large_offsets_are_checked_before_arrow_goes_by_them(
    kind: pa.DataType, offset: int
) -> None:
    """Arrow copied from any place of the process's memory, or ended it."""
    size = struct.Struct("<3q")
    given = lying(
        of_values(pa.array(["1234", "5678"], kind)), size.pack(0, 4, 8), size.pack(0, offset, 8)
    )
    with pytest.raises(ProtocolError):
        gathered(given, Columns())


def test_indexes_of_a_dictionary_that_lead_out_of_it_are_refused() -> None:
    indices = pa.Array.from_buffers(pa.int32(), 2, [None, int32s(0, 1 << 30)])
    lying = pa.DictionaryArray.from_arrays(indices, pa.array([b"a"]), safe=False)
    with pytest.raises(ProtocolError):
        gathered(of_values(lying), Columns())


@pytest.mark.parametrize("name", [b"\xff\xfe", b"\xed\xa0\x80"])
def test_names_of_headers_that_are_no_text_are_refused(name: bytes) -> None:
    """They were stored, and every reader of headers then failed at the entry."""
    names = made_array(pa.string(), int32s(0, len(name)), name, 1)
    pairs = pa.StructArray.from_arrays([names, pa.array([b"v"])], fields=list(HEADERS.value_type))
    lists = pa.Array.from_buffers(HEADERS, 1, [None, int32s(0, 1)], children=[pairs])
    given = pa.RecordBatch.from_arrays([pa.array([b"v"]), pa.array(["k"]), lists], schema=SCHEMA)
    with pytest.raises(ProtocolError, match="headers"):
        gathered(given)


@pytest.mark.parametrize("offsets", [(0, 1, 9), (-1, 1, 3), (0, 1 << 30, 3), (0, 2, 1)])
def test_lists_that_lead_out_of_their_items_are_refused(offsets: tuple[int, int, int]) -> None:
    size = struct.Struct("<3i")
    rows = [{"value": b"v", "key": None, "headers": [("n", b"x")] * count} for count in (1, 2)]
    given = lying(
        pa.RecordBatch.from_pylist(rows, schema=SCHEMA), size.pack(0, 1, 3), size.pack(*offsets)
    )
    with pytest.raises(ProtocolError):
        gathered(given)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_changed_streams_of_arrow_are_taken_or_refused(compression: str | None, seed: int) -> None:
    """FUZZ=1000000 makes it a long run. What Arrow lets pass is read by C, and must not lead out of its buffers."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(
        sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_batch(batch())
    raw, dice = sink.getvalue(), random.Random(seed)
    begins = raw.index(b"\xff\xff\xff\xff", 8)  # behind the schema's message
    for _ in range(int(os.environ.get("FUZZ", "2000"))):
        bad = bytearray(raw)
        for _ in range(dice.choice((1, 1, 3))):
            at = dice.randrange(begins, len(bad) - 4)
            if dice.random() < 0.5:
                bad[at : at + 4] = dice.choice(OFFSETS).to_bytes(4, "little", signed=True)
            else:
                bad[at] ^= 1 << dice.randrange(8)
        if dice.random() < 0.2:
            del bad[dice.randrange(len(bad)) :]
        try:
            for one in pa.ipc.open_stream(bytes(bad)):
                if one.num_rows and one.num_rows < 1 << 20:
                    gathered(one)
        except (Error, pa.ArrowException, OSError, MemoryError):
            continue
