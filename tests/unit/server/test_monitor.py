from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fastbk.native.segment import (
    BEAT_BACKGROUND,
    BEAT_FLUSH,
    BUCKET_COUNT,
    Histogram,
    Segment,
    Stats,
    bucket_from,
    create_segment,
)
from fastbk.observe import logs
from fastbk.server.process_table import GC, INDEX, JOURNAL, Process, worker
from fastbk.server.supervision.lifecycle import Lifecycle, State
from fastbk.server.supervision.monitor import (
    JOB_S,
    LOGGED_S,
    POLL_S,
    QUICK_S,
    SILENT_S,
    WINDOW_S,
    JournalStalls,
    Watchdog,
    process_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

RINGS = {"worker": [65536, 65536], "index": [65536]}
CHILDREN = [worker(0), JOURNAL, INDEX, GC]
OF_DATA = CHILDREN[:3]


class Harness:
    """A bookie's children, as their heartbeats and states show them; time passes in `run`."""

    def __init__(self) -> None:
        self.life = Lifecycle(0.0)
        self.life.go(State.REPLAYING, "", 0.0)
        self.life.go(State.WRITABLE, "", 0.0)
        self.now_s = 100.0
        self.stats: dict[Process, Stats] = {}
        self.states: dict[int, str] = {}
        self.still: set[Process] = set()
        self.watchdog = Watchdog(self.life.note, lambda pid: self.states.get(pid, "S"))
        for process in CHILDREN:
            descriptor = create_segment(process.role, 0, 1, RINGS.get(process.role, []))
            self.stats[process] = Stats(Segment(descriptor, process.role, is_writable=True))
            os.close(descriptor)
        self.watchdog.attach(
            (
                (process.name, process.role, CHILDREN.index(process), self.stats[process])
                for process in CHILDREN
            ),
            self.now_s,
        )

    def close(self) -> None:
        for stats in self.stats.values():
            stats.segment.close()

    def run(self, seconds: float) -> None:
        """Let everybody beat but for who stands still."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += POLL_S
            for process, stats in self.stats.items():
                if process not in self.still:
                    stats.beat()
            self.watchdog.poll(self.now_s)

    def conditions(self) -> dict[str, str]:
        return {one.name: one.reason for one in self.life.conditions(self.now_s)}

    def stop(self, process: Process, state: str) -> None:
        self.still.add(process)
        self.states[CHILDREN.index(process)] = state

    def resume(self, process: Process) -> None:
        self.still.discard(process)
        self.states.pop(CHILDREN.index(process))


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    made.close()


@pytest.mark.parametrize("process", OF_DATA, ids=lambda one: one.name)
@pytest.mark.parametrize(("state", "word"), [("T", "SIGSTOP"), ("D", "disk"), ("R", "processor")])
def test_a_frozen_process_makes_the_bookie_unready_within_five_seconds(
    harness: Harness, process: Process, state: str, word: str
) -> None:
    harness.run(10)
    assert harness.watchdog.frozen == [] and harness.life.not_ready(harness.now_s) == []
    harness.stop(process, state)
    harness.run(4.5)
    (sentence,) = harness.watchdog.frozen
    assert sentence.startswith(f"{process.name} stands still: ") and word in sentence
    (reason,) = harness.life.not_ready(harness.now_s)
    assert reason.startswith(f"{process.name} stands still for 4 s: ")
    assert list(harness.conditions()) == [f"frozen.{process.name}"]
    harness.run(30)
    assert "for 34 s" in harness.conditions()[f"frozen.{process.name}"]
    assert "fastbk_supervisor_frozen 1" in harness.watchdog.metric_lines()
    harness.resume(process)
    harness.run(POLL_S)
    assert harness.life.not_ready(harness.now_s) == [] and harness.watchdog.frozen == []
    lines = harness.watchdog.metric_lines()
    assert "fastbk_supervisor_frozen 0" in lines and "fastbk_supervisor_freezes_total 1" in lines


def test_one_late_turn_of_a_loop_is_no_freeze(harness: Harness) -> None:
    for process in OF_DATA:
        harness.stop(process, "R")
    harness.run(SILENT_S["journal"] - 2 * POLL_S)
    assert harness.watchdog.frozen == []
    harness.still.clear()
    harness.run(10)
    assert harness.watchdog.freezes == 0


def test_gc_waits_long_for_metadata_and_is_reported_when_it_is_stopped(harness: Harness) -> None:
    harness.stop(GC, "S")
    harness.run(60)
    assert harness.watchdog.frozen == [], "a listing of metadata"
    harness.stop(GC, "T")
    harness.run(POLL_S)
    assert "gc stands still: it is stopped by a signal" in harness.watchdog.frozen[0]
    assert harness.life.not_ready(harness.now_s) == [], "data is served without gc"
    assert list(harness.conditions()) == ["frozen.gc"]


def test_a_pause_of_the_supervisor_itself_is_nobodys_freeze(harness: Harness) -> None:
    harness.run(1)
    harness.now_s += 3600.0
    harness.watchdog.poll(harness.now_s)
    assert harness.watchdog.frozen == []
    harness.run(1)
    assert harness.watchdog.freezes == 0


@pytest.mark.parametrize("word", [BEAT_FLUSH, BEAT_BACKGROUND])
def test_a_thread_of_the_index_is_reported_after_a_minute_in_one_job(
    harness: Harness, word: int
) -> None:
    harness.run(2 * JOB_S)
    assert harness.watchdog.frozen == [], "it has nothing to do"
    harness.stats[INDEX].beat(word)
    harness.run(JOB_S - 2)
    assert harness.watchdog.frozen == []
    harness.run(3)
    (sentence,) = harness.watchdog.frozen
    assert sentence.startswith("index's ") and "thread stands still" in sentence
    assert harness.life.not_ready(harness.now_s) == []
    harness.stats[INDEX].beat(word)
    harness.run(POLL_S)
    assert harness.watchdog.frozen == [] and harness.conditions() == {}


def test_a_boot_that_is_over_leaves_no_condition(harness: Harness) -> None:
    harness.stop(JOURNAL, "T")
    harness.run(5)
    assert harness.conditions()
    harness.watchdog.detach()
    assert harness.conditions() == {} and harness.watchdog.frozen == []


def test_a_heartbeat_has_one_owner(harness: Harness) -> None:
    descriptor = create_segment("journal", 0, 1)
    with Segment(descriptor, "journal") as mapped:
        os.close(descriptor)
        with pytest.raises(PermissionError):
            Stats(mapped).beat()


def test_the_state_of_a_process_is_read_from_proc() -> None:
    assert process_state(os.getpid()) == "R"
    assert process_state(2**22 + 1) == ""


HIDDEN = """
import os, signal, time
from fastbk.native.process import confine
from fastbk.server.supervision.monitor import process_state
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    confine()  # as each process of a bookie: not dumpable
    os.write(writer, b"1")
    signal.pause()
os.read(reader, 1)
try:
    assert not os.path.exists(f"/proc/{pid}/stat"), "hidden from its parent"
    os.kill(pid, signal.SIGSTOP)
    while (state := process_state(pid)) != "T":
        assert not state
    os.kill(pid, signal.SIGCONT)
    while process_state(pid):
        pass
finally:
    os.kill(pid, signal.SIGKILL)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, "the end is there for whoever waits"
print("told")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a /proc of its own")
def test_a_stopped_child_is_found_where_proc_hides_it() -> None:
    """systemd's ProtectProc=invisible is this option of the mount."""
    mounted = 'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"'
    found = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "-", sys.executable, "-c", HIDDEN],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.stdout == "told\n", found.stderr


# When the commits of a journal count as slow, and as quick again.


MS = 1_000_000


class Rig:
    """A journal whose commits a test makes, window by window."""

    def __init__(self) -> None:
        self.stalls = JournalStalls()
        self.now_s = 100.0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._commits = Histogram(0, 0, 0, [0] * BUCKET_COUNT)
        self.window(0, 0)

    def take(self, _level: str, event: str, values: Any) -> None:
        self.events.append((event, dict(values)))

    def window(self, count: int, took_ms: float, process: str = "journal") -> None:
        """So many commits took so long, and the window ends."""
        buckets = list(self._commits.buckets)
        took_ns = int(took_ms * MS)
        buckets[next(at for at in range(BUCKET_COUNT) if bucket_from(at + 1) > took_ns)] += count
        before = self._commits
        self._commits = Histogram(before.count + count, 0, max(before.max, took_ns), buckets)
        self.now_s += WINDOW_S
        self.stalls.poll(process, self._commits, "the disk took that long", self.now_s)

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    logs.add_taker(made.take)
    yield made
    logs.remove_taker(made.take)


def test_a_journal_that_is_30_ms_slow_is_named_within_5_s_with_its_cause(rig: Rig) -> None:
    rig.window(500, 2)
    began_s = rig.now_s
    while not rig.events:
        rig.window(45, 30)
    assert rig.now_s - began_s <= 5
    ((name, values),) = rig.events
    assert name == "journal.slow"
    assert values["process"] == "journal"
    assert "the disk took that long" in values["reason"]


def test_it_is_named_once_and_then_quick_again_after_a_while(rig: Rig) -> None:
    for _ in range(20):
        rig.window(45, 30)
    assert rig.names() == ["journal.slow"]
    last_slow_s = rig.now_s
    while len(rig.events) < 2:
        rig.window(500, 2)
    assert QUICK_S <= rig.now_s - last_slow_s <= QUICK_S + WINDOW_S
    name, values = rig.events[1]
    assert name == "journal.quick_again"
    assert values["slow_s"] == pytest.approx(19 * WINDOW_S, abs=WINDOW_S)
    assert 30 <= values["worst_ms"] <= 34


def test_a_journal_without_commits_is_quick_again_too(rig: Rig) -> None:
    for _ in range(3):
        rig.window(45, 30)
    for _ in range(8):
        rig.window(0, 0)
    assert rig.names() == ["journal.slow", "journal.quick_again"]


@pytest.mark.parametrize(
    "windows", [[(300, 2), (5, 30), (300, 2), (5, 30), (300, 2)], [(900, 24)] * 5]
)
def test_single_late_commits_and_those_below_the_bound_are_no_stall(
    rig: Rig, windows: list[tuple[int, float]]
) -> None:
    for count, took_ms in windows:
        rig.window(count, took_ms)
    assert rig.names() == []


def test_one_commit_of_a_second_is_a_stall(rig: Rig) -> None:
    rig.window(1, 1000)
    assert rig.names() == ["journal.slow"]


def test_one_that_comes_and_goes_is_named_now_and_then(rig: Rig) -> None:
    """A disk at its limit is no reason to hide all other events."""
    began_s = rig.now_s
    while rig.now_s - began_s < 3.5 * LOGGED_S:
        for _ in range(3):
            rig.window(45, 30)
        assert rig.stalls.slow, "the verdict follows each time"
        for _ in range(8):
            rig.window(500, 2)
        assert not rig.stalls.slow
    assert rig.names() == ["journal.slow", "journal.quick_again"] * 4
    times = [
        values["times"]
        for name, values in rig.events
        if name == "journal.slow" and "times" in values
    ]
    assert len(times) == 3 and all(one > 10 for one in times)


def test_a_new_boot_begins_quick(rig: Rig) -> None:
    for _ in range(3):
        rig.window(45, 30)
    rig.stalls.attach()
    for _ in range(10):
        rig.window(500, 2)
    assert rig.names() == ["journal.slow"]
