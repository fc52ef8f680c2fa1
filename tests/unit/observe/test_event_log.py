"""What of a process's log becomes an event, and how it is read again."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.observe import event_log, logs
from fastbk.observe.event_log import BURST_S, EventLog, read_events
from fastbk.observe.events import VALUES_BYTES_MAX, Query
from tests.fixtures.wait import wait_until


class Clock:
    """Moments that a test sets."""

    def __init__(self) -> None:
        self.s = 1_800_000_000.0

    def now(self) -> float:
        return self.s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock) -> Iterator[EventLog]:
    made = EventLog("b-1", "supervisor", clock.now, clock.now)
    made.begin()
    yield made
    made.close()


def names(log: EventLog, **query: object) -> list[str]:
    return [one.event for one in log.read(Query(**query)).events]  # type: ignore[arg-type]


def test_lines_that_are_changes_of_state_are_recorded_whatever_the_level_is(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_level", logs.LEVELS["error"])
    logs.info("bookie.started", port=1)
    logs.info("worker.ready")
    logs.warning("disk.slow", reason="half of the commits take 300 ms or more")
    page = log.read(Query())
    assert [(one.event, one.kind, one.level) for one in page.events] == [
        ("bookie.started", "start", "info"),
        ("disk.slow", "disk", "warning"),
    ]
    assert page.events[0].values == {"port": 1}
    assert (page.source, page.is_complete, page.next) == ("b-1", True, page.events[1].number)


def test_nothing_is_recorded_after_the_end(log: EventLog) -> None:
    log.close()
    logs.info("bookie.started")
    assert names(log) == []


def test_events_of_one_kind_are_bounded_and_counted(log: EventLog, clock: Clock) -> None:
    for _ in range(1000):
        logs.warning("disk.slow")
    logs.warning("disk.changed")
    found = names(log)
    assert found.count("disk.changed") == 1
    assert BURST_S <= found.count("disk.slow") <= BURST_S + 1
    page = log.read(Query())
    assert page.dropped == 1000 - found.count("disk.slow")
    clock.s += 2
    logs.warning("disk.slow")
    assert log.read(Query()).events[-1].dropped == page.dropped
    assert f"fastbk_events_dropped_total {page.dropped}" in log.metric_lines()


def test_long_values_are_cut(log: EventLog) -> None:
    logs.error("process.failed", reason="it failed", trace="x" * 100_000, other=object())
    (event,) = log.read(Query()).events
    assert len(event.line()) < VALUES_BYTES_MAX
    assert event.values["reason"] == "it failed"


def test_events_before_the_file_is_open_are_in_it(log: EventLog, tmp_path: Path) -> None:
    logs.info("bookie.asked_to_stop")
    path = tmp_path / "events.jsonl"
    log.open(path, may_make=False)
    assert not path.exists()
    log.open()
    logs.info("bookie.stopped")
    log.close()
    assert [one.event for one in read_events(path)] == ["bookie.asked_to_stop", "bookie.stopped"]


def test_numbers_rise_over_restarts_though_the_clock_is_put_back(
    clock: Clock, tmp_path: Path
) -> None:
    path, last = tmp_path / "events.jsonl", 0
    for _ in range(3):
        log = EventLog("b-1", "supervisor", clock.now, clock.now)
        log.begin()
        logs.info("bookie.started")
        log.open(path)
        logs.info("bookie.stopped")
        page = log.read(Query(after=last))
        assert [one.event for one in page.events] == ["bookie.started", "bookie.stopped"]
        assert page.next > last
        last = page.next
        log.close()
        clock.s -= 3600
    assert len(list(read_events(path))) == 6


def test_a_reader_goes_on_where_it_was(log: EventLog) -> None:
    for name in (
        "bookie.started",
        "disk.slow",
        "disk.quick_again",
        "bookie.stopped",
        "disk.changed",
    ):
        logs.info(name)
    found: list[str] = []
    after, is_complete = 0, False
    while not is_complete:
        page = log.read(Query(after=after, limit=2, kinds=frozenset({"disk"})))
        found += [one.event for one in page.events]
        after, is_complete = page.next, page.is_complete
    assert found == ["disk.slow", "disk.quick_again", "disk.changed"]
    assert names(log, after=after) == []
    assert names(log, limit=2, is_newest=True) == ["bookie.stopped", "disk.changed"]


def test_a_reader_of_files_that_are_gone_begins_anew(log: EventLog) -> None:
    logs.info("bookie.started")
    assert log.read(Query(after=2**62)).next == log.read(Query()).next


def test_what_memory_does_not_hold_is_read_from_the_file(
    log: EventLog, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "MEMORY_EVENTS_MAX", 3)
    small = EventLog("b-1", "supervisor", clock.now, clock.now)
    small.open(tmp_path / "events.jsonl")
    for _ in range(10):
        clock.s += 1
        small.take("info", "disk.slow", {})
    path = tmp_path / "events.jsonl"
    wait_until(lambda: len(list(read_events(path))) == 10, "ten events are in the file")
    times = [one.time for one in small.read(Query()).events]
    assert len(times) == 10
    assert len(small.read(Query(since=times[2])).events) == 8
    assert len(small.read(Query(limit=5, is_newest=True)).events) == 5
    small.close()


def test_events_that_cannot_be_written_are_in_memory_and_counted(
    log: EventLog, tmp_path: Path
) -> None:
    log.open(tmp_path / "events.jsonl")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        logs.warning("disk.slow")
        wait_until(lambda: log.read(Query()).unwritten == 1, "the event is counted")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(log) == ["disk.slow"]
    logs.warning("disk.changed")
    log.close()
    assert [one.event for one in read_events(tmp_path / "events.jsonl")] == ["disk.changed"]


def test_a_directory_that_is_missing_is_logged_and_not_made(
    log: EventLog, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.open(tmp_path / "missing" / "events.jsonl")
    logs.info("bookie.started")
    assert names(log) == ["bookie.started"]
    assert "events.not_written" in capfd.readouterr().err
    assert not os.path.exists(tmp_path / "missing")


class Child:
    name = "worker.3"


def test_a_child_records_known_events_under_its_own_name_only(log: EventLog) -> None:
    for message in (
        {
            "level": "info",
            "event": "ledger.fenced",
            "values": {"ledger": 7},
            "process": "journal",
            "number": 1,
        },
        {"level": "info", "event": "no.such"},
        {"level": ["info"], "event": "ledger.fenced"},
        {"level": "info", "event": "ledger.fenced", "values": "text"},
    ):
        log.take_message(Child(), message)
    found = log.read(Query()).events
    assert [(one.process, one.values) for one in found] == [
        ("worker.3", {"ledger": 7}),
        ("worker.3", {}),
    ]


def test_text_that_no_encoding_takes_ends_neither_who_logs_nor_the_thread(
    log: EventLog, tmp_path: Path
) -> None:
    log.open(tmp_path / "events.jsonl")
    logs.warning("disk.slow", reason="a\ud800b")
    wait_until(lambda: list(read_events(tmp_path / "events.jsonl")), "the event is in the file")
    (event,) = read_events(tmp_path / "events.jsonl")
    assert event.values == {"reason": r"a\ud800b"}
