"""What is wrong with a bookie, by its figures: the rules that put it at the top."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastbk.model.health import BookieFacts, DiskFacts, Verdict, reasons_of_bookie
from fastbk.overview.metric_text import MetricText
from fastbk.overview.values import COMMIT_SLOW_S, BookieRow, Problem, Severity
from fastbk.units import format_age_s, format_duration_us

COMMITS_MIN = 3
"""Fewer commits in the window say nothing about a disk."""
FULL_SOON_S = 86_400.0
USED_MUCH_RATIO = 0.7
"""Full within a day and used by so much: as the alert FastbkDiskNearlyFull."""
SEVERITIES = {
    Verdict.WELL: Severity.NOTE,
    Verdict.DEGRADED: Severity.WARN,
    Verdict.IN_DANGER: Severity.BAD,
    Verdict.DOWN: Severity.BAD,
}


def facts_of(row: BookieRow, metrics: MetricText, info: dict[str, Any]) -> BookieFacts:
    """Return what the verdict about a bookie that answers is made of."""
    commit = row.commit
    is_slow = commit is not None and commit.count >= COMMITS_MIN and commit.p99_s > COMMIT_SLOW_S
    return BookieFacts(
        bookie_id=row.bookie_id,
        state=row.state,
        why=str(info.get("reason", "")),
        is_frozen=bool(metrics.total("fastbk_supervisor_frozen")),
        reads_only=bool(metrics.total("fastbk_supervisor_reads_only")),
        disks=tuple(
            DiskFacts(one.role, one.pair, one.state, one.takes, one.slow) for one in row.disks
        ),
        limbo=row.limbo,
        quarantined=row.quarantined,
        has_damage=bool(info.get("damage_on_record", 0)),
        slow_commits=format_duration_us(commit.p99_s * 1e6)
        if commit is not None and is_slow
        else "",
        conditions=tuple(
            (str(one.get("name", "")), str(one.get("reason", "")))
            for one in info.get("conditions", ())
        ),
    )


def problems_of(row: BookieRow) -> Iterator[Problem]:
    """Yield the problems of a bookie that answers: what the verdict says, and what is worth a look beside it."""
    if row.facts is not None:
        for reason in reasons_of_bookie(row.facts):
            yield Problem(SEVERITIES[reason.verdict], reason.text)
    yield from _of_disks(row)
    if row.blocked:
        yield Problem(Severity.NOTE, f"{row.blocked:,} connections wait for room")


def _of_disks(row: BookieRow) -> Iterator[Problem]:
    for one in row.disks:
        if (
            one.full_in_s is not None
            and one.full_in_s < FULL_SOON_S
            and one.used_ratio > USED_MUCH_RATIO
        ):
            name = f"{one.role} disk" if one.pair == 0 else f"{one.role} disk {one.pair}"
            yield Problem(Severity.NOTE, f"{name} full in {format_age_s(one.full_in_s)}")
