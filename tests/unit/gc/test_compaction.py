"""When compaction begins, goes on, is stopped and ends, against an index that moves so many bytes a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from fastbk.errors import Error
from fastbk.gc import compaction
from fastbk.gc.compaction import STALL_S, URGENT, CompactionSettings, Compactor, Run
from fastbk.server.gc_messages import MAJOR, MINOR, Compaction, LogUsage, Space
from fastbk.storage.directories import JOURNAL_LOG

SETTINGS = CompactionSettings(bytes_per_s=10)


@dataclass
class Disk:
    """An index's logs: id -> (live, durable)."""

    logs: dict[int, tuple[int, int]]
    now_s: float = 0.0
    free_bytes: int = 10_000
    is_full: bool = False
    going: list[int] = field(default_factory=list)
    left_bytes: int = 0
    state: Compaction = field(default_factory=Compaction)
    asked: list[tuple[int, ...]] = field(default_factory=list)
    recounts: int = 0
    stops: int = 0
    stalls: bool = False
    fails: str = ""
    is_busy: bool = False
    is_silent: bool = False
    block_bytes: int = 0
    """Where it is not 0, what was moved is a new log, whose size is a multiple of this, with a block of its own."""

    def usage(self) -> list[LogUsage]:
        if self.is_silent:
            raise Error("no answer")
        return [
            LogUsage(log_id=n, durable_bytes=durable, live_bytes=live, sealed=True)
            for n, (live, durable) in self.logs.items()
        ]

    def space(self) -> Space:
        return Space(
            free_bytes=self.free_bytes, total_bytes=20_000, floor_bytes=100, is_full=self.is_full
        )

    def recount(self) -> bool:
        self.recounts += 1
        return True

    def compact(self, log_ids: Sequence[int], bytes_per_s: int, time_max_s: float) -> bool:
        assert not self.state.running
        assert time_max_s > 0
        if self.is_busy:
            return False
        self.asked.append(tuple(log_ids))
        self.going = list(log_ids)
        self.left_bytes = sum(self.logs[n][0] for n in log_ids)
        assert self.left_bytes <= self.free_bytes - 100
        self.state = Compaction(running=True)
        self.rate = bytes_per_s
        self.until_s = self.now_s + time_max_s
        return True

    def compaction(self) -> Compaction:
        return self.state

    def stop_compaction(self) -> None:
        self.stops += 1
        self.state = Compaction(moved_bytes=self.state.moved_bytes, error="stopped")
        self.going = []

    def tick(self) -> None:
        """A second goes by."""
        self.now_s += 1
        if not self.state.running or self.stalls:
            return
        moved = min(self.rate, self.left_bytes)
        self.left_bytes -= moved
        moved += self.state.moved_bytes
        if self.now_s >= self.until_s:  # it ends with the log that it is at
            freed = sum(self.logs.pop(self.going[0])[1:])
            self.state = Compaction(moved_bytes=moved, freed_bytes=freed)
        elif self.fails:
            self.state = Compaction(moved_bytes=moved, error=self.fails)
        elif self.left_bytes:
            self.state = Compaction(running=True, moved_bytes=moved)
        else:
            next_id = max(n for n in self.logs if n < JOURNAL_LOG) + 1
            sizes = list(map(self.logs.pop, self.going))
            freed = sum(durable - live for live, durable in sizes)
            if self.block_bytes:
                live = sum(live for live, _ in sizes)
                blocks = 1 + -(-live // self.block_bytes)
                self.logs[next_id] = (live, blocks * self.block_bytes)
            self.free_bytes += freed
            self.state = Compaction(moved_bytes=moved, freed_bytes=freed, bad_runs=1)


@dataclass
class Heard:
    events: list[tuple[str, str]] = field(default_factory=list)

    def say(self, event: str, run: Run) -> None:
        if event != "moved":
            self.events.append((event, run.kind))


def compactor(disk: Disk, settings: CompactionSettings = SETTINGS) -> tuple[Compactor, Heard]:
    heard = Heard()
    return Compactor(disk, settings, lambda: disk.now_s, heard.say), heard


def live(disk: Disk, made: Compactor, seconds: int) -> None:
    for _ in range(seconds):
        disk.tick()
        made.step()


def test_minor_hourly_major_daily() -> None:
    disk = Disk({})
    made, heard = compactor(disk)
    live(disk, made, 2 * 86_400)
    kinds = [kind for event, kind in heard.events if event == "begun"]
    assert kinds.count(MAJOR) == 1 or kinds.count(MAJOR) == 2
    assert 44 <= kinds.count(MINOR) <= 47
    assert disk.asked == []


def test_a_run_takes_all_below_its_ratio_and_counts() -> None:
    disk = Disk({1: (10, 100), 2: (40, 100), 3: (80, 100), 4: (0, 100), 5: (15, 100)})
    made, heard = compactor(disk)
    made.request(MINOR)
    assert made.is_requested(MINOR)
    live(disk, made, 10)
    assert disk.asked == [(1, 5)]
    assert not made.is_requested(MINOR)
    run = made.run
    assert run is not None
    assert (run.moved_bytes, run.freed_bytes, run.bad_runs, run.is_over) == (25, 175, 1, True)
    made.request(MAJOR)
    live(disk, made, 10)
    assert disk.asked[1:] == [(2,)]
    assert [event for event, _ in heard.events] == ["begun", "ended"] * 2


@pytest.mark.parametrize("other", [2, JOURNAL_LOG | 2])
@pytest.mark.parametrize("kind", [MINOR, MAJOR])
def test_a_run_leaves_alone_what_it_has_made(kind: str, other: int) -> None:
    """A log with little in it is below the ratio by its header and padding alone, however often it is moved.

    The id of a journal file is above those of all entry logs.
    """
    disk = Disk({1: (10, 300), other: (90, 100)}, block_bytes=50)
    subject, heard = compactor(disk, CompactionSettings(0.4, bytes_per_s=10, major_ratio_max=0.5))
    subject.request(kind)
    for _ in range(20):
        disk.tick()
        subject.step()
    assert disk.asked == [(1,)]
    assert not subject.is_requested(kind)
    assert heard.events == [("begun", kind), ("ended", kind)]


def test_a_full_disk_is_not_compacted_over_and_over_in_one_run() -> None:
    disk = Disk({1: (10, 300)}, block_bytes=50, is_full=True)
    subject, heard = compactor(disk)
    while ("ended", URGENT) not in heard.events:
        disk.tick()
        subject.step()
        assert disk.now_s < 20
    assert disk.asked == [(1,)]


def test_goes_are_bounded_and_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "GO_BYTES_MAX", 25)
    disk = Disk({n: (10 + n, 100) for n in range(5)})
    made, _ = compactor(disk)
    made.request(MAJOR)
    live(disk, made, 30)
    assert disk.asked == [(0, 1), (2, 3), (4,)]


def test_what_failed_is_left_alone_until_the_next_run() -> None:
    disk = Disk({1: (10, 100)}, fails="EIO")
    made, heard = compactor(disk)
    made.request(MINOR)
    live(disk, made, 20)
    assert disk.asked == [(1,)]
    assert made.run is not None
    assert "EIO" in made.run.error
    assert heard.events[-1] == ("ended", MINOR)


def test_time_is_limited() -> None:
    disk = Disk({1: (500, 10_000), 2: (500, 10_000)})
    made, _ = compactor(disk, CompactionSettings(bytes_per_s=10, time_max_s=30.0))
    made.request(MINOR)
    live(disk, made, 60)
    assert disk.stops == 0, "what is moved by then is not to be lost"
    assert made.run is not None
    assert made.run.is_over
    assert 290 <= made.run.moved_bytes <= 310
    assert len(disk.asked) == 1


def test_what_moves_nothing_is_said_once_and_stopped() -> None:
    disk = Disk({1: (1000, 10_000)}, stalls=True)
    made, heard = compactor(disk)
    made.request(MINOR)
    live(disk, made, int(STALL_S) - 2)
    assert ("stuck", MINOR) not in heard.events
    live(disk, made, 10)
    assert heard.events.count(("stuck", MINOR)) == 1
    assert disk.stops == 1
    assert not made.is_running


def test_one_that_does_not_even_stop_is_waited_for() -> None:
    """The index may hang in a disk: nothing else is begun meanwhile, and it is said once."""
    disk = Disk({1: (1000, 10_000), 2: (1, 10)}, stalls=True)
    disk.stop_compaction = lambda: None  # type: ignore[method-assign]
    made, heard = compactor(disk)
    made.request(MINOR)
    live(disk, made, 500)
    assert made.is_running
    assert len(disk.asked) == 1
    assert heard.events.count(("stuck", MINOR)) == 1
    disk.stalls = False
    live(disk, made, 3)
    assert ("went_on", MINOR) in heard.events


@pytest.mark.parametrize("kind", [MINOR, MAJOR])
def test_suspended_kinds_do_not_begin_and_end_when_they_are_suspended(kind: str) -> None:
    disk = Disk({1: (1000, 10_000)})
    made, _ = compactor(disk)
    made.suspended = {MINOR, MAJOR}
    live(disk, made, 90_000)
    assert disk.asked == []
    made.suspended = set()
    live(disk, made, 10)
    assert made.is_running
    made.suspended = {MINOR, MAJOR}
    live(disk, made, 3)
    assert not made.is_running
    assert disk.stops == 1
    assert made.run is not None
    assert made.run.error == "", "nothing went wrong"
    made.request(kind)
    live(disk, made, 10)
    assert made.is_running, "an operator's word"


def test_a_full_disk_is_compacted_at_once_dead_logs_first_then_the_cheapest() -> None:
    disk = Disk({1: (500, 1000), 2: (30, 40), 3: (90, 95)}, free_bytes=140, is_full=True)
    made, heard = compactor(disk)
    live(disk, made, 20)
    assert disk.recounts >= 1, "dead logs go without being moved"
    assert disk.asked[0] == (2,)
    assert heard.events[0] == ("begun", URGENT)
    assert (1,) not in disk.asked, "it does not fit"


def test_a_full_disk_that_wins_nothing_is_not_tried_without_pause() -> None:
    disk = Disk({1: (500, 1000)}, free_bytes=140, is_full=True)
    made, heard = compactor(disk)
    live(disk, made, 300)
    assert disk.asked == []
    assert len(heard.events) <= 2 * 300 / compaction.URGENT_INTERVAL_S + 2
    made.suspended = {MINOR, MAJOR}
    heard.events.clear()
    live(disk, made, 100)
    assert heard.events == []


def test_a_busy_index_is_asked_again_and_a_silent_one_is_an_error() -> None:
    disk = Disk({1: (10, 100)}, is_busy=True)
    made, _ = compactor(disk)
    made.request(MINOR)
    live(disk, made, 5)
    assert disk.asked == []
    disk.is_busy = False
    disk.is_silent = True
    with pytest.raises(Error):
        live(disk, made, 1)
    disk.is_silent = False
    live(disk, made, 5)
    assert disk.asked == [(1,)]
