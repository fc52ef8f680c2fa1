"""Runs the watchdog and reads the flight recorders while a boot serves, and passes on what they find.

Workers receive `frozen` (reason), so that they can answer it to clients: `fastbk cluster status`
reaches bookies by their data port, not by HTTP. See `fastbk.server.watchdog`.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from typing import TYPE_CHECKING

from fastbk.native.flight import FlightReader
from fastbk.native.segment import Segment
from fastbk.native.stats import Stats
from fastbk.observe import logs
from fastbk.server.slow.board import SlowBoard
from fastbk.server.watchdog import POLL_S, Watchdog

if TYPE_CHECKING:
    from fastbk.server.lifecycle import Lifecycle
    from fastbk.server.spawn import Boot


class WatchdogDesk:
    """One bookie's, over all its boots."""

    def __init__(self, life: Lifecycle) -> None:
        """`life` gets a condition for each process and thread that stands still."""
        self.watchdog = Watchdog(life.note)
        self.slow = SlowBoard()

    async def run(self, boot: Boot) -> None:
        """Watch a boot whose children all serve, until cancelled."""
        mapped = {
            process: Stats(Segment(descriptor, process.role))
            for process, descriptor in boot.statistics_segments().items()
        }
        recorders = {
            process.name: FlightReader(stats.segment)
            for process, stats in mapped.items()
            if process.role != "gc"
        }
        try:
            self.watchdog.attach(
                (
                    (process.name, process.role, boot.children[process].pid, stats)
                    for process, stats in mapped.items()
                ),
                time.monotonic(),
            )
            while True:
                await asyncio.sleep(POLL_S)
                if self.watchdog.look(time.monotonic()):
                    self._tell_workers(boot)
                for name, recorder in recorders.items():
                    records, lost = recorder.fresh()
                    self.slow.take(name, records, lost, time.monotonic())
        except Exception as error:
            logs.error("watchdog.failed", reason=repr(error), trace=traceback.format_exc(limit=-8))
            raise
        finally:
            self.watchdog.detach()
            for stats in mapped.values():
                stats.segment.close()

    def metric_lines(self) -> list[str]:
        """Return the metrics of both in Prometheus' text format."""
        return self.watchdog.metric_lines() + self.slow.metric_lines()

    def _tell_workers(self, boot: Boot) -> None:
        message = {"type": "frozen", "reason": "; ".join(self.watchdog.frozen)}
        for process, child in boot.children.items():
            if process.role == "worker":
                child.send(message)
