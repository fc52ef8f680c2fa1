"""Histories in which a writer or a reader is told what must not be told."""

from __future__ import annotations

from dataclasses import replace

from fastbk.model.ledger import LedgerState
from tests.unit.simulation.judge import Judge, bad

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
