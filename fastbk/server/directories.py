"""The bookie's directories: made, and locked as long as any process that writes there lives.

The lock is one open file description, handed on to journal and index. So it outlives a killed
supervisor until the last of its children is gone: a successor that has it can be sure that nobody
writes behind its back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError, StorageError
from fastbk.safe_files import DIRECTORY_MODE, FILE_MODE, open_found, tighten
from fastbk.server.process_table import Lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

LOCK_NAME = "lock"
LOCK_WAIT_S = 10.0
"""A killed predecessor's processes need a moment to die; whoever holds the lock longer lives."""

_RETRY_S = 0.01
_OPENINGS_MAX = 10
"""Tries to make and open a directory that others take back meanwhile, one refused start after the other."""


class DirectoriesInUse(StorageError):
    """Another process holds the lock of a directory."""

    default_retryable = True


class DirectoryLock:
    """An exclusive lock on one directory."""

    def __init__(
        self, directory: Path, descriptor: int, made: Sequence[Path] = (), *, is_new: bool = False
    ) -> None:
        """`made`: the directories that were not there before, from the outside in. `is_new`: nor was the file."""
        self.directory = directory
        self.descriptor = descriptor
        self._made = made
        self._is_new = is_new

    def take_back(self) -> None:
        """Remove what taking the lock made: the file, and directories where nothing else came to lie.

        For a start that is refused: a directory that is left where a disk was not mounted, or a file in somebody
        else's, misleads whoever looks next. Only while nobody else was handed the descriptor, and before `close`.
        """
        path = self.directory / LOCK_NAME
        # Whoever put another file in its place has a reason.
        with contextlib.suppress(OSError):
            if self._is_new and _leads_to(path, self.descriptor):
                path.unlink()
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def close(self) -> None:
        """Let go of it; it is free once every process that was handed the descriptor has, too."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def lock_all(directories: Iterable[str], wait_s: float = LOCK_WAIT_S) -> list[DirectoryLock]:
    """Make and lock the directories, which have to be different ones.

    Raises StorageError naming the directory and, where it is known, the process that has it.
    """
    from pathlib import Path  # here: children import this module, and lock nothing

    deadline_s = time.monotonic() + wait_s
    locks: list[DirectoryLock] = []
    try:
        for name in directories:
            locks.append(_lock(Path(name).absolute(), deadline_s))  # freed below
    except BaseException:
        for lock in reversed(locks):
            lock.take_back()
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


@contextlib.contextmanager
def locked_pairs(
    journals: Sequence[str], ledgers: Sequence[str], wait_s: float = LOCK_WAIT_S
) -> Iterator[None]:
    """Hold the directories of all pairs; where the block fails, take back what was made for that."""
    locks = lock_pairs(journals, ledgers, wait_s).values()
    try:
        yield
    except BaseException:
        for lock in reversed(locks):
            lock.take_back()
        raise
    finally:
        for lock in locks:
            lock.close()


def disk_bytes(directories: Iterable[str]) -> tuple[int, int]:
    """Return free and total bytes of the directories' disks, each counted once. Raises OSError.

    Blocks that are reserved for root count as neither, here as in what the watch of disks says (`Look.used_ratio`):
    a bookie that is full shows as full everywhere.
    """
    disks = {os.stat(directory).st_dev: os.statvfs(directory) for directory in directories}
    free_bytes = sum(disk.f_bavail * disk.f_frsize for disk in disks.values())
    used_bytes = sum((disk.f_blocks - disk.f_bfree) * disk.f_frsize for disk in disks.values())
    return free_bytes, used_bytes + free_bytes


_OWNER = "The bookie's user has to own it, and to be let through the folders above it"
_NEXT_STEPS = {
    errno.EROFS: (
        "If a systemd unit starts the bookie, a drop-in has to name the directory: ReadWritePaths= (docs/systemd.md)."
        " Otherwise its file system is mounted read-only, by an operator or by the kernel after an error (`dmesg`)"
    ),
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
}


def _lock(directory: Path, deadline_s: float) -> DirectoryLock:
    while True:
        lock = _open(directory)
        try:
            _wait(lock, deadline_s)
            if _leads_to(directory / LOCK_NAME, lock.descriptor):
                os.ftruncate(lock.descriptor, 0)
                os.pwrite(lock.descriptor, f"{os.getpid()}\n".encode(), 0)
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()  # whoever had it took it back: what was locked is a file that is gone


def _open(directory: Path) -> DirectoryLock:
    """Make what is missing and open the file. Raises StorageError."""
    made: list[Path] = []
    try:
        descriptor, is_new = _make_and_open(directory, made)
    except OSError as error:
        DirectoryLock(directory, -1, made).take_back()
        is_no_file = error.errno in (errno.ELOOP, errno.EISDIR, errno.EMEDIUMTYPE)
        text = f"{error.filename if is_no_file else directory}: cannot be used: {error.strerror}"
        if next_step := _NEXT_STEPS.get(error.errno or 0):
            raise ConfigError(
                f"{text}. {next_step}"
            ) from error  # starting again does not change it
        raise StorageError(text) from error
    return DirectoryLock(directory, descriptor, made, is_new=is_new)


def _make_and_open(directory: Path, made: list[Path]) -> tuple[int, bool]:
    """Return what `_open_file` returns; add to `made` the directories that were not there. Raises OSError."""
    openings = 0
    while True:
        try:
            for folder in reversed((directory, *directory.parents)):
                if not folder.is_dir():
                    with contextlib.suppress(FileExistsError):
                        folder.mkdir(DIRECTORY_MODE)
                        made.append(folder)
            tighten(directory)
            return _open_file(directory / LOCK_NAME)
        except FileNotFoundError:
            # A start that was refused has taken back what it had made, and the directory with it.
            openings += 1
            if openings == _OPENINGS_MAX:
                raise


def _open_file(path: Path) -> tuple[int, bool]:
    """Return the descriptor of a lock's file, and whether it was not there before. Raises OSError."""
    # The file is emptied later: a link could have us empty any other.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, FILE_MODE), True
        except FileExistsError:
            # It may have been taken back by now.
            with contextlib.suppress(FileNotFoundError):
                os.close(open_found(path))  # raises for a pipe, a device or a link
                return os.open(path, flags), False


def _wait(lock: DirectoryLock, deadline_s: float) -> None:
    """Return once the lock is ours. Raises StorageError."""
    while True:
        try:
            fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                holder = os.pread(lock.descriptor, 32, 0).decode("ascii", "replace").strip()
                raise DirectoriesInUse(
                    f"{lock.directory} is in use by a running bookie (process {holder or 'unknown'}):"
                    " stop that one, or give this one a directory of its own"
                ) from None
            time.sleep(_RETRY_S)


def _leads_to(path: Path, descriptor: int) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
