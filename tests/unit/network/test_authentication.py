"""Who authenticates, and what it may do then, in all three protocols.

INV-N2: to a client without rights a bookie answers nothing but AUTH and START_TLS; each request needs its right.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fastbk.safe_files import write_text
from fastbk.security.authority import Authority, Issued
from fastbk.security.digest_md5 import DigestClient
from fastbk.security.settings import (
    AuthenticationSettings,
    AuthorizationSettings,
)
from fastbk.security.tokens import TokenKey
from fastbk.server.network import connection, network
from fastbk.wire.messages import (
    SASL,
    TOKEN,
    ErrorReply,
    decode_reply,
)
from tests.fixtures import apache_wire as apache
from tests.fixtures import frames
from tests.fixtures.apache_messages import AuthMessage
from tests.fixtures.apache_wire import EOK, EUA, hear, hear_v2, hear_v3
from tests.fixtures.counters import counted
from tests.fixtures.frames import answer_of
from tests.fixtures.logins import KEY, hello, in_v3, log_in, show_token, token
from tests.fixtures.users import sasl_settings
from tests.fixtures.worker_harness import CLUSTER_ID, WorkerHarness, served, until
from tests.fixtures.worker_tls import secure, tls_settings, trusting

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
    with WorkerHarness() as harness:
        async with served(harness, authentication=users) as bookie:
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
    with WorkerHarness() as harness:
        async with served(harness, authentication=users, authorization=BY_ROLE) as bookie:
            for user, password in (("reader", "of writer"), ("nobody", "of reader")):
                client = await bookie.connect()
                status, reason = await log_in(client, user, password)
                assert (status, reason) == (
                    UNAUTHORIZED,
                    "the user or the password is not accepted",
                )
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
    with WorkerHarness() as harness:
        async with served(harness, tls_settings(issued), users) as bookie:
            client = await bookie.connect()
            client.send(frames.MAGIC + hello(1, SASL, b""))
            _, status, reply = decode_reply(await client.frame())
            assert status == UNAUTHORIZED
            assert isinstance(reply, ErrorReply)
            assert "over TLS only" in reply.message
            await client.is_closed()
            client = await secure(bookie, trusting(authority))
            assert await log_in(client, "reader", "of reader") == (OK, "")
            await client.close()


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
    with WorkerHarness() as harness:
        async with served(harness, tls_settings(issued, "require"), users) as bookie:
            client = await bookie.connect()
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
            await client.close()


async def test_sasl_in_the_clear_is_refused_when_no_upgrade_follows(
    users: AuthenticationSettings, issued: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "START_TLS_WAIT_S", 0.05)
    users = msgspec.structs.replace(users, sasl_without_tls=False)
    with WorkerHarness() as harness:
        async with served(harness, tls_settings(issued), users) as bookie:
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
    with WorkerHarness() as harness:
        async with served(harness, tls_settings(issued), tokens) as bookie:
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
    with WorkerHarness() as harness:
        async with served(harness, tls_settings(issued), tokens) as bookie:
            client = await secure(bookie, trusting(authority))
            assert await show_token(client, token(60)) == (OK, "")
            client.send(frames.hello(7)[len(frames.MAGIC) :])
            assert answer_of(await client.frame()) == (7, BAD_REQUEST)
            assert await show_token(
                client, token(600, operations=("read", "add")), request_id=8
            ) == (OK, "")
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
    with WorkerHarness() as harness:
        async with served(harness, tls_settings(issued), tokens) as bookie:
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
    with WorkerHarness() as harness:
        async with served(harness, tls, both, rules) as bookie:
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
    with WorkerHarness() as harness:
        async with served(harness) as bookie:
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
