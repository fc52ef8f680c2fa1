"""One run: the figures of all processes, and the results that a report shows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest import shapes, thresholds
from loadtest.figures import Figures, Message
from loadtest.latency import Latency
from loadtest.thresholds import Threshold

NOT_DONE, BROKEN = 1, 3
"""Exit codes: nothing was done, or a request failed; a threshold broke."""
RAMP_BOUNDS = "*: p99 < 100ms; *: failures < 1"
"""The thresholds of a ramp without others."""


@dataclass(frozen=True)
class Plan:
    """What a run is to do."""

    shape: str = ""
    seconds: float = 30.0
    users: int = 10
    step_s: float = 10.0
    bounds: Sequence[Threshold] = ()

    def check(self) -> None:
        """Raise ValueError unless the shape exists."""
        if self.shape and self.shape not in shapes.NAMES:
            raise ValueError(f"SHAPE={self.shape}: it is one of {', '.join(shapes.NAMES)}")


@dataclass
class Run:
    """A run, from its start on."""

    plan: Plan
    began_s: float = field(default_factory=time.time)
    ended_s: float | None = None
    levels: list[tuple[float, int]] = field(default_factory=list)
    """(seconds since 1970, users) of each change."""
    processor_s: dict[str, float] = field(default_factory=dict)
    """Processor time of each process with users so far, in seconds."""

    def __post_init__(self) -> None:
        self._figures = Figures()
        self._step = Figures()
        self._ramp = shapes.Ramp(
            self.plan.users, self.plan.step_s, self.plan.seconds, self._is_held
        )

    def add(self, process: str, processor_s: float, message: Message) -> None:
        """Count what a process has measured since its last report. `processor_s`: since the start."""
        self.processor_s[process] = processor_s
        self._figures.add(message)
        if self.plan.shape == "ramp":
            self._step.add(message)

    def users_at(self, at_s: float) -> int | None:
        """Return how many users the plan's shape has at a time. None: the run is over."""
        if self.plan.shape == "ramp":
            return self._ramp.users_at(at_s)
        return shapes.users_at(self.plan.shape, at_s, self.plan.seconds, self.plan.users)

    def _is_held(self, since_s: float) -> bool:
        since_s += self.began_s
        totals = self._step.totals(since_s)
        self._step = Figures()
        bounds = self.plan.bounds or thresholds.parse(RAMP_BOUNDS)
        verdicts = thresholds.judged(bounds, totals, max(1.0, time.time() - since_s))
        return bool(totals) and all(verdict.is_met for verdict in verdicts)

    @property
    def users(self) -> int:
        """The largest number of users so far."""
        return max((users for _, users in self.levels), default=0)

    @property
    def seconds(self) -> float:
        """How long the run has lasted."""
        slots = self._figures.slots()
        if not slots:
            return 0.0
        measured_s = slots[-1][0] + self._figures.slot_s - slots[0][0]
        return max(1e-3, min(measured_s, (self.ended_s or time.time()) - self.began_s))

    def progress(self) -> str:
        """Return a line about the run so far."""
        users = self.levels[-1][1] if self.levels else 0
        whole = Latency()
        for latency in self._figures.totals().values():
            whole.add(latency)
        return (
            f"{time.time() - self.began_s:6.0f} s {users:6} users {whole.count:10,} requests "
            f"{whole.failures:6,} failed   p50 {whole.percentile_us(50):9,} µs   p99 {whole.percentile_us(99):9,} µs"
        )

    def results(self) -> dict[str, Any]:
        """Return the figures of all processes so far."""
        totals, seconds = self._figures.totals(), self.seconds
        verdicts = thresholds.judged(self.plan.bounds, totals, seconds)
        busiest = max(self.processor_s.values(), default=0.0)
        return {
            "began_s": self.began_s,
            "seconds": seconds,
            "users": self.users,
            "levels": self.levels,
            "processes": max(1, len(self.processor_s)),
            "processor_share": busiest / seconds if seconds else 0.0,
            "shape": self.plan.shape,
            "slot_s": self._figures.slot_s,
            "requests": {kind: latency.summary() for kind, latency in totals.items()},
            "slots": [self._slot(at_s, latency) for at_s, latency in self._figures.slots()],
            "thresholds": thresholds.summary(verdicts),
            "ramp": str(self._ramp) if self.plan.shape == "ramp" else "",
            "users_held": max(self._ramp.held, default=0),
        }

    def _slot(self, at_s: int, latency: Latency) -> dict[str, float]:
        slot_s = self._figures.slot_s
        return {
            "at_s": at_s,
            "per_s": latency.count / slot_s,
            "failures_per_s": latency.failures / slot_s,
            "p50_us": latency.percentile_us(50),
            "p99_us": latency.percentile_us(99),
        }
