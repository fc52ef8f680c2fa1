"""Which ledgers expire because metadata never listed them, and every doubt that keeps (INV-G4, INV-G5, INV-G6)."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from fastbk.errors import Error, MetadataConflict, MetadataUnavailable
from fastbk.gc import unconfirmed
from fastbk.gc.dead_ledgers import Cluster
from fastbk.gc.unconfirmed import FOREIGN_AGE_S, UnconfirmedCheck, UnconfirmedWatch, listed_as
from fastbk.limits import RateLimit
from fastbk.meta.api import VersionedLedger
from fastbk.meta.records import Change, RecordStore, VersionedRecord
from fastbk.meta.rollback import (
    MARK_PATH,
    OWN_MARKS,
    Mark,
    OwnMark,
    confirm_hold,
    new_hold,
    place_hold,
    raise_mark,
)
from fastbk.model.entry import master_key
from fastbk.model.ids import BookieId, creation_mark
from fastbk.model.ledger import LedgerMetadata
from fastbk.native.ledger_state import Listed
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
    proven: list[int] = field(default_factory=list)
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

    def expire(self, ledger_ids: list[int], reason: str, *, is_proven: bool = False) -> int:
        assert set(ledger_ids) <= self.expiring
        self.expired += ledger_ids
        self.proven += ledger_ids if is_proven else []
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
            self,
            self,
            cluster,
            ME,
            pace,
            pace,
            AGE_S,
            room,
            lambda: self.now_s,  # type: ignore[arg-type]
        )

    def proving(self, proven_age_s: float = 0.0) -> UnconfirmedWatch:
        """A watch that writes marks, as a bookie's gc has it."""
        watch = self.watch()
        watch.mark, watch.proven_age_s = OwnMark(self, "me"), proven_age_s
        raise_mark(self, Mark(highest_id=9))  # type: ignore[arg-type]
        return watch

    def live(
        self, watch: UnconfirmedWatch, seconds: float, **options: bool
    ) -> list[UnconfirmedCheck]:
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
    return Harness(
        here={5: ghost(5), 9: listed_as(9, VersionedLedger(MINE, 1))}, ledgers={9: MINE, 3: THEIRS}
    )


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


# ---- deleted soon after it was made (INV-G7)


class Rewound:
    """Metadata's records, which can be put back to how they were."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[bytes, int]] = {}

    def read(self, paths: Sequence[str]) -> list[VersionedRecord | None]:
        found = [self.values.get(one) for one in paths]
        return [None if one is None else VersionedRecord(*one) for one in found]

    def change(self, changes: Sequence[Change]) -> list[int]:
        for one in changes:
            _, version = self.values.get(one.path, (b"", None))
            if version != one.version:
                raise MetadataConflict(one.path)
            assert one.value is not None
            self.values[one.path] = one.value, (version or 0) + 1
        return [self.values[one.path][1] for one in changes]


def test_a_ledger_that_was_deleted_soon_goes_within_four_looks(harness: Harness) -> None:
    watch = harness.proving()
    watch.check()
    assert harness.confirmed == {9}
    watch.check()
    assert (harness.expiring, harness.expired) == ({5}, []), "first nothing is taken to it any more"
    watch.check()
    assert harness.expired == [], "a mark is written after that"
    watch.check()
    assert (harness.here, harness.expired) == ({}, [5])
    assert harness.proven == [5]


def test_not_before_a_gc_interval_is_over(harness: Harness) -> None:
    watch = harness.proving(proven_age_s=50.0)
    harness.live(watch, 50.0)
    assert (harness.expiring, harness.expired) == (set(), [])
    harness.live(watch, 40.0)
    assert harness.expired == [5]


def test_an_id_that_metadata_never_drew_goes_by_its_age(harness: Harness) -> None:
    """A mark that was written after a rollback proves nothing of it."""
    harness.here[10] = ghost(10)
    watch = harness.proving()
    for _ in range(8):
        watch.check()
    assert (harness.expiring, harness.expired) == (set(), [5])
    harness.live(watch, AGE_S + 30.0)
    assert harness.expired == [5, 10]
    assert harness.proven == [5], "an id that metadata did not draw may be somebody's yet (INV-G8)"


def test_without_a_mark_of_its_own_only_the_age_counts(harness: Harness) -> None:
    """Somebody else has written over it, or it went with a rollback."""
    watch = harness.proving()
    for _ in range(8):
        watch.check()
        (found,) = harness.records.read([f"{OWN_MARKS}/me"])
        assert found is not None
        harness.records.change([Change(f"{OWN_MARKS}/me", b"of another", found.version)])
    assert (harness.expiring, harness.expired) == (set(), [])
    harness.live(watch, AGE_S + 30.0)
    assert harness.expired == [5]


class Life:
    """A random life of metadata, with one rollback, between any two reads of a look, too.

    Ids are drawn in order. Bookies publish the highest now and then, as they do every two seconds. A rollback before
    that, to a copy that is younger than the ledger, is nobody's to notice; all others are.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.records = Rewound()
        self.harness = Harness(records=self.records)  # type: ignore[arg-type]
        self.watch = self.harness.watch()
        self.watch.mark = OwnMark(self.harness, "me")
        self.copies: list[tuple[dict[int, LedgerMetadata], dict[str, tuple[bytes, int]], int]] = []
        self.drawn = 0
        self.acked: set[int] = set()
        self.lost: set[int] = set()
        self.wrong: set[int] = set()
        self.gone_back = False
        self._read_ledgers, self._read, self._expire = (
            self.harness.read_ledgers, self.records.read, self.harness.expire
        )  # fmt: skip
        self.harness.read_ledgers = self.read_ledgers  # type: ignore[method-assign]
        self.records.read = self.read  # type: ignore[method-assign]
        self.harness.expire = self.expire  # type: ignore[method-assign]

    def act(self) -> None:
        harness, rng = self.harness, self.rng
        what = rng.choice(["ghost", "create", "create", "add", "delete", "publish", "copy", "back"])
        one = rng.randint(1, self.drawn + 1)
        if what == "ghost" and one not in harness.here and one not in harness.confirmed:
            harness.here[one] = ghost(one)
        elif what == "create" and not self.gone_back:
            self.drawn += 1
            harness.ledgers[self.drawn] = MINE
            one, what = self.drawn, "add"
        if what == "add" and one in harness.ledgers and one not in harness.here:
            if one not in harness.confirmed:
                harness.here[one] = listed_as(one, VersionedLedger(MINE, 1))
            self.acked.add(one)
        elif what == "delete":
            harness.ledgers.pop(one, None)
        elif what == "publish":
            _, version = self.records.values.get(MARK_PATH, (b"", 0))
            mark = msgspec.json.encode(Mark(highest_id=self.drawn))
            self.records.values[MARK_PATH] = mark, version + 1
        elif what == "copy":
            self.copies.append((dict(harness.ledgers), dict(self.records.values), self.drawn))
        elif what == "back" and self.copies and not self.gone_back:
            ledgers, values, self.drawn = rng.choice(self.copies)
            self.lost = (set(harness.ledgers) - set(ledgers)) & self.acked
            harness.ledgers, self.records.values = dict(ledgers), dict(values)
            self.gone_back = True

    def read_ledgers(self, ledger_ids: Sequence[int]) -> list[VersionedLedger | None]:
        found = self._read_ledgers(ledger_ids)
        if self.rng.random() < 0.3:
            self.act()
        return found

    def read(self, paths: Sequence[str]) -> list[VersionedRecord | None]:
        found = self._read(paths)
        if self.rng.random() < 0.3:
            self.act()
        return found

    def expire(self, ledger_ids: list[int], reason: str, *, is_proven: bool = False) -> int:
        self.wrong.update(self.lost.intersection(ledger_ids))
        return self._expire(ledger_ids, reason, is_proven=is_proven)

    def run(self) -> bool:
        """Return whether a ledger was dropped that metadata had lost."""
        for _ in range(60):
            self.act()
            if self.rng.random() < 0.5:
                self.watch.check()
        return bool(self.wrong)


def test_no_rollback_at_any_point_has_a_lost_ledger_dropped() -> None:
    """INV-G7."""
    lives = [Life(seed) for seed in range(400)]
    assert [seed for seed, life in enumerate(lives) if life.run()] == []
    assert sum(len(life.harness.expired) for life in lives) > 100, "what was deleted goes"
    assert sum(len(life.lost) for life in lives) > 100


def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that is written without regard to what metadata knows, maybe after it went back."""
    real = UnconfirmedWatch._proven

    def proven(self: UnconfirmedWatch, *sets: set[int], was_there: bool) -> dict[int, bool]:
        known, self.cluster.mark = self.cluster.mark, Mark(highest_id=2**62)
        try:
            return real(self, *sets, was_there=was_there)
        except Error:
            return {}
        finally:
            self.cluster.mark = known

    monkeypatch.setattr(UnconfirmedWatch, "_proven", proven)
    monkeypatch.setattr(Cluster, "check", lambda self: None)
    assert any(Life(seed).run() for seed in range(400))
