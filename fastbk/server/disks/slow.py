"""When a disk is called slow: by what the bookie's own commits and flushes took. Pure.

Slowness refuses nothing and takes nothing back: every queue in front of a disk is bounded, so clients just wait. It is
said, so that somebody replaces the disk before it fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.units import MIB

if TYPE_CHECKING:
    from fastbk.native.stats import Histogram

COMMITS_MIN = 10
"""Fewer commits between two looks prove nothing."""
FLUSH_BYTES_MIN = 8 * MIB
"""The time of a smaller flush is that of its syncs."""


class CommitSpeed:
    """Compares the commits since the last look with what they may take."""

    def __init__(self, slow_ns: int) -> None:
        """`slow_ns`: a disk that takes longer for half of its commits is slow."""
        self._slow_ns = slow_ns
        self._before: Histogram | None = None
        self._is_stuck = False
        self.said = ""
        """Why the disk is slow, empty if it is not."""

    def check(self, commits: Histogram, waits_ns: int) -> str:
        """Return why the disk is slow now; as before, when too few commits came since.

        Args:
            commits: all of them, in nanoseconds. waits_ns: how long one has been under way by now; 0 for none.
        """
        new = commits if self._before is None else commits.minus(self._before)
        if waits_ns > self._slow_ns:
            self._is_stuck = True
            self.said = f"a commit has been under way for {waits_ns / 1e9:.1f} s"
            return self.said
        if self._is_stuck:
            self._is_stuck, self.said = False, ""
        if sum(new.buckets) >= COMMITS_MIN:
            self._before = commits
            half_ns = new.percentile(50)
            self.said = (
                f"half of the commits take {half_ns / 1e6:.0f} ms or more"
                if half_ns > self._slow_ns
                else ""
            )
        return self.said


def slow_flush(size_bytes: int, took_s: float, bytes_per_s_min: int) -> str | None:
    """Return why a flush shows a slow disk, empty if it shows a quick one, None if it shows nothing."""
    if size_bytes < FLUSH_BYTES_MIN or took_s <= 0:
        return None
    rate = size_bytes / took_s
    if rate >= bytes_per_s_min:
        return ""
    return (
        f"the last flush wrote {rate / MIB:.1f} MiB/s ({size_bytes // MIB} MiB in {took_s:.1f} s)"
    )
