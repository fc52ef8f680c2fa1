"""What cells came to: a line each as they end, and a table of operation x protocol x direction."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MARKS = {"pass": "ok", "fail": "FAIL", "skip": "-"}


@dataclass(frozen=True, slots=True)
class Result:
    column: str
    """Who asks whom in which protocol, as `java v3 > ours`."""
    name: str
    verdict: str
    """pass, fail or skip."""
    seconds: float
    reason: str = ""

    def __str__(self) -> str:
        text = f"{MARKS[self.verdict]:4} {self.column:22} {self.name:34} {self.seconds:7.2f} s"
        return f"{text}  {self.reason}" if self.reason else text


def run_cell(column: str, name: str, act: Callable[[], object]) -> Result:
    """Return what a cell came to: an exception is the reason of a failure."""
    started_s = time.monotonic()
    verdict, reason = "pass", ""
    try:
        act()
    except Exception as error:
        verdict, reason = "fail", f"{type(error).__name__}: {error}".replace("\n", " ")
    return Result(column, name, verdict, time.monotonic() - started_s, reason)


def is_wanted(name: str, only: Sequence[str]) -> bool:
    """Return whether a cell has one of these words in its name, or no word is given."""
    return not only or any(word in name for word in only)


class Results:
    def __init__(self) -> None:
        self.all: list[Result] = []

    def add(self, result: Result) -> None:
        self.all.append(result)
        print(result, flush=True)

    @property
    def failed(self) -> list[Result]:
        return [one for one in self.all if one.verdict == "fail"]

    def table(self) -> str:
        """Return a table in Markdown: a row each operation, a column each direction and protocol."""
        columns = list(dict.fromkeys(one.column for one in self.all))
        lines = [f"| operation | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
        for name in dict.fromkeys(one.name for one in self.all):
            found = {one.column: one.verdict for one in self.all if one.name == name}
            marks = [MARKS[found[column]] if column in found else "" for column in columns]
            lines.append(f"| {name} | {' | '.join(marks)} |")
        return "\n".join(lines)

    def summary(self) -> str:
        """Return how many of each, and what failed and was left out with its reason."""
        counts = {verdict: sum(one.verdict == verdict for one in self.all) for verdict in MARKS}
        lines = [f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} do not apply"]
        lines += _reasons("fail", self.all)
        lines += _reasons("skip", self.all)
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps([asdict(one) for one in self.all], indent=1) + "\n")


def _reasons(verdict: str, results: Iterable[Result]) -> list[str]:
    return [
        f"{MARKS[verdict]:4} {one.column}: {one.name}: {one.reason}"
        for one in results
        if one.verdict == verdict
    ]
