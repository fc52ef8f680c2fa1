"""What a rig is asked for, and what it says at its end."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

LOSSES_MAX = 50
"""Described losses; more are only counted."""


@dataclass
class Plan:
    """How much of a rig is run.

    Attributes:
        seed: of all random choices.
        cases: stop after about so many, 0 = no bound.
        seconds: begin nothing new after that.
        folder: for files; emptied by nobody.
        is_resumed: what an earlier run in that folder did is not done again, where the rig keeps a list.
        only: a regular expression: what of the rig is meant, where it can choose. Empty: everything.
        job, jobs: which part of the work this is, of how many.
        metadata: sqlite or zookeeper, for rigs that run on either.
    """

    seed: int
    cases: int
    seconds: float
    folder: Path
    is_resumed: bool = False
    only: str = ""
    job: int = 0
    jobs: int = 1
    metadata: str = "sqlite"
    began_s: float = field(default_factory=time.monotonic)

    def goes_on(self, cases: int) -> bool:
        """Whether there is time and a case left to do."""
        has_time = time.monotonic() - self.began_s < self.seconds
        return has_time and (self.cases == 0 or cases < self.cases)

    def begins(self, cases: int) -> bool:
        """Like `goes_on`, and true for the first case: on a busy machine the start of bookies takes all the time."""
        return self.goes_on(cases) or (cases == 0 and self.seconds > 0)


@dataclass
class Report:
    """Cases, what they were made of, and what was lost.

    Attributes:
        rig: its name.
        cases: failures that were looked after.
        losses: one line each: what an operator would call data loss, wrong bytes or a broken promise.
        counts: of whatever shows that the rig was worth its name.
        notes: lines for people, more than the counts say.
        skipped: why nothing could be run here, else empty.
    """

    rig: str
    cases: int = 0
    losses: list[str] = field(default_factory=list)
    losses_count: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    skipped: str = ""
    seconds: float = 0.0

    def lose(self, what: list[str], case: str) -> None:
        """Note what a case lost; the first few with their words."""
        self.losses_count += len(what)
        room = max(LOSSES_MAX - len(self.losses), 0)
        self.losses += [f"{case}: {each}" for each in what[:room]]

    def add(self, part: Report) -> None:
        """Take in what a part of the same rig said."""
        self.cases += part.cases
        self.losses += part.losses
        self.losses_count += part.losses_count
        self.counts += part.counts
        self.notes += part.notes
        self.skipped = part.skipped

    @contextmanager
    def folder(self, plan: Plan) -> Iterator[Path]:
        """Give a folder, which stays if something was lost; the block's time is that of the rig."""
        began_s = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix=f"fastbk-{self.rig}-", dir=plan.folder))
        yield folder
        if self.is_good:
            shutil.rmtree(folder)
        self.seconds = time.monotonic() - began_s

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost."""
        return not self.losses_count

    def line(self) -> str:
        """One line for people."""
        if self.skipped:
            return f"{self.rig:<12} skipped: {self.skipped}"
        rate = self.cases / self.seconds if self.seconds else 0.0
        more = " ".join(f"{name}={count}" for name, count in sorted(self.counts.items()))
        return (
            f"{self.rig:<12} cases={self.cases} losses={self.losses_count} seconds={self.seconds:.1f}"
            f" cases_per_s={rate:.0f} {more}"
        )
