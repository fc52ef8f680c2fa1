"""What the index makes of its ledger directory's disk: what is refused meanwhile, and what is told of it.

A flush is tried five times within some 1.5 s before it counts as failed; until then nothing is refused. From then on
normal adds are, at once: caches and journal still hold what was acknowledged, and the room that is left in them is
better kept for fences and repairs. These go on for ten seconds more. One flush that succeeds ends all of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastbk.observe import logs
from fastbk.storage.disk_health import Takes
from fastbk.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.native.index import Index
    from fastbk.server.disks.disk_watch import DiskWatch
    from fastbk.server.index.flush import Flusher

FLUSH = "the flush"
LOOK_INTERVAL_S = 0.05
FLUSH_BYTES_MIN = 8 * MIB
"""The time of a smaller flush is that of its syncs."""
FLUSH_HANGS_S = 15.0
"""A full cache at the slowest rate that is not called slow takes twelve seconds."""


class IndexDisk:
    """Keeps the index's word to workers and journal in step with the disk."""

    def __init__(
        self,
        index: Index,
        flusher: Flusher,
        watch: DiskWatch,
        *,
        slow_flush_bytes_per_s: int,
        durable_bytes: Callable[[], int],
        loses_states: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with what `watch` has seen.

        Args:
            slow_flush_bytes_per_s: fewer in a flush is a slow disk.
            durable_bytes: of all entry logs, by the newest manifest.
            loses_states: fences may have been forgotten: normal adds are refused for good.
        """
        self.watch = watch
        self._index = index
        self._flusher = flusher
        self._slow_flush_bytes_per_s = slow_flush_bytes_per_s
        self._durable_bytes = durable_bytes
        self._loses_states = loses_states
        self._failure = ""
        self._clock_s = clock_s
        self._flushing_since_s = clock_s()
        self._flushes = flusher.flushes
        self._was_durable_bytes = durable_bytes()
        self._refused = 0
        self._next_look_s = 0.0
        self.poll()

    @property
    def may_flush(self) -> bool:
        """Whether a flush may begin: not where the path leads to somebody else's disk (INV-D2)."""
        return not self.watch.is_gone

    def poll_if_due(self, now_s: float) -> None:
        """Look, but not at every step: a failure is shown for longer than the pause between two looks."""
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + LOOK_INTERVAL_S
            self.poll()

    def poll(self) -> None:
        """Take in what happened since the last look."""
        flusher = self._flusher
        if flusher.failure and flusher.failure is not self._failure:
            self.watch.failed(FLUSH, flusher.failure)
        self._failure = flusher.failure
        now_s = self._clock_s()
        if flusher.flushes != self._flushes or not flusher.is_busy:
            self._flushing_since_s = now_s
        if flusher.flushes != self._flushes:
            self._flushes = flusher.flushes
            self._flushed()
        elif now_s - self._flushing_since_s > FLUSH_HANGS_S and not flusher.failure:
            self.watch.set_slow(f"a flush has been under way for {FLUSH_HANGS_S:.0f} s and more")
        self.watch.poll()
        self._refuse(max(self.watch.takes, Takes.REPAIRS if self._loses_states else Takes.ALL))

    def _flushed(self) -> None:
        self.watch.worked(FLUSH)
        # Between two flushes at most a cache is written: a floor is never passed by more than that unseen.
        self.watch.wake()
        bytes_now = self._durable_bytes()
        said = slow_flush(
            bytes_now - self._was_durable_bytes,
            self._flusher.flush_took_s,
            self._slow_flush_bytes_per_s,
        )
        self._was_durable_bytes = bytes_now
        if said is not None or self.watch.health.slow.startswith("a flush has"):
            self.watch.set_slow(said or "")

    def _refuse(self, takes: Takes) -> None:
        if takes == self._refused:
            return
        self._refused = int(takes)
        self._index.set_reads_only(self._refused)
        logs.warning(
            "index.adds_refused" if takes else "index.adds_taken",
            takes=takes.name.lower(),
            reason=self.watch.health.reason or ("ledger states are lost" if takes else ""),
        )


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
