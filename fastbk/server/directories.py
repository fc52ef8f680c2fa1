"""The bookie's directories: made, and locked as long as any process that writes there lives.

The lock is one open file description, handed on to journal and index. So it outlives a killed
supervisor until the last of its children is gone: a successor that has it can be sure that nobody
writes behind its back.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.errors import StorageError
from fastbk.server.topology import Lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LOCK_NAME = "lock"
LOCK_WAIT_S = 10.0
"""A killed predecessor's processes need a moment to die; whoever holds the lock longer lives."""

_RETRY_S = 0.01


class DirectoryLock:
    """An exclusive lock on one directory."""

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self.descriptor = descriptor

    def close(self) -> None:
        """Let go of it; it is free once every process that was handed the descriptor has, too."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def lock_all(directories: Iterable[str], wait_s: float = LOCK_WAIT_S) -> list[DirectoryLock]:
    """Make and lock the directories, which have to be different ones.

    Raises StorageError naming the directory and, where it is known, the process that has it.
    """
    deadline_s = time.monotonic() + wait_s
    locks: list[DirectoryLock] = []
    try:
        for name in directories:
            locks.append(_lock(Path(name).absolute(), deadline_s))  # freed below
    except BaseException:
        for lock in locks:
            lock.close()
        raise
    return locks


def lock_pairs(
    journals: Sequence[str], ledgers: Sequence[str], wait_s: float = LOCK_WAIT_S
) -> dict[Lock, DirectoryLock]:
    """Make and lock the directories of all pairs, like `lock_all`."""
    owners = [Lock("journal", pair) for pair in range(len(journals))]
    owners += [Lock("ledgers", pair) for pair in range(len(ledgers))]
    return dict(zip(owners, lock_all([*journals, *ledgers], wait_s), strict=True))


def disk_bytes(directories: Iterable[str]) -> tuple[int, int]:
    """Return free and total bytes of the directories' disks, each counted once. Raises OSError."""
    disks = {os.stat(directory).st_dev: os.statvfs(directory) for directory in directories}
    free_bytes = sum(disk.f_bavail * disk.f_frsize for disk in disks.values())
    return free_bytes, sum(disk.f_blocks * disk.f_frsize for disk in disks.values())


def _lock(directory: Path, deadline_s: float) -> DirectoryLock:
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(directory / LOCK_NAME, flags, 0o644)
    except OSError as error:
        raise StorageError(f"{directory}: cannot be used: {error.strerror}") from error
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                    raise StorageError(
                        f"{directory} is in use by a running bookie (process {holder or 'unknown'}):"
                        " stop that one, or give this one a directory of its own"
                    ) from None
                time.sleep(_RETRY_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return DirectoryLock(directory, descriptor)
