"""ZooKeeper that is restored from an older copy refuses every session that has seen more. At real servers."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from fastbk.devcluster.metadata import ZooKeeperServer
from fastbk.errors import Error, MetadataOnHold, MetadataUnavailable
from fastbk.meta import open_store
from fastbk.meta.rollback import read_hold
from fastbk.meta.zookeeper.session import server_zxid, why_refused
from fastbk.meta.zookeeper.store import ZooKeeperStore
from tests.fixtures.metadata import metadata, service
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import TICK_MS, ZooKeeperPlace, free_ports

pytestmark = pytest.mark.slow

SESSION_S = 2.0
WRITES = 40
"""More than clients that connect again write by themselves."""


class Restorable(ZooKeeperServer):
    """A server whose data can be copied and restored."""

    def copy(self, name: str = "copy") -> None:
        self.stop()
        shutil.copytree(self.data / "data", self.data / name)
        self.start()

    def restore(self, name: str = "copy") -> None:
        self.stop()
        shutil.rmtree(self.data / "data")
        shutil.copytree(self.data / name, self.data / "data")
        self.start()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Restorable]:
    one = Restorable(tmp_path / "zookeeper", tick_ms=TICK_MS, is_durable=False)
    one.start()
    yield one
    one.stop()


def opened(uri: str, timeout_s: float = 10.0) -> ZooKeeperStore:
    """Return a store whose calls take so long at most. A server that has just begun may take longer to open it."""
    found: list[ZooKeeperStore] = []

    def is_open() -> bool:
        with suppress(MetadataUnavailable):
            store = open_store(uri, timeout_s, session_timeout_s=SESSION_S)
            assert isinstance(store, ZooKeeperStore)
            found.append(store)
        return bool(found)

    wait_until(is_open, "the store is opened")
    return found[0]


def answers(store: ZooKeeperStore) -> bool:
    try:
        store.instance_id()
    except MetadataUnavailable:
        return False
    return True


def write(uri: str, ledger_ids: Iterable[int]) -> None:
    """Create these ledgers with patience: a server that has just started takes a while for each of its first writes."""
    with closing(opened(uri)) as store:
        for ledger_id in ledger_ids:
            store.create_ledger(ledger_id, metadata())


def renews(lease: object) -> bool:
    try:
        lease.renew()  # type: ignore[attr-defined]
    except Error:
        return False
    return True


@pytest.mark.parametrize(
    ("zxids", "refused"),
    [
        ({"a": 9}, True),
        ({"a": 9, "b": 3}, True),
        ({"a": 10}, False),
        ({"a": 9, "b": 10}, False),  # a lagging follower refuses, the leader does not
        ({"a": 9, "b": None}, False),  # the one that does not answer may have it
        ({"a": None}, False),
        ({}, False),
    ],
)
def test_only_every_server_s_refusal_is_one(zxids: dict[str, int | None], refused: bool) -> None:
    assert bool(why_refused(10, zxids)) == refused


def test_a_server_says_its_last_transaction(zookeeper: ZooKeeperPlace) -> None:
    first = server_zxid(zookeeper.address)
    assert first is not None
    with closing(opened(zookeeper.uri())) as store:
        store.create_ledger(1, metadata())
        now = server_zxid(zookeeper.address)
        assert now is not None
        assert now > first
    (port,) = free_ports(1)
    assert server_zxid(f"127.0.0.1:{port}") is None


@pytest.mark.parametrize("zxid", [2**60, 0, None])
def test_a_name_of_several_servers_says_the_highest_of_all(
    zookeeper_server: ZooKeeperServer,
    monkeypatch: pytest.MonkeyPatch,
    zxid: int | None,
) -> None:
    """Before: only the first that took a connection was asked, so one that lags spoke for all."""
    with socket.create_server(("127.0.0.2", zookeeper_server.port)) as other:
        threading.Thread(target=say_zxid, args=(other, zxid), daemon=True).start()
        real = socket.getaddrinfo

        def of_two(host: str, *words: object, **more: object) -> list[object]:
            hosts = ["127.0.0.1", "127.0.0.2", "::1"] if host == "zookeeper.test" else [host]
            return [one for each in hosts for one in real(each, *words, **more)]  # type: ignore[arg-type]

        monkeypatch.setattr(socket, "getaddrinfo", of_two)
        own = server_zxid(zookeeper_server.address)
        assert own is not None
        found = server_zxid(f"zookeeper.test:{zookeeper_server.port}")
        assert found == (None if zxid is None else max(own, zxid))


def say_zxid(listener: socket.socket, zxid: int | None) -> None:
    """Answer one client as a server does that has come to this transaction; None: one that does not serve."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(4)
        text = "is not currently serving requests"
        if zxid is not None:
            text = f"Zxid: {zxid:#x}\nMode: leader\n"
        connection.sendall(text.encode())


def test_a_refused_session_is_begun_anew_and_metadata_held(
    server: Restorable, caplog: pytest.LogCaptureFixture
) -> None:
    uri = ZooKeeperPlace(server).uri()
    write(uri, [1])
    with closing(opened(uri, 1.0)) as store:
        server.copy()
        wait_until(lambda: answers(store), "connected again")
        told: list[object] = []
        watch = store.watch_ledger(1, told.append)
        lease = store.register_bookie(service(), writable=True)
        write(uri, range(2, 2 + WRITES))
        store.update_ledger(1, metadata(last=4), 0)
        wait_until(lambda: told, "the watch tells of the change")
        server.restore()
        restored_s = time.monotonic()
        # Until then a line says what is wrong, and so do errors.
        wait_until(lambda: "session_refused" in caplog.text, "the refusal is logged")
        with pytest.raises(MetadataUnavailable, match="restored from an older copy"):
            store.instance_id()
        assert "session_begun_anew" not in caplog.text
        wait_until(lambda: answers(store), "a new session")
        assert time.monotonic() - restored_s > SESSION_S
        # The hold was there before anything else.
        hold = read_hold(store)
        assert hold is not None
        assert "restored from an older copy" in str(hold)
        with pytest.raises(MetadataOnHold):
            store.delete_ledger(1)
        assert store.list_ledgers() == [1]
        wait_until(lambda: renews(lease), "registered in the new session")
        assert [one.writable for one in store.list_bookies()] == [True]
        wait_until(lambda: len(told) == 2, "the watch tells that the change is gone")
        watch.close()
        lease.close()


def test_a_server_that_others_bring_past_the_transaction_is_held_as_well(
    server: Restorable,
) -> None:
    uri = ZooKeeperPlace(server).uri()
    with closing(opened(uri, 1.0)) as store:
        server.copy()
        wait_until(lambda: answers(store), "connected again")
        write(uri, range(WRITES))
        wait_until(lambda: answers(store), "the session has seen these writes")
        server.restore()
        wait_until(lambda: store._session.refusal, "the refusal is noticed")
        write(uri, range(1000, 1000 + 3 * WRITES))
        wait_until(lambda: answers(store), "the session is taken again, or a new one begun")
        with closing(opened(uri)) as other:
            assert read_hold(other) is not None


@contextmanager
def beside_one_that_lags(server: Restorable, folder: Path) -> Iterator[tuple[Restorable, str]]:
    """Give a server without the cluster, stopped so that a session begins at `server`, and the URI of both."""
    lagging = Restorable(folder / "lagging", tick_ms=TICK_MS, is_durable=False)
    lagging.start()
    try:
        place = ZooKeeperPlace(server)
        write(place.uri(), range(WRITES))
        both = place.location(through=f"{server.address};{lagging.address}").uri
        lagging.stop()
        yield lagging, both
    finally:
        lagging.stop()


def test_a_session_after_one_that_expired_does_not_begin_at_a_server_that_is_behind(
    server: Restorable, tmp_path: Path
) -> None:
    """Gc would take ledgers for deleted that such a server does not have yet."""
    with (
        beside_one_that_lags(server, tmp_path) as (lagging, both),
        closing(opened(both, 1.0)) as store,
    ):
        store.create_ledger(1000, metadata())
        lagging.start()
        for _ in range(6):
            ZooKeeperPlace(server).expire(store)
            wait_until(lambda: answers(store), "a session has begun")
            assert store.list_ledgers(WRITES) == [1000]


def test_a_server_that_is_behind_is_not_believed_while_another_may_have_more(
    server: Restorable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A follower that lags logs the same refusal. Here the other one is away for longer than a session."""
    with beside_one_that_lags(server, tmp_path) as (lagging, both):
        with closing(opened(both, 1.0)) as store:
            store.create_ledger(1000, metadata())
            lagging.start()
            server.stop()
            end_s = time.monotonic() + 2 * SESSION_S
            while time.monotonic() < end_s:
                assert not answers(store)
            server.start()
            wait_until(lambda: answers(store), "connected again")
            assert read_hold(store) is None
            assert store.list_ledgers(WRITES) == [1000]
        assert "session_begun_anew" not in caplog.text
