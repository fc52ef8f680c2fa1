"""Batches of Arrow whose lengths, offsets and text are not what they say: an error, and no byte of others is read."""

from __future__ import annotations

import io
import os
import random
import struct

import pyarrow as pa
import pytest

from fastbk.arrow.batches import HEADERS
from fastbk.errors import Error, ProtocolError
from fastbk.native.stream_codec import HEAD_BYTES
from fastbk.spark.entry_writer import Columns, table_of

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


def array(kind: pa.DataType, offsets: pa.Buffer, data: bytes, rows: int) -> pa.Array:
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
    names = array(pa.string(), int32s(0, len(name)), name, 1)
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
