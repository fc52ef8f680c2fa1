"""A step of the replication protocol as a pure state machine: actions out, outcomes in, a result at the end.

A driver calls `start`, performs `take_actions()`, calls `completed` with each outcome, takes the actions again, and so
on until `is_finished`; then `value()` gives the result or raises. No I/O, clock or chance in here: times are seconds
of any one clock, handed in. The asyncio client and the simulator are such drivers.

A procedure may run others as its parts: they share its tags and its list of actions. There are two ways to write one.

**Steps**, for what does one thing after the other: `steps` is a generator. It yields an action and gets its outcome,
an Error is raised there. It delegates to another procedure and gets its result, or the error of that is raised:

    def steps(self) -> Steps[Fragment]:
        known: VersionedLedger = yield ReadMetadata()
        closed = yield from RecoverLedger(self._ledger_id, known)
        return closed.metadata.fragments[-1]

`Gather` runs several steps side by side. Cancelling closes the generator.

**Events**, for what has several requests under way and acts on each answer: `begin` asks by `_act` and the like, each
outcome comes to a callback, and `_finish` or `_fail` is called once.

Drivers and the simulator speak only the actions and replies below. Each action gets exactly one outcome, unless it was
withdrawn: `SendRequest` a Reply or an Error (NotEnoughBookies: not reached, or the connection was lost; QuorumTimeout:
no answer in time), `ReadMetadata` a VersionedLedger or an Error, `UpdateMetadata` the new version or an Error
(MetadataConflict: not done; MetadataUnavailable: it may have taken effect), `ReadIdentity` a VersionedIdentity, None
(the bookie has none, as Apache's) or an Error, `Choose` a Replaced, `MarkReplicas` None or an Error, `Sleep` None.

Decision 165.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from fastbk.errors import Error
from fastbk.meta.api import IdentityVersion, VersionedIdentity, VersionedLedger
from fastbk.model.ids import BookieId, EntryId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica

T = TypeVar("T")
U = TypeVar("U")
Then: TypeAlias = "Callable[[Outcome, float], object]"
Steps: TypeAlias = Generator["Action | Procedure[Any]", Any, T]
"""What `steps` returns: it yields actions and parts, receives their outcomes and results, and returns a `T`."""


class _Shared:
    """What a procedure and its parts have in common. `now_s`: when steps of one of them went on last."""

    def __init__(self) -> None:
        self.actions: list[TaggedAction] = []
        self.waiting: dict[int, tuple[Procedure[Any], Then]] = {}
        self.tag = 0
        self.now_s = 0.0


class Procedure(Generic[T]):
    """Base of all procedures; a subclass implements `steps`, or `begin`."""

    def __init__(self) -> None:
        self.is_finished = False
        self.error: Error | None = None
        self._result: T | None = None
        self._shared = _Shared()
        self._mine: set[int] = set()
        self._parts: list[Procedure[Any]] = []
        self._when_finished: Callable[[float], None] | None = None
        self._running_steps: Steps[T] | None = None

    # --- for the driver ----------------------------------------------------------------------------------------

    def start(self, now_s: float) -> None:
        """Begin; call once."""
        self.begin(now_s)

    def take_actions(self) -> list[TaggedAction]:
        """Return what is to be done now, in order; each is returned once."""
        actions, self._shared.actions = self._shared.actions, []
        return actions

    def completed(self, tag: int, outcome: Outcome, now_s: float) -> None:
        """Take the outcome of an action; one that was withdrawn is dropped."""
        waiting = self._shared.waiting.pop(tag, None)
        if waiting is not None:
            procedure, then = waiting
            procedure._mine.discard(tag)
            then(outcome, now_s)

    def value(self) -> T:
        """Return the result of a finished procedure, or raise a fresh copy of its error."""
        if self.error is not None:
            raise self.error.copy()
        return cast("T", self._result)

    def cancel(self) -> None:
        """Give up: everything that is under way is withdrawn and nothing more happens."""
        if self._running_steps is not None:
            self._running_steps.close()
        for part in self._parts:
            part.cancel()
        self._parts.clear()
        for tag in sorted(self._mine):
            if self._shared.waiting.pop(tag, None) is not None:
                self._shared.actions.append(TaggedAction(tag, Withdraw()))
        self._mine.clear()

    # --- for subclasses with steps -----------------------------------------------------------------------------

    def steps(self) -> Steps[T]:
        """Yield the actions one after the other, return the result or raise an Error."""
        raise NotImplementedError

    @property
    def _now_s(self) -> float:
        """The time now, for steps."""
        return self._shared.now_s

    def __iter__(self) -> Steps[T]:
        """Run this as a part: for `yield from` in the steps of another procedure."""
        result: T = yield self
        return result

    # --- for subclasses with events ----------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Ask for the first actions, or finish."""
        self._running_steps = self.steps()
        self._resume(None, now_s)

    def _act(self, action: Action, then: Then) -> int:
        """Ask for an action; `then(outcome, now_s)` follows. Return its tag."""
        shared = self._shared
        tag = shared.tag = shared.tag + 1
        shared.waiting[tag] = self, then
        self._mine.add(tag)
        shared.actions.append(TaggedAction(tag, action))
        return tag

    def _ask(
        self, bookie_id: BookieId, request: BookieRequest, timeout_s: float, then: Then
    ) -> int:
        return self._act(SendRequest(bookie_id, request, timeout_s), then)

    def _sleep(self, pause_s: float, then: Callable[[float], object]) -> int:
        return self._act(Sleep(pause_s), lambda _, now_s: then(now_s))

    def _retry_in(self, pause_s: float, then: Callable[[float], object]) -> int:
        return self._act(Sleep(pause_s, is_retry=True), lambda _, now_s: then(now_s))

    def _withdraw(self, tag: int) -> None:
        self._mine.discard(tag)
        if self._shared.waiting.pop(tag, None) is not None:
            self._shared.actions.append(TaggedAction(tag, Withdraw()))

    def _run(
        self, part: Procedure[U], then: Callable[[Procedure[U], float], None], now_s: float
    ) -> None:
        """Run another procedure as a part of this one; `then(part, now_s)` when it has finished."""

        def finished(at_s: float) -> None:
            self._parts.remove(part)
            then(part, at_s)

        part._shared = self._shared
        part._when_finished = finished
        self._parts.append(part)
        part.begin(now_s)

    def _finish(self, result: T, now_s: float) -> None:
        self._result = result
        self._end(now_s)

    def _fail(self, error: Error, now_s: float) -> None:
        self.error = error
        self._end(now_s)

    # --- inside ------------------------------------------------------------------------------------------------

    def _end(self, now_s: float) -> None:
        if self.is_finished:
            return
        self.is_finished = True
        self.cancel()
        if self._when_finished is not None:
            self._when_finished(now_s)

    def _resume(self, outcome: object, now_s: float) -> None:
        """Hand the steps what they wait for, until that is not there yet."""
        steps = self._running_steps
        assert steps is not None
        self._shared.now_s = now_s
        while (wanted := self._advance_steps(steps, outcome)) is not None:
            if not isinstance(wanted, Procedure):
                self._act(wanted, self._resume)
                return
            # Not by `_run`: a part that ends at once must not go on from within itself, however many such follow.
            part = wanted
            part._shared = self._shared
            self._parts.append(part)
            part.begin(now_s)
            if not part.is_finished:
                part._when_finished = partial(self._resume_after, part)
                return
            outcome = self._outcome_of(part)
        self._end(now_s)

    def _advance_steps(self, steps: Steps[T], outcome: object) -> Action | Procedure[Any] | None:
        """Return what the steps wait for after an outcome; None: they have ended, and the result or error is kept."""
        # Who keeps an error, or is given it, does not keep the frames that it was raised in before.
        try:
            if isinstance(outcome, Error):
                return steps.throw(outcome.with_traceback(None))
            return steps.send(outcome)
        except StopIteration as end:
            self._result = end.value
        except Error as error:
            self.error = error.with_traceback(None)
        return None

    def _resume_after(self, part: Procedure[Any], now_s: float) -> None:
        self._resume(self._outcome_of(part), now_s)

    def _outcome_of(self, part: Procedure[Any]) -> object:
        self._parts.remove(part)
        return part._result if part.error is None else part.error


def attempt(action: Action) -> Steps[Outcome]:
    """Have an action performed; return its Error, too."""
    outcome: Outcome
    try:
        outcome = yield action
    except Error as error:
        return error
    return outcome


def choose(
    ensemble: tuple[BookieId, ...],
    bad: frozenset[int],
    exclude: frozenset[BookieId],
    locations: Mapping[BookieId, str] | None = None,
) -> Steps[Replaced]:
    """Choose bookies; where that fails there are none to be had."""
    try:
        replaced: Replaced = yield Choose(ensemble, bad, exclude, locations or {})
    except Error:
        return Replaced()
    return replaced


class Gather(Procedure[list[T]]):
    """Runs steps side by side; the result is the list of theirs, in the same order. The first error ends all."""

    def __init__(self, several: Iterable[Steps[T]]) -> None:
        super().__init__()
        self._branches = [_Branch(steps) for steps in several]
        self._left = len(self._branches)

    def begin(self, now_s: float) -> None:
        """Begin all, in their order."""
        for branch in self._branches:
            if not self.is_finished:
                self._run(branch, self._branch_ended, now_s)
        if not self._branches:
            self._finish([], now_s)

    def _branch_ended(self, branch: Procedure[T], now_s: float) -> None:
        self._left -= 1
        if branch.error is not None:
            self._fail(branch.error, now_s)
        elif not self._left:
            self._finish([one.value() for one in self._branches], now_s)


class _Branch(Procedure[T]):
    """Steps that have no class of their own."""

    def __init__(self, steps: Steps[T]) -> None:
        super().__init__()
        self._branch_steps = steps

    def steps(self) -> Steps[T]:
        return self._branch_steps


# --- requests to a bookie, all about the procedure's ledger ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """One entry; -1 = the one with the highest id. `fence`: no normal add is acknowledged there afterwards."""

    entry_id: EntryId
    fence: bool = False
    high_priority: bool = False


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """What the bookie holds of [first, last], in order, within both limits."""

    first: EntryId
    last: EntryId
    entries_max: int
    size_bytes_max: int


@dataclass(frozen=True, slots=True)
class ReadLac:
    """The LAC, at once or (wait_s > 0) when it passes `previous`; `piggyback`: with entry previous + 1."""

    previous: EntryId = -1
    wait_s: float = 0.0
    piggyback: bool = False


@dataclass(frozen=True, slots=True)
class WriteLac:
    """An explicit LAC; losing it only delays what readers see."""

    lac: EntryId


@dataclass(frozen=True, slots=True)
class ForceLedger:
    """Answer when everything this bookie took of the ledger before is durable."""


@dataclass(frozen=True, slots=True)
class AddEntry:
    """Store one entry. `length`: bytes of data of the ledger up to and with this entry. `recovery` passes a fence."""

    entry_id: EntryId
    lac: EntryId
    length: int
    data: bytes | memoryview
    recovery: bool = True


@dataclass(frozen=True, slots=True)
class AddEntries:
    """Store copies of consecutive entries, past a fence: all or none. Apache's bookies answer UNSUPPORTED."""

    entries: Sequence[Found]


@dataclass(frozen=True, slots=True)
class ListEntries:
    """Which entries the bookie holds from `first` on, in at most so many ranges. It reads none of them."""

    first: EntryId
    ranges_max: int


BookieRequest: TypeAlias = (
    ReadEntry | ReadEntries | ReadLac | WriteLac | ForceLedger | AddEntry | AddEntries | ListEntries
)


# --- actions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send a request to a bookie."""

    bookie_id: BookieId
    request: BookieRequest
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read the ledger's metadata."""


@dataclass(frozen=True, slots=True)
class UpdateMetadata:
    """Replace the ledger's metadata if it still has `version` (INV-M1).

    `if_identity`: and if a bookie's identity is still the same; IdentityChanged otherwise.
    """

    metadata: LedgerMetadata
    version: int
    if_identity: IdentityVersion | None = None


@dataclass(frozen=True, slots=True)
class ReadIdentity:
    """Read a bookie's identity, which an update may depend on."""

    bookie_id: BookieId


@dataclass(frozen=True, slots=True)
class MarkReplicas:
    """Change the ledger's mark of missing replicas: first `remove` entries, then `add` some. Repeatable."""

    add: tuple[MissingReplica, ...]
    remove: tuple[MissingReplica, ...] = ()


@dataclass(frozen=True, slots=True)
class Choose:
    """Choose bookies in place of the `bad` indexes of `ensemble`; the mapping may cover only some of them, or none.

    `locations`: where members were, should nobody know better (INV-P5).
    """

    ensemble: tuple[BookieId, ...]
    bad: frozenset[int]
    exclude: frozenset[BookieId]
    locations: Mapping[BookieId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait. Before another attempt whatever performs this adds jitter; a deadline is exact."""

    pause_s: float
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Nobody waits for the action of this tag any more: drop its outcome, let go of a request in flight."""


Action: TypeAlias = (
    SendRequest
    | ReadMetadata
    | UpdateMetadata
    | ReadIdentity
    | MarkReplicas
    | Choose
    | Sleep
    | Withdraw
)


class TaggedAction(NamedTuple):
    """An action and the tag that its outcome is reported under; of `Withdraw` that of the action withdrawn."""

    tag: int
    action: Action


# --- answers --------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """An entry whose digest is good. `length`: bytes of data of the ledger up to and with it.

    A named tuple because many are made where entries are looked at one by one: less than half the cost of a dataclass.
    """

    entry_id: EntryId
    lac: EntryId
    length: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Reply:
    """A bookie's answer, digests already checked by the driver.

    Attributes:
        status: a `Status` of fastbk.wire.statuses.
        found: the whole entries of the answer in order, up to the first that is not whole; an `EntryTable` if many.
        damaged: something in the answer fails its digest, or names another ledger or entry than was asked for.
        lacs: LACs that good digests prove; a bare number never counts.
        fenced: whether the ledger is fenced there.
        next_entry_id: of ReadEntries and ListEntries: ids below it that are not in the answer are not there; where it
            is not above the first id that a ListEntries asked for, no more are there at all.
        ranges: of ListEntries: first and last ids, ascending.
        add_wait_s: of ReadEntries and recovery adds: how long normal adds wait for the journal there now; 0: none came.
    """

    status: int
    found: Sequence[Found] = ()
    damaged: bool = False
    lacs: tuple[EntryId, ...] = ()
    fenced: bool = False
    next_entry_id: EntryId = -1
    ranges: tuple[tuple[EntryId, EntryId], ...] = ()
    add_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Replaced:
    """Outcome of `Choose`: new bookies by index, and why others were left out.

    `locations`: where the choice took the new ones and the members that stay to be, as far as that is known (INV-P5).
    `shortage`: why not all could be replaced, by the ledger's rule of placement.
    """

    chosen: Mapping[int, BookieId] = field(default_factory=dict)
    left_out: Mapping[BookieId, str] = field(default_factory=dict)
    locations: Mapping[BookieId, str] = field(default_factory=dict)
    shortage: str = ""


Outcome: TypeAlias = Reply | VersionedLedger | VersionedIdentity | Replaced | int | Error | None
