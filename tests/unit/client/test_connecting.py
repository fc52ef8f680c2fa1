"""A new token reaches every open connection: those too that were being opened with the old one, or did not answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from fastbk.client import connecting
from fastbk.client.config import ClientConfig
from fastbk.client.connecting import TokenRenewal
from fastbk.errors import QuorumTimeout
from fastbk.safe_files import write_text
from fastbk.security.credentials import Credentials, Login
from fastbk.security.tls import TlsOptions

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from fastbk.client.connection import Connection


class FakeConnection:
    """What a renewal sees of a connection."""

    bookie_id = "bookie-1"

    def __init__(self, token: bytes, fails: int = 0) -> None:
        self.token = token
        self.fails = fails
        self.renewals = 0

    async def renew(self, client_name: str, timeout_s: float, login: Login) -> None:
        self.renewals += 1
        await asyncio.sleep(0)
        if self.renewals <= self.fails:
            raise QuorumTimeout("it does not answer")
        self.token = login.payload


async def test_each_connection_gets_the_new_token_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "INTERVAL_S", 0.001)
    file = tmp_path / "token"
    write_text(file, "old")
    config = ClientConfig(tls=TlsOptions(), credentials=Credentials(token_file=str(file)))
    patient, deaf = FakeConnection(b"old"), FakeConnection(b"old", fails=2)
    connections = [patient, deaf]
    renewal = TokenRenewal(config, lambda: cast("list[Connection]", connections))
    renewal.begin()
    write_text(file, "another")
    async with asyncio.timeout(10):
        while any(one.token != b"another" for one in connections):
            await asyncio.sleep(0)
        # Its hello had left with the old token when the file changed.
        connections.append(late := FakeConnection(b"old"))
        while late.token != b"another":
            await asyncio.sleep(0)
    for _ in range(3):
        renewal._look()
    await asyncio.sleep(0)
    renewal.end()
    assert [one.renewals for one in connections] == [1, 3, 1]


async def test_a_new_token_is_told_of_where_each_connection_was_opened_with_it(
    tmp_path: Path,
) -> None:
    """Bookies ended the old token's connections before the file was looked at."""
    file = tmp_path / "token"
    write_text(file, "old")
    config = ClientConfig(tls=TlsOptions(), credentials=Credentials(token_file=str(file)))
    connections = [FakeConnection(b"old")]
    renewal = TokenRenewal(config, lambda: cast("list[Connection]", connections))
    told: list[bytes] = []
    renewal.on_token = lambda: told.append(renewal.token)
    renewal._look()
    assert told == []
    write_text(file, "another")
    connections[:] = [FakeConnection(b"another")]
    renewal._look()
    renewal._look()
    renewal.end()
    assert told == [b"another"]
