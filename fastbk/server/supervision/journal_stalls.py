"""Finds journals whose commits are slow, within seconds, and when they are quick again: two events.

`journal.slow` means what the alert FastbkCommitsSlow means, 1 of 100 commits over 25 ms, but in windows of 1.5 s. It
refuses nothing. A disk that is far slower for longer is `disk.slow` (`[disk] slow_commit`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.observe import logs

if TYPE_CHECKING:
    from fastbk.native.segment import Histogram

SLOW_NS = 25_000_000
VERY_SLOW_NS = 250_000_000
WINDOW_S = 1.5
WINDOWS_SLOW = 2
"""In a row, and a journal is slow: one late commit is none. A very slow one is."""
QUICK_S = 10.0
"""Without a slow window, and it is quick again."""
LOGGED_S = 300.0
"""Between two lines that a journal is slow, at least: of a disk at its limit they would hide all other events."""


@dataclass(slots=True)
class _Journal:
    before: Histogram
    window_s: float
    slow_windows: int = 0
    slow_since_s: float | None = None
    last_slow_s: float = 0.0
    worst_ns: int = 0
    logged_s: float | None = None
    """When a line last said that it is slow."""
    times: int = 0
    """It has become slow so often since that line."""
    is_logged: bool = False
    """Whether a line said that it is slow now."""
    reason: str = ""
    """Why it is slow now; "": it is not."""


class JournalStalls:
    """The journals of one bookie, over all its boots."""

    def __init__(self) -> None:
        self._journals: dict[str, _Journal] = {}

    def attach(self) -> None:
        """A boot begins: its journals count from zero, and are not slow yet."""
        self._journals.clear()

    def poll(self, process: str, commits: Histogram, cause: str, now_s: float) -> None:
        """Take in all commits of a journal since it started, in nanoseconds, once or twice a second.

        `cause`: of its last slow commit, a sentence; "": none is known.
        """
        one = self._journals.get(process)
        if one is None:
            self._journals[process] = _Journal(commits, now_s)
            return
        if now_s - one.window_s < WINDOW_S:
            return
        new = commits.minus(one.before)
        one.before, one.window_s = commits, now_s
        p99_ns = new.percentile(99)
        if p99_ns > SLOW_NS:
            one.slow_windows += 1
            one.last_slow_s, one.worst_ns = now_s, max(one.worst_ns, p99_ns)
            if one.slow_since_s is None and (
                one.slow_windows >= WINDOWS_SLOW or p99_ns > VERY_SLOW_NS
            ):
                one.slow_since_s, one.reason = now_s, _reason(p99_ns, cause)
                one.times += 1
                one.is_logged = one.logged_s is None or now_s - one.logged_s >= LOGGED_S
                if one.is_logged:
                    often = {"times": one.times} if one.times > 1 else {}
                    one.logged_s, one.times = now_s, 0
                    logs.warning(
                        "journal.slow",
                        process=process,
                        reason=one.reason,
                        commits=new.count,
                        **often,
                    )
        elif new.count:
            one.slow_windows = 0
        if one.slow_since_s is not None and now_s - one.last_slow_s >= QUICK_S:
            slow_s, worst_ms = one.last_slow_s - one.slow_since_s, round(one.worst_ns / 1e6, 1)
            one.slow_since_s, one.slow_windows, one.worst_ns, one.reason = None, 0, 0, ""
            if one.is_logged:
                slow_s = round(slow_s + WINDOW_S, 1)
                logs.info("journal.quick_again", process=process, slow_s=slow_s, worst_ms=worst_ms)

    @property
    def slow(self) -> str:
        """Which journals are slow now, and why; "": none."""
        return "; ".join(
            f"{name}: {one.reason}" for name, one in self._journals.items() if one.reason
        )


def _reason(p99_ns: int, cause: str) -> str:
    return f"1 of 100 commits takes {p99_ns / 1e6:.0f} ms or more" + (f": {cause}" if cause else "")
