"""When the scrub begins, how it goes on over restarts; what it found is kept, and forgotten once it is healed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fastbk.native.scrub import take_damage
from fastbk.native.store import Store
from fastbk.server.configuration.settings import ScrubSettings
from fastbk.server.index.background import DirectBackground, Task
from fastbk.server.index.scrub import (
    LOG_WINDOW_S,
    LOGGED_MAX,
    SAVE_INTERVAL_S,
    LineWindow,
    Scrubber,
)
from fastbk.storage.directories import locations_path, log_path
from fastbk.storage.scrub_state import read_scrub_state
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import CANNOT_TELL, OK
from tests.fixtures.storage_harness import INCARNATION, JOURNAL, LEDGERS, Book, Life, format_disk

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


class Harness:
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
            take_damage=lambda: take_damage(self.life.store),
            clock_s=lambda: self.now_s,
            monotonic_s=lambda: self.now_s,
        )

    def events(self) -> list[str]:
        return [event for event, _ in self.lines]


@pytest.fixture
def harness() -> Iterator[Harness]:
    with FakeDisk(seed=12) as fake:
        format_disk(fake)
        life = Life(fake, Book())
        for n in range(12):
            life.add(1, n, data_of(n))
            life.settle()
            if n % 4 == 3:
                life.flush()
        yield Harness(fake, life)
        life.close()


def data_of(entry_id: int) -> bytes:
    return b"entry %d." % entry_id * 100


def harm(harness: Harness, entry_id: int) -> None:
    for log in harness.life.checkpoint.manifest.logs:
        path = log_path(LEDGERS, log.log_id)
        at = harness.fake.disk().read_file(path).find(data_of(entry_id))
        if at >= 0:
            harness.fake.corrupt(path, at + 20)
        harness.life.store.forget_log(log.log_id)


def test_once_a_cycle_over_restarts(harness: Harness) -> None:
    scrubber = harness.scrubber()
    for day in range(22):
        harness.now_s = 1e9 + day * 86_400 + 1
        if day % 5 == 4:
            scrubber = harness.scrubber()  # a restart
        for _ in range(3):
            scrubber.poll()
    assert scrubber.state.cycles == 4
    assert scrubber.state.began_s == 0
    assert not harness.lines


def test_it_can_be_switched_off(harness: Harness) -> None:
    scrubber = harness.scrubber(rate_bytes=0)
    for _ in range(3):
        scrubber.poll()
    assert scrubber.state.cycles == 0


def test_what_it_finds_is_kept_until_it_is_healed(harness: Harness) -> None:
    harm(harness, 5)
    life = harness.life
    scrubber = harness.scrubber()
    for _ in range(4):
        scrubber.poll()
    assert harness.events() == ["scrub.damaged"]
    (found,) = scrubber.state.quarantined
    assert (found.ledger_id, found.first, found.last) == (1, 5, 5)
    assert read_scrub_state(harness.fake.disk(), LEDGERS, INCARNATION).quarantined == (found,)
    assert life.ask(life.harness.read(1, 5)).status == CANNOT_TELL
    scrubber = harness.scrubber()  # a restart
    assert scrubber.state.quarantined == (found,)
    scrubber.poll()
    life.recovery_add(1, 5, data_of(5))
    life.settle()
    life.flush()
    for _ in range(4):
        scrubber.poll()
    assert life.ask(life.harness.read(1, 5)).status == OK
    assert scrubber.state.quarantined == ()
    assert "scrub.healed" in harness.events()
    assert read_scrub_state(harness.fake.disk(), LEDGERS, INCARNATION).quarantined == ()
    harness.now_s += WEEK_S
    harness.lines.clear()
    for _ in range(3):
        scrubber.poll()
    assert scrubber.state.cycles == 2
    assert not harness.lines, "what was healed is not found again"


def heal(harness: Harness, entry_id: int) -> None:
    """What a repair does, without a flush."""
    harness.life.recovery_add(1, entry_id, data_of(entry_id))
    harness.life.settle()


def look_and_work(harness: Harness, scrubber: Scrubber) -> None:
    for _ in range(4):
        scrubber.poll()
        harness.waiting.work(50)
    scrubber.poll()


def test_what_was_found_before_a_repair_and_is_told_after_it_is_looked_at_again(
    harness: Harness,
) -> None:
    harm(harness, 5)
    scrubber = harness.scrubber(direct=False)
    scrubber.poll()
    harness.waiting.work(50)
    heal(harness, 5)
    harness.life.flush()
    look_and_work(harness, scrubber)
    assert harness.events() == ["scrub.damaged", "scrub.healed"]
    assert scrubber.state.quarantined == ()


def test_a_finding_does_not_put_off_the_look_at_what_was_repaired(harness: Harness) -> None:
    for entry_id in (5, 9):
        harm(harness, entry_id)
    scrubber = harness.scrubber(direct=False)
    scrubber.quarantine([(1, 5, 5)], "found damaged by a compaction")
    heal(harness, 5)
    harness.life.flush()
    scrubber.quarantine([(1, 9, 9)], "found damaged by a compaction")
    look_and_work(harness, scrubber)
    assert [one.first for one in scrubber.state.quarantined] == [9]


def test_a_flush_heals_only_when_its_files_are_searched(harness: Harness) -> None:
    """The manifest is there before the main loop hears of it: who looks in between sees the old files."""
    harm(harness, 5)
    scrubber = harness.scrubber(direct=False)
    look_and_work(harness, scrubber)
    assert len(scrubber.state.quarantined) == 1
    heal(harness, 5)
    harness.life.flusher.begin()
    look_and_work(harness, scrubber)
    harness.life.flusher.poll()
    look_and_work(harness, scrubber)
    assert scrubber.state.quarantined == ()


def test_deleted_ledgers_are_nobodys_damage(harness: Harness) -> None:
    harm(harness, 5)
    scrubber = harness.scrubber(direct=False)
    scrubber.poll()
    harness.waiting.work(50)
    harness.life.delete(1)
    for _ in range(3):
        scrubber.poll()
        harness.waiting.work(50)
    assert scrubber.state.quarantined == ()


def test_a_cycle_goes_on_where_a_restart_cut_it_off(harness: Harness) -> None:
    scrubber = harness.scrubber(direct=False)
    scrubber.poll()
    harness.waiting.work(5)
    scrubber.poll()
    place = scrubber.state.log_id, scrubber.state.offset_bytes
    assert place != (0, 0)
    harness.now_s += SAVE_INTERVAL_S
    scrubber.poll()
    for task in list(harness.waiting.tasks):
        if task.name == "scrub_save":
            while not task.slice(harness.life.store):
                pass
    scrubber = harness.scrubber()
    assert (scrubber.state.log_id, scrubber.state.offset_bytes) == place
    for _ in range(3):
        scrubber.poll()
    assert scrubber.state.cycles == 1


def test_others_may_put_something_into_quarantine(harness: Harness) -> None:
    scrubber = harness.scrubber()
    scrubber.quarantine([(1, 2, 3), (1, 7, 7)], "found damaged by a compaction")
    scrubber.poll()
    state = read_scrub_state(harness.fake.disk(), LEDGERS, INCARNATION)
    assert [(one.first, one.last) for one in state.quarantined] == [(2, 3), (7, 7)]
    harness.life.add(2, 0, b"a flush")
    harness.life.settle()
    harness.life.flush()
    for _ in range(3):
        scrubber.poll()
    assert scrubber.state.quarantined == (), "they are whole"


def test_a_disk_that_fails_ends_the_cycle_and_it_is_tried_again(harness: Harness) -> None:
    scrubber = harness.scrubber(direct=False)
    scrubber.poll()
    harness.waiting.work(2)
    for entry in harness.life.checkpoint.manifest.locations:
        path = f"{LEDGERS}/locations/{entry.file_id:016x}.loc"
        harness.fake.make_unreadable(path, 0, 1 << 30)
    harness.waiting.work(40)
    scrubber.poll()
    assert harness.events() == ["scrub.damaged", "scrub.stopped"], "a file of locations, then all"
    assert scrubber.state.cycles == 0


def read(harness: Harness, entry_id: int) -> int:
    return int(harness.life.ask(harness.life.harness.read(1, entry_id)).status)


def quarantined(scrubber: Scrubber) -> list[tuple[int, int]]:
    return [(one.first, one.last) for one in scrubber.state.quarantined]


@pytest.mark.parametrize("way", ["read", "batch", "compare", "ahead"])
def test_damage_that_a_read_meets_is_told_at_once(harness: Harness, way: str) -> None:
    """By whichever way the bytes are wanted; the scrub, which never looks here, is not needed."""
    harm(harness, 5)
    scrubber = harness.scrubber(rate_bytes=0)
    life = harness.life
    if way == "read":
        assert read(harness, 5) == CANNOT_TELL
    elif way == "batch":
        assert life.ask(life.harness.read_batch(1, 5)).status == CANNOT_TELL
    elif way == "compare":
        before = len(life.book.acked)
        life.add(1, 5, data_of(5))  # the bookie looks at what it has before it answers
        life.settle()
        assert len(life.book.acked) == before
    else:
        life.store.read_ahead(1, 4, 1 << 20)
    for _ in range(3):
        scrubber.poll()
    assert quarantined(scrubber) == [(5, 5)]
    ((event, values),) = harness.lines
    assert event == "read.damaged"
    assert (values["ledger_id"], values["first_entry_id"], values["last_entry_id"]) == (1, 5, 5)
    for _ in range(5):
        read(harness, 5)
        scrubber.poll()
    assert len(harness.lines) == 1, "told once"


def test_damage_that_another_copy_heals_is_nobodys(harness: Harness) -> None:
    """A repair has put a whole copy beside it: what lies in the old place harms nobody."""
    harm(harness, 5)
    heal(harness, 5)
    harness.life.flush()
    scrubber = harness.scrubber(rate_bytes=0)
    harness.life.store.read_ahead(1, 4, 1 << 20)
    for _ in range(3):
        scrubber.poll()
    assert quarantined(scrubber) == []
    assert not harness.lines


def test_a_damaged_block_of_locations_is_told_at_once(harness: Harness) -> None:
    """Of no known entries, so not in quarantine: it has a gauge of its own, which the alert looks at."""
    life = harness.life
    counts: dict[str, int] = {}
    count = life.index.count

    def note(name: str, amount: int = 1) -> None:
        counts[name] = counts.get(name, 0) + amount
        count(name, amount)

    life.index.count = note  # type: ignore[method-assign]
    scrubber = harness.scrubber(rate_bytes=0)
    (entry, *_) = life.checkpoint.manifest.locations
    harness.fake.corrupt(locations_path(LEDGERS, entry.file_id), 4096 + 20)
    assert read(harness, 0) == CANNOT_TELL
    for _ in range(3):
        scrubber.poll()
    assert harness.events() == ["read.damaged"]
    assert harness.lines[0][1]["path"] == locations_path(LEDGERS, entry.file_id)
    assert (counts["FBK_C_INDEX_DAMAGE_FOUND"], counts["FBK_C_INDEX_LOCATIONS_DAMAGED"]) == (1, 1)


def test_lines_of_damage_are_bounded(harness: Harness) -> None:
    for entry_id in range(12):
        harm(harness, entry_id)
    scrubber = harness.scrubber(rate_bytes=0)
    window = LineWindow(lambda: harness.now_s)
    assert window.take(LOGGED_MAX + 5) == (LOGGED_MAX, 0)
    assert window.take(3) == (0, 0)
    harness.now_s += LOG_WINDOW_S
    assert window.take(1) == (1, 8)
    for entry_id in range(12):
        read(harness, entry_id)
        scrubber.poll()
    for _ in range(3):
        scrubber.poll()
    assert sum(last - first + 1 for first, last in quarantined(scrubber)) == 12
    assert set(harness.events()) == {"read.damaged"}
