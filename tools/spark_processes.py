"""What runs below this process: Spark's JVM, its Python daemons and workers, bookies; processor time and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process. `role`: jvm, daemon, worker, bookies or bench; `module`: what a Python process of Spark's runs."""

    pid: int
    role: str
    module: str
    cpu_s: float


def _stat(pid: int) -> tuple[int, float]:
    """Return the parent and the seconds of processors."""
    rest = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return int(rest[1]), (int(rest[11]) + int(rest[12])) * _TICK_S


def _command(pid: int) -> list[str]:
    return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")


def processes(root: int | None = None) -> list[Process]:
    """Return this process, or `root`, and all that run below it. What ends meanwhile is left out."""
    found: dict[int, tuple[int, float, list[str]]] = {}
    for one in _PROC.iterdir():
        if one.name.isdigit():
            try:
                pid = int(one.name)
                found[pid] = (*_stat(pid), _command(pid))
            except (FileNotFoundError, ProcessLookupError):
                continue
    below: dict[int, list[int]] = {}
    for pid, (parent, _, _) in found.items():
        below.setdefault(parent, []).append(pid)
    return list(_walk(os.getpid() if root is None else root, "bench", "", found, below))


def _walk(
    pid: int,
    role: str,
    module: str,
    found: dict[int, tuple[int, float, list[str]]],
    below: dict[int, list[int]],
) -> Iterator[Process]:
    _, cpu_s, _ = found[pid]
    yield Process(pid, role, module, cpu_s)
    for child in below.get(pid, []):
        command = found[child][2]
        if role == "bench":
            is_spark = any("java" in part or "spark" in part for part in command[:1])
            next_role, next_module = ("jvm" if is_spark else "bookies"), ""
        elif role == "jvm":
            next_role, next_module = _of_spark(command)
        elif role == "daemon":
            next_role, next_module = "worker", module
        else:
            next_role, next_module = role, module
        yield from _walk(child, next_role, next_module, found, below)


def _of_spark(command: list[str]) -> tuple[str, str]:
    """Return role and module of what the JVM has started: a daemon that forks workers, or one process by itself."""
    modules = [part.rpartition(".")[2] for part in command if part.startswith("pyspark.")]
    if not modules:
        return "jvm", ""
    return ("daemon" if modules[0] == "daemon" else "worker"), modules[-1]


def cpu_s(before: list[Process], after: list[Process]) -> dict[str, float]:
    """Return the seconds of processors between two looks, by role, without workers that ended between."""
    known = {one.pid: one.cpu_s for one in before}
    used: dict[str, float] = {}
    for one in after:
        used[one.role] = used.get(one.role, 0.0) + one.cpu_s - known.get(one.pid, 0.0)
    return used
