"""What becomes of calls when ZooKeeper's connections are cut and answers are held back. INV-M1.

A real server, and a proxy in front of it.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import struct
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import fastbk
from fastbk.devcluster.cluster import ZooKeeperServer
from fastbk.devcluster.faults import TcpProxy
from fastbk.errors import ClientClosed, Error, MetadataConflict, MetadataOnHold, MetadataUnavailable
from fastbk.meta import open_store
from fastbk.meta.api import BookieIdentity, IdentityVersion, Lease
from fastbk.meta.records import Change
from fastbk.meta.rollback import read_hold
from fastbk.meta.uri import parse_zookeeper
from fastbk.meta.zookeeper import watches as module
from fastbk.meta.zookeeper.session import SESSION_TIMEOUT_S, Call, Session, server_zxid, why_refused
from fastbk.meta.zookeeper.store import ZooKeeperStore
from fastbk.meta.zookeeper.watches import ZooKeeperWatches
from fastbk.stream.records import Chunk
from tests.fixtures.fake_bookie import FakeBookie, fake_bookies
from tests.fixtures.metadata import metadata, service
from tests.fixtures.wait import wait_until, wait_until_async
from tests.fixtures.zookeeper import TICK_MS, ZooKeeperPlace, free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    Lose = Callable[[Callable[[], bool], Callable[[], Any]], Future[Any]]


T = TypeVar("T")


# Operation codes of ZooKeeper's protocol: create, delete, setData, multi.
WRITES = {1, 2, 5, 14}


def operations(data: bytes) -> Iterator[int]:
    """Yield the operation codes of the requests in `data`."""
    while len(data) >= 12:
        size, _, operation = struct.unpack_from(">iii", data)
        yield operation
        data = data[4 + size :]


@pytest.fixture
def lose(proxy: TcpProxy) -> Iterator[Lose]:
    """Runs a call in another thread: lets its write through, and cuts its connection before the answer gets back."""

    def hold_answers_to_writes(data: bytes, to_client: bool) -> bytes:
        if not to_client and WRITES & set(operations(data)):
            proxy.stall(to_client=True)
        return data

    with ThreadPoolExecutor(1) as pool:

        def lose_the_answer(is_done: Callable[[], bool], call: Callable[[], Any]) -> Future[Any]:
            proxy.mangle = hold_answers_to_writes
            running = pool.submit(call)
            wait_until(is_done, "the server does it")
            proxy.mangle = None
            proxy.cut()
            proxy.resume()
            proxy.mend()
            return running

        yield lose_the_answer


# --- answers that get lost ---------------------------------------------------------------------------------------


def there(store: ZooKeeperStore, ledger_id: int) -> bool:
    return ledger_id in store.list_ledgers()


def test_a_creation_whose_answer_got_lost_is_found(
    far: ZooKeeperStore, near: ZooKeeperStore, lose: Lose
) -> None:
    near.create_ledger(8, metadata())  # so that parents and our own nodes are there
    created = lose(lambda: there(near, 7), lambda: far.create_ledger(7, metadata(token=5)))
    assert created.result(10) == 0
    assert near.read_ledger(7).version == 0


@pytest.mark.parametrize("depends_on_a_bookie", [False, True])
def test_an_update_whose_answer_got_lost_is_found(
    far: ZooKeeperStore, near: ZooKeeperStore, lose: Lose, depends_on_a_bookie: bool
) -> None:
    version = near.create_ledger(7, metadata())
    identity = IdentityVersion("b", near.write_identity(BookieIdentity("b", 1, ()), None))
    wanted = identity if depends_on_a_bookie else None
    updated = lose(
        lambda: near.read_ledger(7).version == 1,
        lambda: far.update_ledger(7, metadata(last=3), version, wanted),
    )
    assert updated.result(10) == 1
    assert near.read_ledger(7).metadata == metadata(last=3)


def test_an_update_that_others_changed_before_its_answer_was_looked_up_may_have_happened(
    far: ZooKeeperStore, near: ZooKeeperStore, lose: Lose
) -> None:
    near.create_ledger(7, metadata())

    def is_done() -> bool:
        if near.read_ledger(7).version == 1:
            near.update_ledger(7, metadata(bookies=("x:1", "y:1")), 1)
            return True
        return False

    updated = lose(is_done, lambda: far.update_ledger(7, metadata(last=3), 0))
    with pytest.raises(MetadataConflict) as caught:
        updated.result(10)
    assert caught.value.outcome == "unknown"


def test_a_deletion_whose_answer_got_lost_is_found(
    far: ZooKeeperStore, near: ZooKeeperStore, lose: Lose
) -> None:
    near.create_ledger(7, metadata())
    deleted = lose(lambda: not there(near, 7), lambda: far.delete_ledger(7))
    assert deleted.result(10) is None


def test_an_identity_whose_answer_got_lost_is_found(
    far: ZooKeeperStore, near: ZooKeeperStore, lose: Lose
) -> None:
    identity = BookieIdentity("b1", 7, ())
    written = lose(
        lambda: near.read_identity("b1") is not None, lambda: far.write_identity(identity, None)
    )
    assert written.result(10) == 0


def test_a_registration_whose_answer_got_lost_is_held(
    far: ZooKeeperStore, near: ZooKeeperStore, lose: Lose
) -> None:
    running = lose(
        lambda: bool(near.list_bookies()), lambda: far.register_bookie(service(), writable=True)
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
@pytest.mark.parametrize("is_changed_behind", [False, True])
def test_a_change_of_a_record_whose_answer_got_lost_is_found_unless_somebody_came_behind(
    near: ZooKeeperStore,
    far: ZooKeeperStore,
    lose: Lose,
    value: bytes | None,
    is_changed_behind: bool,
) -> None:
    version = changed_once(near)

    def is_done() -> bool:
        (found,) = near.records.read(["r"])
        if (found and found.value) != value:
            return False
        if is_changed_behind:
            near.records.change([Change("r", b"of somebody else", found and found.version)])
        return True

    changing = lose(is_done, lambda: far.records.change([Change("r", value, version)]))
    if is_changed_behind:
        with pytest.raises(MetadataConflict) as failed:
            changing.result(20)
        assert failed.value.outcome == "unknown"
    else:
        (new,) = changing.result(20)
        (found,) = near.records.read(["r"])
        assert (found.version if found else 0) == new


# What becomes of watches and registrations when ZooKeeper's sessions end, at a real server.


def _answered(call: Callable[[], T]) -> T:
    """Return what a call returns, or raise what it raises, once a server answers it.

    A session of half a second loses its connection whenever client or server gets no processor for a third of one,
    and a call of a lease does not wait for the next.
    """
    found: list[T] = []

    def is_answered() -> bool:
        with suppress(MetadataUnavailable):
            found.append(call())
        return bool(found)

    wait_until(is_answered, "a server answers")
    return found[0]


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
    """INV-M16: readers rely on it, and look at nothing by themselves."""
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


async def test_a_reader_learns_of_what_was_written_while_its_connection_was_lost(
    far: ZooKeeperStore, near: ZooKeeperStore, proxy: TcpProxy
) -> None:
    """INV-M15: it reads the ledger and the chain when their watches tell of a change, and at no other time."""
    async with (
        fake_bookies(near, 3, FakeBookie),
        fastbk.connect(near) as writing,
        fastbk.connect(far) as reading,
    ):
        await writing.namespace("a").create()
        stream = await writing.namespace("a").create_stream("s")
        async with stream.writer() as writer, reading.namespace("a").stream("s").reader() as reader:
            await writer.append(b"1")
            assert await reader.read() is not None
            waiting = asyncio.ensure_future(reader.read())
            for number in (2, 3):
                proxy.cut()
                await wait_until_async(lambda: not far._session.is_connected, "the cut is seen")
                await writer.roll()
                await writer.append(b"%d" % number)
                assert not waiting.done(), "only the chain says where it is"
                proxy.mend()
                chunk = await asyncio.wait_for(waiting, 20)
                assert isinstance(chunk, Chunk) and [one.value for one in chunk] == [b"%d" % number]
                waiting = asyncio.ensure_future(reader.read())
            waiting.cancel()


@pytest.mark.slow
def test_a_session_that_is_not_heard_of_runs_out_and_other_data_may_register(
    zookeeper: ZooKeeperPlace, proxy: TcpProxy, near: ZooKeeperStore
) -> None:
    told: list[str] = []
    watch = near.watch_bookies(lambda: told.append("changed"))
    location = parse_zookeeper(zookeeper.uri(through=proxy.address))
    with closing(ZooKeeperStore(location, session_timeout_s=0.5)) as far:
        lease = _answered(lambda: far.register_bookie(service(), writable=True))
        wait_until(lambda: told, "the watch tells")
        proxy.cut()
        wait_until(lambda: near.list_bookies() == [], "the session runs out")
        other = near.register_bookie(service(incarnation=5), writable=True)
        proxy.mend()
        with pytest.raises(MetadataConflict, match="other data"):
            _answered(lease.renew)
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
    look = ZooKeeperWatches._check

    def look_while_the_other_ends(
        watches: ZooKeeperWatches, call: Call, subject: int | None
    ) -> object:
        seen = look(watches, call, subject)
        other.close()
        near.update_ledger(7, metadata(2), 0)
        return seen

    with monkeypatch.context() as patched:
        patched.setattr(ZooKeeperWatches, "_check", look_while_the_other_ends)
        watch = near.watch_ledger(7, told.append)
    wait_until(lambda: told == [7], "the change during the beginning is told")
    near.update_ledger(7, metadata(3), 1)
    wait_until(lambda: told == [7, 7], "and the next one")
    watch.close()


@pytest.mark.parametrize("fires", ["ledger", "bookies", "connection"])
def test_a_watch_misses_nothing_that_fires_before_its_handle_is_there(
    near: ZooKeeperStore,
    far: ZooKeeperStore,
    proxy: TcpProxy,
    monkeypatch: pytest.MonkeyPatch,
    fires: str,
) -> None:
    """INV-M16. What fired behind its first look was nobody's and not armed anew: it never told of anything."""
    other: list[int] = []
    told: list[str] = []
    for ledger_id in (7, 8):
        near.create_ledger(ledger_id, metadata())
    watches = [far.watch_ledger(8, other.append)]
    look, begins = ZooKeeperWatches._check, threading.current_thread()

    def change(version: int) -> None:
        if fires == "bookies":
            near.register_bookie(service(f"b{version}:3181"), writable=True)
        else:
            near.update_ledger(7, metadata(version), version)

    def look_and_be_late(of: ZooKeeperWatches, call: Call, subject: int | None) -> object:
        seen = look(of, call, subject)
        if threading.current_thread() is begins:
            if fires == "connection":
                proxy.cut()
                wait_until(lambda: not far._session.is_connected, "the cut is seen")
                proxy.mend()
            else:
                change(0)
            near.update_ledger(8, metadata(0), 0)
            wait_until(lambda: other == [8], "whatever has fired was looked at")
        return seen

    with monkeypatch.context() as patched:
        patched.setattr(ZooKeeperWatches, "_check", look_and_be_late)
        if fires == "bookies":
            watches.append(far.watch_bookies(lambda: told.append(fires)))
        else:
            watches.append(far.watch_ledger(7, lambda _: told.append(fires)))
    if fires == "connection":
        change(0)
    wait_until(lambda: told == [fires], "the first change is told")
    change(1)
    wait_until(lambda: told == [fires] * 2, "and the next one")
    for watch in watches:
        watch.close()


def test_a_session_lasts_as_long_as_it_is_told_to(
    zookeeper: ZooKeeperPlace, near: ZooKeeperStore
) -> None:
    for asked_s, held_s in ((6.0, 6.0), (None, SESSION_TIMEOUT_S)):
        with closing(open_store(zookeeper.uri(), session_timeout_s=asked_s)) as store:
            assert isinstance(store, ZooKeeperStore)
            assert store._session.session_timeout_s == held_s
            assert store._session._client._session_timeout == int(held_s * 1000)


def kept(store: ZooKeeperStore) -> list[str]:
    """Return the paths that kazoo keeps watches for: it forgets one when the server has."""
    client = store._session.client
    return [
        path for found in (client._data_watchers, client._child_watchers) for path in list(found)
    ]


def test_a_server_forgets_a_watch_that_was_closed(near: ZooKeeperStore) -> None:
    """What never changes, and what was deleted, would be watched for ever."""
    records, told = near.records, list[str]()
    (version,) = records.change([Change("cursors/a", b"1")])
    near.create_ledger(7, metadata())
    watches = [
        near.watch_ledger(7, lambda _: told.append("ledger")),
        records.watch("cursors/a", lambda: told.append("record")),
        records.watch("cursors/absent", lambda: told.append("absent")),
        records.watch_children("cursors", lambda: told.append("children")),
    ]
    records.change([Change("cursors/a", None, version)])
    wait_until(lambda: sorted(told) == ["children", "record"], "the watches tell")
    wait_until(lambda: len(kept(near)) == 4, "they are armed again")
    other = near.watch_ledger(7, lambda _: told.append("other"))
    for watch in (*watches, *watches):
        watch.close()
    wait_until(lambda: len(kept(near)) == 1, "the server has forgotten those that nobody watches")
    near.update_ledger(7, metadata(2), 0)
    wait_until(lambda: told[2:] == ["other"], "the other one tells")
    other.close()
    wait_until(lambda: not kept(near), "the last one is forgotten")


def test_a_watch_that_begins_while_the_server_forgets_the_last_one_misses_nothing(
    near: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    near.create_ledger(7, metadata())
    unwatch, begun = module.unwatch_later, threading.Event()

    def unwatch_while_another_begins(session: Session, path: str, *, is_of_children: bool) -> None:
        if not begun.is_set():
            near.watch_ledger(7, told.append)
            begun.set()
        unwatch(session, path, is_of_children=is_of_children)

    monkeypatch.setattr(module, "unwatch_later", unwatch_while_another_begins)
    near.watch_ledger(7, lambda _: None).close()
    assert begun.wait(10)
    for version in range(3):
        near.update_ledger(7, metadata(version), version)
        wait_until(lambda n=version: told == [7] * (n + 1), "the watch tells")  # type: ignore[misc]


def test_watches_that_come_and_go_miss_nothing(near: ZooKeeperStore) -> None:
    """While others of the same subject begin and end all the time."""
    records, is_over = near.records, threading.Event()
    (version,) = records.change([Change("a/b", b"0")])

    def churn() -> None:
        while not is_over.is_set():
            records.watch("a/b", lambda: None).close()

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(100):
            changed = threading.Event()
            watch = records.watch("a/b", changed.set)
            (version,) = records.change([Change("a/b", str(number).encode(), version)])
            assert changed.wait(10), number
            watch.close()
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    wait_until(lambda: not kept(near), "all are forgotten")


# ZooKeeper that is restored from an older copy refuses every session that has seen more. At real
# servers.


SESSION_S = 2.0
WRITES_BEHIND = 40
"""More than clients that connect again write by themselves."""


class Restorable(ZooKeeperServer):
    """A server whose data can be copied and restored."""

    def copy(self, name: str = "copy") -> None:
        self.stop()
        shutil.rmtree(self.data / name, ignore_errors=True)
        shutil.copytree(self.data / "data", self.data / name)
        self.start()

    def restore(self, name: str = "copy") -> None:
        self.stop()
        shutil.rmtree(self.data / "data")
        shutil.copytree(self.data / name, self.data / "data")
        self.start()


@pytest.fixture(scope="module")
def restorable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restorable]:
    one = Restorable(tmp_path_factory.mktemp("zookeeper"), tick_ms=TICK_MS, is_durable=False)
    yield one
    one.stop()


@pytest.fixture
def server(restorable: Restorable) -> Restorable:
    """A server that runs, also after a test that has failed."""
    restorable.start()
    return restorable


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("zxid", [2**60, 0, None])
def test_a_name_of_several_servers_says_the_highest_of_all(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch, zxid: int | None
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


@pytest.mark.slow
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
        leases: list[Lease] = []

        def registers() -> bool:
            # Several requests in one second, of a server that has just begun: a busy machine may take longer.
            with suppress(MetadataUnavailable):
                leases.append(store.register_bookie(service(), writable=True))
            return bool(leases)

        wait_until(registers, "registered")
        (lease,) = leases
        write(uri, range(2, 2 + WRITES_BEHIND))
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


@pytest.mark.slow
def test_a_server_that_others_bring_past_the_transaction_is_held_as_well(
    server: Restorable,
) -> None:
    uri = ZooKeeperPlace(server).uri()
    with closing(opened(uri, 1.0)) as store:
        server.copy()
        wait_until(lambda: answers(store), "connected again")
        write(uri, range(WRITES_BEHIND))
        wait_until(lambda: answers(store), "the session has seen these writes")
        server.restore()
        wait_until(lambda: store._session.refusal, "the refusal is noticed")
        write(uri, range(1000, 1000 + 3 * WRITES_BEHIND))
        wait_until(lambda: answers(store), "the session is taken again, or a new one begun")
        with closing(opened(uri)) as other:
            assert read_hold(other) is not None


@contextmanager
def beside_one_that_lags(server: Restorable, folder: Path) -> Iterator[tuple[Restorable, str]]:
    """Give a server without the cluster, which does not run: sessions begin at `server`; and the URI of both."""
    lagging = Restorable(folder / "lagging", tick_ms=TICK_MS, is_durable=False)
    lagging.data.mkdir()
    lagging.port = lagging._choose_port()
    try:
        place = ZooKeeperPlace(server)
        write(place.uri(), range(WRITES_BEHIND))
        both = place.location(through=f"{server.address};{lagging.address}").uri
        yield lagging, both
    finally:
        lagging.stop()


@pytest.mark.slow
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
            assert store.list_ledgers(WRITES_BEHIND) == [1000]


@pytest.mark.slow
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
            assert store.list_ledgers(WRITES_BEHIND) == [1000]
        assert "session_begun_anew" not in caplog.text
