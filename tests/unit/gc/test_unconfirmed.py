"""Which ledgers expire because metadata never listed them, and every doubt that keeps (INV-G4, INV-G5, INV-G6)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from fastbk.errors import MetadataUnavailable
from fastbk.gc import unconfirmed
from fastbk.gc.dead_ledgers import Cluster
from fastbk.gc.unconfirmed import FOREIGN_AGE_S, UnconfirmedCheck, UnconfirmedWatch, listed_as
from fastbk.meta.api import VersionedLedger
from fastbk.meta.hold import confirm_hold, new_hold, place_hold
from fastbk.meta.records import RecordStore
from fastbk.model.entry import master_key
from fastbk.model.ids import BookieId, creation_mark
from fastbk.model.ledger import LedgerMetadata
from fastbk.native.ledger_state import Listed
from fastbk.rate_limit import RateLimit
from tests.fixtures.metadata import records_in_memory
from tests.unit.gc.test_limbo import A, ledger

ME = BookieId("me")
AGE_S = 100.0
MINE = replace(ledger((0, ME)), creation_token=77, password=b"secret")
THEIRS = ledger((0, A))


@dataclass
class Harness:
    """The index's unconfirmed ledgers with their keys, metadata, and a clock."""

    here: dict[int, Listed] = field(default_factory=dict)
    expiring: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)
    expired: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    ledgers: dict[int, LedgerMetadata] = field(default_factory=dict)
    left_out: set[int] = field(default_factory=set)
    fails: bool = False
    now_s: float = 0.0
    instance: str = "cluster-1"
    records: RecordStore = field(default_factory=records_in_memory)

    def ids(self) -> array[int]:
        return array("q", sorted(self.confirmed))

    def unconfirmed(self) -> tuple[array[int], array[int]]:
        return array("q", sorted(self.here)), array("q", sorted(self.expiring))

    def confirm(self, listed: Sequence[Listed]) -> list[int]:
        foreign = [one.ledger_id for one in listed if self.here[one.ledger_id] != one]
        for one in listed:
            if one.ledger_id not in foreign:
                del self.here[one.ledger_id]
                self.expiring.discard(one.ledger_id)
                self.confirmed.add(one.ledger_id)
        return foreign

    def admit(self, ledger_ids: list[int]) -> int:
        self.admitted += ledger_ids
        return len(ledger_ids)

    def begin_expiry(self, ledger_ids: list[int]) -> int:
        self.expiring.update(ledger_ids)
        return len(ledger_ids)

    def expire(self, ledger_ids: list[int], reason: str) -> int:
        assert set(ledger_ids) <= self.expiring
        self.expired += ledger_ids
        for one in ledger_ids:
            self.expiring.discard(one)
            self.here.pop(one)
        return len(ledger_ids)

    def instance_id(self) -> str:
        return self.instance

    def list_ledgers(self, after: int = -1, count_max: int = 1000) -> list[int]:
        if self.fails:
            raise MetadataUnavailable("gone")
        every = sorted(set(self.ledgers) - self.left_out)
        return [one for one in every if one > after][:count_max]

    def read_ledgers(self, ledger_ids: Sequence[int]) -> list[VersionedLedger | None]:
        if self.fails:
            raise MetadataUnavailable("gone")
        found = [self.ledgers.get(one) for one in ledger_ids]
        return [None if one is None else VersionedLedger(one, 1) for one in found]

    def watch(self, room: int = 1000) -> UnconfirmedWatch:
        pace = RateLimit(1e9, lambda _: None)
        cluster = Cluster(self)  # type: ignore[arg-type]
        return UnconfirmedWatch(
            self, self, cluster, ME, pace, pace, AGE_S, room, lambda: self.now_s  # type: ignore[arg-type]
        )

    def live(self, watch: UnconfirmedWatch, seconds: float, **options: bool) -> list[UnconfirmedCheck]:
        looks = []
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            looks.append(watch.check(**options))
            self.now_s += 10.0
        return looks


def ghost(ledger_id: int) -> Listed:
    return Listed(ledger_id, 0, master_key(b"ghost"))


@pytest.fixture(params=["by name", "by listing"])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    if request.param == "by listing":
        monkeypatch.setattr(unconfirmed, "NAMES_MAX", 0)
    return Harness(here={5: ghost(5), 9: listed_as(9, VersionedLedger(MINE, 1))}, ledgers={9: MINE, 3: THEIRS})


def test_what_metadata_lists_is_confirmed_and_a_ghost_expires(harness: Harness) -> None:
    watch = harness.watch()
    first = watch.check()
    assert (first.unconfirmed, first.listed, first.foreign) == (2, 1, 0)
    assert harness.confirmed == {9}
    harness.live(watch, AGE_S)
    assert (harness.expiring, harness.expired) == (set(), [])
    watch.check()
    assert (harness.expiring, harness.expired) == ({5}, []), "first nothing is taken to it any more"
    watch.check()
    assert (harness.here, harness.expired) == ({}, [5])


def test_a_ledger_that_comes_to_metadata_late_is_confirmed_at_any_time(harness: Harness) -> None:
    watch = harness.watch()
    harness.live(watch, AGE_S + 10)
    assert harness.expiring == {5}
    harness.ledgers[5] = replace(MINE, password=b"ghost", creation_token=0)
    harness.live(watch, 3 * AGE_S)
    assert (harness.confirmed, harness.expiring, harness.expired) == ({5, 9}, set(), [])


@pytest.mark.parametrize("trouble", ["fails", "hold", "restart"])
def test_trouble_begins_the_time_anew(harness: Harness, trouble: str) -> None:
    watch = harness.watch()
    harness.live(watch, AGE_S)
    if trouble == "restart":
        watch = harness.watch()
    elif trouble == "hold":
        watch.check(may_expire=False)
    else:
        harness.fails = True
        assert "gone" in watch.check().stopped
        harness.fails = False
    harness.live(watch, AGE_S)
    assert (harness.expiring, harness.expired) == (set(), [])


def test_nothing_that_expires_goes_while_metadata_is_away_or_on_hold(harness: Harness) -> None:
    watch = harness.watch()
    harness.live(watch, AGE_S + 10)
    assert harness.expiring == {5}
    harness.live(watch, 10 * AGE_S, may_expire=False)
    harness.fails = True
    harness.live(watch, 10 * AGE_S)
    assert harness.expired == []


def test_a_hold_confirms_what_is_listed_and_expires_nothing(harness: Harness) -> None:
    """INV-M4: metadata that was rolled back lacks ledgers whose entries were acknowledged."""
    watch = harness.watch()
    harness.live(watch, AGE_S + 10)
    assert harness.expiring == {5}
    hold = place_hold(harness, new_hold("rolled back"))
    harness.here[3] = listed_as(3, VersionedLedger(THEIRS, 1))
    assert not any(look.stopped for look in harness.live(watch, 10 * AGE_S))
    assert (harness.confirmed, harness.expired) == ({3, 9}, [])
    assert confirm_hold(harness, hold.hold_id)
    harness.live(watch, AGE_S)
    assert harness.expired == [], "the time begins anew"
    watch.check()
    assert harness.expired == [5]


def test_another_cluster_s_metadata_says_nothing(harness: Harness) -> None:
    watch = harness.watch()
    harness.live(watch, AGE_S + 10)
    harness.instance, harness.ledgers = "cluster-2", {}
    assert "cluster-2" in watch.check().stopped
    assert harness.expired == []


def test_a_listing_that_leaves_a_ledger_out_expires_nothing(harness: Harness) -> None:
    harness.here[7] = listed_as(7, VersionedLedger(MINE, 1))
    harness.ledgers[7] = MINE
    harness.left_out = {7}
    harness.live(harness.watch(), 5 * AGE_S)
    assert 7 not in harness.expired


@pytest.mark.parametrize("change", [{"password": b"other"}, {"creation_token": 78}])
def test_a_ledger_squatted_with_another_key_or_creation_is_freed(
    harness: Harness, change: dict[str, object]
) -> None:
    """The real ledger is refused by this bookie until then: some seconds, and not for `age_s` or for good."""
    squatter = replace(MINE, **change)  # type: ignore[arg-type]
    harness.here[3] = listed_as(3, VersionedLedger(squatter, 1))
    harness.ledgers[3] = MINE
    watch = harness.watch()
    assert watch.check().foreign == 1
    assert harness.expiring == {3}, "what it takes until then would be lost"
    harness.now_s += FOREIGN_AGE_S - 1
    watch.check()
    assert harness.expired == []
    harness.now_s += 1
    watch.check()
    assert harness.expired == [3]
    assert 3 not in harness.confirmed


@pytest.mark.parametrize("trouble", ["fails", "hold", "restart", "newer metadata"])
def test_a_squatted_ledger_stays_while_metadata_may_have_been_rolled_back(
    harness: Harness, trouble: str
) -> None:
    """Then the one that is here may be the real one: metadata lists it again, or an operator decides."""
    harness.here[3] = listed_as(3, VersionedLedger(MINE, 1))
    harness.ledgers[3] = replace(MINE, password=b"other", creation_token=78)
    watch = harness.watch()
    watch.check()
    harness.now_s += FOREIGN_AGE_S
    if trouble == "restart":
        watch = harness.watch()
    elif trouble == "hold":
        hold = place_hold(harness, new_hold("rolled back"))
        harness.live(watch, 10 * AGE_S)
        assert confirm_hold(harness, hold.hold_id)
    elif trouble == "fails":
        harness.fails = True
        watch.check()
        harness.fails = False
    else:
        harness.ledgers[3] = MINE
    watch.check()
    assert harness.expired == []
    harness.now_s += FOREIGN_AGE_S
    watch.check()
    assert harness.expired == ([] if trouble == "newer metadata" else [3])
    assert (3 in harness.confirmed) == (trouble == "newer metadata")


def test_ledgers_of_metadata_come_in_past_any_number_of_ghosts(harness: Harness) -> None:
    harness.here = {one: ghost(one) for one in range(1000, 1050)}
    harness.ledgers = {1: MINE, 2: THEIRS, 3: MINE.closed(-1, 0), 4: MINE}
    harness.confirmed = {4}
    assert harness.watch(room=101).check().admitted == 0, "there is room"
    assert harness.watch(room=100).check().admitted == 1
    assert harness.admitted == [1], "open, naming this bookie, not here"


def test_a_mark_of_a_token() -> None:
    """INV-T1: what bookies store of a creation; C makes the same of it."""
    assert creation_mark(0) == 0
    assert creation_mark(-1) == creation_mark(2**64 - 1) != 0
    marks = {creation_mark(token) for token in range(-5000, 5000)}
    assert len(marks) == 10_000
    assert max(marks) < 2**32
