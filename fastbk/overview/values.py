"""What an overview of a cluster consists of. Times are seconds, sizes bytes, rates a second. Values are immutable."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum

from fastbk.model.health import (
    NO_OPEN_LEDGERS,
    NONE_MISPLACED,
    BookieFacts,
    ClusterFacts,
    MisplacedFacts,
    OpenLedgerFacts,
    Reason,
    Verdict,
    reasons_of_all,
    verdict_of,
)

NO_ANSWER = "no answer"
DOWN = "down"
"""States beside those of a bookie's own life cycle: registered without an answer, and known without a registration."""


COMMIT_SLOW_S = 0.025
"""1 of 100 commits takes longer: a slow journal, as in the alert FastbkCommitsSlow."""
FLUSH_SLOW_S = 10.0
"""The same for flushes of a ledger directory, which write up to half of the write cache."""


class Severity(IntEnum):
    """How bad a problem is."""

    OK = 0
    NOTE = 1
    WARN = 2
    BAD = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a bookie. `text`: a few words that fit into a table."""

    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of the last seconds, interpolated in buckets whose bounds are powers of two. `count`: of how many."""

    p50_s: float
    p99_s: float
    count: int


@dataclass(frozen=True, slots=True)
class DiskRow:
    """One directory of a bookie.

    Attributes:
        role: `journal` or `ledger`. pair: number of the pair of directories.
        state: `ok`, `warn`, `full`, `exhausted`, `failed`, `read-only` or `gone`. slow: why it is called slow, or "".
        p99_s: of a journal's commits, or of a ledger directory's flushes, in the last seconds; None: there were none.
        full_in_s: forecast; None: it does not fill up, or that is not known yet.
    """

    role: str
    pair: int
    directory: str
    state: str
    slow: str
    takes: str
    free_bytes: int
    used_ratio: float
    p99_s: float | None = None
    full_in_s: float | None = None

    @property
    def slowness(self) -> float:
        """Its p99, as a share of what it may take: 1 is slow."""
        return (self.p99_s or 0.0) / (COMMIT_SLOW_S if self.role == "journal" else FLUSH_SLOW_S)


@dataclass(frozen=True, slots=True)
class LastEvent:
    """The newest event of a bookie. `at_s`: wall clock of the bookie. `kind`: one of `events.KINDS`."""

    at_s: float
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class JournalFiles:
    """What becomes of a bookie's journal files.

    Attributes:
        entry_bytes: of all entries that were taken in since the bookie started.
        adopted_bytes: of them, what flushes left in journal files. They wrote the rest to entry logs.
        copied_bytes: what they copied in memory for that; large chunks are written from where they lie.
        free_bytes: of files that the journal may write to again.
        reason: why the current file does not adopt, "" if it does; `J1 level` where there are several journals.
    """

    entry_bytes: int
    adopted_bytes: int
    copied_bytes: int
    free_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class BookieRow:
    """One bookie.

    Attributes:
        state: as `/info` has it (`writable`, `read_only`, `starting` ...), NO_ANSWER or DOWN.
        problems: the worst first.
        adds_per_s, add_bytes_per_s: entries that became durable, and their bytes; None: not known yet.
        add: from an add's last byte received to its answer. commit: write and sync of a batch of the journal.
        queue: adds, fences and forces that the journal has not answered. blocked: connections whose next add waits.
        full_in_s: when its first ledger directory is full.
        limbo: ledgers whose data was lost here. quarantined: damaged ranges of entries.
        age_s: since the figures were read; of a bookie without an answer: the last ones.
        facts: what the verdict is made of; None: nobody can know, as it has no HTTP page.
        journal_files: None: not known, or the bookie is of an older version.
    """

    bookie_id: str
    state: str
    http: str = ""
    problems: tuple[Problem, ...] = ()
    adds_per_s: float | None = None
    add_bytes_per_s: float | None = None
    reads_per_s: float | None = None
    add: Latency | None = None
    commit: Latency | None = None
    queue: int = 0
    blocked: int = 0
    disks: tuple[DiskRow, ...] = ()
    full_in_s: float | None = None
    limbo: int = 0
    quarantined: int = 0
    last_event: LastEvent | None = None
    version: str = ""
    age_s: float = 0.0
    facts: BookieFacts | None = None
    journal_files: JournalFiles | None = None

    @property
    def severity(self) -> Severity:
        """The severity of its worst problem."""
        return max((problem.severity for problem in self.problems), default=Severity.OK)

    @property
    def slowest_disk(self) -> DiskRow | None:
        """The directory that is worst off, compared with what its role may take; None without any figure."""
        known = [
            disk for disk in self.disks if disk.p99_s is not None or disk.slow or disk.state != "ok"
        ]
        return max(
            known, key=lambda one: (one.state != "ok", bool(one.slow), one.slowness), default=None
        )

    def sickness(self) -> tuple[int, float, int, str]:
        """Return a key by which the sickest bookie sorts first. Those without a problem keep their order."""
        p99_s = (
            self.commit.p99_s if self.commit is not None and self.severity >= Severity.WARN else 0.0
        )
        return -self.severity, -p99_s, -len(self.problems), self.bookie_id


@dataclass(frozen=True, slots=True)
class HotLedger:
    """A ledger with many adds, estimated from the bookies' sketches.

    Attributes:
        adds_per_s, bytes_per_s: of its writer: copies are divided by the write quorum, once that is known.
        stream: path of the stream that it belongs to, "" without one, or if that is not known yet.
        bookies: how many have it in their sketch.
    """

    ledger_id: int
    adds_per_s: float
    bytes_per_s: float
    stream: str = ""
    bookies: int = 0


@dataclass(frozen=True, slots=True)
class HotStream:
    """The hot ledgers of one stream together."""

    path: str
    adds_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class CursorLag:
    """A durable cursor that is behind. None: bookies did not answer that.

    Attributes:
        by: who moves it: `spark` or "".
        oldest_unread_s: since the first unread record was appended. moved_s: since the cursor's mark last moved.
    """

    stream: str
    cursor: str
    by: str
    backlog_records: int | None
    backlog_bytes: int | None
    oldest_unread_s: float | None
    moved_s: float


@dataclass(frozen=True, slots=True)
class Healing:
    """What AutoRecovery has to do.

    Attributes:
        enabled: False: an operator has paused it. auditor: who is elected, "" for nobody.
        marked: ledgers that miss copies. bytes_left: of the copies that they miss, as its workers estimate.
        parked: of the marked ones, that cannot be repaired now.
        ledgers_per_s, bytes_per_s: repaired since the poll before; None: not known yet.
        lost: bookies that are lost: id -> when their ledgers are marked, in ms since 1970; 0: they are.
    """

    enabled: bool
    auditor: str
    marked: int
    bytes_left: int
    parked: int
    ledgers_per_s: float | None = None
    bytes_per_s: float | None = None
    lost: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """A cluster at one moment.

    Attributes:
        at_s: wall clock. metadata_uri: without secrets.
        bookies: the sickest first. hot_ledgers, hot_streams: most adds first, at most 20 each.
        cursors: the longest unread first. cursors_left_out: how many more there are.
        healing: None: not known yet.
        hold: why metadata is on hold, "" if it is not.
        errors: what could not be read, for people; the parts concerned are of an earlier poll, or empty.
        backup_age_s: of the newest backup of metadata; infinite: none was taken; None: not known yet.
        open_ledgers: ledgers that wait to be closed.
        misplaced: ledgers whose copies are elsewhere than their rule wants them.
    """

    at_s: float
    metadata_uri: str
    bookies: tuple[BookieRow, ...]
    hot_ledgers: tuple[HotLedger, ...] = ()
    hot_streams: tuple[HotStream, ...] = ()
    cursors: tuple[CursorLag, ...] = ()
    cursors_left_out: int = 0
    healing: Healing | None = None
    errors: tuple[str, ...] = ()
    hold: str = ""
    backup_age_s: float | None = None
    open_ledgers: OpenLedgerFacts = NO_OPEN_LEDGERS
    misplaced: MisplacedFacts = NONE_MISPLACED

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What speaks against the cluster, the worst first; empty: all is well."""
        healing = self.healing
        facts = ClusterFacts(
            hold=self.hold,
            backup_age_s=self.backup_age_s,
            ledgers=self.open_ledgers,
            misplaced=self.misplaced,
        )
        if healing is not None:
            facts = replace(
                facts,
                marked=healing.marked,
                parked=healing.parked,
                heals=healing.enabled,
                has_auditor=bool(healing.auditor),
                lost=[one for one, due_ms in healing.lost if due_ms == 0],
            )
        known = [bookie.facts for bookie in self.bookies if bookie.facts is not None]
        reasons = reasons_of_all(known, facts)
        if not known and self.bookies:
            reasons = tuple(reason for reason in reasons if reason.name != "no_bookie")
        step = "fastbk metadata status"
        return (
            *reasons,
            *(
                Reason(Verdict.DEGRADED, "not_read", "metadata", error, step)
                for error in self.errors
            ),
        )

    @property
    def verdict(self) -> Verdict:
        """The worst of the reasons."""
        return verdict_of(self.reasons)

    @property
    def adds_per_s(self) -> float:
        """Copies of entries that all bookies together made durable."""
        return math.fsum(bookie.adds_per_s or 0.0 for bookie in self.bookies)

    @property
    def add_bytes_per_s(self) -> float:
        """The same in bytes."""
        return math.fsum(bookie.add_bytes_per_s or 0.0 for bookie in self.bookies)

    def count(self, severity: Severity) -> int:
        """Return how many bookies have this as their worst severity."""
        return sum(bookie.severity is severity for bookie in self.bookies)
