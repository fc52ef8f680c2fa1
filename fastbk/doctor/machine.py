"""Checks of the machine: its kernel and limits (`System`), and the disks of one bookie (`Disks`)."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import fastbk
from fastbk.doctor import Finding, fail, ok, warn
from fastbk.errors import StorageError
from fastbk.native.disk import Disk
from fastbk.native.hashes import is_hardware
from fastbk.native.segment import can_seal
from fastbk.server import process_table
from fastbk.server.configuration.bookie_config import pair_count
from fastbk.server.disks.space_thresholds import journal_bytes_max, ledger_thresholds
from fastbk.server.identity import places
from fastbk.units import MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.doctor import Check
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.storage.identity_check import DirectoryPlace

KERNEL_MIN = (5, 10)
KERNEL_MEMLOCK_FREE = (5, 12)
"""First kernel whose io_uring memory does not count against the memlock limit."""
MEMLOCK_BYTES_MIN = 8 * MIB
FILES_BESIDE_CONNECTIONS = 256
"""Entry logs, journal files, rings and bells of one process."""
SWAPPINESS_MAX = 10
NO_LIMIT_BYTES = 1 << 60
"""What version 1 of control groups shows where there is no limit is about 2⁶³."""
CLOCK_UNSYNCHRONISED = 5  # adjtimex's TIME_ERROR
_TIMEX_BYTES = 256
LIBRARIES = ("cffi", "flatbuffers", "kazoo", "msgspec", "uvloop")


class System:
    """The machine as `/proc` and `/sys` show it; the roots are arguments so that tests can make machines up."""

    def __init__(
        self, config: BookieConfig, proc: Path = Path("/proc"), sys_: Path = Path("/sys")
    ) -> None:
        self._config = config
        self._proc = proc
        self._sys = sys_

    def checks(self) -> Iterator[Check]:
        """Yield all looks at the machine."""
        yield "versions", self.versions
        yield "kernel", self.kernel
        yield "io_uring allowed", self.io_uring
        yield "open files", self.open_files
        yield "locked memory", self.locked_memory
        yield "sealed memory", self.sealed_memory
        yield "memory", self.memory
        yield "swap", self.swap
        yield "huge pages", self.huge_pages
        yield "clock", self.clock
        yield "checksums", self.checksums
        yield "processors", self.processors

    def versions(self) -> Finding:
        """List the versions of everything that takes part; name a library that is missing."""
        words = [f"fastbk {fastbk.__version__}", f"Python {platform.python_version()}"]
        words += [f"{name} {metadata.version(name)}" for name in LIBRARIES]
        return ok(", ".join(words))

    def kernel(self) -> Finding:
        """Linux, and which."""
        release = self._read("sys/kernel/osrelease")
        version = _version(release)
        if version < KERNEL_MIN:
            wanted = ".".join(map(str, KERNEL_MIN))
            return warn(f"Linux {release}", f"{wanted} or newer: Debian 11's or later")
        return ok(f"Linux {release}")

    def io_uring(self) -> Finding:
        """What forbids io_uring, if anything does; whether it works is tried in each directory."""
        disabled = self._read("sys/kernel/io_uring_disabled", "0")
        if disabled == "2" or (disabled == "1" and os.geteuid() != 0):
            return warn(
                f"kernel.io_uring_disabled = {disabled}: commits wait in system calls instead",
                "sysctl -w kernel.io_uring_disabled=0, and the same in /etc/sysctl.d",
            )
        if re.search(r"^Seccomp:\s*2", self._read("self/status", ""), re.MULTILINE):
            return ok(
                "by the kernel; a seccomp filter is active, as in containers, and may forbid it"
            )
        return ok("by the kernel, and no seccomp filter is active")

    def open_files(self) -> Finding:
        """Room for every connection that the configuration allows."""
        wanted = self._config.network.connections_max + FILES_BESIDE_CONNECTIONS
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        why = f"up to {hard} a process (soft limit {soft}, raised at start), {wanted} are needed"
        if hard not in (resource.RLIM_INFINITY, -1) and hard < wanted:
            return warn(
                f"{why}: fewer connections are taken",
                f"ulimit -n {wanted}; for a service LimitNOFILE={wanted}",
            )
        return ok(why)

    def sealed_memory(self) -> Finding:
        """Whether a process that only reads shared memory can be kept from writing to it."""
        if can_seal():
            return ok("the kernel refuses writable mappings of shared memory that is sealed")
        return warn(
            "the kernel cannot seal shared memory: a compromised network worker could write to that of others",
            "Linux 5.1 or newer, outside of sandboxes that lack F_SEAL_FUTURE_WRITE",
        )

    def locked_memory(self) -> Finding:
        """What io_uring's rings count against on older kernels."""
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        is_unlimited = soft in (resource.RLIM_INFINITY, -1)
        text = "unlimited" if is_unlimited else format_size(soft)
        if _version(self._read("sys/kernel/osrelease")) >= KERNEL_MEMLOCK_FREE:
            return ok(f"{text}; this kernel's io_uring needs none")
        if not is_unlimited and soft < MEMLOCK_BYTES_MIN:
            return warn(
                f"{text}: too little for io_uring on this kernel",
                f"ulimit -l {MEMLOCK_BYTES_MIN // 1024}; for a service LimitMEMLOCK={MEMLOCK_BYTES_MIN}",
            )
        return ok(text)

    def memory(self) -> Iterator[Finding]:
        """The memory table against what the machine, and a container's limit, have."""
        needed_bytes = process_table.memory_bytes(self._config)
        total_bytes = self._meminfo("MemTotal")
        available_bytes = self._meminfo("MemAvailable")
        limit_bytes = self._cgroup_limit_bytes()
        allowed_bytes = min(total_bytes, limit_bytes or total_bytes)
        why = f"{format_size(needed_bytes)} by the memory table, {format_size(allowed_bytes)} there"
        fix = "shrink rings and caches (`fastbk bookie --config FILE --check` lists them)"
        if needed_bytes > allowed_bytes:
            yield fail(why, f"{fix}, or give it more")
        elif needed_bytes > available_bytes:
            yield warn(f"{why}, {format_size(available_bytes)} free now", fix)
        else:
            yield ok(why)

    def swap(self) -> Finding:
        """A bookie whose rings are swapped out is slower than its disks."""
        total_bytes = self._meminfo("SwapTotal")
        swappiness = int(self._read("sys/vm/swappiness", "60"))
        if total_bytes and swappiness > SWAPPINESS_MAX:
            return warn(
                f"{format_size(total_bytes)} of swap, vm.swappiness = {swappiness}: rings and caches may leave memory",
                "sysctl -w vm.swappiness=1, or swapoff -a",
            )
        return ok("none" if not total_bytes else f"vm.swappiness = {swappiness}")

    def huge_pages(self) -> Finding:
        """Compacting memory for transparent huge pages stops processes for milliseconds."""
        text = self._read_sys("kernel/mm/transparent_hugepage/enabled", "[never]")
        match = re.search(r"\[(\w+)\]", text)
        chosen = match[1] if match else "unknown"
        if chosen == "always":
            return warn(
                "transparent huge pages are `always`: pauses of milliseconds when memory is compacted",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            )
        return ok(f"transparent ones: {chosen}")

    def clock(self) -> Finding:
        """Whether something keeps the clock: leases, retention and logs go by it."""
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            state = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
        except (OSError, AttributeError) as error:
            return warn(f"the kernel cannot be asked: {error}", "look at `timedatectl`")
        if state == CLOCK_UNSYNCHRONISED or state < 0:
            return warn(
                "the kernel says that nothing keeps it synchronised",
                "apt-get install chrony; in a container that is the host's business",
            )
        return ok("synchronised")

    def checksums(self) -> Finding:
        """Whether the processor computes CRC32C itself."""
        if is_hardware():
            return ok("by the processor's instructions")
        return warn(
            "from tables: each byte costs several times as much", "a processor with SSE4.2 or CRC"
        )

    def processors(self) -> Finding:
        """Whether each busy process has a core, and with `spin` each that polls one of its own."""
        count = len(os.sched_getaffinity(0))
        workers = process_table.worker_count(self._config)
        why = f"{count} usable, {workers} worker{'s' if workers > 1 else ''} and a journal and an index a pair"
        if count < 2:
            return warn(why, "give the bookie two cores at least")
        if self._config.bookie.spin_us:
            return self._spin(count, workers + pair_count(self._config))
        return ok(why)

    def _spin(self, count: int, polling: int) -> Finding:
        """Whether those that poll keep nobody else from working."""
        if not self._config.bookie.processors:
            return warn(
                "[bookie] spin without processors: while the kernel moves processes, polling is slower than sleeping",
                "name in [bookie] processors those that the journal's disk interrupts, or leave out spin",
            )
        why = f"{count} usable, [bookie] spin may keep {polling} busy"
        if count <= polling:
            return warn(why, f"leave out spin, or give this machine {polling + 1} at least")
        return ok(why)

    # ---- what is read

    def _read(self, name: str, default: str | None = None) -> str:
        return _text(self._proc / name, default)

    def _read_sys(self, name: str, default: str | None = None) -> str:
        return _text(self._sys / name, default)

    def _meminfo(self, name: str) -> int:
        match = re.search(rf"^{name}:\s+(\d+) kB", self._read("meminfo"), re.MULTILINE)
        return int(match[1]) * 1024 if match else 0

    def _cgroup_limit_bytes(self) -> int:
        """Return the memory limit of the control group, 0 for none."""
        for name in ("fs/cgroup/memory.max", "fs/cgroup/memory/memory.limit_in_bytes"):
            text = self._read_sys(name, "max")
            if text.isdigit() and int(text) < NO_LIMIT_BYTES:
                return int(text)
        return 0


def _text(path: Path, default: str | None) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        if default is None:
            raise
        return default


def _version(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


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
    mounts = []
    for line in text.splitlines():
        front, separator, back = line.partition(" - ")
        fields, rest = front.split(), back.split()
        if not separator or len(fields) < 6 or len(rest) < 2:
            continue
        options = {*fields[5].split(","), *(rest[2].split(",") if len(rest) > 2 else ())}
        mounts.append(
            Mount(
                fields[2], _unescaped(fields[4]), rest[0], _unescaped(rest[1]), frozenset(options)
            )
        )
    return mounts


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


def disk_of(directory: str, sys_: Path = Path("/sys")) -> tuple[str, str] | None:
    """Return the disk under a directory and how the names of its interrupts begin; None where that is not known.

    Known are disks of virtio (`vda`, `virtio1-req`) and NVMe (`nvme0n1`, `nvme0q`), whole or in partitions.
    """
    device = os.stat(directory).st_dev
    block = (sys_ / "dev/block" / f"{os.major(device)}:{os.minor(device)}").resolve()
    if (block / "partition").exists():
        block = block.parent
    if match := re.fullmatch(r"(nvme\d+)n\d+", block.name):
        return block.name, f"{match[1]}q"
    bus = (block / "device").resolve().name
    return (block.name, f"{bus}-req") if re.fullmatch(r"virtio\d+", bus) else None


def interrupts_of(text: str, beginning: str) -> dict[int, int]:
    """Return processor → interrupts so far, of those in `/proc/interrupts` whose name begins so; only those above 0."""
    header, *lines = text.splitlines()
    processors = [int(name.removeprefix("CPU")) for name in header.split()]
    interrupts: dict[int, int] = {}
    for line in lines:
        words = line.split()
        if words and words[-1].startswith(beginning):
            for processor, count in zip(processors, words[1:], strict=False):
                if count.isdigit() and int(count):
                    interrupts[processor] = interrupts.get(processor, 0) + int(count)
    return interrupts
