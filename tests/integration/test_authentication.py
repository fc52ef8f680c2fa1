"""Tokens and passwords from end to end: every kind of client, renewal and revocation under load, Apache's protocol."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastbk
import fastbk.sync
from fastbk.client import connecting
from fastbk.meta import open_store
from fastbk.safe_files import write_text
from fastbk.security.credentials import Credentials
from fastbk.security.tls import TlsOptions
from fastbk.security.tokens import TokenKey
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.end_to_end import (
    BOOKIE,
    append_and_read,
    append_until,
    greeted_in_apaches_protocol,
)
from tests.fixtures.logs import text_of
from tests.fixtures.users import as_user, write_users
from tests.fixtures.wait import wait_until_async

KEY = TokenKey.generate("k1")
ALL = ("read", "add", "recover")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("auth")
    write_text(made / "keys.json", KEY.public_text())
    write_text(made / "revoked", "")
    write_users(made, "bookkeeper")
    return made


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    settings = {
        "tls": {"client_certificates": "none"},
        "authentication": {
            "methods": ["token", "sasl"],
            "token_keys_file": str(folder / "keys.json"),
            "users_file": str(folder / "users"),
            "revoked_file": str(folder / "revoked"),
            "refresh_interval": "1s",
        },
    }
    with LocalCluster(3, tls=True, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def audience(cluster: LocalCluster) -> str:
    store = open_store(cluster.metadata_uri)
    try:
        return store.instance_id()
    finally:
        store.close()


@pytest.fixture
def tls(tls: TlsOptions) -> TlsOptions:
    """Without a certificate of the client's."""
    return dataclasses.replace(tls, certificate_file="", key_file="")


@pytest.fixture
def user(folder: Path) -> Credentials:
    return dataclasses.replace(as_user(folder, "bookkeeper"), sasl_without_tls=False)


def token_of(
    path: Path, audience: str, subject: str = "app", lifetime_s: float = 3600
) -> Credentials:
    write_text(path, KEY.sign(subject, ALL, audience, lifetime_s=lifetime_s))
    return Credentials(token_file=str(path))


async def test_tokens_and_passwords_open_the_way(
    cluster: LocalCluster, audience: str, tls: TlsOptions, user: Credentials, tmp_path: Path
) -> None:
    token = token_of(tmp_path / "token", audience)
    for credentials in (token, user):
        await append_and_read(cluster.metadata_uri, tls=tls, credentials=credentials)
    with pytest.raises(fastbk.Unauthorized, match="FASTBK_TOKEN_FILE"):
        await append_and_read(cluster.metadata_uri, tls=tls)
    write_text(tmp_path / "wrong", "wrong")
    wrong = dataclasses.replace(user, password_file=str(tmp_path / "wrong"))
    with pytest.raises(fastbk.Unauthorized, match="the user or the password is not accepted"):
        await append_and_read(cluster.metadata_uri, tls=tls, credentials=wrong)
    with pytest.raises(fastbk.Unauthorized, match="has expired"):
        old = token_of(tmp_path / "old", audience, lifetime_s=-1)
        await append_and_read(cluster.metadata_uri, tls=tls, credentials=old)


def test_the_environment_serves_clients_without_await_and_the_command(
    cluster: LocalCluster,
    audience: str,
    tls: TlsOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    credentials = token_of(tmp_path / "token", audience)
    for name, value in {**tls.environment(), **credentials.environment()}.items():
        monkeypatch.setenv(name, value)
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        with client.create_ledger(3, 3, 2) as writer:
            writer.append(b"hello")
        client.namespace("auth").create()
        with client.namespace("auth").stream("s").writer(create=True) as stream:
            stream.append(b"record")
    cli = Cli(cluster.metadata_uri)
    assert cli("ledger", "read", str(writer.ledger_id)) == "0\thello\n"
    cli.end()


async def test_keys_are_rotated_and_one_is_revoked_while_others_append(
    cluster: LocalCluster,
    audience: str,
    tls: TlsOptions,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tokens of the new key take the place of the old ones on live connections; nobody else's append fails."""
    monkeypatch.setattr(connecting, "INTERVAL_S", 0.1)
    uri = cluster.metadata_uri
    kept, lost = (
        token_of(tmp_path / "kept", audience),
        token_of(tmp_path / "lost", audience, "mallory"),
    )
    ends = asyncio.Event()
    good = asyncio.create_task(append_until(asyncio.Event(), ends, uri, tls=tls, credentials=kept))
    bad = asyncio.create_task(append_until(asyncio.Event(), ends, uri, tls=tls, credentials=lost))
    try:
        new = TokenKey.generate("k2")
        write_text(
            folder / "keys.json",
            new.public_text([KEY._entry(KEY.private_key.public_key()) | {"kid": "k1"}]),
        )

        async def is_new_taken() -> bool:
            write_text(tmp_path / "probe", new.sign("probe", ALL, audience, lifetime_s=3600))
            try:
                await append_and_read(
                    uri, tls=tls, credentials=Credentials(token_file=str(tmp_path / "probe"))
                )
            except (fastbk.Unauthorized, fastbk.NotEnoughBookies):
                return False
            return True

        await wait_until_async(is_new_taken, "the new key is taken")
        write_text(tmp_path / "kept", new.sign("app", ALL, audience, lifetime_s=3600))
        write_text(folder / "revoked", "token:mallory\n")
        with pytest.raises(fastbk.Error):
            await asyncio.wait_for(asyncio.shield(bad), 30)
        # Without the old key only connections with a new token are left.
        write_text(folder / "keys.json", new.public_text())

        async def is_old_refused() -> bool:
            try:
                await append_and_read(
                    uri, tls=tls, credentials=token_of(tmp_path / "old", audience, "late")
                )
            except (fastbk.Unauthorized, fastbk.NotEnoughBookies):
                return True
            return False

        await wait_until_async(is_old_refused, "the old key is gone")
        ends.set()
        assert await good > 0
        log = text_of(cluster.bookies)
        ended = [line for line in log.splitlines() if "connection.authentication_ended" in line]
        assert any("token:mallory" in line for line in ended)
        assert not any("token:app" in line for line in ended)
    finally:
        ends.set()
        await asyncio.gather(good, bad, return_exceptions=True)
        write_text(folder / "keys.json", KEY.public_text())
        write_text(folder / "revoked", "")


@pytest.mark.parametrize("version", ["v2", "v3"])
async def test_a_client_of_ours_authenticates_in_apaches_protocol(
    cluster: LocalCluster, tls: TlsOptions, user: Credentials, tmp_path: Path, version: str
) -> None:
    """As to Apache's bookies; ours serve that protocol, too."""
    write_text(tmp_path / "wrong", "wrong")
    wrong = dataclasses.replace(user, password_file=str(tmp_path / "wrong"))

    async def hello(credentials: Credentials | None) -> str:
        return await greeted_in_apaches_protocol(cluster.bookies[0].port, version, tls, credentials)

    assert await hello(user) == BOOKIE
    with pytest.raises(fastbk.Error, match="does not accept the user or the password"):
        await hello(wrong)
    with pytest.raises(fastbk.Error, match=r"wants authentication|ended the connection"):
        await hello(None)


async def test_a_password_can_stay_out_of_metadata() -> None:
    """Its owner opens and recovers the ledger; who has the metadata alone does not."""
    async with LocalCluster(1) as plain:
        uri = plain.metadata_uri
        async with fastbk.connect(uri, passwords_in_metadata=False) as client:
            writer = await client.create_ledger(1, 1, 1, digest="hmac", password=b"secret")
            await writer.append(b"entry")
            ledger_id = writer.ledger_id
            assert writer.metadata.password is None
            async with fastbk.connect(uri) as other:
                for password in (b"", b"wrong"):
                    with pytest.raises(fastbk.Error):
                        await other.open_ledger(ledger_id, digest="hmac", password=password)
                await writer.append(b"still open")
                reader = await other.open_ledger(ledger_id, digest="hmac", password=b"secret")
                assert [bytes(one.data) async for one in reader.read(0, 1)] == [
                    b"entry",
                    b"still open",
                ]
            with pytest.raises(fastbk.LedgerFenced):
                await writer.append(b"too late")
