"""Real bookies on a real ZooKeeper that goes away and comes back: who has nothing to ask there goes on."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import fastbk
from fastbk.devcluster.cluster import ZooKeeperServer
from fastbk.devcluster.faults import TcpProxy
from fastbk.devcluster.processes import Bookie
from fastbk.errors import MetadataUnavailable, StorageError
from fastbk.meta import MetadataStore, open_store
from fastbk.testing import LocalCluster
from tests.fixtures.logs import json_lines
from tests.fixtures.pages import page
from tests.fixtures.wait import crowd, wait_until, wait_until_async
from tests.fixtures.zookeeper import ZooKeeperPlace

pytestmark = pytest.mark.waits

SESSION_TIMEOUT_S = 1.0
"""On an idle machine; a busy one's bookies need more, or else their sessions run out while they start."""
SESSION_TIMEOUT_MAX_S = 5.0
WAIT_S = 60.0


@pytest.fixture(scope="module")
def impatient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server of this module's own, whose sessions run out soon."""
    server = ZooKeeperServer(
        tmp_path_factory.mktemp("zookeeper"),
        tick_ms=100,
        session_timeout_max_s=min(SESSION_TIMEOUT_S * crowd(), SESSION_TIMEOUT_MAX_S),
        is_durable=False,
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def place(impatient_server: ZooKeeperServer) -> ZooKeeperPlace:
    return ZooKeeperPlace(impatient_server)


@pytest.fixture
def proxy(place: ZooKeeperPlace) -> Iterator[TcpProxy]:
    with TcpProxy(place.address) as one:
        yield one


@pytest.fixture
def near(place: ZooKeeperPlace) -> Iterator[MetadataStore]:
    """What others see: a store that goes past the proxy."""
    with closing(open_store(place.uri())) as store:
        yield store


def bookies_seen(store: MetadataStore) -> list[str]:
    return [one.service.bookie_id for one in store.list_bookies() if one.writable]


def says_metadata_is_away(bookie: Bookie) -> bool:
    """Whether a bookie says so; meanwhile it stays ready for data."""
    status, text = page(bookie, "/readyz")
    said = json.loads(text)
    assert (status, said["reasons"]) == (200, []), "data flows"
    away = [one["name"] for one in said["conditions"] if one["concerns"] == "metadata"]
    return away == ["metadata"] and page(bookie, "/readyz/metadata")[0] == 503


def assert_session_logged(bookie: Bookie) -> None:
    """The log has the lost connection, the session's end and the next one, in this order."""
    wanted = ["session_suspended", "session_expired", "connected"]
    lines = json_lines(bookie.log_path)
    events = [
        line["event"].removeprefix("metadata.") for line in lines if line["role"] == "supervisor"
    ]
    found = [one for one in events if one in wanted]
    assert all(one in found for one in wanted), found
    assert found.index("session_suspended") < found.index("session_expired"), found


async def test_bookies_serve_break_down_and_stop_without_zookeeper_and_register_again(
    place: ZooKeeperPlace, proxy: TcpProxy, near: MetadataStore, tmp_path: Path
) -> None:
    uri = place.uri(through=proxy.address)
    with LocalCluster(3, data=tmp_path / "data", metadata_uri=uri) as cluster:
        everybody = bookies_seen(near)
        processes = dict(cluster.bookies[1].pids)
        async with fastbk.connect(uri, metadata_timeout=0.5) as client:
            writer = await client.create_ledger(3, 3, 2)
            await writer.append(b"before")
            proxy.cut()
            await wait_until_async(
                lambda: not bookies_seen(near), "all registrations run out", WAIT_S
            )
            # Data is served, so a balancer keeps its bookies; metadata has a page of its own.
            await wait_until_async(
                lambda: all(says_metadata_is_away(one) for one in cluster.bookies),
                "that page",
                WAIT_S,
            )
            with pytest.raises(MetadataUnavailable):
                await client.create_ledger()
            # Its next boot is told to nobody until ZooKeeper is back, but it serves.
            boots = cluster.bookies[0].boots
            await cluster.kill_async(0, "journal")
            await asyncio.to_thread(cluster.wait_ready, 0, boots + 1)
            # To replace it in the ledger's ensemble would need metadata; without that this waits.
            appended = asyncio.create_task(writer.append(b"after"))
            began_s = time.monotonic()
            assert await cluster.stop_bookie_async(2) == 0
            assert time.monotonic() - began_s < 8.0 * crowd()
            proxy.mend()
            assert await appended == 1
            await wait_until_async(
                lambda: bookies_seen(near) == everybody[:2], "the living are registered", WAIT_S
            )
            path = "/readyz/metadata"
            await wait_until_async(
                lambda: all(page(one, path)[0] == 200 for one in cluster.bookies[:2]), path, WAIT_S
            )
            assert_session_logged(cluster.bookies[1])
            assert dict(cluster.bookies[1].pids) == processes, (
                "registered by the very same processes"
            )
            await writer.close()


def test_a_bookie_comes_back_in_zookeeper_under_its_name(
    place: ZooKeeperPlace, near: MetadataStore, tmp_path: Path
) -> None:
    with LocalCluster(1, data=tmp_path / "data", metadata_uri=place.uri()) as cluster:
        (identity,) = near.list_identities()
        # its session lives on for a while: the next process takes the registration over
        cluster.kill(0)
        cluster.start_bookie(0)
        (found,) = near.list_bookies()
        assert found.service.incarnation == identity.incarnation
        cluster.stop_bookie(0)
        wait_until(lambda: near.list_bookies() == [], "it deregisters when it stops", WAIT_S)


async def test_bookies_start_in_a_cluster_that_pulsar_made_and_not_in_one_made_anew_over_their_data(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    zookeeper.make_by_pulsar(peek)
    uri = f"metadata-store:zk:{zookeeper.address}{zookeeper.path(root='')}"
    async with LocalCluster(1, metadata_uri=uri) as cluster:
        async with fastbk.connect(uri) as client:
            async with await client.create_ledger(
                ensemble=1, write_quorum=1, ack_quorum=1
            ) as writer:
                await writer.append(b"kept")
            reader = await client.open_ledger(writer.ledger_id)
            assert [bytes(one.data) async for one in reader.read(0, 0)] == [b"kept"]
        assert peek.exists(zookeeper.path("LAYOUT"))
        await cluster.stop_bookie_async(0)
        await asyncio.to_thread(peek.delete, zookeeper.path(), recursive=True)
        zookeeper.make_by_pulsar(peek)
        # The new cluster has another id: the bookie's ledgers are not those that it would list.
        with pytest.raises(StorageError):
            await cluster.start_bookie_async(0)
        line = json.loads(cluster.bookies[0].log_tail(1))
        assert line["event"] == "bookie.failed"
        assert "belongs to the cluster with the instance id" in line["reason"]


def session_timeouts_ms(server: ZooKeeperServer) -> set[tuple[str, int]]:
    """Return (session, timeout) of each session of a server that allows `cons`."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(b"cons")
        text = b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
    return {(one[1], int(one[2])) for one in re.finditer(r"sid=(0x[0-9a-f]+),.*?to=(\d+)", text)}


async def test_sessions_of_all_processes_of_a_bookie_have_the_timeout_that_is_set(
    tmp_path: Path,
) -> None:
    allowed = {"4lw.commands.whitelist": "srvr,cons"}
    server = ZooKeeperServer(tmp_path / "zookeeper", is_durable=False, settings=allowed)
    server.start()
    try:
        place = ZooKeeperPlace(server)
        settings = {"metadata": {"session_timeout": "15s"}}
        async with LocalCluster(1, metadata_uri=place.uri(), settings=settings) as cluster:
            await asyncio.to_thread(page, cluster.bookies[0], "/api/v1/ledger/list")
            await wait_until_async(
                lambda: len(session_timeouts_ms(server)) >= 3,
                "supervisor, gc and pages have sessions",
                WAIT_S,
            )
            assert {timeout_ms for _, timeout_ms in session_timeouts_ms(server)} == {15_000}
    finally:
        server.stop()
