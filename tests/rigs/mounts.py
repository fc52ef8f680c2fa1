"""Loop devices, mounts and small file systems, by the kernel's own calls. Needs root."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.fixtures.wait import wait_until

LOOP_CONTROL = "/dev/loop-control"
LOOP_GET_FREE, LOOP_CONFIGURE, LOOP_CLEAR = 0x4C82, 0x4C0A, 0x4C01
LOOP_CONFIG = struct.Struct("<II232x64x")
LOOP_TRIES_MAX = 50
DETACH = 2
SHUTDOWN = 0x8004587D
SHUTDOWN_WITHOUT_LOG = struct.pack("<I", 2)
KINDS = {
    "ext4": [
        "mkfs.ext4",
        "-q",
        "-F",
        "-b",
        "4096",
        "-J",
        "size=4",
        "-E",
        "lazy_itable_init=0,lazy_journal_init=0",
    ],
    "xfs": ["mkfs.xfs", "-q", "-f", "-b", "size=4096"],
}
SMALL_XFS = {"TEST_DIR": "1", "TEST_DEV": "1", "QA_CHECK_FS": "1"}
"""mkfs.xfs makes file systems under 300 MB only for those who test it."""

_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """Return why file systems on loop devices can't be made here, in the words of a skip; empty when they can."""
    if os.geteuid() != 0:
        return "needs root: mounts"
    if not os.path.exists(LOOP_CONTROL):
        return "needs root: there are no loop devices"
    return ""


def why_not_fuse() -> str:
    """Return why a FUSE file can't back a loop device here; empty when it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs FUSE: no /dev/fuse"
    return why_not()


def make_file_system(path: Path, kind: str, size_bytes: int) -> None:
    """Make an image file with a fresh file system."""
    with open(path, "wb") as file:
        file.truncate(size_bytes)
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # where administrators' programs are
    environment = {**os.environ, "PATH": search, **SMALL_XFS}
    subprocess.run(
        [*KINDS[kind], str(path)], check=True, capture_output=True, timeout=60, env=environment
    )


def attach(path: Path) -> str:
    """Return the loop device that shows a file. Others may take devices at the same time."""
    backing = os.open(path, os.O_RDWR)
    control = os.open(LOOP_CONTROL, os.O_RDWR)
    try:
        for attempt in range(LOOP_TRIES_MAX):
            number = fcntl.ioctl(control, LOOP_GET_FREE)
            name = f"/dev/loop{number}"
            if not os.path.exists(name):
                os.mknod(name, 0o660 | 0o060000, os.makedev(7, number))
            device = os.open(name, os.O_RDWR)
            try:
                fcntl.ioctl(device, LOOP_CONFIGURE, LOOP_CONFIG.pack(backing, 0))
                return name
            except OSError as error:
                if error.errno != errno.EBUSY or attempt == LOOP_TRIES_MAX - 1:
                    raise
            finally:
                os.close(device)
        raise OSError(errno.EBUSY, "no free loop device")
    finally:
        os.close(control)
        os.close(backing)


def detach(device: str) -> None:
    """Give a loop device back; it goes when its last user does."""
    with contextlib.suppress(OSError):
        file = os.open(device, os.O_RDWR)
        try:
            fcntl.ioctl(file, LOOP_CLEAR)
        finally:
            os.close(file)


def mount(device: str, folder: Path, kind: str) -> None:
    """Mount. Raises OSError."""
    options = b"nouuid" if kind == "xfs" else b""
    if _libc.mount(os.fsencode(device), os.fsencode(folder), kind.encode(), 0, options):
        raise OSError(ctypes.get_errno(), f"mount {device} as {kind}")


def unmount(folder: Path, *, lazily: bool = False) -> None:
    """Unmount; nothing that still uses it is waited for when `lazily`. Raises OSError."""

    def is_gone() -> bool:
        if _libc.umount2(os.fsencode(folder), DETACH if lazily else 0) == 0:
            return True
        error = ctypes.get_errno()
        if error != errno.EBUSY:
            raise OSError(error, f"unmount {folder}")
        return False  # a file that was just closed may still be busy

    wait_until(is_gone, f"unmount {folder}")


def shut_down(folder: Path) -> None:
    """Stop a mounted file system at once, as a power cut does: nothing more reaches the device, its log included."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(file, SHUTDOWN, SHUTDOWN_WITHOUT_LOG)
    finally:
        os.close(file)


def repair(image: Path, kind: str) -> None:
    """Do what an operator does when a file system can't be mounted. Raises CalledProcessError when it is beyond that.

    ext4's superblock covers two sectors with one checksum: a device that tears there leaves it to e2fsck and a backup.
    """
    if kind == "ext4":
        search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        environment = {**os.environ, "PATH": search}
        subprocess.run(
            ["e2fsck", "-fy", str(image)], capture_output=True, timeout=60, env=environment
        )
        subprocess.run(
            ["e2fsck", "-fn", str(image)],
            check=True,
            capture_output=True,
            timeout=60,
            env=environment,
        )


@contextlib.contextmanager
def mounted(image: Path, folder: Path, kind: str) -> Iterator[Path]:
    """Mount an image file, and take it apart again."""
    folder.mkdir(exist_ok=True)
    device = attach(image)
    try:
        mount(device, folder, kind)
        try:
            yield folder
        finally:
            unmount(folder)
    finally:
        detach(device)


class Recorder:
    """An image behind a FUSE file behind a loop device: whatever is written to the device is logged."""

    def __init__(self, image: Path, folder: Path, flush_delay_s: float = 0.0) -> None:
        """Start it. `image` is written to; `folder` takes log and mount point. `flush_delay_s`: of each flush."""
        folder.mkdir()
        self.log = folder / "log"
        self._position = folder / "position"
        self._position.write_bytes(bytes(8))
        self._point = folder / "fuse"
        self._point.mkdir()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.rigs.fuse_file"),
                *(self._point, image, self.log, self._position, str(flush_delay_s)),
            ],
            stdin=subprocess.DEVNULL,
        )
        self._position_file = os.open(self._position, os.O_RDONLY)
        self.device = ""
        try:
            wait_until(lambda: self._file.exists() or self._has_died(), "the FUSE file")
            self.device = attach(self._file)
        except BaseException:
            self.close()
            raise

    @property
    def _file(self) -> Path:
        return self._point / "disk"

    def _has_died(self) -> bool:
        if self._process.poll() is not None:
            raise OSError(errno.EIO, f"the FUSE file ended with {self._process.returncode}")
        return False

    def position(self) -> int:
        """How long the log is now: everything that has been answered lies before."""
        return int.from_bytes(os.pread(self._position_file, 8, 0), "little")

    def close(self) -> None:
        """Take everything apart; the device is not mounted any more. The log stays."""
        if self.device:
            detach(self.device)
        os.close(self._position_file)
        with contextlib.suppress(OSError):
            unmount(self._point, lazily=True)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
