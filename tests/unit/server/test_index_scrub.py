"""When the scrub begins, how it goes on over restarts; what it found is kept, and forgotten once it is healed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fastbk.native.scrub import take_damage
from fastbk.server.configuration.settings import ScrubSettings
from fastbk.server.index import scrub
from fastbk.server.index.background import DirectBackground, Task
from fastbk.server.index.scrub import (
    LOG_WINDOW_S,
    LOGGED_MAX,
    SAVE_INTERVAL_S,
    DigestTypes,
    LineWindow,
    Scrubber,
)
from fastbk.storage.digest_check import NO_TYPE
from fastbk.storage.directories import locations_path, log_path
from fastbk.storage.scrub_state import read_scrub_state
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.hashes import DIGEST_CRC32C
from tests.fixtures.index_harness import CANNOT_TELL, OK
from tests.fixtures.storage_harness import (
    INCARNATION,
    JOURNAL,
    LEDGERS,
    Book,
    Life,
    digested,
    format_disk,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fastbk.native.store import Store

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


# Entries that came with a wrong digest: counted, said within bounds, listed, and never
# quarantined.


ENTRIES = 3 * scrub.LOGGED_MAX
EVEN = range(0, ENTRIES, 2)


class Source:
    """Metadata that knows it at once, or never."""

    def __init__(self) -> None:
        self.types: dict[int, int] = {1: DIGEST_CRC32C, 2: DIGEST_CRC32C}

    def begin_cycle(self) -> None:
        pass

    def want(self, _: Iterable[int]) -> bool:
        return False

    def wait(self) -> None:
        raise AssertionError("nothing to wait for")

    def known(self, ledger_ids: Iterable[int]) -> dict[int, int]:
        return {one: self.types[one] for one in ledger_ids if one in self.types}


class DigestHarness:
    def __init__(self, fake: FakeDisk, life: Life) -> None:
        self.fake = fake
        self.life = life
        self.now_s = 1e9
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.source = Source()
        self.counted: dict[str, int] = {}
        count = life.index.count

        def note(name: str, amount: int = 1) -> None:
            self.counted[name] = (self.counted.get(name, 0) + amount) % (1 << 64)
            count(name, amount)

        life.index.count = note

    def scrubber(self) -> Scrubber:
        disk = self.fake.disk()
        return Scrubber(
            self.life.index,
            self.life.checkpoint,
            DirectBackground(self.life.store, lambda *_: None),
            ScrubSettings(),
            disk,
            LEDGERS,
            disk,
            JOURNAL,
            INCARNATION,
            log=lambda event, **values: self.lines.append((event, values)),
            digests=self.source,
            clock_s=lambda: self.now_s,
            monotonic_s=lambda: self.now_s,
        )

    def said(self, event: str) -> list[dict[str, Any]]:
        return [values for name, values in self.lines if name == event]

    def slot(self, name: str) -> int:
        return self.counted.get(f"FBK_C_INDEX_{name}", 0)


def looks(scrubber: Scrubber, times: int = 4) -> None:
    for _ in range(times):
        scrubber.poll()


@pytest.fixture
def digest_harness() -> Iterator[DigestHarness]:
    """Ledger 1 came well, every second entry of ledger 2 did not."""
    with FakeDisk(seed=12) as fake:
        format_disk(fake)
        life = Life(fake, Book())
        for n in range(ENTRIES):
            for ledger_id in (1, 2):
                is_bad = ledger_id == 2 and n in EVEN
                data = digested(ledger_id, n, b"entry %d." % n * 20, DIGEST_CRC32C, is_bad=is_bad)
                life.add(ledger_id, n, data)
            life.settle()
        life.flush()
        yield DigestHarness(fake, life)
        life.close()


def test_they_are_counted_listed_and_served_as_they_came(digest_harness: DigestHarness) -> None:
    scrubber = digest_harness.scrubber()
    looks(scrubber)
    assert scrubber.state.cycles == 1
    state = read_scrub_state(digest_harness.fake.disk(), LEDGERS, INCARNATION)
    assert [one.key for one in state.bad_digests] == [(2, n, n) for n in EVEN]
    assert state.quarantined == ()
    assert (digest_harness.slot("SCRUB_DIGESTS"), digest_harness.slot("SCRUB_BAD_DIGESTS")) == (
        2 * ENTRIES,
        len(EVEN),
    )
    assert digest_harness.slot("BAD_DIGESTS") == len(EVEN)
    assert digest_harness.slot("SCRUB_DAMAGED") == digest_harness.slot("QUARANTINED") == 0
    assert digest_harness.life.ask(digest_harness.life.harness.read(2, 0)).status == OK
    assert digest_harness.scrubber().state.bad_digests == state.bad_digests, "over a restart"


def test_the_log_has_a_limit_and_says_how_many_more_there_were(
    digest_harness: DigestHarness,
) -> None:
    scrubber = digest_harness.scrubber()
    looks(scrubber)
    said = digest_harness.said("scrub.bad_digest")
    assert len(said) == scrub.LOGGED_MAX
    first = said[0]["first_entry_id"]  # of the first run in the log
    assert (said[0]["ledger_id"], said[0]["last_entry_id"], first in EVEN) == (2, first, True)
    assert not digest_harness.said("scrub.more_bad_digests")
    digest_harness.now_s += scrub.LOG_WINDOW_S
    looks(scrubber)
    assert [one["ranges"] for one in digest_harness.said("scrub.more_bad_digests")] == [
        len(EVEN) - scrub.LOGGED_MAX
    ]
    digest_harness.now_s += WEEK_S
    looks(scrubber)
    assert scrubber.state.cycles == 2
    assert len(digest_harness.said("scrub.bad_digest")) == scrub.LOGGED_MAX, (
        "what is known is not said again"
    )
    assert digest_harness.slot("SCRUB_BAD_DIGESTS") == 2 * len(EVEN)


def test_they_leave_the_list_when_a_whole_cycle_meets_them_no_more(
    digest_harness: DigestHarness,
) -> None:
    scrubber = digest_harness.scrubber()
    looks(scrubber)
    digest_harness.life.delete(2)
    digest_harness.now_s += WEEK_S
    looks(scrubber)
    assert scrubber.state.cycles == 2
    assert scrubber.state.bad_digests == ()
    assert digest_harness.slot("BAD_DIGESTS") == 0


def test_nothing_is_forgotten_because_metadata_was_away(digest_harness: DigestHarness) -> None:
    scrubber = digest_harness.scrubber()
    looks(scrubber)
    digest_harness.source.types.clear()
    digest_harness.now_s += WEEK_S
    looks(scrubber)
    assert scrubber.state.cycles == 2
    assert (
        scrubber.state.digests_unanswered
        == 2 * ENTRIES
        == digest_harness.slot("SCRUB_DIGESTS_UNKNOWN")
    )
    assert len(scrubber.state.bad_digests) == len(EVEN)
    digest_harness.source.types = {1: DIGEST_CRC32C, 2: 0}
    digest_harness.now_s += WEEK_S
    looks(scrubber)
    assert scrubber.state.cycles == 3
    assert scrubber.state.digests_unanswered == 0
    assert scrubber.state.bad_digests == (), "metadata has the ledger no more"


# What the scrub knows of digests: asked for once, waited for with bounded patience, kept within
# bounds.


class TypesHarness:
    """Who asks, a clock, and what was asked."""

    def __init__(self, ledgers_max: int = 100) -> None:
        self.now_s = 1000.0
        self.asked: list[list[int]] = []
        self.has_room = True
        self.types = DigestTypes(self.ask, ledgers_max=ledgers_max, monotonic_s=lambda: self.now_s)

    def ask(self, message: dict[str, Any]) -> bool:
        assert message["type"] == "digests_wanted"
        if self.has_room:
            self.asked.append(sorted(message["ledgers"]))
        return self.has_room

    def waits_s(self, *ledgers: int) -> float:
        """How long it is willing to wait for these if nothing comes."""
        began_s = self.now_s
        while self.types.want(ledgers):
            self.now_s += 0.01
        return self.now_s - began_s


def test_what_is_not_known_is_asked_for_once_and_kept() -> None:
    harness = TypesHarness()
    assert harness.types.want([1, 2])
    assert harness.types.want([1, 2])
    assert harness.asked == [[1, 2]]
    harness.types.put_answers([[1, 3], [2, None]])
    assert not harness.types.want([1, 2])
    assert harness.types.known([1, 2, 5]) == {1: 3, 2: NO_TYPE}
    assert harness.types.want([1, 5])
    assert harness.asked == [[1, 2], [5]]


def test_a_key_comes_in_hex_and_is_kept_as_it_is() -> None:
    harness = TypesHarness()
    harness.types.put_answers([[1, bytes(range(20)).hex()], [2, 2]])
    assert harness.types.known([1, 2]) == {1: bytes(range(20)), 2: 2}


def test_patience_ends_and_is_short_while_nobody_answers() -> None:
    harness = TypesHarness()
    assert harness.waits_s(1) == pytest.approx(scrub.PATIENCE_S, abs=0.1)
    assert harness.waits_s(1) == 0, "asked in vain a moment ago"
    assert harness.waits_s(1, 2) == pytest.approx(scrub.PATIENCE_QUIET_S, abs=0.1)
    assert harness.asked == [[1], [2]], "and asked all the same"
    harness.types.put_answers([[2, 1]])
    assert harness.types.known([1, 2]) == {2: 1}
    assert harness.waits_s(3) == pytest.approx(scrub.PATIENCE_S, abs=0.1), "somebody is there again"
    harness.now_s += scrub.PAUSE_S
    assert harness.waits_s(1) == pytest.approx(scrub.PATIENCE_S, abs=0.1)
    assert harness.asked[-1] == [1]


def test_one_that_nobody_can_tell_of_does_not_cost_the_others_theirs() -> None:
    harness = TypesHarness()
    assert harness.types.want([1, 2])
    harness.types.put_answers([[2, 3]])
    harness.waits_s(1, 2)
    assert harness.types.want([1, 3])
    harness.now_s += scrub.PATIENCE_S / 2
    assert harness.types.want([1, 3]), "something was heard in that wait: patience is whole"
    harness.types.put_answers([[3, 3]])
    assert not harness.types.want([1, 3])


def test_answers_that_come_one_by_one_are_waited_for() -> None:
    harness = TypesHarness()
    wanted = list(range(50))
    for ledger_id in wanted:
        assert harness.types.want(wanted)
        harness.now_s += 0.9 * scrub.PATIENCE_S
        harness.types.put_answers([[ledger_id, 3]])
    assert not harness.types.want(wanted)
    assert len(harness.asked) == 1


def test_a_full_socket_is_tried_again() -> None:
    harness = TypesHarness()
    harness.has_room = False
    assert harness.types.want([1])
    harness.has_room = True
    assert harness.types.want([1])
    assert harness.asked == [[1]]


def test_messages_and_memory_are_bounded() -> None:
    harness = TypesHarness(ledgers_max=100)
    many = list(range(scrub.ASKED_MAX + 10))
    assert harness.types.want(many)
    assert harness.types.want(many)
    assert [len(one) for one in harness.asked] == [scrub.ASKED_MAX, 10]
    harness.types.put_answers([[ledger_id, 3] for ledger_id in many])
    known = harness.types.known(many)
    assert list(known) == many[-100:]
    assert harness.types.want([many[0]]), "forgotten: asked again"


def test_ids_may_get_other_ledgers() -> None:
    harness = TypesHarness()
    harness.types.put_answers([[1, 3], [2, None]])
    harness.types.begin_cycle()
    assert harness.types.known([1, 2]) == {}
    harness.types.put_answers([[1, 1]])
    harness.now_s += scrub.DIGEST_AGE_S_MAX + 1
    assert harness.types.want([1])


def test_an_answer_wakes_who_waits() -> None:
    """With the real clock and a thread, as in the index."""
    told = threading.Event()

    def ask(_: dict[str, Any]) -> bool:
        threading.Thread(target=answer).start()
        return True

    def answer() -> None:
        types.put_answers([[7, 3]])
        told.set()

    types = DigestTypes(ask)
    while types.want([7]):
        types.wait()
    assert told.wait(10.0)
    assert types.known([7]) == {7: 3}
