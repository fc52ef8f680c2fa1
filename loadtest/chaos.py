"""Faults on schedule: `5s kill 0; 9s start 0; 12s pause 1; 14s resume 1; 16s kill 2 journal`.

`kill N` kills bookie N, supervisor and all, `kill N PROCESS` one process of it, which its supervisor starts again;
`start N` starts it and waits until it takes writes; `pause N` stops all its processes, `resume N` lets them go on;
`stop N` drains it.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fastbk.errors import Error
from fastbk.testing import LocalCluster

_FORM = re.compile(
    r"(?P<at>\d+(\.\d+)?)s?\s+(?P<what>kill|start|pause|resume|stop)\s+(?P<bookie>\d+)(\s+(?P<process>[\w.]+))?"
)


@dataclass(frozen=True)
class Fault:
    """Something that is done to a bookie, so many seconds after the start."""

    at_s: float
    what: str
    bookie: int
    process: str = "supervisor"

    def __str__(self) -> str:
        process = "" if self.process == "supervisor" else f" {self.process}"
        return f"{self.what} {self.bookie}{process}"


def parse(text: str, bookies: int) -> list[Fault]:
    """Return the faults of a schedule in their order. Raises ValueError that says which part is wrong."""
    found = []
    for part in filter(None, map(str.strip, text.split(";"))):
        match = _FORM.fullmatch(part)
        if match is None or (match["process"] and match["what"] != "kill"):
            raise ValueError(
                f"{part!r} is no fault: write it as `5s kill 0` or `8s kill 1 journal`"
            )
        if int(match["bookie"]) >= bookies:
            raise ValueError(f"{part!r}: bookies count from 0 to {bookies - 1}")
        process = match["process"] or "supervisor"
        found.append(Fault(float(match["at"]), match["what"], int(match["bookie"]), process))
    return sorted(found, key=lambda fault: fault.at_s)


def usual(seconds: float) -> str:
    """Return a schedule for a run of so many seconds: one bookie at a time is away, so that all goes on."""
    faults = ("kill 0", "start 0", "kill 1 journal", "pause 2", "resume 2", "kill 1", "start 1")
    every_s = seconds / (len(faults) + 1)
    return "; ".join(f"{every_s * number:.1f}s {one}" for number, one in enumerate(faults, 1))


class Chaos:
    """Does to a cluster what a schedule says, in a thread, from `with` to its end; then all bookies run again."""

    def __init__(self, cluster: LocalCluster, faults: list[Fault]) -> None:
        self.done: list[tuple[float, str]] = []
        """(seconds since 1970, what was done)."""
        self._cluster = cluster
        self._faults = faults
        self._is_over = threading.Event()
        self._paused: set[int] = set()
        self._away: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="chaos")

    def __enter__(self) -> Chaos:
        if self._faults:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._faults:
            self._thread.join()
        for bookie in sorted(self._paused):
            self._do(Fault(0.0, "resume", bookie))
        for bookie in sorted(self._away):
            self._do(Fault(0.0, "start", bookie))

    def _run(self) -> None:
        began_s = time.monotonic()
        for fault in self._faults:
            if self._is_over.wait(max(0.0, began_s + fault.at_s - time.monotonic())):
                return
            self._do(fault)

    def _do(self, fault: Fault) -> None:
        self.done.append((time.time(), str(fault)))
        acts: dict[str, Callable[[Fault], None]] = {
            "kill": self._kill,
            "start": self._start,
            "stop": self._stop,
            "pause": self._pause,
            "resume": self._resume,
        }
        try:
            acts[fault.what](fault)
        except (Error, OSError, KeyError) as error:
            self.done.append((time.time(), f"{fault}: {error}"))

    def _kill(self, fault: Fault) -> None:
        self._resume(fault)
        self._cluster.kill(fault.bookie, fault.process)
        if fault.process == "supervisor":
            self._away.add(fault.bookie)

    def _stop(self, fault: Fault) -> None:
        self._away.add(fault.bookie)
        self._cluster.stop_bookie(fault.bookie)

    def _start(self, fault: Fault) -> None:
        if fault.bookie in self._away:
            self._cluster.start_bookie(fault.bookie)
            self._away.discard(fault.bookie)

    def _pause(self, fault: Fault) -> None:
        self._signal(fault.bookie, signal.SIGSTOP)
        self._paused.add(fault.bookie)

    def _resume(self, fault: Fault) -> None:
        if fault.bookie in self._paused:
            self._paused.discard(fault.bookie)
            self._signal(fault.bookie, signal.SIGCONT)

    def _signal(self, bookie: int, number: signal.Signals) -> None:
        for pid in self._cluster.bookies[bookie].pids.values():
            os.kill(pid, number)
