"""Where a query of Spark is killed, and who dies there: what every process of it looks at while it works.

A step is a call and "before" or "after" it. Between two calls of metadata nothing happens that anybody else could see,
so of "after the first" and "before the second" one stands for both.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastbk.meta.records import Change

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
ORPHANS: tuple[Step, ...] = (
    ("task.begin_draft", "after"),
    ("task.create_ledger", "before"),
    ("task.create_ledger", "after"),
    ("task.append_nowait", "after"),
    ("task.close", "before"),
    ("task.write", "after"),
)
"""Where a task stands still, with its executor and that machine's worker, while its driver dies."""
HEIRS: tuple[Step, ...] = (
    ("task.close", "before"),
    ("commit.attach_drafts", "before"),
    ("commit.attach_drafts", "after"),
)
"""Where the next driver of the query is when they go on."""
BOOKIES: tuple[Step, ...] = (
    ("task.begin_draft", "after"),
    ("task.create_ledger", "before"),
    ("task.create_ledger", "after"),
    ("task.append_nowait", "after"),
    ("task.close", "before"),
    ("task.write", "after"),
    ("plan.partitions", "after"),
    ("commit.drafts", "after"),
    ("commit.attach_drafts", "before"),
    ("commit.give_up_drafts", "before"),
)
"""Where one bookie dies in the same moment: before and while ledgers are made, written, closed, read, fenced."""
METADATA: tuple[Step, ...] = (
    ("metadata.give_up", "during"),
    ("commit.drafts", "before"),
    ("metadata.take_over", "before"),
    ("metadata.take_over", "during"),
    ("metadata.take_over", "after"),
    ("metadata.attach", "before"),
    ("metadata.attach", "during"),
    ("metadata.attach", "after"),
    ("commit.give_up_drafts", "before"),
    ("commit.commit", "after"),
)
"""Where the server dies under a commit; "during": it has done the change, and nobody hears of it."""
_WRAPPED = ("namespace", "stream", "create_ledger")
GENERATIONS = 4
ASK_S = 300.0
"""How long what is asked of the rig may take: an orphan is held until the next driver has come to its step."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Who dies at which step.

    Attributes:
        who: "driver": it, its JVM and the process that is there; "zombie": the first two, and that process goes on;
            "alone": that process and nothing else; "executor": it and the executor's JVM, on a cluster; "orphan":
            the driver and its JVM, while that process, its executor and its worker stand still; "nobody".
        service: what the rig does in the same moment, before that: it kills "bookie" `number` or "metadata", or
            lets orphans go on ("release"). Empty: nothing.
        away_s: how long what the rig kills stays away.
    """

    who: str
    step: Step
    service: str = ""
    number: int = 0
    away_s: float = 0.0

    @property
    def kind(self) -> str:
        """What it is counted as."""
        return self.service or self.who


@dataclass(frozen=True, slots=True)
class Kills:
    """One life's, in order: each is armed when the one before has happened.

    Attributes:
        folder: has a file for each that happened.
        group: the driver's process group.
        rig_port: where the rig is asked to kill, hold and release (`spark_services.py`).
    """

    folder: Path
    kills: tuple[Kill, ...]
    group: int
    rig_port: int = 0

    def text(self) -> str:
        """Return what `of` takes."""
        said = {"kills": [astuple(one) for one in self.kills], "folder": str(self.folder)}
        return json.dumps({**said, "group": self.group, "rig_port": self.rig_port})

    @classmethod
    def of(cls, text: str) -> Kills:
        """Return what `text` says."""
        said = json.loads(text)
        kills = tuple(Kill(who, tuple(step), *more) for who, step, *more in said["kills"])
        return cls(Path(said["folder"]), kills, said["group"], said["rig_port"])

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
        kill = self.kills[number]
        if kill.service:
            self.ask(
                {
                    "service": kill.service,
                    "number": kill.number,
                    "when": when,
                    "away_s": kill.away_s,
                }
            )
        self._kill(kill.who)

    def _kill(self, who: str) -> None:
        if who == "nobody":
            return
        if who == "orphan":
            self._be_an_orphan()
            return
        if who == "executor":
            os.kill(executor_of(os.getpid()), signal.SIGKILL)
        if who == "zombie":
            _leave_group()
        if who in ("driver", "zombie"):
            os.killpg(self.group, signal.SIGKILL)
        if who != "zombie":
            os.kill(os.getpid(), signal.SIGKILL)

    def _be_an_orphan(self) -> None:
        """Kill the driver, and stand still with executor and worker until the rig says so."""
        executor = executor_of(os.getpid())
        worker = parent_of(executor)
        _leave_group()
        for pid in (worker, executor):
            os.kill(pid, signal.SIGSTOP)
        os.killpg(self.group, signal.SIGKILL)
        self.ask({"service": "hold", "pid": os.getpid(), "stopped": [executor, worker]})

    def ask(self, what: dict[str, object]) -> None:
        """Have the rig do something; return when it is done."""
        with socket.create_connection(("127.0.0.1", self.rig_port), ASK_S) as connection:
            connection.sendall(json.dumps(what).encode() + b"\n")
            if connection.recv(16) != b"done":
                raise ConnectionError("the rig is gone")


def _leave_group() -> None:
    with suppress(PermissionError):  # leads a group already
        os.setpgid(0, 0)


def parent_of(pid: int) -> int:
    """Return a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_of(pid: int) -> int:
    """Return the JVM that this Python process works for: its parent, or its daemon's. Raises LookupError."""
    for _ in range(GENERATIONS):
        pid = parent_of(pid)
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


@contextmanager
def changes_looked_at(kills: Kills) -> Iterator[None]:
    """Make steps of the changes of metadata that a commit makes in here."""
    from fastbk.client.metadata_calls import RecordCalls

    plain = RecordCalls.change

    async def looked(self: RecordCalls, *changes: Change) -> list[int]:
        call = f"metadata.{name_of(changes)}"
        kills.look(call, "before")
        kills.look(call, "during")
        versions = await plain(self, *changes)
        kills.look(call, "after")
        return versions

    RecordCalls.change = looked  # type: ignore[method-assign]
    try:
        yield
    finally:
        RecordCalls.change = plain  # type: ignore[method-assign]


def name_of(changes: Sequence[Change]) -> str:
    """Return what a change of a commit does: the chain alone, the chain and drafts, or a draft alone."""
    drafts = sum("/drafts/" in one.path for one in changes)
    if not drafts:
        return "take_over"
    return "attach" if drafts < len(changes) else "give_up"
