"""What gc's metrics and log say of what it did."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastbk.native.segment import Stats
from fastbk.observe import logs
from fastbk.observe.names import SLOTS

if TYPE_CHECKING:
    from fastbk.gc.compaction import Run
    from fastbk.gc.dead_ledgers import Cycle
    from fastbk.gc.limbo import LimboCheck
    from fastbk.gc.over_replicated import CopiesCheck
    from fastbk.gc.unconfirmed import UnconfirmedCheck
    from fastbk.server.gc_messages import LogUsage


class Report:
    """The gc segment's statistics, and log lines for what people should know."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._counted: dict[int, tuple[int, int, int]] = {}
        """What was counted of each run that is under way: moved, freed, bad runs."""
        self._unconfirmed_stopped = ""
        self.ended: dict[str, dict[str, int]] = {}
        """For each kind of compaction how many runs have ended (`count`), and when the last one did (`last_ms`)."""

    def cycle(self, cycle: Cycle, took_s: float) -> None:
        """Note a look for ledgers that metadata no longer lists."""
        self._count("CYCLES")
        self._took("LOOKS", took_s, is_ok=not cycle.stopped)
        self._took("TURNS", took_s, is_ok=not cycle.stopped)
        self._gauge("LEDGERS", cycle.local)
        self._gauge("CANDIDATES", cycle.candidates)
        self._count("DELETED", cycle.deleted)
        self._count("KEPT", cycle.kept)
        if cycle.refused:
            self._count("REFUSED")
        if cycle.stopped:
            self._count("CYCLES_STOPPED")
            logs.warning("gc.stopped", reason=cycle.stopped)
        if cycle.kept:
            logs.warning("gc.listing_left_out", ledgers=cycle.kept)
        if cycle.deleted:
            logs.info("gc.deleted", ledgers=cycle.deleted, local=cycle.local, kept=cycle.kept)

    def unconfirmed(self, look: UnconfirmedCheck) -> None:
        """Note a look at the ledgers that metadata was never seen to list."""
        if look.stopped:
            if look.stopped != self._unconfirmed_stopped:
                logs.warning("gc.unconfirmed_stopped", reason=look.stopped)
            self._unconfirmed_stopped = look.stopped
            return
        self._unconfirmed_stopped = ""
        self._gauge("UNCONFIRMED", look.unconfirmed - look.listed + look.foreign)
        self._gauge("FOREIGN", look.foreign)
        self._count("EXPIRED", look.expired)
        self._count("ADMITTED", look.admitted)
        if look.expiring or look.expired or look.admitted:
            logs.warning(
                "gc.never_listed",
                unconfirmed=look.unconfirmed,
                foreign=look.foreign,
                expiring=look.expiring,
                expired=look.expired,
                admitted=look.admitted,
            )

    def limbo(self, look: LimboCheck) -> None:
        """Note a look at the ledgers in limbo; its doubts leave them there."""
        self._count("LIMBO_OVER", look.over)
        if look.over or look.stopped:
            logs.info("gc.limbo", over=look.over, left=look.left, stopped=look.stopped)

    def copies(self, look: CopiesCheck, took_s: float) -> None:
        """Note a look for copies that metadata counts on no more."""
        self._took("TURNS", took_s, is_ok=not look.stopped)
        self._count("LOOKUPS", look.read)
        self._count("COPIES_DROPPED", look.dropped)
        self._gauge("COPIES", look.candidates)
        if look.refused:
            self._count("REFUSED")
        if look.stopped:
            logs.warning("gc.copies_stopped", reason=look.stopped)
        if look.dropped:
            logs.info("gc.copies_dropped", ledgers=look.dropped, candidates=look.candidates)

    def usage(self, logs_now: list[LogUsage]) -> None:
        """Note how full the entry logs are."""
        self._gauge("LOGS", len(logs_now))
        self._gauge("LOG_BYTES", sum(log.durable_bytes for log in logs_now))
        self._gauge("LIVE_BYTES", sum(max(0, log.live_bytes) for log in logs_now))

    def suspended(self, what: set[str]) -> None:
        """Note what an operator has suspended."""
        self._gauge("SUSPENDED", int(bool(what)))
        logs.info("gc.suspended" if what else "gc.resumed", what=sorted(what))

    def compaction(self, event: str, run: Run) -> None:
        """Note what a run says of itself."""
        self._count_progress(run)
        if event == "begun":
            self._count("COMPACTIONS")
            self._gauge("COMPACTION_RUNNING", len(self._counted))
        elif event == "stuck":
            self._gauge("COMPACTION_STUCK", 1)
            logs.error(
                "gc.compaction_stuck",
                kind=run.kind,
                moved_bytes=run.moved_bytes,
                next="it was told to stop; look for a slow or failing disk",
            )
        elif event == "went_on":
            self._gauge("COMPACTION_STUCK", 0)
        elif event == "ended":
            self._counted.pop(id(run), None)
            count = self.ended.get(run.kind, {}).get("count", 0) + 1
            self.ended[run.kind] = {"count": count, "last_ms": int(time.time() * 1000)}
            self._gauge("COMPACTION_RUNNING", len(self._counted))
            self._gauge("COMPACTION_STUCK", 0)
            self._took("COMPACTIONS", run.ended_s - run.began_s, is_ok=not run.error)
            self._gauge("COMPACTED_LOGS_PPM", round(1e6 * run.compacted_logs / max(1, run.logs)))
            if run.error:
                self._count("COMPACTION_ERRORS")
                logs.warning("gc.compaction_error", kind=run.kind, reason=run.error)
            if run.goes:
                logs.info(
                    "gc.compacted",
                    kind=run.kind,
                    logs=len(run.tried),
                    moved_bytes=run.moved_bytes,
                    freed_bytes=run.freed_bytes,
                    bad_runs=run.bad_runs,
                )

    def _count_progress(self, run: Run) -> None:
        now = (run.moved_bytes, run.freed_bytes, run.bad_runs)
        before = self._counted.get(id(run), (0, 0, 0))
        names = ("COMPACTION_MOVED_BYTES", "COMPACTION_FREED_BYTES", "COMPACTION_BAD_RUNS")
        for name, after, earlier in zip(names, now, before, strict=True):
            self._count(name, after - earlier)
        self._counted[id(run)] = now

    def _took(self, name: str, took_s: float, *, is_ok: bool) -> None:
        """Note how long something took that has ended, and how."""
        name = f"{name}_{'DONE' if is_ok else 'FAILED'}"
        self._count(name)
        self._count(f"{name}_US", round(took_s * 1e6))

    def _count(self, name: str, amount: int = 1) -> None:
        if amount > 0:
            self._stats.count(SLOTS[f"FBK_C_GC_{name}"], amount)

    def _gauge(self, name: str, value: int) -> None:
        self._stats.gauge(SLOTS[f"FBK_C_GC_{name}"], value)
