"""Force: who has to confirm, and what each answer means."""

from __future__ import annotations

import pytest

from fastbk.errors import NotEnoughBookies, QuorumTimeout
from fastbk.replication.actions import ForceLedger, Reply, SendRequest
from fastbk.replication.forcing import ForcedTo, ForceProcedure
from fastbk.wire.statuses import Status
from tests.unit.replication.writer_harness import WriterHarness

OK, NO_LEDGER = Reply(Status.OK), Reply(Status.NO_LEDGER)
AWAY, LATE = NotEnoughBookies("away"), QuorumTimeout("no answer")


def force_of(
    size: int, write_quorum: int, *, holds: str = "", needs_all: bool = False
) -> ForceProcedure:
    """`holds`: a letter a bookie, y or n."""
    return ForceProcedure(
        7,
        [f"b{one}" for one in range(size)],
        write_quorum,
        2,
        ForcedTo(9, 1000),
        holds=[one == "y" for one in holds or "y" * size],
        needs_all=needs_all,
        timeout_s=1.0,
    )


def answer(force: ForceProcedure, *outcomes: Reply | NotEnoughBookies | QuorumTimeout) -> None:
    force.start(0.0)
    asks = [one for one in force.take_actions() if isinstance(one, SendRequest)]
    assert all(ask.request == ForceLedger() and ask.timeout_s == 1.0 for ask in asks)
    for ask, outcome in zip(asks, outcomes, strict=False):
        force.completed(ask.tag, outcome, 0.0)


def test_an_ordinary_ledger_needs_the_ack_quorum_of_every_write_set() -> None:
    force = force_of(3, 3)
    answer(force, OK, AWAY, OK)
    assert force.value() == ForcedTo(9, 1000)


def test_it_does_not_wait_for_those_it_does_not_need() -> None:
    force = force_of(3, 3)
    answer(force, OK, OK)
    assert force.is_finished
    assert len(force.take_actions()) == 1  # the third question is withdrawn


def test_it_fails_as_soon_as_it_cannot_succeed() -> None:
    force = force_of(3, 3)
    answer(force, AWAY, Reply(Status.READ_ONLY))
    assert isinstance(force.error, NotEnoughBookies)
    assert force.error.replicas == {"b0": "away", "b1": "READ_ONLY"}
    assert force.error.outcome == "unknown"


def test_with_striping_one_bookie_may_be_too_many() -> None:
    force = force_of(4, 2)
    answer(force, OK, OK, LATE, OK)
    assert isinstance(force.error, NotEnoughBookies)


@pytest.mark.parametrize("fault", [AWAY, LATE, Reply(Status.IO_ERROR)])
def test_deferred_sync_needs_all_of_them(fault: Reply | NotEnoughBookies | QuorumTimeout) -> None:
    force = force_of(3, 3, needs_all=True)
    answer(force, OK, OK, fault)
    assert isinstance(force.error, NotEnoughBookies)
    force = force_of(3, 3, needs_all=True)
    answer(force, OK, OK, OK)
    assert force.value() == ForcedTo(9, 1000)


def test_a_bookie_that_was_sent_nothing_may_not_know_the_ledger() -> None:
    force = force_of(3, 3, holds="yyn", needs_all=True)
    answer(force, OK, OK, NO_LEDGER)
    assert force.error is None
    force = force_of(3, 3, holds="yyy", needs_all=True)
    answer(force, OK, OK, NO_LEDGER)
    assert isinstance(force.error, NotEnoughBookies)


def test_a_writer_forces_what_is_acknowledged_when_it_is_asked() -> None:
    harness = WriterHarness(is_deferred=True)
    harness.add(3)
    harness.ack("b0", "b1", first=0, count=2)
    force = harness.writer.forcing(1.0)
    harness.ack("b0", "b1", "b2")
    answer(force, OK, OK, NO_LEDGER)
    harness.writer.forced(force.value())
    assert harness.writer.adds.head == 3
    assert (harness.writer.last_add_confirmed, harness.writer.length_confirmed) == (1, 200)
