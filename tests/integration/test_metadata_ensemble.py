"""Three ZooKeeper servers under a running cluster: restored from an older copy, lagging, and away for a while.

Only a restore may put metadata on hold. INV-M2 to INV-M5.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fastbk
from fastbk.cli.__main__ import main
from fastbk.devcluster.cluster import DevService
from fastbk.errors import MetadataOnHold
from fastbk.meta import open_store
from fastbk.meta.rollback import read_hold
from fastbk.meta.zookeeper.session import server_zxid
from fastbk.meta.zookeeper.store import ZooKeeperStore
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.records import Chunk
from fastbk.testing import LocalCluster
from tests.fixtures.logs import text_of
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper_ensemble import ZooKeeperEnsemble
from tests.integration.test_metadata_rollback import SETTINGS, WAIT_S, World, is_held

BOOKIES = 3
SESSION_S = 2.0
AWAY_S = SESSION_S + 1.0


class LiveWriter:
    """A client in a thread of its own that appends to one segment of a stream until `end`."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.acknowledged = 0
        self._ends = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="live-writer")
        self._thread.start()

    def goes_on(self) -> None:
        """Wait until one more append has succeeded."""
        before = self.acknowledged

        def is_further() -> bool:
            assert self._thread.is_alive(), self._error
            return self.acknowledged > before

        wait_until(is_further, "the writer appends", WAIT_S)

    def end(self) -> None:
        """End it; raise what an append has raised."""
        self._ends.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._append())
        except BaseException as error:  # raised by `end`
            self._error = error

    async def _append(self) -> None:
        async with fastbk.connect(self._uri) as client:
            policy = PolicyPatch(roll_bytes=1 << 30, roll_age_s=0.0)
            namespace = client.namespace("live")
            await namespace.create()
            stream = await namespace.create_stream("one", policy)
            async with stream.writer() as writer:
                while not self._ends.is_set():
                    await writer.append(b"%d" % self.acknowledged)
                    self.acknowledged += 1
                    await asyncio.sleep(0.1)

    async def read(self) -> list[bytes]:
        """Return all that a new reader finds."""
        found: list[bytes] = []
        async with (
            fastbk.connect(self._uri) as client,
            client.namespace("live").stream("one").reader("earliest") as reader,
        ):
            while len(found) < self.acknowledged:
                chunk = await asyncio.wait_for(reader.read(), WAIT_S)
                assert isinstance(chunk, Chunk)
                found += [bytes(one.payload) for one in chunk]
        return found


def is_up(world: World) -> bool:
    """Whether all bookies are registered, and nothing is on hold."""
    return not any(
        one["name"] in ("metadata", "metadata_hold")
        for page in world.pages("/readyz")
        for one in page["conditions"]
    )


def is_registered(page: dict[str, Any]) -> bool:
    """Whether nothing keeps a bookie from metadata; a hold does not."""
    return not any(one["name"] == "metadata" for one in page["conditions"])


def are_away_for_a_while(world: World, ensemble: ZooKeeperEnsemble) -> None:
    """All servers are away for longer than a session, and come back with their data."""
    ensemble.stop()
    wait_until(lambda: not is_up(world), "the bookies notice it", WAIT_S)
    end_s = time.monotonic() + AWAY_S
    wait_until(lambda: time.monotonic() > end_s, "the sessions have expired")
    ensemble.start()


def connects_again(store: ZooKeeperStore) -> None:
    """Cut a session's connection, and wait until one of the servers has taken it."""
    connection = store._session.client._connection
    old = connection._socket
    old.shutdown(socket.SHUT_RDWR)
    wait_until(
        lambda: connection._socket is not old and store._session.is_connected,
        "one of the servers takes the session",
    )


def follower_lags(ensemble: ZooKeeperEnsemble) -> None:
    """A follower that receives nothing refuses sessions that have seen more, which go to the others."""
    follower = ensemble.members[0]
    others = ensemble.uri.replace(f"{follower.address};", "")
    with (
        closing(open_store(others)) as current,
        closing(open_store(ensemble.uri, session_timeout_s=SESSION_S)) as store,
    ):
        assert isinstance(current, ZooKeeperStore)
        assert isinstance(store, ZooKeeperStore)
        ensemble.isolate()
        for _ in range(20):
            current.next_ledger_id()
        seen_zxid = current._session.client.last_zxid
        assert follower.refuses(seen_zxid), "the follower has not lagged"
        while follower.is_serving:
            store.instance_id()
            connects_again(store)
        assert store._session.client.last_zxid >= seen_zxid
        assert read_hold(store) is None
    ensemble.rejoin()


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble")) as made:
        yield made


@pytest.fixture(scope="module")
def world(ensemble: ZooKeeperEnsemble, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Bookies on that ensemble. No test leaves a hold."""
    folder = tmp_path_factory.mktemp("bookies")
    # Its cycles cost more than all else while servers come and go.
    slow_gc = {"gc": {"interval": "1s"}}
    settings = {**SETTINGS, **slow_gc, "metadata": {"session_timeout": f"{SESSION_S:g}s"}}
    with LocalCluster(
        BOOKIES, data=folder / "data", metadata_uri=ensemble.uri, settings=settings
    ) as cluster:
        yield World(cluster, ensemble)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_servers_that_lag_or_are_away_put_nothing_on_hold(
    ensemble: ZooKeeperEnsemble, world: World
) -> None:
    early = world.write(2)
    are_away_for_a_while(world, ensemble)
    wait_until(lambda: is_up(world), "all bookies are back", WAIT_S)
    follower_lags(ensemble)
    wait_until(lambda: world.cli("cluster", "status") == 0, "all are registered", WAIT_S)
    assert world.cli("metadata", "status") == 0
    assert "session_begun_anew" not in text_of(world.cluster.bookies)
    assert "session_refused" not in text_of(world.cluster.bookies)
    world.read(early + world.write(2))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_three_servers_that_are_restored_put_metadata_on_hold(
    ensemble: ZooKeeperEnsemble, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    janitor = DevService("janitor", tmp_path, ensemble.uri)
    janitor.start()
    live = LiveWriter(ensemble.uri)
    try:
        early = world.write(2)
        live.goes_on()
        log = janitor.directory / "janitor.log"
        wait_until(lambda: "janitor.started" in log.read_text(), "the janitor is connected")
        processes = [dict(bookie.pids) for bookie in world.cluster.bookies]
        ensemble.copy("older")
        # What follows has a later epoch than the leader that is elected on the copy: it refuses those who saw it.
        leader = ensemble.leader()
        leader.stop()
        leader.start()
        wait_until(lambda: world.cli("cluster", "status") == 0, "all are registered", WAIT_S)
        late = world.write(20)
        world.wait_stored(late[-1])
        ensemble.copy("newest")
        seen_zxid = max(server_zxid(one.address) or 0 for one in ensemble.members)
        ensemble.restore("older")
        assert all(one.refuses(seen_zxid) for one in ensemble.members)
        wait_held(world)
        assert "metadata.session_refused" in text_of(world.cluster.bookies)
        assert "metadata.session_begun_anew" in text_of(world.cluster.bookies)
        again = is_on_hold(world, capsys)
        assert min(again) > late[-1]
        world.read(early + again)
        for ledger_id in late:
            world.is_not_there(ledger_id)
        live.goes_on()
        deletes_nothing(world, capsys)
        world.wait_stored(again[-1])

        # The leader that is elected on this copy has the latest epoch: it refuses nobody, and the mark tells.
        seen_zxid = max(server_zxid(one.address) or 0 for one in ensemble.members)
        ensemble.restore("newest")
        assert not ensemble.leader().refuses(seen_zxid)
        wait_held(world)
        more = is_on_hold(world, capsys)
        assert min(more) > again[-1]
        deletes_nothing(world, capsys)
        world.read(early + late + more)
        assert world.cli("metadata", "confirm", "--yes") == 0
        wait_until(lambda: is_up(world), "the hold is over", WAIT_S)
        asyncio.run(world.pass_of_janitor())
        world.delete(early[0])
        live.goes_on()
        assert [dict(bookie.pids) for bookie in world.cluster.bookies] == processes
        assert janitor.is_running, log.read_text()[-2000:]
    finally:
        janitor.stop()
        live.end()
    assert asyncio.run(live.read()) == [b"%d" % one for one in range(live.acknowledged)]


def wait_held(world: World) -> None:
    """Wait until all bookies are registered, and on hold, by their own pages."""
    wait_until(
        lambda: all(is_held(one) and is_registered(one) for one in world.pages("/readyz")),
        "all bookies are registered again, and on hold",
        WAIT_S,
    )


def deletes_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Ask gc on every bookie and a janitor to delete what metadata does not list: both refuse."""
    for bookie in world.cluster.bookies:
        capsys.readouterr()
        world.cli("bookie", "gc", "run", bookie.name)
        said = "".join(capsys.readouterr())
        assert "on hold" in said, said
    with pytest.raises(MetadataOnHold):
        asyncio.run(world.pass_of_janitor())


def is_on_hold(world: World, capsys: pytest.CaptureFixture[str]) -> list[int]:
    """Check that every command says so; return ledgers that are written meanwhile."""
    config = world.cluster.bookies[0].directory / "bookie.toml"
    capsys.readouterr()
    assert main(["doctor", "--config", str(config)]) == 1
    assert "metadata is on hold" in capsys.readouterr().out
    assert world.cli("metadata", "status") == 1
    assert world.cli("cluster", "status") == 1
    assert "metadata is on hold" in capsys.readouterr().out
    with closing(open_store(world.metadata.uri)) as store:
        assert read_hold(store) is not None
    return world.write(2)
