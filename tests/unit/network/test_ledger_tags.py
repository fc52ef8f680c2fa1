"""Clients that are limited to namespaces, frame by frame.

INV-N4: of such a client only requests for ledgers are served that it has shown a good tag for, on that connection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastbk.client.connection import Answer
from fastbk.client.ledger_tags import LedgerTag, show
from fastbk.errors import Error
from fastbk.native import client_codec as codec
from fastbk.native.worker import TAGS_MAX as TAGS_MAX_IN_C
from fastbk.safe_files import write_text
from fastbk.security.authority import Authority, Issued
from fastbk.security.settings import AuthenticationSettings
from fastbk.security.tokens import TokenKey, sign_tag
from fastbk.server.network import ledger_tags
from fastbk.wire.messages import (
    TAG,
    TAG_WANTED,
    TAGS_MAX,
    ErrorReply,
    HelloReply,
    decode_cold_request,
    decode_reply,
    encode_info,
    encode_reply,
)
from tests.fixtures import frames
from tests.fixtures.counters import counted
from tests.fixtures.frames import LEDGER, answer_of
from tests.fixtures.logins import KEY, hello, show_token
from tests.fixtures.worker_harness import CLUSTER_ID, Client, Served, one_worker, until
from tests.fixtures.worker_tls import secure, tls_settings, trusting
from tests.unit.network.test_rights import OURS

OK, BAD_REQUEST, UNSUPPORTED, NOT_READY, NO_LEDGER, BUSY, FORBIDDEN = 0, 1, 2, 3, 10, 25, 28
TAGS = TokenKey.generate("tags-1")
WRITER = ("read", "add", "recover")


@pytest.fixture
def tokens(tmp_path: Path) -> AuthenticationSettings:
    write_text(tmp_path / "keys", KEY.public_text())
    write_text(tmp_path / "tags", TAGS.public_text())
    return AuthenticationSettings(
        methods=("token",),
        token_keys_file=str(tmp_path / "keys"),
        tag_keys_file=str(tmp_path / "tags"),
        tag_key_file="/the/supervisor/has/it",
    )


def limited(*namespaces: str, operations: tuple[str, ...] = WRITER) -> bytes:
    return KEY.sign("app", operations, CLUSTER_ID, lifetime_s=60, namespaces=namespaces).encode()


def tag(ledger_id: int = LEDGER, namespace: str = "orders", key: TokenKey = TAGS) -> bytes:
    return sign_tag(key, ledger_id, namespace, CLUSTER_ID)


async def said(client: Client) -> tuple[int, int, str]:
    """Return the next reply to a hello: its id, its status, and the payload or the reason of a refusal."""
    request_id, status, reply = decode_reply(await client.frame())
    if isinstance(reply, HelloReply):
        return request_id, status, reply.auth_payload.decode()
    assert isinstance(reply, ErrorReply)
    return request_id, status, reply.message


async def entered(bookie: Served, authority: Authority, token: bytes) -> Client:
    client = await secure(bookie, trusting(authority))
    assert await show_token(client, token) == (OK, "")
    return client


@pytest.mark.parametrize("operations", [WRITER, ("read",), ("add",), ("recover",)])
async def test_each_request_needs_the_ledgers_tag_and_the_tokens_right(
    operations: tuple[str, ...],
    tokens: AuthenticationSettings,
    authority: Authority,
    issued: Issued,
) -> None:
    """INV-N4. Nothing of a refused request reaches a ring."""
    async with one_worker(tls_settings(issued), tokens) as (harness, bookie):
        client = await entered(bookie, authority, limited("orders", operations=operations))
        for number, (_, make) in enumerate(OURS, 10):
            client.send(make(number))
            assert answer_of(await client.frame()) == (number, FORBIDDEN)
        # Requests may follow a tag at once.
        client.send(hello(30, TAG, tag()) + frames.ping(31))
        assert await said(client) == (30, OK, "")
        assert answer_of(await client.frame()) == (31, OK)
        for number, (right, make) in enumerate(OURS, 40):
            client.send(make(number))
            if right in operations:
                await (bookie.take_request() if right == "read" else bookie.take(1))
            else:
                assert answer_of(await client.frame()) == (number, FORBIDDEN)
        client.send(frames.add(60, 0, ledger_id=LEDGER + 1))
        client.send(encode_info(61))
        harness.publish()
        answers = {}
        while 61 not in answers:
            request_id, status = answer_of(await client.frame())
            answers[request_id] = status
        assert answers[60] == FORBIDDEN
        assert harness.take_all() == []
        await client.close()


async def test_a_tag_must_be_good_and_of_one_of_the_tokens_namespaces(
    tokens: AuthenticationSettings, authority: Authority, issued: Issued
) -> None:
    async with one_worker(tls_settings(issued), tokens) as (harness, bookie):
        client = await entered(bookie, authority, limited("orders/*"))
        cases = [
            (tag(namespace="orders"), "none of the namespaces of token:app"),
            (tag(namespace=""), "none of the namespaces"),
            (tag(namespace="orders/eu", key=KEY), "no key 'k1'"),
            (tag(namespace="orders/eu", key=TokenKey.generate("tags-1")), "Signature"),
            (sign_tag(TAGS, LEDGER, "orders/eu", "another"), "another cluster"),
            (limited("orders/*"), "no key"),
            (b"x", "not good"),
            (b"", "1 to 4096 bytes"),
        ]
        for number, (shown, reason) in enumerate(cases, 10):
            client.send(hello(number, TAG, shown))
            request_id, status, text = await said(client)
            assert (request_id, status, reason in text) == (number, FORBIDDEN, True), text
            client.send(frames.read(50 + number, 0))
            assert answer_of(await client.frame()) == (50 + number, FORBIDDEN)
        assert counted(harness, "REFUSED_RIGHTS") == 2 * len(cases)
        client.send(hello(99, TAG, tag(namespace="orders/eu/x")) + frames.read(100, 0))
        assert await said(client) == (99, OK, "")
        await bookie.take_request()
        await client.close()


async def test_a_tag_holds_for_its_connection_until_the_token_is_renewed(
    tokens: AuthenticationSettings, authority: Authority, issued: Issued
) -> None:
    async with one_worker(tls_settings(issued), tokens) as (_, bookie):
        client, other = [await entered(bookie, authority, limited("orders")) for _ in range(2)]
        client.send(hello(2, TAG, tag()) + frames.read(3, 0))
        assert await said(client) == (2, OK, "")
        await bookie.take_request()
        other.send(frames.read(3, 0))
        assert answer_of(await other.frame()) == (3, FORBIDDEN)
        assert await show_token(client, limited("orders"), request_id=4) == (OK, "")
        client.send(frames.read(5, 0))
        assert answer_of(await client.frame()) == (5, FORBIDDEN)
        # A token without a limit needs no tag, and one behind a limit cannot keep what it had.
        unlimited = KEY.sign("app", WRITER, CLUSTER_ID, lifetime_s=60).encode()
        assert await show_token(client, unlimited, request_id=6) == (OK, "")
        client.send(hello(7, TAG, b"whatever") + frames.read(8, 0))
        assert await said(client) == (7, OK, "")
        await bookie.take_request()
        assert await show_token(client, limited("other"), request_id=9) == (OK, "")
        client.send(frames.read(10, 0))
        assert answer_of(await client.frame()) == (10, FORBIDDEN)
        # A slot's next user has nothing of the one before.
        await client.close()
        await other.close()
        await until(lambda: not bookie.network.connections)
        again = await entered(bookie, authority, limited("orders"))
        again.send(frames.read(3, 0))
        assert answer_of(await again.frame()) == (3, FORBIDDEN)
        await again.close()


async def test_of_too_many_tags_the_oldest_is_forgotten(
    tokens: AuthenticationSettings, authority: Authority, issued: Issued
) -> None:
    """The client counts the same way, so the bound is a part of the protocol."""
    assert TAGS_MAX == TAGS_MAX_IN_C
    async with one_worker(tls_settings(issued), tokens) as (_, bookie):
        client = await entered(bookie, authority, limited("orders"))
        (slot,) = bookie.network.connections
        # Ids that share homes in the table, and their neighbours.
        ids = [(n * 0x10001) % (1 << 40) for n in range(3 * TAGS_MAX)]

        async def is_served(ledger_id: int) -> bool:
            client.send(frames.read(9, 0, ledger_id=ledger_id) + frames.ping(10))
            first = answer_of(await client.frame())
            if first == (9, FORBIDDEN):
                assert answer_of(await client.frame()) == (10, OK)
                return False
            assert first == (10, OK)
            await bookie.take_request()
            return True

        for at, one in enumerate(ids):
            bookie.worker.grant(slot, one)
            bookie.worker.grant(slot, one)  # it is the youngest still
            if at % 1024 == 7 or at > 3 * TAGS_MAX - 3:
                oldest = max(0, at + 1 - TAGS_MAX)
                assert await is_served(ids[at])
                assert await is_served(ids[oldest])
                assert await is_served(ids[(oldest + at) // 2])
                if oldest:
                    assert not await is_served(ids[oldest - 1])
                    assert not await is_served(ids[0])
        await client.close()


async def test_the_client_knows_which_tags_the_bookie_has_whatever_was_refused(
    tokens: AuthenticationSettings, authority: Authority, issued: Issued
) -> None:
    """A refused tag takes a place of the client's count, and none of the bookie's; its refusal may come late."""
    async with one_worker(tls_settings(issued), tokens) as (_, bookie):
        client = await entered(bookie, authority, limited("orders"))
        (slot,) = bookie.network.connections
        numbers = itertools.count(1)
        late: list[Callable[[], None]] = []

        def send_request(
            request_id: int, frame: bytes, told: Callable[[Answer | Error], None]
        ) -> None:
            asked = decode_cold_request(frame).hello
            assert asked is not None
            if asked.auth_payload == b"bad":
                refusal = encode_reply(request_id, FORBIDDEN, ErrorReply(message="bad"))
                answer = Answer(FORBIDDEN, codec.ERROR_REPLY, -1, -1, False, b"", b"", refusal)
                late.append(lambda: told(answer))
            else:
                bookie.worker.grant(slot, int(asked.auth_payload))

        connection = SimpleNamespace(tags_shown={}, send_request=send_request, bookie_id="b")

        def show_tag(ledger_id: int, value: bytes = b"") -> None:
            shown = LedgerTag(ledger_id, (), value or b"%d" % ledger_id)
            show(cast("Any", connection), shown, next(numbers))

        async def is_served(ledger_id: int) -> bool:
            client.send(frames.read(9, 0, ledger_id=ledger_id) + frames.ping(10))
            first = answer_of(await client.frame())
            if first == (9, FORBIDDEN):
                assert answer_of(await client.frame()) == (10, OK)
                return False
            await bookie.take_request()
            return True

        for one in range(TAGS_MAX):
            show_tag(one)
        show_tag(9_999_999, b"bad")
        late.pop()()
        show_tag(0)
        show_tag(TAGS_MAX)
        for one in (0, 2, TAGS_MAX):
            assert one in connection.tags_shown
            assert await is_served(one)
        # A refusal that comes when a better tag was shown already says nothing of that one.
        show_tag(9_999_999, b"bad")
        connection.tags_shown.clear()
        bookie.worker.admit(slot, *bookie.network.connections[slot].client.principal.granted)
        show_tag(9_999_999)
        late.pop()()
        assert list(connection.tags_shown) == [9_999_999]
        await client.close()


async def test_a_tag_that_is_asked_for_comes_from_the_supervisor(
    tokens: AuthenticationSettings,
    authority: Authority,
    issued: Issued,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []
    async with one_worker(tls_settings(issued), tokens) as (_, bookie):
        tags = bookie.network.handlers.tags
        client, gone = [await entered(bookie, authority, limited("orders")) for _ in range(2)]
        client.send(hello(2, TAG_WANTED, b"5"))
        assert (await said(client))[:2] == (2, BUSY), "nobody takes it to the supervisor"
        bookie.supervisor.hear = lambda message: not asked.append(message)  # type: ignore[func-returns-value]
        gone.send(hello(3, TAG_WANTED, b"5"))
        client.send(hello(3, TAG_WANTED, b"5") + hello(4, TAG_WANTED, b"6") + frames.ping(5))
        assert answer_of(await client.frame()) == (5, OK), "what comes behind does not wait"
        await until(lambda: len(tags._asked[5].waiting) == 2)
        assert asked == [{"type": "tag_wanted", "ledger": one} for one in (5, 6)]
        await gone.close()
        await until(lambda: len(bookie.network.connections) == 1)
        tags.known({"type": "tag_known", "ledger": 5, "namespace": "orders", "tag": "signed"})
        assert await said(client) == (3, OK, "signed")
        # nobody waits
        tags.known({"type": "tag_known", "ledger": 5, "namespace": "orders", "tag": "signed"})
        tags.known({"type": "tag_known", "ledger": 6, "namespace": "others", "tag": "signed"})
        assert (await said(client))[:2] == (4, FORBIDDEN)
        client.send(hello(6, TAG_WANTED, b"7") + hello(7, TAG_WANTED, b"8"))
        await until(lambda: len(asked) == 4)
        tags.known({"type": "tag_known", "ledger": 7, "is_missing": True, "reason": "away"})
        tags.known({"type": "tag_known", "ledger": 8, "reason": "away"})
        assert (await said(client))[:2] == (6, NO_LEDGER)
        assert (await said(client))[:2] == (7, NOT_READY)
        for number, wrong in enumerate((b"", b"x", b"-1", b"9" * 20, str(1 << 63).encode()), 10):
            client.send(hello(number, TAG_WANTED, wrong))
            assert (await said(client))[:2] == (number, BAD_REQUEST)
        # Both kinds of room are bounded; what the supervisor left unanswered gives way after a time.
        monkeypatch.setattr(ledger_tags, "LEDGERS_MAX", 2)
        monkeypatch.setattr(ledger_tags, "CLIENTS_MAX", 2)
        client.send(b"".join(hello(20 + n, TAG_WANTED, b"1") for n in range(3)))
        assert (await said(client))[:2] == (22, BUSY)
        client.send(hello(30, TAG_WANTED, b"2") + hello(31, TAG_WANTED, b"3"))
        assert (await said(client))[:2] == (31, BUSY)
        now_s = tags._clock_s()
        tags._clock_s = lambda: now_s + 100
        client.send(hello(40, TAG_WANTED, b"3"))
        await until(lambda: set(tags._asked) == {3})
        await client.close()


async def test_a_client_that_asks_for_all_tags_keeps_no_other_from_asking(
    tokens: AuthenticationSettings, authority: Authority, issued: Issued
) -> None:
    async with one_worker(tls_settings(issued), tokens) as (_, bookie):
        tags = bookie.network.handlers.tags
        bookie.supervisor.hear = lambda _: True
        hostile, honest = [await entered(bookie, authority, limited("orders")) for _ in range(2)]
        # Of many ledgers, and of one.
        for name in (lambda n: b"%d" % n, lambda _: b"5"):
            ids = range(1000, 1000 + ledger_tags.LEDGERS_MAX)
            hostile.send(b"".join(hello(n, TAG_WANTED, name(n)) for n in ids))
            for n in range(ledger_tags.WANTED_MAX, ledger_tags.LEDGERS_MAX):
                assert (await said(hostile))[:2] == (1000 + n, BUSY)
            assert sum(len(one.waiting) for one in tags._asked.values()) == ledger_tags.WANTED_MAX
            honest.send(hello(3, TAG_WANTED, b"5") + frames.ping(4))
            assert answer_of(await honest.frame()) == (4, OK)
            for one in list(tags._asked):
                tags.known(
                    {"type": "tag_known", "ledger": one, "namespace": "orders", "tag": "signed"}
                )
            assert await said(honest) == (3, OK, "signed")
            for _ in range(ledger_tags.WANTED_MAX):
                assert (await said(hostile))[1] == OK
        assert {one.client.tags_wanted for one in bookie.network.connections.values()} == {0}
        for one in (hostile, honest):
            await one.close()


async def test_a_bookie_without_keys_of_tags_serves_nobody_who_needs_one(
    tokens: AuthenticationSettings, authority: Authority, issued: Issued
) -> None:
    bare = AuthenticationSettings(methods=("token",), token_keys_file=tokens.token_keys_file)
    async with one_worker(tls_settings(issued), bare) as (_, bookie):
        client = await entered(bookie, authority, limited("*"))
        client.send(hello(2, TAG, tag()) + hello(3, TAG_WANTED, b"5") + frames.read(4, 0))
        assert (await said(client))[:2] == (2, UNSUPPORTED)
        assert (await said(client))[:2] == (3, UNSUPPORTED)
        assert answer_of(await client.frame()) == (4, FORBIDDEN)
        await client.close()


async def test_connections_end_when_the_key_of_their_tags_is_removed(
    tokens: AuthenticationSettings,
    authority: Authority,
    issued: Issued,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastbk.server.network.network.SWEEP_INTERVAL_S", 0.02)
    async with one_worker(tls_settings(issued), tokens) as (_, bookie):
        bookie.network.principals._refresh_s = 0.0
        client, other = [await entered(bookie, authority, limited("orders")) for _ in range(2)]
        client.send(hello(2, TAG, tag()))
        assert await said(client) == (2, OK, "")
        write_text(Path(tokens.tag_keys_file), TokenKey.generate("tags-2").public_text())
        await client.is_closed()
        other.send(hello(3, TAG, tag()))
        assert (await said(other))[:2] == (3, FORBIDDEN)
        await other.close()
