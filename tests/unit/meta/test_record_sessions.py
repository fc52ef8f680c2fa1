"""Leased sessions in sqlite and in memory: whose end ends votes and locks. INV-H1, INV-H2."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fastbk.meta import open_store
from fastbk.meta.records import Change
from fastbk.meta.sqlite.store import MemoryStore, SqliteStore
from tests.fixtures.wait import wait_until

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
