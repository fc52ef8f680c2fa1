"""One suite for AutoRecovery's coordination in every metadata driver, and what is special to leases. INV-H1, INV-H2."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fastbk.errors import ConfigError, StorageError
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.coordination import Check
from fastbk.meta.records import Change
from fastbk.meta.sqlite import MemoryStore, SqliteStore
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import ZooKeeperPlace
from tests.unit.meta.test_metadata_store import Open, open_driver

__all__ = ["open_driver"]

LEASE_S = 10.0


# --- every store -------------------------------------------------------------------------------------------------


def test_switches_and_times_are_seen_by_all(open_driver: Open) -> None:
    one, other = open_driver().coordination, open_driver().coordination
    assert (one.is_enabled(), one.enable(), one.disable(), one.disable()) == (
        True,
        False,
        True,
        False,
    )
    assert (other.is_enabled(), other.enable(), one.is_enabled()) == (False, True, True)
    assert one.lost_bookie_delay_s() is None
    one.set_lost_bookie_delay(30)
    assert other.lost_bookie_delay_s() == 30
    assert one.check_time_ms(Check.REPLICAS) == -1
    one.set_check_time(Check.REPLICAS, 12)
    assert other.check_time_ms(Check.REPLICAS) == 12
    assert other.check_time_ms(Check.PLACEMENT) == -1


def test_writes_of_the_switches_are_reported_also_of_the_same_delay(open_driver: Open) -> None:
    one, other = open_driver().coordination, open_driver().coordination
    calls: list[int] = []
    watch = other.watch_switches(lambda: calls.append(1))
    steps: list[Callable[[], object]] = [
        one.disable,
        lambda: one.set_lost_bookie_delay(0),
        lambda: one.set_lost_bookie_delay(0),
        one.enable,
    ]
    for count, step in enumerate(steps, 1):
        step()
        wait_until(lambda n=count: len(calls) == n, "the write is reported")  # type: ignore[misc]
    watch.close()


def test_the_oldest_vote_is_elected_until_it_is_withdrawn(open_driver: Open) -> None:
    """INV-H1."""
    one, other = open_driver().coordination, open_driver().coordination
    assert one.auditor() is None
    calls: list[int] = []
    watch = other.watch_election(lambda: calls.append(1))
    first = one.vote("b1:3181")
    wait_until(lambda: calls, "the vote is reported")
    second = other.vote("b2:3181")
    third = one.vote("b1:3181")
    assert [vote.is_elected() for vote in (first, second, third)] == [True, False, False]
    assert (one.auditor(), other.auditor()) == ("b1:3181", "b1:3181")
    count = len(calls)
    first.close()
    first.close()
    assert (first.is_elected(), first.is_lost) == (False, True)
    assert [vote.is_elected() for vote in (second, third)] == [True, False]
    assert one.auditor() == "b2:3181"
    wait_until(lambda: len(calls) > count, "the withdrawal is reported")
    second.close()
    assert third.is_elected()
    assert not third.is_lost
    watch.close()


def test_an_audit_is_triggered_by_a_write_of_the_same_delay(open_driver: Open) -> None:
    one, other = open_driver().coordination, open_driver().coordination
    one.disable()
    with pytest.raises(ConfigError, match="disabled"):
        one.trigger_audit()
    one.enable()
    with pytest.raises(ConfigError, match="No auditor"):
        one.trigger_audit()
    one.vote("b1")
    one.set_lost_bookie_delay(5)
    calls: list[int] = []
    watch = other.watch_switches(lambda: calls.append(1))
    one.trigger_audit()
    wait_until(lambda: calls, "the write is reported")
    assert other.lost_bookie_delay_s() == 5
    watch.close()


def test_a_ledger_has_one_lock_and_only_its_holder_removes_it(open_driver: Open) -> None:
    """INV-H2."""
    one, other = open_driver().coordination, open_driver().coordination
    lock = one.lock(7, "host-1")
    assert lock is not None
    assert (lock.ledger_id, lock.is_held()) == (7, True)
    assert one.lock(7, "host-1") is None, "this process has it already"
    assert other.lock(7, "host-2") is None
    assert other.worker_of(7) == "host-1"
    assert other.worker_of(8) is None
    far = other.lock(2**40, "host-2")
    assert far is not None
    assert list(one.locks()) == [(7, "host-1"), (2**40, "host-2")]
    lock.release()
    assert not lock.is_held()
    again = other.lock(7, "host-2")
    assert again is not None
    lock.release()
    assert again.is_held()
    assert list(one.locks()) == [(7, "host-2"), (2**40, "host-2")]


def test_of_many_threads_one_has_the_lock(open_driver: Open) -> None:
    """INV-H2."""
    stores = [open_driver(), open_driver()]
    holders = threading.Semaphore(1)
    taken: list[int] = []
    overlaps: list[int] = []

    def race(store: MetadataStore) -> None:
        for _ in range(20):
            lock = store.coordination.lock(7, "host")
            if lock is not None:
                if not holders.acquire(blocking=False):
                    overlaps.append(1)
                else:
                    taken.append(1)
                    holders.release()
                lock.release()

    threads = [threading.Thread(target=race, args=(stores[one % 2],)) for one in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []
    assert taken
    assert list(stores[0].coordination.locks()) == []


def test_a_closed_store_leaves_neither_vote_nor_lock(open_driver: Open) -> None:
    """INV-H1, INV-H2: the end of the session ends both."""
    one, other = open_driver(), open_driver().coordination
    vote, lock = one.coordination.vote("b1"), one.coordination.lock(7, "host-1")
    assert lock is not None
    mine = other.vote("b2")
    assert not mine.is_elected()
    one.close()
    wait_until(mine.is_elected, "the other voter is elected")
    assert vote.is_lost
    assert other.worker_of(7) is None
    assert other.lock(7, "host-2") is not None


# --- leases in sqlite and in memory ------------------------------------------------------------------------------


class Clock:
    """The machine's clock, as a test moves it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(params=["memory", "sqlite"])
def open_at(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[Clock], SqliteStore]]:
    with ExitStack() as stack:

        def one(clock: Clock) -> SqliteStore:
            store: SqliteStore
            if request.param == "memory":
                store = MemoryStore(str(tmp_path), LEASE_S, clock)
            else:
                store = SqliteStore(f"{tmp_path}/meta.db", lease_s=LEASE_S, clock=clock)
            stack.callback(store.close)
            return store

        yield one


def test_who_does_not_renew_is_elected_no_more_before_another_is(
    open_at: Callable[[Clock], SqliteStore],
) -> None:
    """INV-H1: the two processes' clocks are one clock; here one of them stands, as a stopped process does."""
    stopped, clock = Clock(), Clock()
    one, other = open_at(stopped).coordination, open_at(clock).coordination
    first, second = one.vote("b1"), other.vote("b2")
    clock.now_s += LEASE_S - 0.1
    assert (first.is_elected(), second.is_elected()) == (True, False)
    other.sessions._renew(second._session)
    clock.now_s += 0.2
    assert other.auditor() == "b2"
    assert second.is_elected()
    # Its own clock says that it may go on, and the store says that it may not.
    assert not first.is_elected()
    assert first.is_lost
    stopped.now_s = clock.now_s
    assert not one.vote("b1").is_elected(), "it stands for election anew, behind the other"


def test_a_lock_ends_with_its_lease_and_is_never_given_back_later(
    open_at: Callable[[Clock], SqliteStore],
) -> None:
    """INV-H2."""
    stopped, clock = Clock(), Clock()
    one, other = open_at(stopped).coordination, open_at(clock).coordination
    lock, unmet = one.lock(7, "host-1"), one.lock(8, "host-1")
    assert lock is not None
    assert unmet is not None
    clock.now_s += LEASE_S + 0.1
    assert list(other.locks()) == []
    taken = other.lock(7, "host-2")
    assert taken is not None
    assert not lock.is_held()
    lock.release()
    assert taken.is_held()
    assert not unmet.is_held(), "its session ended with the other's"
    stopped.now_s = clock.now_s
    assert one.lock(7, "host-1") is None
    again = one.lock(8, "host-1")
    assert again is not None
    assert again.is_held()


def test_a_lease_that_ran_out_is_not_renewed(open_at: Callable[[Clock], SqliteStore]) -> None:
    clock = Clock()
    one = open_at(clock).coordination
    lock = one.lock(7, "host-1")
    assert lock is not None
    clock.now_s += LEASE_S
    one.sessions._renew(lock._session)
    assert not lock.is_held()
    assert one.worker_of(7) is None


def test_a_reboot_ends_all_leases(
    open_at: Callable[[Clock], SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock begins anew, so what is written may lie far ahead of it."""
    before, after = Clock(), Clock()
    before.now_s = 1e9
    one = open_at(before).coordination
    one.vote("b1")
    assert one.lock(7, "host-1") is not None
    monkeypatch.setattr("fastbk.meta.record_sessions.read_boot_id", lambda: "next")
    other = open_at(after).coordination
    assert other.auditor() is None
    assert other.vote("b2").is_elected()
    assert other.lock(7, "host-2") is not None


def test_a_group_of_calls_does_not_wait_for_another_threads_session(
    open_at: Callable[[Clock], SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has the store's lock. Both threads once waited for one another for ever."""
    store = open_at(Clock())
    is_in_group, is_changing = threading.Event(), threading.Event()
    change = store.records.change

    def changes(listed: Sequence[Change]) -> list[int]:
        if threading.current_thread() is voter:
            is_changing.set()
        return change(listed)

    monkeypatch.setattr(store.records, "change", changes)

    def vote() -> None:
        is_in_group.wait()
        store.coordination.vote("b1")

    def lock_in_group() -> None:
        with store.group():
            store.marks.read(7)
            is_in_group.set()
            is_changing.wait()
            assert store.coordination.lock(7, "host") is not None

    voter = threading.Thread(target=vote, daemon=True)
    locker = threading.Thread(target=lock_in_group, daemon=True)
    for one in (voter, locker):
        one.start()
    for one in (voter, locker):
        one.join(20)
        assert not one.is_alive()
    assert store.coordination.worker_of(7) == "host"
    assert store.coordination.auditor() == "b1"
    assert len(store.records.children("autorecovery/sessions")) == 1


def test_what_is_damaged_is_said(open_at: Callable[[Clock], SqliteStore]) -> None:
    store = open_at(Clock())
    store.records.change([Change("autorecovery/locks/0000000000000007", b"{}")])
    with pytest.raises(StorageError, match="0007 of AutoRecovery is damaged"):
        store.coordination.worker_of(7)
    store.records.change([Change("autorecovery/lost_bookie_delay", b"soon")])
    with pytest.raises(StorageError, match="holds no number"):
        store.coordination.lost_bookie_delay_s()


# --- several processes at one sqlite file ------------------------------------------------------------------------

_HOLDS = """
import sys
from fastbk.meta.sqlite import SqliteStore
store = SqliteStore(sys.argv[1], lease_s=1.0)
vote, lock = store.coordination.vote("killed"), store.coordination.lock(7, "killed")
print(vote.is_elected(), lock.is_held(), flush=True)
sys.stdin.read()
"""

_RACES = """
import os, sys
from fastbk.meta.sqlite import SqliteStore
store = SqliteStore(sys.argv[1], timeout_s=30.0)
taken = 0
while taken < 20:
    vote = store.coordination.vote(str(os.getpid()))
    lock = store.coordination.lock(7, "host")
    for claim, name in ((vote, "vote"), (lock, "lock")):
        if claim is not None and (claim.is_elected() if name == "vote" else claim.is_held()):
            place = os.path.join(sys.argv[2], name)
            os.close(os.open(place, os.O_CREAT | os.O_EXCL))
            os.unlink(place)
            taken += 1
    if lock is not None:
        lock.release()
    vote.close()
store.close()
"""


def test_what_a_killed_process_held_is_free_after_its_lease(tmp_path: Path) -> None:
    """INV-H1, INV-H2: a process that renews keeps both for longer than a lease, and loses them when it is killed."""
    path = f"{tmp_path}/meta.db"
    with closing(SqliteStore(path, lease_s=1.0)) as store:
        coordination = store.coordination
        with subprocess.Popen(
            [sys.executable, "-c", _HOLDS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"True True\n"
            sessions = [
                f"autorecovery/sessions/{one}"
                for one in store.records.children("autorecovery/sessions")
            ]
            (first,) = store.records.read(sessions)

            def renewals() -> bool:
                (now,) = store.records.read(sessions)
                assert now is not None
                assert first is not None
                return now.version >= first.version + 5

            vote = coordination.vote("b2")
            wait_until(renewals, "it renewed several times, so longer than a lease")
            assert not vote.is_elected()
            assert coordination.lock(7, "host-2") is None
            process.kill()
            process.wait()
        wait_until(vote.is_elected, "the lease ran out")
        assert coordination.lock(7, "host-2") is not None
        assert coordination.auditor() == "b2"


def test_several_processes_exclude_one_another(tmp_path: Path) -> None:
    """INV-H1, INV-H2: a file that only one may have at a time fails the one that is second."""
    path = f"{tmp_path}/meta.db"
    open_store(f"sqlite:{path}").close()
    processes = [
        subprocess.Popen([sys.executable, "-c", _RACES, path, str(tmp_path)]) for _ in range(3)
    ]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    with closing(open_store(f"sqlite:{path}")) as store:
        assert store.coordination.auditor() is None
        assert list(store.coordination.locks()) == []
        assert store.records.children("autorecovery/sessions") == []


# --- sessions of ZooKeeper ---------------------------------------------------------------------------------------


def test_an_expired_session_ends_votes_and_locks_in_zookeeper(zookeeper: ZooKeeperPlace) -> None:
    """INV-H1, INV-H2."""
    with closing(open_store(zookeeper.uri())) as far, closing(open_store(zookeeper.uri())) as near:
        vote, lock = far.coordination.vote("b1"), far.coordination.lock(7, "host-1")
        assert lock is not None
        mine = near.coordination.vote("b2")
        assert (vote.is_elected(), mine.is_elected()) == (True, False)
        zookeeper.expire(far)
        wait_until(mine.is_elected, "the other one is elected")
        assert not vote.is_elected()
        wait_until(lambda: vote.is_lost, "the vote is lost")
        taken = near.coordination.lock(7, "host-2")
        assert taken is not None
        assert not lock.is_held()
        lock.release()
        vote.close()
        assert taken.is_held()
        assert not far.coordination.vote("b1").is_elected()
        assert far.coordination.lock(7, "host-1") is None
