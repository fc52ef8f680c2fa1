"""A limit on what this process and those that it starts write to a disk: a control group of the bench's own.

On a fast disk the processors are the bound, and each hour has other ones. With the disk as the bound, how many bytes a
system writes for each byte of data decides, and that is the same in each hour.

Version 1 of control groups limits direct writes only: what goes through the page cache is written by the kernel's own
threads. fastbk and the bare-C chain write directly, Apache's bookies do not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc/self")
BLOCK_DEVICES = Path("/sys/dev/block")
NAME = f"fastbk-bench-{os.getpid()}"


class NoDiskLimit(Exception):
    """This machine has no way to limit a disk's writes, or does not let this user do so."""


@contextlib.contextmanager
def disk_limit(folder: Path, bytes_per_s: int) -> Iterator[None]:
    """Limit direct writes to the disk of `folder` for as long as the block lasts. Raises NoDiskLimit."""
    device = disk_of(folder)
    parent, file, text = _version_1(device, bytes_per_s) or _version_2(device, bytes_per_s)
    group = parent / NAME
    try:
        group.mkdir()
    except OSError as error:
        raise NoDiskLimit(f"{group} cannot be made: {error.strerror}; root can") from error
    try:
        try:
            (group / file).write_text(text)
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            raise NoDiskLimit(f"{group / file}: {error.strerror}") from error
        yield
    finally:
        (parent / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def why_none(folder: Path) -> str:
    """Return why a disk's writes cannot be limited here; "" if they can."""
    try:
        with disk_limit(folder, 1 << 40):
            return ""
    except NoDiskLimit as error:
        return str(error)


def disk_of(folder: Path) -> str:
    """Return major:minor of the whole disk that holds a folder: partitions have no limits. Raises NoDiskLimit."""
    number = folder.stat().st_dev
    entry = BLOCK_DEVICES / f"{os.major(number)}:{os.minor(number)}"
    if not entry.exists():
        raise NoDiskLimit(f"{folder} is on no disk of its own")
    if (entry / "partition").exists():
        return (entry.resolve().parent / "dev").read_text().strip()
    return entry.name


def _version_1(device: str, bytes_per_s: int) -> tuple[Path, str, str] | None:
    for line in (PROC / "mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        fields = kind.split()
        if fields[0] == "cgroup" and "blkio" in fields[2].split(","):
            file = "blkio.throttle.write_bps_device"
            parent = Path(mount.split()[4] + _own_group("blkio"))
            return parent, file, f"{device} {bytes_per_s}"
    return None


def _version_2(device: str, bytes_per_s: int) -> tuple[Path, str, str]:
    for line in (PROC / "mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        if kind.split()[0] == "cgroup2":
            # Only the root may hold processes and have groups with limits below it.
            root = Path(mount.split()[4])
            if "io" not in (root / "cgroup.controllers").read_text().split():
                continue
            try:
                (root / "cgroup.subtree_control").write_text("+io")
            except OSError as error:
                raise NoDiskLimit(f"{root}: no io controller: {error.strerror}") from error
            return root, "io.max", f"{device} wbps={bytes_per_s}"
    raise NoDiskLimit("no control group limits disks here: neither blkio of version 1 nor io of 2")


def _own_group(controller: str) -> str:
    for line in (PROC / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.rstrip("/")
    return ""
