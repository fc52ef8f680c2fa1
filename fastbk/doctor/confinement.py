"""Which restrictions hold for a bookie's processes: what the kernel offers, and what running processes have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.doctor.data import holder_of
from fastbk.doctor.report import Finding, ok, warn
from fastbk.native.confine import UNSUPPORTED, landlock_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.server.configuration.bookie_config import BookieConfig

MARKS = {"NoNewPrivs": ("1", "no new privileges"), "Seccomp": ("2", "filtered system calls")}
"""Lines of /proc/PID/status: the value of a confined process, and what it means."""


def confinement_findings(config: BookieConfig) -> Iterator[Finding]:
    """Yield what a taken-over process could not do here, and whether running ones are confined."""
    if config.bookie.confinement == "off":
        cure = 'confinement = "auto"; "off" is for debuggers'
        yield warn(
            '[bookie] confinement = "off": a process that is taken over may do what its user may',
            cure,
        )
        return
    lacks = []
    if landlock_version() == UNSUPPORTED:
        lacks.append("Landlock (a process that is taken over may open any file of its user)")
    if not os.path.exists("/proc/sys/kernel/seccomp"):
        lacks.append("seccomp (it may make any system call)")
    if lacks:
        yield warn(
            f"the kernel has no {' and no '.join(lacks)}", "Linux 6.7 or later has what it takes"
        )
    else:
        yield ok(
            f"workers, journals, indexes and gc give up paths (Landlock {landlock_version()}) and system calls"
        )
    yield from _running(config)


def _running(config: BookieConfig) -> Iterator[Finding]:
    directories = config.journal.all_directories
    supervisor = holder_of(directories[0]) if directories else None
    children = {} if supervisor is None else _children_of(supervisor)
    for pid, name in children.items():
        status = _status_of(pid)
        missing = [text for key, (value, text) in MARKS.items() if status.get(key) != value]
        if missing:
            cure = "look for process.not_confined in the log, or restart the bookie if it is an older version"
            yield warn(f"{name} (process {pid}) runs without {' and '.join(missing)}", cure)
    if children:
        yield ok(f"{len(children)} running processes were looked at")


def _children_of(supervisor: int) -> dict[int, str]:
    """Return the processes of a supervisor, and what each runs."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = _status_of(int(folder.name))
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if status.get("PPid") == str(supervisor) and b"-m" in command:
            found[int(folder.name)] = command[command.index(b"-m") + 1].decode(errors="replace")
    return found


def _status_of(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs}
