"""Which service has a stream: found, taken over, lost and handed over; with owners and other services of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

import fastbk
from fastbk.errors import Error, MetadataUnavailable, StreamNotFound
from fastbk.producers.directory import Directory
from fastbk.producers.owner import OwnerEnded
from fastbk.producers.streams import Moved, NotReady, Owned, Streams, StreamsOptions
from fastbk.producers.table import Frame
from fastbk.stream.client import Client
from fastbk.stream.context import StreamContext
from fastbk.stream.positions import DLSN
from fastbk.stream.provenance import Row
from fastbk.stream.services import LEASE_S, OwnerService, ServiceRecord, owner_name
from tests.fixtures.wait import wait_until_async

PATH = "shop/orders"


class FakeOwner:
    """An owner that only ends."""

    pending_bytes = names = 0

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.failure: Error | None = None
        self.callbacks: list[Callable[[], None]] = []
        self.events = events

    def fail(self, error: Error) -> None:
        self.failure = error
        for callback in self.callbacks:
            callback()

    def on_end(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def last_number(self, name: bytes, incarnation: int) -> int:
        raise NotImplementedError

    def open(self, name: bytes) -> asyncio.Future[Row]:
        raise NotImplementedError

    def produce(self, frame: Frame, body: bytes | memoryview) -> asyncio.Future[DLSN | None]:
        raise NotImplementedError

    def close(self, name: bytes, incarnation: int) -> None:
        raise NotImplementedError

    async def release(self) -> None:
        self.events.append("release")
        self.fail(OwnerEnded("released"))

    def abandon(self) -> None:
        self.events.append("abandon")
        self.fail(OwnerEnded("abandoned"))


@dataclass
class FakePeers:
    """Other services: what they answer, and what they were asked to take."""

    answers: dict[str, bool | None] = field(default_factory=dict)
    refusing: set[str] = field(default_factory=set)
    events: list[str] = field(default_factory=list)

    async def is_there(self, service: OwnerService, timeout_s: float) -> bool | None:
        return self.answers.get(service.service_id, False)

    async def have_taken(
        self, address: str, service_id: str, stream: str, timeout_s: float
    ) -> None:
        self.events.append(f"{service_id} takes {stream}")
        if service_id in self.refusing:
            raise Error("not now")


class World:
    """One service, "me", and its cluster's metadata in memory."""

    def __init__(self, client: Client, options: StreamsOptions | None = None) -> None:
        self.client = client
        self.now_s = 0.0
        self.peers = FakePeers()
        self.owners: list[FakeOwner] = []
        self.gate: asyncio.Event | None = None
        self.directory = self.directory_of("me")
        self.streams = Streams(
            client, self.directory, self.peers, self.take_over, options, lambda: self.now_s
        )

    def directory_of(self, name: str) -> Directory:
        record = ServiceRecord(service_id=name, address=f"{name}:1", beat=0, started_ms=1)
        return Directory(self.client.records, record, lambda: self.now_s)

    async def take_over(self, context: StreamContext, name: str) -> FakeOwner:
        if self.gate is not None:
            await self.gate.wait()
        await set_owner(context, name)
        owner = FakeOwner(name, self.peers.events)
        self.owners.append(owner)
        return owner

    async def find(self, path: str = PATH) -> Owned:
        return await self.streams.find(path, 10.0)


async def begin(world: World) -> None:
    await world.client.namespace("shop").create()
    await world.client.namespace("shop").create_stream("orders")
    await world.directory.begin()


async def set_owner(context: StreamContext, name: str) -> None:
    await context.store.change(lambda chain: replace(chain, owner=name))


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    """Metadata in memory has nothing that would have to be closed."""
    return World(fastbk.connect(f"memory:{request.node.nodeid}"))


async def context_of(world: World) -> StreamContext:
    return await world.client.namespace("shop").stream("orders").context()


async def another(world: World, name: str = "other") -> Directory:
    """Have another service announced, and own the stream."""
    other = world.directory_of(name)
    await other.begin()
    await world.directory.step()
    await set_owner(await context_of(world), owner_name(name, f"{name}:1"))
    return other


async def test_a_stream_that_nobody_has_is_taken_over_once(world: World) -> None:
    """INV-S40."""
    await begin(world)
    world.gate = asyncio.Event()
    finds = [asyncio.ensure_future(world.find(path)) for path in (PATH, f"/{PATH}", PATH)]
    await asyncio.sleep(0)
    world.gate.set()
    owned = await asyncio.gather(*finds)
    assert len(world.owners) == 1 and owned[0] is owned[1] is owned[2]
    assert await world.find() is owned[0]
    assert (world.streams.takeovers, len(world.streams.owned)) == (1, 1)
    assert world.owners[0].name.startswith("service:me@me:1~")


async def test_a_stream_of_a_service_that_answers_is_its_own(world: World) -> None:
    await begin(world)
    await another(world)
    world.peers.answers["other"] = True
    with pytest.raises(Moved) as moved:
        await world.find()
    assert moved.value.address == "other:1"
    assert not world.owners


@pytest.mark.parametrize(
    "owner",
    ["janitor xyz", owner_name("me", "me:1"), owner_name("x", "x:1")],
    ids=["janitor", "me", "gone"],  # each name of an owner is drawn
)
async def test_a_stream_of_nobody_who_lives_is_taken_over(world: World, owner: str) -> None:
    """A janitor's, a former life's, or one of a service whose port refuses connections."""
    await begin(world)
    await set_owner(await context_of(world), owner)
    await world.find()
    assert len(world.owners) == 1


async def test_a_stream_of_a_silent_service_is_its_own_as_long_as_it_beats(world: World) -> None:
    await begin(world)
    other = await another(world)
    world.peers.answers["other"] = None
    find = asyncio.ensure_future(world.find())
    while not find.done():
        world.now_s += 0.5
        await other.step()
        await world.directory.step()
        await asyncio.sleep(0.05)
    with pytest.raises(Moved):
        await find


async def test_a_stream_of_a_frozen_service_is_taken_over(world: World) -> None:
    await begin(world)
    await another(world)
    world.peers.answers["other"] = None
    began_s = world.now_s
    find = asyncio.ensure_future(world.find())
    while not find.done():
        world.now_s += 0.5
        await world.directory.step()
        await asyncio.sleep(0.05)
    await find
    assert world.now_s - began_s >= LEASE_S


async def test_nobody_waits_for_longer_than_asked_for(world: World) -> None:
    await begin(world)
    await another(world)
    world.peers.answers["other"] = None
    with pytest.raises(NotReady, match=r"taken over|does not answer"):
        await world.streams.find(PATH, 0.2)
    world.streams.abandon()


async def test_an_owner_that_failed_is_taken_over_again(world: World) -> None:
    await begin(world)
    owned = await world.find()
    ends: list[object] = []
    owned.on_end.append(lambda: ends.append(owned.end))
    world.owners[0].fail(Error("fenced"))
    assert isinstance(ends[0], NotReady) and "fenced" in str(ends[0])
    assert (world.streams.lost, len(world.streams.owned)) == (1, 0)
    again = await world.find()
    assert again is not owned and again.end is None
    world.owners[0].fail(Error("again"))  # an owner ends once
    assert again.end is None


async def test_a_stream_that_is_not_there_is_told_so(world: World) -> None:
    await begin(world)
    with pytest.raises(StreamNotFound):
        await world.find("shop/none")


async def test_there_are_no_more_streams_than_the_bound(world: World) -> None:
    await begin(world)
    world.streams = Streams(
        world.client, world.directory, world.peers, world.take_over, StreamsOptions(streams_max=1)
    )
    await world.client.namespace("shop").create_stream("more")
    await world.find()
    with pytest.raises(NotReady, match="streams_max"):
        await world.find("shop/more")


async def test_an_owned_stream_is_served_without_metadata(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(world)
    owned = await world.find()

    async def away(path: str) -> StreamContext:
        raise MetadataUnavailable("away")

    monkeypatch.setattr(world.streams, "_context", away)
    assert await world.find() is owned
    with pytest.raises(MetadataUnavailable):
        await world.find("shop/more")


async def test_a_stream_without_producers_is_released(world: World) -> None:
    await begin(world)
    owned = await world.find()
    owned.producers = 1
    world.now_s += 1000.0
    await world.streams.sweep()
    owned.producers = 0
    world.now_s += 599.0
    await world.streams.sweep()
    assert len(world.streams.owned) == 1
    world.now_s += 2.0
    await world.streams.sweep()
    assert isinstance(owned.end, NotReady)
    assert not world.streams.owned
    assert world.peers.events == ["release"]


async def test_who_comes_while_an_idle_stream_is_given_up_has_it_taken_over_again(
    world: World,
) -> None:
    await begin(world)
    owned = await world.find()
    world.now_s += 1000.0
    finds: list[asyncio.Future[Owned]] = []

    async def release() -> None:
        finds.append(asyncio.ensure_future(world.find()))
        await wait_until_async(lambda: owned.on_end, "it waits for the end")

    world.owners[0].release = release  # type: ignore[method-assign]
    await world.streams.sweep()
    again = await finds[0]
    assert again is not owned and again.end is None
    assert world.streams.owned == (again,)


# --- planned stops --------------------------------------------------------------------------------


async def test_a_stream_is_handed_to_the_first_service_that_takes_it(world: World) -> None:
    await begin(world)
    owned = await world.find()
    for name in ("a", "b", "c"):
        await world.directory_of(name).begin()
    await world.directory.end()
    order = [service.service_id for service in world.directory.others_for(PATH)]
    world.peers.refusing.add(order[0])
    owned.on_end.append(lambda: world.peers.events.append(f"told {owned.end}"))
    await world.streams.hand_over()
    assert world.peers.events == [
        "release",
        f"{order[0]} takes {PATH}",
        f"{order[1]} takes {PATH}",
        f"told {order[1]}:1",
    ]
    assert world.streams.handovers == 1
    with pytest.raises(Moved):
        await world.find()


async def test_who_comes_while_a_stream_is_handed_over_waits_for_its_end(world: World) -> None:
    """INV-S41."""
    await begin(world)
    owned = await world.find()
    await world.directory_of("a").begin()
    await world.directory.end()
    owned.is_moving = True
    find = asyncio.ensure_future(world.find())
    await wait_until_async(lambda: owned.on_end, "it waits for the end")
    assert not find.done()
    await world.streams.hand_over()
    with pytest.raises(Moved) as moved:
        await find
    assert moved.value.address == "a:1"


async def test_the_last_service_that_stops_says_so(world: World) -> None:
    await begin(world)
    owned = await world.find()
    await world.directory.end()
    await world.streams.hand_over()
    assert isinstance(owned.end, NotReady)
    with pytest.raises(NotReady, match="fastbk serve"):
        await world.find()


async def test_a_stream_that_is_abandoned_sends_its_producers_on(world: World) -> None:
    await begin(world)
    owned = await world.find()
    await world.directory_of("a").begin()
    await world.directory.step()
    world.streams.abandon()
    assert isinstance(owned.end, Moved) and owned.end.address == "a:1"
    assert (world.streams.owned, world.streams.lost) == ((), 0)
