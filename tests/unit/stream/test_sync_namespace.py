"""Namespaces and streams without `await`, on metadata in a file: all of asyncio's names, with the same meaning."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.errors import ClientClosed, ConfigError, StreamExists, StreamNotFound
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.sync_cursor import SyncCursor, SyncPatternCursor, SyncPatternReader
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.pattern.cursor import PatternCursor
from fastbk.stream.pattern.reader import PatternReader
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.producer.producer import Producer
from fastbk.stream.producer.sync_producer import SyncProducer
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.reader.sync_reader import SyncStreamReader
from fastbk.stream.stream import Stream
from fastbk.stream.sync import SyncNamespace, SyncStream, SyncStreamWriter
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fork import exit_code_of_fork
from tests.fixtures.metadata import new_cluster


@pytest.fixture
def client(tmp_path: Path) -> Iterator[fastbk.sync.Client]:
    with fastbk.sync.connect(new_cluster(tmp_path / "metadata.sqlite")) as made:
        yield made


def public(kind: type) -> dict[str, object]:
    found = {name: one for base in reversed(kind.__mro__) for name, one in vars(base).items()}
    return {name: one for name, one in found.items() if not name.startswith("_")}


@pytest.mark.parametrize(
    ("ours", "theirs", "without"),
    [
        (SyncNamespace, Namespace, {"client"}),
        (SyncStream, Stream, {"context"}),
        (SyncStreamWriter, StreamWriter, {"failure"}),
        (SyncProducer, Producer, {"failure"}),
        # What a blocking read_chunks asks for between two turns to the loop.
        (SyncStreamReader, StreamReader, {"at_hand"}),
        # What the reader's figures leave out, on the loop.
        (SyncCursor, Cursor, {"name", "records_at_hand"}),
        (SyncPatternReader, PatternReader, set()),
        (SyncPatternCursor, PatternCursor, {"name"}),
    ],
)
def test_every_name_of_asyncios_is_there_with_its_arguments(
    ours: type, theirs: type, without: set[str]
) -> None:
    mine = public(ours)
    for name, one in public(theirs).items():
        if name in without or (name == "name" and ours is SyncStream):
            continue
        assert name in mine, f"{ours.__name__} has no {name}"
        if callable(one):
            wanted = list(inspect.signature(one).parameters)
            there = inspect.signature(mine[name]).parameters  # type: ignore[arg-type]
            assert [arg for arg in wanted if arg not in there] == [], name


def test_a_tree_is_made_looked_at_changed_and_deleted(client: fastbk.sync.Client) -> None:
    shop = client.namespace("shop")
    assert not shop.exists()
    with pytest.raises(StreamNotFound):
        list(shop.streams())
    eu = shop.namespace("eu")
    eu.create(PolicyPatch(compression="lz4"))
    with pytest.raises(StreamExists):
        eu.create()
    shop.set_policy(PolicyPatch(roll_age_s=60.0))
    orders = eu.create_stream("orders", PolicyPatch(roll_bytes=1000))
    assert (orders.name, orders.path, orders.exists()) == ("orders", "shop/eu/orders", True)
    orders.set_policy(PolicyPatch(roll_bytes=2000))
    policy = eu.effective_policy("orders")
    assert (policy.compression, policy.roll_age_s, policy.roll_bytes) == ("lz4", 60.0, 2000)
    assert orders.effective_policy() == policy
    assert orders.policy() == PolicyPatch(roll_bytes=2000)
    assert len(eu.create_streams([f"s{at:03}" for at in range(300)])) == 300
    names = [info.name for info in shop.streams(recursive=True)]
    assert names == ["orders", *(f"s{at:03}" for at in range(300))]
    assert shop.stream_count() == 301
    assert eu.rename_stream("orders", "sales").info().name == "sales"
    eu.delete_streams(["s000", "s001"])
    us = eu.rename("us")
    assert [one.path for one in shop.namespaces()] == [us.path] == ["shop/us"]
    us.delete_stream("sales")
    us.delete_stream("sales", missing_ok=True)
    shop.delete(recursive=True)
    assert not shop.exists()


def test_a_watch_tells_what_happens_until_it_is_closed(client: fastbk.sync.Client) -> None:
    one = client.namespace("one")
    one.create()
    one.create_stream("a")
    events = one.watch()
    assert (next(events).kind, client.namespace("one").stream("a").exists()) == ("present", True)
    threading.Timer(0.05, lambda: one.create_stream("b")).start()
    told = next(events)
    assert (told.kind, told.name) == ("created", "b")
    events.close()  # type: ignore[attr-defined]
    assert list(next(one.watch()).kind) == list("present")


def test_wrong_names_are_refused_without_io(client: fastbk.sync.Client) -> None:
    with pytest.raises(ConfigError):
        client.namespace("a//b")
    with pytest.raises(ConfigError):
        client.namespace("a").stream("b/c")


def test_a_closed_or_forked_client_is_refused(client: fastbk.sync.Client) -> None:
    one = client.namespace("one")
    one.create()

    def child() -> int:
        try:
            one.exists()
        except ClientClosed:
            return 0
        return 1

    assert exit_code_of_fork(child) == 0
    assert one.exists()
    client.close()
    with pytest.raises(ClientClosed):
        one.exists()
    with pytest.raises(ClientClosed):
        client.namespace("one")
