"""What becomes of watches and registrations when ZooKeeper's sessions end, at a real server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TypeVar

import pytest

import fastbk
from fastbk.devcluster.faults import TcpProxy
from fastbk.errors import Error, MetadataConflict, MetadataUnavailable
from fastbk.meta import open_store
from fastbk.meta.records import Change
from fastbk.meta.uri import parse_zookeeper
from fastbk.meta.zookeeper import watches as module
from fastbk.meta.zookeeper.session import SESSION_TIMEOUT_S, Call, Session
from fastbk.meta.zookeeper.store import ZooKeeperStore
from fastbk.meta.zookeeper.watches import ZooKeeperWatches
from fastbk.stream.records import Chunk
from tests.fixtures.fake_bookie import FakeBookie, fake_bookies
from tests.fixtures.metadata import metadata, service
from tests.fixtures.wait import wait_until, wait_until_async
from tests.fixtures.zookeeper import ZooKeeperPlace

T = TypeVar("T")


def _fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except Error:
        return True
    return False


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
