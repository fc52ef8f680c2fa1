"""The port of a write service on a real socket: who is served, what is refused, and what bounds it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import pytest

from fastbk.client.connecting import open_connection
from fastbk.errors import (
    Error,
    NotEnoughBookies,
    ProducerExpired,
    ProducerFenced,
    QuotaExceeded,
    StreamNotFound,
    StreamSealed,
    Unauthorized,
)
from fastbk.native.client_codec import PRODUCE_REPLY, put_hello, put_info, put_ping
from fastbk.producers import service as service_module
from fastbk.producers.owner import OwnerEnded
from fastbk.producers.service import (
    ENTRY_BYTES_MAX,
    FRAME_TIMEOUT_S,
    HELLO_TIMEOUT_S,
    LINGER_S,
    Service,
    ServiceOptions,
    may_add,
    status_of,
)
from fastbk.producers.streams import Moved, NotReady, Owned, Streams
from fastbk.producers.table import Frame, NotNext
from fastbk.security.admission import Admission, Client, Refused
from fastbk.security.audit_log import AuditLog
from fastbk.security.credentials import TOKEN
from fastbk.security.rights import ALL_RIGHTS, ANYBODY, NOBODY, Principal, Right
from fastbk.security.settings import (
    AuditSettings,
    AuthenticationSettings,
    AuthorizationSettings,
    TlsSettings,
)
from fastbk.stream.positions import DLSN
from fastbk.stream.provenance import Row
from fastbk.wire.messages import MAGIC, Hello, decode_reply, encode_hello
from fastbk.wire.statuses import Status
from tests.fixtures.wait import wait_until_async
from tests.fixtures.write_services import HandProducer, refusal_of

PATH = "shop/orders"
MIB = 1024 * 1024


@dataclass
class FakeOwner:
    """An owner whose appends are answered when the test says so."""

    failure: Error | None = None
    pending_bytes: int = 0
    names: int = 0
    frames: list[Frame] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    futures: list[asyncio.Future[DLSN | None]] = field(default_factory=list)
    closed: list[bytes] = field(default_factory=list)
    is_quick: bool = True

    def on_end(self, callback: Callable[[], None]) -> None:
        raise NotImplementedError

    def last_number(self, name: bytes, incarnation: int) -> int:
        return 41

    def open(self, name: bytes) -> asyncio.Future[Row]:
        future: asyncio.Future[Row] = asyncio.get_running_loop().create_future()
        future.set_result(Row(name, 7, -1, 0))
        return future

    def produce(self, frame: Frame, body: bytes | memoryview) -> asyncio.Future[DLSN | None]:
        future: asyncio.Future[DLSN | None] = asyncio.get_running_loop().create_future()
        self.frames.append(frame)
        self.bodies.append(bytes(body))
        self.futures.append(future)
        if self.is_quick:
            future.set_result(DLSN(1, len(self.frames), 2))
        return future

    def close(self, name: bytes, incarnation: int) -> None:
        self.closed.append(name)

    async def release(self) -> None:
        raise NotImplementedError

    def abandon(self) -> None:
        raise NotImplementedError


class FakeStreams:
    """Streams that are all this service's, unless the test says otherwise."""

    def __init__(self) -> None:
        self.owner = FakeOwner()
        self.owned = Owned(PATH, "id", self.owner)
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def find(self, path: str, timeout_s: float) -> Owned:
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.owned


class FakeAdmission(Admission):
    """Knows each token's rights by its text: operations, a space, patterns of namespaces."""

    def __init__(self, *, is_open: bool) -> None:
        super().__init__(TlsSettings(), AuthenticationSettings(), AuthorizationSettings())
        self.is_open = is_open
        self.ended = ""

    def takes(self, method: str) -> bool:
        return method == TOKEN and not self.is_open

    def meet(self, client: Client, certificate: bytes | None) -> None:
        client.principal = ANYBODY if self.is_open else NOBODY
        client.refusal = "" if self.is_open else "show a token"

    def by_token(self, client: Client, token: bytes) -> None:
        operation, _, pattern = token.decode().partition(" ")
        if operation not in ("add", "read"):
            raise Refused("no such token")
        rights = Right.ENTER | (Right.ADD if operation == "add" else Right.READ)
        client.principal = Principal(name="token:a", rights=rights, namespaces=(pattern,))

    def why_ended(self, client: Client, now_s: float) -> str:
        return self.ended


class World:
    """One service on a port of this machine."""

    def __init__(self, options: ServiceOptions, *, is_open: bool) -> None:
        self.streams = FakeStreams()
        self.admission = FakeAdmission(is_open=is_open)
        self.now_s = 0.0
        audit = AuditLog(AuditSettings())
        self.notes: list[str] = []
        audit.note = lambda event, **values: self.notes.append(event)  # type: ignore[method-assign, assignment]
        streams = cast("Streams", self.streams)
        self.service = Service(
            "me",
            streams,
            self.admission,
            audit,
            options,
            lambda: self.now_s,
        )
        self.port = 0

    @property
    def owner(self) -> FakeOwner:
        return self.streams.owner

    @contextlib.asynccontextmanager
    async def producer(self, token: str = "") -> AsyncGenerator[HandProducer, None]:
        connection = await open_connection(
            "127.0.0.1",
            self.port,
            bookie_id="me",
            client_name="test",
            timeout_s=10.0,
            slots={},
            on_lost=lambda _: None,
            on_drained=lambda: None,
            credentials=FakeCredentials(token) if token else None,  # type: ignore[arg-type]
        )
        try:
            yield HandProducer(connection)
        finally:
            connection.close()
            await connection.closed


class FakeCredentials:
    """A token without TLS."""

    user = ""

    def __init__(self, token: str) -> None:
        self._token = token

    def login(self) -> object:
        from fastbk.security.credentials import Login

        return Login(TOKEN, self._token.encode(), None)


@contextlib.asynccontextmanager
async def world_of(*, is_open: bool = True, **options: int) -> AsyncGenerator[World, None]:
    world = World(ServiceOptions(**options), is_open=is_open)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(world.service.protocol, "127.0.0.1", 0)
    world.port = server.sockets[0].getsockname()[1]
    try:
        yield world
    finally:
        server.close()
        await world.service.close()
        await server.wait_closed()


async def raw(world: World, *frames: bytes) -> bytes:
    """Return all that is answered to bytes, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(b"".join(frames))
    try:
        return await asyncio.wait_for(reader.read(), 10.0)
    finally:
        writer.close()


async def until(condition: Callable[[], object]) -> None:
    await wait_until_async(condition, "what was sent arrives")


# --- who is served ----------------------------------------------------------------------------------


@pytest.mark.uvloop_too
async def test_frames_get_to_their_owner_and_answers_back() -> None:
    async with world_of() as world, world.producer() as hand:
        opened = await hand.open(PATH, b"till-1")
        assert (opened.incarnation, opened.last_number) == (7, -1)
        assert opened.entry_bytes_max == ENTRY_BYTES_MAX
        answers = await asyncio.gather(
            *(hand.produce(opened.producer, [b"a", b"b"], 2 * number) for number in range(50))
        )
        assert [answer.entry_id for answer in answers] == list(range(1, 51))
        assert {(answer.kind, answer.segment, answer.slot) for answer in answers} == {
            (PRODUCE_REPLY, 1, 2)
        }
        assert world.owner.frames[3] == Frame(b"till-1", 7, 5, range(6, 8))
        large = await hand.produce(opened.producer, [bytes(ENTRY_BYTES_MAX - 100)], 100)
        assert large.status == Status.OK
        assert len(world.owner.bodies[-1]) > ENTRY_BYTES_MAX - 100
        figures = world.service.figures
        assert (figures.frames, figures.records) == (51, 101)
        assert (world.service.memory.bytes, world.service.memory.grown_bytes) == (0, 0)


async def test_a_producer_that_goes_on_stores_nothing() -> None:
    async with world_of() as world, world.producer() as hand:
        resumed = await hand.open(PATH, b"till-1", 99)
        assert (resumed.incarnation, resumed.last_number) == (99, 41)
        only_take = await hand.open(PATH, b"")
        assert (only_take.producer, only_take.incarnation) == (0, 0)
        assert world.streams.owned.producers == 1
        assert (await hand.close_producer(resumed.producer)).status == Status.OK
        assert world.owner.closed == [b"till-1"]
        assert world.streams.owned.producers == 0
        assert (await hand.close_producer(resumed.producer)).status == Status.BAD_REQUEST


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b"GET / HTTP/1.1\r\n\r\n"], id="another protocol"),
        pytest.param([MAGIC, put_ping(1)], id="no hello"),
        pytest.param([MAGIC, struct.pack("<I", 1 << 20)], id="a hello of a mebibyte"),
        pytest.param([MAGIC, put_hello(1, "x"), b"\xff" * 8], id="4 GiB"),
        pytest.param([MAGIC, put_hello(1, "x"), struct.pack("<I", 40) + bytes(40)], id="zeros"),
    ],
)
async def test_what_is_no_request_ends_its_connection_alone(frames: list[bytes]) -> None:
    async with world_of() as world, world.producer() as hand:
        answered = await raw(world, *frames)
        assert decode_reply(answered[-(len(answered)) :] if answered else b"") is not None
        assert (await hand.open(PATH, b"till-1")).producer == 1


async def test_a_hello_and_info_and_ping_are_answered() -> None:
    async with world_of() as world:
        answered = await raw(
            world,
            MAGIC,
            put_hello(1, "x"),
            put_ping(2),
            put_info(3),
            encode_hello(4, Hello()),
            encode_hello(5, Hello(version_min=7, version_max=9)),
            put_ping(6),
            struct.pack("<I", 2**31),
        )
        replies = []
        while answered:
            size = 4 + int.from_bytes(answered[:4], "little")
            replies.append(decode_reply(answered[:size])[:2])
            answered = answered[size:]
        assert sorted(replies) == [
            (0, Status.BAD_REQUEST),
            (1, Status.OK),
            (2, Status.OK),
            (3, Status.OK),
            (4, Status.BAD_REQUEST),
            (5, Status.BAD_REQUEST),
            (6, Status.OK),
        ]


async def test_a_client_needs_add_on_the_namespace_at_each_time() -> None:
    """INV-S42."""
    async with world_of(is_open=False) as world:
        with pytest.raises(Unauthorized, match="show a token"):
            async with world.producer():
                pass
        with pytest.raises(Unauthorized, match="no such token"):
            async with world.producer("delete *"):
                pass
        for token in ("read shop", "add bank"):
            async with world.producer(token) as hand:
                status, text = refusal_of(await hand.ask(PATH, b"till-1"))
                assert status == Status.FORBIDDEN and "needs the operation add" in text
        async with world.producer("add shop*") as hand:
            opened = await hand.open(PATH, b"till-1")
            assert (await hand.produce(opened.producer, [b"a"], 0)).status == Status.OK
            login = FakeCredentials("add bank").login()
            await hand.connection.renew("test", 10.0, login)  # type: ignore[arg-type]
            assert (await hand.produce(opened.producer, [b"a"], 1)).status == Status.FORBIDDEN
            login = FakeCredentials("add shop").login()
            await hand.connection.renew("test", 10.0, login)  # type: ignore[arg-type]
            assert (await hand.produce(opened.producer, [b"a"], 1)).status == Status.OK
        assert len(world.owner.frames) == 2
        assert world.notes.count("request.denied") == 3
        assert world.notes.count("client.refused") == 2


async def test_a_client_that_is_revoked_loses_its_connection() -> None:
    async with world_of(is_open=False) as world, world.producer("add *") as hand:
        opened = await hand.open(PATH, b"till-1")
        world.admission.ended = "its token has expired"
        world.service.sweep()
        with pytest.raises(NotEnoughBookies):
            await hand.produce(opened.producer, [b"a"], 0)
        assert not world.owner.frames
        assert "client.ended" in world.notes


async def test_a_right_that_ends_while_a_stream_is_taken_over_opens_nothing() -> None:
    """INV-S42: opening a name fences another producer."""
    async with world_of(is_open=False) as world, world.producer("add shop") as hand:
        world.streams.gate = asyncio.Event()
        opening = asyncio.ensure_future(hand.ask(PATH, b"till-1"))
        await until(lambda: world.service.openings == 1)
        await hand.connection.renew("test", 10.0, FakeCredentials("read shop").login())  # type: ignore[arg-type]
        world.streams.gate.set()
        assert (await opening).status == Status.FORBIDDEN
        assert world.service.producers == 0


def test_who_may_add() -> None:
    assert may_add(ANYBODY, "shop")
    assert not may_add(NOBODY, "shop")
    shop = Principal(name="t", rights=ALL_RIGHTS, namespaces=("shop", "shop/*"))
    assert may_add(shop, "shop") and may_add(shop, "shop/eu") and not may_add(shop, "shopping")
    assert not may_add(shop, "")


# --- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (Moved("other:1"), Status.MOVED, "other:1"),
        (NotReady("wait"), Status.NOT_READY, "wait"),
        (StreamNotFound("none"), Status.NO_STREAM, "none"),
        (StreamSealed("ended"), Status.SEALED, "ended"),
        (QuotaExceeded("full"), Status.OVER_QUOTA, "full"),
        (RuntimeError("bug"), Status.NOT_READY, "a fault of the service: RuntimeError('bug')"),
    ],
)
async def test_why_a_stream_is_not_served(error: Exception, status: Status, text: str) -> None:
    async with world_of() as world, world.producer() as hand:
        world.streams.error = error
        assert refusal_of(await hand.ask(PATH, b"till-1")) == (status, text)
        assert refusal_of(await hand.ask("", b"t"))[0] == Status.BAD_REQUEST
        assert refusal_of(await hand.ask(PATH, bytes(65)))[0] == Status.BAD_REQUEST


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotNext("x"), Status.NOT_NEXT),
        (ProducerFenced("x"), Status.PRODUCER_FENCED),
        (ProducerExpired("x"), Status.PRODUCER_EXPIRED),
        (OwnerEnded("x"), Status.NOT_READY),
    ],
)
async def test_why_a_frame_is_refused(error: Error, status: Status) -> None:
    assert status_of(error) == status
    async with world_of() as world, world.producer() as hand:
        world.owner.is_quick = False
        opened = await hand.open(PATH, b"till-1")
        answer = asyncio.ensure_future(hand.produce(opened.producer, [b"a"], 0))
        await until(lambda: bool(world.owner.futures))
        world.owner.futures[0].set_exception(error)
        assert (await answer).status == status
        assert world.service.memory.bytes == 0


async def test_a_stream_that_has_ended_sends_its_producers_on() -> None:
    async with world_of() as world, world.producer() as hand:
        opened = await hand.open(PATH, b"till-1")
        world.streams.owned.end = Moved("other:1")
        answer = await hand.produce(opened.producer, [b"a"], 0)
        assert refusal_of(answer) == (Status.MOVED, "other:1")
        world.streams.owned.end = NotReady("fenced")
        answer = await hand.produce(opened.producer, [b"a"], 0)
        assert answer.status == Status.NOT_READY
        assert not world.owner.frames


async def test_frames_of_a_stream_that_moves_wait_for_its_end() -> None:
    """INV-S41."""
    async with world_of() as world, world.producer() as hand:
        owned = world.streams.owned
        opened = await hand.open(PATH, b"till-1")
        owned.is_moving = True
        answer = asyncio.ensure_future(hand.produce(opened.producer, [b"a"], 0))
        await until(lambda: bool(owned.on_end))
        assert not answer.done()
        owned.end = Moved("other:1")
        for callback in owned.on_end:
            callback()
        assert refusal_of(await answer) == (Status.MOVED, "other:1")
        assert not world.owner.frames


async def test_a_producer_that_goes_on_has_one_number() -> None:
    """It lost its owner: only the number that it got last counts, and is of use."""
    async with world_of(producers_max=2) as world, world.producer() as hand:
        first = await hand.open(PATH, b"till-1", 9)
        other = await hand.open(PATH, b"till-1", 10)
        for _ in range(3):
            again = await hand.open(PATH, b"till-1", 9)
        assert world.streams.owned.producers == 2
        assert not world.owner.closed
        for number, status in (
            (first.producer, Status.BAD_REQUEST),
            (other.producer, Status.OK),
            (again.producer, Status.OK),
        ):
            assert (await hand.produce(number, [b"a"], 0)).status == status


# --- bounds -----------------------------------------------------------------------------------------


async def test_a_producer_with_too_much_unanswered_ends_its_connection() -> None:
    """INV-S43."""
    async with world_of(pending_bytes_max=2 * MIB) as world, world.producer() as hand:
        world.owner.is_quick = False
        opened = await hand.open(PATH, b"till-1")
        payload = bytes(ENTRY_BYTES_MAX - 1000)
        frames = [
            asyncio.ensure_future(hand.produce(opened.producer, [payload], number))
            for number in range(3)
        ]
        ends = await asyncio.gather(*frames, return_exceptions=True)
        assert all(isinstance(end, NotEnoughBookies) for end in ends)
        assert len(world.owner.frames) == 2
        for future in world.owner.futures:
            future.set_result(DLSN(1, 1, 0))
        await until(lambda: world.service.memory.bytes == 0)
        assert world.service.limits.counts["pending_bytes"] == 1


async def test_nothing_more_is_read_when_memory_is_full() -> None:
    """INV-S43: and all goes on when there is room again."""
    async with world_of(memory_bytes_max=2 * MIB) as world, contextlib.AsyncExitStack() as stack:
        world.owner.is_quick = False
        hands = [await stack.enter_async_context(world.producer()) for _ in range(6)]
        payload = bytes(ENTRY_BYTES_MAX - 1000)
        answers = []
        for hand in hands:
            opened = await hand.open(PATH, b"till-1")
            answers += [
                asyncio.ensure_future(hand.produce(opened.producer, [payload], number))
                for number in range(3)
            ]
        await until(lambda: len(world.service.memory.waiting) == len(hands))
        # each one ended the frame that it had begun when memory was full
        assert len(world.owner.frames) <= 2 + len(hands)
        while not all(answer.done() for answer in answers):
            for future in world.owner.futures:
                if not future.done():
                    future.set_result(DLSN(1, 1, 0))
            await asyncio.sleep(0)
        assert [answer.result().status for answer in answers] == [Status.OK] * 18
        assert (world.service.memory.bytes, world.service.memory.grown_bytes) == (0, 0)
        assert not world.service.memory.waiting


async def test_a_client_whose_frames_wait_for_room_hears_that_the_service_lives() -> None:
    """Its ping is not read: it would take the service for frozen, and send all again on another connection."""
    async with world_of(memory_bytes_max=MIB) as world, world.producer() as hand:
        world.owner.is_quick = False
        opened = await hand.open(PATH, b"till-1")
        payload = bytes(ENTRY_BYTES_MAX - 1000)
        answers = [
            asyncio.ensure_future(hand.produce(opened.producer, [payload], number))
            for number in range(2)
        ]
        await until(lambda: world.service.memory.waiting)
        received_bytes = hand.connection.traffic.received_bytes
        world.service.sweep()
        await until(lambda: hand.connection.traffic.received_bytes > received_bytes)
        # Who has no producer sends no records: other services ask whether this one is there.
        async with world.producer() as other:
            answer = await other.connection.request(999, put_ping(999), 10.0)
            assert answer.status == Status.OK
        for number in range(2):
            await until(lambda number=number: len(world.owner.futures) > number)
            world.owner.futures[number].set_result(DLSN(1, 1, 0))
        assert [answer.status for answer in await asyncio.gather(*answers)] == [Status.OK] * 2


async def test_large_frames_that_never_end_cost_a_bounded_memory() -> None:
    """INV-S43: who begins one waits until another has ended its own, or its time is over."""
    async with world_of(memory_bytes_max=2 * MIB) as world:
        memory, writers = world.service.memory, []
        for _ in range(8):
            _, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(MAGIC + put_hello(1, "x") + struct.pack("<I", 3 * MIB) + bytes(100))
            writers.append(writer)
        await until(lambda: len(memory.starved) == 7)
        assert 2 * MIB < memory.grown_bytes <= 4 * MIB
        async with world.producer() as hand:
            opened = await hand.open(PATH, b"till-1")
            assert (await hand.produce(opened.producer, [b"small"], 0)).status == Status.OK
        for left in range(7, 0, -1):  # its time is over, and the next one's begins
            world.now_s += FRAME_TIMEOUT_S
            world.service.sweep()
            await until(partial(_is_left, world, left))
        for writer in writers:
            writer.close()
        await until(lambda: not world.service.connections)
        assert memory.grown_bytes == 0


def _is_left(world: World, count: int) -> bool:
    """Return whether so many connections are there, and one of them has room for its frame."""
    starved = len(world.service.memory.starved)
    return (len(world.service.connections), starved) == (count, count - 1)


async def test_frames_that_are_not_answered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-S43: a frame takes memory however few bytes of records it has."""
    monkeypatch.setattr(service_module, "FRAMES_MAX", 8)
    async with world_of() as world, world.producer() as hand:
        world.owner.is_quick = False
        opened = await hand.open(PATH, b"till-1")
        first = [
            asyncio.ensure_future(hand.produce(opened.producer, [b"a"], number))
            for number in range(8)
        ]
        (connection,) = world.service.connections
        await until(lambda: connection.is_paused)
        second = asyncio.ensure_future(hand.produce(opened.producer, [b"a"], 8))
        for future in world.owner.futures:
            future.set_result(DLSN(1, 1, 0))
        assert {answer.status for answer in await asyncio.gather(*first)} == {Status.OK}
        await until(lambda: len(world.owner.futures) == 9)
        world.owner.futures[8].set_result(None)
        assert (await second).segment == 0


async def test_a_frame_is_bounded() -> None:
    async with world_of() as world, world.producer() as hand:
        opened = await hand.open(PATH, b"till-1")
        answer = await hand.produce(opened.producer, [bytes(ENTRY_BYTES_MAX)], 0)
        assert answer.status == Status.TOO_LARGE
        answer = await hand.produce(opened.producer + 1, [b"a"], 0)
        assert answer.status == Status.BAD_REQUEST


async def test_connections_and_producers_are_bounded() -> None:
    async with (
        world_of(connections_max=1, producers_max=2) as world,
        world.producer() as hand,
    ):
        for _ in range(2):
            await hand.open(PATH, b"till-1")
        status, text = refusal_of(await hand.ask(PATH, b"till-1"))
        assert status == Status.TOO_MANY_REQUESTS and "at most 2 producers" in text
        answered = await raw(world, MAGIC, put_hello(7, "x"))
        request_id, status_number, _ = decode_reply(answered)
        assert (request_id, status_number) == (7, Status.TOO_MANY_REQUESTS)
        assert world.service.greeted == 1
    assert world.service.greeted == 0


async def test_who_says_nothing_takes_no_place_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_module, "STRANGERS_MAX", 3)
    async with world_of() as world, world.producer() as hand:
        silent = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(6)]
        await until(lambda: len(world.service.connections) == 4)
        assert (await hand.open(PATH, b"till-1")).producer == 1
        async with world.producer() as other:
            assert (await other.open(PATH, b"till-2")).producer == 1
        assert world.service.limits.counts["strangers"] >= 3
        for _, writer in silent:
            writer.close()


async def test_a_hello_has_its_time_and_so_has_a_frame() -> None:
    async with world_of() as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        await until(lambda: len(world.service.connections) == 1)
        world.now_s += HELLO_TIMEOUT_S
        world.service.sweep()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(MAGIC + put_hello(1, "x") + put_ping(2) + b"\x20\0")
        await reader.readexactly(4)
        world.now_s += FRAME_TIMEOUT_S - 1
        world.service.sweep()
        assert len(world.service.connections) == 1
        world.now_s += 1
        world.service.sweep()
        await until(lambda: not world.service.connections)
        writer.close()
        assert world.service.limits.counts == {"hello_timeout": 1, "frame_timeout": 1}


async def test_a_client_that_reads_no_answers_is_not_read() -> None:
    async with world_of() as world:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", world.port))
        await loop.sock_sendall(sock, MAGIC + put_hello(1, "x"))

        async def send() -> None:
            while True:
                await loop.sock_sendall(sock, put_ping(2) * 1000)

        sending = asyncio.ensure_future(send())
        await until(lambda: any(one.is_paused for one in world.service.connections))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        sock.close()
        await until(lambda: not world.service.connections)


async def test_a_client_that_is_refused_and_reads_nothing_loses_its_place() -> None:
    async with world_of() as world:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", world.port))
        await loop.sock_sendall(sock, MAGIC + put_hello(1, "x"))

        async def send() -> None:
            while True:
                await loop.sock_sendall(sock, put_ping(2) * 1000)

        sending = asyncio.ensure_future(send())
        await until(lambda: any(one.is_paused for one in world.service.connections))
        world.admission.ended = "its token was revoked"
        world.service.sweep()
        world.now_s += LINGER_S
        world.service.sweep()
        await until(lambda: not world.service.connections)
        await asyncio.gather(sending, return_exceptions=True)
        sock.close()


async def test_a_ping_is_answered_while_a_stream_is_taken_over() -> None:
    async with world_of() as world, world.producer() as hand:
        world.streams.gate = asyncio.Event()
        opening = asyncio.ensure_future(hand.ask(PATH, b"till-1"))
        answer = await hand.connection.request(999, put_ping(999), 10.0)
        assert answer.status == Status.OK
        assert not opening.done()
        world.streams.gate.set()
        assert (await opening).status == Status.OK
