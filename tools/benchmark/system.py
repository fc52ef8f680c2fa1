"""What `./dev bench` can measure by the cases' loads."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tools.benchmark.cases import Load
from tools.benchmark.run import Figures
from tools.part import scratch

Measure = Callable[[Any, float], Figures]
"""Takes a load and seconds, and returns the figures of one round."""
COMMAND_S_MAX = 300.0


class System:
    """Something that loads are given to. As a context manager it runs what it needs from one measurement to another."""

    name: str

    def measures(self) -> Mapping[type, Measure]:
        """Return how it is measured, by the type of the load."""
        raise NotImplementedError

    def can(self, load: Load) -> bool:
        """Whether it can be given this load."""
        return type(load) in self.measures()

    def measure(self, load: Load, seconds: float) -> Figures:
        """Return the figures of one round."""
        return self.measures()[type(load)](load, seconds)

    def __enter__(self) -> System:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop what runs."""


def answer_of(
    command: Sequence[object], what: str, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a command in a folder of its own on the tree's disk and return the JSON that it prints.

    Raises SystemExit with its last words where it fails.
    """
    with scratch() as folder:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
        )
    if done.returncode != 0:
        raise SystemExit(f"bench: {what}: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(
        done.stdout.splitlines()[-1] if done.stdout[:1] != "{" else done.stdout
    )
    return result


def native_figures(result: dict[str, Any], bookie: Sequence[str]) -> Figures:
    """Return the figures of a program in C; `bookie`: whose processor time is the server's."""
    latency, cpu = result["latency_us"], result["cpu_us_per_entry"]
    return {
        "per_s": result["adds_per_s"],
        "p50_us": latency["p50"],
        "p99_us": latency["p99"],
        "p999_us": latency["p99.9"],
        "bookie_us": sum(cpu[name] for name in bookie),
        "client_us": cpu["client"],
        "memory_mb": result["memory_mb"],
    }


def program(path: Path, *arguments: object) -> dict[str, Any]:
    """Run a program in C and return the JSON that it prints."""
    return answer_of([path, *arguments], path.stem)
