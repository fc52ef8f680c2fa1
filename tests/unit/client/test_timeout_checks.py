"""`timeout=` of every public call is checked before anything else: seconds from 0 on, or None for the default."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fastbk
import fastbk.sync
from fastbk.client.sync import LedgerReader as BlockingLedgerReader
from fastbk.client.sync import LedgerWriter as BlockingLedgerWriter
from fastbk.client.sync import Pending
from fastbk.errors import ConfigError
from fastbk.stream.cursor.sync_cursor import SyncCursor
from fastbk.stream.reader.sync_reader import SyncStreamReader
from fastbk.stream.sync import SyncStreamWriter
from tests.fixtures.sync_cluster import sync_cluster
from tests.unit.client.fake_cluster import fake_cluster

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


async def refused(one: object) -> None:
    for call in calls_of(one):
        for wrong in WRONG:
            with pytest.raises(ConfigError, match=f"timeout=.*: {SECONDS}"):
                made = call(**arguments_of(call), timeout=wrong)
                if isinstance(made, AsyncIterator):
                    await anext(made)
                elif isinstance(made, Awaitable):
                    await made
                pytest.fail(f"{call} takes timeout={wrong!r}")


def refused_at_once(one: object) -> None:
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
        await refused(writer)
        await writer.close()
        await refused(await client.open_ledger(writer.ledger_id))
        namespace = client.namespace("shop")
        await namespace.create()
        stream = await namespace.create_stream("orders")
        async with stream.writer() as appender:
            await appender.append(b"x", timeout=10)
            await refused(appender)
        async with stream.reader("earliest") as reader:
            await refused(reader)
            chunk = await reader.read(timeout=0)
            assert chunk is None or len(chunk)
        async with stream.cursor("billing") as cursor:
            await refused(cursor)
        await refused(client)
        await client.list_bookies()  # it is not closed


def test_timeouts_of_the_blocking_client_are_checked() -> None:
    with sync_cluster() as (client, _, _):
        writer = client.create_ledger()
        writer.append(b"x", timeout=10)
        refused_at_once(writer)
        pending = writer.append_nowait(b"x")
        refused_at_once(pending)
        pending.result(10)
        writer.close()
        reader = client.open_ledger(writer.ledger_id)
        refused_at_once(reader)
        namespace = client.namespace("shop")
        namespace.create()
        stream = namespace.create_stream("orders")
        with stream.writer() as appender:
            refused_at_once(appender)
            told = appender.append_nowait(b"x")
            refused_at_once(told)
            told.result(10)
        with stream.reader("earliest") as records:
            refused_at_once(records)
        with stream.cursor("billing") as cursor:
            refused_at_once(cursor)
        kinds = [type(one) for one in (writer, pending, reader, appender, records, cursor)]
        assert kinds == [
            BlockingLedgerWriter,
            Pending,
            BlockingLedgerReader,
            SyncStreamWriter,
            SyncStreamReader,
            SyncCursor,
        ]
        refused_at_once(client)
        client.list_bookies()  # it is not closed


@pytest.mark.parametrize("connect", [fastbk.connect, fastbk.sync.connect])
@pytest.mark.parametrize("wrong", [7, b"memory:x", Path("/metadata"), object()])
def test_a_client_of_anything_but_a_uri_or_a_store_is_refused(
    connect: Callable[..., object], wrong: object
) -> None:
    said = r"the cluster .*: must be a metadata URI such as .* or a MetadataStore, not \w+"
    with pytest.raises(ConfigError, match=said):
        connect(wrong)
