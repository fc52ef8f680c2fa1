"""`./dev bench observation`: what counters, histograms, flight recorder and hot ledgers cost an add, on and off.

On is the code as it is. Off is the same code, compiled with the headers of tests/native/unobserved: it counts nothing,
takes no samples and keeps no sketch. Heartbeats, reads of the clock and records of slow commits are in both.

First worker, journal and index each alone, their C in a program of its own: processor time in ROUNDS=30 alternating
pairs of SECONDS_EACH=0.25, and where valgrind is installed the instructions, which do not depend on the machine's hour.
Then whole bookies, one of each kind, in as many pairs: processor time of all processes, and latency with one append in
flight. Last what it costs to read: a page's processor time in the supervisor. Medians, and quartiles of what is added.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fastbk.devcluster import cpu_seconds
from tests.fixtures.pages import page
from tests.native.compile import UNOBSERVED, build_program
from tests.native.test_native import JOURNAL_SOURCES, WORKER_SOURCES
from tools import ROOT
from tools.bench_costs import counters_of
from tools.benchmark.trees import bookies_of
from tools.one_bookie import OneBookie, one_bookie
from tools.part import BUILD, percentile, print_table, scratch, setting, write

KINDS = {"on": "release", "off": "unobserved"}
SIZE_BYTES = 100
FACTS = ("fastbk_journal_adds_total", "fastbk_index_entries_total", "fastbk_worker_acks_total")
"""What a bookie that counts nothing has at 0."""
PAGES = ("/metrics?names=fastbk", "/events?limit=100", "/slow")
PAGE_READS = 40
IDLE_S = 5.0
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Part:
    """A process's C alone. `arguments` precede and follow the seconds; `functions`: those that count as its work."""

    program: str
    sources: tuple[str, ...]
    arguments: tuple[str, tuple[str, ...]]
    functions: tuple[str, ...]


WORKER = ("bench_worker.c", WORKER_SOURCES)
WORKS = ("fbk_worker_receive", "fbk_worker_collect")
JOURNAL = ("bench_journal.c", JOURNAL_SOURCES)
INDEX = ("bench_index_counts.c", ("index/hot_ledgers.c", "base/segment.c"))
PARTS = {
    "worker, 1 add a turn": Part(*WORKER, (str(SIZE_BYTES), ("0", "3", "1")), WORKS),
    "worker, 1,000 adds a turn": Part(*WORKER, (str(SIZE_BYTES), ()), WORKS),
    "journal, 1 add a batch": Part(*JOURNAL, (str(SIZE_BYTES), ("1",)), ("fbk_journal_step",)),
    "journal, 500 adds a batch": Part(*JOURNAL, (str(SIZE_BYTES), ()), ("fbk_journal_step",)),
    "index, 1 ledger": Part(*INDEX, ("1", ()), ("count_turn",)),
    "index, 1,000 ledgers": Part(*INDEX, ("1000", ()), ("count_turn",)),
}


def command(part: Part, kind: str, seconds: float) -> list[str]:
    """Return what runs a part for so long."""
    before, behind = part.arguments
    program = build_program([part.program], part.sources, KINDS[kind])
    return [str(program), before, str(seconds), *behind]


def run(words: list[str]) -> tuple[float, int, str]:
    """Run a part; return the nanoseconds of processor time for an add, the number of adds, and what was on stderr."""
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    count = re.search(r"\((\d+) adds\)", done.stdout)
    assert count is not None, done.stdout
    return sum(map(float, re.findall(r"([\d.]+) ns an", done.stdout))), int(count[1]), done.stderr


def nanoseconds(words: dict[str, list[str]], kind: str) -> float:
    """Return those of an add."""
    return run(words[kind])[0]


def instructions(part: Part, kind: str) -> float:
    """Return the instructions of an add. They are counted in the part's functions and what these call."""
    words = [
        "valgrind",
        "--tool=callgrind",
        f"--callgrind-out-file={os.devnull}",
        "--collect-atstart=no",
    ]
    words += [f"--toggle-collect={name}" for name in part.functions]
    _, adds, text = run([*words, *command(part, kind, 1.0)])
    collected = re.search(r"Collected : (\d+)", text)
    assert collected is not None, text
    return int(collected[1]) / adds


def pairs(count: int, measure: Callable[[str], float]) -> dict[str, list[float]]:
    """Return what both kinds measured, taking turns; the order is turned round each time."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(count):
        for kind in list(KINDS)[:: 1 if number % 2 == 0 else -1]:
            found[kind].append(measure(kind))
    return found


def summary(found: dict[str, list[float]], unit: str) -> dict[str, float]:
    """Return the medians of both, and of what on adds to its neighbour off, with the quartiles of that."""
    added = [on - off for on, off in zip(found["on"], found["off"], strict=True)]
    values = {
        **{kind: statistics.median(each) for kind, each in found.items()},
        "added": statistics.median(added),
        "added_q1": percentile(added, 0.25),
        "added_q3": percentile(added, 0.75),
    }
    return {f"{name}_{unit}": round(value, 3) for name, value in values.items()}


def measure_parts(rounds: int, seconds: float) -> Figures:
    """Measure worker, journal and index alone."""
    figures: Figures = {}
    for name, part in PARTS.items():
        words = {kind: command(part, kind, seconds) for kind in KINDS}
        figures[name] = summary(pairs(rounds, partial(nanoseconds, words)), "ns")
        if shutil.which("valgrind"):
            figures[name] |= {
                f"{kind}_instructions": round(instructions(part, kind), 1) for kind in KINDS
            }
        print_table({name: figures[name]})
    return figures


def unobserved_tree() -> Path:
    """Return a copy of this tree's package under build/, with natives that count nothing."""
    tree = BUILD / "unobserved"
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.rmtree(tree / "fastbk", ignore_errors=True)
    shutil.copytree(ROOT / "fastbk", tree / "fastbk", ignore=ignored)
    (tree / ".venv").unlink(missing_ok=True)
    (tree / ".venv").symlink_to(sys.prefix)
    environment = {**os.environ, "PYTHONPATH": str(tree), "CFLAGS": f"-I{UNOBSERVED}"}
    subprocess.run(
        [sys.executable, "-P", "-m", "fastbk.native.build_native"],
        cwd=tree, env=environment, check=True, capture_output=True, timeout=600,
    )  # fmt: skip
    return tree


@contextlib.contextmanager
def both_bookies(folder: Path) -> Iterator[dict[str, OneBookie]]:
    """Yield a bookie of each kind."""
    tree = unobserved_tree()
    with contextlib.ExitStack() as stack:
        on = stack.enter_context(one_bookie(folder / "on"))
        with bookies_of(tree):
            off = stack.enter_context(one_bookie(folder / "off"))
        yield {"on": on, "off": off}


def measure_bookies(rounds: int, seconds: float) -> Figures:
    """Measure whole bookies: the microseconds of their processors for an add, and the latency of lone ones."""
    figures: Figures = {}
    with scratch() as folder, both_bookies(folder) as bookies:

        def processor_us(window: int, kind: str) -> float:
            bookie = bookies[kind]
            with bookie.load(
                [bookie.create_ledger()], window=window, size_bytes=SIZE_BYTES
            ) as load:
                load.append(seconds / 5)
                before, spent_s = sum(load.entry_counts()), sum(bookie.cpu_seconds().values())
                load.append(seconds)
                count = sum(load.entry_counts()) - before
            return (sum(bookie.cpu_seconds().values()) - spent_s) * 1e6 / count

        def latency_us(kind: str) -> float:
            bookie = bookies[kind]
            with bookie.load([bookie.create_ledger()], window=1, size_bytes=SIZE_BYTES) as load:
                load.append(seconds)
                return float(load.result().latencies.percentile_us(50.0))

        for window in (1000, 1):
            name = f"bookie, {window:,} in flight: processors"
            figures[name] = summary(pairs(rounds, partial(processor_us, window)), "us")
        figures["bookie, 1 in flight: median latency"] = summary(pairs(rounds, latency_us), "us")
        counted = counters_of(bookies["on"]), counters_of(bookies["off"])
        if not all(counted[0][name] > 0 and counted[1][name] == 0 for name in FACTS):
            raise SystemExit(
                "bench observation: the bookie that is to count nothing counts, or the other one does not"
            )
        figures |= measure_reads(bookies["on"])
    print_table(figures)
    return figures


def measure_reads(bookie: OneBookie) -> Figures:
    """Measure the supervisor's processor time: of a second without requests, and of each page."""
    pids = dict(bookie.bookie.pids)

    def spent_ms(what: Callable[..., object], *arguments: object) -> tuple[float, float]:
        before_s, began_s = cpu_seconds(pids)["supervisor"], time.monotonic()
        what(*arguments)
        return (cpu_seconds(pids)["supervisor"] - before_s) * 1e3, time.monotonic() - began_s

    def read(path: str) -> None:
        for _ in range(PAGE_READS):
            assert page(bookie.bookie, path)[0] == 200, path

    idle_ms, idle_s = spent_ms(time.sleep, IDLE_S)
    per_s = idle_ms / idle_s
    figures: Figures = {"supervisor without requests": {"ms_per_s": round(per_s, 2)}}
    for path in PAGES:
        reads_ms, took_s = spent_ms(read, path)
        figures[f"GET {path}"] = {"ms": round((reads_ms - per_s * took_s) / PAGE_READS, 2)}
    return figures


def main() -> int:
    """Measure and write the figures."""
    rounds, seconds = setting("ROUNDS", 30), setting("SECONDS_EACH", 0.25)
    figures = measure_parts(rounds, seconds)
    figures |= measure_bookies(rounds, 4 * seconds)
    write("bench-observation", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
