"""What becomes of calls, watches and registrations when ZooKeeper's connections and sessions end. INV-M1.

Sessions are expired at a real server, connections are cut and answers held back by a proxy in front of it.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TypeVar

import pytest

from fastbk.errors import (
    ClientClosed,
    Error,
    MetadataConflict,
    MetadataUnavailable,
)
from fastbk.meta import open_store
from fastbk.meta.api import BookieIdentity
from fastbk.meta.uri import parse_zookeeper
from fastbk.meta.zookeeper import ZooKeeperStore
from fastbk.meta.zookeeper_calls import Call
from fastbk.meta.zookeeper_watches import ZooKeeperWatches
from tests.fixtures.metadata import metadata, service
from tests.fixtures.tcp_proxy import TcpProxy
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import ZooKeeperPlace

T = TypeVar("T")


@pytest.fixture
def proxy(zookeeper: ZooKeeperPlace) -> Iterator[TcpProxy]:
    with TcpProxy(zookeeper.address) as one:
        yield one


@pytest.fixture
def far(zookeeper: ZooKeeperPlace, proxy: TcpProxy) -> Iterator[ZooKeeperStore]:
    """A store behind the proxy."""
    store = open_store(zookeeper.uri(through=proxy.address))
    assert isinstance(store, ZooKeeperStore)
    yield store
    store.close()


@pytest.fixture
def near(zookeeper: ZooKeeperPlace) -> Iterator[ZooKeeperStore]:
    """A store of the same cluster that nothing happens to."""
    store = open_store(zookeeper.uri())
    assert isinstance(store, ZooKeeperStore)
    yield store
    store.close()


@pytest.fixture
def aside() -> Iterator[Callable[[Callable[[], T]], Future[T]]]:
    """Runs a call in another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


# Operation codes of ZooKeeper's protocol: create, delete, setData, multi.
WRITES = {1, 2, 5, 14}


def operations(data: bytes) -> Iterator[int]:
    """Yield the operation codes of the requests in `data`."""
    while len(data) >= 12:
        size, _, operation = struct.unpack_from(">iii", data)
        yield operation
        data = data[4 + size :]


def lose_the_answer(
    proxy: TcpProxy, is_done: Callable[[], bool], start: Callable[[], Future[T]]
) -> Future[T]:
    """Let a write through, and cut its connection before the answer gets back."""

    def hold_answers_to_writes(data: bytes, to_client: bool) -> bytes:
        if not to_client and WRITES & set(operations(data)):
            proxy.stall(to_client=True)
        return data

    proxy.mangle = hold_answers_to_writes
    running = start()
    wait_until(is_done, "the server does it")
    proxy.mangle = None
    proxy.cut()
    proxy.resume()
    proxy.mend()
    return running


# --- answers that get lost ---------------------------------------------------------------------------------------


def there(store: ZooKeeperStore, ledger_id: int) -> bool:
    return ledger_id in store.list_ledgers()


def test_a_creation_whose_answer_got_lost_is_found(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    proxy: TcpProxy,
    aside: Callable[[Callable[[], int]], Future[int]],
) -> None:
    near.create_ledger(8, metadata())  # so that parents and our own nodes are there
    created = lose_the_answer(
        proxy,
        lambda: there(near, 7),
        lambda: aside(lambda: far.create_ledger(7, metadata(token=5))),
    )
    assert created.result(10) == 0
    assert near.read_ledger(7).version == 0


def test_an_update_whose_answer_got_lost_is_found(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    proxy: TcpProxy,
    aside: Callable[[Callable[[], int]], Future[int]],
) -> None:
    version = near.create_ledger(7, metadata())
    updated = lose_the_answer(
        proxy,
        lambda: near.read_ledger(7).version == 1,
        lambda: aside(lambda: far.update_ledger(7, metadata(last=3), version)),
    )
    assert updated.result(10) == 1
    assert near.read_ledger(7).metadata == metadata(last=3)


def test_an_update_that_others_changed_before_its_answer_was_looked_up_may_have_happened(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    proxy: TcpProxy,
    aside: Callable[[Callable[[], int]], Future[int]],
) -> None:
    near.create_ledger(7, metadata())

    def is_done() -> bool:
        if near.read_ledger(7).version == 1:
            near.update_ledger(7, metadata(bookies=("x:1", "y:1")), 1)
            return True
        return False

    updated = lose_the_answer(
        proxy, is_done, lambda: aside(lambda: far.update_ledger(7, metadata(last=3), 0))
    )
    with pytest.raises(MetadataConflict) as caught:
        updated.result(10)
    assert caught.value.outcome == "unknown"


def test_a_deletion_whose_answer_got_lost_is_found(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    proxy: TcpProxy,
    aside: Callable[[Callable[[], None]], Future[None]],
) -> None:
    near.create_ledger(7, metadata())
    deleted = lose_the_answer(
        proxy, lambda: not there(near, 7), lambda: aside(lambda: far.delete_ledger(7))
    )
    assert deleted.result(10) is None


def test_an_identity_whose_answer_got_lost_is_found(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    proxy: TcpProxy,
    aside: Callable[[Callable[[], int]], Future[int]],
) -> None:
    identity = BookieIdentity("b1", 7, ())
    written = lose_the_answer(
        proxy,
        lambda: near.read_identity("b1") is not None,
        lambda: aside(lambda: far.write_identity(identity, None)),
    )
    assert written.result(10) == 0


def test_a_registration_whose_answer_got_lost_is_held(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    proxy: TcpProxy,
    aside: Callable[[Callable[[], object]], Future[object]],
) -> None:
    running = lose_the_answer(
        proxy,
        lambda: bool(near.list_bookies()),
        lambda: aside(lambda: far.register_bookie(service(), writable=True)),
    )
    lease = running.result(10)
    lease.renew()  # type: ignore[attr-defined]
    assert len(near.list_bookies()) == 1


# --- deadlines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cut", "stall"])
def test_no_call_hangs_and_each_says_whether_it_may_have_happened(
    zookeeper: ZooKeeperPlace, proxy: TcpProxy, kind: str
) -> None:
    near = open_store(zookeeper.uri())
    near.create_ledger(7, metadata())
    location = parse_zookeeper(zookeeper.uri(through=proxy.address))
    with closing(near), closing(ZooKeeperStore(location)) as far:
        far._session.timeout_s = 0.3
        if kind == "cut":
            proxy.cut()
            wait_until(lambda: not far._session.is_connected, "the cut is seen")
        else:
            proxy.stall(to_server=True, to_client=True)
        began_s = time.monotonic()
        with pytest.raises(MetadataUnavailable) as read:
            far.read_ledger(7)
        assert (read.value.outcome, read.value.retryable) == ("not_written", True)
        with pytest.raises(MetadataUnavailable) as update:
            far.update_ledger(7, metadata(last=1), 0)
        # What was handed to a connection that only stands still may arrive yet.
        assert update.value.outcome == ("not_written" if kind == "cut" else "unknown")
        with pytest.raises(MetadataUnavailable):
            far.watch_bookies(lambda: None)
        assert time.monotonic() - began_s < 3 * 0.3 + 3.0


def test_nothing_is_sent_after_its_caller_gave_up(
    zookeeper: ZooKeeperPlace, proxy: TcpProxy, near: ZooKeeperStore
) -> None:
    location = parse_zookeeper(zookeeper.uri(through=proxy.address))
    with closing(ZooKeeperStore(location)) as far:
        proxy.cut()
        wait_until(lambda: not far._session.is_connected, "the cut is seen")
        far._session.timeout_s = 0.2
        with pytest.raises(MetadataUnavailable):
            far.create_ledger(7, metadata())
        proxy.mend()
        wait_until(lambda: not _fails(lambda: far.list_ledgers()), "the connection is back")
        assert near.list_ledgers() == []


def _fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except Error:
        return True
    return False


def test_closing_ends_a_call_that_waits(far: ZooKeeperStore, proxy: TcpProxy) -> None:
    proxy.cut()
    wait_until(lambda: not far._session.is_connected, "the cut is seen")
    raised: list[Error] = []

    def ask() -> None:
        try:
            far.list_ledgers()
        except Error as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    far.close()
    asking.join(5)
    assert [type(one) for one in raised] == [ClientClosed]


# --- sessions ----------------------------------------------------------------------------------------------------


def test_after_an_expired_session_all_goes_on(
    zookeeper: ZooKeeperPlace, far: ZooKeeperStore, near: ZooKeeperStore
) -> None:
    told: list[object] = []
    near.create_ledger(7, metadata())
    lease = far.register_bookie(service(), writable=True)
    ledger_watch = far.watch_ledger(7, told.append)
    for version in range(2):
        zookeeper.expire(far)
        wait_until(lambda: near.list_bookies() == [], "the registration went with the session")
        # Its own: nobody has to restart anything.
        wait_until(lambda: not _fails(lease.renew), "renewed in the new session")
        assert [one.writable for one in near.list_bookies()] == [True]
        near.update_ledger(7, metadata(last=version), version)
        wait_until(lambda n=version: told == [7] * (n + 1), "the watch tells")  # type: ignore[misc]
    lease.set_writable(False)
    assert [one.writable for one in near.list_bookies()] == [False]
    ledger_watch.close()
    lease.close()
    assert near.list_bookies() == []


def test_a_change_while_there_was_no_connection_is_told(
    far: ZooKeeperStore, near: ZooKeeperStore, proxy: TcpProxy
) -> None:
    near.create_ledger(7, metadata())
    near.create_ledger(8, metadata())
    told: list[object] = []
    watches = [
        far.watch_ledger(7, told.append),
        far.watch_ledger(8, told.append),
        far.watch_bookies(lambda: told.append("bookies")),
    ]
    proxy.cut()
    wait_until(lambda: not far._session.is_connected, "the cut is seen")
    near.delete_ledger(7)
    lease = near.register_bookie(service(), writable=True)
    proxy.mend()
    wait_until(lambda: set(told) == {7, "bookies"}, "both are told, and nothing of ledger 8")
    lease.set_writable(False)
    wait_until(lambda: told.count("bookies") == 2, "the watch is armed again")
    for watch in watches:
        watch.close()


def test_a_session_that_is_not_heard_of_runs_out_and_other_data_may_register(
    zookeeper: ZooKeeperPlace, proxy: TcpProxy, near: ZooKeeperStore
) -> None:
    told: list[str] = []
    watch = near.watch_bookies(lambda: told.append("changed"))
    location = parse_zookeeper(zookeeper.uri(through=proxy.address))
    with closing(ZooKeeperStore(location, session_timeout_s=0.5)) as far:
        lease = far.register_bookie(service(), writable=True)
        wait_until(lambda: told, "the watch tells")
        proxy.cut()
        wait_until(lambda: near.list_bookies() == [], "the session runs out")
        other = near.register_bookie(service(incarnation=5), writable=True)
        proxy.mend()
        wait_until(lambda: far._session.is_connected, "it is back")
        with pytest.raises(MetadataConflict, match="other data"):
            lease.renew()
        with suppress(MetadataUnavailable):
            lease.close()
        assert [one.service.incarnation for one in near.list_bookies()] == [5]
        other.close()
    watch.close()


def test_what_a_killed_process_of_the_same_data_left_is_taken_over(
    zookeeper: ZooKeeperPlace, proxy: TcpProxy, near: ZooKeeperStore
) -> None:
    location = parse_zookeeper(zookeeper.uri(through=proxy.address))
    with closing(ZooKeeperStore(location)) as far:
        killed = far.register_bookie(service(), writable=True)
        killed.set_writable(False)
        proxy.cut()
        lease = near.register_bookie(service(), writable=True)
        assert [one.writable for one in near.list_bookies()] == [True]
        proxy.mend()
        with pytest.raises(MetadataConflict, match="another process"):
            killed.renew()
        killed.close()
        lease.renew()
        assert len(near.list_bookies()) == 1


def test_a_registration_that_somebody_removed_is_made_anew_by_registering(
    zookeeper: ZooKeeperPlace, near: ZooKeeperStore
) -> None:
    lease = near.register_bookie(service(), writable=True)
    with closing(open_store(zookeeper.uri())):
        peek = zookeeper.client()
        peek.delete(zookeeper.path("available/b1:3181"))
        peek.stop()
        peek.close()
    with pytest.raises(MetadataConflict, match="removed"):
        lease.renew()
    near.register_bookie(service(), writable=True)
    assert len(near.list_bookies()) == 1


def test_deregistering_without_a_connection_does_not_wait(
    far: ZooKeeperStore, proxy: TcpProxy
) -> None:
    lease = far.register_bookie(service(), writable=True)
    proxy.cut()
    wait_until(lambda: not far._session.is_connected, "the cut is seen")
    began_s = time.monotonic()
    with pytest.raises(MetadataUnavailable, match="run out"):
        lease.close()
    far.close()
    assert time.monotonic() - began_s < 5.0  # and not until a deadline of 10 s


def test_a_watch_that_begins_while_the_last_other_ends_misses_nothing(
    near: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    near.create_ledger(7, metadata())
    other = near.watch_ledger(7, lambda _: None)
    look = ZooKeeperWatches._look

    def look_while_the_other_ends(
        watches: ZooKeeperWatches, call: Call, subject: int | None
    ) -> object:
        seen = look(watches, call, subject)
        other.close()
        near.update_ledger(7, metadata(2), 0)
        return seen

    with monkeypatch.context() as patched:
        patched.setattr(ZooKeeperWatches, "_look", look_while_the_other_ends)
        watch = near.watch_ledger(7, told.append)
    wait_until(lambda: told == [7], "the change during the beginning is told")
    near.update_ledger(7, metadata(3), 1)
    wait_until(lambda: told == [7, 7], "and the next one")
    watch.close()
