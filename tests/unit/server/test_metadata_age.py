"""A bookie notices that metadata was rolled back, and holds it. INV-M2, INV-M3, INV-M5."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fastbk.errors import Error, MetadataUnavailable
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.rollback import (
    RESERVE_IDS,
    Mark,
    confirm_hold,
    new_hold,
    place_hold,
    read_hold,
    read_mark,
)
from fastbk.model.ids import BookieId
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.settings import JournalSettings, LedgerSettings
from fastbk.server.identity import settle
from fastbk.server.supervision.metadata_age import AGE_INTERVAL_S, POLL_INTERVAL_S, MetadataAge
from fastbk.storage.metadata_mark import NAME
from tests.fixtures.zookeeper import ZooKeeperPlace

ME = "me"


class Harness:
    """One bookie's directories, metadata in a file that can be copied and restored, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "metadata.sqlite"
        self.journal, self.ledgers = folder / "journal", folder / "ledgers"
        for directory in (self.journal, self.ledgers):
            directory.mkdir()
        self.now_s = 0.0

    @contextmanager
    def store(self) -> Iterator[MetadataStore]:
        store = open_store(f"sqlite:{self.file}")
        try:
            yield store
        finally:
            store.close()

    def start(self) -> None:
        config = BookieConfig(
            journal=JournalSettings(directory=str(self.journal)),
            ledgers=LedgerSettings(directory=str(self.ledgers)),
        )
        with self.store() as store:
            settle(config, store, ME)

    def age(self, store: Any) -> MetadataAge:
        return MetadataAge([str(self.ledgers)], store, ME, lambda: self.now_s)

    def run(self, *, draw: int = 0) -> MetadataAge:
        """Let the bookie run until it has looked twice, while so many ids are drawn, and stop cleanly."""
        with self.store() as store:
            age = self.age(store)
            age.poll()
            for _ in range(draw):
                store.next_ledger_id()
            self.now_s += POLL_INTERVAL_S
            age.poll(is_last=True)
        return age

    def copy(self, name: str = "copy") -> None:
        """Copy metadata; nobody has it open, so the file is all of it."""
        shutil.copy(self.file, self.folder / name)

    def restore(self, name: str = "copy") -> None:
        shutil.copy(self.folder / name, self.file)

    def hold(self) -> str:
        with self.store() as store:
            return str(read_hold(store) or "")

    def confirm(self) -> None:
        with self.store() as store:
            hold = read_hold(store)
            assert hold is not None
            assert confirm_hold(store, hold.hold_id)

    def next_id(self) -> int:
        with self.store() as store:
            return store.next_ledger_id()


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    made = Harness(tmp_path)
    made.start()
    made.start()
    made.run(draw=5)
    return made


def test_metadata_that_goes_on_is_not_held(harness: Harness) -> None:
    for _ in range(3):
        harness.start()
        harness.now_s += AGE_INTERVAL_S
        harness.run(draw=2)
    assert harness.hold() == ""
    with harness.store() as store:
        assert read_mark(store) == Mark(age=4, highest_id=10)
    assert harness.next_id() == 11


def test_ids_that_metadata_lost_are_not_drawn_again(harness: Harness) -> None:
    harness.copy()
    harness.run(draw=3)
    harness.restore()
    harness.start()
    assert "metadata once had ledger 7 and knows of 4 at most now" in harness.hold()
    assert harness.next_id() > 7 + RESERVE_IDS


def test_an_id_that_was_chosen_far_above_leaves_room_for_the_floor(
    tmp_path: Path, zookeeper: ZooKeeperPlace
) -> None:
    """INV-M3."""
    harness = Harness(tmp_path)
    with closing(open_store(zookeeper.uri())) as store:
        drawn = store.next_ledger_id()
        for chosen in (2**62 - 1, 2**40):
            age = harness.age(store)
            age.poll(chosen)
            assert read_mark(store).highest_id == drawn
        harness.age(store).poll(drawn + 7)
        assert read_mark(store).highest_id == drawn + 7


def test_a_start_that_metadata_lost_is_noticed_before_it_is_counted_again(harness: Harness) -> None:
    harness.copy()
    harness.start()
    harness.restore()
    harness.start()
    assert "had counted 3 starts" not in harness.hold()
    assert "had counted 2 starts of this bookie and knows of 1 now" in harness.hold()


def test_starts_that_were_cut_short_are_no_evidence(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise MetadataUnavailable("gone")

    for _ in range(3):
        with monkeypatch.context() as patch, pytest.raises(MetadataUnavailable):
            patch.setattr("fastbk.meta.sqlite.store.SqliteStore.write_identity", fails)
            harness.start()
    harness.start()
    assert harness.hold() == ""


def test_directories_of_an_earlier_version_go_by_the_count_of_starts(harness: Harness) -> None:
    harness.copy()
    for _ in range(2):
        harness.start()
    (harness.ledgers / NAME).unlink()
    harness.restore()
    harness.start()
    assert "the directories have counted 3 starts, metadata knows of 1" in harness.hold()


def test_an_age_that_metadata_lost_is_noticed_without_any_ledger(harness: Harness) -> None:
    harness.copy()
    harness.now_s += AGE_INTERVAL_S
    with harness.store() as store:
        age = harness.age(store)
        harness.now_s += AGE_INTERVAL_S
        age.poll(is_last=True)
    harness.restore()
    assert "the age 2 and has 1 now" in str(harness.run().hold)


def test_a_running_bookie_notices_it_too(harness: Harness) -> None:
    harness.copy()
    with harness.store() as first:
        age = harness.age(first)
        first.next_ledger_id()
        age.poll()
    harness.restore()
    with harness.store() as second:
        age._store = second
        harness.now_s += POLL_INTERVAL_S
        age.poll()
        assert age.hold is not None
        assert second.next_ledger_id() > 5 + RESERVE_IDS


def test_a_hold_survives_restarts_and_another_restore(harness: Harness) -> None:
    harness.copy()
    harness.run(draw=3)
    harness.copy("newer")
    harness.restore()
    harness.start()
    held = harness.hold()
    assert held
    harness.start()
    assert harness.hold() == held
    harness.restore()  # the same copy once more: the hold in it is gone
    harness.start()
    assert held in harness.hold()
    harness.restore("newer")  # the copy that is right: an operator says so, not the bookie
    harness.start()
    assert harness.hold() != ""


def test_a_confirmed_hold_is_over_for_bookies_that_were_away(harness: Harness) -> None:
    harness.copy()
    harness.run(draw=3)
    harness.restore()
    harness.start()
    harness.confirm()
    for _ in range(2):
        harness.start()
        assert harness.run(draw=1).hold is None
    assert harness.hold() == ""
    harness.copy()
    harness.run(draw=1)
    harness.restore()
    harness.start()
    assert harness.hold() != "", "the next rollback is a new one"


def test_a_hold_that_an_operator_places_first_is_stored(harness: Harness) -> None:
    with harness.store() as store:
        placed = place_hold(store, new_hold("by hand"))
    assert harness.run().hold == placed
    with harness.store() as store:
        other = harness.age(store)
        other.poll()
        assert other.hold == placed


class Failing:
    """A store that fails at its nth call and at all after it."""

    def __init__(self, store: Any, calls: int) -> None:
        self._store = store
        self._left = calls

    @property
    def records(self) -> Failing:
        return Failing.share(self, self._store.records)

    @staticmethod
    def share(of: Failing, store: Any) -> Failing:
        made = Failing(store, 0)
        made.count = of.count  # type: ignore[method-assign]
        return made

    def count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise MetadataUnavailable("gone")

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> object:
            self.count()
            return getattr(self._store, name)(*arguments)

        return call


@pytest.mark.parametrize("calls", range(12))
def test_a_start_that_is_cut_off_anywhere_forgets_nothing(harness: Harness, calls: int) -> None:
    harness.copy()
    harness.run(draw=3)
    harness.restore()
    with harness.store() as store:
        known = store.read_identity(BookieId(ME))
        assert known is not None
        try:
            harness.age(Failing(store, calls)).check_start(1, known.identity)
        except Error:
            assert calls < 11
    harness.start()
    assert "ledger 7" in harness.hold()
    assert harness.next_id() > 7 + RESERVE_IDS
    harness.confirm()
    harness.start()
    assert harness.hold() == ""


def test_a_damaged_mark_is_a_reason_to_hold(harness: Harness) -> None:
    (harness.ledgers / NAME).write_bytes(b"{}")
    harness.start()
    assert "nobody can tell whether metadata is older" in harness.hold()
    harness.confirm()
    harness.start()
    assert harness.hold() == ""
