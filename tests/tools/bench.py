"""`./dev bench`: the disk, appends at windows 1, 100, 1,000, and reads; for this tree, or paired with another commit.

Every row is a ratio or stands beside one: these machines are noisy, so a figure alone says little. With AGAINST=commit
that commit is checked out and set up under build/against/ and the two take turns, run by run, in one session.

Environment: AGAINST=commit, ROUNDS=3, SECONDS_EACH=3, OUT=build/bench.json.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.style.tree import ROOT
from tests.tools.part import scratch, setting, write

OTHERS = (
    "replication", "apache", "slow", "stalls", "reads", "foreground", "restart", "ledgers", "gc", "streams", "tail",
    "segments", "manystreams", "arrow", "spark", "spark-memory",
)  # fmt: skip
"""`./dev bench NAME` runs `main` of tests.tools.bench_NAME, and writes the figures that it returns."""


@dataclass(frozen=True)
class Case:
    """One row of the table: a `fastbk bench` command, the figure that counts, and whether more is better."""

    name: str
    arguments: tuple[str, ...]
    figure: str
    more_is_better: bool


CASES = (
    Case("disk commit, our probe: p50 µs", ("append", "--window", "1"), "disk_commit_us.p50", False),
    Case("append, window 1: p50 µs", ("append", "--window", "1"), "latency_us.p50", False),
    Case("append, window 1: p50 / disk p50", ("append", "--window", "1"), "p50_over_disk", False),
    Case("append, window 100: adds/s", ("append", "--window", "100"), "adds_per_s", True),
    Case("append, window 1,000: adds/s", ("append", "--window", "1000"), "adds_per_s", True),
    Case(
        "append, window 1,000: bookie CPU µs/entry",
        ("append", "--window", "1000"),
        "cpu_us_per_entry.bookie",
        False,
    ),
    Case("read, singly, window 100: entries/s", ("read", "--window", "100"), "reads_per_s", True),
    Case(
        "read, in batches, window 10: entries/s",
        ("read", "--window", "10", "--entries-a-read", "64"),
        "reads_per_s",
        True,
    ),
)


def run_bench(tree: Path, arguments: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Run one `fastbk bench` of `tree` and return its JSON object."""
    command = [tree / ".venv/bin/fastbk", "bench", *arguments, "--seconds", str(seconds), "--json"]
    with scratch() as folder:
        done = subprocess.run(
            [str(part) for part in command], cwd=folder, capture_output=True, text=True, timeout=300
        )
    if done.returncode != 0:
        raise SystemExit(f"bench: {tree} {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    disk = result.get("disk_commit_us", {}).get("p50")
    if disk:
        result["p50_over_disk"] = result["latency_us"]["p50"] / disk
    return result


def figure(result: dict[str, Any], path: str) -> float:
    """Return the number at a dotted path of one result."""
    value: Any = result
    for part in path.split("."):
        value = value[part]
    return float(value)


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


def measure(trees: dict[str, Path], rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Return case → tree → figures, one per round; trees take turns and swap their order each round."""
    figures: dict[str, dict[str, list[float]]] = {
        case.name: {name: [] for name in trees} for case in CASES
    }
    commands = list(dict.fromkeys(case.arguments for case in CASES))
    for number in range(rounds):
        names = list(trees) if number % 2 == 0 else list(reversed(trees))
        for arguments in commands:
            for name in names:
                print(f"round {number + 1}/{rounds}: {name}: {' '.join(arguments)}", file=sys.stderr)
                result = run_bench(trees[name], arguments, seconds)
                for case in CASES:
                    if case.arguments == arguments:
                        figures[case.name][name].append(figure(result, case.figure))
    return figures


def fio_commit_us(seconds: float) -> dict[str, float]:
    """Return p50 and p99 of one durable 4 KiB overwrite at a time as fio measures them, to hold our probe against."""
    with scratch() as folder:
        command = [
            "fio", "--name=commit", f"--filename={folder}/file", "--size=64M", "--bs=4k", "--rw=write",
            "--direct=1", "--sync=dsync", "--overwrite=1", "--ioengine=psync", "--time_based",
            f"--runtime={max(1, int(seconds))}", "--output-format=json",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise SystemExit(f"bench: fio: {done.stderr.strip()[-500:]}")
    write = json.loads(done.stdout)["jobs"][0]["write"]
    # The sync is part of the write with O_DSYNC, so completion latency is the commit's.
    percentiles = write["clat_ns"]["percentile"]
    return {"p50": percentiles["50.000000"] / 1000, "p99": percentiles["99.000000"] / 1000}


def table(figures: dict[str, dict[str, list[float]]], trees: dict[str, Path]) -> str:
    """Return the figures as aligned text: medians with their range, and the ratio of the paired rounds."""
    lines = [f"{'':44}" + "".join(f"{name:>34}" for name in trees) + ("  this/other" if len(trees) > 1 else "")]
    for case in CASES:
        row = f"{case.name:44}"
        for name in trees:
            values = figures[case.name][name]
            text = f"{statistics.median(values):,.2f} ({min(values):,.2f}…{max(values):,.2f})"
            row += f"{text:>34}"
        if len(trees) > 1:
            this, other = (figures[case.name][name] for name in trees)
            ratio = statistics.median(a / b for a, b in zip(this, other, strict=True))
            better = (ratio > 1) == case.more_is_better
            row += f"  {ratio:10.3f}{'' if abs(ratio - 1) < 0.03 else ' better' if better else ' worse'}"
        lines.append(row)
    return "\n".join(lines)


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
    trees = {"this tree": ROOT}
    if against := os.environ.get("AGAINST"):
        trees[against] = check_out(against)
    fio = [fio_commit_us(seconds)]
    figures = measure(trees, rounds, seconds)
    fio.append(fio_commit_us(seconds))
    print("fio, 4 KiB O_DIRECT + O_DSYNC overwrite, before and after: " + "; ".join(
        f"p50 {one['p50']:.1f} p99 {one['p99']:.1f} µs" for one in fio
    ))
    print(table(figures, trees))
    answer = {"rounds": rounds, "seconds": seconds, "fio_commit_us": fio, "figures": figures}
    write("bench", answer)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
