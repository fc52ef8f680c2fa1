"""A limit on what a system's processes write to a disk: a control group of the bench's own.

On a fast disk the processors are the bound, and each hour has other ones. With the disk as the bound, how many bytes a
system writes for each byte of data decides, and that is the same in each hour.

Version 1 of control groups limits direct writes only: what goes through the page cache is written by the kernel's own
threads. fastbk and the bare-C chain write directly, Apache's bookies and Redis do not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fastbk.devcluster.processes import is_alive

PROC = Path("/proc/self")
BLOCK_DEVICES = Path("/sys/dev/block")
PREFIX = "fastbk-bench-"
NAME = f"{PREFIX}{os.getpid()}"
PROCESSES, ENABLED = "cgroup.procs", "cgroup.subtree_control"
REMOVE_S_MAX, REMOVE_PAUSE_S = 5.0, 0.02
"""A group can be removed when the processes are gone that were in it; killed ones may take a moment."""


class NoDiskLimit(Exception):
    """This machine has no way to limit a disk's writes, or does not let this user do so."""


@dataclass(frozen=True)
class Controller:
    """Where groups with a limit are made: below `parent`, by writing `text` to their `file`.

    Attributes:
        home: the group that this process is in by itself.
        switches_on: the controller has to be enabled for groups below `parent` (version 2).
    """

    parent: Path
    file: str
    text: str
    home: Path
    switches_on: bool = False


@contextlib.contextmanager
def disk_limit(folder: Path, bytes_per_s: int, pids: Iterable[int] = ()) -> Iterator[None]:
    """Limit direct writes to the disk of `folder` for as long as the block lasts; 0 bytes: limit nothing.

    What this process, the processes `pids` and all that they start write is limited together. Raises NoDiskLimit.
    """
    if not bytes_per_s:
        yield
        return
    controller = controller_of(disk_of(folder), bytes_per_s)
    remove_left_over(controller)
    group = controller.parent / NAME
    with _enabled(controller):
        try:
            try:
                group.mkdir()
            except OSError as error:
                raise NoDiskLimit(f"{group} cannot be made: {error.strerror}; root can") from error
            try:
                (group / controller.file).write_text(controller.text)
                for pid in (os.getpid(), *pids):
                    (group / PROCESSES).write_text(str(pid))
            except OSError as error:
                raise NoDiskLimit(f"{group / controller.file}: {error.strerror}") from error
            yield
        finally:
            with _undisturbed():
                _remove(group, controller.home)
            if group.exists():
                print(f"bench: {group} has processes still: rmdir it when they are gone")


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


def controller_of(device: str, bytes_per_s: int) -> Controller:
    """Return what limits writes to a device here. Raises NoDiskLimit."""
    return _version_1(device, bytes_per_s) or _version_2(device, bytes_per_s)


def remove_left_over(controller: Controller) -> None:
    """Remove the groups of benches that were killed."""
    for group in controller.parent.glob(f"{PREFIX}*"):
        number = group.name.removeprefix(PREFIX)
        if number.isdecimal() and not is_alive(int(number)):
            _remove(group, controller.home, wait_s=0.0)


def _remove(group: Path, home: Path, *, wait_s: float = REMOVE_S_MAX) -> None:
    """Put the processes of a group where this one belongs, and remove it, if it is there."""
    deadline_s = time.monotonic() + wait_s
    while group.exists():
        with contextlib.suppress(OSError):  # one ends, or the group is gone
            for pid in (group / PROCESSES).read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (home / PROCESSES).write_text(pid)
            group.rmdir()
        if time.monotonic() >= deadline_s:
            return
        time.sleep(REMOVE_PAUSE_S)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Have signals wait that would end this process: the second Ctrl-C finds everything removed."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def _enabled(controller: Controller) -> Iterator[None]:
    """Have groups below `parent` take limits. Raises NoDiskLimit."""
    switch = controller.parent / ENABLED
    if not controller.switches_on or "io" in switch.read_text().split():
        yield
        return
    try:
        switch.write_text("+io")
    except OSError as error:
        raise NoDiskLimit(f"{controller.parent}: no io controller: {error.strerror}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # another bench has a group there now
            switch.write_text("-io")


def _version_1(device: str, bytes_per_s: int) -> Controller | None:
    for mount, root, kind, options in _mounts():
        if kind == "cgroup" and "blkio" in options.split(","):
            home = mount / _own_group("blkio", root)
            file = "blkio.throttle.write_bps_device"
            return Controller(home, file, f"{device} {bytes_per_s}", home)
    return None


def _version_2(device: str, bytes_per_s: int) -> Controller:
    for mount, root, kind, _ in _mounts():
        # Only the root may hold processes and have groups with limits below it.
        if kind == "cgroup2" and "io" in (mount / "cgroup.controllers").read_text().split():
            home, text = mount / _own_group("", root), f"{device} wbps={bytes_per_s}"
            return Controller(mount, "io.max", text, home, switches_on=True)
    raise NoDiskLimit("no control group limits disks here: neither blkio of version 1 nor io of 2")


def _mounts() -> Iterator[tuple[Path, str, str, str]]:
    """Yield where each file system is mounted, which folder of it, its kind and its options."""
    for line in (PROC / "mountinfo").read_text().splitlines():
        mount, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        _, _, _, root, place, *_ = mount.split()
        yield Path(place), root, kind, options


def _own_group(controller: str, root: str) -> str:
    """Return this process's group below what is mounted of a hierarchy; version 2's has no controller's name."""
    for line in (PROC / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.removeprefix(root.rstrip("/")).strip("/")
    return ""
