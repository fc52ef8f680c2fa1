"""The order of repairs: the fewest live copies first, and nothing that waits blocks another ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastbk.autorecovery import repair_order
from fastbk.autorecovery.repair_order import (
    BACKOFF_MAX_S,
    BACKOFF_MIN_S,
    PARKED_RETRY_S,
    RepairOrder,
    live_copies,
)
from fastbk.model.ledger import LedgerState
from fastbk.model.missing_replica import MissingReplica
from tests.fixtures.fake_quorum import metadata_of


def all_of(order: RepairOrder) -> list[int]:
    taken = []
    while (ledger_id := order.take()) is not None:
        taken.append(ledger_id)
    return taken


def test_the_fewest_live_copies_come_first() -> None:
    order = RepairOrder()
    order.replace([(1, 2), (2, 0), (3, 1), (4, 2)], 0.0)
    taken = all_of(order)
    assert taken[:2] == [2, 3]
    assert set(taken[2:]) == {1, 4}


def test_workers_take_equally_urgent_ledgers_in_different_orders() -> None:
    orders = [RepairOrder(seed) for seed in (1, 2)]
    for one in orders:
        one.replace([(ledger_id, 1) for ledger_id in range(50)], 0.0)
    assert all_of(orders[0]) != all_of(orders[1])


def test_a_failed_ledger_backs_off_ever_longer() -> None:
    order, now_s, pauses = RepairOrder(), 0.0, []
    for _ in range(12):
        order.replace([(1, 2)], now_s)
        assert order.take() == 1
        pauses.append(order.failed(1, "no answer", now_s))
        order.replace([(1, 2)], now_s + pauses[-1] - 0.1)
        assert order.take() is None
        now_s += pauses[-1]
    assert pauses[:3] == [BACKOFF_MIN_S, 2 * BACKOFF_MIN_S, 4 * BACKOFF_MIN_S]
    assert pauses[-1] == BACKOFF_MAX_S


def test_a_parked_ledger_is_tried_again_when_a_bookie_comes_and_seldom_besides() -> None:
    order = RepairOrder()
    order.replace([(1, 0), (2, 2)], 0.0)
    assert order.take() == 1
    assert order.park(1, "no source", 0.0)
    assert order.take() == 2  # it blocks nobody
    order.done(2)
    order.replace([(1, 0)], PARKED_RETRY_S - 1)
    assert order.take() is None
    order.bookies_came(PARKED_RETRY_S - 1)
    order.replace([(1, 0)], PARKED_RETRY_S - 1)
    assert order.take() == 1
    assert not order.park(1, "no source", PARKED_RETRY_S - 1)  # no news
    assert order.parked[1].since_s == 0.0


def test_a_ledger_that_lost_its_mark_waits_no_more() -> None:
    order = RepairOrder()
    order.replace([(1, 0)], 0.0)
    order.take()
    order.park(1, "no source", 0.0)
    order.replace([], 1.0)
    assert not order.parked


def test_an_active_ledger_is_not_taken_twice() -> None:
    order = RepairOrder()
    order.replace([(1, 0)], 0.0)
    assert order.take() == 1
    order.replace([(1, 0)], 1.0)
    assert order.take() is None


def test_a_ledger_whose_repair_was_cancelled_is_offered_again() -> None:
    """As after a pause in the middle of it."""
    order = RepairOrder()
    order.replace([(1, 0)], 0.0)
    assert order.take() == 1
    order.leave(1)
    order.replace([(1, 0)], 1.0)
    assert order.take() == 1


def test_the_ledgers_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_order, "LEDGERS_MAX", 10)
    order = RepairOrder()
    order.replace(((one, 1) for one in range(100)), 0.0)
    assert order.is_cut
    assert len(order) == 10


def test_live_copies_are_those_of_the_worst_write_set() -> None:
    """b0..b3 with write quorum 2: entries are on (b0, b1), (b1, b2), (b2, b3) and (b3, b0)."""
    metadata = metadata_of(4, 2, 2)
    closed = replace(metadata, state=LedgerState.CLOSED, last_entry_id=9, length=1)
    everyone = {"b0", "b1", "b2", "b3"}
    assert live_copies(closed, (), everyone) == 2
    assert live_copies(closed, (), everyone - {"b1"}) == 1
    assert live_copies(closed, (), everyone - {"b1", "b2"}) == 0
    assert live_copies(closed, (), everyone - {"b1", "b3"}) == 1
    assert live_copies(closed, (MissingReplica("b2", 3, 3),), everyone - {"b1"}) == 0
    short = replace(closed, last_entry_id=0)
    assert live_copies(short, (), everyone - {"b2", "b3"}) == 2
    empty = replace(closed, last_entry_id=-1)
    assert live_copies(empty, (), set()) == 2


def test_live_copies_look_at_all_fragments() -> None:
    metadata = metadata_of(3, 3, 2, 5)
    assert [one.ensemble for one in metadata.fragments] == [("b0", "b1", "b2"), ("b1", "b2", "b3")]
    everyone = {"b0", "b1", "b2", "b3"}
    assert live_copies(metadata, (), everyone - {"b0"}) == 2
    assert live_copies(metadata, (MissingReplica("b3", 5, None),), everyone - {"b0", "b1"}) == 1
    assert live_copies(metadata, (MissingReplica("b3", 0, 4),), everyone) == 3
