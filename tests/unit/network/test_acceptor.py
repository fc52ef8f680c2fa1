"""TLS on a worker's one port: from the first byte, upgraded from the clear, required, broken, too slow, renewed.

INV-N1: nothing that came in the clear is taken for a part of what is encrypted. INV-N2: where TLS is required, nothing
but AUTH and START_TLS is answered in the clear.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from fastbk.security.authority import Authority, Issued
from fastbk.security.tls import TlsFiles, client_context
from fastbk.server.network import network
from fastbk.wire.messages import ErrorReply, decode_reply
from tests.fixtures import apache_wire as apache
from tests.fixtures import frames
from tests.fixtures.apache_wire import EBADREQ, EOK, EUA, hear_v2, hear_v3
from tests.fixtures.counters import counted
from tests.fixtures.frames import answer_of
from tests.fixtures.worker_harness import Client, Served, one_worker, until
from tests.fixtures.worker_tls import greet, secure, tls_settings, trusting

OK, UNAUTHORIZED, V2_EUA = 0, 21, 102


@pytest.mark.uvloop_too
async def test_both_kinds_are_served_on_one_port(authority: Authority, issued: Issued) -> None:
    async with one_worker(tls_settings(issued)) as (harness, bookie):
        clients = [
            await secure(bookie, trusting(authority)),
            await bookie.connect(),
            await bookie.connect(),
        ]
        await greet(clients[0])
        await greet(clients[1])
        for number, client in enumerate(clients[:2]):
            client.send(b"".join(frames.add(100 + i, i, b"d" * i) for i in range(200)))
            records = await bookie.take(200)
            assert [one.entry_id for one in records] == list(range(200)), number
            harness.publish()
            answers = [answer_of(await client.frame()) for _ in range(200)]
            assert answers == [(100 + i, OK) for i in range(200)]
        clients[2].send(apache.v2_add(7) + apache.v3_add(900, 8, b"more"))
        await bookie.take(2)
        harness.publish()
        assert (await hear_v2(clients[2])).error == EOK
        assert (await hear_v3(clients[2])).status == EOK
        for client in clients:
            await client.close()
        assert (counted(harness, "TLS_HANDSHAKES"), counted(harness, "TLS_FAILED")) == (1, 0)


@pytest.mark.uvloop_too
async def test_large_frames_pass_in_both_directions(authority: Authority, issued: Issued) -> None:
    """A client that reads nothing for a while gets all of it in the end, and is not read meanwhile (INV-B1)."""
    data = os.urandom(900_000)
    async with one_worker(tls_settings(issued)) as (harness, bookie):
        client = await secure(bookie, trusting(authority))
        await greet(client)
        client.send(frames.add(2, 0, data) + frames.read(3, 0))
        (record,) = await bookie.take(1)
        assert record.payload == frames.entry_bytes(0, data)
        read = await bookie.take_request()
        replies = [frames.read_reply(3, 0, data[: 100_000 * n]) for n in range(1, 9)]
        for reply in replies:
            harness.reply(reply, read.connection_id, read.kind)
            harness.ring()
        harness.publish()
        received = [await client.frame() for _ in range(9)]
        assert sorted(received, key=len)[1:] == replies
        await client.close()


async def test_where_it_is_required_nothing_is_said_in_the_clear(
    authority: Authority, issued: Issued
) -> None:
    """INV-N2."""
    async with one_worker(tls_settings(issued, "require")) as (harness, bookie):
        client = await bookie.connect()
        client.send(frames.hello())
        _, status, refusal = decode_reply(await client.frame())
        assert status == UNAUTHORIZED
        assert isinstance(refusal, ErrorReply)
        assert "TLS only" in str(refusal.message)
        await client.is_closed()
        client = await bookie.connect()
        client.send(apache.v2_add(7) + apache.v3_add(900, 8) + apache.v3_auth(5))
        assert (await hear_v2(client)).error == V2_EUA
        assert (await hear_v3(client)).status == EUA
        assert (await hear_v3(client)).status == EUA  # AUTH
        assert harness.take_all() == []
        await client.is_closed()
        client = await secure(bookie, trusting(authority))
        await greet(client)
        await client.close()
        assert counted(harness, "TLS_REFUSED") == 2


@pytest.mark.parametrize("mode", ["prefer", "require"])
@pytest.mark.uvloop_too
async def test_a_connection_is_upgraded(
    mode: Literal["prefer", "require"], authority: Authority, issued: Issued
) -> None:
    async with one_worker(tls_settings(issued, mode)) as (harness, bookie):
        client = await bookie.connect()
        client.send(apache.v3_start_tls(1))
        assert (await hear_v3(client)).status == EOK
        await client.writer.start_tls(trusting(authority), server_hostname="127.0.0.1")
        client.send(apache.v2_add(7) + apache.v3_add(900, 8, b"more"))
        await bookie.take(2)
        harness.publish()
        assert (await hear_v2(client)).error == EOK
        assert (await hear_v3(client)).status == EOK
        client.send(apache.v3_start_tls(2))
        assert (await hear_v3(client)).status == EBADREQ  # it is spoken already
        await client.close()
        assert counted(harness, "TLS_HANDSHAKES") == 1


@pytest.mark.parametrize("behind", [apache.v2_add(7), apache.v3_auth(5), b"\x00"])
@pytest.mark.uvloop_too
async def test_what_lies_behind_start_tls_in_the_clear_ends_the_connection(
    behind: bytes, issued: Issued
) -> None:
    """INV-N1: somebody between the two may have put it there, to have it taken for the client's own."""
    async with one_worker(tls_settings(issued)) as (harness, bookie):
        client = await bookie.connect()
        client.send(apache.v3_start_tls(1) + behind)
        assert await client.is_closed() == b""
        assert harness.take_all() == []


@pytest.mark.uvloop_too
async def test_what_comes_between_start_tls_and_the_handshake_ends_it(issued: Issued) -> None:
    """INV-N1, when it arrives later."""
    async with one_worker(tls_settings(issued)) as (harness, bookie):
        client = await bookie.connect()
        client.send(apache.v3_start_tls(1))
        assert (await hear_v3(client)).status == EOK
        client.send(apache.v2_add(7))
        await client.is_closed()
        assert harness.take_all() == []
        assert counted(harness, "TLS_FAILED") == 1


async def test_start_tls_while_requests_are_under_way_ends_the_connection(issued: Issued) -> None:
    async with one_worker(tls_settings(issued)) as (_, bookie):
        client = await bookie.connect()
        client.send(apache.v2_add(7) + apache.v3_start_tls(1))
        assert await client.is_closed() == b""


@pytest.mark.parametrize("sent", [b"\x16", b"\x16\x03\x01\x02\x00\x01", b"\xfb", b"\x00"])
@pytest.mark.uvloop_too
async def test_a_handshake_or_hello_that_does_not_end_is_cut(
    sent: bytes, issued: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "SWEEP_INTERVAL_S", 0.02)
    async with one_worker(tls_settings(issued), hello_timeout_ms=50, frame_timeout_ms=50) as (
        _,
        bookie,
    ):
        client = await bookie.connect()
        client.send(sent)
        await client.is_closed()
        await until(lambda: not bookie.network.connections)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
@pytest.mark.uvloop_too
async def test_an_upgrade_that_does_not_end_gives_its_slot_back(
    sent: bytes, issued: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop does not tell of a connection that it loses in the middle of this handshake."""
    monkeypatch.setattr(network, "SWEEP_INTERVAL_S", 0.02)
    async with one_worker(tls_settings(issued), hello_timeout_ms=50) as (_, bookie):
        client = await bookie.connect()
        client.send(apache.v3_start_tls(1))
        assert (await hear_v3(client)).status == EOK
        client.send(sent)
        await until(lambda: not bookie.network.connections)
        await client.is_closed()


@pytest.mark.uvloop_too
async def test_garbage_behind_the_first_byte_of_tls_is_refused(issued: Issued) -> None:
    async with one_worker(tls_settings(issued)) as (harness, bookie):
        for garbage in (b"\x16" + b"\xff" * 100, b"\x16\x03\x01\x00\x05hello", b"\x16" * 5000):
            client = await bookie.connect()
            client.send(garbage)
            await client.is_closed()
        await until(lambda: not bookie.network.connections)
        assert counted(harness, "TLS_FAILED") == 3


@pytest.mark.uvloop_too
async def test_who_says_nothing_or_leaves_costs_nothing(issued: Issued) -> None:
    async with one_worker(tls_settings(issued), connections_max=4) as (_, bookie):
        clients = [await bookie.connect() for _ in range(4)]
        await until(lambda: len(bookie.network.connections) == 4)
        refused = await bookie.connect()
        assert await refused.is_closed() == b""
        for client in clients:
            await client.close()
        await until(lambda: not bookie.network.connections)
        client = await bookie.connect()
        await greet(client)
        await client.close()


async def test_handshakes_beyond_the_rate_wait(authority: Authority, issued: Issued) -> None:
    async with one_worker(tls_settings(issued, handshakes_rate=5)) as (_, bookie):
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        context = trusting(authority)
        clients = await asyncio.gather(*(secure(bookie, context) for _ in range(9)))
        assert loop.time() - began_s >= 0.5  # five at once, and four a fifth of a second each
        for client in clients:
            await greet(client)
            await client.close()


@pytest.mark.parametrize("kind", ["none", "foreign", "expired"])
async def test_clients_without_a_good_certificate_are_refused(
    kind: str, authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    def shown() -> Issued | None:
        if kind == "foreign":
            return Authority.make(tmp_path / "ca").issue(tmp_path / "own")
        if kind == "expired":
            return authority.issue(tmp_path / "own", valid_for=timedelta(minutes=-1))
        return None

    async with one_worker(tls_settings(issued, "require", authority)) as (harness, bookie):
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            # A client of TLS 1.3 hears of it behind its own handshake.
            await greet(await secure(bookie, trusting(authority, shown())))
        await until(lambda: counted(harness, "TLS_FAILED") == 1)
        client = await secure(bookie, trusting(authority, authority.issue(tmp_path / "good")))
        await greet(client)
        await client.close()


@pytest.mark.parametrize(
    ("unit", "is_served"),
    [
        ("0:writer,reader", True),
        ("1:cluster;0:writer", True),
        ("0:reader,writer", False),  # the first role counts
        ("1:writer", False),
        ("writer", False),
        ("", False),
    ],
)
async def test_the_first_role_of_a_certificate_is_authorised(
    unit: str, is_served: bool, authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    """INV-N2, in all three protocols."""
    rules = tls_settings(issued, "require", authority, roles=("writer", "healer"))
    shown = trusting(authority, authority.issue(tmp_path / "own", roles=unit))
    async with one_worker(rules) as (harness, bookie):
        ours = await secure(bookie, shown)
        ours.send(frames.hello())
        _, status, refusal = decode_reply(await ours.frame())
        apaches = await bookie.connect()
        apaches.send(apache.v3_start_tls(1))
        assert (await hear_v3(apaches)).status == EOK
        await apaches.writer.start_tls(shown, server_hostname="127.0.0.1")
        apaches.send(apache.v2_add(7) + apache.v3_add(900, 8))
        if is_served:
            assert status == OK
            await bookie.take(2)
            harness.publish()
            assert (await hear_v2(apaches)).error == EOK
            assert (await hear_v3(apaches)).status == EOK
        else:
            assert status == UNAUTHORIZED
            assert isinstance(refusal, ErrorReply)
            assert "role" in str(refusal.message)
            assert (await hear_v2(apaches)).error == V2_EUA
            assert (await hear_v3(apaches)).status == EUA
            assert harness.take_all() == []
        await ours.close()
        await apaches.close()


async def test_a_renewed_certificate_is_shown_to_new_connections(
    authority: Authority, tmp_path: Path
) -> None:
    """Both files are not replaced at once: what fits not together is not taken, and nobody is refused meanwhile."""
    old = authority.issue(tmp_path / "bookie", ["127.0.0.1"], common_name="old")

    def name_of(client: Client) -> str:
        certificate = x509.load_der_x509_certificate(client.writer.get_extra_info("peercert"))
        return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)

    async with one_worker(tls_settings(old)) as (harness, bookie):
        acceptor = bookie.network._acceptor
        assert acceptor is not None
        acceptor._context._refresh_s = 0.0
        first = await secure(bookie, trusting(authority))
        await greet(first)
        assert name_of(first) == "old"
        new = authority.issue(tmp_path / "new", ["127.0.0.1"], common_name="new")
        new.certificate_file.replace(old.certificate_file)
        second = await secure(bookie, trusting(authority))
        assert name_of(second) == "old"
        new.key_file.replace(old.key_file)
        third = await secure(bookie, trusting(authority))
        assert name_of(third) == "new"
        first.send(frames.add(2, 0))
        await bookie.take(1)
        harness.publish()
        assert answer_of(await first.frame()) == (2, OK)
        for client in (first, second, third):
            await client.close()


# Handshakes that are changed, cut, mixed and sent too early: none of them is served, and the
# worker goes on.
#
# HANDSHAKES=100000 makes it a long run.


HANDSHAKES = int(os.environ.get("HANDSHAKES", "300"))
AT_ONCE = 8
STEPS_MAX = 6
ANSWER_S = 0.02
"""A changed handshake is mostly answered by nothing until the deadline."""


def changed(data: bytes, dice: random.Random) -> bytes:
    """Change a few bytes, cut, repeat, or leave as it is."""
    out = bytearray(data)
    for _ in range(dice.choice((0, 0, 1, 1, 3))):
        if out:
            out[dice.randrange(len(out))] = dice.randrange(256)
    cut = dice.random()
    if cut < 0.2:
        out = out[: dice.randrange(len(out) + 1)]
    elif cut < 0.3:
        at = dice.randrange(len(out) + 1)
        out[at:at] = dice.randbytes(dice.choice((1, 5, 300)))
    return bytes(out)


async def attempt(bookie: Served, context: ssl.SSLContext, dice: random.Random) -> None:
    """One connection: a handshake with faults, in the clear or upgraded, and requests where none belong."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bookie.port)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    try:
        if dice.random() < 0.4:
            writer.write(changed(apache.v3_start_tls(1), dice))
            if dice.random() < 0.8:
                await asyncio.wait_for(reader.read(4096), ANSWER_S)
        for _ in range(dice.randrange(1, STEPS_MAX)):
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                pass
            sent = changed(outgoing.read(), dice)
            if dice.random() < 0.1:
                sent += dice.choice((apache.v2_add(7), frames.hello(), b"\x16", b"\x00"))
            for at in range(0, len(sent), step := dice.choice((1 << 20, 700, 100))):
                writer.write(sent[at : at + step])
                await asyncio.sleep(0)
            incoming.write(await asyncio.wait_for(reader.read(1 << 16), ANSWER_S))
    except (OSError, TimeoutError, ssl.SSLError):
        pass
    finally:
        writer.transport.abort()


@pytest.mark.timeout(600 + HANDSHAKES // 50)
@pytest.mark.uvloop_too
async def test_broken_handshakes_are_never_served(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    authority = Authority.make(tmp_path / "ca")
    issued = authority.issue(tmp_path / "own", ["127.0.0.1"])
    context = client_context(TlsFiles(ca_file=str(authority.ca_file)), verify_name=True)
    rules = tls_settings(issued, "require", authority, handshakes_rate=100_000)
    own = trusting(authority, authority.issue(tmp_path / "client"))
    async with one_worker(rules, hello_timeout_ms=500) as (harness, bookie):
        for at in range(0, HANDSHAKES, AT_ONCE):
            seeds = [dice.randbytes(8) for _ in range(min(AT_ONCE, HANDSHAKES - at))]
            await asyncio.gather(*(attempt(bookie, context, random.Random(seed)) for seed in seeds))
            assert harness.take_all() == [], at
        client = await secure(bookie, own)
        await greet(client)
        await client.close()
        await until(lambda: not bookie.network.connections)
        assert counted(harness, "TLS_HANDSHAKES") >= 1
