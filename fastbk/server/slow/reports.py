"""Reports of slow commits and answers: counts by cause, the newest records, and log lines at a bounded rate."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from fastbk.native import flight
from fastbk.observe import logs
from fastbk.server.slow.verdict import CAUSES, EVENTS, Cause, Verdict, stages, verdict

if TYPE_CHECKING:
    from fastbk.native.flight import SlowRecord

SHOWN_MAX = 64
"""Records kept for `/slow`, over all processes."""
LOG_INTERVAL_S = 10.0
"""Between two log lines of one process, event and cause; what comes meanwhile is counted in the next one."""
QUIET = (flight.INTAKE,)
"""Kinds that delay nobody's answer by themselves: recorded and shown, and not logged."""


class _Line:
    """What the next log line of one process, event and cause has to say."""

    def __init__(self) -> None:
        self.next_s = 0.0
        self.count = 0
        self.longest: tuple[SlowRecord, Verdict] | None = None


class SlowReports:
    """Collects the flight recorders' records of one bookie and reports them."""

    def __init__(self) -> None:
        self.counts: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
        """Slow commits, answers and waits for room, by cause, since the supervisor started."""
        self.longest_ns: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
        self.lost = 0
        self._newest: deque[dict[str, Any]] = deque(maxlen=SHOWN_MAX)
        self._lines: dict[tuple[str, str, Cause], _Line] = {}

    def take(self, process: str, records: list[SlowRecord], lost: int, now_s: float) -> None:
        """Add the records that a process wrote since the last call."""
        self.lost += lost
        for record in records:
            found = verdict(record)
            self._newest.append(shown(process, record, found))
            if record.kind in QUIET:
                continue
            self.counts[found.cause] += 1
            self.longest_ns[found.cause] = max(self.longest_ns[found.cause], record.took_ns)
            line = self._lines.setdefault((process, EVENTS[record.kind], found.cause), _Line())
            line.count += 1
            if line.longest is None or record.took_ns > line.longest[0].took_ns:
                line.longest = record, found
        self._log(now_s)

    def _log(self, now_s: float) -> None:
        for (process, event, cause), line in self._lines.items():
            if line.longest is None or now_s < line.next_s:
                continue
            record, found = line.longest
            logs.warning(
                event,
                process=process,
                verdict=cause,
                reason=found.reason,
                took_ms=round(record.took_ns / 1e6, 1),
                stages_ms=_stages_ms(record),
                processor_ms=round(record.processor_ns / 1e6, 1),
                delayed_ms=round(record.delayed_ns / 1e6, 1),
                count=line.count,
            )
            line.next_s, line.count, line.longest = now_s + LOG_INTERVAL_S, 0, None

    def summary(self) -> dict[str, Any]:
        """Return counts and longest times by cause, and the newest record."""
        newest = [one for one in self._newest if one["event"] != EVENTS[flight.INTAKE]]
        return {
            "counts": {cause: count for cause, count in self.counts.items() if count},
            "longest_ms": {
                cause: round(took_ns / 1e6, 1) for cause, took_ns in self.longest_ns.items() if took_ns
            },
            "last": newest[-1] if newest else None,
        }

    async def answer(self, _: dict[str, Any]) -> object:
        """Answer /slow: the summary and the newest records, oldest first."""
        return {**self.summary(), "lost": self.lost, "records": list(self._newest)}

    def metric_lines(self) -> list[str]:
        """Return the counts in Prometheus' text format: two series, since users pay by the series."""
        metric = "fastbk_supervisor_slow_total"
        text = "Commits, answers and waits for room over 10 ms, slowed by the disk or otherwise: /slow."
        disk = self.counts["disk"]
        return [
            f"# HELP {metric} {text}",
            f"# TYPE {metric} counter",
            f'{metric}{{cause="disk"}} {disk}',
            f'{metric}{{cause="other"}} {sum(self.counts.values()) - disk}',
        ]


def _stages_ms(record: SlowRecord) -> dict[str, float]:
    return {one.name: round(one.took_ns / 1e6, 1) for one in stages(record)}


def shown(process: str, record: SlowRecord, found: Verdict) -> dict[str, Any]:
    """Return a record for JSON. `ended_ns` is the monotonic clock of the machine."""
    return {
        "process": process,
        "event": EVENTS[record.kind],
        "verdict": found.cause,
        "reason": found.reason,
        "took_ms": round(record.took_ns / 1e6, 1),
        "stages_ms": _stages_ms(record),
        "ended_ns": record.ended_ns,
        "counted_ms": round((record.ended_ns - record.sampled_ns) / 1e6, 1),
        "processor_ms": round(record.processor_ns / 1e6, 1),
        "delayed_ms": round(record.delayed_ns / 1e6, 1),
        "flags": record.flags,
        "switches": {"voluntary": record.voluntary, "involuntary": record.involuntary},
        "records": record.record_count,
        "size_bytes": record.size_bytes,
    }
