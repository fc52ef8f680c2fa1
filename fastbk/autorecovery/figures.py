"""What one process of AutoRecovery counts, since it began: also over several terms as the auditor."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastbk.meta.health_records import LastBackup
from fastbk.observe.prometheus import OpStats

MARK_AGES_S = (60, 600, 3600, 86_400)
LATE_MARK_S = 3600
"""A ledger that is marked for longer waits for something: Apache's recovery grace period."""


@dataclass(slots=True)
class MarkingCounts:
    """Of scans that mark the ledgers of due bookies. Times in ms, sizes in bytes."""

    ledgers: int = 0
    bytes_marked: int = 0
    scan_ledgers: OpStats = field(default_factory=OpStats)
    scan_bytes: OpStats = field(default_factory=OpStats)
    scan_ms: OpStats = field(default_factory=OpStats)
    reading_ms: OpStats = field(default_factory=OpStats)


@dataclass(slots=True)
class VerificationCounts:
    """Of checks of all ledgers.

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
class AuditorCounts:
    """Of the auditor's passes. `backup`: the newest one of metadata, as of the last pass; None: none was taken."""

    bookie_passes: int = 0
    failed_passes: int = 0
    losses: int = 0
    losses_cancelled: int = 0
    backup: LastBackup | None = None
    audit_ms: OpStats = field(default_factory=OpStats)
    marking: MarkingCounts = field(default_factory=MarkingCounts)
    verification: VerificationCounts = field(default_factory=VerificationCounts)


@dataclass(slots=True)
class WorkerCounts:
    """Of repairs.

    Attributes:
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
