"""When the commits of a journal count as slow, and as quick again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fastbk.native.segment import BUCKET_COUNT, Histogram, bucket_from
from fastbk.observe import logs
from fastbk.server.supervision.monitor import LOGGED_S, QUICK_S, WINDOW_S, JournalStalls

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
