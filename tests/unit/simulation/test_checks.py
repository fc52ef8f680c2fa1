"""Each check of the simulator is shown histories that must not be, and has to say which invariant they break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fastbk.model.ledger import Fragment, LedgerState
from fastbk.replication.actions import AskLac, Found, ReadEntries, ReadEntry, Reply
from fastbk.wire.statuses import Status
from tests.simulation.checks import INVARIANTS
from tests.simulation.kernel import Violation
from tests.unit.simulation.judge import Judge

BAD: list[tuple[str, str, Callable[[Judge], None]]] = []


def bad(name: str) -> Callable[[Callable[[Judge], None]], Callable[[Judge], None]]:
    def note(history: Callable[[Judge], None]) -> Callable[[Judge], None]:
        BAD.append((name, history.__name__, history))
        return history

    return note


# --- what the writer is told ----------------------------------------------------------------------------------------


@bad("I1")
def acknowledged_with_one_copy(judge: Judge) -> None:
    judge.store(1, (0,))
    judge.acked(1)


@bad("I1")
def acknowledged_by_a_bookie_that_was_replaced(judge: Judge) -> None:
    judge.store(1, (0, 1))
    judge.ensemble(0, "b3", "b1", "b2")
    judge.acked(1)


@bad("I1")
def acknowledged_and_not_readable(judge: Judge) -> None:
    judge.store(2)
    judge.acked(2)
    judge.close(1)
    judge.checks.not_readable("r", 0, 1, "gone")


@bad("I2")
def closed_below_what_was_acknowledged(judge: Judge) -> None:
    judge.store(3)
    judge.acked(3)
    judge.close(1)


@bad("I2")
def acknowledged_behind_the_end(judge: Judge) -> None:
    judge.store(2)
    judge.acked(1)
    judge.close(0)
    judge.acked(2)


@bad("I6")
def the_head_falls(judge: Judge) -> None:
    judge.store(2)
    judge.acked(2)
    judge.acked(1)


@bad("I9")
def acknowledged_though_added_after_the_fences_were_counted(judge: Judge) -> None:
    judge.store(1)
    judge.recovery_reads()
    judge.store(1)
    judge.acked(2)


@bad("I15")
def a_writer_cannot_read_its_own(judge: Judge) -> None:
    judge.store(1)
    judge.acked(1)
    judge.checks.own_not_read("c0", 0, 0, "no such entry")


# --- what readers are told ------------------------------------------------------------------------------------------


@bad("I3")
def two_reads_differ(judge: Judge) -> None:
    judge.store(1)
    judge.checks.was_read("c1", 0, 0, judge.ledger.written[0])
    judge.ledger.written[0] = b"another"
    judge.checks.was_read("c2", 0, 0, b"another")


@bad("I4")
def read_what_nobody_wrote(judge: Judge) -> None:
    judge.store(1)
    judge.checks.was_read("c1", 0, 0, b"else")


@bad("I4")
def read_what_belongs_to_another_entry(judge: Judge) -> None:
    judge.store(2)
    judge.checks.was_read("c1", 0, 0, judge.ledger.written[1])


@bad("I4")
def read_an_entry_from_nowhere(judge: Judge) -> None:
    judge.checks.was_read("c1", 0, 0, b"0/0")


@bad("I4")
def closed_behind_what_was_added(judge: Judge) -> None:
    judge.store(1)
    judge.close(1)


@bad("I5")
def an_entry_below_the_lac_is_missing(judge: Judge) -> None:
    judge.store(2)
    judge.acked(2)
    judge.checks.no_such_entry("c1", 0, 0)


@bad("I5")
def a_range_leaps(judge: Judge) -> None:
    judge.store(3)
    judge.checks.in_order("c1", 0, 1, 2)


@bad("I5")
def a_rewritten_entry_is_not_readable(judge: Judge) -> None:
    judge.store(1)
    judge.close(0)
    judge.checks.not_readable("r", 0, 0, "gone")


@bad("I5")
def closed_below_a_lac_that_was_told(judge: Judge) -> None:
    judge.store(2)
    judge.acked(1)
    judge.change(replace(judge.metadata, state=LedgerState.IN_RECOVERY))
    judge.checks.lac_told("c2", 0, -1, 1)
    judge.close(0)


@bad("I7")
def a_lac_falls(judge: Judge) -> None:
    judge.store(2)
    judge.acked(2)
    judge.checks.lac_told("c1", 0, 1, 0)


@bad("I7")
def a_lac_passes_what_is_acknowledged(judge: Judge) -> None:
    judge.store(2)
    judge.acked(1)
    judge.checks.lac_told("c1", 0, -1, 1)


@bad("I7")
def a_recoverers_lac_passes_what_a_quorum_has(judge: Judge) -> None:
    judge.store(1)
    judge.store(1, (0,))
    judge.acked(1)
    judge.change(replace(judge.metadata, state=LedgerState.IN_RECOVERY))
    judge.checks.lac_told("c1", 0, -1, 1)


@bad("I21")
def a_force_covers_what_is_not_acknowledged(judge: Judge) -> None:
    judge.store(1)
    judge.checks.forced("c0", 0, 0)


@bad("I20")
def a_ledger_cannot_be_closed(judge: Judge) -> None:
    judge.checks.not_recoverable(0, "nobody answers")


# --- metadata -------------------------------------------------------------------------------------------------------


@bad("I8")
def a_closed_ledger_opens_again(judge: Judge) -> None:
    judge.close(-1)
    judge.change(replace(judge.metadata, state=LedgerState.OPEN, last_entry_id=-1))


@bad("I8")
def the_end_moves(judge: Judge) -> None:
    judge.store(2)
    judge.close(0)
    judge.change(
        replace(judge.metadata, last_entry_id=1, length=sum(map(len, judge.ledger.written)))
    )


@bad("I8")
def a_closed_ledger_gets_a_fragment(judge: Judge) -> None:
    judge.store(2)
    judge.close(1)
    last = Fragment(1, ("b3", "b4", "b5"))
    judge.change(replace(judge.metadata, fragments=(*judge.metadata.fragments, last)))


@bad("I8")
def a_finished_fragment_changes(judge: Judge) -> None:
    judge.store(2)
    judge.acked(2)
    judge.ensemble(2, "b3", "b4", "b5")
    first = Fragment(0, ("b0", "b1", "b5"))
    judge.change(replace(judge.metadata, fragments=(first, judge.metadata.fragments[1])), "c0")


@bad("I8")
def a_fragment_moves(judge: Judge) -> None:
    judge.ensemble(4, "b3", "b4", "b5")
    judge.ensemble(3, "b3", "b4", "b5")


@bad("I10")
def two_clients_believe_in_two_ends(judge: Judge) -> None:
    judge.store(2)
    judge.close(0)
    judge.checks.believes_closed("c2", 0, replace(judge.metadata, last_entry_id=1, length=9))


@bad("I10")
def a_client_believes_that_an_open_ledger_is_closed(judge: Judge) -> None:
    closed = judge.metadata.closed(-1, 0)
    judge.checks.believes_closed("c2", 0, closed)


@bad("I10")
def the_length_counts_what_was_cut_off(judge: Judge) -> None:
    judge.store(2)
    judge.close(0, sum(map(len, judge.ledger.written)))


@bad("I16")
def a_blind_write(judge: Judge) -> None:
    judge.change(judge.metadata)
    judge.change(judge.metadata, base_version=0)


@bad("I16")
def a_recovered_ledger_opens_again(judge: Judge) -> None:
    judge.change(replace(judge.metadata, state=LedgerState.IN_RECOVERY))
    judge.change(replace(judge.metadata, state=LedgerState.OPEN))


@bad("I16")
def the_update_of_another_is_lost(judge: Judge) -> None:
    before = judge.metadata
    judge.change(replace(before, custom={"a": b"1"}))
    judge.change(replace(before, custom={"b": b"1"}))


@bad("I16")
def a_bookie_is_named_twice(judge: Judge) -> None:
    judge.ensemble(0, "b0", "b0", "b2")


@bad("I16")
def quorums_change(judge: Judge) -> None:
    judge.change(replace(judge.metadata, ack_quorum=1))


@bad("I16")
def a_fragment_is_added_while_the_ledger_is_recovered(judge: Judge) -> None:
    judge.change(replace(judge.metadata, state=LedgerState.IN_RECOVERY))
    judge.ensemble(1, "b3", "b4", "b5")


@bad("I18")
def a_fragment_starts_too_early(judge: Judge) -> None:
    judge.store(3)
    judge.acked(3)
    judge.ensemble(1, "b3", "b4", "b5")


@bad("I18")
def closed_with_an_entry_on_one_bookie(judge: Judge) -> None:
    judge.store(1)
    judge.store(1, (2,))
    judge.close(1)


@bad("I19")
def a_repair_leaves_the_lost_bookie_named(judge: Judge) -> None:
    judge.store(1)
    judge.close(0)
    judge.checks.repaired(0, "b0")


@bad("I19")
def a_repair_names_a_bookie_without_the_copies(judge: Judge) -> None:
    judge.store(1, (0, 1))
    judge.close(0)
    judge.facts.take(replace(judge.metadata, fragments=(Fragment(0, ("b3", "b1", "b2")),)))
    judge.checks.repaired(0, "b0")


@bad("I19")
def a_repair_fails(judge: Judge) -> None:
    judge.checks.not_repaired(0, "no bookie to copy to")


# --- bookies --------------------------------------------------------------------------------------------------------


@bad("I11")
def no_of_what_was_acknowledged(judge: Judge) -> None:
    judge.store(1)
    judge.answer(0, ReadEntry(0), Reply(Status.NO_ENTRY))


@bad("I11")
def no_ledger_though_something_was_acknowledged(judge: Judge) -> None:
    judge.store(1)
    judge.answer(0, ReadEntry(-1, fence=True), Reply(Status.NO_LEDGER))


@bad("I11")
def a_batch_passes_over_what_was_acknowledged(judge: Judge) -> None:
    judge.store(3)
    found = Found(0, -1, 3, judge.ledger.written[0])
    judge.answer(0, ReadEntries(0, 2, 9, 999), Reply(Status.OK, (found,), next_entry_id=3))


@bad("I11")
def no_lac_of_a_ledger_with_entries(judge: Judge) -> None:
    judge.store(1)
    judge.answer(0, AskLac(), Reply(Status.NO_LEDGER))


@bad("I11")
def no_of_what_was_acknowledged_before_the_data_was_lost(judge: Judge) -> None:
    judge.store(1)
    judge.checks.wiped(judge.world.bookies["b0"])
    judge.answer(0, ReadEntry(0), Reply(Status.NO_ENTRY))


@bad("I12")
def an_add_passes_a_fence(judge: Judge) -> None:
    judge.write(1)
    judge.fence(0)
    judge.add(0, 0)


@bad("I12")
def an_add_passes_a_fence_after_the_data_was_lost(judge: Judge) -> None:
    judge.write(1)
    judge.fence(0)
    judge.checks.wiped(judge.world.bookies["b0"])
    judge.add(0, 0)


@bad("I13")
def another_key_is_taken(judge: Judge) -> None:
    judge.store(1)
    judge.write(1)
    judge.add(0, 1, key=b"y" * 20)


@bad("I14")
def two_payloads_of_one_entry(judge: Judge) -> None:
    judge.store(1)
    judge.add(0, 0, data=b"another", recovery=True)


# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "history"), [(name, one) for name, _, one in BAD], ids=[f"{a}-{b}" for a, b, _ in BAD]
)
def test_a_bad_history_is_refused(name: str, history: Callable[[Judge], None]) -> None:
    judge = Judge()
    with pytest.raises(Violation) as found:
        history(judge)
    assert found.value.invariant == name, str(found.value)


def test_a_lac_behind_the_last_force_is_refused() -> None:
    judge = Judge(is_deferred=True)
    judge.store(2)
    judge.acked(2)
    judge.checks.forced("c0", 0, 0)
    judge.checks.lac_told("c1", 0, -1, 0)
    with pytest.raises(Violation, match="I21"):
        judge.checks.lac_told("c1", 0, 0, 1)


def test_every_invariant_has_a_bad_history() -> None:
    assert {name for name, _, _ in BAD} == set(INVARIANTS)


def test_a_good_life_is_accepted() -> None:
    judge = Judge()
    judge.store(3)
    judge.acked(2)
    judge.checks.lac_told("c2", 0, -1, 1)
    judge.write(1)
    judge.add(0, 3)
    judge.ensemble(2, "b0", "b1", "b3")
    judge.add(3, 2)
    judge.acked(3)
    judge.change(replace(judge.metadata, state=LedgerState.IN_RECOVERY))
    for bookie in (0, 1, 3):
        judge.fence(bookie)
    judge.recovery_reads()
    judge.add(1, 3, recovery=True)
    judge.close(3)
    judge.checks.believes_closed("c1", 0, judge.metadata)
    judge.checks.was_read("c2", 0, 3, judge.ledger.written[3])
    judge.answer(2, ReadEntry(3), Reply(Status.NO_ENTRY))
    judge.checks.wiped(judge.world.bookies["b0"])
    judge.answer(0, ReadEntry(0), Reply(Status.CANNOT_TELL))


def test_a_liar_alone_may_lose_what_it_acknowledged() -> None:
    judge = Judge()
    judge.checks.liars = 1 << judge.world.bookies["b0"].index
    judge.world.bookies["b0"].is_liar = True
    judge.store(1)
    judge.acked(1)
    judge.store(2, (0, 1))
    judge.acked(3)
    judge.close(0)
    with pytest.raises(Violation, match="I1"):
        judge.checks.not_readable("r", 0, 0, "gone")
