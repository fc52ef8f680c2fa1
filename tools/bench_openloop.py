"""`./dev bench openloop`: latency against load, and what appends feel of background work, at fixed rates.

Every append has an intended start; its latency runs from there, also where the load could not begin it in time. One
bookie, entries of 1 KiB. Three parts:

- *knee*: rates from 5 to 110 % of the peak (of a closed loop with 1,000 in flight). The knee is the highest rate that,
  with all below it, was reached in full (99 %) and has a p99 of at most five times that of the lowest rate.
- *work*: at 30 % of the knee, with every 16th entry read as soon as it is acknowledged, without background work, with
  each kind of it, and with all. The bookie's counters prove that it ran; where one did not move, the table says so.
- *apache* (FULL=1 or APACHE=1; jars by Maven): at 80 % of what Apache's tuned bookie sustains, this one with all
  background work beside Apache's with its own flushes, at least a million samples of each.

All take turns, ROUNDS times; figures are medians. Slices of a second in which the host gave processors to others
(steal in /proc/stat) do not count; how many is said.

Environment: ONLY=knee,work,apache, ROUNDS=3, SECONDS_EACH=2 (twice that for work), MIB=512 (for compaction, scrub and
catch-up reads), KNEE=rate (instead of the one found), WORKS=word,word, OUT=build/bench-openloop.json; the page is
beside OUT, as .html.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP

from fastbk.native.load import DiskProbe, disk_probe
from tests.compat.members import send_signal
from tools.background_work import ALL, FLUSHES, NOTHING, WORKS, Begin, Work, work_counts
from tools.one_bookie import LoadedBookie, OneBookie, one_bookie
from tools.open_loop import REACHED, TAIL_EVERY, Figures, open_loop, peak_per_s
from tools.open_loop_report import page, table
from tools.part import BUILD, scratch, setting

SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
"""Rates as shares of the peak."""
KNEE_TIMES = 5.0
KNEE_STEPS = 2
"""Rates measured between the knee and the first rate beyond it."""
WORK_SHARE = 0.3
"""Rate during background work, as a share of the knee."""
APACHE_CONFIGURATION = "db"
APACHE_SHARE = 0.8
"""Share of what the better of Apache's protocols sustains."""
SAMPLES_MIN = 1_000_000
PROBE_S = 0.3
"""Pause between two measurements: the disk alone, which is what changes most from hour to hour."""
SETTLE_S = 2.0
"""Pause after a start: the next journal file is made ahead."""
PARTS = ("knee", "work", "apache")

Rounds = list[Figures]


def middle(rounds: Rounds, name: str) -> float:
    return statistics.median(one[name] for one in rounds)


def knee_of(rates: dict[int, Rounds]) -> int:
    """Return the knee; 0 where not even the lowest rate was reached."""
    found = 0
    for rate in sorted(rates):
        is_reached = middle(rates[rate], "per_s") >= REACHED * rate
        lowest = middle(rates[min(rates)], "p99_us")
        if not is_reached or middle(rates[rate], "p99_us") > KNEE_TIMES * lowest:
            break
        found = rate
    return found


def measure_knee(
    bookie: OneBookie, disk: DiskProbe, rounds: int, seconds: float
) -> dict[str, object]:
    """Measure rates in turn, then some between the knee and the first one beyond it."""
    peak = peak_per_s(bookie, seconds)
    rates: dict[int, Rounds] = {}

    def measure(wanted: Sequence[int]) -> None:
        for number in range(rounds):
            for rate in wanted if number % 2 == 0 else reversed(wanted):
                print(f"round {number + 1}/{rounds}: {rate:,} a second", file=sys.stderr)
                rates.setdefault(rate, []).append(open_loop(bookie, rate, seconds))
                disk.run(PROBE_S)

    measure([rounded(share * peak) for share in SHARES])
    knee = knee_of(rates)
    beyond = min((rate for rate in rates if rate > knee), default=0)
    if knee and beyond:
        gap = beyond - knee
        measure(
            [rounded(knee + gap * step / (KNEE_STEPS + 1)) for step in range(1, KNEE_STEPS + 1)]
        )
    ordered = {str(rate): rates[rate] for rate in sorted(rates)}
    return {"peak_per_s": round(peak), "knee_per_s": knee_of(rates), "rates": ordered}


def rounded(rate: float) -> int:
    """Return a rate of three digits."""
    digits = len(str(int(rate))) - 3
    return max(1, int(round(rate, -digits)))


def during(
    work: Work,
    bookie: OneBookie,
    begin: Begin,
    rate: int,
    seconds: float,
    samples_min: int = 0,
    tail_every: int = 0,
) -> Figures:
    """Measure while the work goes on; what it did stands in the figures, and `ran`: whether all of it did something."""
    with begin() as progress:
        before = work_counts(bookie) | {name: done() / 1e6 for name, done in progress.items()}
        figures = open_loop(bookie, rate, seconds, samples_min=samples_min, tail_every=tail_every)
        after = work_counts(bookie) | {name: done() / 1e6 for name, done in progress.items()}
    did = {name: round(after[name] - before[name], 1) for name in after}
    return {**figures, **did, "ran": float(all(did[name] > 0 for name in work.proofs))}


@contextmanager
def standing_still(bookies: Sequence[OneBookie]) -> Iterator[None]:
    """Stop the processes of these bookies meanwhile: what they do in the background is not to be measured."""
    pids = [pid for bookie in bookies for pid in bookie.processes().values()]
    send_signal(pids, SIGSTOP)
    try:
        yield
    finally:
        send_signal(pids, SIGCONT)


def measure_work(
    folder: Path,
    flushing: OneBookie,
    disk: DiskProbe,
    works: Sequence[Work],
    rate: int,
    rounds: int,
    seconds: float,
    size_mib: int,
) -> dict[str, object]:
    """Measure all works in turn, each on a bookie of its own."""
    found: dict[str, Rounds] = {}
    with ExitStack() as stack:
        bookies = {
            work.name: flushing if work is FLUSHES
            else stack.enter_context(one_bookie(folder / str(number), work.settings))
            for number, work in enumerate(works)
        }  # fmt: skip
        begins = {work.name: work.prepare(bookies[work.name], size_mib) for work in works}
        for number in range(rounds):
            for work in works if number % 2 == 0 else reversed(works):
                print(f"round {number + 1}/{rounds}: {work.name}", file=sys.stderr)
                bookie = bookies[work.name]
                with standing_still([one for one in bookies.values() if one is not bookie]):
                    if work is NOTHING:  # its caches have room again
                        bookie.restart()
                        open_loop(bookie, rate, seconds / 8)
                        time.sleep(SETTLE_S)
                    begin = begins[work.name]
                    figures = during(work, bookie, begin, rate, seconds, tail_every=TAIL_EVERY)
                    os.sync()
                    disk.run(PROBE_S)
                found.setdefault(work.name, []).append(figures)
    return {"rate_per_s": rate, "works": {work.name: found[work.name] for work in works}}


def sustained_per_s(bookie: LoadedBookie, seconds: float) -> float:
    """Return what an open loop at a closed loop's peak reaches: a peak lasts only as long as caches do."""
    return open_loop(bookie, rounded(peak_per_s(bookie, seconds)), 2 * seconds)["per_s"]


def measure_apache(
    folder: Path, disk: DiskProbe, rounds: int, seconds: float, size_mib: int
) -> dict[str, object]:
    """Measure this bookie, with all background work, and Apache's in turn, at the same rate."""
    from tools.benchmark.apache import PROTOCOLS, apache_clusters

    found: dict[str, Rounds] = {}
    with apache_clusters() as clusters, one_bookie(folder / "all", ALL.settings) as bookie:
        apache = clusters.bookie(APACHE_CONFIGURATION)
        peaks = {}
        for name, apache.protocol in PROTOCOLS.items():
            peaks[f"Apache, {name}"] = sustained_per_s(apache, seconds)
        rate = rounded(APACHE_SHARE * max(peaks.values()))
        begin = ALL.prepare(bookie, 2 * size_mib)  # a million samples take longer than a work
        samples = -(-SAMPLES_MIN // rounds)
        for number in range(rounds):
            print(f"round {number + 1}/{rounds}: {rate:,} a second", file=sys.stderr)
            ours = during(ALL, bookie, begin, rate, seconds, samples)
            found.setdefault("this tree, all background work", []).append(ours)
            disk.run(PROBE_S)
            for name, apache.protocol in PROTOCOLS.items():
                figures = open_loop(apache, rate, seconds, samples_min=samples)
                found.setdefault(f"Apache, {name}", []).append(figures)
    return {"rate_per_s": rate, "peaks": peaks, "systems": found}


def chosen_works(only: str) -> list[Work]:
    """Return works by words of their names, and what they are compared with. Raises SystemExit where there is none."""
    words = [word for word in only.split(",") if word]
    works = [work for work in WORKS if not words or any(word in work.name for word in words)]
    if not works:
        raise SystemExit(f"bench: WORKS={only}: there are {'; '.join(work.name for work in WORKS)}")
    return works if NOTHING in works else [NOTHING, *works]


def main() -> dict[str, object]:
    has_apache = bool(os.environ.get("FULL") or os.environ.get("APACHE"))
    only = setting("ONLY", "knee,work,apache" if has_apache else "knee,work").split(",")
    if unknown := set(only) - set(PARTS):
        raise SystemExit(f"bench: ONLY={','.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    rounds, seconds, size_mib = (
        setting("ROUNDS", 3),
        setting("SECONDS_EACH", 2.0),
        setting("MIB", 512),
    )
    works, knee = chosen_works(setting("WORKS", "")), setting("KNEE", 0)
    found: dict[str, object] = {
        "machine": f"{os.cpu_count()} processors, Linux {platform.release()}",
        "date": time.strftime("%Y-%m-%d"),
        "rounds": rounds,
        "seconds_each": seconds,
    }
    with scratch() as folder:
        with one_bookie(folder / "flushing") as flushing:
            if "knee" in only:
                with disk_probe(folder) as disk:
                    part = measure_knee(flushing, disk, rounds, seconds)
                    found["knee"] = part | {"disk_us": disk.latencies.summary_us()}
                knee = knee or int(str(part["knee_per_s"]))
            if "work" in only:
                rate = rounded(WORK_SHARE * (knee or peak_per_s(flushing, seconds)))
                with disk_probe(folder) as disk:
                    part = measure_work(
                        folder, flushing, disk, works, rate, rounds, 2 * seconds, size_mib
                    )
                    found["work"] = part | {"disk_us": disk.latencies.summary_us()}
        if "apache" in only:
            with disk_probe(folder) as disk:
                part = measure_apache(folder, disk, rounds, 2 * seconds, size_mib)
                found["apache"] = part | {"disk_us": disk.latencies.summary_us()}
    print(table(found))
    out = Path(setting("OUT", str(BUILD / "bench-openloop.json"))).with_suffix(".html")
    out.write_text(page(found))
    print(f"written: {out}", file=sys.stderr)
    return found
