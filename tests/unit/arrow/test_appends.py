"""Tables and frames into a stream on ledgers in memory, and back: columns, types, bounds, what is refused before."""

from __future__ import annotations

import asyncio
import datetime
import json
import tracemalloc
from collections.abc import Iterator

import pyarrow as pa
import pytest

from fastbk.arrow import append_arrow, append_arrow_async, stream_batches, stream_schema
from fastbk.arrow.appends import ROWS_AT_ONCE, Appended
from fastbk.arrow.batches import HEADERS
from fastbk.errors import ConfigError, TxidOutOfOrder, WrongType
from fastbk.stream.options import WriterOptions
from fastbk.stream.positions import DLSN
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import FakeClient, Plan
from tests.fixtures.streams import context_of
from tests.unit.arrow.test_readers import Harness


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    made.loop.close(5.0)


class Frame:
    """What any library's data frame is: it gives its columns, and nothing else of Arrow's is known of it."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def read(harness: Harness, *names: str) -> dict[str, list[object]]:
    full = stream_schema(headers=True)
    schema = pa.schema([full.field(name) for name in names])
    table = pa.Table.from_batches(stream_batches(harness.stream, "earliest", schema=schema), schema)
    found: dict[str, list[object]] = table.to_pydict()
    return found


KEYS = [b"k0", None, b"k2"]
PAIRS = [[("name", b"v0"), ("name", b"v1")], None, []]


@pytest.mark.parametrize("kind", ["table", "batch", "reader", "frame"])
def test_rows_are_records_in_their_order(harness: Harness, kind: str) -> None:
    headers = pa.array(
        [[{"key": k, "value": v} for k, v in one] if one else one for one in PAIRS], HEADERS
    )
    values, keys = pa.array([b"a", b"", b"c"], pa.binary()), pa.array(KEYS, pa.binary())
    table = pa.table({"value": values, "key": keys, "headers": headers})
    data = {
        "table": table,
        "batch": table.to_batches()[0],
        "reader": table.to_reader(),
        "frame": Frame(table),
    }[kind]
    with harness.stream.writer() as writer:
        done = append_arrow(writer, data)
    check_rows(harness, done)


POLARS_HEADERS = pa.large_list(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())]))


@pytest.mark.parametrize(
    "kind", [POLARS_HEADERS, pa.map_(pa.string(), pa.binary())], ids=["Polars", "DuckDB"]
)
def test_headers_are_taken_as_data_frames_have_them(harness: Harness, kind: pa.DataType) -> None:
    pairs: list[object] = list(PAIRS)
    if kind is POLARS_HEADERS:
        pairs = [[{"key": k, "value": v} for k, v in one] if one else one for one in PAIRS]
    table = pa.table(
        {"value": [b"a", b"", b"c"], "key": pa.array(KEYS), "headers": pa.array(pairs, kind)}
    )
    with harness.stream.writer() as writer:
        done = append_arrow(writer, Frame(table))
    check_rows(harness, done)


def check_rows(harness: Harness, done: Appended) -> None:
    assert (
        (done.rows, done.first) == (3, DLSN(1, 0, 0))
        and done.last is not None
        and done.last >= DLSN(1, 0, 2)
    )
    found = read(harness, "value", "key", "headers")
    assert (found["value"], found["key"]) == ([b"a", b"", b"c"], KEYS)
    assert found["headers"] == [
        [{"key": "name", "value": b"v0"}, {"key": "name", "value": b"v1"}],
        [],
        [],
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.large_binary(),
        pa.string_view(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_text_and_bytes_of_every_kind_are_payloads(harness: Harness, kind: pa.DataType) -> None:
    table = pa.table(
        {"text": pa.array(["ä", "b", "ä"]).cast(kind), "name": pa.array(["x", None, "z"])}
    )
    with harness.stream.writer() as writer:
        append_arrow(writer, table, value="text", key="name")
    found = read(harness, "value", "key")
    assert found == {"value": ["ä".encode(), b"b", "ä".encode()], "key": [b"x", None, b"z"]}


def test_a_frame_without_payloads_becomes_json(harness: Harness) -> None:
    noon = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "customer": ["a", "b"],
            "price": [1.5, None],
            "at": pa.array([noon, noon], pa.timestamp("ns", "UTC")),
            "items": [[1, 2], []],
        }
    )
    with harness.stream.writer() as writer:
        append_arrow(writer, Frame(table), json=True, key="customer")
    found = read(harness, "value", "key")
    first, second = (json.loads(bytes(one)) for one in found["value"])  # type: ignore[arg-type]
    assert first == {"price": 1.5, "at": "2026-01-31T12:00:00Z", "items": [1, 2]}
    assert (second["price"], found["key"]) == (None, [b"a", b"b"])


def test_what_was_read_of_one_stream_can_be_appended_to_another(harness: Harness) -> None:
    """Columns that say where a record was are left out; it gets a place of its own."""
    harness.filled([3, 2], 2)
    batches = list(stream_batches(harness.stream, "earliest", schema=stream_schema(headers=True)))
    other = Harness()
    try:
        with other.stream.writer() as writer:
            done = append_arrow(writer, pa.Table.from_batches(batches), txid="txid")
        assert done.rows == 10
        assert read(other, "value", "txid") == read(harness, "value", "txid")
        with other.stream.writer() as writer, pytest.raises(TxidOutOfOrder):
            append_arrow(writer, pa.Table.from_batches(batches), txid="txid")
    finally:
        other.loop.close(5.0)
    assert len(read(harness, "seq")["seq"]) == 10


@pytest.mark.parametrize(
    ("table", "options", "why"),
    [
        (pa.table({"x": ["a"]}), {}, "no column 'value' of payloads: there are x.*json=True"),
        (pa.table({"value": [1]}), {}, "column 'value' of payloads is of int64"),
        (pa.table({"value": ["a"], "price": [1]}), {}, "columns price are no part of a record"),
        (pa.table({"value": ["a"]}), {"key": "name"}, "no column 'name' of key"),
        (pa.table({"value": ["a"], "key": [1]}), {}, "column 'key' of keys is of int64"),
        (
            pa.table({"value": ["a"], "headers": ["x"]}),
            {},
            "column 'headers' of headers has the type",
        ),
        (pa.table({"value": ["a"]}), {"txid": "number"}, "no column 'number' of transaction ids"),
        (pa.table({"value": ["a"], "number": ["1"]}), {"txid": "number"}, "has whole numbers"),
        (pa.table({"key": ["a"]}), {"json": True}, "no columns that could be the payload"),
        (
            pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["value", "value"]),
            {},
            "named twice",
        ),
    ],
)
def test_a_schema_that_is_no_records_is_refused_before_anything_is_appended(
    harness: Harness, table: pa.Table, options: dict[str, object], why: str
) -> None:
    with harness.stream.writer() as writer:
        with pytest.raises(ConfigError, match=why):
            append_arrow(writer, table, **options)  # type: ignore[arg-type]
        assert writer.last_txid == -1


def test_what_is_no_arrow_data_is_refused(harness: Harness) -> None:
    with harness.stream.writer() as writer:
        for wrong in ([b"a"], {"value": [b"a"]}, None):
            with pytest.raises(WrongType, match="is no Arrow data"):
                append_arrow(writer, wrong)  # type: ignore[arg-type]
        with pytest.raises(WrongType, match="value=7"):
            append_arrow(writer, pa.table({"value": ["a"]}), value=7)  # type: ignore[arg-type]
        assert append_arrow(writer, pa.table({"value": pa.array([], pa.binary())})).first is None


def test_a_row_that_is_none_is_named_and_those_before_it_are_appended(harness: Harness) -> None:
    with harness.stream.writer() as writer:
        with pytest.raises(ConfigError, match="row 2: the column 'value' is null"):
            append_arrow(writer, pa.table({"value": ["a", "b", None, "d"]}))
        writer.flush()
    assert read(harness, "value")["value"] == [b"a", b"b"]


def test_a_large_table_needs_little_memory_beside_its_own(harness: Harness) -> None:
    rows = 40 * ROWS_AT_ONCE
    table = pa.table({"value": pa.array([b"%0100d" % at for at in range(rows)], pa.binary())})
    with harness.stream.writer(unacked_bytes_max=64 * 1024) as writer:
        append_arrow(writer, table.slice(0, 10))
        ledger = harness.cluster.ledgers
        tracemalloc.start()
        try:
            append_arrow(writer, table.slice(10))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    kept = sum(len(entry) for one in ledger.values() for entry in one.entries)
    assert kept > 100 * rows, "the ledgers in memory hold all of it"
    assert peak < 1.6 * kept + 4_000_000, f"{peak:,} bytes for {kept:,} that were kept"


def test_a_writer_of_asyncio_takes_them_too(harness: Harness) -> None:
    async def append() -> object:
        async with StreamWriter(context_of(harness.cluster.client()), WriterOptions()) as writer:
            return await append_arrow_async(
                writer, Frame(pa.table({"value": ["a", "b"], "key": [None, "k"]}))
            )

    done = harness.loop.call(append)
    assert done.rows == 2  # type: ignore[attr-defined]
    assert read(harness, "value", "key") == {"value": [b"a", b"b"], "key": [None, b"k"]}


class Slowly(Plan):
    """Each entry takes a while, so that others wait."""

    async def before(self, client: FakeClient, what: str) -> None:
        if what == "append":
            for _ in range(20):
                await asyncio.sleep(0)


def test_rows_that_are_larger_than_the_room_that_is_left_wait_for_more(harness: Harness) -> None:
    """It raised BufferFull in the middle of a table."""
    harness.cluster.plan = Slowly()
    table = pa.table(
        {"value": [b"%03d" % at + b"x" * (900 if at % 10 == 9 else 20) for at in range(200)]}
    )

    async def append() -> object:
        options = WriterOptions(unacked_bytes_max=500, batch_bytes=100)
        async with StreamWriter(context_of(harness.cluster.client()), options) as writer:
            return await append_arrow_async(writer, table)

    assert harness.loop.call(append).rows == 200  # type: ignore[attr-defined]
    with harness.stream.writer(unacked_bytes_max=500, batch_bytes=100) as writer:
        assert append_arrow(writer, table).rows == 200
    assert read(harness, "value")["value"] == table.column("value").to_pylist() * 2
