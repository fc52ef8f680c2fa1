"""What the parts of `./dev bench` share: settings from the environment, a folder to work in, tables, their file."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tools import ROOT

BUILD = ROOT / "build"
T = TypeVar("T", int, float, str)


def setting(name: str, given: T) -> T:
    """Return a setting of the environment as the type of `given`, which holds if there is none."""
    return type(given)(os.environ.get(name, given))


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder on the disk that the tree is on."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=BUILD) as folder:
        yield Path(folder)


def write(name: str, figures: object) -> None:
    """Write what a part has measured to OUT, or build/`name`.json."""
    BUILD.mkdir(exist_ok=True)
    out = setting("OUT", str(BUILD / f"{name}.json"))
    Path(out).write_text(json.dumps(figures, indent=1))
    print(f"written: {out}", file=sys.stderr)


def print_table(figures: dict[str, dict[str, float]]) -> None:
    for name, each in figures.items():
        values = (f"{key}={value:,}" for key, value in each.items())
        print(f"{name:<40}", " ".join(values), flush=True)


def percentile(values: list[float], share: float) -> float:
    """Return the value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def latencies_us(took_us: list[float]) -> dict[str, float]:
    """Return the middle, the tail and the number of latencies."""
    shares = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p999_us": 0.999, "max_us": 1.0}
    found = {name: round(percentile(took_us, share), 1) for name, share in shares.items()}
    return {**found, "count": len(took_us)}


def rss_bytes(pid: int | str = "self") -> int:
    """Return a process's resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
