from typing import Any

import pytest

from fastbk.overview.bookie_history import (
    FORECAST_MIN_S,
    NAMES,
    SAMPLES_MAX,
    BookieHistory,
    BookieSample,
    MetricText,
)
from fastbk.overview.values import DOWN, NO_ANSWER, BookieRow, JournalFiles, LastEvent, Severity

GIB = 1 << 30


def page(
    *,
    entries: int = 0,
    size_bytes: int = 0,
    commits: tuple[int, int, int] = (0, 0, 0),
    started_s: float = 100.0,
    restarts: int = 0,
    more: str = "",
) -> MetricText:
    """`commits`: how many took at most 1 ms, at most 33 ms, in all."""
    quick, slow, total = commits
    return MetricText.parse(
        f"fastbk_journal_entries_total {entries}\n"
        f"fastbk_index_entry_bytes_total {size_bytes}\n"
        f"fastbk_supervisor_start_time_seconds {started_s}\n"
        f"fastbk_supervisor_restarts_total {restarts}\n"
        f'fastbk_journal_commit_seconds_bucket{{le="0.001"}} {quick}\n'
        f'fastbk_journal_commit_seconds_bucket{{le="0.0168"}} {quick}\n'
        f'fastbk_journal_commit_seconds_bucket{{le="0.0336"}} {slow}\n'
        f'fastbk_journal_commit_seconds_bucket{{le="+Inf"}} {total}\n' + more,
        NAMES,
    )


def info(free_bytes: int = 50 * GIB, **more: Any) -> dict[str, Any]:
    disk = {"pair": 0, "state": "ok", "takes": "all", "slow": "", "used_ratio": 0.8}
    return {
        "state": "writable",
        "reason": "serving",
        "state_seconds": 5.0,
        "disks": [
            {**disk, "role": "journal", "directory": "/j", "free_bytes": 10 * GIB},
            {**disk, "role": "ledger", "directory": "/l", "free_bytes": free_bytes},
        ],
        **more,
    }


def row_of(*samples: BookieSample) -> BookieRow:
    history = BookieHistory("b1")
    for one in samples:
        history.add(one)
    return history.row(samples[-1].at_s)


def problem_texts(row: BookieRow) -> list[str]:
    return [one.text for one in row.problems]


def test_one_sample_has_no_rates() -> None:
    row = row_of(BookieSample(0.0, page(entries=500, commits=(9, 9, 9)), info()))
    assert row.adds_per_s is None
    assert row.commit is None
    assert row.severity is Severity.OK


def test_rates_are_of_the_last_five_seconds() -> None:
    samples = [
        BookieSample(float(at_s), page(entries=entries, size_bytes=10 * entries), info())
        for at_s, entries in [(0, 0), (2, 9000), (4, 9100), (6, 9200), (8, 9300), (10, 9400)]
    ]
    row = row_of(*samples)
    assert row.adds_per_s == pytest.approx(50)
    assert row.add_bytes_per_s == pytest.approx(500)


def test_a_journal_delayed_by_30_ms_is_a_problem_within_two_polls() -> None:
    row = row_of(
        BookieSample(0.0, page(commits=(900, 900, 900)), info()),
        BookieSample(2.0, page(commits=(900, 960, 960)), info()),
    )
    assert row.commit is not None
    assert 0.0168 < row.commit.p50_s < row.commit.p99_s <= 0.0336
    assert row.severity is Severity.WARN
    assert problem_texts(row) == ["slow journal: commit p99 33.4 ms"]
    assert row.slowest_disk is not None
    assert row.slowest_disk.directory == "/j"


def test_two_slow_commits_are_no_problem() -> None:
    row = row_of(
        BookieSample(0.0, page(commits=(900, 900, 900)), info()),
        BookieSample(2.0, page(commits=(900, 902, 902)), info()),
    )
    assert row.severity is Severity.OK


def test_counters_that_began_anew_are_not_compared() -> None:
    samples = [
        BookieSample(0.0, page(entries=9000), info()),
        BookieSample(2.0, page(entries=9500, restarts=1), info()),
    ]
    assert row_of(*samples).adds_per_s is None
    samples.append(BookieSample(4.0, page(entries=9700, restarts=1), info()))
    assert row_of(*samples).adds_per_s == pytest.approx(100)


def test_silence_is_the_worst_and_keeps_nothing_of_before() -> None:
    history = BookieHistory("b1")
    history.add(BookieSample(0.0, page(entries=5), info(software="fastbk 1")))
    history.note_silence("no answer within 1.5 s", 2.0)
    history.note_silence("refused", 4.0)
    row = history.row(5.0)
    assert row.state == NO_ANSWER
    assert row.severity is Severity.BAD
    assert problem_texts(row) == ["no answer for 3 s: refused"]
    assert row.adds_per_s is None
    assert row.age_s == 5.0
    history.add(BookieSample(6.0, page(entries=9), info()))
    assert history.row(6.0).severity is Severity.OK


def test_a_known_bookie_without_a_registration_is_down() -> None:
    history = BookieHistory("b1")
    history.note_unregistered(1.0)
    assert history.row(2.0).state == DOWN
    assert history.row(2.0).severity is Severity.BAD


def test_the_forecast_is_bytes_written_at_first_and_the_trend_of_free_space_later() -> None:
    history = BookieHistory("b1")
    history.add(BookieSample(0.0, page(), info(free_bytes=50 * GIB)))
    history.add(BookieSample(2.0, page(size_bytes=2 * GIB), info(free_bytes=50 * GIB)))
    assert history.row(2.0).full_in_s == pytest.approx(50)
    # gc gives half of it back: after a minute that shows.
    for at_s in range(10, int(FORECAST_MIN_S) + 20, 10):
        free_bytes = 50 * GIB - at_s * GIB // 20
        history.add(BookieSample(float(at_s), page(size_bytes=at_s * GIB), info(free_bytes)))
    row = history.row(70.0)
    assert row.full_in_s == pytest.approx((50 - 3.5) * 20, rel=0.02)
    assert any("full in" in text for text in problem_texts(row))


def test_a_disk_that_does_not_fill_up_has_no_forecast() -> None:
    samples = [BookieSample(float(at_s), page(), info()) for at_s in range(0, 100, 5)]
    assert row_of(*samples).full_in_s is None


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        ("fastbk_journal_adopt_reason 0\n", ""),
        ("fastbk_journal_adopt_reason 5\n", "small batches"),
        ("fastbk_journal_adopt_reason 99\n", "reason 99"),
        (
            'fastbk_journal_adopt_reason{pair="0"} 0\n'
            'fastbk_journal_adopt_reason{pair="1"} 3\n'
            'fastbk_journal_adopt_reason{pair="2"} 5\n',
            "J1 other disk, J2 small batches",
        ),
    ],
)
def test_journal_files_are_added_up_and_each_journal_has_its_reason(
    reasons: str, text: str
) -> None:
    more = (
        'fastbk_index_adopted_bytes_total{pair="0"} 3000\n'
        'fastbk_index_adopted_bytes_total{pair="1"} 4000\n'
        "fastbk_index_flush_copied_bytes_total 900\n"
        "fastbk_journal_free_bytes 800\n" + reasons
    )
    row = row_of(BookieSample(0.0, page(size_bytes=9000, more=more), info()))
    assert row.journal_files == JournalFiles(9000, 7000, 900, 800, text)
    assert row.severity is Severity.OK, "it is no problem"


def test_nothing_is_said_of_an_older_bookies_journal_files() -> None:
    assert row_of(BookieSample(0.0, page(), info())).journal_files is None


@pytest.mark.parametrize(
    ("more", "changes", "severity", "text"),
    [
        ("fastbk_supervisor_frozen 1\n", {}, Severity.BAD, "a process stands still"),
        ("", {"state": "replaying", "reason": "reads"}, Severity.BAD, "replaying: reads"),
        (
            "",
            {"state": "read_only", "reason": "an operator"},
            Severity.WARN,
            "read-only: an operator",
        ),
        ("", {"limbo": 3}, Severity.BAD, "limbo: 3 ledgers lost data here"),
        ("", {"quarantined": 2}, Severity.BAD, "damaged: 2 ranges wait for repair"),
        ("fastbk_worker_adds_blocked 4\n", {}, Severity.NOTE, "4 connections wait for room"),
        (
            "",
            {
                "conditions": [
                    {"name": "metadata_hold", "concerns": "metadata", "reason": "rolled back"}
                ]
            },
            Severity.WARN,
            "metadata is on hold: deletes nothing",
        ),
        (
            "",
            {
                "conditions": [
                    {"name": "metadata", "concerns": "metadata", "reason": "ZooKeeper is away"}
                ]
            },
            Severity.WARN,
            "not ready: ZooKeeper is away",
        ),
    ],
)
def test_each_condition_is_a_problem(
    more: str, changes: dict[str, Any], severity: Severity, text: str
) -> None:
    row = row_of(BookieSample(0.0, page(more=more), info(**changes)))
    assert row.severity is severity
    assert problem_texts(row) == [text]


def test_a_disk_that_refuses_is_bad_and_comes_first() -> None:
    facts = info(limbo=1)
    facts["disks"][1].update(state="full", takes="repairs")
    row = row_of(BookieSample(0.0, page(), facts))
    assert problem_texts(row) == [
        "ledger disk full, takes repairs",
        "limbo: 1 ledgers lost data here",
    ]
    assert row.severity is Severity.BAD


def test_the_sickest_sorts_first_and_healthy_ones_by_name() -> None:
    slow = row_of(
        BookieSample(0.0, page(commits=(9, 9, 9)), info()),
        BookieSample(2.0, page(commits=(9, 99, 99)), info()),
    )
    bad = row_of(BookieSample(0.0, page(more="fastbk_supervisor_frozen 1\n"), info()))
    healthy = [BookieRow("a", "writable"), BookieRow("c", "writable")]
    rows = sorted([*healthy, slow, bad], key=lambda one: one.sickness())
    assert rows == [bad, slow, *healthy]


def test_a_history_is_bounded() -> None:
    history = BookieHistory("b1")
    for n in range(20 * SAMPLES_MAX):
        history.add(BookieSample(n / 1000, page(entries=n), info()))
    assert len(history._samples) == SAMPLES_MAX


def test_the_last_event_is_the_newest_of_its_page() -> None:
    event = {
        "number": 9, "time": "2026-11-28T03:12:00.250000Z", "kind": "stall", "event": "journal.slow",
        "level": "warning", "source": "b1", "process": "journal", "values": {"reason": "30 ms a commit"},
    }  # fmt: skip
    page_of_events = {"source": "b1", "events": [event], "next": 9, "is_complete": True}
    row = row_of(BookieSample(0.0, page(), info(), {}, page_of_events))
    assert row.last_event == LastEvent(1795835520.25, "journal.slow: 30 ms a commit", "stall")
    assert (
        row_of(BookieSample(0.0, page(), info(), {}, {"events": "of a later version"})).last_event
        is None
    )
