"""What no value of its kind is is refused at the call, with and without `await`, by one error; nothing is stored."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest

import fastbk
import fastbk.sync
from fastbk.errors import ConfigError, Error, WrongType
from fastbk.option_checks import owned_bytes
from fastbk.stream.client import Client as StreamClient
from fastbk.stream.records import get_headers, put_headers
from tests.fixtures.sync_cluster import sync_cluster
from tests.unit.client.fake_cluster import fake_cluster

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
Call = Callable[[Any], Any]


def wide() -> array[int]:
    return array("i", [1, 2, 3])


async def refused(call: Call, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            made = call(value)
            if isinstance(made, Awaitable):
                await made
            elif isinstance(made, AsyncIterator):
                await anext(made)
            pytest.fail(f"{value!r} was taken")
        assert len(str(caught.value)) > 15


def refused_at_once(call: Call, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError):
            made = call(value)
            if hasattr(made, "__iter__"):
                next(iter(made))
            pytest.fail(f"{value!r} was taken")


def of_ledger_writer(writer: Any) -> list[tuple[Call, list[Any]]]:
    return [
        (lambda one: writer.append(one), NO_BYTES),
        (lambda one: writer.append_nowait(one), NO_BYTES),
        (lambda one: writer.append(one, timeout=5), NO_BYTES),
        (lambda one: writer.append_many([b"x", one]), NO_BYTES),
        (lambda one: writer.append_many(one), NO_LISTS),
    ]


def of_stream_writer(writer: Any) -> list[tuple[Call, list[Any]]]:
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


def of_ledgers(client: Any, reader: Any) -> list[tuple[Call, list[Any]]]:
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


def of_stream(stream: Any) -> list[tuple[Call, list[Any]]]:
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
def test_positions_that_cannot_be_are_refused_where_they_are_made(make: Call) -> None:
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
