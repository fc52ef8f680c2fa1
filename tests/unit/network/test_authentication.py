"""Who authenticates, and what it may do then, in all three protocols.

INV-N2: to a client without rights a bookie answers nothing but AUTH and START_TLS; each request needs its right.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fastbk.native.worker import UNAUTHENTICATED_CLOSED
from fastbk.observe.names import SLOTS
from fastbk.safe_files import write_text
from fastbk.security.digest_md5 import DigestClient
from fastbk.security.settings import AuthenticationSettings, AuthorizationSettings
from fastbk.security.tokens import TokenKey
from fastbk.server.network import connection, network
from fastbk.server.network.acceptor import Turns
from fastbk.wire.messages import SASL, TOKEN, ErrorReply, decode_reply
from tests.fixtures import apache_wire as apache
from tests.fixtures import frames
from tests.fixtures.apache_messages import AuthMessage
from tests.fixtures.apache_wire import EOK, EUA, hear, hear_v2, hear_v3
from tests.fixtures.counters import counted
from tests.fixtures.frames import answer_of
from tests.fixtures.logins import KEY, hello, in_v3, log_in, show_token, token
from tests.fixtures.users import sasl_settings
from tests.fixtures.wait import beats
from tests.fixtures.worker_harness import CLUSTER_ID, Client, Served, one_client, one_worker, until
from tests.fixtures.worker_tls import greet, secure, tls_settings, trusting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from fastbk.security.authority import Authority, Issued

OK, BAD_REQUEST, UNAUTHORIZED, FORBIDDEN = 0, 1, 21, 28
V2_EUA = 102
APACHES = (
    lambda n: apache.v3_add(n, 0),
    lambda n: apache.v3_read(n, 0),
    apache.v3_read_lac,
    apache.v3_force,
    apache.v3_list,
)


@pytest.fixture
def users(tmp_path: Path) -> AuthenticationSettings:
    """Users of two roles, and one without any. SASL in the clear."""
    return sasl_settings(tmp_path, "reader", "writer", "other")


@pytest.fixture
def tokens(tmp_path: Path) -> AuthenticationSettings:
    write_text(tmp_path / "keys", KEY.public_text())
    write_text(tmp_path / "revoked", "")
    return AuthenticationSettings(
        methods=("token",),
        token_keys_file=str(tmp_path / "keys"),
        revoked_file=str(tmp_path / "revoked"),
        refresh_interval_s=1,
    )


@pytest.fixture
def quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(network, "SWEEP_INTERVAL_S", 0.02)
    return


BY_ROLE = AuthorizationSettings(readers=("user:reader",), writers=("user:writer",))


async def test_before_that_nothing_is_answered(users: AuthenticationSettings) -> None:
    """INV-N2. The error tells what to show."""
    async with one_worker(authentication=users) as (harness, bookie):
        client = await bookie.connect()
        client.send(frames.hello())
        _, status, reply = decode_reply(await client.frame())
        assert status == UNAUTHORIZED
        assert isinstance(reply, ErrorReply)
        assert "FASTBK_USER" in reply.message
        await client.is_closed()
        client = await bookie.connect()
        for number, make in enumerate(APACHES, 10):
            client.send(make(number))
            assert (await hear_v3(client)).status == EUA
        client.send(apache.v3_info(50, 3) + apache.v2_add(7) + apache.v2_read(0))
        assert (await hear_v3(client)).status == EUA
        assert [(await hear_v2(client)).error for _ in range(2)] == [V2_EUA, V2_EUA]
        assert await in_v3(client, "other", "of other") == EOK
        client.send(apache.v3_add(60, 0))
        await bookie.take(1)
        await client.close()
        assert counted(harness, "AUTHENTICATED") == 1


async def test_a_wrong_password_is_refused(users: AuthenticationSettings) -> None:
    async with one_worker(authentication=users, authorization=BY_ROLE) as (harness, bookie):
        for user, password in (("reader", "of writer"), ("nobody", "of reader")):
            client = await bookie.connect()
            status, reason = await log_in(client, user, password)
            assert (status, reason) == (UNAUTHORIZED, "the user or the password is not accepted")
            await client.is_closed()
            client = await bookie.connect()
            assert await in_v3(client, user, password) == EUA
            await client.is_closed()
        # Who has no role at all is told that, since the password was right.
        client = await bookie.connect()
        status, reason = await log_in(client, "other", "of other")
        assert (status, "user:other has no role" in reason) == (UNAUTHORIZED, True)
        await client.is_closed()
        # Version 2 has no status for it.
        client = await bookie.connect()
        client.send(apache.v2_auth())
        challenge = await hear_v2(client)
        assert b"md5-sess" in challenge.rest
        client.send(apache.v2_auth())
        assert await client.is_closed() == b""
        assert counted(harness, "AUTH_FAILED") == 6


async def test_sasl_is_for_tls_unless_it_is_allowed(
    users: AuthenticationSettings, authority: Authority, issued: Issued
) -> None:
    users = msgspec.structs.replace(users, sasl_without_tls=False)
    async with one_client(tls_settings(issued), users) as (_, bookie, client):
        client.send(frames.MAGIC + hello(1, SASL, b""))
        _, status, reply = decode_reply(await client.frame())
        assert status == UNAUTHORIZED
        assert isinstance(reply, ErrorReply)
        assert "over TLS only" in reply.message
        await client.is_closed()
        client = await secure(bookie, trusting(authority))
        assert await log_in(client, "reader", "of reader") == (OK, "")


@pytest.mark.uvloop_too
@pytest.mark.parametrize("is_auth_first", [True, False])
@pytest.mark.parametrize("is_at_once", [True, False])
@pytest.mark.parametrize("version", [2, 3])
async def test_java_begins_sasl_and_tls_at_once(
    is_auth_first: bool,
    is_at_once: bool,
    version: int,
    users: AuthenticationSettings,
    authority: Authority,
    issued: Issued,
) -> None:
    """INV-N1: of what came in the clear only that beginning is answered, and encrypted."""
    users = msgspec.structs.replace(users, sasl_without_tls=False)
    login = DigestClient("reader", "of reader")
    auth = apache.v3_auth(2, b"") if version == 3 else apache.v2_auth(b"")
    parts = [auth, apache.v3_start_tls(1)] if is_auth_first else [apache.v3_start_tls(1), auth]
    async with one_client(tls_settings(issued, "require"), users) as (_, bookie, client):
        if is_at_once:
            client.send(b"".join(parts))
        else:
            client.send(parts[0])
            if not is_auth_first:
                return  # then the AUTH would be taken for a part of the handshake
            await until(
                lambda: any(one.client.postponed for one in bookie.network.connections.values())
            )
            client.send(parts[1])
        assert (await hear_v3(client)).operation == apache.START_TLS
        await client.writer.start_tls(trusting(authority), server_hostname="127.0.0.1")
        if version == 3:
            payload = (await hear_v3(client)).fields[2]
            assert isinstance(payload, bytes)
            client.send(apache.v3_auth(3, login.respond(payload)))
            assert (await hear_v3(client)).status == EOK
        else:
            challenge = AuthMessage.FromString((await hear(client))[4:]).payload
            client.send(apache.v2_auth(login.respond(challenge)))
            login.finish(AuthMessage.FromString((await hear(client))[4:]).payload)
        client.send(apache.v3_read(9, 0))
        await bookie.take_request()


async def test_sasl_in_the_clear_is_refused_when_no_upgrade_follows(
    users: AuthenticationSettings, issued: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "START_TLS_WAIT_S", 0.05)
    users = msgspec.structs.replace(users, sasl_without_tls=False)
    async with one_worker(tls_settings(issued), users) as (_, bookie):
        client = await bookie.connect()
        client.send(apache.v3_auth(1, b"") + apache.v3_add(5, 0))
        assert (await hear_v3(client)).txn == 5
        refusal = await hear_v3(client)
        assert (refusal.txn, refusal.status) == (1, EUA)
        await client.is_closed()
        # Another one with something behind START_TLS that is not the beginning of SASL is cut (INV-N1).
        client = await bookie.connect()
        client.send(apache.v3_start_tls(1) + apache.v3_auth(2, b"response"))
        assert await client.is_closed() == b""


async def test_a_token_is_verified(
    tokens: AuthenticationSettings, authority: Authority, issued: Issued
) -> None:
    async with one_worker(tls_settings(issued), tokens) as (_, bookie):
        client = await secure(bookie, trusting(authority))
        assert await show_token(client, token()) == (OK, "")
        client.send(frames.read(2, 0) + frames.add(3, 0))
        await bookie.take_request()
        assert answer_of(await client.frame()) == (3, FORBIDDEN)
        await client.close()
        cases = [
            (token(lifetime_s=-1), "expired"),
            (KEY.sign("app", ["read"], "other", lifetime_s=60).encode(), "another cluster"),
            (
                TokenKey.generate("k1").sign("a", ["read"], CLUSTER_ID, lifetime_s=60).encode(),
                "Signature",
            ),
            (b"x" * 5000, "1 to 4096 bytes"),
            (b"", "1 to 4096 bytes"),
        ]
        for shown, reason in cases:
            client = await secure(bookie, trusting(authority))
            status, said = await show_token(client, shown)
            assert (status, reason in said) == (UNAUTHORIZED, True), said
            await client.is_closed()
        client = await bookie.connect()
        status, said = await show_token(client, token())
        assert (status, "over TLS only" in said) == (UNAUTHORIZED, True)
        await client.is_closed()
        # A client of Apache's has no way to show one.
        client = await bookie.connect()
        client.send(apache.v3_auth(1))
        assert (await hear_v3(client)).status == EUA
        await client.is_closed()


@pytest.mark.usefixtures("quick_sweeps")
async def test_a_token_is_renewed_on_its_connection_or_ends_it(
    tokens: AuthenticationSettings,
    authority: Authority,
    issued: Issued,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_worker(tls_settings(issued), tokens) as (harness, bookie):
        client = await secure(bookie, trusting(authority))
        assert await show_token(client, token(60)) == (OK, "")
        client.send(frames.hello(7)[len(frames.MAGIC) :])
        assert answer_of(await client.frame()) == (7, BAD_REQUEST)
        assert await show_token(client, token(600, operations=("read", "add")), request_id=8) == (
            OK,
            "",
        )
        client.send(frames.add(9, 0))
        await bookie.take(1)
        harness.publish()
        assert answer_of(await client.frame()) == (9, OK)
        other = await secure(bookie, trusting(authority))
        assert await show_token(other, token(60)) == (OK, "")
        status, said = await show_token(other, token(60, subject="somebody"), request_id=8)
        assert (status, "same subject" in said) == (UNAUTHORIZED, True)
        await other.is_closed()
        short = await secure(bookie, trusting(authority))
        assert await show_token(short, token(60)) == (OK, "")
        # In its time only the longer token is good.
        bookie.network.principals._wall_clock_s = lambda: time.time() + 100
        await short.is_closed()
        client.send(frames.ping(10))
        assert answer_of(await client.frame()) == (10, OK)
        assert counted(harness, "AUTH_ENDED") == 1
        await client.close()


@pytest.mark.usefixtures("quick_sweeps")
@pytest.mark.parametrize("what", ["subject", "id", "key", "removed key"])
async def test_who_is_revoked_is_cut_off_and_nobody_else(
    what: str, tokens: AuthenticationSettings, authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    other_key = TokenKey.generate("k2")
    entries = [{**KEY._entry(KEY.private_key.public_key()), "kid": "k1"}]
    write_text(tmp_path / "keys", other_key.public_text(entries))
    async with one_worker(tls_settings(issued), tokens) as (_, bookie):
        bookie.network.principals._refresh_s = 0.0
        client, other = [await secure(bookie, trusting(authority)) for _ in range(2)]
        shown = token()
        assert await show_token(client, shown) == (OK, "")
        kept = other_key.sign("other", ["read"], CLUSTER_ID, lifetime_s=60).encode()
        assert await show_token(other, kept) == (OK, "")
        (principal,) = [
            one.client.principal
            for one in bookie.network.connections.values()
            if one.client.principal.name == "token:app"
        ]
        lines = {"subject": "token:app", "id": f"id:{principal.token_id}", "key": "key:k1"}
        write_text(tmp_path / "revoked", "nonsense")  # is not taken
        if what == "removed key":
            write_text(tmp_path / "revoked", "")
            write_text(tmp_path / "keys", other_key.public_text())
        else:
            write_text(tmp_path / "revoked", lines[what] + "\n")
        await client.is_closed()
        again = await secure(bookie, trusting(authority))
        status, _ = await show_token(again, shown)
        assert status == UNAUTHORIZED
        await again.is_closed()
        other.send(frames.ping(3))
        assert answer_of(await other.frame()) == (3, OK)
        await other.close()


async def test_a_certificate_is_enough_where_it_counts(
    authority: Authority, issued: Issued, tmp_path: Path, users: AuthenticationSettings
) -> None:
    """By its role; who shows none has to authenticate otherwise."""
    both = msgspec.structs.replace(users, methods=("certificate", "sasl"))
    tls = msgspec.structs.replace(
        tls_settings(issued, "require", authority), client_certificates="request"
    )
    rules = AuthorizationSettings(readers=("certificate:reader", "user:reader"))
    async with one_worker(tls, both, rules) as (_, bookie):
        shown = trusting(authority, authority.issue(tmp_path / "own", roles="0:reader"))
        client = await secure(bookie, shown)
        client.send(frames.hello() + frames.read(2, 0) + frames.add(3, 0))
        assert answer_of(await client.frame()) == (1, OK)
        await bookie.take_request()
        assert answer_of(await client.frame()) == (3, FORBIDDEN)
        await client.close()
        for context, status in (
            (trusting(authority), UNAUTHORIZED),
            (
                trusting(authority, authority.issue(tmp_path / "two", roles="0:stranger")),
                UNAUTHORIZED,
            ),
        ):
            client = await secure(bookie, context)
            client.send(frames.hello())
            assert answer_of(await client.frame()) == (1, status)
            await client.is_closed()
            client = await secure(bookie, context)
            assert await log_in(client, "reader", "of reader") == (OK, "")
            await client.close()


async def test_without_authentication_credentials_are_ignored() -> None:
    """So clients can have them before bookies ask for them."""
    async with one_worker() as (_, bookie):
        for method in (TOKEN, SASL, "kerberos"):
            client = await bookie.connect()
            client.send(frames.MAGIC + hello(1, method, b"anything"))
            assert answer_of(await client.frame()) == (1, OK)
            client.send(frames.add(2, 0))
            await bookie.take(1)
            await client.close()
        client = await bookie.connect()
        client.send(apache.v3_auth(1))
        assert (await hear_v3(client)).fields[1] == "AuthDisabledPlugin"
        await client.close()


# INV-N6: who has not authenticated holds a connection for a bounded time, and few of them,
# whatever it sends.
#
# Handshakes: an address takes turns with the others, and who has not sent a whole ClientHello has
# none.


HELLO_TIMEOUTS = SLOTS["FBK_C_WORKER_HELLO_TIMEOUTS"]


@pytest.fixture
def one_user(tmp_path: Path) -> AuthenticationSettings:
    return sasl_settings(tmp_path, "writer")


@contextlib.asynccontextmanager
async def sending(client: Client, data: Callable[[int], bytes]) -> AsyncIterator[None]:
    """Send something new every few milliseconds, and read whatever is answered."""

    async def send() -> None:
        numbers = itertools.count()
        async for _ in beats(0.005):
            client.send(data(next(numbers)))

    async def read() -> None:
        with contextlib.suppress(ConnectionError):
            while await client.reader.read(1 << 16):
                pass

    tasks = [asyncio.create_task(send()), asyncio.create_task(read())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


async def authenticated(bookie: Served) -> Client:
    """Return a client that has authenticated; on a busy machine the deadline of strangers may meet it, too."""
    while True:
        client = await bookie.connect()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            assert await in_v3(client, "writer", "of writer") == EOK
            return client


BUSY: dict[str, Callable[[int], bytes]] = {
    "requests": lambda n: apache.v3_read(n, 0),
    "version 2": lambda n: apache.v2_read(n),
    "requests behind a challenge": lambda n: (
        apache.v3_auth(n, b"") if n == 0 else apache.v3_read(n, 0)
    ),
    "bytes of a frame": lambda n: b"\x00\x00\xff\x00" if n == 0 else b"\x00",
    "bytes of a hello": lambda n: frames.MAGIC + b"\xff\x03\x00\x00" if n == 0 else b"\x00",
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("kind", BUSY)
async def test_who_does_not_authenticate_is_closed_whatever_it_sends(
    kind: str, one_user: AuthenticationSettings, quick_sweeps: None
) -> None:
    async with one_worker(
        authentication=one_user, hello_timeout_ms=300, frame_timeout_ms=60_000
    ) as (harness, bookie):
        known = await authenticated(bookie)
        before = harness.counter(HELLO_TIMEOUTS)
        stranger = await bookie.connect()
        async with sending(stranger, BUSY[kind]):
            await until(lambda: harness.counter(HELLO_TIMEOUTS) == before + 1)
        await until(lambda: len(bookie.network.connections) == 1)
        known.send(apache.v3_read(9, 0))  # it has no such deadline
        await bookie.take_request()
        await known.close()


async def test_where_nobody_has_to_authenticate_a_connection_may_rest(quick_sweeps: None) -> None:
    async with one_worker(hello_timeout_ms=50) as (harness, bookie):
        silent, quiet = await bookie.connect(), await bookie.connect()
        quiet.send(apache.v3_read(1, 0))
        await bookie.take_request()
        wakes = counted(harness, "WAKES")
        await until(lambda: counted(harness, "WAKES") > wakes + 10)
        assert len(bookie.network.connections) == 2
        for client in (silent, quiet):
            await client.close()


async def test_they_hold_a_quarter_of_all_connections(one_user: AuthenticationSettings) -> None:
    """However many they are and whatever they send, who authenticates finds room for all the others."""
    async with one_worker(authentication=one_user, connections_max=16) as (harness, bookie):
        strangers = [await bookie.connect() for _ in range(40)]
        for number, stranger in enumerate(strangers):
            stranger.send(apache.v3_read(number, 0))
        known = []
        for number in range(12):
            client = await bookie.connect()
            if number % 2:
                assert await in_v3(client, "writer", "of writer") == EOK
            else:
                assert (await log_in(client, "writer", "of writer"))[0] == OK
            known.append(client)
            strangers.append(await bookie.connect())
        await until(lambda: len(bookie.network.connections) <= 16)
        assert counted(harness, "CONNECTIONS_REFUSED") == 0
        assert harness.counter(UNAUTHENTICATED_CLOSED) >= 40
        for client in known[1::2]:
            client.send(apache.v3_read(9, 0))
            await bookie.take_request()
        for client in (*known, *strangers):
            await client.close()


async def test_the_address_with_the_most_loses_its_oldest(one_user: AuthenticationSettings) -> None:
    async with one_worker(authentication=one_user, connections_max=16) as (harness, bookie):
        other = await dialled(bookie, "127.0.0.9")
        strangers = [await bookie.connect() for _ in range(3)]
        await until(lambda: len(bookie.network.connections) == 4)
        strangers += [await bookie.connect() for _ in range(2)]
        for stranger in strangers[:2]:
            await stranger.is_closed()
        assert harness.counter(UNAUTHENTICATED_CLOSED) == 2
        assert await in_v3(other, "writer", "of writer") == EOK
        assert await in_v3(strangers[2], "writer", "of writer") == EOK
        for client in (other, *strangers):
            await client.close()


# ------------------------------------------------------------------ handshakes


async def dialled(bookie: Served, source: str) -> Client:
    """Connect from another of this machine's addresses."""
    return Client(*await asyncio.open_connection("127.0.0.1", bookie.port, local_addr=(source, 0)))


def client_hello(context: ssl.SSLContext) -> bytes:
    """Return the first record of a client's handshake."""
    out = ssl.MemoryBIO()
    side = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        side.do_handshake()
    return out.read()


class Waiting:
    """A connection, as far as turns are concerned."""

    def __init__(self, address: str) -> None:
        self.address = address


def test_addresses_take_turns() -> None:
    turns, order = Turns(), []
    waiting = [Waiting(address) for address in "aaaabbc"]
    for number, one in enumerate(waiting):
        turns.add(one, lambda number=number: order.append(number))  # type: ignore[arg-type, misc]
    turns.remove(waiting[1])  # type: ignore[arg-type]
    while (begin := turns.next()) is not None:
        begin()
    assert order == [0, 4, 6, 2, 5, 3]
    turns.remove(waiting[0])  # type: ignore[arg-type]
    assert turns.next() is None


async def test_an_address_that_wants_many_handshakes_holds_up_itself_alone(
    authority: Authority, issued: Issued
) -> None:
    """At five a second the forty that came first need eight seconds; another address has the next turn."""
    context = trusting(authority)
    async with one_worker(tls_settings(issued, handshakes_rate=5)) as (_, bookie):
        loop = asyncio.get_running_loop()
        flood = [await dialled(bookie, "127.0.0.9") for _ in range(40)]
        for one in flood:
            one.send(client_hello(context))
        await until(
            lambda: sum(one.opening is not None for one in bookie.network.connections.values()) >= 5
        )
        began_s = loop.time()
        client = await secure(bookie, context)
        await greet(client)
        assert loop.time() - began_s < 2.0
        for one in (*flood, client):
            await one.close()


@pytest.mark.parametrize(
    "sent", [b"\x16", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00", b"\x16\x03\x01\x02\x00\x01more"]
)
@pytest.mark.uvloop_too
async def test_part_of_a_client_hello_takes_no_turn(
    sent: bytes, authority: Authority, issued: Issued
) -> None:
    async with one_worker(tls_settings(issued, handshakes_rate=1)) as (_, bookie):
        loop = asyncio.get_running_loop()
        flood = [await bookie.connect() for _ in range(30)]
        for one in flood:
            one.send(sent)
        await until(
            lambda: sum(one.awaited_bytes > 1 for one in bookie.network.connections.values()) == 30
        )
        began_s = loop.time()
        client = await secure(bookie, trusting(authority))
        await greet(client)
        assert loop.time() - began_s < 1.0
        for one in (*flood, client):
            await one.close()
        await until(lambda: not bookie.network.connections)


@pytest.mark.uvloop_too
async def test_a_client_hello_in_pieces_is_taken(authority: Authority, issued: Issued) -> None:
    async with one_client(tls_settings(issued)) as (_, bookie, client):
        hello = client_hello(trusting(authority))
        for piece, awaited in ((hello[:1], 6), (hello[1:-1], len(hello))):
            client.send(piece)
            await until(
                lambda n=awaited: (
                    [c.awaited_bytes for c in bookie.network.connections.values()] == [n]
                )
            )
        client.send(hello[-1:])
        assert (await client.reader.readexactly(1)) == b"\x16", "the server's part of the handshake"


@pytest.mark.parametrize("sent", [b"\x16", b"\x16\x03\x01\x02\x00\x01more"])
@pytest.mark.uvloop_too
async def test_who_ends_in_the_middle_of_a_client_hello_is_gone(
    sent: bytes, issued: Issued
) -> None:
    async with one_client(tls_settings(issued), hello_timeout_ms=60_000) as (_, bookie, client):
        client.send(sent)
        await until(
            lambda: any(one.awaited_bytes > 1 for one in bookie.network.connections.values())
        )
        client.writer.write_eof()
        await until(lambda: not bookie.network.connections)


@pytest.mark.uvloop_too
async def test_an_upgrade_waits_for_its_turn_as_any_handshake(
    authority: Authority, issued: Issued
) -> None:
    """At two a second the five last the second and a half that three of them wait for."""

    async def upgraded(bookie: Served) -> Client:
        client = await bookie.connect()
        client.send(apache.v3_start_tls(1))
        assert (await hear_v3(client)).status == EOK
        await client.writer.start_tls(trusting(authority), server_hostname="127.0.0.1")
        client.send(apache.v3_read(9, 0))
        return client

    async with one_worker(tls_settings(issued, handshakes_rate=2)) as (harness, bookie):
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        clients = await asyncio.gather(*(upgraded(bookie) for _ in range(5)))
        for _ in clients:
            await bookie.take_request()
        assert loop.time() - began_s >= 1.0
        for client in clients:
            await client.close()
        assert counted(harness, "TLS_HANDSHAKES") == 5
