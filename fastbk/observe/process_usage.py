"""Memory and processor time of processes, for `/metrics`: read at each request, two calls a process.

A process is opened when it has just been started. Later /proc may hide it even from its parent (systemd's
`ProtectProc=invisible`), since no process of a bookie is dumpable; what is open stays readable.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from fastbk.observe.prometheus import family

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM_BYTES_MAX = 256


class ProcessUsage:
    """One process, until `close`."""

    def __init__(self, pid: int) -> None:
        self._cpu_clock = (~pid << 3) | 2  # its CPU clock, as clock_getcpuclockid(3) names it
        self._statm = -1
        try:
            self._statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass  # it is gone, or there is no /proc

    def resident_bytes(self) -> int | None:
        """Return its memory, shared pages included; None: it is gone, or cannot be read."""
        if self._statm < 0:
            return None
        try:
            return int(os.pread(self._statm, _STATM_BYTES_MAX, 0).split()[1]) * PAGE_BYTES
        except (OSError, IndexError):
            return None

    def cpu_s(self) -> float | None:
        """Return its processor time, of the kernel and its own; None: it is gone."""
        try:
            return time.clock_gettime(self._cpu_clock)
        except OSError:
            return None

    def close(self) -> None:
        """Give the descriptor back."""
        if self._statm >= 0:
            os.close(self._statm)
            self._statm = -1


def usage_lines(processes: Iterable[tuple[str, ProcessUsage]]) -> list[str]:
    """Return the metrics of processes by name: `worker.0`. What cannot be read has no series."""
    memory: list[tuple[str, object]] = []
    cpu: list[tuple[str, object]] = []
    for name, usage in processes:
        role = name.partition(".")[0]
        labels = f'process="{name}",role="{role}"'
        if (resident_bytes := usage.resident_bytes()) is not None:
            memory.append((labels, resident_bytes))
        if (cpu_s := usage.cpu_s()) is not None:
            cpu.append((labels, f"{cpu_s:.6f}"))
    text = "Memory that a process has in use. Shared pages count in each process that has touched them."
    lines = family("fastbk_process_resident_memory_bytes", "gauge", text, memory) if memory else []
    if cpu:
        text = "Processor time of a process."
        lines += family("fastbk_process_cpu_seconds_total", "counter", text, cpu)
    return lines


class OwnUsage:
    """This process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.usage = ProcessUsage(os.getpid())

    def metric_lines(self) -> list[str]:
        """Return its metrics in Prometheus' text format."""
        return usage_lines([(self.name, self.usage)])
