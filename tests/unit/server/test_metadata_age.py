"""A bookie notices that metadata was rolled back, and holds it. INV-M2, INV-M3, INV-M5."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fastbk.errors import Error, MetadataUnavailable
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.hold import confirm_hold, new_hold, place_hold, read_hold
from fastbk.meta.rollback_mark import RESERVE_IDS, Mark, read_mark
from fastbk.model.ids import BookieId
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.settings import JournalSettings, LedgerSettings
from fastbk.server.identity import settle
from fastbk.server.supervision.metadata_age import AGE_INTERVAL_S, POLL_INTERVAL_S, MetadataAge
from fastbk.storage.metadata_mark import NAME

ME = "me"


class World:
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
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.start()
    made.start()
    made.run(draw=5)
    return made


def test_metadata_that_goes_on_is_not_held(world: World) -> None:
    for _ in range(3):
        world.start()
        world.now_s += AGE_INTERVAL_S
        world.run(draw=2)
    assert world.hold() == ""
    with world.store() as store:
        assert read_mark(store) == Mark(age=4, highest_id=10)
    assert world.next_id() == 11


def test_ids_that_metadata_lost_are_not_drawn_again(world: World) -> None:
    world.copy()
    world.run(draw=3)
    world.restore()
    world.start()
    assert "metadata once had ledger 7 and knows of 4 at most now" in world.hold()
    assert world.next_id() > 7 + RESERVE_IDS


def test_a_start_that_metadata_lost_is_noticed_before_it_is_counted_again(world: World) -> None:
    world.copy()
    world.start()
    world.restore()
    world.start()
    assert "had counted 3 starts" not in world.hold()
    assert "had counted 2 starts of this bookie and knows of 1 now" in world.hold()


def test_starts_that_were_cut_short_are_no_evidence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise MetadataUnavailable("gone")

    for _ in range(3):
        with monkeypatch.context() as patch, pytest.raises(MetadataUnavailable):
            patch.setattr("fastbk.meta.sqlite.SqliteStore.write_identity", fails)
            world.start()
    world.start()
    assert world.hold() == ""


def test_directories_of_an_earlier_version_go_by_the_count_of_starts(world: World) -> None:
    world.copy()
    for _ in range(2):
        world.start()
    (world.ledgers / NAME).unlink()
    world.restore()
    world.start()
    assert "the directories have counted 3 starts, metadata knows of 1" in world.hold()


def test_an_age_that_metadata_lost_is_noticed_without_any_ledger(world: World) -> None:
    world.copy()
    world.now_s += AGE_INTERVAL_S
    with world.store() as store:
        age = world.age(store)
        world.now_s += AGE_INTERVAL_S
        age.poll(is_last=True)
    world.restore()
    assert "the age 2 and has 1 now" in str(world.run().hold)


def test_a_running_bookie_notices_it_too(world: World) -> None:
    world.copy()
    with world.store() as first:
        age = world.age(first)
        first.next_ledger_id()
        age.poll()
    world.restore()
    with world.store() as second:
        age._store = second
        world.now_s += POLL_INTERVAL_S
        age.poll()
        assert age.hold is not None
        assert second.next_ledger_id() > 5 + RESERVE_IDS


def test_a_hold_survives_restarts_and_another_restore(world: World) -> None:
    world.copy()
    world.run(draw=3)
    world.copy("newer")
    world.restore()
    world.start()
    held = world.hold()
    assert held
    world.start()
    assert world.hold() == held
    world.restore()  # the same copy once more: the hold in it is gone
    world.start()
    assert held in world.hold()
    world.restore("newer")  # the copy that is right: an operator says so, not the bookie
    world.start()
    assert world.hold() != ""


def test_a_confirmed_hold_is_over_for_bookies_that_were_away(world: World) -> None:
    world.copy()
    world.run(draw=3)
    world.restore()
    world.start()
    world.confirm()
    for _ in range(2):
        world.start()
        assert world.run(draw=1).hold is None
    assert world.hold() == ""
    world.copy()
    world.run(draw=1)
    world.restore()
    world.start()
    assert world.hold() != "", "the next rollback is a new one"


def test_a_hold_that_an_operator_places_first_is_stored(world: World) -> None:
    with world.store() as store:
        placed = place_hold(store, new_hold("by hand"))
    assert world.run().hold == placed
    with world.store() as store:
        other = world.age(store)
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
def test_a_start_that_is_cut_off_anywhere_forgets_nothing(world: World, calls: int) -> None:
    world.copy()
    world.run(draw=3)
    world.restore()
    with world.store() as store:
        known = store.read_identity(BookieId(ME))
        assert known is not None
        try:
            world.age(Failing(store, calls)).check_start(1, known.identity)
        except Error:
            assert calls < 11
    world.start()
    assert "ledger 7" in world.hold()
    assert world.next_id() > 7 + RESERVE_IDS
    world.confirm()
    world.start()
    assert world.hold() == ""


def test_a_damaged_mark_is_a_reason_to_hold(world: World) -> None:
    (world.ledgers / NAME).write_bytes(b"{}")
    world.start()
    assert "nobody can tell whether metadata is older" in world.hold()
    world.confirm()
    world.start()
    assert world.hold() == ""
