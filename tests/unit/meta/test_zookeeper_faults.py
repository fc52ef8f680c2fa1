"""What becomes of calls when ZooKeeper's connections are cut and answers are held back. INV-M1.

A real server, and a proxy in front of it.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import pytest

from fastbk.devcluster.tcp_proxy import TcpProxy
from fastbk.errors import (
    ClientClosed,
    Error,
    MetadataConflict,
    MetadataUnavailable,
)
from fastbk.meta import open_store
from fastbk.meta.api import BookieIdentity, IdentityVersion
from fastbk.meta.uri import parse_zookeeper
from fastbk.meta.zookeeper import ZooKeeperStore
from tests.fixtures.metadata import metadata, service
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import ZooKeeperPlace

T = TypeVar("T")


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


@pytest.mark.parametrize("depends_on_a_bookie", [False, True])
def test_an_update_whose_answer_got_lost_is_found(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    proxy: TcpProxy,
    aside: Callable[[Callable[[], int]], Future[int]],
    depends_on_a_bookie: bool,
) -> None:
    version = near.create_ledger(7, metadata())
    identity = IdentityVersion("b", near.write_identity(BookieIdentity("b", 1, ()), None))
    wanted = identity if depends_on_a_bookie else None
    updated = lose_the_answer(
        proxy,
        lambda: near.read_ledger(7).version == 1,
        lambda: aside(lambda: far.update_ledger(7, metadata(last=3), version, wanted)),
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


def test_an_id_that_is_used_up_while_a_creation_is_under_way_stays_used_up(
    far: ZooKeeperStore, near: ZooKeeperStore, proxy: TcpProxy
) -> None:
    def others_first(data: bytes, to_client: bool) -> bytes:
        if not to_client and 14 in operations(data):
            proxy.mangle = None
            near.create_ledger(7, metadata())
            near.delete_ledger(7)
        return data

    # So that our own nodes are there, and nobody has to make them.
    near.create_ledger(8, metadata())
    proxy.mangle = others_first
    with pytest.raises(MetadataConflict, match="was deleted"):
        far.create_ledger(7, metadata())


# --- deadlines ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.slow
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
