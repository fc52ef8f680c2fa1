"""The order of a rolling upgrade, and when its next step may begin. Pure: what was seen and the time are arguments.

    roll = Roll(plan(bookies, to_version=version), RollLimits(), to_version=version)
    action = roll.decide(seen, now_s)   # Restart, Wait, Stop or Done
    roll.restarted(now_s)               # after the restart command of a Restart has ended well

INV-U3: a rolling upgrade restarts bookies of one failure domain at a time, and the next one only after each of these
serves, the cluster is whole, and nothing is in doubt.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fastbk.errors import ConfigError
from fastbk.model.ids import BookieId
from fastbk.placement.config import DEFAULT_LOCATION

DOUBT_S = 10.0
"""Another bookie may be away for so long before it is a doubt: one slow answer is none."""


@dataclass(frozen=True, slots=True)
class RollBookie:
    """One bookie as it was seen.

    Attributes:
        state: as `fastbk.admin.cluster.BookieState` has it; "up" is the only good one.
        version: of its software, "" while it does not answer.
        starts: that metadata has counted of it; None: it is one of Apache's, which nobody counts.
    """

    bookie_id: BookieId
    location: str = DEFAULT_LOCATION
    state: str = "up"
    reason: str = ""
    version: str = ""
    starts: int | None = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """The cluster as it was seen.

    Attributes:
        bookies: all that are known, by id.
        missing: what misses copies, one example; "": nothing does; None: it was not looked for.
        doubt: why to stop at once, whatever the step; "": nothing.
    """

    bookies: Mapping[BookieId, RollBookie]
    missing: str | None = None
    doubt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollLimits:
    """How long each part of a step may take, in seconds, more than 0."""

    ready_s: float = 600.0
    whole_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class Step:
    """Bookies of one failure domain, which are restarted at once."""

    location: str
    bookies: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart these bookies now."""

    bookies: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again soon."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Restart no further bookie. `next_from`: the one to continue with; "": none is left."""

    reason: str
    next_from: BookieId


@dataclass(frozen=True, slots=True)
class Done:
    """All steps are done."""


Action = Restart | Wait | Stop | Done


def plan(
    bookies: Collection[RollBookie],
    *,
    to_version: str = "",
    at_once: int = 1,
    start_from: str = "",
) -> tuple[Step, ...]:
    """Return the steps of a roll: regions, racks and bookies by name, one failure domain after the other.

    Args:
        bookies: all of the cluster. Apache's are not restarted.
        to_version: bookies that have it are left out; "": none is.
        at_once: bookies of one rack that are restarted together, at least 1; where nobody said where bookies are, it is
            one at a time.
        start_from: the first bookie; those before it are left out. "": all.

    Raises ConfigError.
    """
    if at_once < 1:
        raise ConfigError(f"--at-once {at_once}: must be 1 or more")
    ours = sorted(
        (bookie for bookie in bookies if bookie.starts is not None),
        key=lambda one: (one.location, one.bookie_id),
    )
    if start_from:
        ids = [bookie.bookie_id for bookie in ours]
        if start_from not in ids:
            raise ConfigError(
                f"--from {start_from}: the cluster has no such bookie: one of {', '.join(ids)}"
            )
        ours = ours[ids.index(BookieId(start_from)) :]
    by_location: dict[str, list[BookieId]] = {}
    for one in ours:
        if not to_version or one.version != to_version:
            by_location.setdefault(one.location, []).append(one.bookie_id)
    steps = []
    for location, ids in by_location.items():
        size = 1 if location == DEFAULT_LOCATION else at_once
        steps += [
            Step(location, tuple(ids[start : start + size])) for start in range(0, len(ids), size)
        ]
    return tuple(steps)


class _Phase(enum.Enum):
    BEFORE = "before the restart"
    RESTARTING = "restarting"
    SERVING = "waiting for the restarted bookies"
    WHOLE = "waiting for missing copies"


@dataclass
class Roll:
    """One rolling upgrade. `decide` is called with what was seen until it returns Stop or Done."""

    steps: tuple[Step, ...]
    limits: RollLimits = field(default_factory=RollLimits)
    to_version: str = ""
    _at: int = 0
    _phase: _Phase = _Phase.BEFORE
    _since_s: float | None = None
    _away_since_s: float | None = None
    _starts: dict[BookieId, int] = field(default_factory=dict)

    @property
    def wants_missing(self) -> bool:
        """Whether `decide` has to be told what misses copies next."""
        return self._phase in (_Phase.BEFORE, _Phase.WHOLE)

    @property
    def may_miss(self) -> tuple[BookieId, ...]:
        """Return the bookies whose own copies may be missing: a restart of theirs takes no other copy away."""
        return (
            self.steps[self._at].bookies
            if self._phase is _Phase.BEFORE and self._at < len(self.steps)
            else ()
        )

    @property
    def done(self) -> int:
        """Return how many steps are done."""
        return self._at

    @property
    def next_from(self) -> BookieId:
        """Return the bookie with which a roll that ends now is continued; "": none is left."""
        has_served = self._phase is _Phase.WHOLE
        left = _bookies_of(self.steps[self._at + has_served :])
        return left[0] if left else BookieId("")

    def away_before(self, bookies: Mapping[BookieId, RollBookie]) -> str:
        """Return which bookies keep the first step from beginning, as they are not up; "": none, or no step."""
        return self._others_away(Observation(bookies)) if self.steps else ""

    def decide(self, seen: Observation, now_s: float) -> Action:
        """Return what to do now. `now_s`: by a clock that never goes back."""
        if self._at >= len(self.steps) and self._phase is _Phase.BEFORE:
            return Done()
        if self._since_s is None:
            self._since_s = now_s
        if seen.doubt:
            return self._stop(seen.doubt)
        away = self._others_away(seen)
        if not away:
            self._away_since_s = None
        else:
            if self._away_since_s is None:
                self._away_since_s = now_s
            if now_s - self._away_since_s >= DOUBT_S:
                return self._stop(away)
            return Wait(away)
        match self._phase:
            case _Phase.BEFORE:
                return self._before(seen, now_s)
            case _Phase.RESTARTING:
                raise ValueError("`restarted` comes before the next `decide`")
            case _Phase.SERVING:
                return self._serving(seen, now_s)
            case _Phase.WHOLE:
                return self._whole(seen, now_s)

    def restarted(self, now_s: float) -> None:
        """Note that the restart command has ended well."""
        self._go(_Phase.SERVING, now_s)

    def failed(self, reason: str) -> Stop:
        """Return the end of a roll whose restart command failed."""
        return self._stop(reason)

    # --- phases ---------------------------------------------------------------------------------------------------

    def _before(self, seen: Observation, now_s: float) -> Action:
        step = self.steps[self._at]
        for one in step.bookies:
            bookie = seen.bookies.get(one)
            if bookie is None or bookie.starts is None:
                return self._stop(f"bookie {one} is not known any more")
        if (wait := self._wait_for_copies(seen, now_s)) is not None:
            return wait
        # One that is down is restarted all the same: that may be what it needs.
        self._starts = {one: seen.bookies[one].starts or 0 for one in step.bookies}
        self._go(_Phase.RESTARTING, now_s)
        return Restart(step.bookies)

    def _serving(self, seen: Observation, now_s: float) -> Action:
        waits, hint = [], ""
        for one in self.steps[self._at].bookies:
            bookie = seen.bookies.get(one)
            if bookie is None or bookie.starts is None:
                return self._stop(f"bookie {one} is not known any more")
            if bookie.starts <= self._starts[one]:
                waits.append(f"metadata has counted no new start of bookie {one}")
                hint = ": did the command restart it?"
            elif bookie.state != "up":
                waits.append(f"bookie {one} is {bookie.state}: {bookie.reason or 'not registered'}")
            elif self.to_version and bookie.version != self.to_version:
                return self._stop(
                    f"bookie {one} came back with version {bookie.version}, not {self.to_version}"
                )
        if not waits:
            for start in self._starts:
                self._starts[start] = seen.bookies[start].starts or 0
            self._go(_Phase.WHOLE, now_s)
            return Wait("the restarted bookies serve: checking for missing copies")
        return self._wait_until(self.limits.ready_s, "; ".join(waits), now_s, hint)

    def _whole(self, seen: Observation, now_s: float) -> Action:
        for one in self.steps[self._at].bookies:
            bookie = seen.bookies.get(one)
            if bookie is None or bookie.starts != self._starts[one]:
                return self._stop(f"bookie {one} was started again by somebody else, or by itself")
        if (wait := self._wait_for_copies(seen, now_s)) is not None:
            return wait
        self._at += 1
        self._go(_Phase.BEFORE, now_s)
        return (
            Done()
            if self._at == len(self.steps)
            else Wait(f"step {self._at} of {len(self.steps)} is done")
        )

    def _wait_for_copies(self, seen: Observation, now_s: float) -> Action | None:
        if seen.missing is None:
            return Wait("checking for missing copies")
        if seen.missing:
            return self._wait_until(
                self.limits.whole_s, f"copies are missing: {seen.missing}", now_s
            )
        return None

    # --- details --------------------------------------------------------------------------------------------------

    def _others_away(self, seen: Observation) -> str:
        """Return which bookies are not up; those of the step do not count until they have served again."""
        mine = self.steps[self._at].bookies if self._phase is not _Phase.WHOLE else ()
        away = [
            f"bookie {bookie.bookie_id} is {bookie.state}: {bookie.reason or 'not registered'}"
            for bookie in seen.bookies.values()
            if bookie.state != "up" and bookie.bookie_id not in mine
        ]
        return "; ".join(away)

    def _go(self, phase: _Phase, now_s: float) -> None:
        self._phase, self._since_s, self._away_since_s = phase, now_s, None

    def _wait_until(self, limit_s: float, reason: str, now_s: float, hint: str = "") -> Action:
        """Return Wait, or Stop once this phase has taken `limit_s`. `hint`: for Stop alone."""
        assert self._since_s is not None, "`decide` has set it"
        if now_s - self._since_s >= limit_s:
            return self._stop(f"{reason} (for {limit_s:g} s){hint}")
        return Wait(reason)

    def _stop(self, reason: str) -> Stop:
        return Stop(reason, self.next_from)


def _bookies_of(steps: Iterable[Step]) -> list[BookieId]:
    return [bookie for step in steps for bookie in step.bookies]
