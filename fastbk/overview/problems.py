"""What is wrong with a bookie, by its figures: the rules that put it at the top."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastbk.overview.metric_text import MetricText
from fastbk.overview.values import COMMIT_SLOW_S, BookieRow, Problem, Severity
from fastbk.units import format_age_s, format_duration_us

COMMITS_MIN = 3
"""Fewer commits in the window say nothing about a disk."""
FULL_SOON_S = 86_400.0
USED_MUCH_RATIO = 0.7
"""Full within a day and used by so much: as the alert FastbkDiskNearlyFull."""
_SERVING = ("writable", "read_only")
_SHOWN_ABOVE = ("state", "disk.", "frozen")
"""Conditions that have a problem of their own."""
_TEXT_CHARACTERS_MAX = 200


def problems_of(row: BookieRow, metrics: MetricText, info: dict[str, Any]) -> Iterator[Problem]:
    """Yield the problems of a bookie that answers."""
    if metrics.total("fastbk_supervisor_frozen"):
        yield Problem(Severity.BAD, "a process stands still")
    if metrics.total("fastbk_supervisor_reads_only"):
        yield Problem(Severity.BAD, "reads only after a crash loop: restart it")
    if row.state not in _SERVING:
        yield Problem(Severity.BAD, f"{row.state}: {_short(info.get('reason', ''))}")
    elif row.state == "read_only":
        yield Problem(Severity.WARN, f"read-only: {_short(info.get('reason', ''))}")
    yield from _of_disks(row)
    commit = row.commit
    if commit is not None and commit.count >= COMMITS_MIN and commit.p99_s > COMMIT_SLOW_S:
        yield Problem(
            Severity.WARN, f"slow journal: commit p99 {format_duration_us(commit.p99_s * 1e6)}"
        )
    if row.limbo:
        yield Problem(Severity.WARN, f"limbo: {row.limbo:,} ledgers lost data here")
    if row.quarantined:
        yield Problem(Severity.WARN, f"damaged: {row.quarantined:,} ranges wait for repair")
    if metrics.total("fastbk_supervisor_metadata_on_hold"):
        yield Problem(Severity.WARN, "metadata is on hold: deletes nothing")
    for one in info.get("conditions", ()):
        if not str(one.get("name", "")).startswith(_SHOWN_ABOVE):
            yield Problem(
                Severity.WARN, f"not ready: {_short(one.get('reason') or one.get('name', ''))}"
            )
    if row.blocked:
        yield Problem(Severity.NOTE, f"{row.blocked:,} connections wait for room")


def _of_disks(row: BookieRow) -> Iterator[Problem]:
    for one in row.disks:
        name = f"{one.role} disk" if one.pair == 0 else f"{one.role} disk {one.pair}"
        if one.takes != "all":
            yield Problem(Severity.BAD, f"{name} {one.state}, takes {one.takes}")
        elif one.state != "ok":
            yield Problem(Severity.WARN, f"{name}: {one.state}")
        if one.slow:
            yield Problem(Severity.WARN, f"{name} slow: {_short(one.slow)}")
        if (
            one.full_in_s is not None
            and one.full_in_s < FULL_SOON_S
            and one.used_ratio > USED_MUCH_RATIO
        ):
            yield Problem(Severity.WARN, f"{name} full in {format_age_s(one.full_in_s)}")


def _short(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _TEXT_CHARACTERS_MAX else line[: _TEXT_CHARACTERS_MAX - 1] + "…"
