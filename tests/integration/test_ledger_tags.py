"""Tokens that are limited to namespaces, from end to end: ledgers, streams, renewal, lost bookies, hostile clients."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fastbk
import fastbk.sync
from fastbk.client import connecting
from fastbk.client.client import Client
from fastbk.meta import open_store
from fastbk.model.ids import LedgerId
from fastbk.safe_files import write_text
from fastbk.security.credentials import Credentials
from fastbk.security.tls import TlsOptions
from fastbk.security.tokens import TokenKey
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.wait import wait_until, wait_until_async

KEY, TAGS = TokenKey.generate("k1"), TokenKey.generate("tags-1")
ALL = ("read", "add", "recover")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("auth")
    (made / "signing").mkdir()
    (made / "public").mkdir()
    write_text(made / "public" / "keys.json", KEY.public_text())
    write_text(made / "public" / "tags.json", TAGS.public_text())
    write_text(made / "signing" / "tags.json", TAGS.text())
    return made


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    settings = {
        "tls": {"client_certificates": "none"},
        "authentication": {
            "methods": ["token"],
            "token_keys_file": str(folder / "public" / "keys.json"),
            "tag_keys_file": str(folder / "public" / "tags.json"),
            "tag_key_file": str(folder / "signing" / "tags.json"),
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
def credentials(tmp_path: Path, audience: str) -> Callable[..., Credentials]:
    def of(*namespaces: str, name: str = "token") -> Credentials:
        """With no namespace: not limited."""
        token = KEY.sign("app", ALL, audience, lifetime_s=3600, namespaces=namespaces or None)
        write_text(tmp_path / name, token)
        return Credentials(token_file=str(tmp_path / name))

    return of


async def write(client: Client, count: int = 20) -> LedgerId:
    async with await client.create_ledger(3, 2, 2) as writer:
        await asyncio.gather(*(writer.append(b"e%d" % n) for n in range(count)))
    return writer.ledger_id


async def read(client: Client, ledger_id: LedgerId, count: int = 20) -> None:
    async with await client.open_ledger(ledger_id) as reader:
        assert [bytes(one.data) async for one in reader.read(0, count - 1)] == [
            b"e%d" % n for n in range(count)
        ]


async def test_ledgers_of_the_tokens_namespaces_and_no_others(
    cluster: LocalCluster, tls: TlsOptions, credentials: Callable[..., Credentials]
) -> None:
    uri = cluster.metadata_uri
    async with (
        fastbk.connect(
            uri, tls=tls, credentials=credentials("orders", "orders/*"), namespace="orders/eu"
        ) as orders,
        fastbk.connect(
            uri, tls=tls, credentials=credentials("bills", name="b"), namespace="bills"
        ) as bills,
        fastbk.connect(uri, tls=tls, credentials=credentials(name="all")) as everything,
    ):
        of_orders, of_bills, of_none = (
            await write(orders),
            await write(bills),
            await write(everything),
        )
        await read(orders, of_orders)
        await read(bills, of_bills)
        for ledger_id in (of_orders, of_bills, of_none):
            await read(everything, ledger_id)
        for client, ledger_id in ((orders, of_bills), (bills, of_orders), (orders, of_none)):
            with pytest.raises(fastbk.Unauthorized, match="none of the namespaces of token:app"):
                await read(client, ledger_id)
        with pytest.raises(fastbk.Unauthorized, match="limited to namespaces \\(bills\\)"):
            await bills.create_ledger(3, 2, 2, metadata={"fastbk.namespace": b"orders"})
        # What has no namespace can be given one.
        await everything.edit_metadata(of_none, {"fastbk.namespace": b"bills"})
        await read(bills, of_none)


async def test_readers_see_what_a_blocked_writer_appended(
    cluster: LocalCluster, tls: TlsOptions, credentials: Callable[..., Credentials]
) -> None:
    """INV-C7: the guard's own connections have the client's TLS and token, and show the ledger's tag."""
    uri = cluster.metadata_uri
    orders = credentials("orders")
    async with fastbk.connect(uri, tls=tls, credentials=orders, namespace="orders") as client:
        writer = await client.create_ledger()
        await writer.append(b"x")
        # From here on nothing of the client's loop runs.
        with fastbk.sync.connect(uri, tls=tls, credentials=orders) as other:
            reader = other.open_ledger(writer.ledger_id, recovery=False)
            wait_until(lambda: reader.last_add_confirmed() == 0, "readers see it")


async def test_who_shows_no_tag_is_refused_whatever_its_client_does(
    cluster: LocalCluster,
    tls: TlsOptions,
    credentials: Callable[..., Credentials],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that has been changed to ask for no tags, and one that shows another ledger's."""
    uri = cluster.metadata_uri
    async with (
        fastbk.connect(
            uri, tls=tls, credentials=credentials(name="all"), namespace="bills"
        ) as owner,
        fastbk.connect(
            uri, tls=tls, credentials=credentials("orders"), namespace="orders"
        ) as hostile,
    ):
        secret, own = await write(owner), await write(hostile)
        good = await hostile.pool.tags.get(own, (await hostile.ledger_info(own)).metadata)
        assert good is not None
        for shown in (None, good, dataclasses.replace(good, ledger_id=secret)):

            async def get(*_: object, shown: object = shown) -> object:
                return shown

            monkeypatch.setattr(hostile.pool.tags, "get", get)
            with pytest.raises(fastbk.Error):
                await read(hostile, secret)
            with pytest.raises(fastbk.Error):
                await hostile.create_ledger(3, 2, 2, metadata={"fastbk.namespace": b"bills"})
        await read(owner, secret)


async def test_appends_go_on_while_bookies_and_tokens_change(
    cluster: LocalCluster,
    tls: TlsOptions,
    credentials: Callable[..., Credentials],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tag is shown again on new connections, and nothing is asked of metadata for it."""
    monkeypatch.setattr(connecting, "INTERVAL_S", 0.05)
    limited = credentials("orders")
    async with (
        fastbk.connect(
            cluster.metadata_uri, tls=tls, credentials=limited, namespace="orders"
        ) as client,
        await client.create_ledger(3, 3, 2) as writer,
    ):
        appended = [await writer.append(b"first")]
        token = client.pool.token_renewal.token
        tag = client.pool.tags
        for number in range(3):
            await cluster.kill_async(number)
            appended.append(await writer.append(b"without one"))
            await cluster.start_bookie_async(number)
            await wait_until_async(
                lambda: all(
                    peer.add_channel.connection is not None for peer in client.pool._peers.values()
                ),
                "all are back",
            )
            appended.append(await writer.append(b"with it"))
        credentials("orders", "more")
        await wait_until_async(
            lambda: client.pool.token_renewal.token not in (b"", token), "the token is new"
        )
        await wait_until_async(
            lambda: all(
                peer.add_channel.connection is not None
                and peer.add_channel.connection.token == client.pool.token_renewal.token
                for peer in client.pool._peers.values()
            ),
            "all have it",
        )
        appended.append(await writer.append(b"with a new token"))
        await wait_until_async(lambda: tag._refreshing is None, "tags are signed anew")
        appended += await asyncio.gather(*(writer.append(b"%d" % n) for n in range(100)))
        assert appended == list(range(len(appended)))


async def test_tags_are_signed_anew_where_bookies_were_replaced(
    cluster: LocalCluster,
    tls: TlsOptions,
    credentials: Callable[..., Credentials],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a writer that outlives its first bookies would end with the key that signed its first tag."""
    monkeypatch.setattr(connecting, "INTERVAL_S", 0.05)
    limited = credentials("orders")
    async with (
        fastbk.connect(
            cluster.metadata_uri, tls=tls, credentials=limited, namespace="orders"
        ) as client,
        await client.create_ledger(1, 1, 1) as writer,
    ):
        await writer.append(b"first")
        (name,) = (await client.ledger_info(writer.ledger_id)).metadata.fragments[0].ensemble
        number = [one.name for one in cluster.bookies].index(name)
        await cluster.kill_async(number)
        try:
            await writer.append(b"behind a change of the ensemble")
            (tag,) = client.pool.tags._used
            old = tag.value
            then_s = int(time.time())
            await wait_until_async(
                lambda: int(time.time()) > then_s, "its time is another, in whole seconds"
            )
            credentials("orders", "more")
            await wait_until_async(lambda: tag.value != old, "the tag is signed anew")
            assert await writer.append(b"with it") == 2
        finally:
            await cluster.start_bookie_async(number)


async def test_streams_belong_to_their_namespace(
    cluster: LocalCluster, tls: TlsOptions, credentials: Callable[..., Credentials]
) -> None:
    uri = cluster.metadata_uri
    async with fastbk.connect(uri, tls=tls, credentials=credentials(name="all")) as admin:
        for name in ("orders", "bills"):
            await admin.namespace(name).create(exist_ok=True)
    async with (
        fastbk.connect(uri, tls=tls, credentials=credentials("orders")) as orders,
        fastbk.connect(uri, tls=tls, credentials=credentials("bills", name="b")) as bills,
    ):
        stream = orders.namespace("orders").stream("s")
        async with stream.writer(create=True) as writer:
            positions = [await writer.append(b"r%d" % n) for n in range(10)]
        async with stream.writer() as writer:  # fences the one before
            positions.append(await writer.append(b"r10"))
        async with stream.reader() as reader:
            found = [await anext(reader) for _ in positions]
        records = [bytes(one.payload) for one in found if isinstance(one, fastbk.Record)]
        assert records == [b"r%d" % n for n in range(len(positions))]
        with pytest.raises(fastbk.Unauthorized):
            async with bills.namespace("orders").stream("s").writer() as writer:
                await writer.append(b"not mine")
        with pytest.raises(fastbk.Unauthorized):
            async with bills.namespace("orders").stream("s").reader() as reader:
                await reader.read()


def test_the_command_makes_such_tokens_and_works_with_them(
    cluster: LocalCluster,
    tls: TlsOptions,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**tls.environment(), "FASTBK_TOKEN_FILE": str(tmp_path / "token")}.items():
        monkeypatch.setenv(name, value)
    write_text(tmp_path / "signing.json", KEY.text())
    cli = Cli(cluster.metadata_uri)
    cli(
        "token", "create", "--key-file", str(tmp_path / "signing.json"), "--subject", "app",
        "--namespaces", "orders,orders/*", "--out", str(tmp_path / "token"),
    )  # fmt: skip
    assert '"orders/*"' in cli("token", "show", str(tmp_path / "token"))
    written = cli("ledger", "write", "--namespace", "orders/eu", stdin=b"hello\n")
    assert cli("ledger", "read", written.strip()) == "0\thello\n"
    cli.end()
