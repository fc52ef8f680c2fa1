"""A file system of one file that logs what is written and flushed: the backing of a loop device.

`python -m tests.rigs.fuse_file MOUNT_POINT IMAGE LOG POSITION FLUSH_DELAY_S` mounts itself with the kernel's own
protocol on /dev/fuse (linux/fuse.h), serves `IMAGE` as the file `disk`, and appends every write and every flush to
`LOG`, before it is answered. The eight bytes of `POSITION` say how long the log is: whoever reads them after an
acknowledgement knows that whatever it stands on lies before. Each flush takes `FLUSH_DELAY_S` longer than it must, as
on a slow disk. It ends when it is unmounted, or with its parent. Needs root.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import struct
import sys
import time

from tests.rigs.block_log import FLUSH, WRITE, header

NAME = b"disk"
ROOT_ID, FILE_ID = 1, 2
WRITE_BYTES_MAX = 1 << 20
REQUEST_BYTES_MAX = WRITE_BYTES_MAX + 8192
HEADER = struct.Struct("<IIQQIIII")
REPLY = struct.Struct("<IiQ")
INIT_IN = struct.Struct("<IIII")
INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
READ_OR_WRITE = struct.Struct("<QQIIQII")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
VERSION = (7, 31)
BIG_WRITES, MAX_PAGES = 1 << 5, 1 << 22
VALID_S = 3600
LOOKUP, FORGET, GETATTR, OPEN, READ, WRITE_CALL, STATFS, RELEASE = 1, 2, 3, 14, 15, 16, 17, 18
FSYNC, FLUSH_CALL, INIT, OPENDIR, RELEASEDIR, FSYNCDIR = 20, 25, 26, 27, 29, 30
INTERRUPT, DESTROY, BATCH_FORGET = 36, 38, 42
SILENT = (FORGET, BATCH_FORGET, INTERRUPT)
NOTHING_TO_SAY = (RELEASE, FLUSH_CALL, RELEASEDIR, FSYNCDIR, DESTROY)
NO_DEVICES_NO_SETUID = 4 | 2
PARENT_DEATH_SIGNAL, SIGTERM = 1, 15


class FuseFile:
    """The serving end. One request at a time, so the log's order is the order in which writes were done."""

    def __init__(self, image: str, log: str, position: str, flush_delay_s: float) -> None:
        self._image = os.open(image, os.O_RDWR)
        self._size_bytes = os.fstat(self._image).st_size
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._logged = 0
        self._flush_delay_s = flush_delay_s
        with open(position, "r+b") as file:
            self._position = mmap.mmap(file.fileno(), 8)

    def mount(self, mount_point: str) -> int:
        """Mount and return the descriptor that requests come from. Raises OSError."""
        fuse = os.open("/dev/fuse", os.O_RDWR)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PARENT_DEATH_SIGNAL, SIGTERM)
        options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"fastbk", os.fsencode(mount_point), b"fuse", NO_DEVICES_NO_SETUID, options):
            raise OSError(ctypes.get_errno(), "mount a FUSE file system")
        return fuse

    def serve(self, fuse: int) -> None:
        """Answer until it is unmounted."""
        while True:
            try:
                request = os.read(fuse, REQUEST_BYTES_MAX)
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.ENOTCONN):
                    return
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                raise
            if not request:
                return
            _, opcode, unique, node_id, *_ = HEADER.unpack_from(request)
            if opcode in SILENT:
                continue
            status, body = self.answer(opcode, node_id, memoryview(request)[HEADER.size :])
            os.write(fuse, REPLY.pack(REPLY.size + len(body), status, unique) + body)

    def answer(self, opcode: int, node_id: int, body: memoryview) -> tuple[int, bytes]:
        """Return a negative errno, or 0 and what goes with it."""
        if opcode == READ:
            _, offset, size, *_ = READ_OR_WRITE.unpack_from(body)
            return 0, os.pread(self._image, size, offset)
        if opcode == WRITE_CALL:
            _, offset, size, *_ = READ_OR_WRITE.unpack_from(body)
            data = body[READ_OR_WRITE.size : READ_OR_WRITE.size + size]
            os.pwrite(self._image, data, offset)
            self._note(WRITE, offset, data)
            return 0, struct.pack("<II", size, 0)
        if opcode == FSYNC:
            time.sleep(self._flush_delay_s)
            self._note(FLUSH, 0, b"")
            return 0, b""
        if opcode == INIT:
            _, _, read_ahead, flags = INIT_IN.unpack_from(body)
            return 0, INIT_OUT.pack(
                *VERSION,
                read_ahead,
                flags & (BIG_WRITES | MAX_PAGES),
                16,
                12,
                WRITE_BYTES_MAX,
                1,
                256,
                0,
                0,
            )
        if opcode == LOOKUP:
            if bytes(body).rstrip(b"\0") != NAME:
                return -errno.ENOENT, b""
            return 0, struct.pack("<QQQQII", FILE_ID, 0, VALID_S, VALID_S, 0, 0) + self._attributes(
                FILE_ID
            )
        if opcode == GETATTR:
            return 0, struct.pack("<QII", VALID_S, 0, 0) + self._attributes(node_id)
        if opcode in (OPEN, OPENDIR):
            return 0, struct.pack("<QII", 0, 0, 0)
        if opcode == STATFS:
            return 0, struct.pack(
                "<QQQQQIII28x", 1 << 20, 1 << 20, 1 << 20, 10, 10, 4096, 255, 4096
            )
        return (0 if opcode in NOTHING_TO_SAY else -errno.EOPNOTSUPP), b""

    def _attributes(self, node_id: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if node_id == ROOT_ID else stat.S_IFREG | 0o600
        size = 4096 if node_id == ROOT_ID else self._size_bytes
        return ATTRIBUTES.pack(
            node_id, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0
        )

    def _note(self, kind: int, offset: int, data: bytes | memoryview) -> None:
        """Append to the log, then say that it is there."""
        whole = header(kind, offset, len(data)) + bytes(data)
        os.write(self._log, whole)
        self._logged += len(whole)
        self._position[0:8] = self._logged.to_bytes(8, "little")


def main() -> None:
    """Serve one file; the arguments are in the module's first lines."""
    mount_point, image, log, position, flush_delay_s = sys.argv[1:]
    file = FuseFile(image, log, position, float(flush_delay_s))
    file.serve(file.mount(mount_point))


if __name__ == "__main__":
    main()
