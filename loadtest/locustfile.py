"""What locust runs: the users, a load shape, the exact histograms of all processes, and the exit code.

The environment says what to do (`./dev load` sets it). FASTBK_METADATA (or locust's --host) names
the cluster. gevent has patched the thread of the client's event loop and its sockets, so thousands
of users share one thread.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gevent
import locust.runners
import locust.stats
from locust import LoadTestShape, events
from locust.env import Environment
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from loadtest import chaos, thresholds, web
from loadtest.kept import write_notes
from loadtest.latency import bucket_of, top_of
from loadtest.run import BROKEN, NOT_DONE, Plan, Run
from loadtest.stream_users import Cursors, ProducerAppends, StreamAppends
from loadtest.users import (
    BatchAppends,
    CatchUp,
    LargeAppends,
    LedgerChurn,
    MediumAppends,
    RandomReads,
    SmallAppends,
    Tailing,
    notes,
    recorded,
)

__all__ = [
    "BatchAppends", "CatchUp", "Cursors", "LargeAppends", "LedgerChurn", "MediumAppends", "ProducerAppends",
    "RandomReads", "SmallAppends", "StreamAppends", "Tailing",
]  # fmt: skip

ERRORS_MAX = 20
PROGRESS_S = 5
REPORT_S = 1.0
"""Workers send their figures so often. Locust's three seconds are long for the steps of a ramp."""
MESSAGE_KEY = "fastbk"
END, LAST = "fastbk.end", "fastbk.last"
"""Messages: of the master, that workers stop their users; of a worker, with its last figures, once it has."""
LAST_S_MAX = 60.0
"""So long the master waits for the last figures of its workers. A machine that is busy needs seconds for them."""

FOLDER = Path(os.environ["FASTBK_LOAD_NOTES"]) if "FASTBK_LOAD_NOTES" in os.environ else None
"""Holds the notes of all processes, and the log of the faults."""
PLAN = Plan(
    shape=os.environ.get("FASTBK_LOAD_SHAPE", ""),
    seconds=float(os.environ.get("FASTBK_LOAD_SECONDS", "30")),
    users=int(os.environ.get("FASTBK_LOAD_USERS", "10")),
    step_s=float(os.environ.get("FASTBK_LOAD_STEP_S", "10")),
    bounds=thresholds.parse(os.environ.get("FASTBK_LOAD_THRESHOLDS", "")),
)
UNTIL = set(filter(None, os.environ.get("FASTBK_LOAD_UNTIL", "").split(",")))
"""What the load waits for: tests must not depend on how much a machine can do in a time."""
try:
    PLAN.check()
except ValueError as error:
    sys.exit(str(error))

run = Run(PLAN)
reported: set[str] = set()
"""Workers whose last figures of this run have come."""
environment: Environment
processor_began_s = 0.0


def round_exactly(response_time_ms: float) -> float:
    """Return a time as locust's own tables show it, with at most 1.6 % of error.

    Locust rounds to whole milliseconds, of which an append often needs none.
    """
    return top_of(bucket_of(int(response_time_ms * 1000))) / 1000


locust.stats.bucket_response_time = round_exactly
locust.runners.WORKER_REPORT_INTERVAL = REPORT_S


if PLAN.shape:

    class Shape(LoadTestShape):
        """The shape that the environment names."""

        def tick(self) -> tuple[int, float] | None:
            """Return how many users there are now, all spawned at once. None: it is over."""
            collect()
            users = run.users_at(self.get_run_time())
            return None if users is None else (users, float(users))


def processor_s() -> float:
    """Return the processor time of this process since the start of the run."""
    return time.process_time() - processor_began_s


def collect() -> None:
    """Count what this process has measured. The reports of workers bring the rest."""
    measured = recorded.take()
    if measured:
        run.add("this process", processor_s(), measured)


def results() -> dict[str, Any]:
    """Return the figures of all processes so far."""
    collect()
    errors = sorted(environment.stats.errors.values(), key=lambda one: -int(one.occurrences))
    faults = [] if FOLDER is None else chaos.read_log(FOLDER / chaos.LOG)
    return {
        **run.results(),
        "errors": [(one.name, str(one.error), one.occurrences) for one in errors[:ERRORS_MAX]],
        "faults": [(at_s, text) for at_s, text in faults if at_s >= run.began_s],
    }


def announce(text: str) -> None:
    """Send an event to the process that injects faults."""
    descriptor = os.environ.get("FASTBK_LOAD_EVENTS")
    if descriptor:
        os.write(int(descriptor), f"{text}\n".encode())


def show_progress() -> None:
    """Print a line every few seconds, until the run ends."""
    while run.ended_s is None:
        gevent.sleep(PROGRESS_S)
        collect()
        sys.stderr.write(f"{run.progress()}\n")


def end_early() -> None:
    """End the run when each of the kinds of requests in UNTIL was made."""
    while not run.results()["requests"].keys() >= UNTIL:
        gevent.sleep(0.2)
        collect()
    environment.runner.quit()


@events.init.add_listener
def begin(**given: Any) -> None:
    """Add the page. Set gevent's clock, which stands since before the imports: a run would end early."""
    global environment
    environment = given["environment"]
    # Python would raise KeyboardInterrupt in any greenlet, as one that serves a page: locust went on then.
    gevent.signal_handler(signal.SIGINT, signal.raise_signal, signal.SIGTERM)
    gevent.get_hub().loop.update_now()
    if environment.web_ui is not None:
        web.extend(environment.web_ui, results)
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        runner.register_message(END, lambda **_: runner.stop())
    elif isinstance(runner, MasterRunner):
        runner.register_message(LAST, add_last_report)
    # Locust would print its tables at the end. Those of the report are exact.
    logging.getLogger("locust.stats_logger").disabled = True


@events.test_start.add_listener
def start(**_: object) -> None:
    """A run begins. With the web interface there may be several."""
    global run, processor_began_s
    recorded.take()
    reported.clear()
    processor_began_s = time.process_time()
    run = Run(PLAN)
    if not isinstance(environment.runner, WorkerRunner):
        announce("start")
        if environment.web_ui is None:
            gevent.spawn(show_progress)
        if UNTIL:
            gevent.spawn(end_early)


@events.spawning_complete.add_listener
def spawned(user_count: int, **_: object) -> None:
    """Note how many users there are."""
    run.levels.append((time.time(), user_count))


@events.report_to_master.add_listener
def report(data: dict[str, Any], **_: object) -> None:
    """Send what this worker has measured since its last report."""
    data[MESSAGE_KEY] = (processor_s(), recorded.take())


@events.worker_report.add_listener
def add_report(client_id: str, data: dict[str, Any], **_: object) -> None:
    """Count what a worker has measured."""
    if MESSAGE_KEY in data:
        run.add(client_id, *data[MESSAGE_KEY])


def add_last_report(environment: Environment, msg: Any) -> None:
    """Count what a worker had measured when all its users had stopped."""
    run.add(msg.node_id, *msg.data)
    reported.add(msg.node_id)


@events.test_stop.add_listener
def stop(**_: object) -> None:
    """A run ends: a worker sends its last figures, and the master waits for those of all."""
    run.ended_s = time.time()
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        runner.send_message(LAST, (processor_s(), recorded.take()))
        return
    if isinstance(runner, MasterRunner):
        # Locust itself waits for half a second, and drops what comes later.
        await_last_reports(runner)
    announce("stop")


def await_last_reports(runner: MasterRunner) -> None:
    """Return when each worker that lives has stopped its users and reported, or LAST_S_MAX has passed."""
    runner.send_message(END)
    end_s = time.monotonic() + LAST_S_MAX
    while any(one.id not in reported and one.state != STATE_MISSING for one in runner.clients.all):
        if time.monotonic() > end_s:
            logging.error("the figures lack the last ones of a worker, which did not stop in time")
            return
        gevent.sleep(0.02)


@events.quit.add_listener
def end(**_: object) -> None:
    """Write the notes of this process, and the results in the process that has all figures."""
    if FOLDER is not None and notes:
        write_notes(FOLDER, notes)
    if isinstance(environment.runner, WorkerRunner):
        return
    found = results()
    out = os.environ.get("FASTBK_LOAD_OUT")
    if out:
        Path(out).write_text(json.dumps(found, indent=1))
    raise SystemExit(exit_code_of(found))


def exit_code_of(found: dict[str, Any]) -> int:
    """Return a run's exit code. Where there are thresholds, they say how many requests may fail."""
    done = found["requests"].values()
    if not any(one["count"] for one in done):
        return NOT_DONE
    if PLAN.shape == "ramp":
        return 0 if found["users_held"] else BROKEN
    if PLAN.bounds:
        return 0 if all(is_met for _, is_met in found["thresholds"]) else BROKEN
    return NOT_DONE if any(one["failures"] for one in done) else 0
