import os
from collections.abc import Iterator

import pytest

from fastbk.native.segment import Segment, create_segment
from fastbk.native.stats import BEAT_BACKGROUND, BEAT_FLUSH, Stats
from fastbk.server.process_table import GC, INDEX, JOURNAL, Process, worker
from fastbk.server.supervision.lifecycle import Lifecycle, State
from fastbk.server.supervision.watchdog import JOB_S, POLL_S, SILENT_S, Watchdog, process_state

RINGS = {"worker": [65536, 65536], "index": [65536]}
CHILDREN = [worker(0), JOURNAL, INDEX, GC]
OF_DATA = CHILDREN[:3]


class World:
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
            self.watchdog.look(self.now_s)

    def conditions(self) -> dict[str, str]:
        return {one.name: one.reason for one in self.life.conditions(self.now_s)}

    def stop(self, process: Process, state: str) -> None:
        self.still.add(process)
        self.states[CHILDREN.index(process)] = state

    def resume(self, process: Process) -> None:
        self.still.discard(process)
        self.states.pop(CHILDREN.index(process))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.mark.parametrize("process", OF_DATA, ids=lambda one: one.name)
@pytest.mark.parametrize(("state", "word"), [("T", "SIGSTOP"), ("D", "disk"), ("R", "processor")])
def test_a_frozen_process_makes_the_bookie_unready_within_five_seconds(
    world: World, process: Process, state: str, word: str
) -> None:
    world.run(10)
    assert world.watchdog.frozen == [] and world.life.not_ready(world.now_s) == []
    world.stop(process, state)
    world.run(4.5)
    (sentence,) = world.watchdog.frozen
    assert sentence.startswith(f"{process.name} stands still: ") and word in sentence
    (reason,) = world.life.not_ready(world.now_s)
    assert reason.startswith(f"{process.name} stands still for 4 s: ")
    assert list(world.conditions()) == [f"frozen.{process.name}"]
    world.run(30)
    assert "for 34 s" in world.conditions()[f"frozen.{process.name}"]
    assert "fastbk_supervisor_frozen 1" in world.watchdog.metric_lines()
    world.resume(process)
    world.run(POLL_S)
    assert world.life.not_ready(world.now_s) == [] and world.watchdog.frozen == []
    lines = world.watchdog.metric_lines()
    assert "fastbk_supervisor_frozen 0" in lines and "fastbk_supervisor_freezes_total 1" in lines


def test_one_late_turn_of_a_loop_is_no_freeze(world: World) -> None:
    for process in OF_DATA:
        world.stop(process, "R")
    world.run(SILENT_S["journal"] - 2 * POLL_S)
    assert world.watchdog.frozen == []
    world.still.clear()
    world.run(10)
    assert world.watchdog.freezes == 0


def test_gc_waits_long_for_metadata_and_is_reported_when_it_is_stopped(world: World) -> None:
    world.stop(GC, "S")
    world.run(60)
    assert world.watchdog.frozen == [], "a listing of metadata"
    world.stop(GC, "T")
    world.run(POLL_S)
    assert "gc stands still: it is stopped by a signal" in world.watchdog.frozen[0]
    assert world.life.not_ready(world.now_s) == [], "data is served without gc"
    assert list(world.conditions()) == ["frozen.gc"]


def test_a_pause_of_the_supervisor_itself_is_nobodys_freeze(world: World) -> None:
    world.run(1)
    world.now_s += 3600.0
    world.watchdog.look(world.now_s)
    assert world.watchdog.frozen == []
    world.run(1)
    assert world.watchdog.freezes == 0


@pytest.mark.parametrize("word", [BEAT_FLUSH, BEAT_BACKGROUND])
def test_a_thread_of_the_index_is_reported_after_a_minute_in_one_job(
    world: World, word: int
) -> None:
    world.run(2 * JOB_S)
    assert world.watchdog.frozen == [], "it has nothing to do"
    world.stats[INDEX].beat(word)
    world.run(JOB_S - 2)
    assert world.watchdog.frozen == []
    world.run(3)
    (sentence,) = world.watchdog.frozen
    assert sentence.startswith("index's ") and "thread stands still" in sentence
    assert world.life.not_ready(world.now_s) == []
    world.stats[INDEX].beat(word)
    world.run(POLL_S)
    assert world.watchdog.frozen == [] and world.conditions() == {}


def test_a_boot_that_is_over_leaves_no_condition(world: World) -> None:
    world.stop(JOURNAL, "T")
    world.run(5)
    assert world.conditions()
    world.watchdog.detach()
    assert world.conditions() == {} and world.watchdog.frozen == []


def test_a_heartbeat_has_one_owner(world: World) -> None:
    descriptor = create_segment("journal", 0, 1)
    with Segment(descriptor, "journal") as mapped:
        os.close(descriptor)
        with pytest.raises(PermissionError):
            Stats(mapped).beat()


def test_the_state_of_a_process_is_read_from_proc() -> None:
    assert process_state(os.getpid()) == "R"
    assert process_state(2**22 + 1) == ""
