"""What locust loads: the users, a load shape, exact histograms of all processes, a page of them, and the results.

The cluster is named by FASTBK_METADATA (or locust's --host). Times are **microseconds**. Locust rounds what it prints;
its web interface has the exact figures at /exact, and FASTBK_LOAD_OUT names a file for them.

gevent has patched the thread of the client's event loop and its sockets, so thousands of users share one thread.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gevent
from locust import LoadTestShape, events
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadtest import shapes, thresholds
from loadtest.figures import Figures
from loadtest.kept import write_notes
from loadtest.latency import Latency
from loadtest.report import page
from loadtest.users import (
    SLOT_S,
    BatchAppends,
    CatchUp,
    Cursors,
    LargeAppends,
    LedgerChurn,
    MediumAppends,
    RandomReads,
    SmallAppends,
    StreamAppends,
    Tailing,
    notes,
    recorded,
)

__all__ = [
    "BatchAppends", "CatchUp", "Cursors", "LargeAppends", "LedgerChurn", "MediumAppends", "RandomReads",
    "SmallAppends", "StreamAppends", "Tailing",
]  # fmt: skip

NOT_DONE = 1
BROKEN = 3
MESSAGE_KEY = "fastbk"
REFRESH_S = 2

SHAPE = os.environ.get("FASTBK_LOAD_SHAPE", "")
SHAPE_S = float(os.environ.get("FASTBK_LOAD_SECONDS", "30"))
SHAPE_USERS = int(os.environ.get("FASTBK_LOAD_USERS", "10"))
STEP_S = float(os.environ.get("FASTBK_LOAD_STEP_S", "10"))
BOUNDS = thresholds.parse(os.environ.get("FASTBK_LOAD_THRESHOLDS", ""))
RAMP_BOUNDS = BOUNDS or thresholds.parse("*: p99 < 100ms; *: failures < 1")

merged = Figures(SLOT_S)
"""What all processes have measured."""
began_s = time.time()
users_max = 0
processes_max = 1


def collect() -> None:
    """Take in what this process has measured; of workers their reports bring it."""
    merged.add(recorded.take())


def is_held(since_s: float) -> bool:
    """Return whether all thresholds were met since so many seconds after the start."""
    collect()
    totals = merged.totals(began_s + since_s)
    seconds = max(1.0, time.time() - began_s - since_s)
    verdicts = thresholds.judged(RAMP_BOUNDS, totals, seconds)
    return bool(totals) and all(one.is_met for one in verdicts)


ramp = shapes.Ramp(SHAPE_USERS, STEP_S, SHAPE_S, is_held)

if SHAPE:
    if SHAPE not in shapes.NAMES:
        sys.exit(f"FASTBK_LOAD_SHAPE={SHAPE}: it is one of {', '.join(shapes.NAMES)}")

    class Shape(LoadTestShape):
        """The shape that the environment names."""

        def tick(self) -> tuple[int, float] | None:
            """Return how many users there are now, all spawned at once; None: it is over."""
            at_s = self.get_run_time()
            if SHAPE == "ramp":
                users = ramp.users_at(at_s)
            else:
                users = shapes.users_at(SHAPE, at_s, SHAPE_S, SHAPE_USERS)
            return None if users is None else (users, float(users))


def results() -> dict[str, Any]:
    """Return the figures of all processes so far."""
    collect()
    totals = merged.totals()
    slots = merged.slots()
    measured_s = slots[-1][0] + SLOT_S - slots[0][0] if slots else 0
    seconds = max(1e-3, min(measured_s, time.time() - began_s))
    verdicts = thresholds.judged(BOUNDS, totals, seconds)
    return {
        "began_s": began_s,
        "seconds": seconds,
        "users": users_max,
        "processes": processes_max,
        "shape": SHAPE,
        "slot_s": SLOT_S,
        "requests": {kind: latency.summary() for kind, latency in sorted(totals.items())},
        "slots": [_slot(at_s, latency) for at_s, latency in slots],
        "thresholds": thresholds.summary(verdicts),
        "ramp": str(ramp) if SHAPE == "ramp" else "",
    }


def _slot(at_s: int, latency: Latency) -> dict[str, float]:
    return {
        "at_s": at_s,
        "per_s": latency.count / SLOT_S,
        "failures_per_s": latency.failures / SLOT_S,
        "p50_us": latency.percentile_us(50),
        "p99_us": latency.percentile_us(99),
    }


@events.init.add_listener
def begin(environment: Environment, **_: object) -> None:
    """Add the page; and set gevent's clock, which stands since before the imports: a run would be over early."""
    gevent.get_hub().loop.update_now()
    if environment.web_ui is not None:
        environment.web_ui.app.add_url_rule(
            "/exact", "exact", lambda: page(results(), refresh_s=REFRESH_S)
        )


@events.test_start.add_listener
def start(**_: object) -> None:
    """A run begins."""
    global began_s
    began_s = time.time()


@events.spawning_complete.add_listener
def spawned(user_count: int, **_: object) -> None:
    """Note how many users and processes there were."""
    global users_max, processes_max
    users_max = max(users_max, user_count)
    runner = _environment[0].runner
    if isinstance(runner, MasterRunner):
        processes_max = max(processes_max, runner.worker_count)


@events.report_to_master.add_listener
def report(data: dict[str, Any], **_: object) -> None:
    """Send what this worker has measured since its last report."""
    data[MESSAGE_KEY] = recorded.take()


@events.worker_report.add_listener
def add_report(data: dict[str, Any], **_: object) -> None:
    """Take in what a worker has measured."""
    merged.add(data.get(MESSAGE_KEY, []))


@events.quit.add_listener
def end(exit_code: int, **_: object) -> None:
    """Write down what is kept, and in the process that knows all figures the results; end with what they say."""
    folder = os.environ.get("FASTBK_LOAD_NOTES")
    if folder and notes:
        write_notes(Path(folder), notes)
    if isinstance(_environment[0].runner, WorkerRunner):
        return
    found = results()
    out = os.environ.get("FASTBK_LOAD_OUT")
    if out:
        Path(out).write_text(json.dumps(found, indent=1))
    raise SystemExit(exit_code_of(found))


def exit_code_of(found: dict[str, Any]) -> int:
    """Return what a run ends with. Where thresholds were given they say how many failures may be."""
    done = found["requests"].values()
    if not any(one["count"] for one in done):
        return NOT_DONE
    if SHAPE == "ramp":
        return 0
    if BOUNDS:
        return 0 if all(is_met for _, is_met in found["thresholds"]) else BROKEN
    return NOT_DONE if any(one["failures"] for one in done) else 0


_environment: list[Environment] = []
events.init.add_listener(lambda environment, **_: _environment.append(environment))
