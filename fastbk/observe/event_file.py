"""The files of a process's events: `events.jsonl` with the newest, `events.1.jsonl` with those before it, and so on.

One JSON object a line, appended in one write, so a `kill -9` cuts no line and loses none that was written. A power cut
may: the next writer closes a line that was cut short, and readers leave it out. A file that is full is renamed, and the
oldest is removed, so all together are bounded.

The directory is held open: where its disk is gone, nothing is written to what lies below (INV-D2).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from fastbk.observe.event_record import Event, event_of
from fastbk.private_files import FILE_MODE
from fastbk.units import MIB

FILE_BYTES_MAX = 4 * MIB
FILES_MAX = 4
NAME = "events.jsonl"


class EventFile:
    """Appends to the files of one directory. One thread of one process. All of it raises OSError."""

    def __init__(
        self, path: Path, size_bytes_max: int = FILE_BYTES_MAX, files_max: int = FILES_MAX
    ) -> None:
        """`path`: of the newest file, with the ending `.jsonl`. `size_bytes_max`: of each of `files_max` files."""
        self.path = path
        self._size_bytes_max = size_bytes_max
        self._files_max = files_max
        self._folder = self._file = -1
        self._size_bytes = 0

    def open(self, *, may_make: bool) -> bool:
        """Open the newest file for appending; without `may_make` only one that is there. Return whether it is open."""
        if self._folder < 0:
            self._folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._file = os.open(
                self.path.name,
                flags | (os.O_CREAT if may_make else 0),
                FILE_MODE,
                dir_fd=self._folder,
            )
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            self._file = -1
            raise OSError(
                errno.EBUSY, "another process writes it: give this one another file"
            ) from None
        self._size_bytes = os.fstat(self._file).st_size
        if self._size_bytes and os.pread(self._file, 1, self._size_bytes - 1) != b"\n":
            self._write(b"\n")
        return True

    def append(self, line: bytes) -> None:
        """Write one line, whole or not at all."""
        if self._file < 0:
            self.open(may_make=True)
        if self._size_bytes and self._size_bytes + len(line) > self._size_bytes_max:
            self._rotate()
        self._write(line)

    def sync(self) -> None:
        """Make what was appended durable."""
        if self._file >= 0:
            os.fdatasync(self._file)

    def close(self) -> None:
        """Close what is open."""
        for descriptor in (self._file, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._folder = -1

    def _write(self, line: bytes) -> None:
        written = os.write(self._file, line)
        if written != len(line):
            os.ftruncate(self._file, self._size_bytes)
            raise OSError(errno.ENOSPC, "the disk is full")
        self._size_bytes += written

    def _rotate(self) -> None:
        names = [self._name(number) for number in range(self._files_max)]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(names[-1], dir_fd=self._folder)
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            with contextlib.suppress(FileNotFoundError):
                os.rename(newer, older, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.close(self._file)
        self._file = -1
        self.open(may_make=True)

    def _name(self, number: int) -> str:
        return numbered(self.path, number).name


def numbered(path: Path, number: int) -> Path:
    """Return the path of the `number`-th file behind the newest, which is 0."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}") if number else path


def read_events(path: Path, files_max: int = FILES_MAX) -> Iterator[Event]:
    """Yield all events of the files of `path`, oldest first; lines that are none are left out.

    Works on the files of a process that runs or that is gone. A file that is renamed while this reads is read once: an
    event with a number that is not higher than the one before is left out. Raises OSError.
    """
    with contextlib.ExitStack() as stack:
        files = []
        for number in range(
            files_max
        ):  # the newest first: a file that is renamed meanwhile is met again, not missed
            with contextlib.suppress(FileNotFoundError):
                files.append(stack.enter_context(open(numbered(path, number), "rb")))
        last = 0
        for file in reversed(files):
            for line in file:
                if (
                    line.endswith(b"\n")
                    and (event := event_of(line)) is not None
                    and event.number > last
                ):
                    last = event.number
                    yield event
