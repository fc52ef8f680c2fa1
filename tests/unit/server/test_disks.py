"""A directory looked at, watched, and what the index makes of it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastbk.errors import StorageError
from fastbk.native.segment import BUCKET_COUNT, Histogram, bucket_from
from fastbk.server.configuration.settings import DiskSettings, JournalSettings
from fastbk.server.directories import LOCK_NAME, lock_all
from fastbk.server.disks import disk_watch, space_thresholds
from fastbk.server.disks.disk_watch import DirectoryProbe, DiskReport, DiskWatch, require_mounted
from fastbk.server.index.process import FLUSH_HANGS_S, IndexDisk, slow_flush
from fastbk.server.journal.process import COMMITS_MIN, CommitSpeed
from fastbk.storage.disk_health import FAILED_BEARS_S, DirectorySample, DiskState, Takes, Thresholds
from fastbk.units import MIB
from tests.fixtures.wait import wait_until

# ---- looking


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    (lock,) = lock_all([str(tmp_path / "ledgers")])
    yield tmp_path / "ledgers", lock.descriptor
    lock.close()


def test_a_look_gives_the_file_systems_figures(locked: tuple[Path, int]) -> None:
    directory, lock = locked
    look = DirectoryProbe(str(directory), lock).measure()
    disk = os.statvfs(directory)
    assert look.free_bytes == pytest.approx(disk.f_bavail * disk.f_frsize, abs=1 << 30)
    assert 0.0 < look.used_ratio < 1.0
    assert not look.is_read_only
    assert look.gone == ""


def test_another_directory_at_the_same_path_is_not_ours(locked: tuple[Path, int]) -> None:
    """INV-D2: as when a disk is unmounted, and when another one is mounted there."""
    directory, lock = locked
    place = DirectoryProbe(str(directory), lock)
    require_mounted(str(directory))
    away = directory.with_name("away")
    directory.rename(away)
    assert "unmounted" in place.measure().gone
    with pytest.raises(StorageError, match="mount it again"):
        require_mounted(str(directory))
    directory.mkdir()
    assert "unmounted" in place.measure().gone
    (directory / LOCK_NAME).write_text("")
    assert "another disk" in place.measure().gone
    (directory / LOCK_NAME).unlink()
    directory.rmdir()
    away.rename(directory)
    assert place.measure().gone == ""


def test_what_the_journal_will_still_take_is_not_free(
    locked: tuple[Path, int], tmp_path: Path
) -> None:
    directory, lock = locked
    journal = tmp_path / "journal"
    journal.mkdir()
    plain = DirectoryProbe(str(directory), lock).measure().free_bytes
    shared = DirectoryProbe(
        str(directory), lock, neighbours=[str(journal)], neighbour_bytes_max=1 << 40
    ).measure()
    assert shared.free_bytes == pytest.approx(plain - (1 << 40), abs=1 << 30)
    (journal / "0.journal").write_bytes(bytes(8 * MIB))
    grown = DirectoryProbe(
        str(directory), lock, neighbours=[str(journal)], neighbour_bytes_max=8 * MIB
    ).measure()
    assert grown.free_bytes == pytest.approx(plain, abs=1 << 30)


# ---- watching


class Seen:
    """A place that is as it is said to be."""

    directory = "/ledgers"

    def __init__(self, free_bytes: int = 100) -> None:
        self.next = DirectorySample(free_bytes, 900)
        self.looks = 0
        self.hold = threading.Event()
        self.hold.set()

    def measure(self) -> DirectorySample:
        self.hold.wait(10)
        self.looks += 1
        return self.next


class Watched:
    def __init__(self, free_bytes: int = 100) -> None:
        self.place = Seen(free_bytes)
        self.reports: list[DiskReport] = []
        self.now_s = 1000.0
        self.watch = DiskWatch(
            self.place,  # type: ignore[arg-type]
            Thresholds(warn_ratio=1.0, free_bytes_min=50, repair_free_bytes_min=20),
            role="ledger",
            pair=0,
            interval_s=3600.0,
            near_interval_s=0.001,
            tell=self.reports.append,
            clock_s=lambda: self.now_s,
        )


def test_looks_are_taken_in_by_polling_and_every_change_is_told() -> None:
    watched = Watched()
    one = watched.watch
    one.start()
    assert [report.state for report in watched.reports] == ["ok"]
    watched.place.next = DirectorySample(40, 960)
    one.wake()
    wait_until(one.poll, "the change")
    assert one.takes is Takes.REPAIRS
    report = watched.reports[-1]
    assert (report.state, report.takes, report.free_bytes) == ("full", "repairs", 40)
    assert report.used_ratio == 0.96
    watched.place.next = DirectorySample(100, 900)
    wait_until(one.poll, "the way back by itself: it is looked at often now")
    assert watched.reports[-1].state == "ok"


def test_a_disk_that_hangs_is_told_of_and_stops_nobody() -> None:
    watched = Watched()
    one = watched.watch
    one.start()
    watched.place.hold.clear()
    one.wake()
    wait_until(lambda: one._looking_since_s > 0, "the look that hangs")
    watched.now_s += disk_watch.HUNG_S + 1
    one.poll()
    assert "not answered" in watched.reports[-1].slow
    watched.place.hold.set()
    wait_until(lambda: (one.poll(), one.health.slow == "")[1], "its end")


# ---- slowness


def commits(*values_ms: float) -> Histogram:
    buckets = [0] * BUCKET_COUNT
    for value in values_ms:
        ns = int(value * 1e6)
        buckets[max(b for b in range(BUCKET_COUNT) if bucket_from(b) <= ns)] += 1
    return Histogram(len(values_ms), 0, int(max(values_ms, default=0) * 1e6), buckets)


def test_half_of_the_commits_decide() -> None:
    speed = CommitSpeed(250_000_000)
    quick, slow = [1.0] * COMMITS_MIN, [600.0] * COMMITS_MIN
    assert speed.check(commits(*quick), 0) == ""
    assert "half of the commits" in speed.check(commits(*quick, *slow), 0)
    assert speed.check(commits(*quick, *slow, 1.0), 0) != "", "too few to say anything else"
    assert speed.check(commits(*quick, *slow, *quick), 0) == ""


def test_a_commit_that_does_not_end_is_slow_at_once() -> None:
    speed = CommitSpeed(250_000_000)
    assert "under way for 2.0 s" in speed.check(commits(), 2_000_000_000)
    assert speed.check(commits(), 0) == ""


@pytest.mark.parametrize(
    ("size_bytes", "took_s", "is_slow"),
    [(64 * MIB, 1.0, False), (64 * MIB, 32.0, True), (MIB, 32.0, None), (64 * MIB, 0.0, None)],
)
def test_a_flush_is_measured_when_it_is_large(
    size_bytes: int, took_s: float, is_slow: bool | None
) -> None:
    said = slow_flush(size_bytes, took_s, 4 * MIB)
    assert (None if said is None else bool(said)) is is_slow


# ---- floors


def test_floors_are_made_from_the_journals_limit() -> None:
    """A13: what is kept holds a flush of everything that a full journal has."""
    journal = JournalSettings(limit_bytes=32 * MIB, file_size_bytes=16 * MIB)
    found = space_thresholds.ledger_thresholds(DiskSettings(), journal)
    assert found.reserve_bytes == 72 * MIB
    assert found.reserve_bytes < found.repair_free_bytes_min < found.free_bytes_min == 108 * MIB
    assert space_thresholds.journal_bytes_max(journal) == 64 * MIB
    assert space_thresholds.journal_thresholds(DiskSettings()).free_bytes_min == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"high_priority_free_bytes_min": 71 * MIB}, "flush of a full journal"),
        ({"free_bytes_min": 80 * MIB}, "free_min must be at least"),
        ({"low_water_ratio": 0.99}, "low_water_ratio"),
    ],
)
def test_floors_out_of_order_are_refused(settings: dict[str, Any], message: str) -> None:
    journal = JournalSettings(limit_bytes=32 * MIB, file_size_bytes=16 * MIB)
    (problem,) = space_thresholds.problems(DiskSettings(**settings), journal)
    assert re.search(message, problem)
    assert list(space_thresholds.problems(DiskSettings(), journal)) == []


def test_directories_that_share_a_disk_keep_room_for_each_other(tmp_path: Path) -> None:
    journal = JournalSettings(limit_bytes=32 * MIB, file_size_bytes=16 * MIB)
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.mkdir()
    assert space_thresholds.sharing([*map(str, paths), "/proc", str(tmp_path / "none")], 1) == 2
    assert space_thresholds.sharing([str(tmp_path / "none")], 0) == 1
    found = space_thresholds.ledger_thresholds(
        DiskSettings(free_bytes_min=100 * MIB, high_priority_free_bytes_min=90 * MIB), journal, 2
    )
    assert found.reserve_bytes == found.repair_free_bytes_min == found.free_bytes_min == 144 * MIB


# ---- the index


class Index:
    def __init__(self) -> None:
        self.refused: list[int] = []

    def set_reads_only(self, refused: int) -> None:
        self.refused.append(refused)


class IndexHarness:
    def __init__(self, *, loses_states: bool = False) -> None:
        self.watched = Watched()
        self.index = Index()
        self.flusher = SimpleNamespace(failure="", flushes=0, flush_took_s=1.0, is_busy=False)
        self.durable_bytes = 0
        self.disk = IndexDisk(
            self.index,  # type: ignore[arg-type]
            self.flusher,  # type: ignore[arg-type]
            self.watched.watch,
            slow_flush_bytes_per_s=4 * MIB,
            durable_bytes=lambda: self.durable_bytes,
            loses_states=loses_states,
            clock_s=lambda: self.watched.now_s,
        )


def test_a_failed_flush_refuses_adds_then_everything_and_a_good_one_ends_it() -> None:
    harness = IndexHarness()
    harness.flusher.failure = "could not flush: Input/output error"
    harness.disk.poll()
    assert harness.index.refused == [Takes.REPAIRS]
    harness.flusher.failure = ""  # the next attempt is under way: nothing is proven by that
    harness.disk.poll()
    assert harness.index.refused == [Takes.REPAIRS]
    harness.watched.now_s += FAILED_BEARS_S
    harness.disk.poll()
    assert harness.index.refused == [Takes.REPAIRS, Takes.NOTHING]
    assert harness.watched.reports[-1].state == "failed"
    harness.flusher.flushes += 1
    harness.disk.poll()
    assert harness.index.refused[-1] == Takes.ALL
    assert harness.watched.reports[-1].state == "ok"
    assert harness.watched.reports[-1].errors == 1


def test_a_slow_flush_is_told_of_and_refuses_nothing() -> None:
    harness = IndexHarness()
    for size_bytes, is_slow in ((16 * MIB, False), (24 * MIB, True), (16 * MIB, False)):
        harness.flusher.flushes += 1
        harness.durable_bytes += size_bytes
        harness.flusher.flush_took_s = 20.0 if is_slow else 1.0
        harness.disk.poll()
        assert bool(harness.watched.watch.health.slow) is is_slow
    assert harness.index.refused == []


def test_a_flush_that_does_not_end_is_told_of() -> None:
    harness = IndexHarness()
    harness.flusher.is_busy = True
    harness.disk.poll()
    harness.watched.now_s += FLUSH_HANGS_S + 1
    harness.disk.poll()
    assert "under way" in harness.watched.watch.health.slow
    harness.flusher.is_busy = False
    harness.flusher.flushes += 1
    harness.disk.poll()
    assert harness.watched.watch.health.slow == ""
    harness.watched.now_s += 10 * FLUSH_HANGS_S
    harness.disk.poll()
    assert harness.watched.watch.health.slow == "", "nothing is flushed"


def test_lost_states_refuse_adds_for_good() -> None:
    harness = IndexHarness(loses_states=True)
    assert harness.index.refused == [Takes.REPAIRS]
    harness.flusher.flushes += 1
    harness.disk.poll()
    assert harness.index.refused == [Takes.REPAIRS]


def test_nothing_is_flushed_where_the_directory_is_gone() -> None:
    """INV-D2."""
    harness = IndexHarness()
    assert harness.disk.may_flush
    harness.watched.place.next = DirectorySample(0, 0, gone="was its disk unmounted?")
    harness.watched.watch.poll_now()
    assert [harness.disk.may_flush] == [False]
    harness.disk.poll()
    assert harness.index.refused == [Takes.NOTHING]
    assert harness.watched.watch.health.state is DiskState.GONE
