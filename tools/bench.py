"""`./dev bench`: systems measured in turn in one run: the disk, a bare-C chain, this tree, another commit, and others.

Every figure stands beside others of the same minute, since these machines are noisy: all systems
take turns, the order is turned round each round, and what counts are ratios pair by pair. The cases
are in `benchmark/cases.py`, the systems in `benchmark/systems.py`. A run without names measures the
disk, the chain, this tree and the commit before it, in the default cases. What is measured is kept
in OUT after each round of a system, so RESUME=1 goes on where a run was cut off, with any names.

`./dev bench readme` writes the tables of README.md and docs/performance.md from docs/benchmark.json;
FROM=path first takes a run's figures over into that file.

Environment:
    AGAINST=commit: in place of the commit before this; none: no other commit.
    ONLY=word,word or ONLY="name; name": cases.
    SYSTEMS=word,word: systems by words of their names; this tree is always among them.
    FULL=1: all cases and all systems.
    ROUNDS=3, SECONDS_EACH=2, PAIRS=20: rounds, their length, short rounds of window 1.
    SUSTAINED_SECONDS=20: the least length of rounds of sustained loads.
    RESUME=1, OUT=build/bench.json: the report is beside OUT, as .html.
"""

from __future__ import annotations

import importlib
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fastbk.native.load import LoadError
from tools.benchmark.cases import SUSTAINED_S, Append, Case, DiskBytes, chosen_cases
from tools.benchmark.disk_limit import why_none
from tools.benchmark.page import page
from tools.benchmark.run import Run
from tools.benchmark.system import System
from tools.benchmark.systems import chosen_systems, commit_of
from tools.benchmark.tables import write_tables
from tools.benchmark.targets import targets_table
from tools.benchmark.terminal import table
from tools.benchmark.trees import Tree
from tools.part import BUILD, setting, write

OTHERS = (
    "slow", "stalls", "openloop", "restart", "ledgers", "gc", "streams", "segments", "manystreams", "arrow", "spark",
    "spark-memory", "costs", "growth", "healing", "tls", "quotas", "tracing", "gateway", "observation", "tails",
    "pulsar", "files", "producers", "pipeline", "objects",
)  # fmt: skip
"""`./dev bench NAME` runs `main` of tools.bench_NAME, and writes the figures that it returns."""
PAIR_S = 1.0


@dataclass(frozen=True)
class Length:
    """How often and how long each is measured."""

    rounds: int
    seconds: float
    pairs: int
    sustained_s: float = SUSTAINED_S

    def of(self, case: Case) -> tuple[int, float]:
        """Return rounds and seconds each."""
        if case.is_paired:
            return self.pairs, min(PAIR_S, self.seconds)
        is_sustained = isinstance(case.load, Append | DiskBytes) and case.load.seconds_min > 0
        return self.rounds, max(self.seconds, self.sustained_s) if is_sustained else self.seconds


def possible_cases(cases: list[Case]) -> list[Case]:
    """Return the cases without those that need a limit of the disk, where none can be set, and say why."""
    limited = [
        case for case in cases if isinstance(case.load, Append) and case.load.disk_bytes_per_s
    ]
    why = why_none(BUILD) if limited else ""
    if not why:
        return cases
    print(f"bench: {len(limited)} cases need a limit of the disk: {why}", file=sys.stderr)
    return [case for case in cases if case not in limited]


def measure(run: Run, cases: list[Case], systems: list[System], length: Length, out: Path) -> None:
    """Measure what `run` does not have yet; the systems take turns and swap their order each round.

    Another system that ends under a load is left out of that case, and named: the others' figures stay.
    """
    missing = [
        (case, number, system)
        for case in cases
        for number in range(length.of(case)[0])
        for system in (systems if number % 2 == 0 else reversed(systems))
        if system.can(case.load) and not run.has(case.name, system.name, number)
    ]
    order = {system.name: at for at, system in enumerate(systems)}
    with ExitStack() as stack:
        for system in systems:
            if any(system is one for _, _, one in missing):
                stack.enter_context(system)
        failed: set[tuple[str, str]] = set()
        for case, number, system in missing:
            if (case.name, system.name) in failed:
                continue
            rounds, seconds = length.of(case)
            print(f"{case.name}: round {number + 1}/{rounds}: {system.name}", file=sys.stderr)
            try:
                run.add(case.name, system.name, system.measure(case.load, seconds))
            except LoadError as error:
                if isinstance(system, Tree):
                    raise
                failed.add((case.name, system.name))
                print(f"bench: {system.name} has ended: {error}", file=sys.stderr)
                continue
            # Systems that came later, or went first in a turned round, stand in their place all the same.
            known = run.cases[case.name]
            run.cases[case.name] = dict(
                sorted(known.items(), key=lambda item: order.get(item[0], len(order)))
            )
            run.write(out)


def tool(arguments: list[str]) -> int:
    """Run `./dev bench NAME`."""
    if arguments == ["readme"]:
        write_tables(setting("FROM", ""))
        return 0
    if len(arguments) > 1 or arguments[0] not in OTHERS:
        raise SystemExit(
            f"bench: unknown: {' '.join(arguments)}; {', '.join((*OTHERS, 'readme'))}, or nothing"
        )
    module = f"tools.bench_{arguments[0].replace('-', '_')}"
    found = importlib.import_module(module).main()
    if isinstance(found, dict):
        write(f"bench-{arguments[0]}", found)
        return 0
    return int(found or 0)


def main() -> int:
    """Measure and report."""
    # By SIGTERM, too, everything that was started is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if sys.argv[1:]:
        return tool(sys.argv[1:])
    length = Length(
        setting("ROUNDS", 3),
        setting("SECONDS_EACH", 2.0),
        setting("PAIRS", 20),
        setting("SUSTAINED_SECONDS", SUSTAINED_S),
    )
    is_full = setting("FULL", "") == "1"
    cases = possible_cases(chosen_cases(setting("ONLY", ""), is_full=is_full))
    systems = chosen_systems(setting("SYSTEMS", ""), setting("AGAINST", ""), is_full=is_full)
    BUILD.mkdir(exist_ok=True)
    out = Path(setting("OUT", str(BUILD / "bench.json")))
    run = Run.read(out) if setting("RESUME", "") == "1" and out.exists() else Run(length.seconds)
    run.commit = run.commit or commit_of("HEAD")[:12]
    measure(run, cases, systems, length, out)
    print(table(run))
    print(f"\n{targets_table(run)}")
    out.with_suffix(".html").write_text(page(run))
    print(f"written: {out} and {out.with_suffix('.html')}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
