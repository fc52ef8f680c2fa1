"""INV-N5: what one client leads to, whatever it is, ends its connection alone; the worker serves the others."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import TYPE_CHECKING, NoReturn

import pytest

from fastbk.native.ffi import PoisonedError
from fastbk.security import tls
from fastbk.security.settings import AuthenticationSettings
from fastbk.server.network import network as network_module
from fastbk.server.network.connection import Connection
from fastbk.wire.messages import ErrorReply, decode_reply, encode_info
from tests.fixtures import apache_wire, frames
from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import EOK
from tests.fixtures.certificates import ODD_EXTENSIONS, odd_certificate
from tests.fixtures.counters import counted
from tests.fixtures.frames import answer_of
from tests.fixtures.logins import KEY, in_v3, show_token
from tests.fixtures.users import sasl_settings
from tests.fixtures.worker_harness import (
    READ,
    Client,
    Served,
    WorkerHarness,
    one_client,
    one_worker,
    until,
)
from tests.fixtures.worker_tls import greet, secure, tls_settings, trusting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fastbk.security.admission import Client as Met
    from fastbk.security.authority import Authority, Issued

UNAUTHORIZED = 21
HOSTILE = "the header has \ud800"


class Hostile(Exception):
    """What no code of ours expects, with a text that cannot be encoded."""

    def __init__(self) -> None:
        super().__init__(HOSTILE)


def fail(*_: object, **__: object) -> NoReturn:
    raise Hostile


async def is_served(bookie: Served) -> None:
    """Have an honest client served, and the worker not ended."""
    client = await bookie.connect()
    await greet(client)
    client.send(frames.add(2, 0))
    await bookie.take(1)
    bookie.worker_harness.publish()
    assert answer_of(await client.frame()) == (2, 0)
    await client.close()
    assert not bookie.network._failure.done()


@pytest.mark.uvloop_too
async def test_a_request_that_raises_ends_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_worker() as (harness, bookie):
        client = await bookie.connect()
        await greet(client)
        with monkeypatch.context() as fault:
            fault.setattr(bookie.network.handlers, "answer", fail)
            client.send(encode_info(2))
            assert await client.is_closed() == b""
        await is_served(bookie)
        assert counted(harness, "CONNECTIONS_FAILED") == 1
        await until(lambda: not bookie.network.connections)


@pytest.mark.uvloop_too
@pytest.mark.parametrize("method", ["meet", "came", "left", "audit"])
async def test_what_the_loop_calls_may_raise(
    method: str, authority: Authority, issued: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_worker(tls_settings(issued)) as (harness, bookie):
        network = bookie.network
        owner, name = {
            "meet": (network.admission, "meet"),
            "came": (network._idle, "opened"),
            "left": (network.principals, "left"),
            "audit": (network.audit, "take_requests"),
        }[method]
        with monkeypatch.context() as fault:
            plain = getattr(owner, name)

            def fail_where_secure(client: Met, certificate: bytes | None) -> None:
                if certificate is not None:
                    fail()
                plain(client, certificate)

            fault.setattr(owner, name, fail_where_secure if method == "meet" else fail)
            if method == "came":  # before there is any transport
                _, writer = await asyncio.open_connection("127.0.0.1", bookie.port)
                writer.transport.abort()
            else:
                try:
                    client = await secure(bookie, trusting(authority))
                    await client.close()
                except (OSError, EOFError):
                    pass  # it was ended with the handshake
            await until(lambda: counted(harness, "CONNECTIONS_FAILED") >= 1)
            await until(lambda: not network.connections)
        await is_served(bookie)


async def test_an_answer_to_many_that_raises_for_one_reaches_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_worker() as (_, bookie):
        clients = [await bookie.connect() for _ in range(2)]
        for client in clients:
            await greet(client)
        first, second = bookie.network.connections.values()
        act = type(first).act

        def fail_once(connection: Connection, todo: int) -> None:
            if connection is first:
                fail()
            act(connection, todo)

        with monkeypatch.context() as fault:
            fault.setattr(Connection, "act", fail_once)
            for connection in (first, second):
                bookie.network._reply(
                    connection.client, lambda: bookie.network.handlers._accepted(9, b"")
                )
        await clients[0].is_closed()
        assert answer_of(await clients[1].frame()) == (9, 0)
        await clients[1].close()
        await is_served(bookie)


@pytest.mark.uvloop_too
async def test_a_connection_that_cannot_even_be_met_does_not_close_the_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_worker() as (harness, bookie):
        with monkeypatch.context() as fault:
            fault.setattr(bookie.network.admission, "meet", fail)
            client = await bookie.connect()
            assert await client.is_closed() == b""
        assert counted(harness, "CONNECTIONS_FAILED") == 1
        await is_served(bookie)


@pytest.fixture
def users(tmp_path: Path) -> AuthenticationSettings:
    return sasl_settings(tmp_path, "writer")


async def known(bookie: Served) -> Client:
    client = await bookie.connect()
    assert await in_v3(client, "writer", "of writer") == EOK
    return client


@pytest.mark.parametrize("round_", ["rights", "audit"])
@pytest.mark.uvloop_too
async def test_a_round_over_many_connections_ends_the_one_that_raises(
    round_: str, users: AuthenticationSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer, once a second: it goes on, and reaches the others."""
    monkeypatch.setattr(network_module, "SWEEP_INTERVAL_S", 0.02)
    async with one_worker(authentication=users) as (harness, bookie):
        network = bookie.network
        bad, good = await known(bookie), await known(bookie)
        victim = next(iter(network.connections.values()))

        def fails_for_victim(client: object, *_: object, **__: object) -> str:
            if client in (victim, victim.client):
                fail()
            return ""

        with monkeypatch.context() as fault:
            if round_ == "rights":
                fault.setattr(network.principals, "_refresh_s", 0.0)
                fault.setattr(network.admission.files, "has_changed", lambda: True)
                fault.setattr(network.admission, "why_ended", fails_for_victim)
            elif round_ == "audit":
                fault.setattr(
                    network.audit._events,
                    "note",
                    lambda _event, _ledger, client: fails_for_victim(client),
                )
                bad.send(apache.v3_read(9, 0, flag=apache.FENCE, key=b"k" * 20))
            await until(lambda: counted(harness, "CONNECTIONS_FAILED") >= 1)
            sweeps = counted(harness, "WAKES")
            await until(lambda: counted(harness, "WAKES") > sweeps + 2)
        assert not network._failure.done()
        good.send(apache.v3_read(9, 0))
        await bookie.take_request()
        for client in (bad, good):
            await client.close()


@pytest.mark.uvloop_too
async def test_one_that_cannot_be_closed_to_make_room_ends_nobody_else(
    users: AuthenticationSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_worker(authentication=users, connections_max=16) as (harness, bookie):
        strangers = [await bookie.connect() for _ in range(4)]
        await until(lambda: len(bookie.network.connections) == 4)
        victim, plain = next(iter(bookie.network.connections.values())), Connection._abort
        with monkeypatch.context() as fault:
            fault.setattr(Connection, "_abort", lambda one: fail() if one is victim else plain(one))
            newcomer = await known(bookie)
        assert counted(harness, "CONNECTIONS_FAILED") == 1
        newcomer.send(apache.v3_read(9, 0))
        await bookie.take_request()
        assert not bookie.network._failure.done()
        for client in (newcomer, *strangers):
            await client.close()


async def test_shared_memory_that_is_broken_still_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def poisoned(*_: object, **__: object) -> NoReturn:
        raise PoisonedError("send: what journal or index left in shared memory can't be")

    async with one_client() as (_, bookie, client):
        await greet(client)
        monkeypatch.setattr(bookie.network.handlers, "answer", poisoned)
        client.send(encode_info(2))
        with pytest.raises(PoisonedError):
            await asyncio.wait_for(bookie.network.failed(), 5)


def unsigned(header: object) -> bytes:
    """Return what anybody can write: a token with any header, and no signature."""
    parts = [
        base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in (header, {})
    ]
    return b".".join((*parts, b"x"))


@pytest.mark.uvloop_too
@pytest.mark.parametrize(
    "header",
    [
        {"alg": "EdDSA", "typ": "JWT", "kid": "k1", "crit": ["\ud800"]},
        {"alg": "EdDSA", "kid": "\ud800\x1b[2J"},
        {"alg": "\udfff", "kid": "k1"},
        {"alg": ["EdDSA"], "kid": {"\ud800": 1}},
        ["\ud800"],
        {"alg": "EdDSA", "kid": "k1", "b64": "\ud800"},
    ],
)
async def test_a_strangers_token_is_refused_whatever_it_says(
    header: object, authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(KEY.public_text())
    rules = AuthenticationSettings(methods=("token",), token_keys_file=str(tmp_path / "keys"))
    async with one_worker(tls_settings(issued), rules) as (harness, bookie):
        client = await secure(bookie, trusting(authority))
        status, refusal = await show_token(client, unsigned(header))
        assert status == UNAUTHORIZED
        assert refusal.isprintable()
        await client.close()
        assert not bookie.network._failure.done()
        assert counted(harness, "CONNECTIONS_FAILED") == 0


@pytest.mark.uvloop_too
@pytest.mark.parametrize("odd", [*ODD_EXTENSIONS, "unit", "all"])
async def test_a_certificate_may_say_what_it_likes(
    odd: str, authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    """Only the roles are read, and they are escaped where they are shown."""
    if odd == "unit":

        def odd_text(data: bytes) -> bytes:
            return data.replace(b"\x0c\x080:writer", b"\x14\x080:\xff\x1b[\x00\n\xfa")

        shown = odd_certificate(authority, tmp_path, change=odd_text, roles="0:writer")
    else:
        names = ["san_dns", "crl_point", "issuer_access"] if odd == "all" else [odd]
        shown = odd_certificate(authority, tmp_path, names, roles="0:writer")
    rules = tls_settings(issued, "require", authority, roles=("writer",))
    async with one_worker(rules) as (harness, bookie):
        client = await secure(bookie, trusting(authority, shown))
        client.send(frames.hello())
        _, status, reply = decode_reply(await client.frame())
        if odd == "unit":
            assert (status, isinstance(reply, ErrorReply) and reply.message.isprintable()) == (
                UNAUTHORIZED,
                True,
            )
        else:
            assert status == 0
        await client.close()
        assert not bookie.network._failure.done()
        assert (counted(harness, "TLS_HANDSHAKES"), counted(harness, "CONNECTIONS_FAILED")) == (
            1,
            0,
        )


@pytest.mark.uvloop_too
async def test_a_handshake_that_raises_anything_is_one_that_failed(
    authority: Authority, issued: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tls_settings(issued, "require", authority)
    own = trusting(authority, authority.issue(tmp_path / "own"))
    async with one_worker(rules) as (harness, bookie):
        plain = tls._Peer.getpeercert
        with monkeypatch.context() as fault:
            fault.setattr(
                tls._Peer, "getpeercert", lambda self: fail() if self.server_side else plain(self)
            )
            with pytest.raises((OSError, EOFError)):
                client = await secure(bookie, own)
                await greet(client)
            await until(lambda: counted(harness, "TLS_FAILED") == 1)
        await until(lambda: not bookie.network.connections)
        client = await secure(bookie, own)
        await greet(client)
        await client.close()
        assert not bookie.network._failure.done()


# Shared memory as only a broken journal or index would leave it (A6).


def spoil_order(s: WorkerHarness) -> None:
    s.publish()
    s.poke(0, "descriptors", 5)


def spoil_ring_end(s: WorkerHarness) -> None:
    s.poke(0, "descriptor.ring_end", 0)  # of nothing: keeps the field's name checked
    s.publish()
    s.poke(0, "descriptors", 1 << 60, more=s_offset(s, "descriptor.ring_end"))


def spoil_middle_of_a_record(s: WorkerHarness) -> None:
    s.publish()
    s.poke(0, "descriptors", 104, more=s_offset(s, "descriptor.ring_end"))


def spoil_exceptions(s: WorkerHarness) -> None:
    s.publish()
    s.poke(0, "descriptors", 1 << 40, more=s_offset(s, "descriptor.exceptions_end"))


def spoil_exception_position(s: WorkerHarness) -> None:
    s.library.worker_harness_except(s._s, 4, 20)
    s.publish()


def spoil_published(s: WorkerHarness) -> None:
    s.poke(0, "published", 1 << 50)


def spoil_reply_written(s: WorkerHarness) -> None:
    s.poke(1, "reply_written", 1 << 50)


def spoil_reply_backwards(s: WorkerHarness) -> None:
    s.poke(1, "reply_written", 2**64 - 8)


def spoil_reply_size(s: WorkerHarness) -> None:
    s.poke(2, "", (1 << 32 | 1) << 3)
    s.poke(1, "reply_written", 64)


def spoil_reply_epoch(s: WorkerHarness) -> None:
    s.reply(frames.read_reply(2, 0, b"x"), 1 << 32, READ)
    s.poke(2, "", 12345, more=16)


def spoil_reply_length(s: WorkerHarness) -> None:
    frame = frames.read_reply(2, 0, b"x")
    s.reply(struct.pack("<I", 9) + frame[4:], 1 << 32, READ)


def spoil_indexed(s: WorkerHarness) -> None:
    s.poke(1, "indexed", 1 << 50)


def spoil_request_consumed(s: WorkerHarness) -> None:
    s.poke(1, "request_consumed", 8 << 50)


def s_offset(s: WorkerHarness, field: str) -> int:
    return int(s.library.worker_harness_offset(field.encode()))


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_order,
        spoil_ring_end,
        spoil_middle_of_a_record,
        spoil_exceptions,
        spoil_exception_position,
        spoil_published,
        spoil_reply_written,
        spoil_reply_backwards,
        spoil_reply_size,
        spoil_reply_epoch,
        spoil_reply_length,
        spoil_indexed,
        spoil_request_consumed,
    ],
)
async def test_broken_shared_memory_ends_the_worker(spoil: Callable[[WorkerHarness], None]) -> None:
    """A6: what cannot be is never acted upon: the process reports it, and dies."""
    async with one_worker() as (worker_harness, bookie):
        client = await bookie.connect()
        client.send(frames.hello() + frames.add(2, 0) + frames.add(3, 1))
        assert answer_of(await client.frame()) == (1, 0)
        await bookie.take(2)
        loop = asyncio.get_running_loop()
        # the bell, so that the one collect below sees it
        loop.remove_reader(worker_harness.fd(3))
        spoil(worker_harness)
        with pytest.raises(PoisonedError):
            bookie.worker.collect()
        bookie.network._timer.cancel()  # type: ignore[union-attr]
        bookie.network.worker = _Ended()  # type: ignore[assignment]
        await client.close()
        for connection in list(bookie.network.connections.values()):
            connection.abort()
        await until(lambda: not bookie.network.connections)


async def test_an_answer_that_no_index_writes_ends_the_worker() -> None:
    """Frames for Apache's clients are read by their layout, not walked; another one is not believed."""
    async with one_worker() as (worker_harness, bookie):
        client = await bookie.connect()
        client.send(apache_wire.v2_read(1))
        record = await bookie.take_request()
        asyncio.get_running_loop().remove_reader(worker_harness.fd(3))
        worker_harness.reply(
            frames.read_reply(record.request_id, 1, b"x"), record.connection_id, READ
        )
        with pytest.raises(PoisonedError):
            bookie.worker.collect()
        bookie.network._timer.cancel()  # type: ignore[union-attr]
        bookie.network.worker = _Ended()  # type: ignore[assignment]
        await client.close()
        for connection in list(bookie.network.connections.values()):
            connection.abort()
        await until(lambda: not bookie.network.connections)


class _Ended:
    """In the place of a worker that must not be called any more."""

    pending = 0

    def collect(self) -> tuple[list[tuple[int, int]], bool]:
        return [], False

    def poll(self) -> tuple[list[tuple[int, int]], bool]:
        return [], False

    def drain(self) -> list[tuple[int, int]]:
        return []
