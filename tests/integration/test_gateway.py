"""Gateways from end to end: a real ZooKeeper that clients may not reach, bookies with TLS, tokens, kills under load.

INV-W1, INV-W3.
"""

from __future__ import annotations

import asyncio
import dataclasses
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fastbk
import fastbk.sync
from fastbk.devcluster.cluster import ZooKeeperServer
from fastbk.errors import ConfigError, MetadataUnavailable, Unauthorized
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.gateway import store as gateway_calls
from fastbk.meta.gateway import store as gateway_watches
from fastbk.meta.gateway.store import GatewayAccess
from fastbk.meta.records import Change
from fastbk.model.ledger import LedgerState
from fastbk.producers.owner import StreamOwner
from fastbk.safe_files import write_text
from fastbk.security.credentials import Credentials
from fastbk.security.tls import TlsOptions
from fastbk.security.tokens import TokenKey
from fastbk.stream.chain import (
    Chain,
    Contents,
    add_segment,
    close_segment,
    get_chain,
    open_for_append,
    put_chain,
    reserve,
)
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.kind import table_of
from fastbk.stream.paths import chain_path, service_path
from fastbk.stream.positions import DLSN
from fastbk.stream.services import ServiceRecord, owner_name, put_service, read_services
from tests.fixtures.cli import Cli
from tests.fixtures.gateways import GatewayProcess
from tests.fixtures.guarded_cluster import KEY, GuardedCluster
from tests.fixtures.metadata import metadata
from tests.fixtures.stream_owners import produced
from tests.fixtures.wait import beats, wait_until, wait_until_async
from tests.fixtures.write_services import ServiceProcess

OTHER_KEY = TokenKey.generate("other")
WRITER = ("read", "add", "recover")


@pytest.fixture(scope="module")
def guarded(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuardedCluster]:
    with GuardedCluster(tmp_path_factory.mktemp("gateway"), zookeeper_server, gateways=2) as made:
        yield made


@pytest.fixture
def gateways(guarded: GuardedCluster) -> list[GatewayProcess]:
    return guarded.gateways


@pytest.fixture
def uri(guarded: GuardedCluster) -> str:
    return guarded.uri


@pytest.fixture
def tls(guarded: GuardedCluster) -> TlsOptions:
    """Without a certificate of the client's."""
    return guarded.tls


@pytest.fixture
def token(guarded: GuardedCluster, tmp_path: Path) -> Callable[..., Credentials]:
    def of(*operations: str, name: str = "token", **named: Any) -> Credentials:
        return guarded.token(tmp_path / name, *operations, **named)

    return of


async def test_producers_append_through_a_service_behind_gateways(
    guarded: GuardedCluster,
    uri: str,
    tls: TlsOptions,
    token: Callable[..., Credentials],
    tmp_path: Path,
) -> None:
    """The producer's token has `add` alone; the service's is its own."""
    service_token = token(
        "read", "add", "recover", "serve", name="service-token", subject="service"
    )
    files, ca_file = guarded.cluster.data / "tls" / "bookie", tls.ca_file
    service = ServiceProcess(
        tmp_path / "serve",
        uri,
        "serve-1",
        f"""
        [client]
        token_file = "{service_token.token_file}"
        ca_file = "{ca_file}"
        [tls]
        mode = "require"
        certificate_file = "{files / "tls.crt"}"
        key_file = "{files / "tls.key"}"
        [authentication]
        methods = ["token"]
        token_keys_file = "{guarded.folder / "public" / "keys.json"}"
        """,
    )
    admin = token("read", "add", "admin", name="admin", subject="operator")
    async with fastbk.connect(uri, tls=tls, credentials=admin) as client:
        tills = client.namespace("tills")
        await tills.create()
        await tills.create_stream("orders")
    await asyncio.to_thread(service.start)
    try:
        adding = token("add", name="adding", namespaces=("tills",))
        async with fastbk.connect(uri, tls=tls, credentials=adding) as client:
            stream = client.namespace("tills").stream("orders")
            async with stream.producer("till-1") as producer:
                await producer.append_many([b"%d" % number for number in range(100)])
        reading = token("read", name="reading", namespaces=("tills",))
        async with fastbk.connect(uri, tls=tls, credentials=reading) as client:
            stream = client.namespace("tills").stream("orders")
            payloads = [bytes(record.payload) async for record in stream.reader(tail=False)]
            assert payloads == [b"%d" % number for number in range(100)]
            with pytest.raises(Unauthorized, match="refuses this client"):
                await stream.producer("till-2").open()
    finally:
        service.kill()


async def test_a_client_with_a_token_and_no_way_to_zookeeper_writes_and_reads(
    guarded: GuardedCluster, uri: str, tls: TlsOptions, token: Callable[..., Credentials]
) -> None:
    with pytest.raises(ConfigError, match="does not allow it"):
        await asyncio.to_thread(lambda: open_store(guarded.zookeeper_uri).list_ledgers())
    credentials = token(*WRITER, namespaces=("shop", "shop/*"))
    admin = token(*WRITER, "admin", "delete", "truncate", name="admin", subject="operator")
    async with fastbk.connect(uri, tls=tls, credentials=admin) as client:
        await client.namespace("shop").create()
    async with fastbk.connect(uri, tls=tls, credentials=credentials, namespace="shop") as client:
        async with await client.create_ledger(3, 3, 2, password=b"mine") as writer:
            for number in range(20):
                await writer.append(b"%d" % number)
        async with await client.open_ledger(writer.ledger_id, password=b"mine") as reader:
            assert [bytes(one.data) async for one in reader.read(0, 19)] == [
                b"%d" % one for one in range(20)
            ]
        eu = client.namespace("shop/eu")
        await eu.create()
        stream = eu.stream("orders")
        # the second one recovers what the first one left, and makes a new segment
        for _ in range(2):
            async with stream.writer(create=True) as appender:
                await asyncio.gather(*[appender.append(b"x" * 100) for _ in range(50)])
        async with stream.reader() as records:
            found = 0
            async for chunk in records.chunks():
                found += len(chunk)
                if found == 100:
                    break
        for refused in (eu.delete_stream("orders"), client.delete_ledger(writer.ledger_id)):
            with pytest.raises(Unauthorized, match="needs the operation delete"):
                await refused
    gateways = guarded.gateways
    denied = [line for one in gateways for line in one.audited("request.denied")]
    assert {line["principal"] for line in denied} == {"token:app"}
    made = [line for one in gateways for line in one.audited("request.allowed")]
    assert {"create", "close"} <= {line["operation"] for line in made}
    assert Cli("")("audit", "verify", str(gateways[0].audit_file))


async def test_truncating_and_deleting_need_their_own_rights(
    uri: str, tls: TlsOptions, token: Callable[..., Credentials], gateways: list[GatewayProcess]
) -> None:
    writer = token(*WRITER)
    async with fastbk.connect(uri, tls=tls, credentials=writer) as client:
        await client.namespace("cuts").create()
        stream = client.namespace("cuts").stream("s")
        positions = []
        async with stream.writer(create=True) as appender:
            for _ in range(2):
                positions += [await appender.append(b"record") for _ in range(3)]
                await appender.roll()
        with pytest.raises(Unauthorized, match="needs the operation truncate"):
            await stream.truncate(positions[4])
    async with fastbk.connect(uri, tls=tls, credentials=token(*WRITER, "truncate")) as client:
        await client.namespace("cuts").stream("s").truncate(positions[4])
        with pytest.raises(Unauthorized, match="needs the operation delete"):
            await client.namespace("cuts").delete_stream("s")
    async with fastbk.connect(
        uri, tls=tls, credentials=token(*WRITER, "truncate", "delete")
    ) as client:
        await client.namespace("cuts").delete_stream("s")
    done = {line["operation"] for one in gateways for line in one.audited("request.allowed")}
    assert {"truncate", "delete"} <= done


async def test_others_namespaces_and_passwords_stay_hidden(
    uri: str, tls: TlsOptions, token: Callable[..., Credentials]
) -> None:
    admin = token(*WRITER, "admin", name="admin", subject="operator")
    async with fastbk.connect(uri, tls=tls, credentials=admin, namespace="bank") as client:
        writer = await client.create_ledger(3, 3, 2, password=b"theirs")
        await writer.append(b"secret")
        await writer.close()
    shop = token(*WRITER, namespaces=("shop",), name="shop", subject="shop")
    async with fastbk.connect(uri, tls=tls, credentials=shop) as client:
        with pytest.raises(Unauthorized, match="its token is limited to namespaces"):
            await client.ledger_info(writer.ledger_id)
        with pytest.raises(Unauthorized):
            await client.create_ledger(3, 3, 2, metadata={"fastbk.namespace": b"bank"})
        assert writer.ledger_id not in [one.ledger_id async for one in client.list_ledgers()]
    reader = token("read", name="reader", subject="reader")
    async with fastbk.connect(uri, tls=tls, credentials=reader) as client:
        assert (await client.ledger_info(writer.ledger_id)).metadata.password is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("expired", "has expired"),
        ("foreign key", "no key"),
        ("other cluster", "for another cluster"),
        ("none", "serves authenticated clients only"),
    ],
)
async def test_who_is_not_known_is_refused_with_the_reason(
    uri: str,
    tls: TlsOptions,
    token: Callable[..., Credentials],
    tmp_path: Path,
    kind: str,
    reason: str,
) -> None:
    credentials: Credentials | None = None
    if kind == "expired":
        credentials = token(*WRITER, lifetime_s=-5)
    elif kind == "foreign key":
        credentials = token(*WRITER, key=OTHER_KEY)
    elif kind == "other cluster":
        write_text(tmp_path / "token", KEY.sign("app", WRITER, "another", lifetime_s=60))
        credentials = Credentials(token_file=str(tmp_path / "token"))
    store = open_store(uri, access=GatewayAccess(tls, credentials))
    with closing(store), pytest.raises(Unauthorized, match=reason):
        await asyncio.to_thread(store.list_ledgers)


async def test_a_revoked_client_is_refused_on_the_connection_that_it_has(
    guarded: GuardedCluster, uri: str, tls: TlsOptions, token: Callable[..., Credentials]
) -> None:
    revoked = guarded.folder / "public" / "revoked"
    with closing(
        open_store(uri, access=GatewayAccess(tls, token("read", subject="leaver")))
    ) as store:
        await asyncio.to_thread(store.list_ledgers)
        try:
            write_text(revoked, "token:leaver\n")

            def is_refused() -> bool:
                try:
                    store.list_ledgers()
                except Unauthorized:
                    return True
                return False

            await wait_until_async(lambda: asyncio.to_thread(is_refused), "the client is refused")
        finally:
            write_text(revoked, "")


async def test_a_change_is_pushed_to_who_watches_and_no_request_is_made_meanwhile(
    uri: str, tls: TlsOptions, token: Callable[..., Credentials], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer would wait for longer than this test does. A store that is closed waits for none."""
    monkeypatch.setattr(gateway_watches, "LONG_WAIT_S", 30.0)
    monkeypatch.setattr(gateway_calls, "ATTEMPT_S_MAX", 60.0)
    access = GatewayAccess(tls, token(*WRITER, "admin"))
    with (
        closing(open_store(uri, access=access)) as near,
        closing(open_store(uri, access=access)) as far,
    ):
        ledger_id = far.next_ledger_id()
        version = far.create_ledger(ledger_id, metadata())
        changes: queue.SimpleQueue[int] = queue.SimpleQueue()
        near.watch_ledger(ledger_id, changes.put)
        for number in range(3):
            value = dataclasses.replace(metadata(), custom={"n": b"%d" % number})
            version = far.update_ledger(ledger_id, value, version)
            assert changes.get(timeout=20) == ledger_id
    await wait_until_async(
        lambda: "fastbk-watch" not in [one.name for one in threading.enumerate()], "threads end"
    )


def test_plaintext_and_other_requests_are_refused(
    gateways: list[GatewayProcess], tls: TlsOptions
) -> None:
    with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
        urllib.request.urlopen(f"http://{gateways[0].address}/v1/list-ledgers", b"x", timeout=10)
    context = tls.context().current()
    for path, body, kind, status in (
        ("/metrics", None, "", 400),
        ("/v1/list-ledgers", b"{}", "application/json", 415),
        ("/v1/list-ledgers", b"\x90", "application/msgpack", 401),
        ("/v1/" + "x" * 7000, b"\x90", "application/msgpack", 401),
    ):
        request = urllib.request.Request(
            f"https://{gateways[0].address}{path}", body, {"Content-Type": kind}
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10, context=context)
        assert caught.value.code == status
        caught.value.close()


async def test_a_killed_gateway_costs_no_append_and_no_ledger(
    uri: str, tls: TlsOptions, token: Callable[..., Credentials], gateways: list[GatewayProcess]
) -> None:
    """Streams roll and ledgers are made and closed while each gateway is killed in turn."""
    acknowledged: dict[int, int] = {}
    stop = asyncio.Event()

    async def ledgers(client: fastbk.Client) -> None:
        async for _ in beats(0.02):
            if stop.is_set():
                return
            async with await client.create_ledger(3, 3, 2) as writer:
                for _ in range(5):
                    await writer.append(b"entry")
                acknowledged[writer.ledger_id] = 5

    appended = 0

    async def records(client: fastbk.Client) -> None:
        nonlocal appended
        async with client.namespace("killed").stream("s").writer(create=True) as writer:
            async for _ in beats(0.002):
                if stop.is_set():
                    return
                await writer.append(b"record")
                appended += 1
                if appended % 50 == 0:
                    await writer.roll()

    async with fastbk.connect(uri, tls=tls, credentials=token(*WRITER)) as client:
        await client.namespace("killed").create()
        working = [
            asyncio.create_task(one) for one in (ledgers(client), ledgers(client), records(client))
        ]
        for victim in (0, 1, 0):
            count, before = len(acknowledged), appended
            gateways[victim].kill()
            await wait_until_async(
                lambda: len(acknowledged) > count + 3 and appended > before + 60,  # noqa: B023
                "work goes on by the other gateway",
            )
            await asyncio.to_thread(gateways[victim].start)
        stop.set()
        await asyncio.gather(*working)
        for ledger_id, entries in acknowledged.items():
            info = await client.ledger_info(ledger_id)
            assert (info.metadata.is_closed, info.metadata.last_entry_id) == (True, entries - 1)
        found = 0
        async with client.namespace("killed").stream("s").reader() as reader:
            async for chunk in reader.chunks():
                found += len(chunk)
                if found >= appended:
                    break
        assert found == appended
    assert len(acknowledged) > 10


def test_without_any_gateway_calls_end_in_time_and_say_so(
    tls: TlsOptions, token: Callable[..., Credentials]
) -> None:
    store = open_store(
        "gateway://127.0.0.1:1;127.0.0.1:2", 1.0, access=GatewayAccess(tls, token("read"))
    )
    reason = "is `fastbk gateway` running there"
    with closing(store), pytest.raises(MetadataUnavailable, match=reason) as caught:
        store.list_ledgers()
    assert caught.value.outcome == "not_written"
    client = fastbk.sync.connect("gateway://127.0.0.1:1", metadata_timeout=1.0)
    with closing(client), pytest.raises(MetadataUnavailable, match=reason) as caught:
        list(client.list_ledgers())
    assert caught.value.outcome == "not_written"


def test_a_client_without_tls_is_told_so(gateways: list[GatewayProcess]) -> None:
    with (
        closing(open_store(gateways[0].uri, 1.0)) as store,
        pytest.raises(MetadataUnavailable, match="TLS_CA_FILE"),
    ):
        store.list_ledgers()


async def test_a_service_owns_a_stream_by_its_token_and_the_kind_is_changed_back(
    uri: str, tls: TlsOptions, token: Callable[..., Credentials]
) -> None:
    """INV-W3, INV-W11, INV-S29: also where a dead owner's segment ends with an entry without records."""
    service, writer = token(*WRITER, "serve", name="service"), token(*WRITER)
    async with fastbk.connect(uri, tls=tls, credentials=service) as client:
        space = client.namespace("counters")
        await space.create()
        stream = await space.create_stream("sales")
        for life, count in enumerate((0, 3, 0)):
            owner_text = owner_name("s1", "127.0.0.1:1")
            owner = await StreamOwner.take_over(await stream.context(), owner_text)
            await produced(owner, b"till-1", count)
            await produced(owner, b"till-%d" % (2 + life), 0)
            owner.abandon()
        one, other = (
            put_service(ServiceRecord(service_id=name, address="127.0.0.1:1", beat=1))
            for name in ("s1", "s2")
        )
        await client.records.change(Change(service_path("s1"), one))
    async with fastbk.connect(uri, tls=tls, credentials=writer) as client:
        stream = client.namespace("counters").stream("sales")
        assert "s1" in {one.service.service_id for one in await read_services(client.records)}
        with pytest.raises(Unauthorized, match="needs the operation"):
            await client.records.change(Change(service_path("s2"), other))
        await stream.set_kind("writer")
        async with stream.writer() as appender:
            await appender.append(b"by itself")
        await stream.set_kind("producers")
        context = await stream.context()
        table = await table_of(context, (await context.store.read()).chain)
        assert {name: row.last_number for name, row in table.items()} == {
            b"till-1": 2, b"till-2": -1, b"till-3": -1, b"till-4": -1,
        }  # fmt: skip


def test_commands_use_a_gateway(
    uri: str, tls: TlsOptions, token: Callable[..., Credentials], monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = token(*WRITER)
    for name, value in {**tls.environment(), **credentials.environment()}.items():
        monkeypatch.setenv(name, value)
    cli = Cli(uri)
    cli("namespace", "create", "commands")
    assert "commands" in cli("namespace", "list")
    cli("ledger", "write", stdin=b"one\ntwo\n")
    assert cli("ledger", "list")
    shown = cli.json("cluster", "placement", "show")
    assert len(shown["bookies"]) == 3  # type: ignore[arg-type]
    assert "nothing is misplaced" in cli("cluster", "placement", "check")
    assert "placement" in cli("ledger", "show", "0")
    code, _ = cli.run("cluster", "placement", "set", "--policy", "spread")
    assert code != 0
    assert "needs the operation admin" in cli.err
    code, _ = cli.run("namespace", "delete", "commands", "--yes")
    assert code != 0
    assert "needs the operation delete" in cli.err
    client = fastbk.sync.connect(uri)
    try:
        wait_until(lambda: len(client.list_bookies()) == 3, "three bookies are listed")
    finally:
        client.close()


# --- numbers of one client's that would delete another's --------------------------------------------------------------


class Liar:
    """A client that may read and add, and writes metadata itself."""

    def __init__(self, store: MetadataStore, stream_id: str) -> None:
        self.store = store
        self._stream_id = stream_id
        (found,) = store.records.read([chain_path(stream_id)])
        assert found is not None
        self.honest = get_chain(found.value).rows[0].ledger_id

    def change(self, decide: Callable[[Chain], Chain]) -> None:
        path = chain_path(self._stream_id)
        (found,) = self.store.records.read([path])
        assert found is not None
        self.store.records.change(
            [Change(path, put_chain(decide(get_chain(found.value))), found.version)]
        )

    def segment(self, last_entry_id: int, length: int, records: int = 1) -> int:
        """Add a segment of an empty ledger that says it has so much; return the ledger's id."""
        self.change(lambda chain: open_for_append(chain, f"liar{length}"))
        ledger_id = self.store.next_ledger_id()
        self.change(lambda chain: reserve(chain, chain.epoch, ledger_id))
        honest = self.store.read_ledger(self.honest).metadata
        value = dataclasses.replace(
            honest, state=LedgerState.OPEN, last_entry_id=-1, length=0, creation_token=ledger_id + 1
        )
        version = self.store.create_ledger(ledger_id, value)
        now_us = time.time_ns() // 1000
        self.change(lambda chain: add_segment(chain, chain.epoch, ledger_id, now_us))
        closed = dataclasses.replace(
            value, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length
        )
        self.store.update_ledger(ledger_id, closed, version)

        def close(chain: Chain) -> Chain:
            dlsn = DLSN(chain.next_number - 1, last_entry_id, 0)
            txid = max(chain.last_txid, 0)
            return close_segment(
                chain,
                ledger_id,
                Contents(records, txid, txid, now_us, now_us, dlsn, -1, length),
                chain.epoch,
            )

        self.change(close)
        return ledger_id


async def test_who_may_only_add_deletes_no_segment_by_what_it_says_of_its_own(
    uri: str, tls: TlsOptions, token: Callable[..., Credentials]
) -> None:
    """The operator's janitor deletes by size what bookies hold, whatever a chain says (INV-W8)."""
    admin = token(*WRITER, "admin", "delete", "truncate", name="admin", subject="operator")
    liar = token(*WRITER, name="liar", subject="liar", namespaces=("lies", "lies/*"))
    async with fastbk.connect(uri, tls=tls, credentials=admin) as client:
        space = client.namespace("lies")
        await space.create(fastbk.PolicyPatch(retention_bytes=64 << 20, bytes_max=1 << 30))
        stream = await space.create_stream("orders")
        for _ in range(3):
            async with stream.writer() as writer:
                await asyncio.gather(*[writer.append(b"x" * 1000) for _ in range(20)])
        stream_id = (await stream.context()).stream_id
        before = (await stream.info()).records

        def attack() -> None:
            with closing(open_store(uri, access=GatewayAccess(tls, liar))) as store:
                attacker = Liar(store, stream_id)
                with pytest.raises(Unauthorized, match="no bookie holds"):
                    attacker.segment(0, 1 << 41)

        await asyncio.to_thread(attack)
        await _recovered(stream)

        def attack_by_many_entries() -> None:
            with closing(open_store(uri, access=GatewayAccess(tls, liar))) as store:
                for _ in range(3):
                    Liar(store, stream_id).segment(99_999, 2 << 30)

        await asyncio.to_thread(attack_by_many_entries)
        janitor = Janitor(client, JanitorOptions(thorough_every=1))
        for _ in range(3):
            await janitor.pass_once()
        info = await stream.info()
        assert (info.segments, info.records) == (6, before + 3), (
            "the closed segments of others stay"
        )
        # An honest client's large segments do count.
        await stream.set_policy(fastbk.PolicyPatch(retention_bytes=1000))
        await janitor.pass_once()
        left = await stream.info()
        assert left.segments == 6, "behind the honest segments there are only lies"


async def _recovered(stream: fastbk.Stream) -> None:
    """Open a stream whose open segment was left, as an honest writer does."""
    async with stream.writer() as writer:
        await writer.flush()
