"""A bookie's states, why it is in one, and how often it may start again. Pure: time arrives as an
argument.

starting → replaying → writable ⇄ read_only → draining → stopped; from anywhere to failed. `/readyz`
and registration follow these states, nothing else. Conditions are the named reasons against using
a bookie now. `/readyz` answers for data: 503 while a condition of `data` stands. `/readyz/metadata`
answers for both: 503 while a condition of `data` or `metadata` stands. A `notice` is reported and
changes no status.

Decision 27.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, Literal

import msgspec

from fastbk.formats import LEVEL_FIRST
from fastbk.retry import Backoff, jittered

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.meta.rollback import Hold


class State(enum.Enum):
    """Where a bookie is in its life."""

    STARTING = "starting"
    REPLAYING = "replaying"
    WRITABLE = "writable"
    READ_ONLY = "read_only"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


_NEXT = {
    State.STARTING: {State.REPLAYING, State.DRAINING, State.STARTING},
    State.REPLAYING: {State.WRITABLE, State.READ_ONLY, State.DRAINING, State.STARTING},
    State.WRITABLE: {State.READ_ONLY, State.DRAINING, State.STARTING},
    State.READ_ONLY: {State.WRITABLE, State.DRAINING, State.STARTING},
    State.DRAINING: {State.STOPPED},
    State.STOPPED: set(),
    State.FAILED: set(),
}


class Lifecycle:
    """The current state, since when and why."""

    def __init__(
        self, now_s: float, on_change: Callable[[State, str], None] = lambda _state, _reason: None
    ) -> None:
        """`on_change`: called after each step."""
        self.state = State.STARTING
        self.since_s = now_s
        self.reason = "starting"
        self._conditions = Conditions()
        self.metadata_hold = ""
        """Why metadata is on hold; empty: it is not. Data is served all the same."""
        self.unclean_start_s: float | None = None
        """When this life began, if the one before did not stop cleanly, in seconds since 1970."""
        self.format_level = LEVEL_FIRST
        """That of the cluster, as it was read last."""
        self.crash_loop = ""
        """Why only reads are served until the next try, or nothing is; empty: neither."""
        self._on_change = on_change

    def go(self, state: State, reason: str, now_s: float) -> None:
        """Change the state. Raises ValueError for a step that a bookie never takes."""
        if state is not State.FAILED and state not in _NEXT[self.state]:
            raise ValueError(f"a bookie does not go from {self.state.value} to {state.value}")
        self.state = state
        self.since_s = now_s
        self.reason = reason
        self._on_change(state, reason)

    def note(self, name: str, reason: str | None, concerns: Concern = "data") -> None:
        """Set a condition of readiness, or remove it (None)."""
        self._conditions.put(name, reason, concerns)

    def metadata_held(self, hold: Hold | None) -> None:
        """Note that metadata is on hold, or (None) that it is not."""
        self.metadata_hold = "" if hold is None else str(hold)
        reason = None if hold is None else f"metadata is on hold, nothing is deleted: {hold}"
        self.note("metadata_hold", reason, "metadata")

    def began_unclean(self, started_s: float) -> None:
        """Note that the life before this one did not stop cleanly."""
        self.unclean_start_s = started_s

    def level_rose(self, level: int) -> None:
        """Note the format level of the cluster."""
        self.format_level = level

    @property
    def is_live(self) -> bool:
        """Whether restarting this process from outside would not help."""
        return self.state is not State.FAILED

    def conditions(self, now_s: float) -> list[Condition]:
        """Return everything that speaks against using this bookie; its own state comes first."""
        conditions = self._conditions.all()
        if self.state is not State.WRITABLE:
            lasted_s = max(0.0, now_s - self.since_s)
            reason = f"{self.state.value} for {lasted_s:.1f} s: {self.reason}"
            conditions.insert(0, Condition("state", "data", reason))
        return conditions

    def not_ready(self, now_s: float) -> list[str]:
        """Return why clients should not write here; empty when they should."""
        return reasons_of(self.conditions(now_s), "data")


class RestartBudget:
    """Counts the deaths of children; says how long to wait before the next start, or that it is
    enough.
    """

    def __init__(self, restarts_max: int, window_s: float) -> None:
        self.total = 0
        self.crash_loops = 0
        self._max = restarts_max
        self.window_s = window_s
        self._recent: deque[float] = deque()

    def died(self, now_s: float) -> float | None:
        """Note a death; return the pause before the next start in seconds, or None for a crash
        loop.

        The first one in a window is answered at once, the next ones ever later, so that a disk that
        needs a moment gets it.
        """
        self.total += 1
        self._recent.append(now_s)
        while self._recent[0] < now_s - self.window_s:
            self._recent.popleft()
        if len(self._recent) >= self._max:
            return None
        return 0.0 if len(self._recent) == 1 else min(2.0, 0.05 * 2.0 ** (len(self._recent) - 2))

    def begin_anew(self) -> None:
        """Forget the deaths so far, but for their total."""
        self._recent.clear()


class Restarts:
    """What follows a death: one more start, a start that serves reads only, or a pause without any process.

    A crash loop ends by itself. After a pause the bookie tries a whole start, and goes back to serving reads when one
    more child dies soon. Each such pause is twice as long as the one before, up to a bound.
    """

    reads_only_next = (
        "only reads are served for now, without a journal; the bookie tries by itself to take writes again: find out"
        " from the lines above why children died, and repair that; a restart of the bookie tries at once"
    )

    down_next = (
        "nothing is served for now; the bookie tries by itself to start again: find out from the lines above why"
        " children died, and repair that; a restart of the bookie tries at once"
    )

    def __init__(
        self, budget: RestartBudget, pauses: Backoff, jitter: Callable[[float], float] = jittered
    ) -> None:
        """`pauses`: before each next try."""
        self.budget = budget
        self.reads_only_reason = ""
        """Not empty: the next start is without journal and gc, and so are those after it, until `try_again`."""
        self.reads_only_s = 0.0
        """How long the bookie serves reads only, at least."""
        self.is_down = False
        """Nothing is served until `try_again`."""
        self._pauses = pauses
        self._jitter = jitter
        self._is_trial = False
        self._serves_since_s: float | None = None

    def died(self, role: str, reason: str, *, was_serving: bool, now_s: float) -> float:
        """Note a death; return the pause before the next start in seconds.

        A used-up budget leads to a start without what writes, and so does one death in a try. From there nothing can be
        left out any more: when an index dies, or a start fails, the next start is a try after the pause. A worker may
        die of what one client sends: it gets a budget once more, so that the others can go on reading.

        Args:
            role: of the process that died. was_serving: the bookie served when it did.
        """
        pause_s = self.budget.died(now_s)
        if self.reads_only_reason:
            if role == "worker" and was_serving and pause_s is not None:
                return pause_s
            self.is_down = True
            return self._next_pause_s()
        if self._is_trial and was_serving and self._has_served(now_s):
            self._is_trial = False
            self._pauses.restart()
        if pause_s is not None and not self._is_trial:
            return pause_s
        self.budget.crash_loops += 1
        self.reads_only_reason = reason
        self.reads_only_s = self._next_pause_s()
        self.budget.begin_anew()
        return 0.0

    def try_again(self) -> None:
        """The next start is a whole one: a try."""
        self.reads_only_reason = ""
        self.is_down = False
        self._is_trial = True
        self._serves_since_s = None
        self.budget.begin_anew()

    def serves(self, now_s: float) -> None:
        """A start came to its end."""
        self._serves_since_s = now_s

    def _has_served(self, now_s: float) -> bool:
        return (
            self._serves_since_s is not None
            and now_s - self._serves_since_s >= self.budget.window_s
        )

    def _next_pause_s(self) -> float:
        return self._jitter(self._pauses.next_s())


Concern = Literal["data", "metadata", "notice"]


class Condition(msgspec.Struct, frozen=True):
    """One reason.

    Attributes:
        name: unique, with the subject first: `state`, `metadata`, `disk.ledger.0`, `frozen.journal`.
        concerns: what it speaks against.
        reason: a sentence for people.
    """

    name: str
    concerns: Concern
    reason: str


class Conditions:
    """The conditions that stand now, in the order in which they came."""

    def __init__(self) -> None:
        self._standing: dict[str, Condition] = {}

    def put(self, name: str, reason: str | None, concerns: Concern = "data") -> None:
        """Set the condition `name`, or remove it (None)."""
        if reason is None:
            self._standing.pop(name, None)
        else:
            self._standing[name] = Condition(name, concerns, reason)

    def all(self) -> list[Condition]:
        """Return all conditions."""
        return list(self._standing.values())


def reasons_of(conditions: list[Condition], *concerns: Concern) -> list[str]:
    """Return the reasons of those conditions that concern one of `concerns`."""
    return [condition.reason for condition in conditions if condition.concerns in concerns]
