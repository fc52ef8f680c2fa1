"""Which copies go because metadata counts on others, and every doubt that keeps (INV-G2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from fastbk.errors import MetadataUnavailable
from fastbk.gc import over_replicated
from fastbk.gc.dead_ledgers import Cluster, Rules
from fastbk.gc.over_replicated import CopiesWatch, is_over_replicated
from fastbk.limits import RateLimit
from fastbk.meta.api import VersionedLedger
from fastbk.meta.records import RecordStore
from fastbk.meta.rollback import confirm_hold, new_hold, place_hold
from fastbk.model.ids import BookieId
from fastbk.model.ledger import LedgerMetadata, LedgerState
from tests.fixtures.metadata import records_in_memory
from tests.unit.gc.test_limbo import A, ledger

ME = BookieId("me")
CLOSED = LedgerState.CLOSED
AGE_S = 100.0
OTHERS = ledger((0, A), state=CLOSED, last=9)
MINE = ledger((0, ME), state=CLOSED, last=9)


@pytest.mark.parametrize(
    ("metadata", "over_replicated"),
    [
        (OTHERS, True),
        (MINE, False),
        (ledger((0, A)), False),
        (ledger((0, A), state=LedgerState.IN_RECOVERY), False),
        (ledger((0, ME), (5, A), state=CLOSED, last=9), False),
        # Behind its end nothing is there, but whoever wrote that down counted on this bookie.
        (ledger((0, A), (10, ME), state=CLOSED, last=9), False),
    ],
)
def test_only_closed_ledgers_that_do_not_name_this_bookie(
    metadata: LedgerMetadata, over_replicated: bool
) -> None:
    assert is_over_replicated(ME, metadata) == over_replicated


@dataclass
class Harness:
    """The index's ledgers by change mark, metadata, and a clock that pauses move."""

    held: dict[int, int]
    ledgers: dict[int, LedgerMetadata]
    dropped: list[tuple[int, int]] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)
    now_s: float = 0.0
    reads: list[int] = field(default_factory=list)
    fails: bool = False
    page: int = 3
    records: RecordStore = field(default_factory=records_in_memory)

    def settled(self, cursor: int) -> tuple[list[tuple[int, int]], int]:
        every = sorted(self.held.items())
        after = cursor + self.page
        return every[cursor:after], after if after < len(every) else 0

    def drop(self, copies: Sequence[tuple[int, int]], reason: str) -> int:
        self.reasons.add(reason)
        taken = [copy for copy in copies if self.held.get(copy[0]) == copy[1]]
        self.dropped += taken
        for ledger_id, _ in taken:
            del self.held[ledger_id]
        return len(taken)

    def instance_id(self) -> str:
        return "cluster-1"

    def read_ledgers(self, ledger_ids: Sequence[int]) -> list[VersionedLedger | None]:
        if self.fails:
            raise MetadataUnavailable("gone")
        self.reads += ledger_ids
        known = self.ledgers
        return [VersionedLedger(known[n], 1) if n in known else None for n in ledger_ids]

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


def watch(harness: Harness, *, per_s: float = 1e30, **rules: float) -> CopiesWatch:
    pace = RateLimit(per_s, harness.pause, lambda: harness.now_s)
    cluster = Cluster(harness)  # type: ignore[arg-type]
    return CopiesWatch(
        harness,
        harness,
        cluster,
        ME,
        pace,
        Rules(**rules),
        AGE_S,
        lambda: harness.now_s,  # type: ignore[arg-type]
    )


def test_a_copy_goes_at_the_second_look_that_is_old_enough() -> None:
    harness = Harness({1: 5, 2: 6, 3: 7}, {1: OTHERS, 2: MINE, 3: ledger((0, A))})
    watching = watch(harness)
    first = watching.check()
    assert (first.read, first.candidates, first.dropped, first.is_round_over) == (3, 1, 0, True)
    harness.now_s = AGE_S - 1
    assert watching.check().dropped == 0
    harness.now_s = AGE_S
    assert watching.drop_due().dropped == 1
    assert harness.dropped == [(1, 5)]
    (reason,) = harness.reasons
    assert "cluster-1" in reason
    assert watching.check().candidates == 0


def test_an_add_in_between_begins_the_wait_anew() -> None:
    """A repair that gives copies to this bookie is not named until later: its adds must keep what is here."""
    harness = Harness({1: 5}, {1: OTHERS})
    watching = watch(harness)
    watching.check()
    harness.now_s = AGE_S / 2
    harness.held[1] = 6
    watching.check()
    harness.now_s = AGE_S + 1
    assert watching.check().dropped == 0
    harness.now_s = AGE_S * 1.5
    assert watching.check().dropped == 1


def test_an_add_just_before_the_drop_is_the_index_s_to_see() -> None:
    harness = Harness({1: 5}, {1: OTHERS})
    watching = watch(harness)
    watching.check()
    harness.now_s = AGE_S
    harness.held[1] = 6
    assert watching.drop_due().dropped == 0
    assert harness.held == {1: 6}
    assert watching.candidates == {}, "the wait begins anew with the next round"


def test_a_bookie_that_is_named_meanwhile_keeps_its_copy() -> None:
    harness = Harness({1: 5}, {1: OTHERS})
    watching = watch(harness)
    watching.check()
    harness.now_s = AGE_S
    harness.ledgers[1] = MINE
    assert watching.drop_due().dropped == 0
    assert harness.held == {1: 5}


def test_a_bookie_that_was_named_for_a_while_keeps_its_copy_as_long_again() -> None:
    harness = Harness({1: 5}, {1: OTHERS})
    watching = watch(harness)
    watching.check()
    harness.ledgers[1] = MINE
    harness.now_s = 10
    watching.check()
    harness.ledgers[1] = OTHERS
    harness.now_s = 20
    watching.check()
    harness.now_s = AGE_S + 5
    assert watching.check().dropped == 0
    harness.now_s = AGE_S + 20
    assert watching.check().dropped == 1


def test_a_deleted_ledger_is_the_collector_s() -> None:
    harness = Harness({1: 5}, {})
    watching = watch(harness)
    watching.check()
    harness.now_s = AGE_S
    assert watching.check().dropped == 0


def test_an_outage_drops_nothing_and_is_told() -> None:
    harness = Harness({1: 5, 2: 5}, {1: OTHERS, 2: MINE})
    watching = watch(harness)
    watching.check()
    harness.now_s = AGE_S
    harness.fails = True
    assert "MetadataUnavailable" in watching.drop_due().stopped
    assert "MetadataUnavailable" in watching.check().stopped
    assert harness.dropped == []
    harness.fails = False
    assert watching.check().dropped == 1


def test_another_cluster_s_metadata_drops_nothing() -> None:
    harness = Harness({1: 5}, {1: OTHERS})
    watching = watch(harness)
    watching.check()
    harness.now_s = AGE_S
    harness.instance_id = lambda: "cluster-2"  # type: ignore[method-assign]
    assert "cluster-2" in watching.check().stopped
    assert harness.dropped == []


def test_most_of_everything_goes_on_an_operator_s_word_only() -> None:
    harness = Harness(dict.fromkeys(range(100), 1), dict.fromkeys(range(100), OTHERS))
    watching = watch(harness)
    watching.check()
    harness.now_s = AGE_S
    look = watching.check()
    assert look.refused
    assert "100 of 100" in look.stopped
    assert "--force" in look.stopped
    assert harness.dropped == []
    assert watching.drop_due(force=True).dropped == 100


def test_rounds_are_cut_into_looks_and_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_replicated, "LEDGERS_A_LOOK", 4)
    harness = Harness(dict.fromkeys(range(10), 1), dict.fromkeys(range(10), MINE))
    watching = watch(harness, per_s=2.0)
    looks = [watching.check() for _ in range(3)]
    assert [look.is_round_over for look in looks] == [False, True, False]
    assert harness.reads[:10] == list(range(10))
    assert harness.now_s == pytest.approx(len(harness.reads) / 2.0, abs=1.1)


def test_candidates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_replicated, "CANDIDATES_MAX", 4)
    harness = Harness(dict.fromkeys(range(10), 1), dict.fromkeys(range(10), OTHERS))
    watching = watch(harness)
    assert watching.check().candidates == 4
    harness.now_s = AGE_S
    assert watching.check(force=True).dropped == 4
    assert watching.check().candidates == 4, "the next ones have their turn"


def test_metadata_on_hold_drops_no_copy() -> None:
    """INV-M4: restored metadata may name the bookies that it named before a repair."""
    harness = Harness({1: 7}, {1: OTHERS})
    hold = place_hold(harness, new_hold("rolled back"))
    copies = watch(harness)
    for _ in range(3):
        assert "rolled back" in copies.check(force=True).stopped
        harness.now_s += 2 * AGE_S
    assert confirm_hold(harness, hold.hold_id)
    copies.check()
    harness.now_s += 2 * AGE_S
    assert copies.check().dropped == 1
