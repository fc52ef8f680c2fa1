"""What gc does next: one thing at a time, the most urgent first, and what comes out of it to whom it concerns."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.errors import Error
from fastbk.gc.compaction import Compactor
from fastbk.gc.control import STATUS_INTERVAL_S, RunRequest, Suspended
from fastbk.gc.dead_ledgers import Cycle
from fastbk.gc.over_replicated import CopiesCheck
from fastbk.observe import logs
from fastbk.server.gc_messages import LEDGERS, MAJOR, MINOR

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.gc.control import Control
    from fastbk.gc.dead_ledgers import DeadLedgers
    from fastbk.gc.limbo import LimboWatch
    from fastbk.gc.over_replicated import CopiesWatch
    from fastbk.gc.report import Report
    from fastbk.gc.unconfirmed import UnconfirmedWatch

BUSY_SHARE = 20
"""Looking takes at most one such part of the time, however many ledgers there are."""
LOOK_S = 1.0
"""Between two looks at a compaction that is under way."""
IDLE_LOOK_S = 5.0
"""The same while none is."""
USAGE_INTERVAL_S = 30.0
UNCONFIRMED_INTERVAL_S = 5.0
"""Between two looks at ledgers that metadata was not seen to list yet; less where `interval_s` is."""
UNCONFIRMED_BUSY_SHARE = 4
"""Those looks take at most one such part of the time."""
COMPLAINT_INTERVAL_S = 60.0
"""Between two log lines about an index that does not answer."""


@dataclass
class Scheduler:
    """All that one bookie's gc process does.

    Attributes:
        compactors: one for each ledger directory.
        interval_s: between two looks for dead ledgers. round_s: between two rounds of looking for copies too many.
    """

    control: Control
    report: Report
    collector: DeadLedgers
    limbo: LimboWatch
    unconfirmed: UnconfirmedWatch
    copies: CopiesWatch
    compactors: list[Compactor]
    interval_s: float
    round_s: float
    clock_s: Callable[[], float] = time.monotonic
    on_looked: Callable[[], None] = lambda: None
    """Called after each look at metadata."""
    cycle: Cycle | None = None
    copies_look: CopiesCheck | None = None
    run_done: int = 0
    """The number of the last run that was asked for and has ended."""
    _cycle_ended_s: float = 0.0
    _next_cycle_s: float = 0.0
    _next_copies_s: float = 0.0
    _next_unconfirmed_s: float = 0.0
    _next_round_s: float = 0.0
    _next_usage_s: float = 0.0
    _next_complaint_s: float = 0.0
    _runs: list[RunRequest] = field(default_factory=list)
    """Whose compactions are still under way."""

    def __post_init__(self) -> None:
        self.control.status = self.status
        now_s = self.clock_s()
        self._next_cycle_s = self._next_copies_s = self._next_round_s = now_s + self.interval_s

    def step(self) -> float:
        """Do what is due; return how long to rest, in seconds. Raises Draining."""
        done = self.run_done
        self._take_asked()
        suspended = LEDGERS in self.control.suspended
        try:
            if self.clock_s() >= self._next_unconfirmed_s:
                self._look_for_unconfirmed(may_expire=not suspended)
            elif not suspended and self.clock_s() >= self._next_cycle_s:
                self._look_for_dead(LEDGERS)
            elif not suspended and self.clock_s() >= self._next_copies_s:
                self._look_for_copies(LEDGERS)
        except Suspended:
            logs.info("gc.cut_off", what=self.control.doing)
        self.control.kind = self.control.doing = ""
        self._step_compactors()
        self._look_at_usage()
        # Somebody waits for the end of a run.
        is_told = self.control.report(self.status(), now=self.run_done != done)
        return self._rest_s() if is_told else min(self._rest_s(), STATUS_INTERVAL_S)

    def _rest_s(self) -> float:
        if self.control.asked:
            return 0.0
        now_s = self.clock_s()
        is_busy = any(one.is_running for one in self.compactors)
        rest_s = LOOK_S if is_busy else IDLE_LOOK_S
        rest_s = min(rest_s, self._next_unconfirmed_s - now_s)
        if LEDGERS not in self.control.suspended:
            rest_s = min(rest_s, self._next_cycle_s - now_s, self._next_copies_s - now_s)
        return max(0.0, rest_s)

    # ---- ledgers

    def _look_for_dead(self, kind: str, *, force: bool = False) -> None:
        self.control.kind, self.control.doing = kind, "listing the ledgers in metadata"
        began_s = self.clock_s()
        # Also when it is cut off: nobody is asked the same at once again.
        self._next_cycle_s = began_s + self.interval_s
        cycle = self.cycle = self.collector.run(force=force)
        ended_s = self._cycle_ended_s = self.clock_s()
        # Waiting for an answer that does not come is no work.
        work_s = 0.0 if cycle.unanswered else ended_s - began_s
        self._next_cycle_s = max(began_s + self.interval_s, ended_s + BUSY_SHARE * work_s)
        self.report.cycle(cycle, ended_s - began_s)
        if not cycle.stopped or cycle.refused:
            self.report.limbo(self.limbo.check())

    def _look_for_unconfirmed(self, *, may_expire: bool) -> None:
        self.control.doing = "reading the metadata of new ledgers"
        began_s = self.clock_s()
        interval_s = min(UNCONFIRMED_INTERVAL_S, self.interval_s)
        self._next_unconfirmed_s = began_s + interval_s
        self.report.unconfirmed(self.unconfirmed.check(may_expire=may_expire))
        self.on_looked()
        took_s = self.clock_s() - began_s
        self._next_unconfirmed_s += max(0.0, UNCONFIRMED_BUSY_SHARE * took_s - interval_s)

    def _look_for_copies(self, kind: str, *, force: bool = False) -> None:
        """Go on with the round that is under way; between rounds only look at candidates that are due."""
        self.control.kind, self.control.doing = kind, "reading the metadata of ledgers here"
        now_s = self.clock_s()
        self._next_copies_s = now_s + self.interval_s
        if now_s < self._next_round_s:
            look = self.copies.drop_due(force=force)
        else:
            look = self.copies.check(force=force)
            if look.is_round_over:
                self._next_round_s = now_s + self.round_s
            elif not look.stopped:
                self._next_copies_s = self.clock_s()
        self.on_looked()
        self.copies_look = look
        self.report.copies(look, self.clock_s() - now_s)

    # ---- compaction

    def _step_compactors(self) -> None:
        for compactor in self.compactors:
            compactor.suspended = self.control.suspended
            try:
                compactor.step()
            except (Error, OSError) as error:
                now_s = self.clock_s()
                if now_s >= self._next_complaint_s:
                    self._next_complaint_s = now_s + COMPLAINT_INTERVAL_S
                    logs.warning("gc.index_silent", reason=f"{type(error).__name__}: {error}")

    def _look_at_usage(self) -> None:
        now_s = self.clock_s()
        if now_s < self._next_usage_s:
            return
        self._next_usage_s = now_s + USAGE_INTERVAL_S
        try:
            self.report.usage([log for one in self.compactors for log in one.local.usage()])
        except (Error, OSError):
            pass  # metrics of an index that is silent: whoever needs its answers says so

    # ---- an operator's runs

    def _take_asked(self) -> None:
        """Begin what was asked for, suspended or not; deletions at once, compactions beside the rest.

        One look for ledgers serves all who asked before it began. Who asks meanwhile waits for the next step, so
        that compactions have their turn however often somebody asks.
        """
        asked = list(self.control.asked)
        self.control.asked.clear()
        of_ledgers = [run for run in asked if LEDGERS in run.what]
        if of_ledgers:
            force = any(run.force for run in of_ledgers)
            self._look_for_unconfirmed(may_expire=True)
            self._look_for_dead("", force=force)
            self._next_round_s = min(self._next_round_s, self.clock_s())
            self._look_for_copies("", force=force)
        for kind in (MINOR, MAJOR):
            if any(kind in run.what for run in asked):
                for compactor in self.compactors:
                    compactor.request(kind)
        self._runs += asked
        while self._runs and not self._is_under_way(self._runs[0]):
            self.run_done = self._runs.pop(0).number

    def _is_under_way(self, run: RunRequest) -> bool:
        return any(one.is_requested(kind) for one in self.compactors for kind in run.what)

    # ---- telling

    def status(self) -> dict[str, Any]:
        """Return how things stand, as JSON has it."""
        runs = [one.run for one in self.compactors if one.run is not None]
        return {
            "doing": self.control.doing,
            "suspended": sorted(self.control.suspended),
            "listed_id": self.collector.cluster.highest_id,
            "run_done": self.run_done,
            "ended": {kind: dict(each) for kind, each in self.report.ended.items()},
            "cycle": None if self.cycle is None else msgspec.to_builtins(self.cycle),
            "copies": None if self.copies_look is None else msgspec.to_builtins(self.copies_look),
            "compactions": [
                {
                    "kind": run.kind,
                    "running": not run.is_over,
                    "logs": len(run.tried),
                    "moved_bytes": run.moved_bytes,
                    "freed_bytes": run.freed_bytes,
                    "bad_runs": run.bad_runs,
                    "error": run.error,
                }
                for run in runs
            ],
        }
