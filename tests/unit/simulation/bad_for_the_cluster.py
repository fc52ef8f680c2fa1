"""Histories in which metadata or bookies do what must not be done."""

from __future__ import annotations

from dataclasses import replace

from fastbk.model.ledger import Fragment, LedgerState
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.procedure import Found, ReadEntries, ReadEntry, ReadLac, Reply
from fastbk.wire.statuses import Status
from tests.simulation.domains import Racks
from tests.unit.simulation.judge import Judge, bad

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
    judge.change(replace(judge.metadata, state=LedgerState.IN_RECOVERY), "c1")
    first = Fragment(0, ("b0", "b1", "b5"))
    judge.change(replace(judge.metadata, fragments=(first, judge.metadata.fragments[1])), "c0")


@bad("I19")
def a_writer_names_a_replacement_that_lacks_entries(judge: Judge) -> None:
    judge.store(2)
    judge.acked(2)
    judge.ensemble(2, "b3", "b4", "b5")
    fragments = judge.metadata.fragments
    parts = (fragments[0], Fragment(1, ("b0", "b1", "b5")), fragments[1])
    judge.change(replace(judge.metadata, fragments=parts), "c0")


@bad("I22")
def a_writer_closes_with_a_copy_missing_and_marks_another(judge: Judge) -> None:
    judge.write(1)
    judge.add(0, 0)
    judge.add(1, 0)
    judge.acked(1)
    judge.close(0)
    judge.checks.closed_by_writer(0, [MissingReplica("b2", 1), MissingReplica("b1", 0)])


@bad("I23")
def a_recovery_closes_and_a_bookie_that_was_away_owes_a_copy_unmarked(judge: Judge) -> None:
    judge.checks.facts[0].away = frozenset({"b2"})
    judge.write(1)
    judge.add(0, 0)
    judge.add(1, 0)
    judge.acked(1)
    judge.close(0)
    judge.checks.closed_without(0, [MissingReplica("b2", 0)])
    judge.checks.closed_without(0, [MissingReplica("b2", 1), MissingReplica("b1", 0)])


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
    judge.answer(0, ReadLac(), Reply(Status.NO_LEDGER))


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


@bad("I24")
def a_change_leaves_the_record_of_racks_as_it_was(judge: Judge) -> None:
    names = {f"b{number}": f"/r{number % 3}" for number in range(6)}
    judge.checks.racks = racks = Racks(replace(judge.world.plan, ack_racks=2, racks=names))
    custom = {**racks.custom_of_new(3, ("b0", "b1", "b2")), **judge.metadata.custom}
    judge.change(replace(judge.metadata, custom=custom))
    judge.ensemble(0, "b0", "b1", "b3")
