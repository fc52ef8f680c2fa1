"""Appends at a fixed rate with intended start times, in slices of a second: those with stolen time are left out."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from fastbk.native.load import Latencies, LoadResult
from tools.one_bookie import LoadedBookie

Figures = dict[str, float]

SLICE_S = 1.0
SECONDS_MAX = 12.0
WINDOW = 8_000
"""So much may be in flight: an open loop does not wait for answers until then. Apache's bookie refuses over 10,000."""
REACHED = 0.99
"""Share of the rate that must be reached."""
TAIL_EVERY = 16
WINDOW_CLOSED = 1000


def stolen_ticks() -> int:
    """Return the ticks so far in which the host gave this machine's processors to others."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8])


@dataclass
class Sums:
    """Latencies and counts of some slices."""

    adds: Latencies = field(default_factory=Latencies)
    tails: Latencies = field(default_factory=Latencies)
    entries: int = 0
    slices: int = 0

    def add(self, before: LoadResult, after: LoadResult) -> None:
        """Take in what came between two results of one load."""
        self.entries += after.entries - before.entries
        self.slices += 1
        for mine, early, late in (
            (self.adds, before.latencies, after.latencies),
            (self.tails, before.tail_latencies, after.tail_latencies),
        ):
            fresh = Latencies(
                [new - old for new, old in zip(late.buckets, early.buckets, strict=True)],
                late.max_ns,
            )
            mine.buckets = [
                one + other for one, other in zip(mine.buckets, fresh.buckets, strict=True)
            ]
            # The load's own maximum is of all slices: that of this one is known by its bucket, within 1.6 %.
            mine.max_ns = max(mine.max_ns, int(fresh.percentile_us(100) * 1000))


def peak_per_s(bookie: LoadedBookie, seconds: float, **options: int) -> float:
    """Return the adds a second of a closed loop."""
    ledger_id = bookie.create_ledger()
    with bookie.load([ledger_id], window=WINDOW_CLOSED, **options) as load:
        load.append(seconds)
        result = load.result()
        bookie.close_ledger(ledger_id, load.entry_counts()[0])
    return result.entries / result.busy_s


def open_loop(
    bookie: LoadedBookie,
    rate_per_s: int,
    seconds: float,
    *,
    samples_min: int = 0,
    **options: int,
) -> Figures:
    """Append at that rate, and return the figures of the slices without stolen time.

    It goes on until so many samples are there, but no longer than `SECONDS_MAX`. Where every slice had stolen time, all
    count; `stolen` says how many had it, of `slices`. Raises SystemExit when something was answered badly.
    """
    os.sync()  # what was written before is not to be measured
    clean, every, stolen = Sums(), Sums(), 0
    slice_s = min(SLICE_S, seconds)
    ledger_id = bookie.create_ledger()
    with bookie.load([ledger_id], window=WINDOW, rate_per_s=rate_per_s, **options) as load:
        processor_s, after = sum(bookie.cpu_seconds().values()), load.result()
        while every.slices * slice_s < seconds or (
            clean.adds.count < samples_min and every.slices * slice_s < SECONDS_MAX
        ):
            before, ticks = after, stolen_ticks()
            load.append(slice_s)
            after, ticks = load.result(), stolen_ticks() - ticks
            every.add(before, after)
            stolen += ticks > 0
            if ticks == 0:
                clean.add(before, after)
        used_s = sum(bookie.cpu_seconds().values()) - processor_s
        memory_mb = bookie.memory_mb()
        bookie.close_ledger(ledger_id, load.entry_counts()[0])
    if after.errors:
        raise SystemExit(f"bench: {after.errors} bad answers, the first: {after.first_error}")
    counted = clean if clean.slices else every
    found: Figures = {
        "rate_per_s": rate_per_s,
        "per_s": round(counted.entries / (counted.slices * slice_s)),
        "bookie_us": round(used_s * 1e6 / max(every.entries, 1), 3),
        "memory_mb": memory_mb,
        "samples": counted.adds.count,
        "slices": every.slices,
        "stolen": stolen,
    }
    found |= {f"{name}_us": value for name, value in counted.adds.summary_us().items()}
    if counted.tails.count:
        found |= {f"tail_{name}_us": value for name, value in counted.tails.summary_us().items()}
    return found
