"""Many seeds, over several processes: what `./dev sim` and the tests run."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.simulation.mutations import MUTATIONS
from tests.simulation.planting import planted
from tests.simulation.world import Result, run_seed

SEEDS_EACH = 25


@dataclass(slots=True)
class Total:
    """What many worlds came to.

    Attributes:
        counted: seeds with enough events and kinds of faults; events_counted: those of them.
        failed: (seed, invariant, text) of each violation.
        faults: kind -> how often it struck.
    """

    seeds: int = 0
    counted: int = 0
    events: int = 0
    events_counted: int = 0
    seconds: float = 0.0
    failed: list[tuple[int, str, str]] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    branches: set[tuple[str, str, str, str]] = field(default_factory=set)

    def take(self, result: Result) -> None:
        self.seeds += 1
        self.counted += result.is_counted
        self.events += result.events
        self.events_counted += result.events if result.is_counted else 0
        self.branches |= result.branches
        for kind, count in result.faults.items():
            self.faults[kind] = self.faults.get(kind, 0) + count
        if result.violation is not None:
            self.failed.append((result.seed, result.violation, result.text))

    def join(self, other: Total) -> None:
        self.seeds += other.seeds
        self.counted += other.counted
        self.events += other.events
        self.events_counted += other.events_counted
        self.branches |= other.branches
        self.failed += other.failed
        for kind, count in other.faults.items():
            self.faults[kind] = self.faults.get(kind, 0) + count


def run_some(seeds: Sequence[int], mutation: str | None = None) -> Total:
    total = Total()
    with planted(None if mutation is None else MUTATIONS[mutation]):
        for seed in seeds:
            total.take(run_seed(seed))
    return total


def _run(work: tuple[Sequence[int], str | None]) -> Total:
    return run_some(*work)


def run_many(first: int, count: int, jobs: int, *, mutation: str | None = None) -> Iterator[Total]:
    """Run `count` seeds from `first` on in `jobs` processes; yield the sum so far after each piece.

    A mutation ends the run at the first that finds it.
    """
    started_s = time.monotonic()
    pieces = [
        (range(at, min(at + SEEDS_EACH, first + count)), mutation)
        for at in range(first, first + count, SEEDS_EACH)
    ]
    total = Total()
    if jobs == 1:
        for piece in pieces:
            total.join(_run(piece))
            total.seconds = time.monotonic() - started_s
            yield total
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool:
        # Ordered, so that the same seeds give the same report.
        for one in pool.imap(_run, pieces):
            total.join(one)
            total.seconds = time.monotonic() - started_s
            yield total
