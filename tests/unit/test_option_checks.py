"""Options of clients, writers, readers and cursors: names and types are checked, and errors say what is wanted."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import fastbk
import fastbk.sync
from fastbk.client.config import ClientConfig, ClientOptions
from fastbk.client.sync import LedgerReader as BlockingLedgerReader
from fastbk.client.sync import LedgerWriter as BlockingLedgerWriter
from fastbk.client.sync import Pending
from fastbk.errors import ConfigError, Error, WrongType
from fastbk.option_checks import owned_bytes
from fastbk.stream.client import Client as StreamClient
from fastbk.stream.cursor.sync_cursor import SyncCursor
from fastbk.stream.options import StreamWriterOptions, WriterOptions
from fastbk.stream.reader.sync_reader import SyncStreamReader
from fastbk.stream.records import get_headers, put_headers
from fastbk.stream.stream import Stream
from fastbk.stream.sync import SyncStreamWriter
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import context_of
from tests.fixtures.sync_cluster import sync_cluster
from tests.unit.client.fake_cluster import fake_cluster

URI = "memory:options"
Call = Callable[..., object]


def stream() -> Stream:
    """Return a handle; nothing is asked of its cluster."""
    return Stream(None, ("shop",), "orders", context_of(Cluster().client()))  # type: ignore[arg-type]


def cursor(**options: Any) -> object:
    return stream().cursor("billing", **options)


@pytest.mark.parametrize("call", [fastbk.connect, fastbk.sync.connect])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"read_timout": 1}, r"unknown option 'read_timout'; did you mean read_timeout\?"),
        ({"xyz": 1}, "unknown option 'xyz'; choose of .*append_timeout"),
        ({"read_timeout": "1"}, "read_timeout='1': must be a number, not str"),
        ({"read_timeout": None}, "read_timeout=None: must be a number, not NoneType"),
        ({"read_timeout": float("nan")}, "read_timeout=nan: must be a number$"),
        (
            {"entries_in_flight_max": 1.5},
            "entries_in_flight_max=1.5: must be an integer, not float",
        ),
        ({"entries_in_flight_max": True}, "entries_in_flight_max=True: must be an integer"),
        ({"parallel_reads": "yes"}, "parallel_reads='yes': must be True or False, not str"),
        ({"client_name": 7}, "client_name=7: must be text, not int"),
        ({"ensemble_changes_max": "1"}, "ensemble_changes_max='1': must be an integer or None"),
        ({"topology": ["a"]}, "topology=.*: must be a Mapping, not list"),
        ({"placement": "rack"}, "placement='rack': must be a PlacementConfig, not str"),
    ],
)
def test_a_clients_options_are_checked(call: Call, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call(URI, **options)


@pytest.mark.parametrize(
    ("call", "options", "said"),
    [
        ("writer", {"lingr": 1}, r"unknown option 'lingr'; did you mean linger\?"),
        ("writer", {"linger": "1"}, "linger='1': must be a number, not str"),
        ("writer", {"publish": "later"}, "publish='later': must be 'immediate' or 'piggyback'$"),
        ("writer", {"batch_bytes": None}, "batch_bytes=None: must be an integer"),
        ("reader", {"prefetch": 1}, r"unknown option 'prefetch'; did you mean prefetch_bytes\?"),
        ("reader", {"prefetch_bytes": "1"}, "prefetch_bytes='1': must be an integer, not str"),
        ("reader", {"tail": 0}, "tail=0: must be True or False, not int"),
        ("reader", {"on_gap": "skip"}, "on_gap='skip': must be 'raise' or 'yield'$"),
        ("reader", {"end": 7}, "end=7: must be .*DLSN.* or None, not int"),
        ("cursor", {"flush_acks": "often"}, "flush_acks='often': must be an integer, not str"),
        ("cursor", {"expire_after": "1d"}, "expire_after='1d': must be a number or None, not str"),
        ("cursor", {"flush_ack": 1}, r"unknown option 'flush_ack'; did you mean flush_acks\?"),
    ],
)
def test_a_streams_options_are_checked(call: str, options: dict[str, Any], said: str) -> None:
    of_asyncio: dict[str, Call] = {"writer": stream().writer, "reader": stream().reader}
    with pytest.raises(ConfigError, match=said):
        of_asyncio.get(call, cursor)(**options)
    with fastbk.sync.connect(URI) as client:
        handle = client.namespace("shop").stream("orders")
        blocking: dict[str, Call] = {"writer": handle.writer, "reader": handle.reader}
        with pytest.raises(ConfigError, match=said):
            blocking.get(call, lambda **given: handle.cursor("billing", **given))(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ensemble": "3"}, "ensemble='3': must be an integer, not str"),
        ({"write_quorum": 2.0}, "write_quorum=2.0: must be an integer, not float"),
        ({"ack_quorum": 1.5}, "ack_quorum=1.5: must be an integer or None, not float"),
        ({"password": "text"}, "password='text': must be bytes, not str"),
        ({"metadata": 7}, "metadata=7: must be a Mapping or None, not int"),
        ({"metadata": {"a": "b"}}, "keys are str and values bytes"),
        ({"ledger_id": "7"}, "ledger_id='7': must be an integer, not str"),
        ({"placement": "rack"}, "placement='rack': must be a PlacementConfig, not str"),
    ],
)
async def test_a_ledgers_options_are_checked(options: dict[str, Any], said: str) -> None:
    with fastbk.sync.connect(URI) as blocking, pytest.raises(ConfigError, match=said):
        blocking.create_ledger(**options)
    async with fastbk.connect(URI) as client:
        with pytest.raises(ConfigError, match=said):
            await client.create_ledger(**options)


def test_right_options_are_taken() -> None:
    assert fastbk.connect(URI, read_timeout=1, ensemble_changes_max=None).config.read_timeout == 1
    stream().writer(linger=1, publish="piggyback", over_quota=True)
    stream().reader(end=fastbk.AtSeq(1), tail=False, on_gap="yield")
    stream().reader(end="latest")
    cursor(expire_after=60, flush_interval=1, on_gap="raise")


@pytest.mark.parametrize(
    ("names", "values"), [(ClientOptions, ClientConfig), (StreamWriterOptions, WriterOptions)]
)
def test_names_and_types_are_those_of_the_values(names: type, values: Any) -> None:
    """What type checkers see is what is taken."""
    assert get_type_hints(names) == get_type_hints(values)
    assert list(get_type_hints(names)) == [one.name for one in fields(values)]


def test_values_made_directly_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="read_timeout='1': must be a number, not str"):
        ClientConfig(read_timeout="1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="linger='1': must be a number, not str"):
        WriterOptions(linger="1")  # type: ignore[arg-type]


# What no value of its kind is is refused at the call, with and without `await`, by one error;
# nothing is stored.


NO_BYTES: list[Any] = [5, 0, True, None, "text", [1, 2], (1,), {1}, range(3), 1.5, object()]
NO_ZONE = datetime(2026, 1, 1)  # noqa: DTZ001 -- that is what is wrong with it
NO_LISTS: list[Any] = [b"hello", "hello", bytearray(b"x"), 5, None]
NO_IDS: list[Any] = ["5", 1.5, True, None, -1, 2**63, [1]]
NO_HEADERS: list[Any] = [
    5, "a", b"a", ["a"], [("a",)], [("a", b"b", b"c")], [(b"a", b"b")], [("a", "b")],
    [("a", 5)], [("a", [1])], {"a": "b"}, {b"a": b"b"}, [("\udcff", b"b")], [5],
]  # fmt: skip
NO_STARTS: list[Any] = [
    "soon", 5, None, (1, 0, 0), fastbk.DLSN("a", 0, 0), fastbk.DLSN(1, -1, 0),  # type: ignore[arg-type]
    fastbk.DLSN(2**70, 0, 0), NO_ZONE, b"earliest",
]  # fmt: skip
AnyCall = Callable[[Any], Any]


def wide() -> array[int]:
    return array("i", [1, 2, 3])


async def refused(call: AnyCall, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            made = call(value)
            if isinstance(made, Awaitable):
                await made
            elif isinstance(made, AsyncIterator):
                await anext(made)
            pytest.fail(f"{value!r} was taken")
        assert len(str(caught.value)) > 15


def refused_at_once(call: AnyCall, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError):
            made = call(value)
            if hasattr(made, "__iter__"):
                next(iter(made))
            pytest.fail(f"{value!r} was taken")


def of_ledger_writer(writer: Any) -> list[tuple[AnyCall, list[Any]]]:
    return [
        (lambda one: writer.append(one), NO_BYTES),
        (lambda one: writer.append_nowait(one), NO_BYTES),
        (lambda one: writer.append(one, timeout=5), NO_BYTES),
        (lambda one: writer.append_many([b"x", one]), NO_BYTES),
        (lambda one: writer.append_many(one), NO_LISTS),
    ]


def of_stream_writer(writer: Any) -> list[tuple[AnyCall, list[Any]]]:
    keys = [one for one in NO_BYTES if one is not None]
    ids = [one for one in NO_IDS if one is not None and one != 2**63]
    return [
        (lambda one: writer.append(one), NO_BYTES),
        (lambda one: writer.append_nowait(one), NO_BYTES),
        (lambda one: writer.append_batch([b"x", one]), NO_BYTES),
        (lambda one: writer.append_batch(one), NO_LISTS),
        (lambda one: writer.append_batch_nowait([b"x", one]), NO_BYTES),
        (lambda one: writer.append_many(one), NO_LISTS),
        (lambda one: writer.append_many([one]), NO_BYTES),
        (lambda one: writer.append(b"x", key=one), keys),
        (lambda one: writer.append_batch([b"x"], keys=[one]), keys),
        (lambda one: writer.append(b"x", headers=one), NO_HEADERS),
        (lambda one: writer.append_batch([b"x"], headers=[one]), NO_HEADERS),
        (lambda one: writer.append(b"x", txid=one), [one for one in ids if one != -1]),
    ]


def of_ledgers(client: Any, reader: Any) -> list[tuple[AnyCall, list[Any]]]:
    return [
        (lambda one: client.open_ledger(one), NO_IDS),
        (lambda one: client.ledger_info(one), NO_IDS),
        (lambda one: client.is_closed(one), NO_IDS),
        (lambda one: client.delete_ledger(one), NO_IDS),
        (lambda one: client.create_ledger(ledger_id=one), [x for x in NO_IDS if x is not None]),
        (lambda one: reader.read(one), NO_IDS),
        (lambda one: reader.read(0, one), [x for x in NO_IDS if x is not None]),
        (lambda one: reader.tail(one), NO_IDS),
        (lambda one: reader.read_unconfirmed(0, one), NO_IDS),
        (lambda one: client.namespace(one), [5, None, b"a", "a//b"]),
        (lambda one: client.namespace("shop").stream(one), [5, None, b"a", "a/b", ""]),
        (lambda one: client.namespace("shop").create_stream(one), [5, None, b"a", ""]),
    ]


def of_stream(stream: Any) -> list[tuple[AnyCall, list[Any]]]:
    return [
        (lambda one: stream.get(one), [*NO_STARTS, "earliest"]),
        (lambda one: stream.truncate(one), NO_STARTS),
        (lambda one: stream.find(time=one), [1.5, "2026-01-01", NO_ZONE]),
        (lambda one: stream.find(seq=one), [1.5, "1", -1, 2**64]),
        (lambda one: stream.find(txid=one), [1.5, "1", 2**64]),
        (lambda one: stream.set_policy(one), [{"compression": "lz4"}, 5, "lz4"]),
        (
            lambda one: stream.set_policy(fastbk.PolicyPatch(roll_age_s=one)),
            ["1", True, -1, float("nan"), float("inf")],
        ),
        (lambda one: stream.set_policy(fastbk.PolicyPatch(ensemble=one)), ["3", True, 1.5, 0, 2**70]),
        (lambda one: stream.writer(first_segment_timeout=one), [float("nan"), -1, float("inf"), "1"]),
        (lambda one: stream.writer(linger=one), [float("nan"), -1, "1"]),
        (lambda one: stream.cursor(one), [5, None, b"a", "", "\udcff"]),
        (lambda one: stream.cursor("a", flush_interval=one), [float("nan"), "1", 0, True]),
    ]  # fmt: skip


async def test_the_asyncio_client_refuses_them() -> None:
    async with fake_cluster() as (client, _, _):
        async with await client.create_ledger() as writer:
            await writer.append(wide())  # type: ignore[arg-type]
            for call, values in of_ledger_writer(writer):
                await refused(call, values)
        reader = await client.open_ledger(writer.ledger_id)
        (entry,) = [one async for one in reader.read()]
        assert bytes(entry.data) == wide().tobytes()
        for call, values in of_ledgers(client, reader):
            await refused(call, values)
        assert isinstance(client, StreamClient)
        await client.namespace("shop").create()
        stream = await client.namespace("shop").create_stream("orders")
        async with stream.writer() as appender:
            await appender.append(wide(), key=memoryview(b"k"), headers={"a": wide()})  # type: ignore[arg-type]
            for call, values in of_stream_writer(appender):
                await refused(call, values)
            await appender.append(b"last")
        for call, values in of_stream(stream):
            await refused(call, values)
        async with stream.reader(tail=False) as records:
            first, last = [one async for one in records]
        assert (bytes(first.payload), first.key) == (wide().tobytes(), b"k")
        assert first.headers == (("a", wide().tobytes()),)
        assert bytes(last.payload) == b"last"
        for start in NO_STARTS:
            with pytest.raises(ConfigError):
                stream.reader(start)
            with pytest.raises(ConfigError):
                stream.cursor("c", start)
            with pytest.raises(ConfigError):
                if start is not None:
                    stream.reader(end=start)
                else:
                    raise ConfigError("no end at all")


def test_the_client_without_await_refuses_them_in_the_callers_thread() -> None:
    with sync_cluster() as (client, _, _):
        with client.create_ledger() as writer:
            for call, values in of_ledger_writer(writer):
                refused_at_once(call, values)
            data = bytearray(b"one")
            pending = writer.append_nowait(data)
            data[:] = b"two"
            pending.result()
        reader = client.open_ledger(writer.ledger_id)
        assert [bytes(one.data) for one in reader.read()] == [b"one"]
        for call, values in of_ledgers(client, reader):
            refused_at_once(call, values)
        client.namespace("shop").create()
        stream = client.namespace("shop").create_stream("orders")
        with stream.writer() as appender:
            key = bytearray(b"key")
            kept = appender.append_nowait(b"x", key=key, headers={"a": wide()})  # type: ignore[arg-type]
            key[:] = b"yek"
            for call, values in of_stream_writer(appender):
                refused_at_once(call, values)
            kept.result(10.0)
        for call, values in of_stream(stream):
            refused_at_once(call, values)
        (record,) = stream.reader(tail=False)
        assert record.key == b"key" and record.headers == (("a", wide().tobytes()),)
        for start in NO_STARTS:
            with pytest.raises(ConfigError):
                stream.reader(start).open()
            with pytest.raises(ConfigError):
                stream.cursor("c", start).open()


async def test_ids_of_entries_that_callers_choose() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger(explicit_ids=True)
        await refused(lambda one: writer.append(b"x", entry_id=one), NO_IDS)
        await writer.append(b"x", entry_id=0)
        await writer.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: fastbk.AtSeq(-1), lambda: fastbk.AtSeq(2**64), lambda: fastbk.AtSeq("1"),  # type: ignore[arg-type]
        lambda: fastbk.AtSeq(True), lambda: fastbk.AtTxid(1.5), lambda: fastbk.AtTxid(2**63),  # type: ignore[arg-type]
        lambda: fastbk.AtTime("2026-01-01"), lambda: fastbk.AtTime(5),  # type: ignore[arg-type]
        lambda: fastbk.AtTime(NO_ZONE),
    ],
)  # fmt: skip
def test_positions_that_cannot_be_are_refused_where_they_are_made(make: AnyCall) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[call-arg]


def test_a_wrong_type_is_a_type_error_and_an_error_of_fastbk() -> None:
    with pytest.raises(WrongType, match=r"data must be bytes .*, not str; write text.encode\(\)"):
        owned_bytes("text")
    assert issubclass(WrongType, TypeError) and issubclass(WrongType, Error)


def test_headers_are_written_so_that_they_can_be_read() -> None:
    """`len` of such a value counts its items."""
    for value in (wide(), memoryview(wide()), memoryview(b"abcd").cast("I"), bytearray(b"x"), b""):
        assert get_headers(put_headers([("a", value)])) == (("a", memoryview(value).tobytes()),)  # type: ignore[list-item]


# `timeout=` of every public call is checked before anything else: seconds from 0 on, or None for
# the default.


SECONDS = "must be a number of seconds from 0 to 1e9, or None"
WRONG = ["1", True, -1, float("nan"), float("inf"), [1]]
GIVEN: dict[str, dict[str, object]] = {
    "append": {"data": b"x"},
    "append_many": {"datas": [b"x"]},
    "read": {"first": 0, "last": 0},
    "read_unconfirmed": {"first": 0, "last": 0},
    "append_batch": {"payloads": [b"x"]},
    "read_chunks": {"max_records": 1, "max_bytes": 1},
}
"""What calls need besides the timeout, by their names; streams take a payload where ledgers take data."""


def arguments_of(call: Callable[..., Any]) -> dict[str, object]:
    wanted = inspect.signature(call).parameters
    given = GIVEN.get(call.__name__, {})
    found = {name: value for name, value in given.items() if name in wanted}
    if "payload" in wanted:
        found["payload"] = b"x"
    if "payloads" in wanted:
        found["payloads"] = [b"x"]
    return found


def calls_of(one: object) -> list[Callable[..., Any]]:
    """Return the public methods with a timeout; `close` last, since nothing goes after it."""
    found = []
    for name in sorted(dir(type(one)), key=lambda name: (name == "close", name)):
        method = getattr(type(one), name)
        if name.startswith("_") or not callable(method):
            continue
        if "timeout" in inspect.signature(method).parameters:
            found.append(getattr(one, name))
    assert found
    return found


async def timeouts_refused(one: object) -> None:
    for call in calls_of(one):
        for wrong in WRONG:
            with pytest.raises(ConfigError, match=f"timeout=.*: {SECONDS}"):
                made = call(**arguments_of(call), timeout=wrong)
                if isinstance(made, AsyncIterator):
                    await anext(made)
                elif isinstance(made, Awaitable):
                    await made
                pytest.fail(f"{call} takes timeout={wrong!r}")


def timeouts_refused_at_once(one: object) -> None:
    for call in calls_of(one):
        for wrong in WRONG:
            with pytest.raises(ConfigError, match=f"timeout=.*: {SECONDS}"):
                made = call(**arguments_of(call), timeout=wrong)
                if isinstance(made, Iterator):
                    next(made)
                pytest.fail(f"{call} takes timeout={wrong!r}")


async def test_timeouts_of_the_asyncio_client_are_checked() -> None:
    async with fake_cluster() as (client, _, _):
        writer = await client.create_ledger()
        await writer.append(b"x", timeout=10)
        await timeouts_refused(writer)
        await writer.close()
        await timeouts_refused(await client.open_ledger(writer.ledger_id))
        namespace = client.namespace("shop")
        await namespace.create()
        stream = await namespace.create_stream("orders")
        async with stream.writer() as appender:
            await appender.append(b"x", timeout=10)
            await timeouts_refused(appender)
        async with stream.reader("earliest") as reader:
            await timeouts_refused(reader)
            chunk = await reader.read(timeout=0)
            assert chunk is None or len(chunk)
        async with stream.cursor("billing") as cursor:
            await timeouts_refused(cursor)
        await timeouts_refused(client)
        await client.list_bookies()  # it is not closed


def test_timeouts_of_the_blocking_client_are_checked() -> None:
    with sync_cluster() as (client, _, _):
        writer = client.create_ledger()
        writer.append(b"x", timeout=10)
        timeouts_refused_at_once(writer)
        pending = writer.append_nowait(b"x")
        timeouts_refused_at_once(pending)
        pending.result(10)
        writer.close()
        reader = client.open_ledger(writer.ledger_id)
        timeouts_refused_at_once(reader)
        namespace = client.namespace("shop")
        namespace.create()
        stream = namespace.create_stream("orders")
        with stream.writer() as appender:
            timeouts_refused_at_once(appender)
            told = appender.append_nowait(b"x")
            timeouts_refused_at_once(told)
            told.result(10)
        with stream.reader("earliest") as records:
            timeouts_refused_at_once(records)
        with stream.cursor("billing") as cursor:
            timeouts_refused_at_once(cursor)
        kinds = [type(one) for one in (writer, pending, reader, appender, records, cursor)]
        assert kinds == [
            BlockingLedgerWriter,
            Pending,
            BlockingLedgerReader,
            SyncStreamWriter,
            SyncStreamReader,
            SyncCursor,
        ]
        timeouts_refused_at_once(client)
        client.list_bookies()  # it is not closed


@pytest.mark.parametrize("connect", [fastbk.connect, fastbk.sync.connect])
@pytest.mark.parametrize("wrong", [7, b"memory:x", Path("/metadata"), object()])
def test_a_client_of_anything_but_a_uri_or_a_store_is_refused(
    connect: Callable[..., object], wrong: object
) -> None:
    said = r"the cluster .*: must be a metadata URI such as .* or a MetadataStore, not \w+"
    with pytest.raises(ConfigError, match=said):
        connect(wrong)
