"""Faults on schedule: `5s kill 0; 9s start 0; 12s pause 1; 14s resume 1; 16s kill 2 journal`.

- `kill N` kills bookie N with all its processes. `kill N PROCESS` kills one process of it, which
  its supervisor starts again.
- `start N` starts it, and returns when it takes writes.
- `pause N` stops all its processes (SIGSTOP). `resume N` lets them go on (SIGCONT).
- `stop N` drains it.

Times count from the start of the run.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from fastbk.errors import Error
from fastbk.testing import LocalCluster

LOG = "faults.jsonl"
"""The file name of the log of faults."""

_FORM = re.compile(
    r"(?P<at>\d+(\.\d+)?)s?\s+(?P<what>kill|start|pause|resume|stop)\s+(?P<bookie>\d+)(\s+(?P<process>[\w.]+))?"
)


@dataclass(frozen=True)
class Fault:
    """A fault of a bookie, so many seconds after the start of the run."""

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
    return "; ".join(f"{every_s * number:.1f}s {fault}" for number, fault in enumerate(faults, 1))


class Chaos:
    """Injects the faults of a schedule into a cluster, each time anew from `start` to `stop`."""

    def __init__(self, cluster: LocalCluster, faults: list[Fault], log: Path) -> None:
        """`log`: a file that gets a line for each fault, as `read_log` returns them."""
        self._cluster = cluster
        self._faults = faults
        self._log = log
        self._is_over = threading.Event()
        self._away: set[int] = set()
        self._thread: threading.Thread | None = None

    def follow(self, events: TextIO) -> None:
        """Start and stop with each run: `events` has a line `start` or `stop` for it. Returns at its end."""
        try:
            for line in events:
                self.stop()
                if line.strip() == "start":
                    self.start()
        finally:
            self.stop()

    def start(self) -> None:
        """Begin with the schedule."""
        self._is_over.clear()
        self._thread = threading.Thread(target=self._run, name="chaos")
        self._thread.start()

    def stop(self) -> None:
        """End the schedule; return when all bookies run again."""
        if self._thread is None:
            return
        self._is_over.set()
        self._thread.join()
        self._thread = None
        for bookie in sorted({fault.bookie for fault in self._faults if fault.what == "pause"}):
            self._cluster.thaw(bookie)
        for bookie in sorted(self._away):
            self._inject(Fault(0.0, "start", bookie))

    def _run(self) -> None:
        began_s = time.monotonic()
        for fault in self._faults:
            if self._is_over.wait(max(0.0, began_s + fault.at_s - time.monotonic())):
                return
            self._inject(fault)

    def _inject(self, fault: Fault) -> None:
        self._record(str(fault))
        actions: dict[str, Callable[[Fault], None]] = {
            "kill": self._kill,
            "start": self._start,
            "stop": self._stop,
            "pause": lambda fault: self._cluster.freeze(fault.bookie),
            "resume": lambda fault: self._cluster.thaw(fault.bookie),
        }
        try:
            actions[fault.what](fault)
        except (Error, OSError, KeyError, TimeoutError) as error:
            self._record(f"{fault}: {error}")

    def _record(self, text: str) -> None:
        with self._log.open("a") as log:
            log.write(json.dumps([time.time(), text]) + "\n")

    def _kill(self, fault: Fault) -> None:
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


def read_log(log: Path) -> list[tuple[float, str]]:
    """Return (seconds since 1970, fault) of all faults that were injected so far."""
    if not log.exists():
        return []
    return [(at_s, text) for at_s, text in map(json.loads, log.read_text().splitlines())]
