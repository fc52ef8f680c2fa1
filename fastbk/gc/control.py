"""What an operator tells gc, by way of the supervisor, and what gc tells of itself.

Supervisor to gc: `gc_suspend` and `gc_resume` (what), `gc_run` (what, force, number). gc to supervisor: `gc_status`,
when something has changed. What there is to suspend and to run: KINDS in `fastbk.server.gc_messages`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fastbk.server.gc_messages import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

BEAT_INTERVAL_S = 1.0
"""Between two heartbeats while gc waits."""
STATUS_INTERVAL_S = 0.5
"""Between two tellings of how things stand, at least."""


class CutOff(Exception):
    """What is under way is not to go on. No error: the next one begins as if this one had not been."""


class Draining(CutOff):
    """The bookie stops."""


class Suspended(CutOff):
    """An operator has suspended it."""


class SupervisorSocket(Protocol):
    """The control socket to the supervisor, as `fastbk.server.child.Child` has it."""

    def receive(self, timeout_s: float | None = 0) -> dict[str, Any] | None:
        """Return the next message, None when none came in time."""

    def send(self, message: dict[str, Any]) -> None:
        """Send one."""


@dataclass
class RunRequest:
    """An operator's `fastbk bookie gc run`."""

    number: int
    what: tuple[str, ...]
    force: bool = False


@dataclass
class Control:
    """Takes the supervisor's messages wherever gc waits.

    Attributes:
        suspended: kinds that do not begin by themselves.
        asked: runs that were asked for and not begun yet.
        kind: what is under way, as one of KINDS; empty when nothing that a suspension cuts off is.
        doing: the same for people.
        status: how things stand; told in pauses, too.
        beat: beats this process's heartbeat.
    """

    line: SupervisorSocket
    on_suspended: Callable[[set[str]], None] = lambda what: None
    suspended: set[str] = field(default_factory=set)
    asked: list[RunRequest] = field(default_factory=list)
    kind: str = ""
    doing: str = ""
    status: Callable[[], dict[str, Any]] | None = None
    beat: Callable[[], None] = lambda: None
    _told: dict[str, Any] = field(default_factory=dict)
    _told_s: float = 0.0

    def wait(self, timeout_s: float) -> None:
        """Wait for a message, at most so long. Raises Draining."""
        left_s = max(0.0, timeout_s)
        message = None
        while message is None:
            self.beat()
            part_s = min(left_s, BEAT_INTERVAL_S)
            message = self.line.receive(part_s)
            left_s -= part_s
            if left_s <= 0:
                break
        if message is not None:
            self._take(message)

    def pause(self, timeout_s: float) -> None:
        """Wait so long, whatever comes. Raises Draining, and Suspended in the midst of what has just been suspended."""
        end_s = time.monotonic() + timeout_s
        if self.status is not None:
            self.report(self.status())
        while (left_s := end_s - time.monotonic()) > 0:
            self.wait(left_s)
            self.raise_if_suspended()

    def raise_if_suspended(self) -> None:
        """Raise Suspended if what is under way has been suspended."""
        if self.kind in self.suspended:
            raise Suspended(f"{self.kind} is suspended")

    def report(self, status: dict[str, Any], *, now: bool = False) -> bool:
        """Send how things stand, if that is new and it is time (`now`: it is); return whether it is known now."""
        if status == self._told:
            return True
        now_s = time.monotonic()
        if not now and now_s - self._told_s < STATUS_INTERVAL_S:
            return False
        self._told, self._told_s = status, now_s
        self.line.send({"type": "gc_status", "status": status})
        return True

    def _take(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "drain":
            raise Draining
        what = tuple(one for one in message.get("what", ()) if one in KINDS)
        if kind == "gc_run":
            self.asked.append(RunRequest(int(message["number"]), what, bool(message.get("force"))))
        elif kind in ("gc_suspend", "gc_resume"):
            self._change(what, suspend=kind == "gc_suspend")

    def _change(self, what: Iterable[str], *, suspend: bool) -> None:
        before = set(self.suspended)
        if suspend:
            self.suspended.update(what)
        else:
            self.suspended.difference_update(what)
        if self.suspended != before:
            self.on_suspended(self.suspended)
