"""The disks under a bookie's directories: mounts by `/proc/self/mountinfo`, room, and what real operations show."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.doctor.interrupts import disk_of, interrupts_of
from fastbk.doctor.report import Finding, fail, ok, warn
from fastbk.errors import StorageError
from fastbk.native.disk import Disk
from fastbk.server.disks.space_thresholds import journal_bytes_max, ledger_thresholds
from fastbk.server.identity import places
from fastbk.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.doctor.report import Check
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.storage.identity_check import DirectoryPlace

GOOD_KINDS = frozenset({"ext4", "xfs"})
NETWORK_KINDS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "glusterfs"})
MEMORY_KINDS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
NO_BARRIER = frozenset({"nobarrier", "barrier=0"})
INODES_MIN = 10_000
INTERRUPTS_SHARE_MIN = 0.5
"""Above it one processor is the disk's."""


class Disks:
    """The directories of one configuration."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        self._places = list(places(config))

    def checks(self) -> Iterator[Check]:
        """Yield all looks at the disks."""
        for directory, place in self._places:
            yield f"{place}", partial(self.directory, directory, place)
            yield f"file system of the {place}", partial(self.mount, directory, place)
            yield f"writes to the {place}", partial(self.writes, directory, place)
            yield f"room in the {place}", partial(self.room, directory, place)
            if place.role == "journal":
                yield f"interrupts of the {place}", partial(self.interrupts, directory)
        yield "a disk for each directory", self.sharing

    def directory(self, directory: str, place: DirectoryPlace) -> Finding:
        """Whether it is there, or can be made."""
        if os.path.isdir(directory):
            if os.access(directory, os.W_OK | os.X_OK):
                return ok(f"{directory} is there")
            owner = os.stat(directory).st_uid
            return fail(
                f"{directory} may not be written by this user (it belongs to user {owner})",
                f"run the doctor as the bookie's user, or chown -R BOOKIE_USER {directory}",
            )
        if os.path.exists(directory):
            return fail(f"{directory} is no directory", "configure another path")
        parent = existing_parent(directory)
        if os.access(parent, os.W_OK | os.X_OK):
            return ok(f"{directory} is not there yet; the first start makes it in {parent}")
        return fail(
            f"{directory} is not there, and {parent} may not be written by this user",
            f"install -d -o BOOKIE_USER {directory}",
        )

    def mount(self, directory: str, place: DirectoryPlace) -> Finding:
        """A file system that keeps what it says it has synced."""
        mount = mount_of(existing_parent(directory))
        why = f"{mount.kind} on {mount.source}, mounted at {mount.point}"
        if "ro" in mount.options:
            return fail(
                f"{why}, read-only", f"look at dmesg, then mount -o remount,rw {mount.point}"
            )
        if mount.kind in MEMORY_KINDS:
            return warn(f"{why}: in memory, gone at the next boot", "choose a directory on a disk")
        weak = mount.options & NO_BARRIER
        if weak:
            return fail(
                f"{why} with {', '.join(sorted(weak))}: a synced write may be lost at a power cut",
                f"mount -o remount,barrier=1 {mount.point}, and the same in /etc/fstab",
            )
        if mount.kind in NETWORK_KINDS:
            return warn(
                f"{why}: over a network; locks and syncs are only as good as its server",
                "choose a directory on a local disk",
            )  # fmt: skip
        if mount.kind not in GOOD_KINDS:
            return warn(f"{why}: ext4 and xfs are what is tested", "use ext4 or xfs")
        return ok(why)

    def writes(self, directory: str, place: DirectoryPlace) -> Finding:
        """What real operations show: io_uring, O_DIRECT, RWF_DSYNC."""
        probed = existing_parent(directory)
        backend = self._config.journal.backend if place.role == "journal" else "plain"
        try:
            with Disk(Path(probed), backend) as disk:
                how = f"{disk.name}, {disk.sync_mode}, blocks of {disk.block_size_bytes} bytes"
                reason = disk.fallback_reason
                is_direct = "O_DIRECT" in disk.sync_mode
        except OSError as error:
            fix = f"df {probed}; mount | grep {probed}; ls -ld {probed}"
            return fail(f"a small write in {probed} fails: {error.strerror or error}", fix)
        if reason:
            return warn(
                f"{how}; io_uring does not work here: {reason}",
                "in Docker: --security-opt seccomp=PROFILE with io_uring_* allowed; else see `io_uring allowed`",
            )
        if place.role == "journal" and not is_direct:
            return warn(
                f"{how}: through the page cache", "a file system with O_DIRECT: ext4 or xfs"
            )
        return ok(how)

    def room(self, directory: str, place: DirectoryPlace) -> Iterator[Finding]:
        """Free space against what the configuration may need there, and free inodes."""
        status = os.statvfs(existing_parent(directory))
        free_bytes = status.f_bavail * status.f_frsize
        if place.role == "journal":
            needed_bytes = max(0, journal_bytes_max(self._config.journal) - _size_of(directory))
            what, fix = "the journal at its limit", "make room, or lower [journal] limit"
        else:
            thresholds = ledger_thresholds(self._config.disk, self._config.journal)
            needed_bytes = thresholds.free_bytes_min
            what = "the reserves (below them normal adds are refused)"
            fix = "make room, or lower [journal] limit and [disk] free_min"
        why = f"{format_size(free_bytes)} free, {format_size(needed_bytes)} for {what}"
        yield fail(why, fix) if free_bytes < needed_bytes else ok(why)
        if status.f_files and status.f_favail < INODES_MIN:
            text = f"{status.f_favail} inodes are free"
            yield warn(
                text, f"remove small files from {mount_of(existing_parent(directory)).point}"
            )

    def interrupts(
        self, directory: str, proc: Path = Path("/proc"), sys_: Path = Path("/sys")
    ) -> Finding:
        """Who answers commits: workers and journals may keep to those processors."""
        disk = disk_of(existing_parent(directory), sys_)
        found = interrupts_of((proc / "interrupts").read_text(), disk[1]) if disk else {}
        if disk is None or not found:
            return ok("not known of this kind of disk")
        most = max(found, key=lambda processor: found[processor])
        share, chosen = found[most] / sum(found.values()), self._config.bookie.processors
        why = f"{disk[0]}: processor {most} has {share:.0%} of them"
        if share < INTERRUPTS_SHARE_MIN:
            return ok(f"{disk[0]}: spread over {len(found)} processors")
        if chosen and most not in chosen:
            there = f"[bookie] processors = {list(chosen)}"
            return warn(
                f"{why}, {there} are others", f"[bookie] processors = [{most}], or leave them out"
            )
        return ok(why)

    def sharing(self) -> Finding:
        """Journals commit all the time; whatever else their disk does, they wait for."""
        by_device: dict[int, list[str]] = {}
        for directory, place in self._places:
            device = os.stat(existing_parent(directory)).st_dev
            by_device.setdefault(device, []).append(str(place))
        shared = [names for names in by_device.values() if len(names) > 1]
        if shared:
            return warn(
                f"{' and '.join(shared[0])} share one: flushes and reads disturb commits",
                "put the journal on a disk of its own where latency matters",
            )
        return ok("no two share one")


def existing_parent(directory: str) -> str:
    """Return the directory, or the nearest folder above it that is there."""
    path = os.path.abspath(directory)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _size_of(directory: str) -> int:
    try:
        with os.scandir(directory) as entries:
            return sum(each.stat().st_size for each in entries if each.is_file())
    except FileNotFoundError:
        return 0


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount: `device` is major:minor, `source` what was mounted, `options` of mount and file system together."""

    device: str
    point: str
    kind: str
    source: str
    options: frozenset[str]


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts that a mountinfo file lists; lines that make no sense are passed over."""
    found = []
    for line in text.splitlines():
        front, separator, back = line.partition(" - ")
        fields, rest = front.split(), back.split()
        if not separator or len(fields) < 6 or len(rest) < 2:
            continue
        options = {*fields[5].split(","), *(rest[2].split(",") if len(rest) > 2 else ())}
        found.append(
            Mount(
                fields[2], _unescaped(fields[4]), rest[0], _unescaped(rest[1]), frozenset(options)
            )
        )
    return found


def mount_of(directory: str, mountinfo: Path = Path("/proc/self/mountinfo")) -> Mount:
    """Return the mount that `directory`, or the nearest folder above it that exists, lies on. Raises StorageError."""
    path = os.path.realpath(directory)
    best: Mount | None = None
    for mount in parse_mounts(mountinfo.read_text()):
        is_above = mount.point == "/" or path == mount.point or path.startswith(f"{mount.point}/")
        # Of several at one point the last one is on top.
        if is_above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    if best is None:
        raise StorageError(f"{directory} lies on no mount that {mountinfo} lists")
    return best


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
