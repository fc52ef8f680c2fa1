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

from fastbk.devcluster.faults import TcpProxy
from fastbk.errors import (
    ClientClosed,
    Error,
    MetadataConflict,
    MetadataUnavailable,
)
from fastbk.meta import open_store
from fastbk.meta.api import BookieIdentity, IdentityVersion
from fastbk.meta.records import Change
from fastbk.meta.uri import parse_zookeeper
from fastbk.meta.zookeeper.store import ZooKeeperStore
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


# --- a record that is deleted and made anew while a change is on its way (INV-M15) ---------------------------------


def others_first(proxy: TcpProxy, happens: Callable[[], object]) -> None:
    """Have something happen once, when a change has read what it needs and is on its way to the server."""

    def hold_back(data: bytes, to_client: bool) -> bytes:
        if not to_client and 14 in operations(data):
            proxy.mangle = None
            happens()
        return data

    proxy.mangle = hold_back


@pytest.mark.parametrize("kind", ["set", "delete", "with another"])
def test_a_record_made_anew_is_not_taken_for_the_one_that_was_read(
    near: ZooKeeperStore, far: ZooKeeperStore, proxy: TcpProxy, kind: str
) -> None:
    """The new node's own version is that of the node before it."""
    (version,) = near.records.change([Change("marks/1", b"old")])

    def made_anew() -> None:
        near.records.change([Change("marks/1", None, version)])
        near.records.change([Change("marks/1", b"of somebody else")])

    others_first(proxy, made_anew)
    changes = [Change("marks/1", None if kind == "delete" else b"changed", version)]
    if kind == "with another":
        changes.insert(0, Change("marks/2", b"new"))
    with pytest.raises(MetadataConflict) as failed:
        far.records.change(changes)
    assert failed.value.outcome == "not_written"
    one, two = near.records.read(["marks/1", "marks/2"])
    assert one is not None and one.value == b"of somebody else"
    assert two is None


def test_a_node_on_the_way_that_became_a_record_is_not_overwritten(
    near: ZooKeeperStore, far: ZooKeeperStore, proxy: TcpProxy
) -> None:
    (below,) = near.records.change([Change("s/1/chain", b"x")])

    def made_anew() -> None:
        near.records.change([Change("s/1/chain", None, below)])
        (made,) = near.records.change([Change("s/1", b"for a moment")])
        near.records.change([Change("s/1", None, made)])
        near.records.change([Change("s/1", b"of somebody else")])

    others_first(proxy, made_anew)
    with pytest.raises(MetadataConflict):
        far.records.change([Change("s/1", b"new")])
    (found,) = near.records.read(["s/1"])
    assert found is not None and found.value == b"of somebody else"


def test_a_node_on_the_way_that_became_a_record_is_not_deleted_with_the_one_above(
    near: ZooKeeperStore, far: ZooKeeperStore, proxy: TcpProxy
) -> None:
    above, page = near.records.change([Change("s/2", b"a"), Change("s/2/pages/0", b"b")])
    near.records.change([Change("s/2/pages/0", None, page)])  # s/2/pages stays, without data

    def made_anew() -> None:
        (made,) = near.records.change([Change("s/2/pages", b"for a moment")])
        near.records.change([Change("s/2/pages", None, made)])
        near.records.change([Change("s/2/pages", b"of somebody else")])

    others_first(proxy, made_anew)
    with pytest.raises(MetadataConflict, match="below"):
        far.records.change([Change("s/2", None, above)])
    one, two = near.records.read(["s/2", "s/2/pages"])
    assert one is not None and two is not None and two.value == b"of somebody else"


def test_parents_that_vanish_before_a_record_is_made_are_made_again(
    near: ZooKeeperStore, far: ZooKeeperStore, proxy: TcpProxy
) -> None:
    top, below = near.records.change([Change("p", b"top"), Change("p/q/r/last", b"x")])

    def vanish() -> None:
        near.records.change([Change("p/q/r/last", None, below), Change("p", None, top)])

    others_first(proxy, vanish)
    far.records.change([Change("p/q/r/new", b"y")])
    assert near.records.children("p/q/r") == ["new"]


def changed_once(near: ZooKeeperStore) -> int:
    """Return the version of the record r, whose counter of deletions is there, too."""
    (first,) = near.records.change([Change("r", b"0")])
    (version,) = near.records.change([Change("r", b"1", first)])
    return version


@pytest.mark.parametrize("value", [b"2", None])
def test_a_lost_answer_is_not_taken_for_a_success_where_somebody_came_behind(
    near: ZooKeeperStore,
    far: ZooKeeperStore,
    proxy: TcpProxy,
    aside: Callable[[Callable[[], list[int]]], Future[list[int]]],
    value: bytes | None,
) -> None:
    version = changed_once(near)

    def is_done() -> bool:
        (found,) = near.records.read(["r"])
        if (found and found.value) != value:
            return False
        near.records.change([Change("r", b"of somebody else", found and found.version)])
        return True

    change = [Change("r", value, version)]
    changing = lose_the_answer(proxy, is_done, lambda: aside(lambda: far.records.change(change)))
    with pytest.raises(MetadataConflict) as failed:
        changing.result(20)
    assert failed.value.outcome == "unknown"


@pytest.mark.parametrize("value", [b"2", None])
def test_a_change_of_a_record_whose_answer_got_lost_is_found(
    near: ZooKeeperStore,
    far: ZooKeeperStore,
    proxy: TcpProxy,
    aside: Callable[[Callable[[], list[int]]], Future[list[int]]],
    value: bytes | None,
) -> None:
    version = changed_once(near)

    def is_done() -> bool:
        (found,) = near.records.read(["r"])
        return (found and found.value) == value

    change = [Change("r", value, version)]
    changing = lose_the_answer(proxy, is_done, lambda: aside(lambda: far.records.change(change)))
    (new,) = changing.result(20)
    (found,) = near.records.read(["r"])
    assert (found.version if found else 0) == new
