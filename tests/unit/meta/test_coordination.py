"""One suite for AutoRecovery's coordination in every metadata driver. INV-H1, INV-H2."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from fastbk.devcluster.faults import TcpProxy
from fastbk.errors import ConfigError, MetadataUnavailable
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.api import Check
from fastbk.meta.records import Change
from fastbk.meta.sqlite.store import MemoryStore, SqliteStore
from fastbk.meta.uri import parse_zookeeper
from fastbk.meta.zookeeper.store import ZooKeeperStore
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import ZooKeeperPlace
from tests.unit.meta.test_metadata_store import Open, open_driver
from tests.unit.meta.test_zookeeper_session import lose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.fixtures.zookeeper import ZooKeeperPlace
    from tests.unit.meta.test_zookeeper_session import Lose

__all__ = ["lose", "open_driver"]


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
    for wrong in (-1, -5, 2**31, True, "30", 1.5, None):
        with pytest.raises(ConfigError, match="lostBookieRecoveryDelay"):
            one.set_lost_bookie_delay(wrong)  # type: ignore[arg-type]
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


# Votes and locks when answers of ZooKeeper get lost, or it is away: none is made twice, none
# stays. INV-H1, INV-H2.
#
# A real server, and a proxy in front of it.


def _make_parents(store: ZooKeeperStore) -> None:
    """Have what follows be one write each."""
    store.coordination.vote("b0").close()
    lock = store.coordination.lock(1, "host-0")
    assert lock is not None
    lock.release()


def test_a_vote_whose_answer_got_lost_is_found(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    lose: Lose,
) -> None:
    _make_parents(near)
    mine = far.coordination.vote("b1")
    after = near.coordination.vote("b2")
    mine.close()
    assert after.is_elected()
    after.close()
    voted = lose(lambda: near.coordination.auditor() == "b1", lambda: far.coordination.vote("b1"))
    vote = voted.result(10)
    assert vote.is_elected()
    vote.close()
    assert near.coordination.auditor() is None, "there is one vote, not two"


def test_a_second_vote_is_not_taken_for_the_first_one(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    lose: Lose,
) -> None:
    _make_parents(near)
    first = far.coordination.vote("b1")
    rival = near.coordination.vote("b2")
    count: list[int] = []

    def is_done() -> bool:
        call = near._session.call("count")
        count.append(len(call.children(near.coordination._paths.election) or []))
        return count[-1] == 3

    second = lose(is_done, lambda: far.coordination.vote("b1")).result(10)
    assert (first.is_elected(), second.is_elected()) == (True, False)
    first.close()
    assert (rival.is_elected(), second.is_elected()) == (True, False)
    rival.close()
    assert second.is_elected()


def test_a_lock_whose_answer_got_lost_is_held_and_its_release_is_done(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    lose: Lose,
) -> None:
    _make_parents(near)
    locked = lose(
        lambda: near.coordination.worker_of(7) == "host-1",
        lambda: far.coordination.lock(7, "host-1"),
    )
    lock = locked.result(10)
    assert lock is not None
    assert lock.is_held()
    released = lose(lambda: near.coordination.worker_of(7) is None, lock.release)
    released.result(10)
    assert not lock.is_held()
    taken = near.coordination.lock(7, "host-2")
    assert taken is not None
    assert taken.is_held()


def is_answered(call: Callable[[], object]) -> bool:
    try:
        call()
    except MetadataUnavailable:
        return False
    return True


def test_a_release_while_zookeeper_is_away_is_done_with_the_next_lock(
    zookeeper: ZooKeeperPlace, near: ZooKeeperStore, proxy: TcpProxy
) -> None:
    location = parse_zookeeper(zookeeper.uri(through=proxy.address))
    far = ZooKeeperStore(location, timeout_s=1.0)
    try:
        lock = far.coordination.lock(7, "host-1")
        vote = far.coordination.vote("b1")
        assert lock is not None
        proxy.cut()
        wait_until(lambda: not far._session.is_connected, "the cut is seen")
        with pytest.raises(MetadataUnavailable):
            lock.is_held()
        with pytest.raises(MetadataUnavailable):
            vote.is_elected()
        assert not vote.is_lost, "its session may live"
        with pytest.raises(MetadataUnavailable):
            lock.release()
        assert not lock.is_held()
        assert near.coordination.lock(7, "host-2") is None
        proxy.mend()
        wait_until(lambda: far._session.is_connected, "it is back")
        # A second is not always enough on a busy machine.
        wait_until(lambda: is_answered(vote.is_elected), "the election is read")
        assert vote.is_elected()
        other = far.coordination.lock(8, "host-1")
        assert other is not None
        assert list(near.coordination.locks()) == [(8, "host-1")]
    finally:
        far.close()


# Leased sessions in sqlite and in memory: whose end ends votes and locks. INV-H1, INV-H2.


LEASE_S = 10.0


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
    monkeypatch.setattr("fastbk.meta.sqlite.coordination.read_boot_id", lambda: "next")
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


def test_what_is_damaged_counts_no_more_and_stops_nothing(
    open_at: Callable[[Clock], SqliteStore],
) -> None:
    store = open_at(Clock())
    store.records.change([
        Change("autorecovery/locks/0000000000000007", b"{}"),
        Change("autorecovery/locks/nonsense", b"{}"),
        Change("autorecovery/votes", b"many"),
        Change("autorecovery/votes/0000000000000041", b"{}"),
        Change("autorecovery/lost_bookie_delay", b"soon"),
    ])  # fmt: skip
    assert store.coordination.worker_of(7) is None
    assert store.coordination.lost_bookie_delay_s() is None
    assert list(store.coordination.locks()) == []
    assert store.coordination.lock(7, "host") is not None
    vote = store.coordination.vote("b1")
    assert vote.is_elected() and store.coordination.auditor() == "b1"
    session = f"autorecovery/sessions/{store.records.children('autorecovery/sessions')[0]}"
    (found,) = store.records.read([session])
    assert found is not None
    store.records.change([Change(session, b'{"boot_id":"x","expires_s":1e300}', found.version)])
    assert not vote.is_elected()


# --- several processes at one sqlite file ------------------------------------------------------------------------

_HOLDS = """
import sys
from fastbk.meta.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1], lease_s=1.0)
vote, lock = store.coordination.vote("killed"), store.coordination.lock(7, "killed")
print(vote.is_elected(), lock.is_held(), flush=True)
sys.stdin.read()
"""
_RACES = """
import os, sys
from fastbk.meta.sqlite.store import SqliteStore
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
            calls: list[int] = []
            watch = coordination.watch_election(lambda: calls.append(1))
            process.kill()
            process.wait()
        wait_until(lambda: calls, "the thread of this process's lease removed the vote")
        watch.close()
        assert vote.is_elected()
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
