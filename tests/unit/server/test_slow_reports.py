from __future__ import annotations

import pytest

from fastbk.native import flight
from fastbk.native.flight import SlowRecord
from fastbk.server.supervision.slow_reports import (
    CAUSES,
    LOG_INTERVAL_S,
    SHOWN_MAX,
    SlowReports,
    stages,
    verdict,
)

MS = 1_000_000
NOW = 1000 * MS


def commit(
    *, take: int = 0, write: int = 0, behind: int = 0, publish: int = 0, **more: int
) -> SlowRecord:
    """A commit whose stages took so many milliseconds, ending at NOW."""
    completed = NOW - publish * MS
    submitted = completed - write * MS
    free = submitted - take * MS
    times = {
        "received_ns": free - behind * MS,
        "free_ns": free,
        "submitted_ns": submitted,
        "completed_ns": completed,
        "published_ns": NOW,
        "ended_ns": NOW,
        "sampled_ns": free - behind * MS,
    }
    return SlowRecord(kind=flight.COMMIT, **{**times, **more})


def test_the_stages_of_a_commit_are_its_whole_time() -> None:
    record = commit(behind=5, take=7, write=11, publish=2)
    found = {one.name: one.took_ns // MS for one in stages(record)}
    assert found == {"behind": 5, "take": 7, "write": 11, "publish": 2}
    assert sum(found.values()) * MS == record.took_ns


@pytest.mark.parametrize(
    ("record", "cause", "word"),
    [
        (commit(write=50), "disk", "write and sync"),
        (commit(behind=50, write=20), "disk", "before it"),
        (commit(publish=50), "disk", "before it"),
        (commit(take=50), "wake_up", "woke up late"),
        (commit(take=50, flags=flight.TIMED_OUT), "wake_up", "no bell"),
        (commit(take=50, flags=flight.ROLLED), "disk", "next file"),
        (commit(take=50, away_ns=40 * MS), "disk", "files"),
        (commit(take=50, flags=flight.STALLED), "ring", "had not taken"),
        (commit(take=50, delayed_ns=30 * MS), "processor", "30 ms"),
        (commit(write=50, delayed_ns=30 * MS), "processor", "others had it"),
        (commit(write=50, delayed_ns=10 * MS), "disk", "disk"),
        (commit(write=50, delayed_ns=30 * MS, sampled_ns=NOW - 80 * MS), "disk", "disk"),
        (commit(write=50, delayed_ns=50 * MS, sampled_ns=NOW - 150 * MS), "processor", "others"),
        (commit(take=50, delayed_ns=49 * MS, sampled_ns=NOW - 90 * MS), "processor", "others"),
        (commit(take=20, write=40, delayed_ns=20 * MS), "disk", "disk"),
        (commit(take=50, processor_ns=45 * MS), "processor", "itself worked"),
        (commit(write=50, continued_ns=NOW), "stopped", "SIGSTOP"),
        (commit(take=50, continued_ns=NOW - 1), "stopped", "SIGSTOP"),
        (commit(write=50, continued_ns=NOW - 60 * MS), "disk", "long before"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_cause_of_a_slow_commit(record: SlowRecord, cause: str, word: str) -> None:
    found = verdict(record)
    assert found.cause == cause
    assert word == "long before" or word in found.reason


@pytest.mark.parametrize(
    ("kind", "more", "cause"),
    [
        (flight.ANSWER, {}, "wake_up"),
        (flight.ANSWER, {"delayed_ns": 25 * MS}, "processor"),
        (flight.ANSWER, {"continued_ns": NOW}, "stopped"),
        (flight.WAIT, {}, "ring"),
        (flight.WAIT, {"delayed_ns": 30 * MS, "processor_ns": 30 * MS}, "ring"),
        (flight.WAIT, {"flags": flight.CREDIT}, "ring"),
        (flight.INTAKE, {}, "wake_up"),
        (flight.INTAKE, {"flags": flight.FULL}, "disk"),
        (flight.PAUSE, {}, "stopped"),
    ],
)
def test_the_cause_of_other_records(kind: int, more: dict[str, int], cause: str) -> None:
    began_ns = NOW - 40 * MS
    record = SlowRecord(kind=kind, received_ns=began_ns, sampled_ns=began_ns, ended_ns=NOW, **more)
    assert verdict(record).cause == cause


def test_without_the_kernels_word_on_delays_nothing_is_blamed_on_processors() -> None:
    assert verdict(commit(take=50, flags=flight.NO_DELAY)).cause == "wake_up"


def test_log_lines_are_few_and_count_what_they_leave_out(capfd: pytest.CaptureFixture[str]) -> None:
    reports = SlowReports()
    for n in range(40):
        reports.take("journal", [commit(write=20 + n)], 0, 100.0 + n / 100)
    assert capfd.readouterr().err.count("journal.slow_commit") == 1
    reports.take("journal", [], 0, 100.0 + LOG_INTERVAL_S)
    (line,) = capfd.readouterr().err.splitlines()
    assert '"count":39' in line and '"took_ms":59.0' in line and '"verdict":"disk"' in line
    reports.take("journal", [commit(take=30)], 0, 100.1 + LOG_INTERVAL_S)
    assert '"verdict":"wake_up"' in capfd.readouterr().err, "another cause is said at once"
    reports.take("journal", [], 0, 1000.0)
    assert capfd.readouterr().err == ""


async def test_counts_are_by_cause_and_what_is_shown_is_bounded() -> None:
    reports = SlowReports()
    reports.take("journal", [commit(write=20)] * 100, 7, 1.0)
    reports.take("index", [SlowRecord(kind=flight.INTAKE, received_ns=0, ended_ns=NOW)], 0, 1.0)
    reports.take(
        "worker.0", [SlowRecord(kind=flight.WAIT, received_ns=0, ended_ns=30 * MS)], 0, 1.0
    )
    assert reports.counts == dict.fromkeys(CAUSES, 0) | {"disk": 100, "ring": 1}
    said = await reports.answer({})
    assert isinstance(said, dict)
    assert len(said["records"]) == SHOWN_MAX and said["lost"] == 7
    assert said["last"]["process"] == "worker.0" and said["longest_ms"]["disk"] == 20.0
    assert 'fastbk_supervisor_slow_total{cause="disk"} 100' in reports.metric_lines()
    assert 'fastbk_supervisor_slow_total{cause="other"} 1' in reports.metric_lines()
