"""Reports of slow commits and answers: counts by cause, the newest records, and log lines at a bounded rate."""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import msgspec

from fastbk.native import flight
from fastbk.native.flight import SlowRecord
from fastbk.observe import logs
from fastbk.observe.prometheus import family

SHOWN_MAX = 64
"""Records kept for `/slow`, over all processes."""
LOG_INTERVAL_S = 10.0
"""Minimum pause between two log lines of one process, event and cause; what comes meanwhile is counted in the next
one.
"""
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
                cause: round(took_ns / 1e6, 1)
                for cause, took_ns in self.longest_ns.items()
                if took_ns
            },
            "last": newest[-1] if newest else None,
        }

    def last_reason(self, process: str) -> str:
        """Return what made the last slow commit of a journal slow; "": there was none."""
        commits = (one for one in reversed(self._newest) if one["event"] == EVENTS[flight.COMMIT])
        return next((str(one["reason"]) for one in commits if one["process"] == process), "")

    async def answer(self, _: dict[str, Any]) -> object:
        """Answer /slow: the summary and the newest records, oldest first."""
        return {**self.summary(), "lost": self.lost, "records": list(self._newest)}

    def metric_lines(self) -> list[str]:
        """Return the counts in Prometheus' text format: two series, since users pay by the series."""
        text = "Commits, answers and waits for room over 10 ms, slowed by the disk or otherwise: /slow."
        disk = self.counts["disk"]
        series = [('cause="disk"', disk), ('cause="other"', sum(self.counts.values()) - disk)]
        return family("fastbk_supervisor_slow_total", "counter", text, series)


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


Cause = Literal["disk", "ring", "wake_up", "processor", "stopped"]
CAUSES: tuple[Cause, ...] = ("disk", "ring", "wake_up", "processor", "stopped")
Event = Literal["journal.slow_commit", "worker.slow_answer", "worker.slow_room", "index.slow_intake",
                "worker.paused"]  # fmt: skip
EVENTS: dict[int, Event] = {
    flight.COMMIT: "journal.slow_commit",
    flight.ANSWER: "worker.slow_answer",
    flight.WAIT: "worker.slow_room",
    flight.INTAKE: "index.slow_intake",
    flight.PAUSE: "worker.paused",
}
CONTINUE_LATE_NS = 2_000_000
"""A signal handler may run a moment after the stage that it ended."""


class Stage(msgspec.Struct, frozen=True):
    """A part of a record's time. `cause` and `reason`: what it waits for, if nothing kept the thread from running."""

    name: str
    began_ns: int
    ended_ns: int
    cause: Cause
    reason: str

    @property
    def took_ns(self) -> int:
        """How long it took."""
        return max(0, self.ended_ns - self.began_ns)


class Verdict(msgspec.Struct, frozen=True):
    """The cause of a record, and the reason in a sentence."""

    cause: Cause
    reason: str
    stage: Stage


def stages(record: SlowRecord) -> list[Stage]:
    """Return the stages of a record, in order; together they are its whole time."""
    if record.kind == flight.COMMIT:
        return _commit_stages(record)
    began_ns, ended_ns = record.received_ns, record.ended_ns
    if record.kind == flight.WAIT and record.flags & flight.CREDIT:
        reason = "the write cache had no room: the index waits for a flush"
        return [Stage("room", began_ns, ended_ns, "ring", reason)]
    if record.kind == flight.WAIT:
        reason = "the add ring was full: the journal or the index is behind"
        return [Stage("room", began_ns, ended_ns, "ring", reason)]
    if record.kind == flight.PAUSE:
        reason = "the worker was stopped by a signal, at most for so long"
        return [Stage("pause", began_ns, ended_ns, "stopped", reason)]
    if record.flags & flight.FULL:
        reason = "both write caches were full: a flush waits for the disk"
        return [Stage("intake", began_ns, ended_ns, "disk", reason)]
    who = "worker" if record.kind == flight.ANSWER else "index"
    reason = f"the {who} woke up late"
    return [Stage("intake" if who == "index" else "answer", began_ns, ended_ns, "wake_up", reason)]


def _commit_stages(record: SlowRecord) -> list[Stage]:
    received_ns, submitted_ns = record.received_ns, record.submitted_ns
    completed_ns = record.completed_ns or submitted_ns
    behind_ns = min(max(received_ns, record.free_ns), submitted_ns)
    reason = "the journal woke up late, or was rung late"
    cause: Cause = "wake_up"
    if record.flags & flight.TIMED_OUT:
        reason = "no bell woke the journal: it found the batch when its sleep ended"
    if record.flags & flight.ROLLED:
        cause, reason = "disk", "the journal changed to its next file"
    elif record.flags & flight.STALLED:
        cause, reason = "ring", "a worker or the index had not taken the batches before"
    elif 2 * record.away_ns >= submitted_ns - behind_ns:
        cause, reason = (
            "disk",
            "the journal was busy with its files, or waited in a call about them",
        )
    return [
        Stage("behind", received_ns, behind_ns, "disk", "the commit before it was under way"),
        Stage("take", behind_ns, submitted_ns, cause, reason),
        Stage(
            "write", submitted_ns, completed_ns, "disk", "the disk took that long to write and sync"
        ),
        Stage("publish", completed_ns, record.ended_ns, "disk", "a commit before it was under way"),
    ]


def verdict(record: SlowRecord) -> Verdict:
    """Return what made a record slow.

    The longest stage is judged. Its thread was stopped by a signal, waited for a processor or worked for at least half
    of it: that is the cause, whatever the stage waits for. Otherwise the stage says it.
    """
    stage = max(stages(record), key=lambda one: one.took_ns)
    if stage.cause == "stopped":
        return Verdict("stopped", stage.reason, stage)
    if stage.began_ns < record.continued_ns <= stage.ended_ns + CONTINUE_LATE_NS:
        return Verdict("stopped", "the process was stopped by a signal (SIGSTOP)", stage)
    # others have to make room: what this thread did meanwhile is no cause
    if record.kind == flight.WAIT:
        return Verdict(stage.cause, stage.reason, stage)
    delayed_ns = _within(record, stage, record.delayed_ns)
    if 2 * delayed_ns >= stage.took_ns:
        reason = f"the thread waited some {delayed_ns / 1e6:.0f} ms for a processor: others had it"
        return Verdict("processor", reason, stage)
    worked_ns = _within(record, stage, record.processor_ns)
    if stage.cause in ("wake_up", "ring") and 2 * worked_ns >= stage.took_ns:
        reason = f"the thread itself worked for some {worked_ns / 1e6:.0f} ms"
        return Verdict("processor", reason, stage)
    return Verdict(stage.cause, stage.reason, stage)


def _within(record: SlowRecord, stage: Stage, counted_ns: int) -> float:
    """Return how much of what was counted since `sampled_ns` may be the stage's own, between least and most.

    Nearer to the most: a thread that waited just as long as the stage took waited in it.
    """
    before_ns = max(0, stage.began_ns - record.sampled_ns)
    after_ns = max(0, record.ended_ns - stage.ended_ns)
    most_ns = min(counted_ns, stage.took_ns)
    least_ns = max(0, counted_ns - before_ns - after_ns)
    return 0.6 * most_ns + 0.4 * min(least_ns, most_ns)
