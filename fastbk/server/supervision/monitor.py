"""Checks a running bookie twice a second: frozen processes, slow commits and answers, the number of ledgers.

`watchdog.py` finds frozen processes, `slow_reports.py` reads the flight recorders. The monitor sends the
workers the reason why the bookie is frozen, and they report it in Info, which `fastbk cluster status` reads.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from typing import TYPE_CHECKING

from fastbk.native.flight import FlightReader
from fastbk.native.segment import Segment, Stats
from fastbk.observe import logs
from fastbk.observe.names import SLOTS
from fastbk.server.supervision.journal_stalls import JournalStalls
from fastbk.server.supervision.slow_reports import SlowReports
from fastbk.server.supervision.watchdog import POLL_S, Watchdog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastbk.server.configuration.settings import LimitSettings
    from fastbk.server.process_table import Process
    from fastbk.server.supervision.lifecycle import Lifecycle
    from fastbk.server.supervision.spawn import Boot


class Monitor:
    """Monitors one bookie, over all its boots."""

    def __init__(self, life: Lifecycle, limits: LimitSettings) -> None:
        """`life` receives a condition for what is frozen, for a slow journal, and for a bookie full of ledgers."""
        self.watchdog = Watchdog(life.note)
        self._ledger_limit = LedgerLimit(life, limits)
        self.slow = SlowReports()
        self._stalls = JournalStalls()
        self._life = life

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
        self._stalls.attach()
        journals = [stats for process, stats in mapped.items() if process.role == "journal"]
        try:
            self.watchdog.attach(
                (
                    (process.name, process.role, boot.children[process].pid, stats)
                    for process, stats in mapped.items()
                ),
                time.monotonic(),
            )
            while True:
                self._ledger_limit.poll([stats.counters() for stats in journals])
                await asyncio.sleep(POLL_S)
                if self.watchdog.poll(time.monotonic()):
                    self._send_to_workers(boot)
                for name, recorder in recorders.items():
                    records, lost = recorder.fresh()
                    self.slow.take(name, records, lost, time.monotonic())
                self._poll_stalls(mapped)
                self._life.note(JOURNAL_SLOW, self._stalls.slow or None, "notice")
        except Exception as error:
            logs.error("watchdog.failed", reason=repr(error), trace=traceback.format_exc(limit=-8))
            raise
        finally:
            self.watchdog.detach()
            self._life.note(JOURNAL_SLOW, None)
            for stats in mapped.values():
                stats.segment.close()

    def metric_lines(self) -> list[str]:
        """Return the metrics of both in Prometheus' text format."""
        return self.watchdog.metric_lines() + self.slow.metric_lines()

    def _poll_stalls(self, mapped: Mapping[Process, Stats]) -> None:
        for process, stats in mapped.items():
            if process.role == "journal":
                commits = stats.histogram(SLOTS["FBK_H_JOURNAL_COMMIT_NS"])
                self._stalls.poll(
                    process.name, commits, self.slow.last_reason(process.name), time.monotonic()
                )

    def _send_to_workers(self, boot: Boot) -> None:
        message = {"type": "frozen", "reason": "; ".join(self.watchdog.frozen)}
        for process, child in boot.children.items():
            if process.role == "worker":
                child.send(message)


CONDITION = "ledgers.full"
JOURNAL_SLOW = "journal.slow"


def reason_of(ledgers: int, unconfirmed: int, limits: LimitSettings) -> str:
    """Return why a journal takes no new ledgers, and what to do."""
    if ledgers >= limits.ledgers_max:
        return (
            f"it takes no new ledgers: it has {ledgers}, as many as [limits] ledgers_max allows."
            " Delete ledgers or raise the limit"
        )
    return (
        f"it takes no new ledgers but those that metadata lists: metadata was never seen to list"
        f" {unconfirmed} ledgers here. They expire after [gc] unconfirmed_age. Find the client that writes"
        " to ledgers that do not exist"
    )


class LedgerLimit:
    """Reports a bookie that takes no new ledgers (INV-G6): in its conditions and its log.

    That is no reason to move anybody who writes here: the ledgers that are here go on, and new ones that metadata lists
    are let in some seconds later, as long as `ledgers_max` is not reached.
    """

    def __init__(self, life: Lifecycle, limits: LimitSettings) -> None:
        """`life` gets the condition."""
        self._life = life
        self._limits = limits
        self._is_full = False

    def poll(self, journals: list[list[int]]) -> None:
        """Set or remove the condition by the counters of all journals."""
        full = [one for one in journals if one[SLOTS["FBK_C_JOURNAL_TAKES_NO_NEW_LEDGERS"]]]
        reason = None
        if full:
            ledgers, unconfirmed = (
                full[0][SLOTS[f"FBK_C_JOURNAL_{name}"]]
                for name in ("LEDGERS", "LEDGERS_UNCONFIRMED")
            )
            reason = reason_of(ledgers, unconfirmed, self._limits)
        self._life.note(CONDITION, reason, "notice")
        if self._is_full != bool(full):
            self._is_full = bool(full)
            if reason is None:
                logs.info("ledgers.room")
            else:
                logs.warning("ledgers.full", reason=reason)
