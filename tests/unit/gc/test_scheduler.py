"""What gc does next, what an operator may ask of it, and what it tells."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fastbk.errors import MetadataUnavailable
from fastbk.gc.compaction import CompactionSettings, Compactor
from fastbk.gc.dead_ledgers import Cluster, Cycle, DeadLedgers
from fastbk.gc.limbo import LimboCheck, LimboWatch
from fastbk.gc.over_replicated import CopiesCheck, CopiesWatch
from fastbk.gc.process import BUSY_SHARE, Control, Draining, Scheduler
from fastbk.gc.unconfirmed import UnconfirmedCheck, UnconfirmedWatch
from fastbk.limits import RateLimit
from fastbk.meta.api import VersionedLedger
from fastbk.meta.records import RecordStore
from fastbk.server.gc_messages import LEDGERS, MAJOR, MINOR, LogUsage
from tests.fixtures.metadata import records_in_memory
from tests.unit.gc.test_compaction import Disk
from tests.unit.gc.test_over_replicated import ME, MINE, OTHERS


class Line:
    """The supervisor's end: what it says, when somebody waits for it; and a clock that waiting moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.orders: list[dict[str, Any]] = []
        self.told: list[dict[str, Any]] = []

    def receive(self, timeout_s: float | None = 0) -> dict[str, Any] | None:
        if self.orders:
            return self.orders.pop(0)
        self.now_s += timeout_s or 0.0
        return None

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message["status"])


class Report:
    def __init__(self) -> None:
        self.cycles: list[Cycle] = []
        self.looks: list[CopiesCheck] = []
        self.looks_at_new = 0
        self.ended: dict[str, dict[str, int]] = {}

    def cycle(self, cycle: Cycle, took_s: float) -> None:
        assert took_s >= 0
        self.cycles.append(cycle)

    def limbo(self, look: LimboCheck) -> None:
        assert look.stopped == ""

    def copies(self, look: CopiesCheck, took_s: float) -> None:
        assert took_s >= 0
        self.looks.append(look)

    def usage(self, logs_now: list[LogUsage]) -> None:
        assert logs_now == []

    def unconfirmed(self, look: UnconfirmedCheck) -> None:
        assert look.stopped == ""
        self.looks_at_new += 1

    def suspended(self, what: set[str]) -> None:
        assert what is not None


@dataclass
class Bookie:
    """Index and metadata: ledgers 0..9, of which metadata lists the even ones, and counts on us for none of these."""

    held: set[int] = field(default_factory=lambda: set(range(10)))
    listed: list[int] = field(default_factory=lambda: list(range(0, 10, 2)))
    deleted: list[int] = field(default_factory=list)
    records: RecordStore = field(default_factory=records_in_memory)
    dropped: list[int] = field(default_factory=list)
    on_list: Any = lambda: None

    def ids(self) -> array[int]:
        return array("q", sorted(self.held))

    def limbo_ids(self) -> set[int]:
        return set()

    def unconfirmed(self) -> tuple[array[int], array[int]]:
        return array("q"), array("q")

    def delete(self, ledger_ids: list[int], reason: str) -> int:
        self.deleted += ledger_ids
        self.held -= set(ledger_ids)
        return len(ledger_ids)

    def settled(self, cursor: int) -> tuple[list[tuple[int, int]], int]:
        return [(one, 1) for one in sorted(self.held)], 0

    def drop(self, copies: Sequence[tuple[int, int]], reason: str) -> int:
        self.dropped += [one for one, _ in copies]
        return len(copies)

    def instance_id(self) -> str:
        return "cluster-1"

    def list_ledgers(self, after: int = -1, count_max: int = 1000) -> list[int]:
        self.on_list()
        return [one for one in self.listed if one > after]

    def read_ledgers(self, ledger_ids: Sequence[int]) -> list[VersionedLedger | None]:
        return [
            VersionedLedger(OTHERS if one else MINE, 1) if one in self.listed else None
            for one in ledger_ids
        ]


@dataclass
class Harness:
    line: Line
    bookie: Bookie
    disk: Disk
    report: Report
    control: Control
    work: Scheduler

    def live(self, seconds: float) -> None:
        end_s = self.line.now_s + seconds
        while self.line.now_s < end_s:
            self.disk.now_s = self.line.now_s
            self.disk.tick()
            self.control.wait(max(0.001, min(self.work.step(), end_s - self.line.now_s)))


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Harness:
    line, bookie, disk, report = Line(), Bookie(), Disk({}), Report()
    monkeypatch.setattr("time.monotonic", lambda: line.now_s)

    def now_s() -> float:
        return line.now_s

    control = Control(line, report.suspended)
    cluster = Cluster(bookie)  # type: ignore[arg-type]
    collector = DeadLedgers(bookie, bookie, cluster, RateLimit(5.0, control.pause, now_s))  # type: ignore[arg-type]
    copies = CopiesWatch(
        bookie,
        bookie,
        cluster,
        ME,
        RateLimit(1e9, control.pause, now_s),
        collector.rules,
        200.0,
        now_s,  # type: ignore[arg-type]
    )
    compactor = Compactor(disk, CompactionSettings(bytes_per_s=10), now_s)
    pace = RateLimit(1e9, control.pause, now_s)
    unconfirmed = UnconfirmedWatch(bookie, bookie, cluster, ME, pace, pace, 100.0, 100, now_s)  # type: ignore[arg-type]
    work = Scheduler(
        control,
        report,
        collector,
        LimboWatch(bookie, bookie, ME),
        unconfirmed,
        copies,
        [compactor],
        10.0,
        100.0,
        now_s,  # type: ignore[arg-type]
    )
    return Harness(line, bookie, disk, report, control, work)


def test_ledgers_are_looked_for_at_intervals_and_copies_in_rounds(harness: Harness) -> None:
    harness.live(9)
    assert harness.report.cycles == []
    harness.live(70)
    assert sorted(harness.bookie.deleted) == [1, 3, 5, 7, 9]
    assert harness.bookie.dropped == []
    assert {"", "listing the ledgers in metadata"} <= {each["doing"] for each in harness.line.told}
    harness.live(300)
    assert sorted(harness.bookie.dropped) == [2, 4, 6, 8]


def test_a_long_listing_makes_the_next_one_wait(harness: Harness) -> None:
    """A million ledgers: listing must not become all that gc and the metadata store do."""
    harness.bookie.on_list = lambda: setattr(harness.line, "now_s", harness.line.now_s + 15.0)
    harness.live(2000)
    took_s = 2 * 15.0
    assert 2 <= len(harness.report.cycles) <= 2 + 2000 / (BUSY_SHARE * took_s)


def test_an_outage_of_metadata_makes_no_later_look_wait(harness: Harness) -> None:
    """Before, ten seconds without an answer were followed by 200 in which gc did not see a hold, either."""

    def no_answer() -> None:
        harness.line.now_s += 10.0
        raise MetadataUnavailable("it does not answer within 10 s")

    harness.bookie.on_list = no_answer
    harness.live(30)
    assert harness.report.cycles[-1].unanswered
    harness.bookie.on_list = lambda: None
    harness.live(3 * harness.work.interval_s)
    assert not harness.report.cycles[-1].stopped


def test_a_suspension_cuts_a_look_off_and_lasts(harness: Harness) -> None:
    harness.live(10.5)
    assert len(harness.report.cycles) == 1
    harness.bookie.on_list = lambda: harness.line.orders.append(
        {"type": "gc_suspend", "what": [LEDGERS]}
    )
    harness.live(200)
    assert len(harness.report.cycles) == 1, "the second look was cut off in its first pause"
    harness.bookie.on_list = lambda: None
    harness.live(500)
    assert harness.bookie.deleted == []
    assert harness.line.told[-1]["suspended"] == [LEDGERS]
    harness.line.orders.append({"type": "gc_resume", "what": [LEDGERS]})
    harness.live(500)
    assert sorted(harness.bookie.deleted) == [1, 3, 5, 7, 9]
    assert harness.line.told[-1]["suspended"] == []


def test_an_operator_s_run_happens_at_once_even_if_suspended(harness: Harness) -> None:
    harness.line.orders.append({"type": "gc_suspend", "what": [LEDGERS, MINOR, MAJOR]})
    for number in (1, 2):
        harness.line.orders.append({"type": "gc_run", "what": [LEDGERS], "number": number})
        harness.live(6)
        assert harness.work.run_done == number
    assert sorted(harness.bookie.deleted) == [1, 3, 5, 7, 9]
    assert harness.line.told[-1]["run_done"] == 2
    assert harness.line.told[-1]["cycle"]["deleted"] == 5


def test_the_end_of_a_run_is_told_at_once(harness: Harness) -> None:
    """Somebody waits for it; and nothing that is new stays untold while gc rests."""
    for number in (1, 2, 3):
        harness.line.orders.append({"type": "gc_run", "what": [LEDGERS], "number": number})
        harness.control.wait(0.0)
        harness.work.step()
        assert harness.line.told[-1]["run_done"] == number
    harness.control.suspended.add(MINOR)
    assert harness.work.step() <= 0.5
    harness.live(1)
    assert harness.line.told[-1]["suspended"] == [MINOR]


def test_a_compaction_that_was_asked_for_is_done_when_it_is(harness: Harness) -> None:
    harness.report.usage = lambda logs_now: None  # type: ignore[method-assign]
    harness.disk.logs = {1: (50, 1000)}
    harness.line.orders.append({"type": "gc_run", "what": [MINOR], "number": 7})
    harness.live(3)
    assert harness.work.run_done == 0
    assert harness.disk.recounts == 1
    harness.live(9)
    assert harness.work.run_done == 7
    (run,) = harness.line.told[-1]["compactions"]
    assert (run["kind"], run["running"], run["moved_bytes"]) == (MINOR, False, 50)


def test_a_compaction_has_its_turn_however_often_somebody_asks_for_a_look(harness: Harness) -> None:
    harness.report.usage = lambda logs_now: None  # type: ignore[method-assign]
    harness.disk.logs = {1: (50, 1000)}
    numbers = itertools.count(8)
    looks = 0

    def ask_again() -> None:
        nonlocal looks
        looks += 1
        assert looks < 1000, "one step looks for ever"
        harness.line.orders.append({"type": "gc_run", "what": [LEDGERS], "number": next(numbers)})
        harness.control.wait(0.0)

    harness.bookie.on_list = ask_again
    harness.line.orders.append({"type": "gc_run", "what": [LEDGERS, MINOR], "number": 7})
    for _ in range(100):
        harness.disk.now_s = harness.line.now_s
        harness.disk.tick()
        harness.control.wait(0.0)
        harness.work.step()
        harness.line.now_s += 1.0
    assert harness.work.run_done > 50
    (run,) = harness.line.told[-1]["compactions"]
    assert (run["kind"], run["running"], run["moved_bytes"]) == (MINOR, False, 50)


def test_one_look_serves_all_who_asked_before_it(harness: Harness) -> None:
    for number in range(1, 6):
        harness.line.orders.append({"type": "gc_run", "what": [LEDGERS], "number": number})
        harness.control.wait(0.0)
    harness.work.step()
    assert len(harness.report.cycles) == 1
    assert harness.work.run_done == 5


def test_an_index_that_is_silent_stops_nothing_else(harness: Harness) -> None:
    harness.report.usage = lambda logs_now: None  # type: ignore[method-assign]
    harness.disk.is_silent = True
    harness.line.orders.append({"type": "gc_run", "what": [MINOR], "number": 7})
    harness.live(60)
    assert harness.report.cycles


def test_draining_ends_it_wherever_it_waits(harness: Harness) -> None:
    harness.bookie.on_list = lambda: harness.line.orders.append({"type": "drain"})
    with pytest.raises(Draining):
        harness.live(100)
    assert harness.line.now_s < 15
