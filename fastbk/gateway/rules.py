"""Which rights a change of records needs, of chains among them: decided by what was and what is to be. Pure.

INV-W3: what readers of a stream could read, a change without `truncate` leaves in the chain: closed segments stay as
they are, and the trim point and the head stay where they are.
INV-W6: the numbers of a chain are those that its change makes: who may write to a stream can neither leave it where
nobody can go on, nor say of a segment what its ledger cannot have.
INV-W10: who lacks `admin` leaves the placement of a namespace or stream as strict as it was, or as it is inherited.
INV-W11: only who may `serve` announces a write service, since producers send their tokens and records to it.
INV-W12: numbers of leases, counters and configurations never fall (INV-K1), and their names are counted.
INV-W4: a record names a ledger for deletion only if it named the ledger after its id was drawn, and before it existed.
The janitor deletes what records name, so a record that names another's ledger would delete it.

Records of one transaction are judged together: a stream is created, renamed or deleted by several records at once, its
name, its record, and what is counted of the namespaces above it. So a name without its record, or a stream that is not
counted, is refused.

Decisions 124 and 163.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from msgspec.structs import replace

from fastbk.coordination.records import RECORD_BYTES_MAX, TransactionCheck
from fastbk.errors import (
    InvariantError,
    PolicyInvalid,
    QuotaExceeded,
    StorageError,
    StreamNotFound,
    Unauthorized,
)
from fastbk.gateway.record_names import Kind, RecordName
from fastbk.meta.records import VALUE_BYTES_MAX, VersionedRecord
from fastbk.placement.rules import keeps_to
from fastbk.security.rights import Right
from fastbk.stream.chain import (
    ATTACHMENTS_MAX,
    CONDEMNED,
    NONE,
    Chain,
    PageRef,
    Segment,
    StreamKind,
    get_chain,
    get_page,
    page_of,
    verify,
)
from fastbk.stream.cursor.state import CursorRecord, get_record
from fastbk.stream.drafts import ledgers_named
from fastbk.stream.kind import PAGE_BYTES_MAX, get_table
from fastbk.stream.namespace.tree import (
    NO_PATCH,
    ROOT_ID,
    EntryRecord,
    NamespaceRecord,
    StreamRecord,
    Tree,
    UsageRecord,
    get,
)
from fastbk.stream.paths import number_of_page
from fastbk.stream.pattern.store import PatternRecord, get_pattern
from fastbk.stream.policy import PLACEMENT_FIELDS, effective
from fastbk.stream.positions import AHEAD_US_MAX, DLSN
from fastbk.stream.records import RECORDS_MAX
from fastbk.stream.services import get_service

if TYPE_CHECKING:
    from fastbk.stream.policy import PolicyPatch


READ = Right.READ
WRITE = Right.ADD | Right.RECOVER
"""Either of the two is enough."""
ADD, RECOVER, DELETE, TRUNCATE, ADMIN, SERVE = (
    Right.ADD,
    Right.RECOVER,
    Right.DELETE,
    Right.TRUNCATE,
    Right.ADMIN,
    Right.SERVE,
)


class ForbiddenChange(Unauthorized):
    """A change that nobody may make by a gateway, whatever rights the client has. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Need:
    """One of these rights, and what it is needed for.

    Attributes:
        rights: one bit of them is enough.
        operation: for messages and the audit log, such as `close`.
    """

    rights: Right
    operation: str


# --- chains of streams ----------------------------------------------------------------------------


_NEVER_FALL = (
    "epoch",
    "trim",
    "head",
    "deleting",
    "head_seq",
    "next_page",
    "end_seq",
    "last_txid",
    "last_time_us",
)
_GONE_BY = ("trim", "deleting", "head", "head_seq")
_OPEN_MAY_CHANGE = ("state", "base_seq", "records", "first_txid", "last_txid", "first_time_us", "last_time_us",
                    "last_entry_id", "index_entry_id", "size_bytes")  # fmt: skip
SEGMENT_RECORDS_MAX = 1 << 40
"""Maximum records of a segment: with 64 bits for a stream's records, no client reaches their end."""
Pages = Mapping[PageRef, tuple[Segment, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeNeeds:
    """What a change of a record needs, beside the rights: facts about ledgers that metadata has to confirm.

    Attributes:
        needs: all of them.
        fresh: ledgers that it names before they exist: there must be none of these ids.
        attached: closed ledgers that become segments: each has to say that it is the stream's.
        deleted: ledgers that it names for deletion: what exists of them has to say that it is the stream's.
        forgotten: ledgers that it names no more: they must be gone.
        ended: ledgers of segments that end, and the last entry that the chain says they have (-1: none): metadata has
            to say the same of closed ones, else readers lose what is behind it, and that is a truncation.
        sizes: the same ledgers, and the bytes that the chain says they have: with more than there are, what a stream
            retains of its older segments would shrink.
        unwritten: ledgers of segments behind an empty one: closed ones among them have to be empty as well.
        is_of_producers: a segment may end with entries that have no records. Then its size says that it has all of its
            ledger.
    """

    needs: tuple[Need, ...]
    fresh: tuple[int, ...] = ()
    attached: tuple[int, ...] = ()
    deleted: tuple[int, ...] = ()
    forgotten: tuple[int, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    unwritten: tuple[int, ...] = ()
    is_of_producers: bool = False


def new_pages(old: Chain | None, new: Chain | None) -> tuple[PageRef, ...]:
    """Return the pages that a change adds: `change_of` needs their rows."""
    known = () if old is None else old.pages
    return () if new is None else tuple(page for page in new.pages if page not in known)


def change_of(
    stream_id: str, old: Chain | None, new: Chain | None, pages: Pages, now_us: int
) -> ChangeNeeds:
    """Return what a change of a chain needs. Raises ForbiddenChange for one that nobody may make.

    `old`, `new`: None: there is no record. `pages`: the rows of `new_pages(old, new)`.
    """
    if new is None:
        return ChangeNeeds(needs=(Need(DELETE, "delete the chain of"),))
    if old is None:
        if new != Chain(stream_id):
            raise ForbiddenChange("a stream begins without segments")
        return ChangeNeeds(needs=(Need(ADD, "create"),))
    _check_chain(stream_id, old, new)
    rows = _Rows(old, new, pages)
    _check_chain_numbers(old, new, rows, now_us + AHEAD_US_MAX)
    _check_chain_kind(old, new, rows)
    named = _ledgers_named(old, new, rows)
    return ChangeNeeds(
        needs=_needs_of_chain(old, new),
        fresh=() if new.reserved in (old.reserved, NONE) else (new.reserved,),
        attached=tuple(row.ledger_id for row in rows.added if row.ledger_id != old.reserved),
        deleted=named,
        forgotten=tuple(one for one in old.doomed if one not in new.doomed),
        ended=tuple(rows.ended),
        sizes=tuple(rows.sizes),
        unwritten=tuple(row.ledger_id for row in rows.dropped[1:]),
        is_of_producers=old.kind is StreamKind.PRODUCERS is new.kind,
    )


def _needs_of_chain(old: Chain, new: Chain) -> tuple[Need, ...]:
    needs = []
    if CONDEMNED in (old.owner, new.owner):
        needs.append(Need(DELETE, "delete"))
    if any(getattr(old, name) != getattr(new, name) for name in _GONE_BY):
        needs.append(Need(TRUNCATE | DELETE if new.owner == CONDEMNED else TRUNCATE, "truncate"))
    if old.head != new.head:
        needs.append(Need(DELETE, "delete segments of"))
    if new.is_sealed and not old.is_sealed and new.owner != CONDEMNED:
        needs.append(Need(ADD, "seal"))
    if new.kind is not old.kind:
        needs.append(Need(ADD, "change the kind of"))
    return tuple(needs) or (Need(ADD, "append to"),)


def _check_chain(stream_id: str, old: Chain, new: Chain) -> None:
    try:
        verify(new)
    except InvariantError as broken:  # it is the client's chain that breaks it
        raise ForbiddenChange(f"the chain is none: {broken}") from None
    if new.stream_id != stream_id or old.stream_id != stream_id:
        raise ForbiddenChange("a chain stays its stream's")
    for name in _NEVER_FALL:
        if getattr(new, name) < getattr(old, name):
            raise ForbiddenChange(f"the {name.replace('_', ' ')} of a chain never falls")
    if old.is_sealed and not new.is_sealed:
        raise ForbiddenChange("a stream that has ended stays ended")
    if old.owner == CONDEMNED != new.owner:
        raise ForbiddenChange("a stream that is being deleted stays deleted")


def _check_chain_numbers(old: Chain, new: Chain, rows: _Rows, latest_us: int) -> None:
    """Refuse numbers that do not follow from what changes (INV-W6).

    Who mirrors another cluster's stream brings that one's numbers, and will need a right of its own for it.
    """
    if new.epoch > old.epoch + 1:
        raise ForbiddenChange(
            f"the epoch of a chain rises by one, not from {old.epoch} to {new.epoch}"
        )
    pages = sorted(page.page for page in rows.pages)
    if pages != [*range(old.next_page, new.next_page)]:
        raise ForbiddenChange("the next page of a chain rises by its new pages")
    if not new.owner.isprintable():
        raise ForbiddenChange("the owner of a chain is printable text")
    if len(new.attachments) > max(ATTACHMENTS_MAX, len(old.attachments)):
        raise ForbiddenChange(f"a chain has {ATTACHMENTS_MAX} attachments at most")
    if new.trim > max(old.trim, DLSN(new.next_number, 0, 0)) or new.head_seq > max(
        old.head_seq, new.end_seq
    ):
        raise ForbiddenChange("what is cut off a stream lies before its end (INV-S7)")
    for row in rows.added:
        if (
            row.created_us > latest_us
            or row.epoch > new.epoch
            or row.base_txid > max(old.last_txid, new.last_txid, 0)
        ):
            raise ForbiddenChange(f"segment {row.number} says that it was made later than now")
    end_seq, last_dlsn, last_txid, last_us = (
        old.end_seq,
        old.last_dlsn,
        old.last_txid,
        old.last_time_us,
    )
    for row in sorted(rows.closed, key=lambda one: one.number):
        if row.base_seq != end_seq or row.records > min(
            SEGMENT_RECORDS_MAX, (row.last_entry_id + 1) * RECORDS_MAX
        ):
            raise ForbiddenChange(
                f"segment {row.number} has other records than its entries and those before it allow"
            )
        if max(row.first_time_us, row.last_time_us) > latest_us:
            raise ForbiddenChange(
                f"segment {row.number} has records of {row.last_time_us} us, in a day or later: are the clocks right?"
            )
        end_seq, last_txid, last_us = (
            row.end_seq,
            max(last_txid, row.last_txid),
            max(last_us, row.last_time_us),
        )
        slot = new.last_dlsn.slot if new.last_dlsn is not None else 0
        if row.records:  # else only names of producers were opened in it
            last_dlsn = DLSN(row.number, row.last_entry_id, min(slot, RECORDS_MAX))
    found = new.end_seq, new.last_dlsn, new.last_txid, new.last_time_us
    if found != (end_seq, last_dlsn, last_txid, last_us):
        raise ForbiddenChange("the end of a chain is not that of its last closed segment")


def _check_chain_kind(old: Chain, new: Chain, rows: _Rows) -> None:
    """Refuse what would mix a writer's records with those of producers, or forget their table (INV-S28, INV-S29)."""
    leaves = old.kind is StreamKind.PRODUCERS is not new.kind
    if new.producer_pages != old.producer_pages and not leaves:
        raise ForbiddenChange(
            "a chain names pages of producers as its kind changes, and keeps them"
        )
    if any(number_of_page(name) != new.epoch for name in new_producer_pages(old, new)):
        raise ForbiddenChange("a page of producers has the number of the epoch that names it")
    is_opening = new.kind is StreamKind.PRODUCERS and old.is_untouched and new.is_untouched
    is_alone = new.epoch == old.epoch and not old.open_rows and not rows.added
    if new.kind is not old.kind and not (is_opening or is_alone):
        # Whoever changes it took the stream over before. Versions without kinds do not know what they leave out.
        raise ForbiddenChange("the kind of a stream changes by itself, with all segments closed")
    if new.kind is StreamKind.PRODUCERS and any(
        row.ledger_id != old.reserved for row in rows.added
    ):
        raise ForbiddenChange("nothing is attached to a stream of producers")


def new_producer_pages(old: Chain | None, new: Chain | None) -> tuple[str, ...]:
    """Return the names of the pages of producers that a change adds: they have to be there."""
    known = () if old is None else old.producer_pages
    return () if new is None else tuple(name for name in new.producer_pages if name not in known)


@dataclass(slots=True)
class _Rows:
    """The rows that a change adds, and the open ones that it drops. Raises ForbiddenChange for what it may not do."""

    old: Chain
    new: Chain
    pages: Pages
    added: list[Segment] = field(default_factory=list)
    dropped: list[Segment] = field(default_factory=list)
    ended: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    closed: list[Segment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._check_pages()
        after = self._after()
        for row in self.old.rows:
            if row.number >= self.new.head:
                self._compare(row, after.get(row.number))
        before = {row.number: row for row in self.old.rows}
        for number, row in sorted(after.items()):
            known = before.get(number)
            if known is None or known.ledger_id != row.ledger_id:
                self._add(row)

    def _after(self) -> dict[int, Segment]:
        """Return the rows afterwards that were rows before, or are new: those in new pages, too."""
        rows = [*(row for moved in self.pages.values() for row in moved), *self.new.rows]
        return {row.number: row for row in rows}

    def _check_pages(self) -> None:
        for page in self.old.pages:
            if page.last >= self.new.head and page not in self.new.pages:
                raise ForbiddenChange(
                    f"page {page.page} of the chain has segments that are there still"
                )
        for page, rows in self.pages.items():
            if (
                not rows
                or any(row.is_open for row in rows)
                or page != page_of(page.page, page.token, rows)
            ):
                raise ForbiddenChange(f"page {page.page} has other rows than the chain says")
            if [row.number for row in rows] != [*range(page.first, page.last + 1)]:
                raise ForbiddenChange(f"page {page.page} has rows that do not follow each other")

    def _compare(self, row: Segment, after: Segment | None) -> None:
        if after == row:
            return
        if not row.is_open:
            raise ForbiddenChange(
                f"segment {row.number} is closed: it stays as it is until it is deleted at the head"
            )
        if after is None or after.ledger_id != row.ledger_id:
            if not self.dropped:
                self.ended.append((row.ledger_id, NONE))
            self.dropped.append(row)
        elif replace(after, **{name: getattr(row, name) for name in _OPEN_MAY_CHANGE}) != row:
            raise ForbiddenChange(f"segment {row.number} stays that of its writer")
        elif not after.is_open:
            # retention would delete it before its time
            if after.last_time_us < row.created_us - AHEAD_US_MAX:
                raise ForbiddenChange(
                    f"segment {row.number} has records from before it was made: check the clocks"
                )
            self._end(after)

    def _add(self, row: Segment) -> None:
        if row.number < self.old.next_number and not any(
            one.number <= row.number for one in self.dropped
        ):
            raise ForbiddenChange(f"segment {row.number} was another before")
        if row.is_open and row.ledger_id != self.old.reserved:
            raise ForbiddenChange(
                f"ledger {row.ledger_id} was not reserved for segment {row.number} (INV-S8)"
            )
        if not row.is_open:
            self._end(row)
        self.added.append(row)

    def _end(self, row: Segment) -> None:
        self.ended.append((row.ledger_id, max(row.last_entry_id, row.index_entry_id)))
        self.sizes.append((row.ledger_id, row.size_bytes))
        self.closed.append(row)


def _ledgers_named(old: Chain, new: Chain, rows: _Rows) -> tuple[int, ...]:
    """Return the ledgers that are named for deletion by a change (INV-W4)."""
    named = tuple(one for one in new.doomed if one not in old.doomed)
    mine = {old.reserved, *(row.ledger_id for row in rows.dropped)} - {NONE}
    if foreign := [one for one in named if one not in mine]:
        raise ForbiddenChange(f"ledger {foreign[0]} was not the stream's to delete")
    kept = {row.ledger_id for row in new.rows} | {row.ledger_id for row in rows.added}
    if both := kept.intersection(new.doomed) or ({new.reserved} & kept):
        raise ForbiddenChange(f"ledger {min(both)} is a segment's")
    return named


# --- records --------------------------------------------------------------------------------------


P = ParamSpec("P")
T = TypeVar("T")

_RETENTION = ("retention_age_s", "retention_bytes", "hard_age_s", "hard_bytes", "hold_for_cursors")
_QUOTAS = ("streams_max", "bytes_max")
_PLACEMENT = (*sorted(PLACEMENT_FIELDS), "bookie_group")
CHAINS_MAX = 16
"""Chains that one request changes. Each takes a thousand times longer to judge than to send."""
NEW_PAGES_MAX = 64
"""Pages that one request moves rows to."""
NAMESPACES_DEEP_MAX = 100
"""Namespaces in one another."""
READERS_CURSOR_BYTES_MAX = 64 * 1024
"""Maximum bytes of a cursor that clients may write who may only read: some 1,400 ranges behind its mark."""
USAGE_BYTES_MAX = 1000
"""Maximum bytes of a namespace's counts. Everybody who may create something below it writes them, and all others read
them.
"""
BYTES_MAX = {
    Kind.ENTRY: 500,
    Kind.NAMESPACE: 4000,
    Kind.STREAM: 4000,
    Kind.USAGE: USAGE_BYTES_MAX,
    Kind.CHAIN: 500_000,
    Kind.PAGE: 200_000,
    Kind.CURSOR: 512 * 1024,
    Kind.PATTERN_CURSOR: 512 * 1024,
    Kind.DRAFT: 32_000,
    Kind.PRODUCERS_PAGE: PAGE_BYTES_MAX,
    Kind.SERVICE: 2000,
    Kind.COORDINATION: RECORD_BYTES_MAX,
    Kind.COORDINATION_NAMES: 100,
}
"""Of a record of each kind (INV-B1), above what clients write. Of others VALUE_BYTES_MAX: only `admin` changes them."""


class Lookup(Protocol):
    """What else metadata says."""

    def levels(self, namespace_id: str) -> tuple[tuple[str, NamespaceRecord], ...]:
        """Return a namespace and all above it, from the root down, by id. Raises Error."""

    def page(self, stream_id: str, page: PageRef) -> tuple[Segment, ...]:
        """Return the rows of a page. Raises Error."""

    def has_producers_page(self, stream_id: str, name: str) -> bool:
        """Return whether there is such a page. Raises Error."""


@dataclass(frozen=True, slots=True)
class RecordChange:
    """One record of a transaction: what it was, and what it is to be; None: it is not there."""

    path: str
    name: RecordName
    before: bytes | None
    after: bytes | None


@dataclass(slots=True)
class Judgement:
    """What a transaction needs.

    Attributes:
        changes: of each record: its rights, and what metadata has to confirm.
        namespaces: ids of namespaces that the client has to be allowed to work in.
        names: namespaces by their parent's id and name, that it has to be allowed to work in.
        counted: ids of namespaces of which only what is counted changes: allowed, or above an allowed one.
        born: the parent's id and the name of namespaces that the transaction creates, by id.
        streams: the namespace's id of streams that the transaction creates, by id.
        patterns: ids of namespaces that get a cursor of a pattern more.
        coordinated: ids of namespaces that get a lease, counter or configuration more.
        cursors: ids of streams that get a cursor more: they have to be there, with fewer than a stream may have.
        pages: ids of streams and numbers of their new pages: the next ones of the chain, of which few are not named.
        producers: ids of streams that become producers': the cluster's format level has to have them (INV-U1).
        producers_pages: ids of streams and names of their new pages of producers, of the chain's epoch.
        unnamed: ids of streams and names of pages of producers that go, which the chain may not name.
    """

    changes: list[tuple[RecordName, ChangeNeeds]] = field(default_factory=list)
    namespaces: set[str] = field(default_factory=set)
    names: set[tuple[str, str]] = field(default_factory=set)
    counted: set[str] = field(default_factory=set)
    born: dict[str, tuple[str, str]] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    cursors: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    coordinated: set[str] = field(default_factory=set)
    pages: list[tuple[str, int]] = field(default_factory=list)
    producers: set[str] = field(default_factory=set)
    producers_pages: list[tuple[str, str]] = field(default_factory=list)
    unnamed: list[tuple[str, str]] = field(default_factory=list)


def judge(records: Sequence[RecordChange], lookup: Lookup, now_us: int) -> Judgement:
    """Return what a transaction needs. Raises ForbiddenChange, QuotaExceeded, and what `lookup` raises."""
    return _Judge(records, lookup, now_us).judged


class _Judge:
    def __init__(self, records: Sequence[RecordChange], lookup: Lookup, now_us: int) -> None:
        self.judged = Judgement()
        self._lookup = lookup
        self._now_us = now_us
        self._created: dict[str, tuple[str, str, str]] = {}  # by id: kind, namespace, name
        self._names: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._usages: dict[str, tuple[UsageRecord, UsageRecord]] = {}
        self._removed_usages: set[str] = set()
        self._named: set[str] = set()
        self._entries: set[str] = set()
        self._new_pages = 0
        self._coordination = TransactionCheck()
        if sum(record.name.kind is Kind.CHAIN for record in records) > CHAINS_MAX:
            raise ForbiddenChange(f"one request changes {CHAINS_MAX} chains at most: send several")
        for record in records:
            if record.after is not None and len(record.after) > BYTES_MAX.get(
                record.name.kind, VALUE_BYTES_MAX
            ):
                limit = BYTES_MAX[record.name.kind]
                raise ForbiddenChange(
                    f"{record.name.label}: {len(record.after):,} bytes, of {limit:,} that one may have"
                )
            if record.name.kind is Kind.ENTRY:
                self._collect_entry(record)
        for record in records:
            needs = _RULES.get(record.name.kind, _other)(self, record)
            self.judged.changes.append((record.name, needs))
            if record.name.kind is Kind.USAGE:
                self.judged.counted.add(record.name.owner)
            elif record.name.is_of_namespace and record.name.kind is not Kind.ENTRY:
                self.judged.namespaces.add(record.name.owner)
        if unnamed := set(self._created) - self._named:
            raise ForbiddenChange(f"{min(unnamed)} gets a name and no record that has it")
        self._check_parents()
        self._check_counts()
        self.judged.coordinated |= _check_stored(self._coordination.check, self._is_there)

    # --- names --------------------------------------------------------------------------------------------------

    def _collect_entry(self, record_change: RecordChange) -> None:
        before, after = _decoded(EntryRecord, record_change)
        owner, name = record_change.name.owner, record_change.name.name
        self._entries.add(owner)
        for entry, sign in ((before, -1), (after, 1)):
            if entry is not None and (before is None or after is None):
                self._names[owner] += sign
                self._streams[owner] += sign if entry.kind == "stream" else 0
        for entry in filter(None, (before, after)):
            if entry.kind == "namespace":
                self.judged.names.add((owner, name))
            else:
                self.judged.namespaces.add(owner)
        if before is None and after is not None:
            if after.id in self._created:
                raise ForbiddenChange(
                    f"{after.kind} {after.id} gets two names: it has one (INV-S12)"
                )
            self._created[after.id] = (after.kind, owner, name)

    def entry(self, one: RecordChange) -> ChangeNeeds:
        """Judge a name that comes, goes or changes."""
        before, after = _decoded(EntryRecord, one)
        if before is None:
            return _needs_only(ADD, "create")
        if after is None:
            is_rename = self._created.get(before.id, ("",))[0] == before.kind
            return _needs_only(ADD, "rename") if is_rename else _needs_only(DELETE, "delete")
        if (before.kind, before.id) != (after.kind, after.id):
            raise ForbiddenChange(f"the name {one.name.name} stands for something already")
        return _needs_only(ADD, "count changes of")

    def _has_name(self, kind: str, one_id: str, owner: str, name: str) -> None:
        if self._created.get(one_id) != (kind, owner, name):
            raise ForbiddenChange(f"{kind} {one_id} has no name of its own in this change")
        self._named.add(one_id)

    def _check_parents(self) -> None:
        """Refuse what is created in a namespace that is not there, lies in itself, or too deep."""
        born = self.judged.born
        for owner in (*born, *self.judged.streams.values()):
            index, deep = owner, 0
            while index in born:
                index, deep = born[index][0], deep + 1
                if deep > NAMESPACES_DEEP_MAX:
                    raise ForbiddenChange(
                        f"namespace {owner} would lie in itself, or below {NAMESPACES_DEEP_MAX} others"
                    )
            if index != ROOT_ID and len(self._levels(index)) + deep > NAMESPACES_DEEP_MAX:
                raise ForbiddenChange(
                    f"namespace {owner} would lie below {NAMESPACES_DEEP_MAX} others"
                )

    def _levels(self, namespace_id: str) -> tuple[tuple[str, NamespaceRecord], ...]:
        try:
            return self._lookup.levels(namespace_id)
        except StreamNotFound:
            raise ForbiddenChange(
                f"there is no namespace {namespace_id} that something could be created in"
            ) from None

    def _is_there(self, namespace_id: str) -> bool:
        try:
            return bool(self._lookup.levels(namespace_id))
        except StreamNotFound:
            return False

    def _check_time(self, created_us: int) -> None:
        if created_us > self._now_us + AHEAD_US_MAX:
            raise ForbiddenChange(
                "something is created now, and not in a day: are the clocks right?"
            )

    # --- namespaces and streams -----------------------------------------------------------------------------------

    def namespace(self, one: RecordChange) -> ChangeNeeds:
        """Judge a namespace's record."""
        before, after = _decoded(NamespaceRecord, one)
        owner = one.name.owner
        if after is None:
            return _needs_only(DELETE, "delete")
        if before is None and owner != ROOT_ID:
            self._has_name("namespace", owner, after.parent, after.name)
            self._check_time(after.created_us)
            self.judged.born[owner] = (after.parent, after.name)
            looser = self._placement_needs(after.parent, NO_PATCH, after.policy)
            return ChangeNeeds(needs=(Need(ADD, "create"), *looser))
        before = before or NamespaceRecord()
        if replace(before, name=after.name, policy=after.policy) != after:
            raise ForbiddenChange("a namespace stays below the one that it was created in")
        if before.name != after.name:
            self._has_name("namespace", owner, after.parent, after.name)
        above = "" if owner == ROOT_ID else after.parent
        needs = _policy_needs(before.policy, after.policy)
        looser = self._placement_needs(above, before.policy, after.policy)
        return ChangeNeeds(needs=(*needs, *looser) or (Need(ADD, "rename"),))

    def stream(self, one: RecordChange) -> ChangeNeeds:
        """Judge a stream's record."""
        before, after = _decoded(StreamRecord, one)
        owner = one.name.owner
        if after is None:
            return _needs_only(DELETE, "delete")
        if before is None:
            if after.deleting:
                raise ForbiddenChange("a stream is not created to be deleted")
            self._has_name("stream", owner, after.namespace, after.name)
            self._check_time(after.created_us)
            self.judged.streams[owner] = after.namespace
            looser = self._placement_needs(after.namespace, NO_PATCH, after.policy)
            return ChangeNeeds(needs=(Need(ADD, "create"), *looser))
        if replace(before, name=after.name, policy=after.policy, deleting=after.deleting) != after:
            raise ForbiddenChange("a stream stays in the namespace that it was created in")
        if before.deleting and not after.deleting:
            raise ForbiddenChange("a stream that is being deleted stays deleted")
        if before.name != after.name:
            self._has_name("stream", owner, after.namespace, after.name)
        needs = _policy_needs(before.policy, after.policy)
        needs += self._placement_needs(after.namespace, before.policy, after.policy)
        if after.deleting and not before.deleting:
            needs = (*needs, Need(DELETE, "delete"))
        return ChangeNeeds(needs=needs or (Need(ADD, "rename"),))

    def _placement_needs(
        self, above: str, before: PolicyPatch, after: PolicyPatch
    ) -> tuple[Need, ...]:
        """Return what a policy needs whose placement is looser than it was (INV-W10). `above`: a namespace, or ""."""
        if all(getattr(before, name) == getattr(after, name) for name in _PLACEMENT):
            return ()
        try:
            levels = self._lookup.levels(above) if above else ()
            inherited = [record.policy for _, record in levels]
            was = effective([*inherited, before]).rule()
        except (StreamNotFound, PolicyInvalid):
            pass  # what holds above is born just now, or nobody's to follow
        else:
            try:
                will_be = effective([*inherited, after]).rule()
            except PolicyInvalid as error:
                raise ForbiddenChange(str(error)) from None
            if keeps_to(will_be, was):
                return ()
        return (Need(ADMIN, "loosen the placement of"),)

    # --- counts ---------------------------------------------------------------------------------------------------

    def usage(self, one: RecordChange) -> ChangeNeeds:
        """Judge what is counted of a namespace."""
        before, after = _decoded(UsageRecord, one)
        if after is None:
            self._removed_usages.add(one.name.owner)
            return _needs_only(DELETE, "delete")
        if before is None and after == UsageRecord() and one.name.owner not in self._created:
            raise ForbiddenChange("what is counted of a namespace begins as it is created")
        before = before or UsageRecord()
        more = 1 if one.name.owner in self._entries else 0
        if not 0 <= after.changes - before.changes <= more:
            raise ForbiddenChange(
                "a namespace's count of changes rises by one, and only as one of its names changes"
            )
        self._usages[one.name.owner] = (before, after)
        return _needs_only(READ | ADD | DELETE | TRUNCATE | ADMIN, "count")

    def _check_counts(self) -> None:
        """Refuse counts that are not what the names of this transaction make of them (INV-S12)."""
        for owner, (before, after) in self._usages.items():
            if after.names - before.names != self._names[owner]:
                raise ForbiddenChange("a namespace's count of names is not that of its names")
        moved = {owner for owner, count in self._streams.items() if count}
        if len(moved) > 1:
            raise ForbiddenChange("streams come and go in one namespace at a time")
        for owner, count in self._names.items():
            if count and owner not in self._usages:
                raise ForbiddenChange("names come and go only with the count of their namespace")
        levels: dict[str, NamespaceRecord] = {}
        delta = 0
        for owner in moved:
            levels, delta = dict(self._levels(owner)), self._streams[owner]
        changed = {
            owner
            for owner, (before, after) in self._usages.items()
            if before.streams != after.streams
        }
        if changed != set(levels):
            raise ForbiddenChange(
                "streams are counted in their namespace and in all above it, and nowhere else"
            )
        for owner, record in levels.items():
            before, after = self._usages[owner]
            if after.streams - before.streams != delta:
                raise ForbiddenChange("a namespace's count of streams is not that of its streams")
            allowed = record.policy.streams_max or 0
            if delta > 0 and 0 < allowed < after.streams:
                label = record.name or "(the root)"
                raise QuotaExceeded(f"namespace {label} has {before.streams} streams of {allowed}")

    # --- what lies below a stream -----------------------------------------------------------------------------------

    def chain(self, one: RecordChange) -> ChangeNeeds:
        """Judge a stream's chain."""
        stream_id = one.name.owner
        after = None if one.after is None else _check_decodes(get_chain, one.after)
        try:
            before = None if one.before is None else get_chain(one.before)
        except StorageError:
            # Who may delete the stream may put an empty chain of a deleted one over what nobody can read.
            if after is not None and (
                after.owner != CONDEMNED or after.rows or after.pages or after.doomed
            ):
                raise
            return _needs_only(DELETE, "delete the chain of")
        added = new_pages(before, after)
        self._new_pages += len(added)
        if self._new_pages > NEW_PAGES_MAX:
            raise ForbiddenChange(
                f"one request moves rows to {NEW_PAGES_MAX} pages at most: send several"
            )
        pages = {page: self._lookup.page(stream_id, page) for page in added}
        for name in new_producer_pages(before, after):
            if not self._lookup.has_producers_page(stream_id, name):
                raise ForbiddenChange(f"page {name} of producers is not there: write it first")
        is_producers = after is not None and after.kind is StreamKind.PRODUCERS
        if is_producers and (before is None or before.kind is not StreamKind.PRODUCERS):
            self.judged.producers.add(stream_id)
        return change_of(stream_id, before, after, pages, self._now_us)

    def page(self, one: RecordChange) -> ChangeNeeds:
        """Judge a page of a chain."""
        if one.after is None:
            return _needs_only(DELETE, "delete pages of")
        if one.before is not None:
            raise ForbiddenChange("a page of a chain never changes (INV-S4)")
        _check_decodes(get_page, one.after)
        self.judged.pages.append((one.name.owner, number_of_page(one.path.rpartition("/")[2])))
        return _needs_only(ADD, "append to")

    def producers_page(self, one: RecordChange) -> ChangeNeeds:
        """Judge a page of a stream's table of producers."""
        page = one.name.owner, one.path.rpartition("/")[2]
        if one.after is None:
            self.judged.unnamed.append(page)
            return _needs_only(DELETE | ADD, "delete pages of producers of")
        if one.before is not None:
            raise ForbiddenChange("a page of producers never changes (INV-S29)")
        _check_decodes(get_table, one.after)
        self.judged.producers_pages.append(page)
        return _needs_only(ADD, "change the kind of")

    def service(self, one: RecordChange) -> ChangeNeeds:
        """Judge what a write service says of itself (INV-W11)."""
        if one.after is not None:
            name = one.name.name
            _check_decodes(lambda raw: get_service(name, VersionedRecord(raw, 0)), one.after)
        return _needs_only(SERVE | ADMIN, "announce")

    def coordination(self, change: RecordChange) -> ChangeNeeds:
        """Judge a lease, counter or configuration, or the count of a namespace's (INV-W12)."""
        is_count = change.name.kind is Kind.COORDINATION_NAMES
        take = self._coordination.take_names if is_count else self._coordination.take
        is_gone = _check_stored(take, change.name.owner, change.before, change.after)
        if is_gone:
            return _needs_only(DELETE if is_count else ADD | DELETE, "delete")
        return _needs_only(ADD, "count" if is_count else "hold or change")

    def cursor(self, one: RecordChange) -> ChangeNeeds:
        """Judge a cursor: it is its reader's."""
        if one.before is None:
            # what many requests at once add beyond the bound stays small
            if one.name.owner in self.judged.cursors:
                raise ForbiddenChange(
                    "one request creates one cursor of a stream at most: send several"
                )
            self.judged.cursors.add(one.name.owner)
        try:
            known = None if one.before is None else get_record(one.before)
        except StorageError:
            if one.after is not None:
                raise
            # what nobody can read anybody may delete
            return _needs_only(READ | ADD, "keep a cursor of")
        before: tuple[int, ...] = () if known is None else known.ledgers
        after: tuple[int, ...] = ()
        needs: tuple[Need, ...] = (Need(READ | ADD, "keep a cursor of"),)
        if one.after is not None:
            record = _check_decodes(get_record, one.after)
            self._check_used(record.state.time_us, record, known)
            after = record.ledgers
            needs = _cursor_needs(one, record.holder)
        fresh = tuple(ledger for ledger in after if ledger not in before)
        return ChangeNeeds(needs=needs, fresh=fresh)

    def _check_used(
        self,
        time_us: int,
        record: CursorRecord | PatternRecord,
        known: CursorRecord | PatternRecord | None,
    ) -> None:
        """Refuse times that lie ahead: a cursor that was used in the future never expires.

        `known`: the record of before; a wrong clock may have made the cursor, and that stays.
        """
        created_us = (
            0 if known is not None and known.created_us == record.created_us else record.created_us
        )
        if max(time_us, created_us, record.used_at_us) > self._now_us + AHEAD_US_MAX:
            raise ForbiddenChange("a cursor is used now, and not in a day: are the clocks right?")

    def pattern_cursor(self, one: RecordChange) -> ChangeNeeds:
        """Judge a cursor of a pattern: it is its reader's, too, and names no ledgers."""
        if one.before is None:
            if one.name.owner in self.judged.patterns:
                raise ForbiddenChange(
                    "one request creates one cursor of a namespace at most: send several"
                )
            self.judged.patterns.add(one.name.owner)
        if one.after is None:
            return _needs_only(READ | ADD, "keep")
        record = _check_decodes(get_pattern, one.after)
        known = None
        with suppress(StorageError):  # what nobody can read its holder may write anew
            known = None if one.before is None else get_pattern(one.before)
        self._check_used(record.time_us, record, known)
        return ChangeNeeds(needs=_cursor_needs(one, record.holder))

    def draft(self, one: RecordChange) -> ChangeNeeds:
        """Judge a draft: ledgers that are to be attached."""
        before = () if one.before is None else ledgers_named(one.before)
        after = () if one.after is None else _check_decodes(ledgers_named, one.after)
        fresh = tuple(ledger for ledger in after if ledger not in before)
        return ChangeNeeds(needs=(Need(ADD, "append to"),), fresh=fresh)


def _cursor_needs(record_change: RecordChange, holder: str) -> tuple[Need, ...]:
    """Return what a new or changed cursor of a stream or pattern needs."""
    if not holder.isprintable():
        raise ForbiddenChange("the holder of a cursor is printable text")
    needs: tuple[Need, ...] = (Need(READ | ADD, "keep a cursor of"),)
    if len(record_change.after or b"") > max(
        READERS_CURSOR_BYTES_MAX, len(record_change.before or b"")
    ):
        needs = (
            *needs,
            Need(ADD, f"keep a cursor of more than {READERS_CURSOR_BYTES_MAX} bytes of"),
        )
    return needs


def _other(judge: _Judge, record_change: RecordChange) -> ChangeNeeds:
    del judge
    if record_change.name.kind is Kind.MARK:
        raise ForbiddenChange("marks of missing copies are changed as marks, not as records")
    return _needs_only(ADMIN, "change")


_RULES = {
    Kind.ENTRY: _Judge.entry,
    Kind.NAMESPACE: _Judge.namespace,
    Kind.STREAM: _Judge.stream,
    Kind.USAGE: _Judge.usage,
    Kind.CHAIN: _Judge.chain,
    Kind.PAGE: _Judge.page,
    Kind.CURSOR: _Judge.cursor,
    Kind.PATTERN_CURSOR: _Judge.pattern_cursor,
    Kind.DRAFT: _Judge.draft,
    Kind.PRODUCERS_PAGE: _Judge.producers_page,
    Kind.SERVICE: _Judge.service,
    Kind.COORDINATION: _Judge.coordination,
    Kind.COORDINATION_NAMES: _Judge.coordination,
}


def _needs_only(rights: Right, operation: str) -> ChangeNeeds:
    return ChangeNeeds(needs=(Need(rights, operation),))


def _policy_needs(before: PolicyPatch, after: PolicyPatch) -> tuple[Need, ...]:
    """Return what a change of a policy needs: retention deletes, and quotas limit whoever would change them."""
    if before == after:
        return ()
    needs = [Need(ADD, "set the policy of")]
    if any(getattr(before, name) != getattr(after, name) for name in _RETENTION):
        needs.append(Need(TRUNCATE, "change the retention of"))
    if any(getattr(before, name) != getattr(after, name) for name in _QUOTAS):
        needs.append(Need(ADMIN, "change the quotas of"))
    return tuple(needs)


def _check_decodes(decode: Callable[[bytes], T], raw: bytes) -> T:
    return _check_stored(decode, raw)


def _check_stored(check: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    try:
        return check(*args, **options)
    except StorageError as error:  # it is the client's record
        raise ForbiddenChange(str(error)) from None


def _decoded(kind: type[Tree], record_change: RecordChange) -> tuple[Tree | None, Tree | None]:
    path, before, after = record_change.path, record_change.before, record_change.after
    decoded = None if before is None else get(kind, before, path)
    if after is None:
        return decoded, None
    return decoded, _check_decodes(lambda raw: get(kind, raw, path), after)
