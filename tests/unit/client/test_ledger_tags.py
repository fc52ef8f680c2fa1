"""The client's tags: of which bookie it takes one, and what it makes of bookies that ask for none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from fastbk.client import ledger_tags
from fastbk.client.connection import Answer
from fastbk.client.ledger_tags import LedgerTags, show
from fastbk.errors import NotEnoughBookies, Unauthorized
from fastbk.model.ids import BookieId
from fastbk.native import client_codec as codec
from fastbk.safe_files import write_text
from fastbk.security.credentials import Credentials
from fastbk.security.tokens import TokenKey
from fastbk.wire.messages import ErrorReply, HelloReply, encode_reply
from fastbk.wire.statuses import Status
from tests.fixtures.metadata import metadata
from tests.fixtures.wait import wait_until_async

if TYPE_CHECKING:
    from fastbk.client.connection import Connection

KEY = TokenKey.generate("k1")
A, B, C = (BookieId(one) for one in ("a", "b", "c"))


def token(*namespaces: str) -> str:
    return KEY.sign("app", ("read", "add"), "cluster", lifetime_s=60, namespaces=namespaces or None)


def says(payload: bytes | None) -> Answer:
    """A bookie's answer: the tag; b"": it asks for none; None: it cannot sign one."""
    if payload is None:
        frame = encode_reply(1, Status.UNSUPPORTED, ErrorReply(message="no key"))
        return Answer(Status.UNSUPPORTED, codec.ERROR_REPLY, -1, -1, False, b"", b"", frame)
    reply = HelloReply(
        version=1, frame_size_bytes_max=1 << 20, batch_entry_count_max=1, pending_requests_max=1, incarnation=1,
        bookie_id="a", software="fastbk", auth_payload=payload,
    )  # fmt: skip
    return Answer(
        Status.OK, codec.HELLO_REPLY, -1, -1, False, b"", b"", encode_reply(1, Status.OK, reply)
    )


def tags_of(
    file: Path, answers: dict[BookieId, bytes | None], renewed: list[bytes] | None = None
) -> LedgerTags:
    async def request(bookie_id: BookieId, build: Callable[[int], bytes]) -> Answer:
        build(1)
        return says(answers[bookie_id])

    return LedgerTags(
        Credentials(token_file=str(file)), lambda: renewed[-1] if renewed else b"", request
    )


async def test_a_bookie_that_asks_for_no_tags_leaves_it_to_the_others(tmp_path: Path) -> None:
    """Authentication is turned on bookie by bookie: one without it says OK to who asks for a tag, and has none."""
    write_text(tmp_path / "token", token("orders"))
    of = replace(
        metadata(),
        ensemble_size=3,
        fragments=(replace(metadata().fragments[0], ensemble=(A, B, C)),),
    )
    found = await tags_of(tmp_path / "token", {A: b"", B: None, C: b"signed"}).get(7, of)
    assert found is not None
    assert found.value == b"signed"
    found = await tags_of(tmp_path / "token", {A: b"", B: None, C: None}).get(7, of)
    assert found is not None
    assert found.value == b"", "nobody who could be asked asks for one"
    show(cast("Connection", _Silent()), found, 1)
    with pytest.raises(NotEnoughBookies):
        await tags_of(tmp_path / "token", {A: None, B: None, C: None}).get(7, of)


class _Silent:
    """A connection that nothing may be sent by."""

    tags_shown: dict[int, int] = {}  # noqa: RUF012


async def test_the_limit_is_that_of_the_token_that_connections_were_given_last(
    tmp_path: Path,
) -> None:
    write_text(tmp_path / "token", token("orders"))
    renewed: list[bytes] = []
    tags = tags_of(tmp_path / "token", {}, renewed)
    tags.check("orders")
    with pytest.raises(Unauthorized):
        tags.check("bills")
    renewed.append(token("bills").encode())
    tags.check("bills")
    with pytest.raises(Unauthorized):
        tags.check("orders")
    renewed.append(token().encode())
    tags.check("orders")
    assert await tags.get(7, metadata()) is None


async def test_tags_that_are_in_use_are_signed_anew_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_tags, "REFRESH_INTERVAL_S", 0.01)
    write_text(tmp_path / "token", token("orders"))
    answers: dict[BookieId, bytes | None] = {BookieId("a:1"): b"first", BookieId("b:2"): b"first"}
    tags = tags_of(tmp_path / "token", answers)
    found = await tags.get(7, metadata())
    assert found is not None and found.value == b"first"
    answers.update(dict.fromkeys(answers))
    answers[BookieId("b:2")] = b"second"
    await wait_until_async(lambda: found.value == b"second", "it is signed anew")
    answers.update(dict.fromkeys(answers, b"third"))
    tags.close()
    assert tags._timer is not None and tags._timer.cancelled()
