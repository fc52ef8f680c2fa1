"""A step of the replication protocol as a pure state machine: actions out, outcomes in, a result at the end.

A driver calls `start`, performs `take_actions()`, calls `completed` with each outcome, takes the actions again, and so
on until `is_finished`; then `value()` gives the result or raises. No I/O, clock or chance in here: times are seconds
of any one clock, handed in. The asyncio client and the simulator are such drivers.

A procedure may run others as its parts: they share its tags and its list of actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast

from fastbk.errors import Error
from fastbk.model.ids import BookieId
from fastbk.replication.actions import (
    Action,
    BookieRequest,
    Outcome,
    ReadMetadata,
    SendRequest,
    Sleep,
    Withdraw,
)

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
Then: TypeAlias = Callable[[Outcome, float], object]


class _Shared:
    """What a procedure and its parts have in common."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.waiting: dict[int, Then] = {}
        self.tag = 0


class Procedure(Generic[T]):
    """Base of all procedures; a subclass implements `begin` and calls `_finish` or `_fail` once."""

    def __init__(self) -> None:
        self.is_finished = False
        self.error: Error | None = None
        self._result: T | None = None
        self._shared = _Shared()
        self._mine: set[int] = set()
        self._parts: list[Procedure[object]] = []
        self._when_finished: Callable[[float], None] | None = None

    # --- for the driver ----------------------------------------------------------------------------------------

    def start(self, now_s: float) -> None:
        """Begin; call once."""
        self.begin(now_s)

    def take_actions(self) -> list[Action]:
        """Return what is to be done now, in order; each is returned once."""
        actions, self._shared.actions = self._shared.actions, []
        return actions

    def completed(self, tag: int, outcome: Outcome, now_s: float) -> None:
        """Take the outcome of an action; one that was withdrawn is dropped."""
        then = self._shared.waiting.pop(tag, None)
        if then is not None:
            then(outcome, now_s)

    def value(self) -> T:
        """Return the result of a finished procedure, or raise a fresh copy of its error."""
        if self.error is not None:
            raise self.error.copy()
        return cast("T", self._result)

    def cancel(self) -> None:
        """Give up: everything that is under way is withdrawn and nothing more happens."""
        for part in self._parts:
            part.cancel()
        self._parts.clear()
        for tag in sorted(self._mine):
            if self._shared.waiting.pop(tag, None) is not None:
                self._shared.actions.append(Withdraw(tag))
        self._mine.clear()

    # --- for subclasses ----------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Ask for the first actions, or finish."""
        raise NotImplementedError

    def _act(
        self,
        then: Then,
        kind: Callable[Concatenate[int, P], Action],
        *args: P.args,
        **options: P.kwargs,
    ) -> int:
        """Ask for the action `kind(tag, *args)`; `then(outcome, now_s)` follows. Return its tag."""
        shared = self._shared
        shared.tag += 1
        tag = shared.tag

        def run(outcome: Outcome, now_s: float) -> None:
            self._mine.discard(tag)
            then(outcome, now_s)

        shared.waiting[tag] = run
        self._mine.add(tag)
        shared.actions.append(kind(tag, *args, **options))
        return tag

    def _ask(
        self, bookie_id: BookieId, request: BookieRequest, timeout_s: float, then: Then
    ) -> int:
        return self._act(then, SendRequest, bookie_id, request, timeout_s)

    def _read_metadata(self, then: Then) -> int:
        return self._act(then, ReadMetadata)

    def _sleep(
        self, pause_s: float, then: Callable[[float], object], *, is_retry: bool = False
    ) -> int:
        return self._act(lambda _, now_s: then(now_s), Sleep, pause_s, is_retry)

    def _retry_in(self, pause_s: float, then: Callable[[float], object]) -> int:
        return self._sleep(pause_s, then, is_retry=True)

    def _withdraw(self, tag: int) -> None:
        self._mine.discard(tag)
        if self._shared.waiting.pop(tag, None) is not None:
            self._shared.actions.append(Withdraw(tag))

    def _run(
        self, part: Procedure[U], then: Callable[[Procedure[U], float], None], now_s: float
    ) -> None:
        """Run another procedure as a part of this one; `then(part, now_s)` when it has finished."""
        part._shared = self._shared
        self._parts.append(cast("Procedure[object]", part))

        def finished(at_s: float) -> None:
            self._parts.remove(cast("Procedure[object]", part))
            then(part, at_s)

        part._when_finished = finished
        part.begin(now_s)

    def _run_for(self, part: Procedure[U], then: Callable[[U, float], None], now_s: float) -> None:
        """Run a part whose error ends this one, too; `then(its result, now_s)` else."""

        def ended(_: Procedure[U], at_s: float) -> None:
            if part.error is not None:
                self._fail(part.error, at_s)
            else:
                then(part.value(), at_s)

        self._run(part, ended, now_s)

    def _finish(self, result: T, now_s: float) -> None:
        self._result = result
        self._end(now_s)

    def _fail(self, error: Error, now_s: float) -> None:
        self.error = error
        self._end(now_s)

    def _end(self, now_s: float) -> None:
        if self.is_finished:
            return
        self.is_finished = True
        self.cancel()
        if self._when_finished is not None:
            self._when_finished(now_s)
