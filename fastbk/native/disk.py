"""A disk: everything a bookie stores goes through one of these (`src/io/io.h`).

Backends: `io_uring` and `plain` (system calls that wait; what a container without io_uring gets). `auto` takes
io_uring where real operations in the directory show that it works; the environment's FASTBK_IO=plain|io_uring
decides instead of `auto`. The calls of this class wait for the disk; journal, index and store take `handle` and do
their own writing in C.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import check, error_of

if TYPE_CHECKING:
    from fastbk.native.ffi import CData

Path = str | os.PathLike[str]

DEPTH = 4
"""Writes that may be outstanding on io_uring unless said otherwise."""
NAMES_BYTES = 64 * 1024
FILE_BYTES_MAX = 256 << 20
"""Maximum bytes of a file that is read whole: manifests and lists of ids are the largest ones."""
_NO_FILE = {
    errno.ELOOP: "is a symbolic link, and a bookie's files are none: put the file itself there",
    errno.EMEDIUMTYPE: "is a device, a pipe or a socket, and no file",
}
REFUSED = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOMEM,
                     errno.ENOSPC, errno.EDQUOT})  # fmt: skip
"""Errors of io_uring after which `auto` tries plain, which says itself if it is the directory that is at fault."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a directory that is full: it may have room again, so it is opened without the probe."""


class Disk:
    """One backend for one directory. Not to be used by two threads at once, but for what only reads."""

    def __init__(
        self,
        directory: Path,
        backend: str = "auto",
        depth: int = DEPTH,
        *,
        only_reads: bool = False,
    ) -> None:
        """Choose by real operations in `directory`.

        Where that is full, `auto` and `plain` do what every file system can (`fallback_reason` says so).

        Args:
            directory: existing and writable; a small file is written there, synced and removed.
            backend: "auto", "io_uring" or "plain".
            depth: writes that may be outstanding, 1..64 (plain: 1).
            only_reads: the directory need not be writable.

        Raises OSError when the directory can't be written or the named backend can't work there;
        ConfigError for an unknown backend.
        """
        forced = os.environ.get("FASTBK_IO", "")
        chosen = forced if backend == "auto" and forced else backend
        if chosen not in ("auto", "io_uring", "plain"):
            raise ConfigError(f'disk backend "{chosen}": must be auto, io_uring or plain')
        error = ffi.new("int32_t *")
        name = os.fsencode(directory)
        io = ffi.NULL
        self.fallback_reason = ""
        """Why `auto` could not take io_uring; empty when it did, or was not asked to."""
        if chosen in ("auto", "io_uring"):
            io = lib.fbk_io_uring_create(name, depth, error)
            if io == ffi.NULL and (chosen == "io_uring" or -error[0] not in REFUSED):
                raise error_of(error[0], "open a disk with io_uring", os.fsdecode(name))
            if io == ffi.NULL:
                self.fallback_reason = os.strerror(-error[0])
        if io == ffi.NULL:
            io = lib.fbk_io_plain_create(name, error)
            is_there = error[0] != -errno.ENOENT
            if io == ffi.NULL and is_there and (only_reads or -error[0] in NO_ROOM):
                self.fallback_reason = os.strerror(-error[0])
                io = lib.fbk_io_plain_create_unproven(only_reads, error)
            if io == ffi.NULL:
                raise error_of(error[0], "open a disk", os.fsdecode(name))
        self._io: CData | None = io

    @classmethod
    def of_small_files(cls) -> Disk:
        """Return a disk for files that are read and written through the page cache, in any directory.

        How direct writes work there is not tried: that takes a write and a sync, as long as a small file itself.
        """
        error = ffi.new("int32_t *")
        io = lib.fbk_io_plain_create_unproven(False, error)
        if io == ffi.NULL:
            raise MemoryError("no memory for a disk")
        return cls.of_handle(io)

    @classmethod
    def of_handle(cls, io: CData) -> Disk:
        """Return a disk that owns an existing backend; for the fake disk of tests."""
        disk = cls.__new__(cls)
        disk._io = io
        disk.fallback_reason = ""
        return disk

    def another(self, directory: Path, *, only_reads: bool = False) -> Disk:
        """Return one more plain disk for the directory of this one, for another thread: what was tried holds.

        Where nothing could be tried, since there was no room, it is as if it were opened for itself.
        """
        if self.fallback_reason:
            return Disk(directory, "plain", only_reads=only_reads)
        error = ffi.new("int32_t *")
        io = lib.fbk_io_plain_create_like(self.handle, error)
        if io == ffi.NULL:
            raise error_of(error[0], "open one more disk", os.fsdecode(directory))
        return self.of_handle(io)

    @property
    def handle(self) -> CData:
        """The `struct fbk_io *`, for sibling modules in `fastbk.native` only. Valid until `destroy`."""
        if self._io is None:
            raise ValueError("this disk was destroyed")
        return self._io

    @property
    def name(self) -> str:
        """`io_uring`, `plain` or `fake`."""
        return _text(lib.fbk_disk_name(self.handle))

    @property
    def sync_mode(self) -> str:
        """How writes become durable here (`O_DIRECT+RWF_DSYNC`), for people."""
        return _text(lib.fbk_disk_sync_mode(self.handle))

    @property
    def depth_max(self) -> int:
        """Writes that may be outstanding."""
        return lib.fbk_disk_depth_max(self.handle)

    @property
    def block_size_bytes(self) -> int:
        """What sizes and offsets on direct files are multiples of."""
        return lib.fbk_disk_block_size_bytes(self.handle)

    def set_lock_timeout(self, timeout_ms: int) -> None:
        """Set how long opening with `lock` waits for another holder, before TimeoutError."""
        lib.fbk_disk_lock_timeout(self.handle, timeout_ms)

    def open(
        self,
        path: Path,
        *,
        create: bool = False,
        direct: bool = False,
        read_only: bool = False,
        lock: bool = False,
    ) -> int:
        """Return a file handle of this disk.

        Args:
            path: of the file.
            create: make it; FileExistsError if it is there.
            direct: bypass the page cache where the file system can; sizes and offsets of writes are
                then multiples of `block_size_bytes`.
            read_only: refuse writes.
            lock: hold it alone, until `close` or death. Waits for another holder, then TimeoutError.

        Raises OSError, also for what is no file of its own: a symbolic link, a directory, a device or a pipe.
        """
        flags = (
            (lib.FBK_DISK_CREATE if create else 0)
            | (lib.FBK_DISK_DIRECT if direct else 0)
            | (lib.FBK_DISK_READ_ONLY if read_only else 0)
            | (lib.FBK_DISK_LOCK if lock else 0)
        )
        name = os.fsencode(path)
        status = lib.fbk_disk_open(self.handle, name, flags)
        if -status in _NO_FILE:
            raise OSError(-status, _NO_FILE[-status], os.fsdecode(name))
        return check(status, "open", os.fsdecode(name))

    def close(self, file: int) -> None:
        """Close a file handle; its lock is gone."""
        check(lib.fbk_disk_close(self.handle, file), "close")

    def write_all(
        self, file: int, data: bytes, offset_bytes: int = 0, *, durable: bool = False
    ) -> None:
        """Write all of `data`; with `durable` it is on the disk when this returns."""
        if not data:
            return
        size = len(data)
        check(lib.fbk_disk_write_all(self.handle, file, data, size, offset_bytes, durable), "write")

    def sync(self, file: int) -> None:
        """Make everything written to `file` durable. After an OSError the file's content is in doubt for good."""
        check(lib.fbk_disk_sync(self.handle, file), "sync")

    def read(self, file: int, size_bytes: int, offset_bytes: int = 0) -> bytes:
        """Return up to `size_bytes`; fewer only at the end of the file."""
        if size_bytes == 0:
            return b""
        buffer = ffi.new("uint8_t[]", size_bytes)
        got = check(lib.fbk_disk_read(self.handle, file, buffer, size_bytes, offset_bytes), "read")
        return bytes(ffi.buffer(buffer, got)[:])

    def size(self, file: int) -> int:
        """Return the file's length in bytes."""
        return check(lib.fbk_disk_size(self.handle, file), "size")

    def preallocate(self, file: int, from_bytes: int, to_bytes: int) -> None:
        """Write zeros over [from, to) and sync them; the file is then at least `to_bytes` long."""
        check(lib.fbk_disk_preallocate(self.handle, file, from_bytes, to_bytes), "preallocate")

    def cut(self, path: Path, size_bytes: int) -> int:
        """Cut a file that is longer than that, and never make one longer; return its size then.

        Not durable: after a crash it may be as long as it was. Any thread may do it.
        """
        name = os.fsencode(path)
        return check(lib.fbk_disk_cut(self.handle, name, size_bytes), "cut", os.fsdecode(name))

    def rename(self, old: Path, new: Path) -> None:
        """Rename, replacing `new`. Durable after `sync_directory`."""
        name = os.fsencode(old)
        check(lib.fbk_disk_rename(self.handle, name, os.fsencode(new)), "rename", os.fsdecode(name))

    def unlink(self, path: Path) -> None:
        """Remove a file's name. Durable after `sync_directory`."""
        name = os.fsencode(path)
        check(lib.fbk_disk_unlink(self.handle, name), "unlink", os.fsdecode(name))

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        name = os.fsencode(path)
        check(lib.fbk_disk_sync_directory(self.handle, name), "sync", os.fsdecode(name))

    def make_directory(self, path: Path) -> None:
        """Make a directory if it is not there. Durable after `sync_directory` of its parent."""
        name = os.fsencode(path)
        check(lib.fbk_disk_make_directory(self.handle, name), "mkdir", os.fsdecode(name))

    def list(self, path: Path) -> list[str]:
        """Return the names in a directory, in no order."""
        name = os.fsencode(path)
        size = NAMES_BYTES
        while True:
            names = ffi.new("char[]", size)
            used = lib.fbk_disk_list(self.handle, name, names, size)
            if used != -errno.E2BIG:
                break
            size *= 4
        check(used, "list", os.fsdecode(name))
        return [
            os.fsdecode(each) for each in bytes(ffi.buffer(names, used)[:]).split(b"\0") if each
        ]

    def read_file(self, path: Path) -> bytes:
        """Return a whole file. Raises OSError, also for one of more than `FILE_BYTES_MAX`."""
        file = self.open(path, read_only=True)
        try:
            size = self.size(file)
            if size > FILE_BYTES_MAX:
                raise OSError(
                    errno.EFBIG,
                    f"has {size:,} bytes, and such a file has {FILE_BYTES_MAX:,} at most",
                    os.fspath(path),
                )
            return self.read(file, size)
        finally:
            self.close(file)

    def replace_file(self, path: Path, data: bytes) -> None:
        """Put `data` at `path` at once: after a crash the file has its old content or all of the new one."""
        target = os.fspath(path)
        fresh = f"{target}.new"
        try:
            self.unlink(fresh)
        except FileNotFoundError:
            pass
        file = self.open(fresh, create=True)
        try:
            self.write_all(file, data, durable=True)
        finally:
            self.close(file)
        self.rename(fresh, target)
        self.sync_directory(os.path.dirname(target) or ".")

    def write_again(self, path: Path, data: bytes) -> None:
        """Make durable what was read from a file, and its name: `data` are its bytes (INV-X7).

        The kernel forgets pages whose write failed: they read as they were meant to, a sync finds nothing to do, and
        the disk has something else. Written again they are on their way again. A crash meanwhile harms nothing: what is
        on the disk already is replaced by the same. Raises OSError: then it is as much in doubt as before.
        """
        file = self.open(path)
        try:
            self.write_all(file, data)
            self.sync(file)
        finally:
            self.close(file)
        self.sync_directory(os.path.dirname(os.fspath(path)) or ".")

    def destroy(self) -> None:
        """Give the backend back, after the writes under way. Files stay open until closed or exit."""
        if self._io is not None:
            lib.fbk_disk_destroy(self._io)
            self._io = None

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


def _text(pointer: CData) -> str:
    raw: bytes = ffi.string(pointer)
    return raw.decode()
