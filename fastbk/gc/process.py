"""The gc process: finds what may be deleted and when to win space back. The index deletes,
on its word; its own files are only those that keep what it has seen of metadata (`metadata.last`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import msgspec

from fastbk.errors import Error, MetadataUnavailable
from fastbk.gc.compaction import CompactionSettings, Compactor
from fastbk.gc.dead_ledgers import Cluster, Cycle, DeadLedgers, Rules
from fastbk.gc.index_client import AllPairs, IndexClient
from fastbk.gc.ledger_listing import read_ledgers
from fastbk.gc.limbo import LimboWatch
from fastbk.gc.over_replicated import CopiesCheck, CopiesWatch
from fastbk.gc.report import Report
from fastbk.gc.unconfirmed import UnconfirmedWatch
from fastbk.limits import RateLimit
from fastbk.meta.api import VersionedLedger
from fastbk.meta.rollback import OwnMark
from fastbk.meta.uri import open_store
from fastbk.model.ids import BookieId
from fastbk.native.ffi import FormatTooNewError
from fastbk.native.segment import Segment, Stats, seal_segment
from fastbk.observe import logs
from fastbk.server.child import Child, run
from fastbk.server.configuration.bookie_config import GcConfig
from fastbk.server.gc_messages import KINDS, LEDGERS, MAJOR, MINOR
from fastbk.storage.identity import pair_of
from fastbk.storage.last_metadata import LastMetadata

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Sequence

    from fastbk.config import MetadataSettings
    from fastbk.gc.dead_ledgers import DeadLedgers
    from fastbk.gc.limbo import LimboWatch
    from fastbk.gc.over_replicated import CopiesWatch
    from fastbk.gc.report import Report
    from fastbk.gc.unconfirmed import UnconfirmedWatch
    from fastbk.limits import RateLimit
    from fastbk.meta.api import MetadataStore
    from fastbk.server.configuration.settings import GcSettings


REOPEN_DELAY_S = 5.0
LOOKUPS_OF_NEW = 5
"""Unconfirmed ledgers are read so many times as fast as `lookup_rate`: real ones are read once in their life."""


def compaction_settings(settings: GcSettings) -> CompactionSettings:
    """Return what compaction needs of the configuration."""
    return CompactionSettings(
        minor_ratio_max=settings.minor_ratio_max,
        minor_interval_s=settings.minor_interval_ms / 1e3,
        major_ratio_max=settings.major_ratio_max,
        major_interval_s=settings.major_interval_ms / 1e3,
        bytes_per_s=settings.compaction_rate_bytes,
        time_max_s=settings.compaction_time_max_ms / 1e3,
    )


def work_of(
    config: GcConfig,
    control: Control,
    store: MetadataStore,
    indexes: Sequence[IndexClient],
    report: Report,
) -> Scheduler:
    """Put together what one bookie's gc does; `indexes`: one for each pair."""
    settings = config.settings
    index = AllPairs(indexes, config.shards)
    rules = Rules(settings.delete_ratio_max, settings.unchecked_ledgers_max)
    cluster = Cluster(store)
    bookie_id = BookieId(config.bookie_id)
    age_s = settings.over_replicated_age_ms / 1e3
    lookups = RateLimit(settings.lookup_rate, control.pause)
    seen = MetadataKeeper(
        config.ledger_directories, config.shards, store, lookups, lambda: control.pause(0.0)
    )
    unconfirmed = UnconfirmedWatch(
        index,
        store,
        cluster,
        bookie_id,
        RateLimit(settings.lookup_rate * LOOKUPS_OF_NEW, control.pause),
        RateLimit(settings.listing_rate, control.pause),
        settings.unconfirmed_age_ms / 1e3,
        config.unconfirmed_ledgers_max,
        on_seen=seen.see,
        mark=OwnMark(store, config.bookie_id),
        proven_age_s=settings.interval_ms / 1e3,
    )
    work = Scheduler(
        control=control,
        report=report,
        collector=DeadLedgers(
            index,
            store,
            cluster,
            RateLimit(settings.listing_rate, control.pause),
            rules,
            on_local=seen.read_open,
            on_deleted=seen.see_deleted,
        ),
        limbo=LimboWatch(index, store, bookie_id),
        unconfirmed=unconfirmed,
        copies=CopiesWatch(
            index, store, cluster, bookie_id, lookups, rules, age_s, on_seen=seen.see
        ),
        compactors=[],
        interval_s=settings.interval_ms / 1e3,
        round_s=age_s,
        on_looked=seen.flush,
    )
    compaction = compaction_settings(settings)
    work.compactors += [
        Compactor(one, compaction, work.clock_s, report.compaction) for one in indexes
    ]
    return work


def open_metadata(control: Control, settings: MetadataSettings) -> MetadataStore:
    """Open the store, however long that takes. Raises Draining, SupervisorGone."""
    # Metadata logs by the standard module, which no other child imports.
    from fastbk.observe import library_log

    library_log.forward()
    while True:
        try:
            return open_store(settings.uri, session_timeout_s=settings.session_timeout_s)
        except MetadataUnavailable as error:
            logs.warning("gc.metadata_unavailable", reason=str(error))
        control.pause(REOPEN_DELAY_S)


def main(child: Child) -> None:
    """Gc's life after `configure`."""
    config = msgspec.convert(child.config, GcConfig)
    stats = Stats(Segment(child.fds["segment"], "gc", is_writable=True))
    seal_segment(child.fds["segment"])
    report = Report(stats)
    control = Control(child, report.suspended, beat=stats.beat)
    child.ready()
    try:
        store = open_metadata(control, config.metadata)
        pairs = range(len(config.ledger_directories))
        indexes = [IndexClient(child.fds[f"index.{pair}"]) for pair in pairs]
        work = work_of(config, control, store, indexes, report)
        while True:
            control.wait(work.step())
    except Draining:
        child.send({"type": "drained"})


# --- when each job runs ------------------------------------------------------------------------------------------


BUSY_SHARE = 20
"""Looking takes at most one such part of the time, however many ledgers there are."""
LOOK_S = 1.0
"""Pause between two checks of a compaction that is under way."""
IDLE_LOOK_S = 5.0
"""The same while none is."""
USAGE_INTERVAL_S = 30.0
UNCONFIRMED_INTERVAL_S = 5.0
"""Pause between two checks of ledgers that metadata was not seen to list yet; less where `interval_s` is."""
UNCONFIRMED_BUSY_SHARE = 4
"""Those looks take at most one such part of the time."""
COMPLAINT_INTERVAL_S = 60.0
"""Pause between two log lines about an index that does not answer."""


class Scheduler(msgspec.Struct):
    """All that one bookie's gc process does.

    Attributes:
        compactors: one for each ledger directory.
        interval_s: between two looks for dead ledgers. round_s: between two rounds of looking for copies too many.
    """

    control: Control
    report: Report
    collector: DeadLedgers
    limbo: LimboWatch
    unconfirmed: UnconfirmedWatch
    copies: CopiesWatch
    compactors: list[Compactor]
    interval_s: float
    round_s: float
    clock_s: Callable[[], float] = time.monotonic
    on_looked: Callable[[], None] = lambda: None
    """Called after each look at metadata."""
    cycle: Cycle | None = None
    copies_look: CopiesCheck | None = None
    run_done: int = 0
    """The number of the last run that was asked for and has ended."""
    _cycle_ended_s: float = 0.0
    _next_cycle_s: float = 0.0
    _next_copies_s: float = 0.0
    _next_unconfirmed_s: float = 0.0
    _next_round_s: float = 0.0
    _next_usage_s: float = 0.0
    _next_complaint_s: float = 0.0
    _runs: list[RunRequest] = msgspec.field(default_factory=list)
    """Whose compactions are still under way."""

    def __post_init__(self) -> None:
        self.control.status = self.status
        now_s = self.clock_s()
        self._next_cycle_s = self._next_copies_s = self._next_round_s = now_s + self.interval_s

    def step(self) -> float:
        """Do what is due; return how long to rest, in seconds. Raises Draining."""
        done = self.run_done
        self._take_asked()
        suspended = LEDGERS in self.control.suspended
        try:
            if self.clock_s() >= self._next_unconfirmed_s:
                self._look_for_unconfirmed(may_expire=not suspended)
            elif not suspended and self.clock_s() >= self._next_cycle_s:
                self._look_for_dead(LEDGERS)
            elif not suspended and self.clock_s() >= self._next_copies_s:
                self._look_for_copies(LEDGERS)
        except Suspended:
            logs.info("gc.cut_off", what=self.control.doing)
        self.control.kind = self.control.doing = ""
        self._step_compactors()
        self._look_at_usage()
        # Somebody waits for the end of a run.
        is_told = self.control.report(self.status(), now=self.run_done != done)
        return self._rest_s() if is_told else min(self._rest_s(), STATUS_INTERVAL_S)

    def _rest_s(self) -> float:
        if self.control.asked:
            return 0.0
        now_s = self.clock_s()
        is_busy = any(one.is_running for one in self.compactors)
        rest_s = LOOK_S if is_busy else IDLE_LOOK_S
        rest_s = min(rest_s, self._next_unconfirmed_s - now_s)
        if LEDGERS not in self.control.suspended:
            rest_s = min(rest_s, self._next_cycle_s - now_s, self._next_copies_s - now_s)
        return max(0.0, rest_s)

    # ---- ledgers

    def _look_for_dead(self, kind: str, *, force: bool = False) -> None:
        self.control.kind, self.control.doing = kind, "listing the ledgers in metadata"
        began_s = self.clock_s()
        # Also when it is cut off: nobody is asked the same at once again.
        self._next_cycle_s = began_s + self.interval_s
        cycle = self.cycle = self.collector.run(force=force)
        ended_s = self._cycle_ended_s = self.clock_s()
        # Waiting for an answer that does not come is no work.
        work_s = 0.0 if cycle.unanswered else ended_s - began_s
        self._next_cycle_s = max(began_s + self.interval_s, ended_s + BUSY_SHARE * work_s)
        self.report.cycle(cycle, ended_s - began_s)
        if not cycle.stopped or cycle.refused:
            self.report.limbo(self.limbo.check())

    def _look_for_unconfirmed(self, *, may_expire: bool) -> None:
        self.control.doing = "reading the metadata of new ledgers"
        began_s = self.clock_s()
        interval_s = min(UNCONFIRMED_INTERVAL_S, self.interval_s)
        self._next_unconfirmed_s = began_s + interval_s
        self.report.unconfirmed(self.unconfirmed.check(may_expire=may_expire))
        self.on_looked()
        took_s = self.clock_s() - began_s
        self._next_unconfirmed_s += max(0.0, UNCONFIRMED_BUSY_SHARE * took_s - interval_s)

    def _look_for_copies(self, kind: str, *, force: bool = False) -> None:
        """Go on with the round that is under way; between rounds only look at candidates that are due."""
        self.control.kind, self.control.doing = kind, "reading the metadata of ledgers here"
        now_s = self.clock_s()
        self._next_copies_s = now_s + self.interval_s
        if now_s < self._next_round_s:
            look = self.copies.drop_due(force=force)
        else:
            look = self.copies.check(force=force)
            if look.is_round_over:
                self._next_round_s = now_s + self.round_s
            elif not look.stopped:
                self._next_copies_s = self.clock_s()
        self.on_looked()
        self.copies_look = look
        self.report.copies(look, self.clock_s() - now_s)

    # ---- compaction

    def _step_compactors(self) -> None:
        for compactor in self.compactors:
            compactor.suspended = self.control.suspended
            try:
                compactor.step()
            except (Error, OSError) as error:
                now_s = self.clock_s()
                if now_s >= self._next_complaint_s:
                    self._next_complaint_s = now_s + COMPLAINT_INTERVAL_S
                    logs.warning("gc.index_silent", reason=f"{type(error).__name__}: {error}")

    def _look_at_usage(self) -> None:
        now_s = self.clock_s()
        if now_s < self._next_usage_s:
            return
        self._next_usage_s = now_s + USAGE_INTERVAL_S
        try:
            self.report.usage([log for one in self.compactors for log in one.local.usage()])
        except (Error, OSError):
            pass  # metrics of an index that is silent: whoever needs its answers says so

    # ---- an operator's runs

    def _take_asked(self) -> None:
        """Begin what was asked for, suspended or not; deletions at once, compactions beside the rest.

        One look for ledgers serves all who asked before it began. Who asks meanwhile waits for the next step, so
        that compactions have their turn however often somebody asks.
        """
        asked = list(self.control.asked)
        self.control.asked.clear()
        of_ledgers = [run for run in asked if LEDGERS in run.what]
        if of_ledgers:
            force = any(run.force for run in of_ledgers)
            self._look_for_unconfirmed(may_expire=True)
            self._look_for_dead("", force=force)
            self._next_round_s = min(self._next_round_s, self.clock_s())
            self._look_for_copies("", force=force)
        for kind in (MINOR, MAJOR):
            if any(kind in run.what for run in asked):
                for compactor in self.compactors:
                    compactor.request(kind)
        self._runs += asked
        while self._runs and not self._is_under_way(self._runs[0]):
            self.run_done = self._runs.pop(0).number

    def _is_under_way(self, run: RunRequest) -> bool:
        return any(one.is_requested(kind) for one in self.compactors for kind in run.what)

    # ---- telling

    def status(self) -> dict[str, Any]:
        """Return how things stand, as JSON has it."""
        runs = [one.run for one in self.compactors if one.run is not None]
        return {
            "doing": self.control.doing,
            "suspended": sorted(self.control.suspended),
            "listed_id": self.collector.cluster.highest_id,
            "run_done": self.run_done,
            "ended": {kind: dict(each) for kind, each in self.report.ended.items()},
            "cycle": None if self.cycle is None else msgspec.to_builtins(self.cycle),
            "copies": None if self.copies_look is None else msgspec.to_builtins(self.copies_look),
            "compactions": [
                {
                    "kind": run.kind,
                    "running": not run.is_over,
                    "logs": len(run.tried),
                    "moved_bytes": run.moved_bytes,
                    "freed_bytes": run.freed_bytes,
                    "bad_runs": run.bad_runs,
                    "error": run.error,
                }
                for run in runs
            ],
        }


# --- requests of operators ---------------------------------------------------------------------------------------
#
# What an operator tells gc, by way of the supervisor, and what gc tells of itself.
#
# Supervisor to gc: `gc_suspend` and `gc_resume` (what), `gc_run` (what, force, number). gc to
# supervisor: `gc_status`, when something has changed. What there is to suspend and to run: KINDS in
# `fastbk.server.gc_messages`.


BEAT_INTERVAL_S = 1.0
"""Pause between two heartbeats while gc waits."""
STATUS_INTERVAL_S = 0.5
"""Minimum pause between two status reports."""


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


class RunRequest(msgspec.Struct):
    """An operator's `fastbk bookie gc run`."""

    number: int
    what: tuple[str, ...]
    force: bool = False


class Control(msgspec.Struct):
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
    suspended: set[str] = msgspec.field(default_factory=set)
    asked: list[RunRequest] = msgspec.field(default_factory=list)
    kind: str = ""
    doing: str = ""
    status: Callable[[], dict[str, Any]] | None = None
    beat: Callable[[], None] = lambda: None
    _told: dict[str, Any] = msgspec.field(default_factory=dict)
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


# --- metadata of ledgers, kept on disk ---------------------------------------------------------------------------
#
# What gc sees of ledgers' metadata goes into `metadata.last` of the pair that each lives in, for a rebuild.
#
# Metadata of a ledger is read within some seconds of its first entry here, and afterwards once in
# each round over all ledgers (`over_replicated_age`). Those last seen open are read again at every
# look for dead ledgers, some at a time, so that ensemble changes and closes are seen early. A
# deletion is on disk before the index deletes anything (INV-M7).


OPEN_MAX = 100_000
"""Ledgers last seen open that are known of; more are read in the rounds only."""
OPEN_A_LOOK = 2000


class LocalIds:
    """Sorted ids, searched: a set would take ten times the memory."""

    def __init__(self, ids: array[int]) -> None:
        self._ids = ids

    def __contains__(self, one: object) -> bool:
        from bisect import bisect_left

        if not isinstance(one, int):
            return False
        at = bisect_left(self._ids, one)
        return at < len(self._ids) and self._ids[at] == one


class MetadataKeeper:
    """One bookie's files. A disk that takes no writes stops only this, and deletions: it is logged once, until one
    succeeds.
    """

    def __init__(
        self,
        directories: Sequence[str],
        shards: Sequence[int],
        store: MetadataStore,
        pace: RateLimit,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """`directories`: the ledger directory of each pair. `pause`: called in long work."""
        self._shards, self._store, self._pace, self._pause = shards, store, pace, pause
        self._open: OrderedDict[int, None] = OrderedDict()
        self._files: list[LastMetadata | None] = [None] * len(directories)
        self._directories = directories
        self._has_complained = False

    def see(self, ledger_id: int, found: VersionedLedger) -> None:
        """Note what was read; on disk after the next `flush`."""
        try:
            self._file_of(ledger_id).see(ledger_id, found.version, found.metadata.to_bytes())
        except (OSError, FormatTooNewError) as error:
            self._complain(error)
        if found.metadata.is_closed:
            self._open.pop(ledger_id, None)
        elif ledger_id in self._open or len(self._open) < OPEN_MAX:
            self._open[ledger_id] = None

    def see_deleted(self, ledger_ids: Sequence[int]) -> None:
        """Note, durably, that metadata does not have these any more. Raises OSError, StorageError: it is not noted."""
        by_pair: dict[int, list[int]] = {}
        for one in ledger_ids:
            self._open.pop(one, None)
            by_pair.setdefault(pair_of(one, self._shards), []).append(one)
        for ids in by_pair.values():
            self._file_of(ids[0]).see_deleted(ids)

    def flush(self) -> None:
        """Make what was seen durable."""
        try:
            for file in self._files:
                if file is not None:
                    file.flush()
            self._has_complained = False
        except OSError as error:
            self._complain(error)

    def read_open(self, local: array[int]) -> None:
        """Read some of those last seen open again, and rewrite files that are half outdated. `local`: ids here."""
        here = LocalIds(local)
        some = [one for one in list(self._open)[:OPEN_A_LOOK]]
        try:
            for ledger_id, found in read_ledgers(self._store, some, self._pace):
                self._open.pop(ledger_id, None)
                if isinstance(found, VersionedLedger) and ledger_id in here:
                    self.see(ledger_id, found)  # behind the others
        except Error:
            pass  # metadata is away, which the looks for ledgers say
        self.flush()
        try:
            for file in self._files:
                if file is not None:
                    file.rewrite_if_due(here, pause=self._pause)
        except OSError as error:
            self._complain(error)

    def _file_of(self, ledger_id: int) -> LastMetadata:
        pair = pair_of(ledger_id, self._shards)
        file = self._files[pair]
        if file is None:
            file = self._files[pair] = LastMetadata(self._directories[pair])
        return file

    def _complain(self, error: Exception) -> None:
        if not self._has_complained:
            self._has_complained = True
            logs.warning("gc.last_metadata_not_written", reason=str(error))


def start() -> NoReturn:
    """Begin this process's life; it does not return."""
    run("gc", main)
