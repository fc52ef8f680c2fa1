"""Prometheus' text format, version 0.0.4."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def family(metric: str, kind: str, text: str, series: Iterable[tuple[str, object]]) -> list[str]:
    """Return the lines of a metric with its series, of which each is labels, empty for none, and a value."""
    lines = heading(metric, kind, text)
    lines += [
        f"{metric}{{{labels}}} {value}" if labels else f"{metric} {value}"
        for labels, value in series
    ]
    return lines


def single(metric: str, kind: str, text: str, value: object) -> list[str]:
    """Return the lines of a metric of one series without labels."""
    return family(metric, kind, text, [("", value)])


def heading(metric: str, kind: str, text: str) -> list[str]:
    """Return the lines that say what a metric is."""
    return [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]


def quoted(text: str) -> str:
    """Return a label's value as it stands between its quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float, digits: int = 15) -> str:
    """Return a value with so many digits that count."""
    return "NaN" if math.isnan(value) else f"{value:.{digits}g}"


# --- Apache's OpStats --------------------------------------------------------------------------------------------
#
# Apache's `OpStats`: how many, their sum, and quantiles of what came within the last minute, by success.
#
# For what happens some times a second at most, in one thread. A bookie's own are histograms in shared memory.


QUANTILES = ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0")
WINDOW_S = 60.0
RECENT_MAX = 1024
"""Values that quantiles are of; with more of them in the window, of the latest."""


class OpStats:
    """Values of one kind, in the unit that they are shown in."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts = {True: 0, False: 0}
        self._sums = {True: 0.0, False: 0.0}
        self._recent: dict[bool, deque[tuple[float, float]]] = {
            one: deque(maxlen=RECENT_MAX) for one in (True, False)
        }

    def count(self, ok: bool = True) -> int:
        """Return how many there were."""
        return self._counts[ok]

    def add(self, value: float, ok: bool = True) -> None:
        """Count one."""
        self._counts[ok] += 1
        self._sums[ok] += value
        self._recent[ok].append((self._clock(), value))

    def lines(self, metric: str, text: str) -> list[str]:
        """Return the lines of Prometheus' text format. A quantile without values in the window is NaN."""
        lines = heading(metric, "summary", text)
        for ok, label in ((False, 'success="false"'), (True, 'success="true"')):
            oldest_s = self._clock() - WINDOW_S
            values = sorted(value for at_s, value in self._recent[ok] if at_s >= oldest_s)
            for share in QUANTILES:
                index = min(len(values) - 1, int(float(share) * len(values)))
                value = values[index] if values else float("nan")
                lines.append(f'{metric}{{{label},quantile="{share}"}} {number(value)}')
            lines.append(f"{metric}_count{{{label}}} {self._counts[ok]}")
            lines.append(f"{metric}_sum{{{label}}} {number(self._sums[ok])}")
        return lines


# --- memory and processor time of processes ----------------------------------------------------------------------
#
# Memory and processor time of processes, for `/metrics`: read at each request, two calls a process.
#
# A process is opened when it has just been started. Later /proc may hide it even from its parent (systemd's
# `ProtectProc=invisible`), since no process of a bookie is dumpable; what is open stays readable.


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
