"""Options of clients, writers, readers and cursors: names and types are checked, and errors say what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import fastbk
import fastbk.sync
from fastbk.client.config import ClientConfig, ClientOptions
from fastbk.errors import ConfigError
from fastbk.stream.options import StreamWriterOptions, WriterOptions
from fastbk.stream.stream import Stream
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import context_of

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
