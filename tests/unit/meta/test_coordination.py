"""One suite for AutoRecovery's coordination in every metadata driver. INV-H1, INV-H2."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from fastbk.errors import ConfigError
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.api import Check
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import ZooKeeperPlace
from tests.unit.meta.test_metadata_store import Open, open_driver

__all__ = ["open_driver"]


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
