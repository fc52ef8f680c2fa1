"""`./dev bench`: the disk, a bare-C chain, this tree and perhaps another commit, measured in turn in one run.

Every figure stands beside others of the same minute, since these machines are noisy: all systems take turns, the order
is turned round each round, and what counts are ratios pair by pair. With AGAINST=commit that commit is checked out and
set up under build/against/. What is measured is kept in OUT after each run of a system, so RESUME=1 goes on where a
run was cut off.

With APACHE=1 the same load in C goes to a tuned and warm bookie of Apache's, too, through both of Apache's protocols.

Environment: AGAINST=commit, APACHE=1, ROUNDS=3, SECONDS_EACH=3, ONLY=word,word (cases by name), RESUME=1,
OUT=build/bench.json; the report is beside OUT, as .html.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.native.compile import URING, build_program
from tests.style.tree import ROOT
from tests.tools.bench_report import Figures, Run, page, table
from tests.tools.bench_rivals import PROTOCOLS, ApacheBookie, apache_bookie
from tests.tools.part import BUILD, scratch, setting, write

OTHERS = (
    "replication", "apache", "slow", "stalls", "reads", "foreground", "restart", "ledgers", "gc", "streams", "tail",
    "segments", "manystreams", "arrow", "spark", "spark-memory", "costs", "growth",
)  # fmt: skip
"""`./dev bench NAME` runs `main` of tests.tools.bench_NAME, and writes the figures that it returns."""

THIS, CHAIN, TWICE, DISK = "this tree", "bare-C chain", "same, stored twice", "disk"
"""TWICE: the chain beside a process that writes as many bytes again, as a bookie's flush does."""


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        load: arguments of `fastbk bench`; () where only the disk is measured.
        window: of the bare-C chain for the same; 0: it has no such case.
        block: of the disk's case: bytes a durable write, as fio writes it.
    """

    name: str
    load: tuple[str, ...] = ()
    window: int = 0
    block: str = ""


def append(name: str, *more: str, window: int, chain: bool = False) -> Case:
    """Return a case of appends."""
    return Case(name, ("append", "--window", str(window), *more), window if chain else 0)


CASES = (
    *(Case(f"durable write of {size}", block=size) for size in ("4k", "128k", "1m")),
    *(append(f"append, window {window:,}", window=window, chain=window <= 1000) for window in (1, 100, 1000, 5000)),
    append("append, 100 B, window 1,000", "--size", "100B", window=1000),
    append("append, 16 KiB, window 100", "--size", "16KiB", window=100),
    append("append, 256 KiB, window 10", "--size", "256KiB", window=10),
    append("append, 10 ledgers, window 100", "--ledgers", "10", window=100),
    append("append, 1,000 ledgers, window 1,000", "--ledgers", "1000", window=1000),
    *(
        append(
            f"append, {count:,} connections, 1 in flight each",
            *("--connections", str(count), "--ledgers", str(count)),
            window=count,
        )
        for count in (10, 100, 1000)
    ),
    Case("read, singly, window 100", ("read", "--window", "100")),
    Case("read, 64 at once, window 10", ("read", "--window", "10", "--entries-a-read", "64")),
)


def load_of(tree: Path, arguments: tuple[str, ...], seconds: float) -> Figures:
    """Run one `fastbk bench` of `tree` and return its figures."""
    command = [tree / ".venv/bin/fastbk", "bench", *arguments, "--seconds", str(seconds), "--json"]
    result = answer_of([str(part) for part in command], f"{tree} {' '.join(arguments)}")
    latency, cpu = result["latency_us"], result["cpu_us_per_entry"]
    found = {
        "per_s": result.get("adds_per_s") or result["reads_per_s"],
        "p50_us": latency["p50"],
        "p99_us": latency["p99"],
        "p999_us": latency["p999"],
        "bookie_us": cpu["bookie"],
        "client_us": cpu["client"],
        "memory_mb": result.get("bookie_pss_mb"),
        "disk_p50_us": result.get("disk_commit_us", {}).get("p50"),
        "entries": result["entries"],
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def may_measure(system: str, case: Case) -> bool:
    """Whether a bookie of Apache's has such a case: version 3 has no reads of many entries."""
    return system in PROTOCOLS and not (PROTOCOLS[system] == "v3" and "--entries-a-read" in case.load)


def chain_of(program: Path, window: int, seconds: float, *more: str) -> Figures:
    """Run the bare-C chain and return its figures; the bookie's processor time is worker and journal."""
    result = answer_of([str(program), "chain.file", str(window), str(seconds), *more], "the bare-C chain")
    latency, cpu = result["latency_us"], result["cpu_us_per_entry"]
    return {
        "per_s": result["adds_per_s"],
        "p50_us": latency["p50"],
        "p99_us": latency["p99"],
        "p999_us": latency["p99.9"],
        "bookie_us": cpu["worker"] + cpu["journal"],
        "client_us": cpu["client"],
    }


def disk_of(block: str, seconds: float) -> Figures:
    """Return what fio measures of one durable overwrite at a time."""
    command = [
        "fio", "--name=commit", "--filename=disk.file", "--size=256M", f"--bs={block}", "--rw=write", "--direct=1",
        "--sync=dsync", "--overwrite=1", "--ioengine=psync", "--time_based", f"--runtime={max(1, int(seconds))}",
        "--output-format=json",
    ]  # fmt: skip
    written = answer_of(command, "fio")["jobs"][0]["write"]
    # The sync is part of the write with O_DSYNC, so completion latency is the commit's.
    percentiles = written["clat_ns"]["percentile"]
    found = {name: percentiles[key] / 1000 for name, key in
             (("p50_us", "50.000000"), ("p99_us", "99.000000"), ("p999_us", "99.900000"))}  # fmt: skip
    return {"per_s": written["iops"], **found, "mb_per_s": written["bw_bytes"] / 1e6}


def answer_of(command: list[str], what: str) -> dict[str, Any]:
    """Run a command in a folder of its own on the tree's disk and return the JSON that it prints."""
    with scratch() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise SystemExit(f"bench: {what}: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check_out(commit: str) -> Path:
    """Return a set-up tree of `commit` under build/against/, made if it is not there."""
    sha = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, text=True
    )
    if sha.returncode != 0:
        raise SystemExit(f"bench: AGAINST={commit} is no commit here")
    tree = ROOT / "build" / "against" / sha.stdout.strip()[:12]
    if not tree.exists():
        tree.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(
            ["git", "worktree", "add", "--detach", str(tree), sha.stdout.strip()],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
    subprocess.run(["./dev", "setup"], cwd=tree, check=True)
    return tree


def chosen(only: str) -> list[Case]:
    """Return the cases whose name has one of these words, all for none. Raises SystemExit where that is no case."""
    words = [word.strip() for word in only.split(",") if word.strip()]
    cases = [case for case in CASES if not words or any(word in case.name for word in words)]
    if not cases:
        raise SystemExit(f"bench: ONLY={only}: no case; there are: {'; '.join(case.name for case in CASES)}")
    return cases


def measure(
    run: Run,
    cases: list[Case],
    trees: dict[str, Path],
    apache: ApacheBookie | None,
    rounds: int,
    seconds: float,
    out: Path,
) -> None:
    """Measure what `run` does not have yet; the systems take turns and swap their order each round."""
    chain = build_program(["bench_chain.c"], [], "release", URING)
    for number in range(rounds):
        for case in cases:
            systems = [THIS, *(name for name in trees if name != THIS)] if case.load else []
            systems += [name for name in PROTOCOLS if apache and case.load and may_measure(name, case)]
            systems += [CHAIN, TWICE] * (case.window > 0) + [DISK] * bool(case.block)
            for system in systems if number % 2 == 0 else reversed(systems):
                if run.has(case.name, system, number):
                    continue
                print(f"round {number + 1}/{rounds}: {case.name}: {system}", file=sys.stderr)
                if system == DISK:
                    figures = disk_of(case.block, seconds)
                elif system in (CHAIN, TWICE):
                    more = ["twice"] if system == TWICE else []
                    figures = chain_of(chain, case.window, seconds, *more)
                elif apache and system in PROTOCOLS:
                    figures = apache.measure(system, case.load, seconds)
                else:
                    figures = load_of(trees[system], case.load, seconds)
                run.add(case.name, system, figures)
                run.write(out)


def main() -> int:
    if sys.argv[1:]:
        if len(sys.argv) > 2 or sys.argv[1] not in OTHERS:
            raise SystemExit(f"bench: unknown: {' '.join(sys.argv[1:])}; {', '.join(OTHERS)}, or nothing")
        module = f"tests.tools.bench_{sys.argv[1].replace('-', '_')}"
        found = importlib.import_module(module).main()
        if isinstance(found, dict):
            write(f"bench-{sys.argv[1]}", found)
            return 0
        return int(found or 0)
    rounds, seconds = setting("ROUNDS", 3), setting("SECONDS_EACH", 3.0)
    cases = chosen(setting("ONLY", ""))
    trees = {THIS: ROOT}
    if against := os.environ.get("AGAINST"):
        trees[against] = check_out(against)
    BUILD.mkdir(exist_ok=True)
    out = Path(setting("OUT", str(BUILD / "bench.json")))
    run = Run.read(out) if setting("RESUME", "") == "1" and out.exists() else Run(seconds)
    with apache_bookie() if os.environ.get("APACHE") else nullcontext() as apache:
        measure(run, cases, trees, apache, rounds, seconds, out)
    print(table(run))
    out.with_suffix(".html").write_text(page(run))
    print(f"written: {out} and {out.with_suffix('.html')}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
