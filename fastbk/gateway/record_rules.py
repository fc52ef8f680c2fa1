"""Which rights a change of records needs: decided by all records of one transaction together. Pure.

A stream is created, renamed or deleted by several records at once: its name, its record, and what is counted of the
namespaces above it. So no record is judged alone: a name without its record, or a stream that is not counted, is
refused.

Decision 163.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec.structs import replace

from fastbk.errors import QuotaExceeded, StorageError, StreamNotFound
from fastbk.gateway import chain_rules
from fastbk.gateway.chain_rules import Change
from fastbk.gateway.record_names import Kind, RecordName
from fastbk.gateway.rules import ADD, ADMIN, DELETE, READ, TRUNCATE, ForbiddenChange, Need
from fastbk.meta.records import VALUE_BYTES_MAX
from fastbk.stream.chain import CONDEMNED, PageRef, Segment, get_chain, get_page
from fastbk.stream.cursor.state import CursorRecord, get_record
from fastbk.stream.drafts import ledgers_named
from fastbk.stream.namespace.tree import (
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
from fastbk.stream.positions import AHEAD_US_MAX

if TYPE_CHECKING:
    from fastbk.security.rights import Right
    from fastbk.stream.policy import PolicyPatch

T = TypeVar("T")

_RETENTION = ("retention_age_s", "retention_bytes", "hard_age_s", "hard_bytes", "hold_for_cursors")
_QUOTAS = ("streams_max", "bytes_max")
CHAINS_MAX = 16
"""Chains that one request changes. Each takes a thousand times longer to judge than to send."""
NEW_PAGES_MAX = 64
"""Pages that one request moves rows to."""
NAMESPACES_DEEP_MAX = 100
"""Namespaces in one another."""
READERS_CURSOR_BYTES_MAX = 64 * 1024
"""Of a cursor, for clients that may only read: some 1,400 ranges behind its mark."""
USAGE_BYTES_MAX = 1000
"""Of a namespace's counts: everybody who may create something below it writes them, and all others read them."""
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
}
"""Of a record of each kind (INV-B1), above what clients write. Of others VALUE_BYTES_MAX: only `admin` changes them."""


class Lookup(Protocol):
    """What else metadata says."""

    def levels(self, namespace_id: str) -> tuple[tuple[str, NamespaceRecord], ...]:
        """Return a namespace and all above it, from the root down, by id. Raises Error."""

    def page(self, stream_id: str, page: PageRef) -> tuple[Segment, ...]:
        """Return the rows of a page. Raises Error."""


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
        cursors: ids of streams that get a cursor more: they have to be there, with fewer than a stream may have.
        pages: ids of streams and numbers of their new pages: the next ones of the chain, of which few are not named.
    """

    changes: list[tuple[RecordName, Change]] = field(default_factory=list)
    namespaces: set[str] = field(default_factory=set)
    names: set[tuple[str, str]] = field(default_factory=set)
    counted: set[str] = field(default_factory=set)
    born: dict[str, tuple[str, str]] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    cursors: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    pages: list[tuple[str, int]] = field(default_factory=list)


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
        if sum(one.name.kind is Kind.CHAIN for one in records) > CHAINS_MAX:
            raise ForbiddenChange(f"one request changes {CHAINS_MAX} chains at most: send several")
        for one in records:
            if one.after is not None and len(one.after) > BYTES_MAX.get(
                one.name.kind, VALUE_BYTES_MAX
            ):
                limit = BYTES_MAX[one.name.kind]
                raise ForbiddenChange(
                    f"{one.name.label}: {len(one.after):,} bytes, of {limit:,} that one may have"
                )
            if one.name.kind is Kind.ENTRY:
                self._collect_entry(one)
        for one in records:
            needs = _RULES.get(one.name.kind, _other)(self, one)
            self.judged.changes.append((one.name, needs))
            if one.name.kind is Kind.USAGE:
                self.judged.counted.add(one.name.owner)
            elif one.name.is_of_namespace and one.name.kind is not Kind.ENTRY:
                self.judged.namespaces.add(one.name.owner)
        if unnamed := set(self._created) - self._named:
            raise ForbiddenChange(f"{min(unnamed)} gets a name and no record that has it")
        self._check_parents()
        self._check_counts()

    # --- names --------------------------------------------------------------------------------------------------

    def _collect_entry(self, one: RecordChange) -> None:
        before, after = _decoded(EntryRecord, one)
        owner, name = one.name.owner, one.name.name
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

    def entry(self, one: RecordChange) -> Change:
        """Judge a name that comes, goes or changes."""
        before, after = _decoded(EntryRecord, one)
        if before is None:
            return _change(ADD, "create")
        if after is None:
            is_rename = self._created.get(before.id, ("",))[0] == before.kind
            return _change(ADD, "rename") if is_rename else _change(DELETE, "delete")
        if (before.kind, before.id) != (after.kind, after.id):
            raise ForbiddenChange(f"the name {one.name.name} stands for something already")
        return _change(ADD, "count changes of")

    def _has_name(self, kind: str, one_id: str, owner: str, name: str) -> None:
        if self._created.get(one_id) != (kind, owner, name):
            raise ForbiddenChange(f"{kind} {one_id} has no name of its own in this change")
        self._named.add(one_id)

    def _check_parents(self) -> None:
        """Refuse what is created in a namespace that is not there, lies in itself, or too deep."""
        born = self.judged.born
        for owner in (*born, *self.judged.streams.values()):
            at, deep = owner, 0
            while at in born:
                at, deep = born[at][0], deep + 1
                if deep > NAMESPACES_DEEP_MAX:
                    raise ForbiddenChange(
                        f"namespace {owner} would lie in itself, or below {NAMESPACES_DEEP_MAX} others"
                    )
            if at != ROOT_ID and len(self._levels(at)) + deep > NAMESPACES_DEEP_MAX:
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

    def _check_time(self, created_us: int) -> None:
        if created_us > self._now_us + AHEAD_US_MAX:
            raise ForbiddenChange(
                "something is created now, and not in a day: are the clocks right?"
            )

    # --- namespaces and streams -----------------------------------------------------------------------------------

    def namespace(self, one: RecordChange) -> Change:
        """Judge a namespace's record."""
        before, after = _decoded(NamespaceRecord, one)
        owner = one.name.owner
        if after is None:
            return _change(DELETE, "delete")
        if before is None and owner != ROOT_ID:
            self._has_name("namespace", owner, after.parent, after.name)
            self._check_time(after.created_us)
            self.judged.born[owner] = (after.parent, after.name)
            return _change(ADD, "create")
        before = before or NamespaceRecord()
        if replace(before, name=after.name, policy=after.policy) != after:
            raise ForbiddenChange("a namespace stays below the one that it was created in")
        if before.name != after.name:
            self._has_name("namespace", owner, after.parent, after.name)
        return Change(needs=_policy_needs(before.policy, after.policy) or (Need(ADD, "rename"),))

    def stream(self, one: RecordChange) -> Change:
        """Judge a stream's record."""
        before, after = _decoded(StreamRecord, one)
        owner = one.name.owner
        if after is None:
            return _change(DELETE, "delete")
        if before is None:
            if after.deleting:
                raise ForbiddenChange("a stream is not created to be deleted")
            self._has_name("stream", owner, after.namespace, after.name)
            self._check_time(after.created_us)
            self.judged.streams[owner] = after.namespace
            return _change(ADD, "create")
        if replace(before, name=after.name, policy=after.policy, deleting=after.deleting) != after:
            raise ForbiddenChange("a stream stays in the namespace that it was created in")
        if before.deleting and not after.deleting:
            raise ForbiddenChange("a stream that is being deleted stays deleted")
        if before.name != after.name:
            self._has_name("stream", owner, after.namespace, after.name)
        needs = _policy_needs(before.policy, after.policy)
        if after.deleting and not before.deleting:
            needs = (*needs, Need(DELETE, "delete"))
        return Change(needs=needs or (Need(ADD, "rename"),))

    # --- counts ---------------------------------------------------------------------------------------------------

    def usage(self, one: RecordChange) -> Change:
        """Judge what is counted of a namespace."""
        before, after = _decoded(UsageRecord, one)
        if after is None:
            self._removed_usages.add(one.name.owner)
            return _change(DELETE, "delete")
        if before is None and after == UsageRecord() and one.name.owner not in self._created:
            raise ForbiddenChange("what is counted of a namespace begins as it is created")
        before = before or UsageRecord()
        more = 1 if one.name.owner in self._entries else 0
        if not 0 <= after.changes - before.changes <= more:
            raise ForbiddenChange(
                "a namespace's count of changes rises by one, and only as one of its names changes"
            )
        self._usages[one.name.owner] = (before, after)
        return _change(READ | ADD | DELETE | TRUNCATE | ADMIN, "count")

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

    def chain(self, one: RecordChange) -> Change:
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
            return _change(DELETE, "delete the chain of")
        added = chain_rules.new_pages(before, after)
        self._new_pages += len(added)
        if self._new_pages > NEW_PAGES_MAX:
            raise ForbiddenChange(
                f"one request moves rows to {NEW_PAGES_MAX} pages at most: send several"
            )
        pages = {page: self._lookup.page(stream_id, page) for page in added}
        return chain_rules.change_of(stream_id, before, after, pages, self._now_us)

    def page(self, one: RecordChange) -> Change:
        """Judge a page of a chain."""
        if one.after is None:
            return _change(DELETE, "delete pages of")
        if one.before is not None:
            raise ForbiddenChange("a page of a chain never changes (INV-S4)")
        _check_decodes(get_page, one.after)
        self.judged.pages.append((one.name.owner, number_of_page(one.path.rpartition("/")[2])))
        return _change(ADD, "append to")

    def cursor(self, one: RecordChange) -> Change:
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
            return _change(READ | ADD, "keep a cursor of")
        before: tuple[int, ...] = () if known is None else known.ledgers
        after: tuple[int, ...] = ()
        needs: tuple[Need, ...] = (Need(READ | ADD, "keep a cursor of"),)
        if one.after is not None:
            record = _check_decodes(get_record, one.after)
            self._check_used(record.state.time_us, record, known)
            after = record.ledgers
            needs = _cursor_needs(one, record.holder)
        fresh = tuple(ledger for ledger in after if ledger not in before)
        return Change(needs=needs, fresh=fresh)

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

    def pattern_cursor(self, one: RecordChange) -> Change:
        """Judge a cursor of a pattern: it is its reader's, too, and names no ledgers."""
        if one.before is None:
            if one.name.owner in self.judged.patterns:
                raise ForbiddenChange(
                    "one request creates one cursor of a namespace at most: send several"
                )
            self.judged.patterns.add(one.name.owner)
        if one.after is None:
            return _change(READ | ADD, "keep")
        record = _check_decodes(get_pattern, one.after)
        known = None
        with suppress(StorageError):  # what nobody can read its holder may write anew
            known = None if one.before is None else get_pattern(one.before)
        self._check_used(record.time_us, record, known)
        return Change(needs=_cursor_needs(one, record.holder))

    def draft(self, one: RecordChange) -> Change:
        """Judge a draft: ledgers that are to be attached."""
        before = () if one.before is None else ledgers_named(one.before)
        after = () if one.after is None else _check_decodes(ledgers_named, one.after)
        fresh = tuple(ledger for ledger in after if ledger not in before)
        return Change(needs=(Need(ADD, "append to"),), fresh=fresh)


def _cursor_needs(one: RecordChange, holder: str) -> tuple[Need, ...]:
    """Return what a new or changed cursor of a stream or pattern needs."""
    if not holder.isprintable():
        raise ForbiddenChange("the holder of a cursor is printable text")
    needs: tuple[Need, ...] = (Need(READ | ADD, "keep a cursor of"),)
    if len(one.after or b"") > max(READERS_CURSOR_BYTES_MAX, len(one.before or b"")):
        needs = (
            *needs,
            Need(ADD, f"keep a cursor of more than {READERS_CURSOR_BYTES_MAX} bytes of"),
        )
    return needs


def _other(judge: _Judge, one: RecordChange) -> Change:
    del judge
    if one.name.kind is Kind.MARK:
        raise ForbiddenChange("marks of missing copies are changed as marks, not as records")
    return _change(ADMIN, "change")


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
}


def _change(rights: Right, operation: str) -> Change:
    return Change(needs=(Need(rights, operation),))


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
    try:
        return decode(raw)
    except StorageError as error:  # it is the client's record
        raise ForbiddenChange(str(error)) from None


def _decoded(kind: type[Tree], one: RecordChange) -> tuple[Tree | None, Tree | None]:
    before = None if one.before is None else get(kind, one.before, one.path)
    if one.after is None:
        return before, None
    return before, _check_decodes(lambda raw: get(kind, raw, one.path), one.after)
