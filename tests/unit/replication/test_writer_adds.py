"""The add machine where a writer's machine needs it, and what a force waits for."""

from __future__ import annotations

import pytest

from fastbk.errors import LedgerClosed, LedgerFenced, NotEnoughBookies, QuorumTimeout
from fastbk.model.ids import ID_MAX
from fastbk.model.ledger import LedgerState
from fastbk.model.quorum import AckSets
from fastbk.replication import add_machine
from fastbk.replication.add_machine import AddMachine
from fastbk.replication.procedure import ForceLedger, Reply, SendRequest
from fastbk.replication.writer_machine import ForcedTo, ForceProcedure
from fastbk.wire.statuses import Status
from tests.unit.replication.writer_harness import WriterHarness, frames_of


def machine_of(
    first: int = 0, held: int = 1 << 30, size: int = 3, write_quorum: int = 3
) -> AddMachine:
    names = [f"b{one}" for one in range(size)]
    machine = AddMachine(7, names, write_quorum, 2, held_bytes_max=held, first_entry_id=first)
    for index in range(size):
        machine.connected(index)
    return machine


def add(machine: AddMachine, count: int, now_s: float = 0.0) -> None:
    machine.add(*frames_of(machine.next_entry_id, count), now_s)
    for index in range(len(machine.ensemble)):
        while machine.next_to_send(index) is not None:
            pass


def test_the_last_possible_id_is_written_and_none_behind_it() -> None:
    machine = machine_of(first=ID_MAX)
    add(machine, 1)
    machine.acknowledged(0, ID_MAX, 1)
    assert machine.acknowledged(1, ID_MAX, 1)
    assert machine.last_add_confirmed == ID_MAX
    add(machine, 1)
    assert isinstance(machine.failure, LedgerClosed)
    assert machine.outcome(ID_MAX + 1) == "not_written"
    assert machine.next_entry_id == ID_MAX + 1


def test_what_a_replaced_bookie_lacks_of_the_former_fragment_goes_to_its_replacement() -> None:
    harness = WriterHarness()
    harness.add(10)
    harness.ack("b2", first=0, count=2)
    harness.ack("b2", first=4)
    harness.ack("b0", "b1", first=0, count=6)
    harness.fail("b2")
    harness.change()
    assert harness.writer.adds.lagging(2) == 8
    harness.connect("s0")
    assert harness.wire["s0"] == [2, 3, 4, 5, 6, 7, 8, 9]
    harness.ack("b0", "b1", "s0")
    assert harness.writer.adds.is_replicated
    assert harness.writer.adds.held_bytes == 0


def test_what_a_replaced_bookie_may_have_stored_is_unknown_for_ever() -> None:
    harness = WriterHarness(1, 1, 1)
    harness.add(1)
    harness.lose("b0")
    harness.change()
    harness.connect("s0")
    assert harness.wire["s0"] == [0]
    harness.add(1)
    harness.store.edit(state=LedgerState.IN_RECOVERY)
    harness.refuse("s0", Status.FENCED)
    harness.change()
    assert isinstance(harness.writer.failure, LedgerFenced)
    assert harness.writer.failure.outcome == "unknown"
    assert harness.writer.adds.outcome(0) == "unknown"


def test_a_lost_connection_makes_only_what_was_sent_before_uncertain() -> None:
    machine = machine_of()
    add(machine, 1)
    for index in range(3):
        machine.lost(index, "cut")
        machine.connected(index)
    machine.acknowledged(0, 0, 1)
    machine.acknowledged(1, 0, 1)
    add(machine, 1)
    for index in (2, 1, 0):
        machine.refused(index, 1, 1, Status.FENCED if index == 0 else Status.NOT_READY)
    assert machine.failure is not None
    assert machine.outcome(1) == "not_written"


def test_what_is_remembered_of_entries_given_up_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bookie that is slow for ever must not cost memory for ever (A24)."""
    monkeypatch.setattr(add_machine, "DROPPED_MAX", 5)
    machine = machine_of(held=0)
    for entry_id in range(20):
        add(machine, 1)
        machine.acknowledged(0, entry_id, 1)
        machine.acknowledged(1, entry_id, 1)
    assert machine.under_replicated[2] == 20
    machine.acknowledged(2, 0, 20)
    # The acks of those that were not remembered are not noticed: the count stays on the safe side.
    assert machine.under_replicated[2] == 15


def test_acks_that_came_early_are_counted_when_what_was_before_them_is_given_up() -> None:
    machine = machine_of(held=0)
    for _ in range(3):
        add(machine, 1)
    machine.acknowledged(2, 1, 1)
    machine.acknowledged(0, 0, 1)
    machine.acknowledged(1, 0, 1)
    assert machine.under_replicated == [0, 0, 1]
    machine.acknowledged(2, 2, 1)
    assert machine.lagging(2) == 0
    assert not any(machine._acked_ahead)


def test_the_oldest_add_that_a_bookie_owes_is_told() -> None:
    machine = machine_of(size=4, write_quorum=2)
    assert machine.owed_since(0) is None
    for at_s in range(8):
        add(machine, 1, now_s=float(at_s))
    assert [machine.owed_since(index) for index in range(4)] == [0.0, 0.0, 1.0, 2.0]
    machine.acknowledged(0, 0, 1)
    assert machine.owed_since(0) == 3.0
    machine.acknowledged(0, 4, 1)
    assert machine.owed_since(0) == 3.0
    machine.acknowledged(0, 3, 1)
    assert machine.owed_since(0) == 7.0
    machine.acknowledged(0, 7, 1)
    assert machine.owed_since(0) is None


def test_an_entry_needs_those_without_which_it_has_no_quorum() -> None:
    machine = machine_of(size=4, write_quorum=2)
    assert machine.needed_of({0, 1}) == set()
    add(machine, 1)
    assert machine.needed_of({2, 3}) == set()
    assert machine.needed_of({0, 3}) == {0}
    machine.acknowledged(0, 0, 1)
    assert machine.needed_of({0, 3}) == set()
    assert machine.short_without({3}) == {3}


def test_with_deferred_sync_only_a_force_raises_the_lac() -> None:
    harness = WriterHarness(is_deferred=True)
    writer = harness.writer
    harness.add(4)
    harness.ack("b0", "b1", "b2", first=0, count=3)
    assert writer.adds.head == 3
    assert (writer.last_add_confirmed, writer.length_confirmed) == (-1, 0)
    force = writer.forcing(1.0)
    harness.ack("b0", "b1", "b2")
    writer.forced(ForcedTo(2, 300))
    assert (writer.last_add_confirmed, writer.length_confirmed) == (2, 300)
    writer.forced(ForcedTo(1, 200))
    assert (writer.last_add_confirmed, writer.length_confirmed) == (2, 300)
    assert force._to == ForcedTo(2, 300)


def test_the_timeout_of_a_writer_that_waits_for_the_metadata_says_so() -> None:
    harness = WriterHarness()
    harness.add(1)
    harness.fail("b2")
    harness.ack("b0", "b1")
    harness.pass_time(10.0)
    assert isinstance(harness.writer.failure, QuorumTimeout)
    assert "metadata did not answer" in str(harness.writer.failure)


def test_a_writer_whose_bookies_are_only_slow_ends_with_a_timeout() -> None:
    harness = WriterHarness(spares=[])
    harness.add(1)
    harness.pass_time(4.9)
    harness.ack("b0")
    harness.pass_time(0.05)
    assert harness.writer.failure is None
    harness.pass_time(10.0)
    assert isinstance(harness.writer.failure, QuorumTimeout | NotEnoughBookies)
    assert set(harness.writer.failure.replicas) >= {"b1", "b2"}


@pytest.mark.parametrize("status", [Status.UNAUTHORIZED, Status.CONFLICT])
def test_refusals_that_end_a_writer_end_its_machine(status: Status) -> None:
    harness = WriterHarness()
    harness.add(1)
    assert not harness.refuse("b0", status)
    assert harness.writer.is_finished
    harness.ack("b1", "b2")
    assert harness.writer.adds.head == 0


def test_entries_behind_a_striped_change_are_acknowledged_before_the_replacement_has_old_ones() -> (
    None
):
    """The head stood still until the replacement had acknowledged entries of the former fragment."""
    machine = AddMachine(7, [f"b{one}" for one in range(4)], 3, 1, held_bytes_max=1 << 30)
    for index in range(4):
        machine.connected(index)
    add(machine, 5)
    for index, entry_id in (
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
        (3, 1),
        (3, 2),
        (3, 3),
        (0, 0),
        (0, 3),
        (0, 4),
    ):
        machine.acknowledged(index, entry_id, 1)
    assert machine.head == 5
    for index in range(3):
        machine.lost(index, "cut")
    machine.freeze()
    add(machine, 2)
    machine.acknowledged(3, 5, 1)
    machine.acknowledged(3, 6, 1)
    assert machine.replace(0, "s0") < 5  # it is given entries of the former fragment
    assert machine.thaw() and machine.head == 7


OK, NO_LEDGER = Reply(Status.OK), Reply(Status.NO_LEDGER)
AWAY, LATE = NotEnoughBookies("away"), QuorumTimeout("no answer")


def force_of(
    size: int, write_quorum: int, *, holds: str = "", needs_all: bool = False
) -> ForceProcedure:
    """`holds`: a letter a bookie, y or n."""
    return ForceProcedure(
        7,
        [f"b{one}" for one in range(size)],
        AckSets(size, write_quorum, 2),
        ForcedTo(9, 1000),
        holds=[one == "y" for one in holds or "y" * size],
        needs_all=needs_all,
        timeout_s=1.0,
    )


def answer(force: ForceProcedure, *outcomes: Reply | NotEnoughBookies | QuorumTimeout) -> None:
    force.start(0.0)
    asks = force.take_actions()
    for _, ask in asks:
        assert isinstance(ask, SendRequest)
        assert (ask.request, ask.timeout_s) == (ForceLedger(), 1.0)
    for (tag, _), outcome in zip(asks, outcomes, strict=False):
        force.completed(tag, outcome, 0.0)


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
