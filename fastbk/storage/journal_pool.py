"""The pool of a journal's files: ahead of need, made full of zeros, or taken again when the mark has passed them.

A journal must never wait for a new file's blocks: only blocks that were written before are written again at the price
of one disk write (see docs/decisions.md, 12). So one file is always ready: renamed, opened, locked. Making one is a C
thread's work (`Prewrite`), the rename of a recycled one and its directory's sync too.

INV-J5: small batches go into blocks that were written before. In a burst of large ones zeros would take half of the
disk, so none are written then, and the rest of a file that is needed is only allocated. The journal leaves such a file
when its batches become small, and the file gets its zeros when it is taken again.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from fastbk.native.journal import ALLOCATES, CALM, HURRIES, WAITS, Prewrite
from fastbk.native.process import kill_point
from fastbk.storage.journal_files import OldFile, is_worth_a_cut, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fastbk.native.disk import Disk


HURRY_POLL_S = 0.001
SPARE_FILES_MAX = 1
NAMED_A_TURN = 8
SCARCE_FILES_MAX = 2
"""So many files stay ready or free where the disk is nearly full: for fences and recovery adds."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
RETRY_S = 1.0


class ReadyFile(msgspec.Struct, frozen=True):
    """A pre-written file, open for direct writes and locked."""

    file: int
    file_id: int
    salt: int
    path: str
    size_bytes: int
    written_bytes: int
    """Blocks behind this may be without zeros."""

    @property
    def is_written(self) -> bool:
        """Whether each of its blocks was written before."""
        return self.written_bytes >= self.size_bytes


class JournalPool:
    """The files of one journal directory that are not being written to.

    A file is held while the mark is not past its last batch (INV-J3), then free, then renamed to a new id and
    ready. `behind_bytes` is what counts against the journal's limit.

    Between held and free a file that adopts is kept: it may be a log. It is free once `release` names it. Left before
    it is full it is cut behind its last batch: a log keeps what it has for as long as anything in it lives.
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
            old_files: of earlier starts, by rising id; those that are kept may be left out.
            in_background: make and rename files in a thread; False waits (the fake disk of tests).
            retry_s: before the next try to make a file that could not be made.
        """
        self.disk = disk
        self.directory = directory
        self.file_size_bytes = file_size_bytes
        self.first_file_size_bytes = first_file_size_bytes
        self.limit_bytes = limit_bytes
        self.recycled = 0
        self.made = 0
        self.allocated = 0
        """Files that were ready before they were full of zeros."""
        self.ready_count = 0
        """Files that were made or taken again and found ready; `ready_s`: how long that took, of all of them."""
        self.ready_s = 0.0
        self._begun_s = 0.0
        self._is_burst = False
        self._is_needed = False  # the current file is nearly full
        self._next_file_id = self._first_file_id = next_file_id
        self.is_disk_nearly_full = False
        """Whether free files are given to the ledgers on the same disk, but for SCARCE_FILES_MAX."""
        self._held = [file for file in old_files if not file.kept]
        self._kept: dict[int, OldFile] = {}
        self._kept_bytes = 0
        self._cutting: set[int] = set()
        """Files that are being cut: until they are, they are not taken again."""
        self._named_while_cut: set[int] = set()
        self._earlier: tuple[OldFile, int] | None = None
        """The last file of an earlier start, if it is to be cut, and where."""
        self._named: deque[int] = deque()
        """Files of earlier starts that are free, and not looked for yet."""
        self._remover = Remover(disk, in_background=in_background)
        self._free: list[OldFile] = []
        self._ready: list[ReadyFile] = []
        self._prewrite: Prewrite | None = None
        self._prewrite_id = 0
        self._recycling: OldFile | None = None  # the one that the thread renames
        self._current: ReadyFile | None = None
        self._current_adopts = False
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
    def kept_bytes(self) -> int:
        """Sizes of the files of this start that the mark has passed, and that the index has not named yet."""
        return self._kept_bytes

    @property
    def free_bytes(self) -> int:
        """Sizes of the files that may be taken again, and of the one that is ready."""
        return sum(file.size_bytes for file in self._free) + sum(
            file.size_bytes for file in self._ready
        )

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

    @property
    def unwritten_from_bytes(self) -> int | None:
        """Where the blocks without zeros of the current file begin; None: nowhere, or there is no better file yet."""
        current = self._current
        if current is None or current.is_written or not (self._ready and self._ready[0].is_written):
            return None
        return current.written_bytes

    def update(self, mark_sequence: int, *, is_burst: bool = False) -> None:
        """Free what the mark has passed, and have the next file made. A few system calls at most.

        Args:
            is_burst: large batches come: the disk is theirs, and a new file is not filled with zeros.

        A file that can't be made is no error: `take` then has none, `no_room` or `failure` says why. Raises OSError
        when files can't be renamed or removed.
        """
        for file_id, size_bytes in self._remover.take_cut():
            self._note_cut(file_id, size_bytes)
        still = []
        # The newest file that was written to names the end of the journal until the next header is durable. Files
        # that were only made ahead have higher ids and name nothing.
        newest = max((file.file_id for file in self._held if file.last_sequence > 0), default=0)
        for file in self._held:
            is_last_used = self._current is None and file.file_id == newest
            if file.last_sequence <= mark_sequence and not is_last_used:
                if file.kept:
                    self._kept[file.file_id] = file
                    self._kept_bytes += file.size_bytes
                else:
                    self._free.append(file)
            else:
                still.append(file)
        self._held = still
        if self._named:
            self._find_named()
        self._finish_prewrite()
        self._is_burst = is_burst
        self._set_haste()
        if len(self._ready) >= SPARE_FILES_MAX or self._prewrite is not None:
            self._drop_surplus()
        elif not self._reuse() and (self._is_needed or not is_burst):
            # In a burst a file that becomes free meanwhile is better than one without zeros.
            self._make(self._wanted_bytes)

    def fill(self) -> None:
        """Have a file that a burst left ready get its zeros.

        For times without a burst, and not when a file is needed at once.
        """
        if self._ready and not self._ready[0].is_written:
            # It gets its zeros as a file that is taken again.
            ready = self._ready.pop(0)
            self.disk.close(ready.file)
            self._free.append(OldFile(ready.file_id, ready.path, 0, ready.size_bytes))

    @property
    def is_making(self) -> bool:
        """Whether the next file is being made."""
        return self._prewrite is not None

    def take(self, *, wait: bool = True) -> ReadyFile | None:
        """Return the next file to write to; `used` follows when its header is durable. Raises OSError.

        None: it could not be made, or, unless it is waited for, is still being made. Then it gets no more zeros: the
        journal's clients wait for it.
        """
        if not self._ready and self._prewrite is None and not self._reuse():
            self._make(self._wanted_bytes)
        while not self._ready:
            if self._prewrite is None:
                return None
            self._is_needed = True
            self._prewrite.set_haste(HURRIES if wait and self._recycling is None else ALLOCATES)
            self._finish_prewrite()
            if not self._ready and self._prewrite is not None:
                if not wait:
                    return None
                time.sleep(HURRY_POLL_S)
        return self._ready.pop(0)

    def give_back(self, file: ReadyFile) -> None:
        """Put a file back that `take` returned and that was not written to."""
        self._ready.insert(0, file)

    def used(
        self, file: ReadyFile, closed_sequence: int, *, adopts: bool = False, end_bytes: int = 0
    ) -> None:
        """Note that `file`'s header is durable and the journal goes on there; the file before it is held up to
        `closed_sequence` and closed.

        Args:
            adopts: what the header of `file` says.
            end_bytes: where the last batch of the file before it ends; 0: not known.
        """
        left, self._current = self._current, file
        kept, self._current_adopts = self._current_adopts, adopts
        self._is_needed = False
        if left is not None:
            old = OldFile(left.file_id, left.path, closed_sequence, left.size_bytes, kept)
            self._held.append(old)
            self.disk.close(left.file)
            if kept and end_bytes and is_worth_a_cut(left.size_bytes, end_bytes):
                self._cut(old, end_bytes)
        elif self._earlier is not None:
            self._cut(*self._earlier)
            self._earlier = None

    def cut_earlier(self, file_id: int, end_bytes: int) -> None:
        """Have the last file of an earlier start cut, which stays as a log, once the first header of this one is
        durable: until then a start that begins anew reads it.
        """
        self._earlier = OldFile(file_id, self._path(file_id), 0, 0), end_bytes

    def _cut(self, file: OldFile, end_bytes: int) -> None:
        self._cutting.add(file.file_id)
        self._remover.cut(file, end_bytes)

    def _note_cut(self, file_id: int, size_bytes: int) -> None:
        """Note that a file was cut, or could not be, and has this size."""
        self._cutting.discard(file_id)
        self._held = [
            msgspec.structs.replace(file, size_bytes=size_bytes)
            if file.file_id == file_id
            else file
            for file in self._held
        ]
        if (kept := self._kept.get(file_id)) is not None:
            self._kept_bytes += size_bytes - kept.size_bytes
            self._kept[file_id] = msgspec.structs.replace(kept, size_bytes=size_bytes)
        if file_id in self._named_while_cut:
            self._named_while_cut.discard(file_id)
            self.release([file_id])

    def release(self, file_ids: Iterable[int]) -> None:
        """Free files that adopt, or did in earlier starts: the mark has passed them, and they are no logs (INV-J3).

        Ids of other files, and of none, may be among them. Raises OSError.
        """
        named = set(file_ids)
        if self._earlier is not None and self._earlier[0].file_id in named:
            self._earlier = None  # it is taken again as it is
        self._named_while_cut |= named & self._cutting
        named -= self._cutting
        self._held = [
            msgspec.structs.replace(file, kept=file.kept and file.file_id not in named)
            for file in self._held
        ]
        for file_id in sorted(named):
            if (kept := self._kept.pop(file_id, None)) is not None:
                self._kept_bytes -= kept.size_bytes
                self._free.append(msgspec.structs.replace(kept, kept=False))
            elif file_id < self._first_file_id:
                self._named.append(file_id)
        self._find_named()

    def _find_named(self) -> None:
        """Free files of earlier starts that were named, a few at a time: thousands may have come at once."""
        known = {file.file_id for file in (*self._held, *self._free)}
        if self._recycling is not None:
            known.add(self._recycling.file_id)
        known |= self._remover.given_ids
        for _ in range(min(NAMED_A_TURN, len(self._named))):
            file_id = self._named.popleft()
            if file_id in known:
                continue  # replay had found it free already
            path = self._path(file_id)
            try:
                file = self.disk.open(path)
            except FileNotFoundError:
                continue
            try:
                self._free.append(OldFile(file_id, path, 0, self.disk.size(file)))
            finally:
                self.disk.close(file)

    def hurry(self) -> None:
        """The next file is needed soon: no more pauses; in a burst no more zeros."""
        self._is_needed = True
        self._set_haste()

    def _set_haste(self) -> None:
        if self._prewrite is not None:
            self._prewrite.set_haste(self._haste)

    @property
    def _haste(self) -> int:
        if self._is_needed:
            return ALLOCATES if self._is_burst else HURRIES
        return WAITS if self._is_burst else CALM

    def close(self) -> None:
        """Wait for a file that is being made, and close what is open."""
        if self._prewrite is not None:
            self._prewrite.set_haste(ALLOCATES)
            self._prewrite.end()
            self._prewrite = None
        self._remover.close()
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
        """Have a free file renamed to the next id. README.md: rename, sync directory, header, sync, then use."""
        if time.monotonic() < self._no_file_until_s:
            return False
        for free in sorted(self._free, key=lambda file: -file.size_bytes):
            self._free.remove(free)
            if free.size_bytes < min(self.first_file_size_bytes, self.file_size_bytes):
                self.disk.unlink(free.path)  # cut short while it was made, or of smaller settings
                continue
            file_id = self._give_id()
            path = self._path(file_id)
            if self._in_background:
                return self._start(file_id, path, free.size_bytes, free)
            try:
                self.disk.rename(free.path, path)
                self.disk.sync_directory(self.directory)
                self._open(file_id, free.size_bytes, free.size_bytes)
            except OSError as error:
                self._keep_free(free, error)
                return False
            self.recycled += 1
            return True
        return False

    def _keep_free(self, free: OldFile, error: OSError) -> None:
        """Try again later where the directory itself had no room for the new name. Raises every other error."""
        if error.errno not in NO_ROOM or os.path.basename(free.path) not in self.disk.list(
            self.directory
        ):
            raise error
        self._free.append(free)
        self._note_no_file(error)

    def _make(self, size_bytes: int) -> None:
        if time.monotonic() < self._no_file_until_s:
            return
        file_id = self._give_id()
        path = self._path(file_id)
        self.made += 1
        if self._in_background:
            if not self._start(file_id, path, size_bytes):
                self.made -= 1
            return
        try:
            file = self.disk.open(path, create=True, direct=True)
            try:
                self.disk.preallocate(file, 0, size_bytes)
            finally:
                self.disk.close(file)
            self.disk.sync_directory(self.directory)
            self._open(file_id, size_bytes, size_bytes)
        except OSError as error:
            self._forget(path, error)

    def _start(self, file_id: int, path: str, size_bytes: int, old: OldFile | None = None) -> bool:
        """Have the thread make a file, of an old one if there is one; return whether there is a thread to be had."""
        try:
            self._prewrite = Prewrite(
                self.disk,
                self.directory,
                path,
                size_bytes,
                old_path=None if old is None else old.path,
                haste=self._haste,
            )
        except OSError as error:
            if old is not None:
                self._free.append(old)
            self._note_no_file(error)
            return False
        self._prewrite_id, self._recycling = file_id, old
        return True

    def _finish_prewrite(self) -> None:
        prewrite, recycled = self._prewrite, self._recycling
        if prewrite is None:
            return
        try:
            if not prewrite.is_done():
                return
            self._prewrite = self._recycling = None
            self._open(self._prewrite_id, prewrite.size_bytes, prewrite.written_bytes)
        except OSError as error:
            self._prewrite = self._recycling = None
            if recycled is None:
                self._forget(prewrite.path, error)
            elif prewrite.is_renaming:
                self._keep_free(recycled, error)
            else:
                # It could not be filled. Nothing hangs on a free file: the next try makes a new one.
                self._note_no_file(error)
                self._remove(recycled.path)
            return
        if recycled is not None:
            kill_point("journal.recycle_after_open")
            self.recycled += 1

    def _remove(self, path: str) -> None:
        try:
            self.disk.unlink(path)
        except OSError:
            pass  # not there, or the disk is too sick for that: an unused file is no part of the journal

    def _forget(self, path: str, error: OSError) -> None:
        """Remove what is left of a file that could not be made. Nothing was ever written to it, so nothing is lost by
        any error; the journal goes on in its current file, and the next try comes a second later. But a file that was
        there before is not ours to remove.
        """
        if error.errno == errno.EEXIST:
            raise error
        self.made -= 1
        self._note_no_file(error)
        self._remove(path)

    def _note_no_file(self, error: OSError) -> None:
        size_mib = self._wanted_bytes >> 20
        room = "has no room" if error.errno in NO_ROOM else "cannot be made"
        self._said = f"the next journal file ({size_mib} MiB) {room}: {error.strerror}"
        self._no_file_errno = error.errno or 0
        self._no_file_until_s = time.monotonic() + self._retry_s

    def _open(self, file_id: int, size_bytes: int, written_bytes: int) -> None:
        path = self._path(file_id)
        file = self.disk.open(path, direct=True, lock=True)
        self._said, self._no_file_errno = "", 0
        self.ready_count += 1
        self.ready_s += time.monotonic() - self._begun_s
        block = self.disk.block_size_bytes
        salt = int.from_bytes(os.urandom(8), "little")
        usable_bytes = size_bytes // block * block
        ready = ReadyFile(file, file_id, salt, path, usable_bytes, written_bytes)
        self.allocated += not ready.is_written
        self._ready.append(ready)

    def _drop_surplus(self) -> None:
        """Keep no more free files than the limit has room for, and few where the disk is nearly full."""
        on_disk = self.behind_bytes + sum(file.size_bytes for file in self._ready)
        if self._prewrite is not None:
            on_disk += self._prewrite.size_bytes
        count_max = len(self._free)
        if self.is_disk_nearly_full:
            count_max = SCARCE_FILES_MAX - len(self._ready) - (self._prewrite is not None)
        kept: list[OldFile] = []
        for free in sorted(self._free, key=lambda file: -file.size_bytes):
            if on_disk + free.size_bytes > self.limit_bytes or len(kept) >= count_max:
                self._remover.remove(free)
                continue
            on_disk += free.size_bytes
            kept.append(free)
        self._free = [*kept, *self._remover.take_failed()]


class Remover:
    """Removes and cuts files in a thread of its own: a large one takes milliseconds, in which the journal would not
    commit.

    A ledger's deletion may free thousands at once.
    """

    def __init__(self, disk: Disk, *, in_background: bool) -> None:
        """`in_background`: False removes at once (the fake disk of tests)."""
        self._disk = disk
        self._files: deque[tuple[OldFile, int] | None] = deque()
        """With the size that is left of each: 0 = none."""
        self._count = threading.Semaphore(0)
        """Of `_files`."""
        self._failed: deque[OldFile] = deque()
        self.given_ids: set[int] = set()
        """Of files that are to be removed, or were: no id is given again."""
        self._cut_files: deque[tuple[int, int]] = deque()
        self._thread: threading.Thread | None = None
        if in_background:
            self._thread = threading.Thread(target=self._run, name="remover", daemon=True)
            self._thread.start()

    def remove(self, file: OldFile) -> None:
        """Have a file removed; what cannot be comes back from `take_failed`."""
        self.given_ids.add(file.file_id)
        if self._thread is None:
            self._remove(file)
            return
        self._files.append((file, 0))
        self._count.release()

    def cut(self, file: OldFile, size_bytes: int) -> None:
        """Have a file cut to that size; nobody may write to it, or rename it, before `take_cut` has named it."""
        if self._thread is None:
            self._cut(file, size_bytes)
            return
        self._files.append((file, size_bytes))
        self._count.release()

    def take_cut(self) -> list[tuple[int, int]]:
        """Return files that were to be cut, with the sizes that they have."""
        return [self._cut_files.popleft() for _ in range(len(self._cut_files))]

    def take_failed(self) -> list[OldFile]:
        """Return files that could not be removed: they stay free, and nothing hangs on their going."""
        failed = [self._failed.popleft() for _ in range(len(self._failed))]
        self.given_ids.difference_update(file.file_id for file in failed)
        return failed

    def close(self) -> None:
        """Remove what is left, and end the thread."""
        if self._thread is not None:
            self._files.append(None)
            self._count.release()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while self._count.acquire() and (job := self._files.popleft()) is not None:
            file, size_bytes = job
            if size_bytes:
                self._cut(file, size_bytes)
            else:
                self._remove(file)

    def _cut(self, file: OldFile, size_bytes: int) -> None:
        """Nothing hangs on it: it need not be durable, and a file that cannot be cut is just larger."""
        try:
            size_bytes = self._disk.cut(file.path, size_bytes)
            kill_point("journal.cut_after")
        except OSError:
            size_bytes = file.size_bytes
        self._cut_files.append((file.file_id, size_bytes))

    def _remove(self, file: OldFile) -> None:
        try:
            if self._thread is None:
                self._disk.unlink(file.path)
            else:
                os.unlink(file.path)  # a disk is one thread's
        except FileNotFoundError:
            pass
        except OSError:
            self._failed.append(file)
