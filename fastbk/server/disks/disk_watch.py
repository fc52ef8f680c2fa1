"""Watches one directory's disk for the process that writes there.

A thread looks (a disk that hangs must not stop the loop): rarely, and often when something is wrong or near. The loop
takes the looks in, adds the failures that it saw itself, and tells the supervisor.

Decision 42.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import StorageError
from fastbk.observe import logs
from fastbk.server.directories import LOCK_NAME
from fastbk.storage.disk_health import DirectorySample, DiskHealth, DiskState, Takes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastbk.storage.disk_health import Thresholds

HUNG_S = 5.0
"""A look that takes longer is told of as a slow disk."""


class DiskReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="disk"):
    """What a process tells of its directory: a control message, and what tools are shown."""

    role: str
    """`journal` or `ledger`."""
    pair: int
    directory: str
    state: str
    """One of `DiskState`."""
    takes: str
    """`all`, `repairs` (recovery adds and fences) or `nothing`."""
    reason: str
    slow: str
    """Why it is called slow; empty: it is not."""
    errors: int
    """Failed flushes and the like since this boot's start."""
    free_bytes: int
    used_bytes: int
    used_ratio: float
    state_since_s: float
    looked_s: float
    """Wall clock, as the one before."""
    journal_files: str = ""
    """What is to be said of journal files that are entry logs, or could be; empty: nothing."""


class DiskWatch:
    """One directory's health, kept up to date. Everything but `_run` belongs to the process's main loop."""

    def __init__(
        self,
        place: DirectoryProbe,
        thresholds: Thresholds,
        *,
        role: str,
        pair: int,
        interval_s: float,
        near_interval_s: float,
        tell: Callable[[DiskReport], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with a look; `start` has more of them made.

        Args:
            role, pair: for reports. interval_s, near_interval_s: between looks, the second when something is wrong or
                about to be. tell: called by `poll` with every new look and change.
        """
        self._place = place
        self._role = role
        self._pair = pair
        self._interval_s = interval_s
        self._near_interval_s = near_interval_s
        self._tell = tell
        self._clock_s = clock_s
        self._wake = threading.Event()
        self._sample: tuple[int, DirectorySample] | None = None
        self._samples_here = 0
        """Taken by `poll_now`. One of the thread's that began before the last of them is older, and left out."""
        self._looking_since_s = 0.0
        self._looked_s = time.time()
        self._is_hung = False
        self._told = ("", "", "")
        self.journal_files = ""
        """A sentence for reports, from whoever writes in the directory."""
        self.health = DiskHealth(thresholds, clock_s())
        self.health.update(place.measure(), clock_s())

    @property
    def takes(self) -> Takes:
        """What may be written."""
        return self.health.takes

    def room_bytes(self) -> int:
        """Return how much is free above the room that replay's flush needs: what merges may take."""
        return self.health.sample.free_bytes - self.health.thresholds.reserve_bytes

    @property
    def is_gone(self) -> bool:
        """Whether the path leads elsewhere: nothing may be made there (INV-D2)."""
        return self.health.state is DiskState.GONE

    def start(self) -> None:
        """Say how it is, and begin to look in a thread that ends with the process."""
        self._change(self.health.state is not DiskState.OK)
        if self.health.state is DiskState.OK:
            self._tell(self.report())
        threading.Thread(target=self._run, name=f"disk.{self._role}", daemon=True).start()

    def wake(self) -> None:
        """Have it looked at soon: something was written, or failed."""
        self._wake.set()

    def poll_now(self) -> None:
        """Look in this thread, where a wait does no harm."""
        self._samples_here += 1
        self._take(self._place.measure())

    def pretend_full(self, on: bool) -> None:
        """Measure no free byte from now on, or (False) what there is again; at once. For applications' tests."""
        self._place.is_full = on
        self.poll_now()

    def failed(self, what: str, reason: str) -> None:
        """Note that `what` could not be written, with all its attempts."""
        self._change(self.health.failed(what, reason, self._clock_s()))
        self.wake()

    def worked(self, what: str) -> None:
        """Note that `what` was written."""
        self._change(self.health.worked(what, self._clock_s()))

    def no_room(self, reason: str) -> None:
        """Note that what has to be made ahead finds no room; empty: it does."""
        self._change(self.health.no_room(reason, self._clock_s()))

    def set_slow(self, reason: str) -> None:
        """Note that the disk is slow, and why; empty: it is not."""
        if bool(reason) != bool(self.health.slow):
            logs.warning(
                "disk.slow" if reason else "disk.quick_again", **self._names(), reason=reason
            )
        self.health.slow = reason

    def poll(self) -> bool:
        """Take a new look in and let time pass; return whether what is taken may have changed."""
        before = self.health.takes
        sample, self._sample = self._sample, None
        if sample is not None and sample[0] == self._samples_here:
            self._take(sample[1])
        else:
            self._change(self.health.tick(self._clock_s()))
        self._see_hanging()
        return self.health.takes is not before

    def report(self) -> DiskReport:
        """Return what is known now."""
        health = self.health
        return DiskReport(
            role=self._role,
            pair=self._pair,
            directory=self._place.directory,
            state=health.state.value,
            takes=health.takes.name.lower(),
            reason=health.reason,
            slow=health.slow,
            errors=health.errors,
            free_bytes=max(0, health.sample.free_bytes),
            used_bytes=health.sample.used_bytes,
            used_ratio=round(health.sample.used_ratio, 4),
            state_since_s=round(time.time() - (self._clock_s() - health.since_s), 1),
            looked_s=round(self._looked_s, 1),
            journal_files=self.journal_files,
        )

    def _take(self, look: DirectorySample) -> None:
        self._looked_s = time.time()
        changed = self.health.update(look, self._clock_s())
        self._change(changed)
        if not changed:
            self._tell(self.report())

    def _change(self, changed: bool) -> None:
        if not changed:
            return
        self.wake()  # the thread may have begun a long pause before it was known that something is wrong
        health = self.health
        log = logs.info if health.state is DiskState.OK else logs.warning
        log(
            "disk.changed",
            **self._names(),
            state=health.state.value,
            takes=health.takes.name.lower(),
            reason=health.reason,
            free_bytes=health.sample.free_bytes,
        )
        self._tell(self.report())

    def _see_hanging(self) -> None:
        since_s = self._looking_since_s
        is_hung = since_s > 0 and self._clock_s() - since_s > HUNG_S
        if is_hung and not self._is_hung:
            self.set_slow(f"it has not answered for {HUNG_S:.0f} s when asked for its free space")
            self._tell(self.report())
        elif self._is_hung and not is_hung:
            self.set_slow("")
        self._is_hung = is_hung

    def _names(self) -> dict[str, object]:
        return {"disk": self._role, "pair": self._pair, "directory": self._place.directory}

    def _run(self) -> None:
        while True:
            self._wake.wait(self._near_interval_s if self.health.is_near else self._interval_s)
            self._wake.clear()
            self._looking_since_s = self._clock_s()
            samples_here = self._samples_here
            sample = self._place.measure()
            self._looking_since_s = 0.0
            self._sample = samples_here, sample


BLOCK_BYTES = 512
"""The unit of `st_blocks`."""


class DirectoryProbe:
    """Measures a directory of a bookie, and checks that its path still leads where it led at the start (INV-D2).

    A file system can vanish under a running bookie: unmounted lazily, or its device gone. Then the path leads to the
    mount point's own folder, on another disk, and an empty journal found there would be taken for one that was lost.
    The supervisor's lock names the right one: its descriptor and the path have to lead to the same file.
    """

    def __init__(
        self,
        directory: str,
        lock: int,
        *,
        neighbours: Sequence[str] = (),
        neighbour_bytes_max: int = 0,
        is_data: Callable[[str, str], bool] = lambda directory, name: False,
    ) -> None:
        """`lock`: stays the caller's.

        `neighbours`: directories of this bookie's, each of which may grow to `neighbour_bytes_max`; what those on the
        same file system still lack does not count as free. `is_data`: whether a file of a neighbour (directory, name)
        is none of those that it grows by, but data for good.
        """
        self.directory = directory
        self._lock = lock
        self._neighbours = neighbours
        self._neighbour_bytes_max = neighbour_bytes_max
        self._is_data = is_data
        self.is_full = False
        """Whether the room that is left counts as used by others (`DiskWatch.pretend_full`)."""

    def measure(self) -> DirectorySample:
        """Return what is to be seen now. Raises nothing: a disk that can't be looked at is gone."""
        gone = self.why_gone()
        if gone:
            return DirectorySample(0, 0, gone=gone)
        try:
            disk = os.statvfs(self.directory)
        except OSError as error:
            return DirectorySample(0, 0, gone=_said(error))
        taken = disk.f_bavail if self.is_full else 0
        return DirectorySample(
            free_bytes=(disk.f_bavail - taken) * disk.f_frsize - self._growth_bytes(),
            used_bytes=(disk.f_blocks - disk.f_bfree + taken) * disk.f_frsize,
            is_read_only=bool(disk.f_flag & os.ST_RDONLY),
        )

    def why_gone(self) -> str:
        """Return why the path does not lead to the directory that was locked; empty: it does (INV-D2)."""
        path = os.path.join(self.directory, LOCK_NAME)
        try:
            ours, there = os.fstat(self._lock), os.stat(path)
        except FileNotFoundError:
            return f"there is no {path} any more: was its disk unmounted?"
        except OSError as error:
            return _said(error)
        if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
            return f"another disk than at the start is mounted at {self.directory}"
        return ""

    def _growth_bytes(self) -> int:
        """Return how much the neighbours are still going to take from the same file system."""
        return sum(map(self._growth_of, self._neighbours))

    def _growth_of(self, neighbour: str) -> int:
        try:
            if os.stat(neighbour).st_dev != os.stat(self.directory).st_dev:
                return 0
            with os.scandir(neighbour) as entries:
                own = (each for each in entries if not self._is_data(neighbour, each.name))
                has_bytes = sum(each.stat().st_blocks for each in own) * BLOCK_BYTES
        except OSError:  # a file that was just renamed, or no disk: the next look is more exact
            return 0
        return max(0, self._neighbour_bytes_max - has_bytes)


def _said(error: OSError) -> str:
    return f"it cannot be looked at: {error.strerror or error}"


def require_mounted(directory: str) -> None:
    """Raise StorageError when nothing says that `directory` is one of this bookie's: its lock is not there (INV-D2)."""
    if not os.path.exists(os.path.join(directory, LOCK_NAME)):
        raise StorageError(
            f"{directory} holds no lock although this bookie has locked it: its disk was unmounted; mount it again"
        )
