"""When the scrub begins, how it goes on over restarts; what it found is kept, and forgotten once it is healed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fastbk.native.fake_disk import FakeDisk
from fastbk.native.store import Store
from fastbk.server.configuration.settings import ScrubSettings
from fastbk.server.index.background import DirectBackground, Task
from fastbk.server.index.scrub import SAVE_INTERVAL_S, Scrubber
from fastbk.storage.directories import log_path
from fastbk.storage.scrub_state import read_scrub_state
from tests.fixtures.index_harness import CANNOT_TELL, OK
from tests.fixtures.storage_harness import INCARNATION, JOURNAL, LEDGERS, Book, Life, format_disk

pytestmark = pytest.mark.fast

WEEK_S = 7 * 86_400.0


class Waiting:
    """A background that does its tasks when told to, some slices at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.tasks: list[Task] = []

    def submit(self, task: Task) -> None:
        self.tasks.append(task)

    def work(self, slices: int) -> None:
        for _ in range(slices):
            if self.tasks and self.tasks[0].slice(self._store):
                self.tasks.pop(0)


class Rig:
    def __init__(self, fake: FakeDisk, life: Life, now_s: float = 1e9) -> None:
        self.fake = fake
        self.life = life
        self.now_s = now_s
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.waiting = Waiting(life.store)
        self.counts: dict[str, int] = {}

    def scrubber(self, *, direct: bool = True, **settings: int) -> Scrubber:
        """What an index makes at its start."""
        disk = self.fake.disk()
        background: Any = DirectBackground(self.life.store, lambda *_: None)
        return Scrubber(
            self.life.index,
            self.life.checkpoint,
            background if direct else self.waiting,
            ScrubSettings(**settings),
            disk,
            LEDGERS,
            disk,
            JOURNAL,
            INCARNATION,
            log=lambda event, **values: self.lines.append((event, values)),
            clock_s=lambda: self.now_s,
            monotonic_s=lambda: self.now_s,
        )

    def events(self) -> list[str]:
        return [event for event, _ in self.lines]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with FakeDisk(seed=12) as fake:
        format_disk(fake)
        life = Life(fake, Book())
        for n in range(12):
            life.add(1, n, data_of(n))
            life.settle()
            if n % 4 == 3:
                life.flush()
        yield Rig(fake, life)
        life.close()


def data_of(entry_id: int) -> bytes:
    return b"entry %d." % entry_id * 100


def harm(rig: Rig, entry_id: int) -> None:
    for log in rig.life.checkpoint.manifest.logs:
        path = log_path(LEDGERS, log.log_id)
        at = rig.fake.disk().read_file(path).find(data_of(entry_id))
        if at >= 0:
            rig.fake.corrupt(path, at + 20)
        rig.life.store.forget_log(log.log_id)


def test_once_a_cycle_over_restarts(rig: Rig) -> None:
    scrubber = rig.scrubber()
    for day in range(22):
        rig.now_s = 1e9 + day * 86_400 + 1
        if day % 5 == 4:
            scrubber = rig.scrubber()  # a restart
        for _ in range(3):
            scrubber.look()
    assert scrubber.state.cycles == 4
    assert scrubber.state.began_s == 0
    assert not rig.lines


def test_it_can_be_switched_off(rig: Rig) -> None:
    scrubber = rig.scrubber(rate_bytes=0)
    for _ in range(3):
        scrubber.look()
    assert scrubber.state.cycles == 0


def test_what_it_finds_is_kept_until_it_is_healed(rig: Rig) -> None:
    harm(rig, 5)
    life = rig.life
    scrubber = rig.scrubber()
    for _ in range(4):
        scrubber.look()
    assert rig.events() == ["scrub.damaged"]
    (found,) = scrubber.state.quarantined
    assert (found.ledger_id, found.first, found.last) == (1, 5, 5)
    assert read_scrub_state(rig.fake.disk(), LEDGERS, INCARNATION).quarantined == (found,)
    assert life.ask(life.rig.read(1, 5)).status == CANNOT_TELL
    scrubber = rig.scrubber()  # a restart
    assert scrubber.state.quarantined == (found,)
    scrubber.look()
    life.recovery_add(1, 5, data_of(5))
    life.settle()
    life.flush()
    for _ in range(4):
        scrubber.look()
    assert life.ask(life.rig.read(1, 5)).status == OK
    assert scrubber.state.quarantined == ()
    assert "scrub.healed" in rig.events()
    assert read_scrub_state(rig.fake.disk(), LEDGERS, INCARNATION).quarantined == ()
    rig.now_s += WEEK_S
    rig.lines.clear()
    for _ in range(3):
        scrubber.look()
    assert scrubber.state.cycles == 2
    assert not rig.lines, "what was healed is not found again"


def heal(rig: Rig, entry_id: int) -> None:
    """What a repair does, without a flush."""
    rig.life.recovery_add(1, entry_id, data_of(entry_id))
    rig.life.settle()


def look_and_work(rig: Rig, scrubber: Scrubber) -> None:
    for _ in range(4):
        scrubber.look()
        rig.waiting.work(50)
    scrubber.look()


def test_what_was_found_before_a_repair_and_is_told_after_it_is_looked_at_again(rig: Rig) -> None:
    harm(rig, 5)
    scrubber = rig.scrubber(direct=False)
    scrubber.look()
    rig.waiting.work(50)
    heal(rig, 5)
    rig.life.flush()
    look_and_work(rig, scrubber)
    assert rig.events() == ["scrub.damaged", "scrub.healed"]
    assert scrubber.state.quarantined == ()


def test_a_finding_does_not_put_off_the_look_at_what_was_repaired(rig: Rig) -> None:
    for entry_id in (5, 9):
        harm(rig, entry_id)
    scrubber = rig.scrubber(direct=False)
    scrubber.quarantine([(1, 5, 5)], "found damaged by a compaction")
    heal(rig, 5)
    rig.life.flush()
    scrubber.quarantine([(1, 9, 9)], "found damaged by a compaction")
    look_and_work(rig, scrubber)
    assert [one.first for one in scrubber.state.quarantined] == [9]


def test_a_flush_heals_only_when_its_files_are_searched(rig: Rig) -> None:
    """The manifest is there before the main loop hears of it: who looks in between sees the old files."""
    harm(rig, 5)
    scrubber = rig.scrubber(direct=False)
    look_and_work(rig, scrubber)
    assert len(scrubber.state.quarantined) == 1
    heal(rig, 5)
    rig.life.flusher.begin()
    look_and_work(rig, scrubber)
    rig.life.flusher.look()
    look_and_work(rig, scrubber)
    assert scrubber.state.quarantined == ()


def test_deleted_ledgers_are_nobodys_damage(rig: Rig) -> None:
    harm(rig, 5)
    scrubber = rig.scrubber(direct=False)
    scrubber.look()
    rig.waiting.work(50)
    rig.life.delete(1)
    for _ in range(3):
        scrubber.look()
        rig.waiting.work(50)
    assert scrubber.state.quarantined == ()


def test_a_cycle_goes_on_where_a_restart_cut_it_off(rig: Rig) -> None:
    scrubber = rig.scrubber(direct=False)
    scrubber.look()
    rig.waiting.work(5)
    scrubber.look()
    place = scrubber.state.log_id, scrubber.state.offset_bytes
    assert place != (0, 0)
    rig.now_s += SAVE_INTERVAL_S
    scrubber.look()
    for task in list(rig.waiting.tasks):
        if task.name == "scrub_save":
            while not task.slice(rig.life.store):
                pass
    scrubber = rig.scrubber()
    assert (scrubber.state.log_id, scrubber.state.offset_bytes) == place
    for _ in range(3):
        scrubber.look()
    assert scrubber.state.cycles == 1


def test_others_may_put_something_into_quarantine(rig: Rig) -> None:
    scrubber = rig.scrubber()
    scrubber.quarantine([(1, 2, 3), (1, 7, 7)], "found damaged by a compaction")
    scrubber.look()
    state = read_scrub_state(rig.fake.disk(), LEDGERS, INCARNATION)
    assert [(one.first, one.last) for one in state.quarantined] == [(2, 3), (7, 7)]
    rig.life.add(2, 0, b"a flush")
    rig.life.settle()
    rig.life.flush()
    for _ in range(3):
        scrubber.look()
    assert scrubber.state.quarantined == (), "they are whole"


def test_a_disk_that_fails_ends_the_cycle_and_it_is_tried_again(rig: Rig) -> None:
    scrubber = rig.scrubber(direct=False)
    scrubber.look()
    rig.waiting.work(2)
    for entry in rig.life.checkpoint.manifest.locations:
        path = f"{LEDGERS}/locations/{entry.file_id:016x}.loc"
        rig.fake.make_unreadable(path, 0, 1 << 30)
    rig.waiting.work(40)
    scrubber.look()
    assert rig.events() == ["scrub.damaged", "scrub.stopped"], "a file of locations, then all"
    assert scrubber.state.cycles == 0
