"""Locust users of a fastbk cluster: each appends to a ledger of its own and reads back what it wrote.

The cluster is named by FASTBK_METADATA (or locust's --host). Response times are reported in **microseconds**; the
exact percentiles go to the file named by FASTBK_LOAD_OUT as JSON, since locust rounds what it prints.

gevent has patched the thread of the client's event loop and its sockets, so thousands of users share one thread.
"""

from __future__ import annotations

import json
import logging
import os
import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
from locust import User, constant, events, task

import fastbk.sync
from fastbk.errors import Error
from loadtest.latency import Latency

if TYPE_CHECKING:
    from collections.abc import Callable

ENTRY_BYTES = int(os.environ.get("FASTBK_LOAD_ENTRY_BYTES", "1024"))
ENSEMBLE = int(os.environ.get("FASTBK_LOAD_ENSEMBLE", "3"))
WRITE_QUORUM = int(os.environ.get("FASTBK_LOAD_WRITE_QUORUM", "3"))
ACK_QUORUM = int(os.environ.get("FASTBK_LOAD_ACK_QUORUM", "2"))

latencies: dict[str, Latency] = {}


class LedgerUser(User):
    """Appends nine times out of ten, reads a random entry of its own the tenth, as fast as answers come."""

    wait_time = constant(0)

    def on_start(self) -> None:
        """Connect and create this user's ledger."""
        # Locust calls on_stop also when this was cut off half-way.
        self.opened = ExitStack()
        self.random = random.Random(id(self))
        try:
            self.client = fastbk.sync.connect(self.host or None)
            self.opened.callback(self.client.close)
            self.writer = self.client.create_ledger(
                ensemble=ENSEMBLE, write_quorum=WRITE_QUORUM, ack_quorum=ACK_QUORUM
            )
            self.opened.callback(self.writer.close)
            self.reader = self.client.open_ledger(self.writer.ledger_id, recovery=False)
            self.opened.callback(self.reader.close)
        except Error as error:
            logging.error("this user cannot begin: %s", error)
            raise gevent.GreenletExit from error  # locust logs the stacks of others
        self.data = self.random.randbytes(ENTRY_BYTES)

    def on_stop(self) -> None:
        """Close the ledger and the client."""
        self.opened.close()

    @task(9)
    def append(self) -> None:
        """Append one entry and wait until it is durable on the ack quorum."""
        self._measure("append", ENTRY_BYTES, lambda: self.writer.append(self.data))

    @task(1)
    def read(self) -> None:
        """Read one acknowledged entry back and compare it."""
        last = self.writer.last_add_confirmed
        if last < 0:
            return
        entry_id = self.random.randint(0, last)

        def read_one() -> None:
            (entry,) = self.reader.read_unconfirmed(entry_id, entry_id)
            if bytes(entry.data) != self.data:
                raise AssertionError(
                    f"ledger {self.writer.ledger_id} entry {entry_id}: other bytes"
                )

        self._measure("read", ENTRY_BYTES, read_one)

    def _measure(self, name: str, size_bytes: int, call: Callable[[], Any]) -> None:
        latency = latencies.setdefault(name, Latency())
        error: Exception | None = None
        start_ns = time.perf_counter_ns()
        try:
            call()
        except Exception as caught:  # noqa: BLE001 - locust counts every kind of failure
            error = caught
        took_us = (time.perf_counter_ns() - start_ns) / 1000
        if error is None:
            latency.record(took_us)
        else:
            latency.failures += 1
        self.environment.events.request.fire(
            request_type="µs",
            name=name,
            response_time=took_us,
            response_length=size_bytes,
            exception=error,
            context={},
        )


@events.init.add_listener
def stop_at_deadline(**_: object) -> None:
    """gevent's clock stands since before the imports; a run would be over early by what they took, or at once."""
    gevent.get_hub().loop.update_now()


@events.quitting.add_listener
def write_summary(environment: Any, **_: object) -> None:
    """Write the exact percentiles, and fail the run when nothing was done or anything failed."""
    summary = {name: latency.summary() for name, latency in latencies.items()}
    out = os.environ.get("FASTBK_LOAD_OUT")
    if out:
        Path(out).write_text(json.dumps(summary, indent=1))
    done = sum(latency.count for latency in latencies.values())
    failed = sum(latency.failures for latency in latencies.values())
    environment.process_exit_code = 0 if done and not failed else 1
