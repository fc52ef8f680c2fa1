"""The supervisor's monitor: runs the watchdog and reads the flight recorders while a boot serves.

The monitor sends `frozen` (reason) to the workers, and they answer it to clients:
`fastbk cluster status` reaches bookies by their data port, not by HTTP.
See `fastbk.server.supervision.watchdog` and `fastbk.server.slow.reports`.
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
from fastbk.server.slow.reports import SlowReports
from fastbk.server.supervision.watchdog import POLL_S, Watchdog

if TYPE_CHECKING:
    from fastbk.server.supervision.lifecycle import Lifecycle
    from fastbk.server.supervision.spawn import Boot


class Monitor:
    """Monitors one bookie, over all its boots."""

    def __init__(self, life: Lifecycle) -> None:
        """`life` receives a condition for each process and thread that is frozen."""
        self.watchdog = Watchdog(life.note)
        self.slow = SlowReports()

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
                if self.watchdog.poll(time.monotonic()):
                    self._send_to_workers(boot)
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

    def _send_to_workers(self, boot: Boot) -> None:
        message = {"type": "frozen", "reason": "; ".join(self.watchdog.frozen)}
        for process, child in boot.children.items():
            if process.role == "worker":
                child.send(message)
