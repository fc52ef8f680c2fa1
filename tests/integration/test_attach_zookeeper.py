"""What a sink commits, on a real ZooKeeper: as many ledgers at once as may be, and a session that ends at any step.

Ledgers are in memory: it is the metadata that is looked at. INV-S13.
"""

from __future__ import annotations

import json
import re
import socket
from array import array
from collections.abc import Callable
from typing import TypeVar

import pytest

pytest.importorskip("pyspark")

from fastbk.client.config import ClientConfig
from fastbk.client.metadata_calls import MetadataCalls, RecordCalls
from fastbk.meta import MetadataStore
from fastbk.meta.records import Change
from fastbk.native.stream_codec import encode
from fastbk.spark.sink import TaskAttempt
from fastbk.stream.context import StreamContext
from fastbk.stream.drafts import ATTACHED_MAX, DRAFT_KEY_CHARACTERS_MAX, Draft, begin, drafts_of
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from tests.fixtures.fake_ledgers import Cluster, FakeClient
from tests.fixtures.sink_harness import SinkHarness
from tests.fixtures.streams import as_client
from tests.fixtures.zookeeper import ZooKeeperPlace

T = TypeVar("T")
KEY = "spark/".ljust(DRAFT_KEY_CHARACTERS_MAX - 2, "k")
"""The longest there may be, as it stands in the names of drafts: the slash takes three characters."""
AT_ONCE = 256


async def drafts_made(
    context: StreamContext, cluster: Cluster, client: FakeClient, count: int
) -> list[Draft]:
    """Make a draft of one ledger each for so many tasks, as `begin` does for one, and their ledgers."""
    first = await begin(context, KEY, 0, "0.0")
    assert first is not None
    changes: list[Change] = []
    for at in range(count):
        ledger = await cluster.client().create_ledger()
        payloads = [b"%d" % at]
        await ledger.append(encode(0, 0, 1000 + at, payloads, array("q", [1]), None, None))
        await ledger.close()
        state = {"made_us": first.made_us, "ledgers": [ledger.ledger_id], "given_up": False}
        number, _, token, key = first.name.split("~", 3)
        name = f"{number}~{at:04d}.0~{at:012x}~{key}"
        assert len(token) == 12
        changes.append(
            Change(f"{first.path.rpartition('/')[0]}/{name}", json.dumps(state).encode())
        )
    changes.append(Change(first.path, None, first.version))
    for at in range(0, len(changes), AT_ONCE):
        await client.records.change(*changes[at : at + AT_ONCE])
    return sorted(await drafts_of(as_client(client), context.stream_id), key=lambda one: one.label)


@pytest.mark.timeout(180)
async def test_as_many_ledgers_as_may_be_are_attached_by_one_change(
    zookeeper: ZooKeeperPlace,
) -> None:
    cluster = Cluster()
    client = cluster.client()
    calls = MetadataCalls(zookeeper.uri(), ClientConfig())
    client.records = RecordCalls(calls)  # type: ignore[assignment]
    try:
        space = Namespace(Catalog(as_client(client)), "shop")
        await space.create()
        context = await (await space.create_stream("orders")).context()
        stream = space.stream("orders")
        drafts = await drafts_made(context, cluster, client, ATTACHED_MAX)
        assert len(drafts) == ATTACHED_MAX
        for _ in range(2):
            await stream.attach_drafts(drafts, 0)
            info = await stream.info()
            assert (info.segments, info.records) == (ATTACHED_MAX, ATTACHED_MAX)
        assert await stream.drafts() == []
        assert [one.ledger_id for one in await stream.segments()] == [
            one.ledgers[0] for one in drafts
        ]
    finally:
        await calls.close(5.0)


def received(place: ZooKeeperPlace) -> int:
    """Return how many packets the server has got so far."""
    host, _, port = place.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"srvr")
        connection.shutdown(socket.SHUT_WR)
        told = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    found = re.search(r"^Received: (\d+)$", told, re.MULTILINE)
    assert found is not None, told
    return int(found[1])


def test_a_change_of_many_records_asks_for_each_once(
    zookeeper: ZooKeeperPlace, near: MetadataStore
) -> None:
    """One after the other they took longer than a call may where an answer takes some milliseconds."""
    changes = [Change(f"folder/{at:03d}", b"x") for at in range(300)]
    versions = near.records.change(changes)
    before = received(zookeeper)
    pairs = zip(changes, versions, strict=True)
    near.records.change([Change(one.path, None, version) for one, version in pairs])
    # Once for all of them, and the transaction; the rest is what sessions of others say meanwhile.
    assert received(zookeeper) - before < 400
    assert near.records.children("folder") == []


class Expiring(MetadataCalls):
    """A store whose session ends just before its n-th call, or when that has taken effect."""

    def __init__(self, place: ZooKeeperPlace, uri: str, number: int, *, is_after: bool) -> None:
        super().__init__(uri, ClientConfig())
        self.left = number
        self._place = place
        self._is_after = is_after

    async def call(self, call: Callable[[MetadataStore], T], timeout_s: float | None = None) -> T:
        number, self.left = self.left, self.left - 1
        if number == 0 and not self._is_after:
            await super().call(self._place.expire)
        result = await super().call(call, timeout_s)
        if number == 0 and self._is_after:
            await super().call(self._place.expire)
        return result


@pytest.mark.parametrize("is_after", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.timeout(180)
def test_a_session_that_ends_at_any_step_of_a_commit_takes_nothing_and_doubles_nothing(
    zookeeper: ZooKeeperPlace, is_after: bool
) -> None:
    number = 0
    while True:
        uri = zookeeper.uri(f"/at-{number}-{is_after}")
        world = SinkHarness(MetadataCalls(uri, ClientConfig()))
        try:
            told = [world.write(TaskAttempt("spark/q", 0, at, 0), b"%d" % at) for at in range(3)]
            world.write(TaskAttempt("spark/q", 0, 1, 1), b"a speculative attempt that lost")
            calls = Expiring(zookeeper, uri, number, is_after=is_after)
            world.driver(world.client(calls)).commit(told, 0)
            assert world.values() == [b"0", b"1", b"2"], number
            assert world.left() == ([], set()), number
            # What is told again, by a driver that comes after it, is there already.
            world.driver().commit(told, 0)
            assert world.values() == [b"0", b"1", b"2"], number
        finally:
            world.close()
        if calls.left >= 0:
            break
        number += 1
    assert number > 8
