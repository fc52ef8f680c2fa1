"""Which ledgers leave limbo by what metadata says, and every doubt that keeps (INV-X4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from fastbk.errors import MetadataUnavailable
from fastbk.gc import limbo
from fastbk.gc.limbo import LimboCheck, LimboWatch, is_counted_on, may_be_fenced
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.server.gc_messages import Share

ME, A, B = BookieId("me"), BookieId("a"), BookieId("b")


def ledger(
    *firsts: tuple[int, BookieId], state: LedgerState = LedgerState.OPEN, last: int = -1
) -> LedgerMetadata:
    """Fragments by first entry and the bookie beside B."""
    return LedgerMetadata(
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        fragments=tuple(Fragment(first, (bookie, B)) for first, bookie in firsts),
        state=state,
        last_entry_id=last,
    )


CLOSED = LedgerState.CLOSED


@pytest.mark.parametrize(
    ("metadata", "counted"),
    [
        (ledger((0, ME)), True),
        (ledger((0, A)), False),
        (ledger((0, ME), (10, A)), True),
        (ledger((0, A), (10, ME)), True),
        (ledger((0, A), (10, ME), state=LedgerState.IN_RECOVERY), True),
        (ledger((0, A), (10, ME), state=CLOSED, last=9), False),
        (ledger((0, A), (10, ME), state=CLOSED, last=10), True),
        (ledger((0, ME), state=CLOSED, last=-1), False),
        # Its recoverer may have given copies to bookies that only the close will name.
        (ledger((0, A), state=LedgerState.IN_RECOVERY), True),
    ],
)
def test_who_is_counted_on(metadata: LedgerMetadata, counted: bool) -> None:
    assert is_counted_on(ME, metadata) == counted


def test_a_recovery_that_began_may_have_fenced() -> None:
    assert not may_be_fenced(ledger((0, A)))
    assert may_be_fenced(ledger((0, A), state=LedgerState.IN_RECOVERY))
    assert may_be_fenced(ledger((0, A), state=CLOSED, last=4))


@dataclass
class Harness:
    """The index's ledgers in limbo, and metadata."""

    held: set[int]
    ledgers: dict[int, LedgerMetadata]
    over: list[tuple[list[int], bool]] = field(default_factory=list)
    fails_at: int = -1
    read: list[int] = field(default_factory=list)

    def limbo_ids(self) -> set[int]:
        return set(self.held)

    def limbo_over(self, ledger_ids: list[int], *, fenced: bool) -> int:
        self.over.append((ledger_ids, fenced))
        self.held -= set(ledger_ids)
        return len(ledger_ids)

    def holds(self, ledger_id: int, shares: list[Share]) -> bool:
        return False

    def read_ledgers(self, ledger_ids: Sequence[int]) -> list[VersionedLedger | None]:
        self.read.extend(ledger_ids)
        if self.fails_at in ledger_ids:
            raise MetadataUnavailable("gone")
        known = self.ledgers
        return [VersionedLedger(known[n], 1) if n in known else None for n in ledger_ids]


def watch(harness: Harness) -> LimboWatch:
    return LimboWatch(harness, harness, ME)  # type: ignore[arg-type]


def test_repaired_ledgers_leave_and_deleted_ones_wait_for_the_collector() -> None:
    harness = Harness(
        {1, 2, 3, 4},
        {1: ledger((0, ME)), 2: ledger((0, A)), 3: ledger((0, A), state=CLOSED, last=3)},
    )
    assert watch(harness).check() == LimboCheck(over=2, left=2)
    assert harness.over == [([3], True), ([2], False)]
    assert harness.held == {1, 4}


def test_an_outage_ends_nothing() -> None:
    harness = Harness({1, 2}, {1: ledger((0, A)), 2: ledger((0, A))}, fails_at=2)
    look = watch(harness).check()
    assert (look.over, look.left) == (0, 2)
    assert look.stopped
    assert harness.held == {1, 2}


def test_looks_are_bounded_and_go_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limbo, "LEDGERS_A_LOOK", 2)
    harness = Harness(set(range(5)), {n: ledger((0, ME)) for n in range(5)})
    watching = watch(harness)
    for _ in range(3):
        watching.check()
    assert harness.read == [0, 1, 2, 3, 4, 0]


def test_a_closed_ledger_that_is_here_whole_leaves_limbo() -> None:
    closed = ledger((0, A), (10, ME), (20, ME), (30, A), state=CLOSED, last=24)
    asked: list[tuple[int, list[Share]]] = []

    class Whole(Harness):
        def holds(self, ledger_id: int, shares: list[Share]) -> bool:
            asked.append((ledger_id, shares))
            return ledger_id != 2

    recovering = ledger((0, ME), state=LedgerState.IN_RECOVERY)
    harness = Whole({1, 2, 3, 4}, {1: closed, 2: closed, 3: ledger((0, ME)), 4: recovering})
    assert LimboWatch(harness, harness, ME).check() == LimboCheck(1, 3)  # type: ignore[arg-type]
    assert harness.over == [([1], True)]
    assert [ledger_id for ledger_id, _ in asked] == [1, 2], "nothing may come to them any more"
    assert [(one.first, one.last, one.index) for one in asked[0][1]] == [(10, 19, 0), (20, 24, 0)]
    assert {(one.ensemble, one.write_quorum) for one in asked[0][1]} == {(2, 2)}


def test_an_open_ledger_whose_writer_has_left_this_bookie_leaves_limbo_once_it_is_whole() -> None:
    """Its finished fragments are all that it is counted on for; a recovery of it would be in metadata."""
    asked: list[list[Share]] = []

    class Whole(Harness):
        def holds(self, ledger_id: int, shares: list[Share]) -> bool:
            asked.append(shares)
            return ledger_id != 2

    left = ledger((0, ME), (10, A), (20, ME), (30, A))
    returned = ledger((0, ME), (10, A), (20, ME))
    recovering = ledger((0, ME), (10, A), state=LedgerState.IN_RECOVERY)
    harness = Whole({1, 2, 3, 4}, {1: left, 2: left, 3: returned, 4: recovering})
    assert LimboWatch(harness, harness, ME).check() == LimboCheck(1, 3)  # type: ignore[arg-type]
    assert harness.over == [([1], False)]
    assert [[(one.first, one.last) for one in shares] for shares in asked] == [
        [(0, 9), (20, 29)]
    ] * 2
