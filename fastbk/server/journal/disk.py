"""What the journal makes of its directory's disk: what is refused meanwhile, and what is told of it.

A write or sync that fails is not for here: it ends that file's life and the process (INV-J2).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastbk.observe.names import SLOTS
from fastbk.storage.disk_health import Takes

if TYPE_CHECKING:
    from fastbk.native.journal import Journal
    from fastbk.native.segment import Histogram, Stats
    from fastbk.server.disks.disk_watch import DiskWatch
    from fastbk.storage.journal_files import JournalPool

LOOK_INTERVAL_S = 0.25
SPEED_INTERVAL_S = 1.0
NEXT_FILE = "making the next file"


class JournalDisk:
    """The journal directory's disk, as the journal's loop asks about it."""

    def __init__(
        self, watch: DiskWatch, journal: Journal, stats: Stats, *, slow_commit_ms: int
    ) -> None:
        """`stats`: those of the journal's own segment. `slow_commit_ms`: half of the commits may take that long."""
        self.watch = watch
        self._journal = journal
        self._stats = stats
        self._speed = CommitSpeed(slow_commit_ms * 1_000_000)
        self._next_look_s = 0.0
        self._next_speed_s = 0.0
        self._failure = ""
        self._published = 0
        self._published_s = time.monotonic()

    @property
    def takes(self) -> Takes:
        """What may be written because of the disk."""
        return self.watch.takes

    def may_make_files(self) -> bool:
        """Return whether the directory is where it was (INV-D2): asked before each change of a file's name."""
        self.watch.poll_now()
        return not self.watch.is_gone

    def poll(self, pool: JournalPool) -> None:
        """Take in what happened since the last look."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        self.watch.poll()
        self.watch.no_room(pool.no_room)
        if pool.failure != self._failure:
            self._failure = pool.failure
            if self._failure:
                self.watch.failed(NEXT_FILE, self._failure)
            else:
                self.watch.worked(NEXT_FILE)
        if now_s >= self._next_speed_s:
            self._next_speed_s = now_s + SPEED_INTERVAL_S
            self._look_at_speed(now_s)

    def _look_at_speed(self, now_s: float) -> None:
        status = self._journal.status
        if status.published_sequence != self._published or not status.in_flight:
            self._published, self._published_s = status.published_sequence, now_s
        waits_ns = int((now_s - self._published_s) * 1e9)
        commits = self._stats.histogram(SLOTS["FBK_H_JOURNAL_COMMIT_NS"])
        self.watch.set_slow(self._speed.check(commits, waits_ns))


COMMITS_MIN = 10
"""Fewer commits between two looks prove nothing."""


class CommitSpeed:
    """Compares the commits since the last look with what they may take.

    Slowness refuses nothing: every queue in front of a disk is bounded, so clients just wait. It is reported, so that
    somebody replaces the disk before it fails.
    """

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
