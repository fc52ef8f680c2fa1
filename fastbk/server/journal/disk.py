"""What the journal makes of its directory's disk: what is refused meanwhile, and what is told of it.

A write or sync that fails is not for here: it ends that file's life and the process (INV-J2).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastbk.native.stats import SLOTS
from fastbk.server.disks.slow import CommitSpeed
from fastbk.storage.disk_health import Takes

if TYPE_CHECKING:
    from fastbk.native.journal import Journal
    from fastbk.native.stats import Stats
    from fastbk.server.disks.disk_watch import DiskWatch
    from fastbk.storage.journal_pool import JournalPool

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
