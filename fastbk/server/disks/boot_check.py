"""Before another boot: can the directories be used, so that it is worth one?

A boot over a directory whose file system is gone would take an empty journal for a lost one (INV-D2), and one over a
disk that fails would end as the one before. So the supervisor waits for such disks, without counting deaths, or starts
what can be started: with a journal's disk that can't be written, reads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.private_files import FILE_MODE
from fastbk.server.disks.directory_probe import DirectoryProbe
from fastbk.server.disks.disk_watch import DiskReport
from fastbk.storage.disk_health import DiskState, Takes

if TYPE_CHECKING:
    from collections.abc import Sequence

PROBE_NAME = "probe"
PROBE_BYTES = 4096
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class UsedDirectory:
    """A directory of the bookie: `role` is `journal` or `ledger`, `lock` the descriptor of its lock."""

    role: str
    pair: int
    path: str
    lock: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a directory can't be used now."""

    directory: UsedDirectory
    state: DiskState
    reason: str

    @property
    def is_fatal(self) -> bool:
        """Whether no boot can succeed: replay has to flush before anything can be read; the journal only has to be
        there for that.
        """
        return self.directory.role != "journal" or self.state is DiskState.GONE

    def report(self) -> DiskReport:
        """Return it as a process that uses the directory would tell it."""
        look = DirectoryProbe(self.directory.path, self.directory.lock).measure()
        return DiskReport(
            role=self.directory.role,
            pair=self.directory.pair,
            directory=self.directory.path,
            state=self.state.value,
            takes=Takes.NOTHING.name.lower(),
            reason=self.reason,
            slow="",
            errors=0,
            free_bytes=max(0, look.free_bytes),
            used_bytes=look.used_bytes,
            used_ratio=round(look.used_ratio, 4),
            state_since_s=round(time.time(), 1),
            looked_s=round(time.time(), 1),
        )

    def __str__(self) -> str:
        return f"{self.directory.role} directory {self.directory.path}: {self.reason}"


def boot_problems(directories: Sequence[UsedDirectory]) -> tuple[Problem, ...]:
    """DirectorySample into all directories, with a small write and sync in each. Blocks; raises nothing."""
    found = []
    for each in directories:
        gone = DirectoryProbe(each.path, each.lock).why_gone()
        if gone:
            found.append(Problem(each, DiskState.GONE, f"the directory is gone: {gone}"))
        elif problem := why_not_writable(each.path):
            found.append(Problem(each, DiskState.FAILED, f"it cannot be written: {problem}"))
    return tuple(found)


def why_not_writable(directory: str) -> str:
    """Return why a small file can't be written and synced; empty: it can, or there is just no room for it."""
    path = os.path.join(directory, PROBE_NAME)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of a check that was killed
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE
        )
        try:
            os.write(descriptor, b"\0" * PROBE_BYTES)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return "" if error.errno in NO_ROOM else error.strerror or str(error)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return ""


def lacks_room(directories: Sequence[UsedDirectory], reserve_bytes: int) -> bool:
    """Return whether a ledger directory has less free than `reserve_bytes`, which replay may have to flush."""
    for each in directories:
        if each.role == "ledger":
            look = DirectoryProbe(each.path, each.lock).measure()
            if not look.gone and look.free_bytes < reserve_bytes:
                return True
    return False
