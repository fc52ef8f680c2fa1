"""Where a query of Spark is killed, and who dies there: what every process of it looks at while it works.

A step is a call and "before" or "after" it. Between two calls of metadata nothing happens that anybody else could see,
so of "after the first" and "before the second" one stands for both.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Step = tuple[str, str]

TASK: tuple[Step, ...] = (
    ("task.begin_draft", "before"),
    ("task.begin_draft", "after"),
    ("task.draw_ledger", "after"),
    ("task.create_ledger", "before"),
    ("task.create_ledger", "after"),
    ("task.append_nowait", "after"),
    ("task.close", "before"),
    ("task.close", "after"),
    ("task.write", "after"),
)
"""An attempt's; the last: its ledgers are closed, and Spark has not heard of them."""
COMMIT: tuple[Step, ...] = (
    ("commit.drafts", "before"),
    ("commit.drafts", "after"),
    ("commit.attach_drafts", "before"),
    ("commit.attach_drafts", "after"),
    ("commit.give_up_drafts", "before"),
    ("commit.give_up_drafts", "after"),
    ("commit.commit", "after"),
)
"""The driver's; the last: the batch is visible and swept, and Spark's commit log does not know it."""
SPARK: tuple[Step, ...] = (
    ("plan.latestOffset", "before"),
    ("plan.latestOffset", "after"),
    ("plan.partitions", "before"),
    ("plan.partitions", "after"),
)
"""Spark's own: before and after its log of offsets has the batch, and before tasks are given out."""
STEPS = (*SPARK, *TASK, *COMMIT)
ZOMBIES: tuple[Step, ...] = (
    ("task.create_ledger", "after"),
    ("task.close", "before"),
    ("commit.drafts", "after"),
    ("commit.attach_drafts", "before"),
    ("commit.attach_drafts", "after"),
    ("commit.give_up_drafts", "before"),
)
"""Where a process that outlives its driver can do harm."""
EXECUTORS: tuple[Step, ...] = (
    ("task.draw_ledger", "after"),
    ("task.append_nowait", "after"),
    ("task.close", "after"),
    ("task.write", "after"),
)
_WRAPPED = ("namespace", "stream", "create_ledger")
GENERATIONS = 4


@dataclass(frozen=True, slots=True)
class Kill:
    """Who dies at which step.

    Attributes:
        who: "driver": it, its JVM and the process that is there; "zombie": the first two, and that process goes on;
            "alone": that process and nothing else; "executor": it and the executor's JVM, on a cluster.
    """

    who: str
    step: Step


@dataclass(frozen=True, slots=True)
class Kills:
    """One life's, in order: each is armed when the one before has happened.

    Attributes:
        folder: has a file for each that happened.
        group: the driver's process group.
    """

    folder: Path
    kills: tuple[Kill, ...]
    group: int

    def text(self) -> str:
        """Return what `of` takes."""
        steps = [[one.who, *one.step] for one in self.kills]
        return json.dumps({"folder": str(self.folder), "kills": steps, "group": self.group})

    @classmethod
    def of(cls, text: str) -> Kills:
        """Return what `text` says."""
        said = json.loads(text)
        kills = tuple(Kill(who, (call, when)) for who, call, when in said["kills"])
        return cls(Path(said["folder"]), kills, said["group"])

    def happened(self) -> int:
        """Return how many have."""
        return sum((self.folder / str(number)).exists() for number in range(len(self.kills)))

    def look(self, call: str, when: str) -> None:
        """Die, or have others die, if this is the armed one's step."""
        number = self.happened()
        if number == len(self.kills) or self.kills[number].step != (call, when):
            return
        try:
            os.close(os.open(self.folder / str(number), os.O_CREAT | os.O_EXCL))
        except FileExistsError:  # the task beside this one was first
            return
        self._kill(self.kills[number].who)

    def _kill(self, who: str) -> None:
        if who == "executor":
            os.kill(executor_of(os.getpid()), signal.SIGKILL)
        if who == "zombie":
            with suppress(PermissionError):  # leads a group already
                os.setpgid(0, 0)
        if who in ("driver", "zombie"):
            os.killpg(self.group, signal.SIGKILL)
        if who != "zombie":
            os.kill(os.getpid(), signal.SIGKILL)


def executor_of(pid: int) -> int:
    """Return the JVM that this Python process works for: its parent, or its daemon's. Raises LookupError."""
    for _ in range(GENERATIONS):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        program = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
        if program.endswith(b"java"):
            return pid
        if not program:  # it is ending; above it is whoever started it, perhaps another JVM
            break
    raise LookupError("no JVM above this process")


class Wrapped:
    """A client, stream or ledger whose calls are steps, named with `role` in front."""

    def __init__(self, inner: object, kills: Kills, role: str) -> None:
        self._inner = inner
        self._kills = kills
        self._role = role

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def called(*arguments: object, **named: object) -> object:
            self._kills.look(f"{self._role}.{name}", "before")
            result = found(*arguments, **named)
            self._kills.look(f"{self._role}.{name}", "after")
            return Wrapped(result, self._kills, self._role) if name in _WRAPPED else result

        return called
