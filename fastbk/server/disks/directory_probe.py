"""A look at one directory: how much room is there, and whether the path still leads where it led at the start.

A file system can vanish under a running bookie: unmounted lazily, or its device gone. Then the path leads to the
mount point's own folder, on another disk, and whoever writes there by path writes to the wrong place; an empty journal
found there would be taken for one that was lost. The lock that the supervisor took names the right one: its descriptor
and the path have to lead to the same file (INV-D2).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastbk.errors import StorageError
from fastbk.server.directories import LOCK_NAME
from fastbk.storage.disk_health import DirectorySample

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_BYTES = 512
"""Of `st_blocks`."""


class DirectoryProbe:
    """A directory of a bookie, and the descriptor of its lock."""

    def __init__(
        self,
        directory: str,
        lock: int,
        *,
        neighbours: Sequence[str] = (),
        neighbour_bytes_max: int = 0,
    ) -> None:
        """`lock`: stays the caller's.

        `neighbours`: directories of this bookie's, each of which may grow to `neighbour_bytes_max`; what those on the
        same file system still lack does not count as free.
        """
        self.directory = directory
        self._lock = lock
        self._neighbours = neighbours
        self._neighbour_bytes_max = neighbour_bytes_max

    def measure(self) -> DirectorySample:
        """Return what is to be seen now. Raises nothing: a disk that can't be looked at is gone."""
        gone = self.why_gone()
        if gone:
            return DirectorySample(0, 0, gone=gone)
        try:
            disk = os.statvfs(self.directory)
        except OSError as error:
            return DirectorySample(0, 0, gone=_said(error))
        return DirectorySample(
            free_bytes=disk.f_bavail * disk.f_frsize - self._growth_bytes(),
            used_bytes=(disk.f_blocks - disk.f_bfree) * disk.f_frsize,
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
                has_bytes = sum(each.stat().st_blocks for each in entries) * BLOCK_BYTES
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
