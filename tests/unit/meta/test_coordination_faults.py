"""Votes and locks when answers of ZooKeeper get lost, or it is away: none is made twice, none stays. INV-H1, INV-H2.

A real server, and a proxy in front of it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from fastbk.devcluster.faults import TcpProxy
from fastbk.errors import MetadataUnavailable
from fastbk.meta.api import LedgerLock, Vote
from fastbk.meta.uri import parse_zookeeper
from fastbk.meta.zookeeper.store import ZooKeeperStore
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import ZooKeeperPlace
from tests.unit.meta.test_zookeeper_faults import aside, lose_the_answer

__all__ = ["aside"]


def _make_parents(store: ZooKeeperStore) -> None:
    """Have what follows be one write each."""
    store.coordination.vote("b0").close()
    lock = store.coordination.lock(1, "host-0")
    assert lock is not None
    lock.release()


def test_a_vote_whose_answer_got_lost_is_found(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    proxy: TcpProxy,
    aside: Callable[[Callable[[], Vote]], Future[Vote]],
) -> None:
    _make_parents(near)
    mine = far.coordination.vote("b1")
    after = near.coordination.vote("b2")
    mine.close()
    assert after.is_elected()
    after.close()
    voted = lose_the_answer(
        proxy,
        lambda: near.coordination.auditor() == "b1",
        lambda: aside(lambda: far.coordination.vote("b1")),
    )
    vote = voted.result(10)
    assert vote.is_elected()
    vote.close()
    assert near.coordination.auditor() is None, "there is one vote, not two"


def test_a_second_vote_is_not_taken_for_the_first_one(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    proxy: TcpProxy,
    aside: Callable[[Callable[[], Vote]], Future[Vote]],
) -> None:
    _make_parents(near)
    first = far.coordination.vote("b1")
    rival = near.coordination.vote("b2")
    count: list[int] = []

    def is_done() -> bool:
        call = near._session.call("count")
        count.append(len(call.children(near.coordination._paths.election) or []))
        return count[-1] == 3

    second = lose_the_answer(
        proxy, is_done, lambda: aside(lambda: far.coordination.vote("b1"))
    ).result(10)
    assert (first.is_elected(), second.is_elected()) == (True, False)
    first.close()
    assert (rival.is_elected(), second.is_elected()) == (True, False)
    rival.close()
    assert second.is_elected()


def test_a_lock_whose_answer_got_lost_is_held_and_its_release_is_done(
    far: ZooKeeperStore,
    near: ZooKeeperStore,
    proxy: TcpProxy,
    aside: Callable[[Callable[[], LedgerLock | None]], Future[LedgerLock | None]],
) -> None:
    _make_parents(near)
    locked = lose_the_answer(
        proxy,
        lambda: near.coordination.worker_of(7) == "host-1",
        lambda: aside(lambda: far.coordination.lock(7, "host-1")),
    )
    lock = locked.result(10)
    assert lock is not None
    assert lock.is_held()
    released = lose_the_answer(
        proxy, lambda: near.coordination.worker_of(7) is None, lambda: aside(lock.release)
    )
    released.result(10)
    assert not lock.is_held()
    taken = near.coordination.lock(7, "host-2")
    assert taken is not None
    assert taken.is_held()


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
        assert vote.is_elected()
        other = far.coordination.lock(8, "host-1")
        assert other is not None
        assert list(near.coordination.locks()) == [(8, "host-1")]
    finally:
        far.close()
