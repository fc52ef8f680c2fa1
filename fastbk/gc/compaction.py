"""When compaction begins, what it takes on, and when it ends; the index does the moving, in the background.

A run is a row of goes: each takes on the logs with the smallest live share that fit into the room there is, until
none of those that it found is below the ratio any more, or its time is over. What a run has made, and what went wrong,
is left alone until the next run: a log with little in it is below the ratio by its header and padding alone. A full
disk has its own turn: dead logs go first, then the cheapest ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from fastbk.gc import compaction_choice
from fastbk.server.gc_messages import MAJOR, MINOR, Compaction

if TYPE_CHECKING:
    from fastbk.gc.compaction_choice import Choice
    from fastbk.gc.index_client import IndexClient

GO_BYTES_MAX = 1 << 30
"""Most live bytes moved in one go: what is won back comes soon."""
GO_LOGS_MAX = 64
STALL_S = 300.0
"""A compaction that moves nothing for so long is stuck: it is said, counted, and told to stop. Finding out what lives
in its logs takes a while, too, before the first byte is moved."""
LOOK_INTERVAL_S = 5.0
"""Pause between two checks of the room, while nothing is moved."""
URGENT_INTERVAL_S = 30.0
"""Pause between two tries to win space back on a full disk, when the last one found nothing."""

URGENT = "urgent"
"""The third kind, beside minor and major: it begins by itself when the disk is full."""


class CompactionSettings(msgspec.Struct, frozen=True):
    """Ratios are live shares, 0 to 1, below which a log is taken on; see section [gc] of the configuration."""

    minor_ratio_max: float = 0.2
    minor_interval_s: float = 3600.0
    major_ratio_max: float = 0.5
    major_interval_s: float = 86400.0
    bytes_per_s: int = 32 << 20
    time_max_s: float = 3600.0


class Run(msgspec.Struct):
    """One run, as far as it is; what it has done counts over all its goes."""

    kind: str
    began_s: float
    goes: int = 0
    moved_bytes: int = 0
    freed_bytes: int = 0
    bad_runs: int = 0
    logs: int = 0
    """Sealed ones, when it began; `compacted_logs`: those of its goes that came to their end."""
    compacted_logs: int = 0
    error: str = ""
    ended_s: float = 0.0
    is_over: bool = False
    was_suspended: bool = False
    """It was asked for all the same."""
    there: frozenset[int] = frozenset()
    """Ids of the logs that were there when it began: it moves nothing that it made itself."""
    tried: set[int] = msgspec.field(default_factory=set)


Said = Callable[[str, Run], None]
"""Told `begun`, `moved`, `stuck`, `went_on`, `ended` with the run."""


class Compactor(msgspec.Struct):
    """Compaction of one ledger directory. `step`, called about once a second, waits for the index's answers only."""

    local: IndexClient
    settings: CompactionSettings
    clock_s: Callable[[], float]
    say: Said = lambda event, run: None
    suspended: set[str] = msgspec.field(default_factory=set)
    """Kinds that don't begin by themselves, and end when they are added; urgent ones with minor and major."""
    run: Run | None = None
    """The last one, or the one that is under way."""
    _asked: list[str] = msgspec.field(default_factory=list)
    _next_s: dict[str, float] = msgspec.field(default_factory=dict)
    _go: Choice | None = None
    """What the index is at."""
    _progress: Compaction = msgspec.field(default_factory=Compaction)
    _progressed_s: float = 0.0
    _is_stuck: bool = False
    _is_stopping: bool = False
    _next_look_s: float = 0.0

    def __post_init__(self) -> None:
        now_s = self.clock_s()
        self._next_s = {
            MINOR: now_s + self.settings.minor_interval_s,
            # Not a whole interval after every start: a bookie that is started daily would never come to it.
            MAJOR: now_s + min(self.settings.major_interval_s, 2 * self.settings.minor_interval_s),
            URGENT: now_s,
        }

    @property
    def is_running(self) -> bool:
        """Whether a run is under way."""
        return self.run is not None and not self.run.is_over

    def request(self, kind: str) -> None:
        """Begin a run of that kind soon, suspended or not."""
        if kind not in self._asked:
            self._asked.append(kind)

    def is_requested(self, kind: str) -> bool:
        """Whether a run that was asked for has not ended yet."""
        return kind in self._asked or (
            self.is_running and self.run is not None and self.run.kind == kind
        )

    def step(self) -> None:
        """Look how far it is, and begin what is due. Raises Error: try again later."""
        if self._go is not None:
            self._follow(self._go)
            return
        now_s = self.clock_s()
        if self.is_running:
            self._go_on(now_s)
        elif self._asked:
            # An operator may have deleted just now; what nothing lives in need not be moved.
            self.local.recount()
            self._begin(self._asked[0], now_s)
        elif now_s >= self._next_look_s:
            self._next_look_s = now_s + LOOK_INTERVAL_S
            kind = self._due(now_s)
            if kind:
                self._begin(kind, now_s)

    def _due(self, now_s: float) -> str:
        if (
            now_s >= self._next_s[URGENT]
            and not self._is_suspended(URGENT)
            and self.local.space().is_full
        ):
            self._next_s[URGENT] = now_s + URGENT_INTERVAL_S
            self.local.recount()
            return URGENT
        # A major run does what a minor one would have done.
        for kind in (MAJOR, MINOR):
            if now_s >= self._next_s[kind] and not self._is_suspended(kind):
                return kind
        return ""

    def _is_suspended(self, kind: str) -> bool:
        return ({MINOR, MAJOR} if kind == URGENT else {kind}) <= self.suspended

    def _is_cut(self, run: Run) -> bool:
        return self._is_suspended(run.kind) and not run.was_suspended

    def _begin(self, kind: str, now_s: float) -> None:
        self.run = Run(kind, now_s, was_suspended=self._is_suspended(kind))
        if kind in self._asked:
            self._asked.remove(kind)
        if kind != URGENT:
            self._next_s[MINOR] = now_s + self.settings.minor_interval_s
        if kind == MAJOR:
            self._next_s[MAJOR] = now_s + self.settings.major_interval_s
        self.say("begun", self.run)
        self._go_on(now_s)

    def _go_on(self, now_s: float) -> None:
        """Begin the run's next go, or end it."""
        run = self.run
        assert run is not None
        left_s = run.began_s + self.settings.time_max_s - now_s
        if left_s <= 0 or self._is_cut(run):
            self._end(run)
            return
        choice = self._choose(run)
        if not choice:
            self._end(run)
        elif self.local.compact(choice.log_ids, self.settings.bytes_per_s, left_s):
            run.goes += 1
            run.tried.update(choice.log_ids)
            self._go, self._progress, self._progressed_s = choice, Compaction(running=True), now_s
            self._is_stuck = self._is_stopping = False

    def _choose(self, run: Run) -> Choice:
        every = self.local.usage()
        if run.goes == 0:
            run.logs = sum(log.sealed for log in every)
            run.there = frozenset(log.log_id for log in every)
        logs = [log for log in every if log.log_id in run.there - run.tried]
        room = compaction_choice.room_bytes(self.local.space())
        if run.kind == URGENT:
            return compaction_choice.choose_urgently(logs, room, GO_LOGS_MAX)
        settings = self.settings
        ratio_max = settings.major_ratio_max if run.kind == MAJOR else settings.minor_ratio_max
        return compaction_choice.choose(logs, ratio_max, room, GO_BYTES_MAX, GO_LOGS_MAX)

    def _follow(self, go: Choice) -> None:
        run = self.run
        assert run is not None
        now_s = self.clock_s()
        progress, before = self.local.compaction(), self._progress
        if progress != before:
            self._progressed_s, self._progress = now_s, progress
            run.moved_bytes += max(0, progress.moved_bytes - before.moved_bytes)
            run.freed_bytes += max(0, progress.freed_bytes - before.freed_bytes)
            run.bad_runs += max(0, progress.bad_runs - before.bad_runs)
            self.say("moved", run)
            if self._is_stuck:
                self._is_stuck = False
                self.say("went_on", run)
        if not progress.running:
            self._go = None
            run.compacted_logs += 0 if progress.error else len(go.log_ids)
            # Whoever suspended it knows that it was stopped.
            if progress.error and not (self._is_stopping and self._is_cut(run)):
                run.error = f"logs {', '.join(map(str, go.log_ids))}: {progress.error}"
            self._go_on(now_s)
        elif not self._is_stuck and now_s - self._progressed_s >= STALL_S:
            self._is_stuck = True
            self.say("stuck", run)
            self._stop()
        elif self._is_cut(run):
            self._stop()

    def _stop(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self.local.stop_compaction()

    def _end(self, run: Run) -> None:
        run.is_over, run.ended_s = True, self.clock_s()
        if run.kind == URGENT and run.freed_bytes > 0:
            self._next_s[URGENT] = self.clock_s()
        self.say("ended", run)
