"""Journal files ahead of need: made full of zeros, or taken again when the mark has passed them.

A journal must never wait for a new file's blocks: only blocks that were written before are written again
at the price of one disk write (fallocate is not enough, see docs/decisions.md, 12). So one file is always
ready: renamed, opened, locked. Making one is a C thread's work (`Prewrite`), the rename of a recycled one and its
directory's sync too.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.native.journal import Prewrite
from fastbk.native.process import kill_point
from fastbk.storage.journal_files import OldFile, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.native.disk import Disk

HURRY_POLL_S = 0.001
SPARE_FILES_MAX = 1
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
RETRY_S = 1.0


@dataclass(frozen=True)
class ReadyFile:
    """A pre-written file, open for direct writes and locked."""

    file: int
    file_id: int
    salt: int
    path: str
    size_bytes: int


class JournalPool:
    """The files of one journal directory that are not being written to.

    A file is held while the mark is not past its last batch (INV-J3), then free, then renamed to a new id and
    ready. `behind_bytes` is what counts against the journal's limit.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        next_file_id: int,
        file_size_bytes: int,
        first_file_size_bytes: int,
        limit_bytes: int,
        old_files: Sequence[OldFile] = (),
        in_background: bool = True,
        retry_s: float = RETRY_S,
    ) -> None:
        """Begin with the files of earlier starts; nothing is touched before `update`.

        Args:
            next_file_id: above every id in use.
            limit_bytes: journal behind the mark; free files beyond it are removed.
            old_files: of earlier starts, by rising id.
            in_background: make files in a thread; False waits (the fake disk of tests).
            retry_s: before the next try to make a file that could not be made.
        """
        self.disk = disk
        self.directory = directory
        self.file_size_bytes = file_size_bytes
        self.first_file_size_bytes = first_file_size_bytes
        self.limit_bytes = limit_bytes
        self.recycled = 0
        self.made = 0
        self.ready_count = 0
        """Files that were made or taken again and found ready; `ready_s`: how long that took, of all of them."""
        self.ready_s = 0.0
        self._begun_s = 0.0
        self._next_file_id = next_file_id
        self._held = list(old_files)
        self._free: list[OldFile] = []
        self._ready: list[ReadyFile] = []
        self._prewrite: Prewrite | None = None
        self._prewrite_id = 0
        self._current: ReadyFile | None = None
        self._no_file_until_s = 0.0
        self._no_file_errno = 0
        self._said = ""
        self._in_background = in_background
        self._retry_s = retry_s

    @property
    def behind_bytes(self) -> int:
        """Sizes of the files that the mark has not passed, the current one included."""
        current = self._current.size_bytes if self._current is not None else 0
        return current + sum(file.size_bytes for file in self._held)

    @property
    def has_ready(self) -> bool:
        """Whether `take` returns at once."""
        return bool(self._ready)

    @property
    def no_room(self) -> str:
        """Why the next file could not be made for want of room, empty while it is there or may yet be."""
        return self._said if self._no_file_errno in NO_ROOM and not self._ready else ""

    @property
    def failure(self) -> str:
        """Why it could not be made for another reason: then the disk is sick, though the current file still works."""
        return "" if self._no_file_errno in NO_ROOM or self._ready else self._said

    @property
    def next_size_bytes(self) -> int:
        """Size of the file that `take` would return."""
        return self._ready[0].size_bytes if self._ready else self._wanted_bytes

    @property
    def _wanted_bytes(self) -> int:
        # The first one is small: it is written before the bookie is ready.
        return self.first_file_size_bytes if self._current is None else self.file_size_bytes

    def update(self, mark_sequence: int) -> None:
        """Free what the mark has passed, and have the next file made. A few system calls at most.

        A file that can't be made is no error: `take` then has none, `no_room` or `failure` says why. Raises OSError
        when files can't be renamed or removed.
        """
        still = []
        # The newest file that was written to names the end of the journal until the next header is durable. Files
        # that were only made ahead have higher ids and name nothing.
        newest = max((file.file_id for file in self._held if file.last_sequence > 0), default=0)
        for file in self._held:
            is_last_used = self._current is None and file.file_id == newest
            if file.last_sequence <= mark_sequence and not is_last_used:
                self._free.append(file)
            else:
                still.append(file)
        self._held = still
        self._finish_prewrite()
        if len(self._ready) >= SPARE_FILES_MAX or self._prewrite is not None:
            self._drop_surplus()
        elif not self._reuse():
            self._make(self._wanted_bytes)

    @property
    def is_making(self) -> bool:
        """Whether the next file is being made."""
        return self._prewrite is not None

    def take(self, *, wait: bool = True) -> ReadyFile | None:
        """Return the next file to write to; `used` follows when its header is durable. Raises OSError.

        None: it could not be made, or, unless it is waited for, is still being made.
        """
        if not self._ready and self._prewrite is None and not self._reuse():
            self._make(self._wanted_bytes)
        while not self._ready:
            if self._prewrite is None:
                return None
            self._prewrite.hurry()
            self._finish_prewrite()
            if not self._ready and self._prewrite is not None:
                if not wait:
                    return None
                time.sleep(HURRY_POLL_S)
        return self._ready.pop(0)

    def give_back(self, file: ReadyFile) -> None:
        """Put a file back that `take` returned and that was not written to."""
        self._ready.insert(0, file)

    def used(self, file: ReadyFile, closed_sequence: int) -> None:
        """Note that `file`'s header is durable and the journal goes on there; the file before it is held up to
        `closed_sequence` and closed.
        """
        left, self._current = self._current, file
        if left is not None:
            self._held.append(OldFile(left.file_id, left.path, closed_sequence, left.size_bytes))
            self.disk.close(left.file)

    def hurry(self) -> None:
        """The current file is nearly full: no more pauses."""
        if self._prewrite is not None:
            self._prewrite.hurry()

    def close(self) -> None:
        """Wait for a file that is being made, and close what is open."""
        if self._prewrite is not None:
            self._prewrite.hurry()
            self._prewrite.end()
            self._prewrite = None
        for file in self._ready:
            self.disk.close(file.file)
        self._ready.clear()
        if self._current is not None:
            self.disk.close(self._current.file)
            self._current = None

    def _path(self, file_id: int) -> str:
        return os.path.join(self.directory, name_of(file_id))

    def _give_id(self) -> int:
        file_id = self._next_file_id
        self._next_file_id += 1
        self._begun_s = time.monotonic()
        return file_id

    def _reuse(self) -> bool:
        """Rename a free file to the next id. README.md: rename, sync directory, header, sync, then use."""
        if time.monotonic() < self._no_file_until_s:
            return False
        for free in sorted(self._free, key=lambda file: -file.size_bytes):
            self._free.remove(free)
            if free.size_bytes < min(self.first_file_size_bytes, self.file_size_bytes):
                self.disk.unlink(free.path)  # cut short while it was made, or of smaller settings
                continue
            file_id = self._give_id()
            path = self._path(file_id)
            kill_point("journal.recycle_before_rename")
            try:
                self.disk.rename(free.path, path)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self._free.append(free)  # the directory itself has no room: later again
                self._note_no_file(error)
                return False
            kill_point("journal.recycle_after_rename")
            self.disk.sync_directory(self.directory)
            self._open(file_id, free.size_bytes)
            kill_point("journal.recycle_after_open")
            self.recycled += 1
            return True
        return False

    def _make(self, size_bytes: int) -> None:
        if time.monotonic() < self._no_file_until_s:
            return
        file_id = self._give_id()
        path = self._path(file_id)
        self.made += 1
        if self._in_background:
            self._start(file_id, path, size_bytes)
            return
        try:
            file = self.disk.open(path, create=True, direct=True)
            try:
                self.disk.preallocate(file, 0, size_bytes)
            finally:
                self.disk.close(file)
            self.disk.sync_directory(self.directory)
            self._open(file_id, size_bytes)
        except OSError as error:
            self._forget(path, error)

    def _start(self, file_id: int, path: str, size_bytes: int, old_path: str | None = None) -> None:
        self._prewrite = Prewrite(self.disk, self.directory, path, size_bytes, old_path=old_path)
        self._prewrite_id = file_id

    def _finish_prewrite(self) -> None:
        prewrite = self._prewrite
        if prewrite is None:
            return
        try:
            if not prewrite.is_done():
                return
            self._prewrite = None
            self._open(self._prewrite_id, prewrite.size_bytes)
        except OSError as error:
            self._prewrite = None
            self._forget(prewrite.path, error)

    def _forget(self, path: str, error: OSError) -> None:
        """Remove what is left of a file that could not be made. Nothing was ever written to it, so nothing is lost by
        any error; the journal goes on in its current file, and the next try comes a second later. But a file that was
        there before is not ours to remove.
        """
        if error.errno == errno.EEXIST:
            raise error
        self.made -= 1
        self._note_no_file(error)
        try:
            self.disk.unlink(path)
        except OSError:
            pass  # not there, or the disk is too sick for that: an unused file is no part of the journal

    def _note_no_file(self, error: OSError) -> None:
        size_mib = self._wanted_bytes >> 20
        room = "has no room" if error.errno in NO_ROOM else "cannot be made"
        self._said = f"the next journal file ({size_mib} MiB) {room}: {error.strerror}"
        self._no_file_errno = error.errno or 0
        self._no_file_until_s = time.monotonic() + self._retry_s

    def _open(self, file_id: int, size_bytes: int) -> None:
        path = self._path(file_id)
        file = self.disk.open(path, direct=True, lock=True)
        self._said, self._no_file_errno = "", 0
        self.ready_count += 1
        self.ready_s += time.monotonic() - self._begun_s
        block = self.disk.block_size_bytes
        salt = int.from_bytes(os.urandom(8), "little")
        self._ready.append(ReadyFile(file, file_id, salt, path, size_bytes // block * block))

    def _drop_surplus(self) -> None:
        """Keep no more free files than the limit has room for."""
        on_disk = self.behind_bytes + sum(file.size_bytes for file in self._ready)
        kept: list[OldFile] = []
        for free in sorted(self._free, key=lambda file: -file.size_bytes):
            if on_disk + free.size_bytes > self.limit_bytes:
                try:
                    self.disk.unlink(free.path)
                    continue
                except OSError:  # it stays free: nothing hangs on its going
                    pass
            on_disk += free.size_bytes
            kept.append(free)
        self._free = kept
