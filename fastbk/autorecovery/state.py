"""What healers store in metadata, beside Apache's nodes, and what each of them counts.

The records lie below `autorecovery/`:

autorecovery/settings          the cluster's copy rate: an operator writes it
autorecovery/hold              until when no lost bookie becomes due: an operator writes it, and `cluster roll`
autorecovery/maintenance       bookies that may be away for a while: `fastbk bookie maintenance` writes it
autorecovery/lost_bookies      lost bookies with their times of loss: the auditor writes it, and an operator's `resume`
autorecovery/audit             where the auditor's passes are, and when they ended: the auditor writes it
autorecovery/recoveries        ledgers in recovery (`fastbk.meta.health_records`): the auditor writes it
autorecovery/placement         how many ledgers are misplaced (`fastbk.meta.health_records`): the auditor writes it
autorecovery/leases            how the copy rate is divided: the auditor writes it
autorecovery/workers/<name>    what a worker is doing: that worker writes it
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from fastbk.autorecovery.lost_bookies import HealingHold, LostBookies
from fastbk.autorecovery.rate_leases import BYTES_PER_S_DEFAULT, Lease
from fastbk.client.metadata_calls import RecordCalls
from fastbk.errors import MetadataConflict
from fastbk.formats import LEVEL_FIRST
from fastbk.meta.health_records import LastBackup
from fastbk.meta.records import Change, bad_record
from fastbk.model.ids import BookieId, LedgerId
from fastbk.observe.prometheus import OpStats

T = TypeVar("T")

FOLDER = "autorecovery"
WORKERS = f"{FOLDER}/workers"
WORKER_SILENT_S = 60.0
"""A worker that stored nothing for so long is gone."""
SUSPECTS_MAX = 1000
"""Listed of one cycle: 10 KiB in metadata."""
_TRIES_MAX = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """What operators set.

    Attributes:
        bytes_per_s: of the whole cluster; 0: no limit.
        mends_placement: copies are moved that lie otherwise than their ledger's rule wants it.
    """

    bytes_per_s: float = BYTES_PER_S_DEFAULT
    mends_placement: bool = True


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Bookies that an operator has put into maintenance, each with its end; those whose time is over may be there."""

    bookies: dict[BookieId, HealingHold] = field(default_factory=dict)

    def current(self, now_ms: int) -> dict[BookieId, HealingHold]:
        """Return those whose time is not over."""
        return {one: hold for one, hold in self.bookies.items() if hold.left_s(now_ms)}


@dataclass(frozen=True, slots=True)
class Marking:
    """A scan that marks the ledgers of due bookies.

    Attributes:
        bookies: bookie -> the time of the loss that the scan is about, in ms since 1970.
        after: ledgers up to this id are done.
    """

    bookies: dict[BookieId, int] = field(default_factory=dict)
    after: LedgerId = -1


@dataclass(frozen=True, slots=True)
class Cycle:
    """A full check of all ledgers.

    Attributes:
        after: ledgers up to this id were checked.
        began_ms, ended_ms: 0: not yet.
        ledgers: checked so far. unsure: of those, with bookies that did not answer. missing: copies that were found.
        suspects: those of which not all copies were found, in order; the first `SUSPECTS_MAX`.
    """

    after: LedgerId = -1
    began_ms: int = 0
    ended_ms: int = 0
    ledgers: int = 0
    unsure: int = 0
    missing: int = 0
    suspects: tuple[LedgerId, ...] = ()

    def has_found(self, ledger_id: LedgerId) -> bool:
        """Whether it has found all copies of a ledger that was there when it began."""
        if not self.began_ms or (not self.ended_ms and ledger_id > self.after):
            return False
        if len(self.suspects) >= SUSPECTS_MAX and ledger_id > self.suspects[-1]:
            return False  # there may be more suspects than are listed
        return ledger_id not in self.suspects


@dataclass(frozen=True, slots=True)
class Audit:
    """The auditor's passes.

    Attributes:
        auditor: who wrote this. pass_ms: when its last pass over the bookies ended.
        due: lost bookies whose delay is over. waiting: others -> when they are due, in ms since 1970.
        held: those of `waiting` that a hold keeps -> the reason.
        marking: the scan for due bookies, empty: none. cycle, last_cycle: the check of all ledgers, now and before.
    """

    auditor: str = ""
    pass_ms: int = 0
    due: tuple[BookieId, ...] = ()
    waiting: dict[BookieId, int] = field(default_factory=dict)
    held: dict[BookieId, str] = field(default_factory=dict)
    marking: Marking = field(default_factory=Marking)
    cycle: Cycle = field(default_factory=Cycle)
    last_cycle: Cycle = field(default_factory=Cycle)

    def known_whole_ms(self, ledger_id: LedgerId, created_ms: int) -> int:
        """Return when the last check began that found all copies of a ledger, in ms since 1970; 0: none has.

        Marks count beside this: what is marked now is not whole.
        """
        for one in (self.cycle, self.last_cycle):
            if created_ms <= one.began_ms and one.has_found(ledger_id):
                return one.began_ms
        return 0


@dataclass(frozen=True, slots=True)
class Leases:
    """The leases of all workers, by name, and the auditor that granted them."""

    auditor: str = ""
    leases: dict[str, Lease] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParkedLedger:
    """A ledger that waits for a change of the cluster, since a time in ms since 1970."""

    ledger_id: LedgerId
    reason: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker is doing.

    Attributes:
        counter: grows with each report. report_ms: when it was written.
        active: ledgers that it repairs now.
        marked: ledgers that are marked. bytes_left: of the copies that they miss, estimated.
        waiting: of those, that back off or wait for a delay. parked_count, parked: that are parked (the first 20).
        bytes_per_s: the rate that it may use now; None: no limit.
        ledgers_repaired, entries_copied, bytes_copied, failures: since it began.
        format_level: the highest that it has (`fastbk.formats`).
    """

    counter: int = 0
    report_ms: int = 0
    active: tuple[LedgerId, ...] = ()
    marked: int = 0
    bytes_left: int = 0
    waiting: int = 0
    parked_count: int = 0
    parked: tuple[ParkedLedger, ...] = ()
    bytes_per_s: float | None = 0.0
    ledgers_repaired: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    failures: int = 0
    format_level: int = LEVEL_FIRST

    @property
    def is_busy(self) -> bool:
        """Whether it copies."""
        return bool(self.active)


class StoredValue(Generic[T]):
    """One record as a value; without the record it is `default`, and where nobody can read it (INV-M17).

    By the defaults no loss is known yet, no ledger as whole, and no lease granted. An operator's hold that nobody can
    read holds nothing: copies made in vain cost less than copies not made. The next change writes the record anew.
    """

    def __init__(self, records: RecordCalls, name: str, default: T) -> None:
        self.path = f"{FOLDER}/{name}"
        self._records = records
        self._default = default
        self._decoder = msgspec.json.Decoder(type(default))

    async def read(self) -> T:
        """Return the value."""
        record = await self._records.read(self.path)
        return self._default if record is None else self.parse(record.value)

    async def change(self, decide: Callable[[T], T]) -> T:
        """Replace the value by what `decide` makes of it, by compare-and-set; return that."""
        for _ in range(_TRIES_MAX):
            record = await self._records.read(self.path)
            stored = None if record is None else self._decoded(record.value)
            before = self._default if stored is None else stored
            after = decide(before)
            if after == stored:
                return after
            version = None if record is None else record.version
            with suppress(MetadataConflict):
                await self._records.change(Change(self.path, msgspec.json.encode(after), version))
                return after
        raise MetadataConflict(
            f"record {self.path} was changed by others {_TRIES_MAX} times: try again"
        )

    async def put(self, value: T) -> None:
        """Replace the value, whatever it is."""
        await self.change(lambda _: value)

    async def remove(self) -> None:
        """Remove the record."""
        while (record := await self._records.read(self.path)) is not None:
            with suppress(MetadataConflict):
                await self._records.change(Change(self.path, None, record.version))
                return

    def parse(self, raw: bytes) -> T:
        """Return what a record's bytes hold."""
        decoded = self._decoded(raw)
        return self._default if decoded is None else decoded

    def _decoded(self, raw: bytes) -> T | None:
        try:
            return self._decoder.decode(raw)
        except (ValueError, RecursionError) as error:
            bad_record(self.path, f"{error}; the default holds until it is written anew")
            return None


class ClusterState:
    """The records of one cluster."""

    def __init__(self, records: RecordCalls) -> None:
        self._records = records
        self.settings = StoredValue(records, "settings", Settings())
        self.hold = StoredValue(records, "hold", HealingHold())
        self.maintenance = StoredValue(records, "maintenance", Maintenance())
        self.lost_bookies = StoredValue(records, "lost_bookies", LostBookies())
        self.audit = StoredValue(records, "audit", Audit())
        self.leases = StoredValue(records, "leases", Leases())

    async def release(self) -> None:
        """End all that operators hold: the cluster's hold, maintenance, and bookies that are lost now."""
        await self.hold.put(HealingHold())
        await self.maintenance.put(Maintenance())
        await self.lost_bookies.change(lambda lost: lost.released())

    def worker(self, name: str) -> StoredValue[WorkerReport]:
        """Return the record of one worker."""
        return StoredValue(self._records, f"workers/{name}", WorkerReport())

    async def workers(self) -> dict[str, WorkerReport]:
        """Return the last reports of all workers; the auditor removes those of workers that are gone."""
        names = await self._records.children(WORKERS)
        found = (
            await self._records.read_all([f"{WORKERS}/{name}" for name in names]) if names else []
        )
        return {
            name: self.worker(name).parse(one.value)
            for name, one in zip(names, found, strict=True)
            if one is not None
        }


class LiveWorkers:
    """Which workers still report, as one process sees it: the clocks of their machines do not matter."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def alive(self, reports: Mapping[str, WorkerReport], now_s: float) -> dict[str, WorkerReport]:
        """Return the reports that have changed within `WORKER_SILENT_S`, or are new to this process."""
        before, self._seen = self._seen, {}
        for name, report in reports.items():
            counter, changed_s = before.get(name, (-1, now_s))
            self._seen[name] = report.counter, changed_s if counter == report.counter else now_s
        return {
            name: report
            for name, report in reports.items()
            if now_s - self._seen[name][1] < WORKER_SILENT_S
        }


def clock_ms() -> int:
    """Return the time in ms since 1970, by this machine's clock."""
    return int(time.time() * 1000)


# What one process of AutoRecovery counts, since it began: also over several terms as the auditor.

MARK_AGES_S = (60, 600, 3600, 86_400)
LATE_MARK_S = 3600
"""A ledger that is marked for longer waits for something: Apache's recovery grace period."""


@dataclass(slots=True)
class MarkingCounts:
    """Counts of the scans that mark the ledgers of due bookies. Times in ms, sizes in bytes."""

    ledgers: int = 0
    bytes_marked: int = 0
    scan_ledgers: OpStats = field(default_factory=OpStats)
    scan_bytes: OpStats = field(default_factory=OpStats)
    scan_ms: OpStats = field(default_factory=OpStats)
    reading_ms: OpStats = field(default_factory=OpStats)


@dataclass(slots=True)
class VerificationCounts:
    """Counts of the checks of all ledgers.

    Attributes:
        unsure: ledgers with bookies that did not answer. holes: ledgers with missing copies, confirmed and marked.
        skipped: times that no check began, since AutoRecovery was paused.
    """

    ledgers: int = 0
    unsure: int = 0
    requests: int = 0
    holes: int = 0
    cycles: int = 0
    skipped: int = 0
    cycle_ms: OpStats = field(default_factory=OpStats)
    fragments: OpStats = field(default_factory=OpStats)
    bookies: OpStats = field(default_factory=OpStats)


@dataclass(slots=True)
class PlacementCounts:
    """Counts of the rounds over all closed ledgers that compare their bookies with their rules.

    Attributes:
        rounds: whole ones. ledgers: that were judged, in all rounds.
        enforced, soft: ledgers that the last round found against an enforced rule, or otherwise than wanted.
        unsure: ledgers of which it could not say, since nobody knows where bookies are that are down.
        ended_ms: when it ended, in ms since 1970; 0: none has.
    """

    rounds: int = 0
    ledgers: int = 0
    enforced: int = 0
    soft: int = 0
    unsure: int = 0
    ended_ms: int = 0
    round_ms: OpStats = field(default_factory=OpStats)

    def ended(self, enforced: int, soft: int, unsure: int, now_ms: int) -> None:
        """Count a round."""
        self.rounds += 1
        self.enforced, self.soft, self.unsure, self.ended_ms = enforced, soft, unsure, now_ms


@dataclass(slots=True)
class AuditorCounts:
    """Counts of the auditor's passes. `backup`: the newest one of metadata, as of the last pass; None: none was
    taken.
    """

    bookie_passes: int = 0
    failed_passes: int = 0
    losses: int = 0
    losses_cancelled: int = 0
    backup: LastBackup | None = None
    audit_ms: OpStats = field(default_factory=OpStats)
    marking: MarkingCounts = field(default_factory=MarkingCounts)
    verification: VerificationCounts = field(default_factory=VerificationCounts)
    placement: PlacementCounts = field(default_factory=PlacementCounts)


@dataclass(slots=True)
class WorkerCounts:
    """Counts of a worker's repairs.

    Attributes:
        ledgers_mended: misplaced ones that lie as their rules want it now.
        copies_moved: that lie elsewhere now, as their ledgers' rules want. moves_failed: ledgers of which some do not.
        lost_locks: repairs that ended because the session behind their lock had expired.
        read_ms, write_ms: requests for copies, of many entries where bookies take that.
        faults: failed repairs by the name of their error.
    """

    repaired: int = 0
    attempts: int = 0
    failures: int = 0
    lost_locks: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    entries_lost: int = 0
    ledgers_closed: int = 0
    ledgers_mended: int = 0
    copies_moved: int = 0
    moves_failed: int = 0
    repair_ms: OpStats = field(default_factory=OpStats)
    read_ms: OpStats = field(default_factory=OpStats)
    write_ms: OpStats = field(default_factory=OpStats)
    faults: dict[str, int] = field(default_factory=dict)

    def copied(self, entries: int, size_bytes: int) -> None:
        """Count copies, as they are made: a ledger may have many."""
        self.entries_copied += entries
        self.bytes_copied += size_bytes

    def read_took(self, took_s: float, is_ok: bool) -> None:
        """Count a read for a copy."""
        self.read_ms.add(took_s * 1000, is_ok)

    def write_took(self, took_s: float, is_ok: bool) -> None:
        """Count a write of copies."""
        self.write_ms.add(took_s * 1000, is_ok)


@dataclass(slots=True)
class MarkCounts:
    """Marked ledgers, as they were read last.

    Attributes:
        no_copy, below_ack_quorum, below_write_quorum: with so few live copies of an entry.
        by_age: marked for at most so long, cumulative, in the order of `MARK_AGES_S`. late: for longer than
            `LATE_MARK_S`.
        ledgers: all of them.
    """

    no_copy: int = 0
    below_ack_quorum: int = 0
    below_write_quorum: int = 0
    by_age: list[int] = field(default_factory=lambda: [0] * len(MARK_AGES_S))
    late: int = 0
    ledgers: int = 0

    def add(self, copies: int | None, ack_quorum: int, write_quorum: int, age_s: float) -> None:
        """Count one ledger; `copies`: None for one that is gone, whose mark is to be dropped, or unreadable."""
        self.ledgers += 1
        self.late += age_s > LATE_MARK_S
        self.by_age = [
            count + (age_s <= most) for count, most in zip(self.by_age, MARK_AGES_S, strict=True)
        ]
        if copies is not None:
            self.no_copy += copies == 0
            self.below_ack_quorum += copies < ack_quorum
            self.below_write_quorum += copies < write_quorum
