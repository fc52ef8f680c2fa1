"""The machine: kernel, limits, memory, clock. Reads `/proc` and `/sys` only."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import fastbk
from fastbk.doctor.report import Finding, fail, ok, warn
from fastbk.native.hashes import is_hardware
from fastbk.native.segment import can_seal
from fastbk.server import process_table
from fastbk.server.configuration.bookie_config import pair_count
from fastbk.units import MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.doctor.report import Check
    from fastbk.server.configuration.bookie_config import BookieConfig

KERNEL_MIN = (5, 10)
KERNEL_MEMLOCK_FREE = (5, 12)
"""From here on io_uring's memory no longer counts against the memlock limit."""
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
        """Of everything that takes part, for whoever is asked for help; a library that is missing is told of."""
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
        found = re.search(r"\[(\w+)\]", text)
        chosen = found[1] if found else "unknown"
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
        found = re.search(rf"^{name}:\s+(\d+) kB", self._read("meminfo"), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0

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
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)
