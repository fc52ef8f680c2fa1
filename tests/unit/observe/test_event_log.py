"""What of a process's log becomes an event, and how it is read again."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastbk.observe import event_log, logs
from fastbk.observe.event_log import BURST_S, EventFile, EventLog, numbered, read_events
from fastbk.observe.events import VALUES_BYTES_MAX, Event, Query
from tests.fixtures.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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


# The files of events: whole lines only, a bounded size, and what a crash leaves.


def event(number: int, text: str = "") -> Event:
    time = f"2026-11-28T03:00:{number % 60:02d}.000000Z"
    return Event(
        number=number, time=time, kind="disk", event="disk.slow", level="warning", source="b-1",
        process="journal", values={"reason": text},
    )  # fmt: skip


def numbers(path: Path) -> list[int]:
    return [one.number for one in read_events(path)]


def test_events_are_read_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    assert file.open(may_make=True)
    for number in (1, 2, 3):
        file.append(event(number, "é\n").line())
    file.close()
    assert list(read_events(path)) == [event(number, "é\n") for number in (1, 2, 3)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_file_is_made_unless_it_may_be(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    assert not file.open(may_make=False)
    assert list(tmp_path.iterdir()) == []
    file.close()


@pytest.mark.parametrize("cut", [1, 20, len(event(2).line()) - 1])
def test_a_line_that_was_cut_short_is_left_out_and_closed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(event(1).line() + event(2).line()[:cut])
    assert numbers(path) == [1]
    file = EventFile(path)
    assert file.open(may_make=False)
    file.append(event(3).line())
    file.close()
    assert numbers(path)[0] == 1
    assert numbers(path)[-1] == 3


def test_lines_that_are_no_events_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        b"[1]\n" + event(1).line() + b"\xff\xfe\n{}\n" + b"[" * 100_000 + b"\n" + event(2).line()
    )
    assert numbers(path) == [1, 2]


def test_files_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    path, line_bytes = tmp_path / "events.jsonl", len(event(10).line())
    file = EventFile(path, size_bytes_max=10 * line_bytes, files_max=3)
    file.open(may_make=True)
    for number in range(10, 99):
        file.append(event(number).line())
    file.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "events.1.jsonl",
        "events.2.jsonl",
        "events.jsonl",
    ]
    assert all(one.stat().st_size <= 10 * line_bytes for one in tmp_path.iterdir())
    kept = numbers(path)
    assert kept == list(range(kept[0], 99))
    assert 21 <= len(kept) <= 30


def test_a_file_that_is_renamed_while_it_is_read_is_read_once(tmp_path: Path) -> None:
    path, line_bytes = tmp_path / "events.jsonl", len(event(10).line())
    file = EventFile(path, size_bytes_max=10 * line_bytes)
    file.open(may_make=True)
    for number in range(10, 25):
        file.append(event(number).line())
    reading = read_events(path)
    found = [next(reading).number]
    for number in range(25, 45):  # two rotations
        file.append(event(number).line())
    file.close()
    found += [one.number for one in reading]
    assert found[:15] == list(range(10, 25))
    assert found == sorted(set(found))
    assert numbered(path, 3).exists()


def test_a_writer_stays_in_the_directory_that_it_opened(tmp_path: Path) -> None:
    """INV-D2: where another directory has come to lie at the path, nothing is made there."""
    folder = tmp_path / "ledgers"
    folder.mkdir()
    file = EventFile(folder / "events.jsonl", size_bytes_max=1)
    file.open(may_make=True)
    file.append(event(1).line())
    folder.rename(tmp_path / "gone")
    folder.mkdir()
    file.append(event(2).line())
    file.close()
    assert list(folder.iterdir()) == []
    assert numbers(tmp_path / "gone" / "events.jsonl") == [1, 2]
