"""One verdict about the health of a bookie and of a cluster, by facts that everybody has from the bookies. Pure.

`fastbk cluster status`, `fastbk top`, the console, `fastbk doctor` and `/readyz` say the same words for the same fact:
each brings the facts that it has, and `reasons_of_bookie` and `verdict_of` decide. A fact that one of them cannot have,
as metadata in `/readyz`, is left out there. A reason whose verdict is "well" is a remark: it changes no exit code.

Decision 147.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fastbk.model.ids import BookieId, LedgerId
from fastbk.units import format_age_s

TEXT_CHARACTERS_MAX = 200
BACKUP_AGE_MAX_S = 2 * 86_400
"""A backup of metadata is old beyond this. The alert FastbkBackupOld has the same number; a test compares them."""
NAMED_MAX = 5
"""So many ledgers are named in a reason."""
SLOW = "docs/slow.md finds the cause"


class Verdict(enum.IntEnum):
    """How a cluster is, or a bookie."""

    WELL = 0
    DEGRADED = 1
    """Everything is served, and every copy is there; something is slower or less safe than it should be."""
    IN_DANGER = 2
    """Copies are missing or cannot be read: a further loss may cost acknowledged entries, or stop appends."""
    DOWN = 3
    """Nobody can append or read."""

    @property
    def text(self) -> str:
        """Return it as commands print it, and as JSON has it."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Reason:
    """One fact that speaks against "well".

    Attributes:
        name: of the kind of fact, for programs: `limbo`, `disk_slow`.
        subject: the bookie's id, or `metadata`, `healing`, `bookies`.
        text: a few words that fit into a table.
        next_step: what to do.
    """

    verdict: Verdict
    name: str
    subject: str
    text: str
    next_step: str

    def as_json(self) -> dict[str, str]:
        """Return it as JSON has it."""
        return {
            "verdict": self.verdict.text,
            "name": self.name,
            "subject": self.subject,
            "text": self.text,
            "next_step": self.next_step,
        }


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """One directory of a bookie; see `DiskRow` of `fastbk/overview/values.py`."""

    role: str
    pair: int
    state: str
    takes: str
    slow: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieFacts:
    """What is known of one bookie.

    Attributes:
        state: of its life cycle (`writable`, `read_only` ...), `no answer` or `down`.
        why: why it is in that state.
        is_frozen: one of its processes stands still. reads_only: after a crash loop.
        limbo: ledgers whose data was lost here. quarantined: damaged ranges of entries.
        has_damage: damage is on record: of no ledger it says "no".
        conditions: (name, reason) of its conditions of readiness.
        slow_commits: p99 of the last seconds' commits where that is slow. Only who polls has it; a journal that
            stays slow is among the conditions, for everybody.
    """

    bookie_id: str
    state: str
    why: str = ""
    is_frozen: bool = False
    reads_only: bool = False
    disks: Sequence[DiskFacts] = ()
    limbo: int = 0
    quarantined: int = 0
    has_damage: bool = False
    conditions: Sequence[tuple[str, str]] = ()
    slow_commits: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLedgerFacts:
    """Ledgers that wait to be closed.

    Attributes:
        unfinished: their recovery was begun long ago and has not ended, as the auditor of AutoRecovery found.
        uncloseable: too few of their bookies are registered to close them. away: the bookies that they miss.
    """

    unfinished: Sequence[LedgerId] = ()
    uncloseable: Sequence[LedgerId] = ()
    away: Sequence[BookieId] = ()


NO_OPEN_LEDGERS = OpenLedgerFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class MisplacedFacts:
    """What the auditor's last round over all closed ledgers found, and what the bookies that are up cannot keep.

    Attributes:
        refusal: why new ledgers are refused by the cluster's rule; "": they are not.
        enforced: how many lie as an enforced rule forbids it. soft: how many lie otherwise than a rule wants it.
        first: some of them, those of `enforced` first. reason: of the first.
    """

    enforced: int = 0
    soft: int = 0
    first: Sequence[LedgerId] = ()
    reason: str = ""
    refusal: str = ""


NONE_MISPLACED = MisplacedFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What is known beside the bookies; None: not known.

    Attributes:
        hold: why metadata is on hold, "" if it is not.
        marked: ledgers that miss copies. parked: of these, that cannot be repaired now.
        heals: False: an operator has paused AutoRecovery. has_auditor: somebody runs it.
        lost: bookies that are lost.
        misplaced: ledgers whose copies are elsewhere than their rule wants them.
        backup_age_s: of the newest backup of metadata; infinite: none was taken.
    """

    hold: str = ""
    marked: int = 0
    parked: int = 0
    heals: bool = True
    has_auditor: bool | None = None
    lost: Sequence[str] = ()
    ledgers: OpenLedgerFacts = NO_OPEN_LEDGERS
    misplaced: MisplacedFacts = NONE_MISPLACED
    backup_age_s: float | None = None


_SERVING = ("writable", "read_only")
_ABSENT = ("down", "no answer")
_SAID_BY_OTHER_FACTS = ("state", "disk.", "frozen")
"""Conditions that have a fact of their own."""


def reasons_of_bookie(facts: BookieFacts) -> Iterator[Reason]:
    """Yield what speaks against a bookie."""
    one = facts.bookie_id

    def reason(verdict: Verdict, name: str, text: str, next_step: str) -> Reason:
        return Reason(verdict, name, one, text, next_step)

    if facts.state in _ABSENT:
        name = "bookie_down" if facts.state == "down" else "bookie_silent"
        text = f"{facts.state}: {short(facts.why)}" if facts.why else facts.state
        step = f"start it; if its disks are lost: fastbk bookie recover {one}"
        if facts.state != "down":
            step = "read its log, and check the network to its [http] listen"
        yield reason(Verdict.IN_DANGER, name, text, step)
        return
    if facts.is_frozen:
        step = f"fastbk bookie info {one} says which and why; restart it if that lasts"
        yield reason(Verdict.IN_DANGER, "frozen", "a process stands still", step)
    if facts.reads_only:
        text = "reads only after a crash loop, until it starts anew by itself"
        yield reason(
            Verdict.IN_DANGER, "reads_only", text, "read its log; docs/lifecycle.md has the pauses"
        )
    if facts.state not in _SERVING:
        step = "wait if it is starting; else read its log"
        yield reason(Verdict.IN_DANGER, "state", f"{facts.state}: {short(facts.why)}", step)
    elif facts.state == "read_only":
        step = f"fastbk bookie info {one} says why; after maintenance: fastbk bookie maintenance {one} --end"
        yield reason(Verdict.DEGRADED, "read_only", f"read-only: {short(facts.why)}", step)
    for disk in facts.disks:
        yield from _of_disk(one, disk)
    if facts.slow_commits and not any(name == "journal.slow" for name, _ in facts.conditions):
        text = f"slow journal: commit p99 {facts.slow_commits}"
        yield reason(Verdict.DEGRADED, "journal_slow", text, SLOW)
    if facts.limbo:
        text = f"limbo: {facts.limbo:,} ledgers lost data here"
        yield reason(Verdict.IN_DANGER, "limbo", text, f"fastbk bookie repair {one}")
    if facts.has_damage:
        text = "damage is on record: it cannot say of any ledger that it never had an entry"
        yield reason(Verdict.IN_DANGER, "damage_on_record", text, f"fastbk bookie repair {one}")
    if facts.quarantined:
        text = f"damaged: {facts.quarantined:,} ranges wait for repair"
        step = f"fastbk bookie repair {one} --quarantined"
        yield reason(Verdict.IN_DANGER, "quarantined", text, step)
    for name, why in facts.conditions:
        if name == "metadata_hold":
            text = "metadata is on hold: deletes nothing"
            yield reason(Verdict.DEGRADED, name, text, "see `fastbk metadata status`")
        elif not name.startswith(_SAID_BY_OTHER_FACTS):
            text = f"not ready: {short(why or name)}"
            if name == "journal.slow":
                yield reason(Verdict.DEGRADED, "journal_slow", f"slow journal: {short(why)}", SLOW)
                continue
            yield reason(
                Verdict.DEGRADED, name, text, "docs/readiness.md has what each condition means"
            )


def _of_disk(bookie_id: str, disk: DiskFacts) -> Iterator[Reason]:
    name = f"{disk.role} disk" if disk.pair == 0 else f"{disk.role} disk {disk.pair}"
    see = "docs/disks.md has what each state means"
    if disk.takes != "all":
        text = f"{name} {disk.state}, takes {disk.takes}"
        yield Reason(
            Verdict.IN_DANGER, "disk_refuses", bookie_id, text, f"free or replace it; {see}"
        )
    elif disk.state != "ok":
        yield Reason(
            Verdict.DEGRADED, "disk", bookie_id, f"{name}: {disk.state}", f"make room; {see}"
        )
    if disk.slow:
        text = f"{name} slow: {short(disk.slow)}"
        yield Reason(Verdict.DEGRADED, "disk_slow", bookie_id, text, SLOW)


def reasons_of_cluster(facts: ClusterFacts) -> Iterator[Reason]:
    """Yield what speaks against a cluster beside its bookies."""
    if facts.hold:
        text = f"metadata is on hold, nothing is deleted: {facts.hold}"
        yield Reason(
            Verdict.DEGRADED, "metadata_hold", "metadata", text, "see `fastbk metadata status`"
        )
    is_work = bool(facts.marked or facts.lost)
    heal = "fastbk cluster heal shows how far AutoRecovery is"
    if not facts.heals:
        text = "AutoRecovery is paused: lost copies are not made anew"
        yield Reason(
            Verdict.DEGRADED, "healing_paused", "healing", text, "fastbk cluster heal resume"
        )
    elif is_work and facts.has_auditor is False:
        heal = "start `fastbk autorecovery`: nobody heals"
    if facts.marked:
        verb = "misses" if facts.marked == 1 else "miss"
        noun = "ledger" if facts.marked == 1 else "ledgers"
        text = f"{facts.marked:,} {noun} {verb} copies"
        if facts.parked:
            text += f", {facts.parked:,} of them cannot be repaired now"
            heal = "fastbk cluster under-replicated names them"
        yield Reason(Verdict.IN_DANGER, "copies_missing", "healing", text, heal)
    for one in facts.lost:
        yield Reason(
            Verdict.IN_DANGER, "bookie_lost", one, "lost: its copies are to be made anew", heal
        )
    yield from _of_ledgers(facts.ledgers)
    yield from _of_placement(facts.misplaced)
    yield from _of_backup(facts.backup_age_s)


def _of_ledgers(facts: OpenLedgerFacts) -> Iterator[Reason]:
    if facts.uncloseable:
        text = (
            f"{_ledgers(facts.uncloseable)} cannot be closed while {', '.join(facts.away)} are away"
        )
        yield Reason(
            Verdict.IN_DANGER,
            "uncloseable",
            "ledgers",
            short(text),
            accept_loss(facts.uncloseable[0]),
        )
    if facts.unfinished:
        text = f"the recovery of {_ledgers(facts.unfinished)} was begun and has not ended"
        step = (
            f"fastbk ledger close {facts.unfinished[0]}; fastbk ledger list --abandoned names all"
        )
        yield Reason(Verdict.DEGRADED, "unfinished_recovery", "ledgers", short(text), step)


def _of_placement(facts: MisplacedFacts) -> Iterator[Reason]:
    """Yield what is misplaced. All copies are there: only what a rule forbids speaks against "well"."""
    if facts.refusal:
        text = f"new ledgers are refused by the cluster's rule of placement: {facts.refusal}"
        step = "fastbk cluster placement show has the rule, and where each bookie is"
        yield Reason(Verdict.DEGRADED, "placement_refused", "placement", short(text), step)
    step = "fastbk cluster placement check lists them and says why"
    if facts.enforced:
        some = facts.first[: min(facts.enforced, NAMED_MAX)]
        verb = "lies" if facts.enforced == 1 else "lie"
        text = (
            f"{_ledgers(some, facts.enforced)} {verb} against an enforced rule of placement:"
            f" {facts.reason}"
        )
        yield Reason(Verdict.DEGRADED, "placement_enforced", "placement", short(text), step)
    if facts.soft:
        some = facts.first[facts.enforced :][:NAMED_MAX]
        verb = "lies" if facts.soft == 1 else "lie"
        text = f"{_ledgers(some, facts.soft)} {verb} otherwise than a rule wants it, not enforced"
        yield Reason(Verdict.WELL, "placement_soft", "placement", short(text), step)


def _ledgers(found: Sequence[LedgerId], count: int = 0) -> str:
    """Return some of them by id. `count`: how many there are, where `found` has not all."""
    named, count = ", ".join(map(str, found[:NAMED_MAX])), max(count, len(found))
    if not named:
        return f"{count:,} {'ledger' if count == 1 else 'ledgers'}"
    noun = "ledger" if count == 1 else f"{count:,} ledgers:"
    return f"{noun} {named}" + (", ..." if count > min(len(found), NAMED_MAX) else "")


def accept_loss(ledger_id: LedgerId) -> str:
    """Return the next step for a ledger that cannot be closed while bookies are away."""
    return (
        f"start those bookies; if they do not come back, `fastbk ledger close {ledger_id} --accept-loss --dry-run`"
        " says what can be kept"
    )


def _of_backup(age_s: float | None) -> Iterator[Reason]:
    step = "fastbk metadata backup --to FILE, each night; see docs/metadata-backup.md"
    if age_s is None or age_s <= BACKUP_AGE_MAX_S:
        return
    if math.isinf(age_s):
        yield Reason(
            Verdict.WELL, "backup_missing", "metadata", "metadata was never backed up", step
        )
        return
    text = f"the newest backup of metadata is {format_age_s(age_s)} old"
    yield Reason(Verdict.DEGRADED, "backup_old", "metadata", text, step)


def reasons_of_all(bookies: Sequence[BookieFacts], cluster: ClusterFacts) -> tuple[Reason, ...]:
    """Return what speaks against a cluster, the worst first."""
    found = [reason for bookie in bookies for reason in reasons_of_bookie(bookie)]
    found += reasons_of_cluster(cluster)
    if not any(bookie.state in _SERVING for bookie in bookies):
        text = "no bookie serves" if bookies else "no bookie is known"
        step = "start bookies, or check --metadata"
        found.append(Reason(Verdict.DOWN, "no_bookie", "bookies", text, step))
    return tuple(sorted(found, key=lambda one: -one.verdict))


def verdict_of(reasons: Iterable[Reason]) -> Verdict:
    """Return the worst verdict of these reasons."""
    return max((reason.verdict for reason in reasons), default=Verdict.WELL)


def short(text: object) -> str:
    """Return a text as one line of bounded length."""
    line = " ".join(str(text).split())
    return line if len(line) <= TEXT_CHARACTERS_MAX else line[: TEXT_CHARACTERS_MAX - 1] + "…"
