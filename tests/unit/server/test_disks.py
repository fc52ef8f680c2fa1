"""A directory looked at, watched, and what the index makes of it."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from fastbk.errors import StorageError
from fastbk.native.segment import BUCKET_COUNT, Histogram, bucket_from
from fastbk.server.configuration.settings import DiskSettings, JournalSettings
from fastbk.server.directories import LOCK_NAME, DirectoryLock, lock_all
from fastbk.server.disks import disk_reports, disk_watch, space_thresholds
from fastbk.server.disks.disk_reports import (
    DiskReports,
    DiskWait,
    UsedDirectory,
    boot_problems,
    why_not_writable,
)
from fastbk.server.disks.disk_watch import DirectoryProbe, DiskReport, DiskWatch, require_mounted
from fastbk.server.index import process as index_process
from fastbk.server.index.process import FLUSH_HANGS_S, AdoptedFiles, IndexDisk, slow_flush
from fastbk.server.journal.process import COMMITS_MIN, CommitSpeed
from fastbk.server.supervision.lifecycle import Lifecycle, State
from fastbk.storage.commits import JournalLogs
from fastbk.storage.directories import JOURNAL_LOG, JOURNALS
from fastbk.storage.disk_health import FAILED_BEARS_S, DirectorySample, DiskState, Takes, Thresholds
from fastbk.storage.manifest import JOURNAL, LogEntry, Manifest
from fastbk.units import MIB
from tests.fixtures.wait import wait_until, wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.native.disk import Disk

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


def test_a_journal_file_that_is_a_log_is_none_of_those_that_the_journal_grows_by(
    locked: tuple[Path, int], tmp_path: Path
) -> None:
    """Else the room for the journal's own files would be given away."""
    directory, lock = locked
    journal = tmp_path / "journal"
    journal.mkdir()
    for file_id in (1, 2):
        (journal / JOURNALS.name(file_id)).write_bytes(bytes(64 * MIB))
    plain = DirectoryProbe(str(directory), lock).measure().free_bytes
    probe = DirectoryProbe(
        str(directory),
        lock,
        neighbours=[str(journal)],
        neighbour_bytes_max=128 * MIB,
        is_data=lambda where, name: (where, name) == (str(journal), JOURNALS.name(1)),
    )
    assert probe._growth_bytes() == 64 * MIB
    assert probe.measure().free_bytes == pytest.approx(plain - 64 * MIB, abs=1 << 30)


def test_adopted_files_are_told_by_the_manifest_and_others_by_their_headers(tmp_path: Path) -> None:
    own, other = str(tmp_path / "own"), str(tmp_path / "other")
    manifest = Manifest(
        generation=1,
        logs=(
            LogEntry(
                log_id=JOURNAL_LOG | 7, salt=1, durable_bytes=1, live_bytes=1, sealed=True,
                kind=JOURNAL,
            ),
        ),
    )  # fmt: skip
    manifests = [manifest]
    versions = {3: True, 4: False}
    reads: list[str] = []

    def header(_: object, path: str) -> object:
        reads.append(path)
        file_id = JOURNALS.id_of(os.path.basename(path)) or 0
        if file_id == 9:
            raise OSError(errno.ENOENT, "renamed")
        return SimpleNamespace(
            state="valid", file_id=min(file_id, 4), adopts=versions.get(file_id, True)
        )

    adopted = AdoptedFiles(own, lambda: manifests[0], cast("Disk", None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_process, "read_header", header)
        assert [adopted(own, JOURNALS.name(n)) for n in (6, 7)] == [False, True]
        manifests[0] = Manifest(generation=2)
        assert not adopted(own, JOURNALS.name(7))
        assert reads == [], "of its own journal it reads none"
        assert [adopted(other, JOURNALS.name(n)) for n in (3, 4, 5, 9)] == [
            True, False, False, False,
        ]  # fmt: skip
        reads.clear()
        assert [adopted(other, JOURNALS.name(n)) for n in (3, 4, 5)] == [True, False, False]
        assert [os.path.basename(path) for path in reads] == [JOURNALS.name(5)], (
            "one that was never written to under its name may be, soon"
        )
        assert not adopted(other, "identity.json")


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


class SlowSeen(Seen):
    """A place that answers the watch's own thread late, with what it saw when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.answers = threading.Semaphore(0)

    def measure(self) -> DirectorySample:
        seen = self.next
        if threading.current_thread() is not threading.main_thread():
            self.asked += 1
            self.answers.acquire()
        return seen


def test_a_look_that_began_before_a_newer_one_is_not_taken_in() -> None:
    """A disk that was full counted as empty again, until the look after that."""
    watched = Watched()
    one, place = watched.watch, SlowSeen()
    watched.watch._place = place  # type: ignore[assignment]
    one.start()
    one.wake()
    wait_until(lambda: place.asked == 1, "a look is under way")
    place.next = DirectorySample(10, 990)
    one.poll_now()
    assert one.takes is Takes.NOTHING
    place.answers.release()
    wait_until(lambda: place.asked == 2, "its answer is there: the next look is under way")
    assert not one.poll()
    assert (one.takes, watched.reports[-1].state) == (Takes.NOTHING, "exhausted")
    place.next = DirectorySample(100, 900)
    place.answers.release()
    place.answers.release()
    wait_until(lambda: (one.poll(), one.takes is Takes.ALL)[1], "later ones are")


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


def test_a_report_says_what_journal_files_hold_that_are_entry_logs() -> None:
    harness = IndexHarness()
    assert harness.watched.watch.report().journal_files == ""
    harness.flusher.journal_logs = JournalLogs(2, 256 * MIB, 100 * MIB)
    harness.disk.poll()
    said = harness.watched.watch.report().journal_files
    assert said == "2 entry logs in the journal directory: 256.0 MiB, of which 100.0 MiB live"


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
        self.flusher = SimpleNamespace(
            failure="", flushes=0, flush_took_s=1.0, is_busy=False, journal_logs=JournalLogs()
        )
        self.durable_bytes = 0
        self.disk = IndexDisk(
            self.index,  # type: ignore[arg-type]
            self.flusher,  # type: ignore[arg-type]
            self.watched.watch,
            slow_flush_bytes_per_s=4 * MIB,
            flushed_bytes=lambda: self.durable_bytes,
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


# Before a boot: which disks are waited for, which leave reads, which deaths they explain; and
# what is shown.


RESERVE_BYTES = 1 << 20


class Harness:
    """Two real directories, locked as a supervisor does, and a gate before them."""

    def __init__(self, tmp_path: Path) -> None:
        self.life = Lifecycle(0.0)
        self.board = DiskReports(self.life)
        paths = [tmp_path / "journal", tmp_path / "ledgers"]
        self.locks: list[DirectoryLock] = lock_all([str(path) for path in paths])
        self.paths = dict(zip(("journal", "ledger"), paths, strict=True))
        self.directories = [
            UsedDirectory(role, 0, str(path), lock.descriptor)
            for (role, path), lock in zip(self.paths.items(), self.locks, strict=True)
        ]
        self.gate = DiskWait(
            self.directories,
            poll_s=0.01,
            reserve_bytes=RESERVE_BYTES,
            note=self.life.note,
            tell=self.board.put,
        )
        self.stop = asyncio.Event()

    def vanish(self, role: str) -> None:
        path = self.paths[role]
        path.rename(path.with_name("away"))
        path.mkdir()

    def come_back(self, role: str) -> None:
        path = self.paths[role]
        path.rmdir()
        path.with_name("away").rename(path)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    for lock in harness.locks:
        lock.close()


def refuse_writes(monkeypatch: pytest.MonkeyPatch, *folders: str) -> None:
    """Have writes into these folders fail, as on a disk that does."""

    def why(directory: str) -> str:
        return (
            "Input/output error" if Path(directory).name in folders else why_not_writable(directory)
        )

    monkeypatch.setattr(disk_reports, "why_not_writable", why)


async def test_well_disks_let_everything_pass_and_keep_nothing(harness: Harness) -> None:
    await harness.gate.wait(harness.stop)
    assert harness.gate.no_journal_reason == ""
    assert not await harness.gate.explains("journal", was_serving=True)
    assert {name.name for path in harness.paths.values() for name in path.iterdir()} == {LOCK_NAME}


@pytest.mark.parametrize("role", ["journal", "ledger"])
async def test_a_directory_that_is_gone_is_waited_for(harness: Harness, role: str) -> None:
    """INV-D2: over another disk there is no boot; an empty journal there would be taken for a lost one."""
    harness.vanish(role)
    assert await harness.gate.explains("index", was_serving=True)
    waiting = asyncio.create_task(harness.gate.wait(harness.stop))
    await wait_until_async(lambda: bool(harness.board.reports()), "it is shown")
    (report,) = harness.board.reports()
    assert (report.role, report.state, report.takes) == (role, "gone", "nothing")
    reasons = harness.life.not_ready(0.0)
    assert any("was its disk unmounted?" in reason for reason in reasons)
    assert not waiting.done()
    assert list(harness.paths[role].iterdir()) == []
    harness.come_back(role)
    await asyncio.wait_for(waiting, 10)
    assert not any("before its disks" in reason for reason in harness.life.not_ready(0.0))


async def test_a_stop_ends_the_wait(harness: Harness) -> None:
    harness.vanish("ledger")
    waiting = asyncio.create_task(harness.gate.wait(harness.stop))
    await wait_until_async(lambda: bool(harness.board.reports()), "it is shown")
    harness.stop.set()
    await asyncio.wait_for(waiting, 10)
    assert harness.gate.no_journal_reason == ""
    harness.come_back("ledger")


async def test_a_journal_that_fails_leaves_reads_and_is_looked_after(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writes(monkeypatch, "journal")
    assert await harness.gate.explains("journal", was_serving=True)
    assert not await harness.gate.explains("worker", was_serving=True), "that has other reasons"
    await harness.gate.wait(harness.stop)
    assert "cannot be written: Input/output error" in harness.gate.no_journal_reason
    back = asyncio.create_task(harness.gate.until_journal_is_back())
    await asyncio.sleep(0)
    assert not back.done()
    monkeypatch.undo()
    await asyncio.wait_for(back, 10)
    await harness.gate.wait(harness.stop)
    assert harness.gate.no_journal_reason == ""


async def test_a_ledger_directory_that_fails_is_waited_for(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writes(monkeypatch, "ledgers")
    (problem,) = boot_problems(harness.directories)
    assert problem.state is DiskState.FAILED
    assert problem.is_fatal
    waiting = asyncio.create_task(harness.gate.wait(harness.stop))
    await wait_until_async(lambda: bool(harness.board.reports()), "it is shown")
    monkeypatch.undo()
    await asyncio.wait_for(waiting, 10)


async def test_a_start_that_lacks_room_for_its_flush_is_the_disks_fault(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A13: replay has to flush; until somebody frees room no start can succeed, and none counts."""
    rooms = [True]
    monkeypatch.setattr(disk_reports, "lacks_room", lambda *_: rooms[0])
    assert await harness.gate.explains("index", was_serving=False)
    assert not await harness.gate.explains("index", was_serving=True)
    assert not await harness.gate.explains("journal", was_serving=False)
    rooms[0] = False
    assert not await harness.gate.explains("index", was_serving=False)


# ---- the board


def report(role: str, state: str, takes: str, **more: object) -> DiskReport:
    facts: dict[str, object] = {
        "pair": 0, "directory": f"/{role}", "reason": "", "slow": "", "errors": 0,
        "free_bytes": 5, "used_bytes": 15, "used_ratio": 0.75, "state_since_s": 0.0, "looked_s": 0.0,
    }  # fmt: skip
    return DiskReport(role=role, state=state, takes=takes, **(facts | more))  # type: ignore[arg-type]


def test_only_disks_that_refuse_speak_against_readiness() -> None:
    life = Lifecycle(0.0)
    board = DiskReports(life)
    life.go(State.REPLAYING, "", 0.0)
    life.go(State.WRITABLE, "", 0.0)
    board.put(report("journal", "warn", "all", reason="filling up", slow="half of the commits"))
    assert life.not_ready(0.0) == []
    board.put(report("ledger", "full", "repairs", reason="too little space"))
    assert life.not_ready(0.0) == ["ledger directory /ledger: too little space"]
    assert board.refusing() == "ledger directory /ledger: too little space"
    board.put(report("ledger", "ok", "all"))
    assert life.not_ready(0.0) == []
    assert [each["role"] for each in board.shown()] == ["journal", "ledger"]


def test_every_state_has_its_number_in_the_metrics() -> None:
    board = DiskReports(Lifecycle(0.0))
    assert board.metric_lines() == []
    for number, state in enumerate(DiskState):
        board.take_message(
            {**vars_of(report("ledger", state.value, "nothing", errors=3)), "type": "disk"}
        )
        lines = board.metric_lines()
        assert f'fastbk_disk_state{{role="ledger",pair="0"}} {number}' in lines
        assert 'fastbk_disk_refuses{role="ledger",pair="0"} 2' in lines
        assert 'fastbk_disk_errors_total{role="ledger",pair="0"} 3' in lines
        assert 'fastbk_disk_used_ratio{role="ledger",pair="0"} 0.75' in lines


def vars_of(found: DiskReport) -> dict[str, object]:
    return {name: getattr(found, name) for name in found.__struct_fields__}
