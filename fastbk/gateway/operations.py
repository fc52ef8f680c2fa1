"""What clients do by a gateway: with ledgers, with records, and with what their watches compare.

Records are of streams, namespaces and cursors. All of it is blocking: it runs in a thread of the store's.

A change is decided by metadata as it is, and is made by compare-and-set on the versions that were read: what was judged
is what changes (INV-M1, INV-W1). What a change of records says of ledgers is compared with their metadata first
(INV-W3, INV-W4). A change is returned as its `Plan`, since the audit log gets it before it is made.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fastbk.coordination.store import check_level as check_coordination_level
from fastbk.errors import (
    ConfigError,
    MetadataConflict,
    NoSuchLedger,
    StorageError,
    StreamNotFound,
    Unauthorized,
)
from fastbk.gateway.access import KNOWN_AGAIN_S, KNOWN_S, Access, NamespaceTree
from fastbk.gateway.ledger_rules import needs_of_creation, needs_of_deletion, needs_of_update
from fastbk.gateway.record_names import Kind, RecordName, name_of
from fastbk.gateway.rules import (
    ADD,
    ADMIN,
    DELETE,
    NEW_PAGES_MAX,
    READ,
    TRUNCATE,
    WRITE,
    ForbiddenChange,
    Judgement,
    Need,
    RecordChange,
    judge,
)
from fastbk.meta.api import (
    BadIdentity,
    VersionedLedger,
    identity_text,
    one_ledger,
    service_text,
)
from fastbk.meta.format_level import check_level
from fastbk.meta.gateway import messages
from fastbk.meta.gateway.messages import (
    ABSENT,
    FORBIDDEN,
    LedgerPage,
    LedgerRow,
    RecordRow,
    bounded,
)
from fastbk.meta.records import (
    BadRecord,
    Change,
    VersionedRecord,
    check_folder,
    check_path,
    conflict,
    each_record,
)
from fastbk.model.ids import check_ledger_id
from fastbk.model.ledger import STREAM_KEY, LedgerMetadata
from fastbk.model.missing_replica import from_json, to_json
from fastbk.placement.rules import (
    ACK_COUNTS,
    DEFAULT_RULE,
    is_rule_stored,
    keeps_to,
    rule_of,
    rule_text,
)
from fastbk.stream.chain import PRODUCER_PAGES_MAX, StreamKind, get_chain
from fastbk.stream.cursor.store import check_count
from fastbk.stream.drafts import is_of_draft, ledgers_to_delete
from fastbk.stream.namespace.tree import StreamRecord, get
from fastbk.stream.opening import check_producers_level
from fastbk.stream.paths import (
    chain_path,
    cursors_path,
    drafts_path,
    number_of_page,
    pages_path,
    pattern_cursors_path,
    producers_path,
    stream_path,
)
from fastbk.stream.pattern.store import check_count as check_pattern_count
from fastbk.stream.pattern.store import check_level as check_pattern_level

if TYPE_CHECKING:
    from fastbk.gateway.access import Access, NamespaceTree
    from fastbk.gateway.rules import ChangeNeeds
    from fastbk.meta.api import LedgerRead, MetadataStore, Subject
    from fastbk.meta.gateway.messages import ReadStates
    from fastbk.model.ids import BookieId
    from fastbk.placement.config import PlacementConfig
    from fastbk.stream.chain import Chain

T = TypeVar("T")
V = TypeVar("V")
FOLDERS_AT_ONCE = 16
UNNAMED_PAGES_MAX = 16
"""Pages of a stream that were written for nothing, as others were faster, until a janitor deletes them."""
PRODUCERS_PAGES_MAX = 4 * PRODUCER_PAGES_MAX
"""Pages with a stream's table of producers: those that its chain names, and what failed changes of its kind left."""
LEDGERS_MAX = 5000
"""Ledgers that the records of one request name anew: of an attachment there are 2,048, and their draft."""
_AUDITED = ("create", "delete", "truncate", "seal", "rename", "change the", "set the", "loosen the")
"""How operations begin that the audit log gets."""
READ_AT_ONCE = 100
MARK_BYTES_MAX = 64 * 1024
"""Maximum bytes of what is added to a mark, and of a mark that more is added to."""
DELETE_TRIES_MAX = 10
Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that is allowed.

    Attributes:
        act: does it; returns the result.
        events: what the audit log gets before that; none: it is no change that is logged.
    """

    act: Callable[[], object]
    events: Sequence[Event] = field(default=())


def result_of(
    store: MetadataStore, tree: NamespaceTree, access: Access, request: messages.Request
) -> object:
    """Return the result of a request, or the plan of a change. Blocking. Raises Error."""
    match request:
        case messages.ReadRecords():
            return read_records(store, access, request)
        case messages.ChangeRecords():
            return plan_record_change(store, tree, access, request)
        case messages.ListChildren():
            return list_children(store, access, request)
        case messages.ReadStates():
            return read_states(store, access, request)
        case messages.DrawId():
            return draw_id(store, access)
        case messages.ListBookies():
            return list_bookies(store)
        case messages.ListIdentities():
            return list_identities(store, access)
        case messages.PulsarRacks():
            return (
                store.pulsar_racks()
            )  # everybody has to know where bookies are, as by the cluster's rules
        case messages.InstanceId():
            return store.instance_id()
        case messages.CreateLedger():
            return plan_ledger_creation(store, tree, access, request)
        case messages.ReadLedgers():
            return read_ledgers(store, access, request)
        case messages.UpdateLedger():
            return plan_ledger_update(store, tree, access, request)
        case messages.DeleteLedger():
            return plan_ledger_deletion(store, access, request)
        case messages.ListLedgers():
            return list_ledgers(store, access, request)
        case messages.UpdateMark():
            return update_mark(store, access, request)
    raise ConfigError(f"{type(request).__name__} is no request")


# --- ledgers --------------------------------------------------------------------------------------


def plan_ledger_creation(
    store: MetadataStore, tree: NamespaceTree, access: Access, request: messages.CreateLedger
) -> Plan:
    """Create a ledger. Raises Unauthorized, ConfigError; `act` raises MetadataConflict."""
    ledger_id, metadata = check_ledger_id(request.ledger_id), _metadata(request.metadata)
    needs = needs_of_creation(metadata)
    access.check_all(needs, f"ledger {ledger_id}")
    is_drawn = ledger_id <= store.highest_drawn_id()
    if not is_drawn:
        # Ids that are chosen may use up those that the counter is to give out (INV-W7).
        access.check(Need(ADMIN, "choose an id that was not drawn for"), f"ledger {ledger_id}")
    if not (metadata.is_placeholder and is_drawn):
        # A placeholder keeps an id that was drawn from being used, whoever drew it: he draws another.
        access.check_ledger(ledger_id, metadata)
    if not metadata.is_placeholder:
        check_new_placement(store, tree, ledger_id, metadata)

    def act() -> int:
        try:
            return store.create_ledger(ledger_id, metadata)
        except MetadataConflict:
            found = (
                _ledger_found(store, ledger_id)
                if request.is_repeat and metadata.creation_token
                else None
            )
            if found is None or found.metadata.creation_token != metadata.creation_token:
                raise
            return found.version

    return Plan(act, [_ledger_event("create", ledger_id, metadata)])


def plan_ledger_update(
    store: MetadataStore, tree: NamespaceTree, access: Access, request: messages.UpdateLedger
) -> Plan:
    """Replace a ledger's metadata. Raises Unauthorized, MetadataConflict, NoSuchLedger, ConfigError."""
    ledger_id, new = request.ledger_id, _metadata(request.metadata)
    old = store.read_ledger(ledger_id)
    access.check_ledger(ledger_id, old.metadata)
    if request.is_repeat and old.version == request.version + 1 and old.metadata == new:
        access.check(Need(WRITE, "change"), f"ledger {ledger_id}")
        return Plan(lambda: old.version)
    if old.version != request.version:
        raise MetadataConflict(
            f"ledger {ledger_id} was changed by somebody else: read it again",
            ledger_id=ledger_id,
            outcome="unknown" if request.is_repeat else "not_written",
        )
    needs = needs_of_update(old.metadata, new)
    access.check_all(needs, f"ledger {ledger_id}")
    access.check_ledger(ledger_id, new)
    if old.metadata.fragments != new.fragments:
        check_changed_placement(store, tree, ledger_id, old.metadata, new)
    events = [_ledger_event(need.operation, ledger_id, new) for need in needs]
    return Plan(lambda: store.update_ledger(ledger_id, new, request.version), events)


def plan_ledger_deletion(
    store: MetadataStore, access: Access, request: messages.DeleteLedger
) -> Plan:
    """Delete a ledger. Raises Unauthorized, MetadataConflict, NoSuchLedger."""
    ledger_id = check_ledger_id(request.ledger_id)
    found = _ledger_found(store, ledger_id)
    if found is None:
        access.check(Need(WRITE | DELETE, "delete"), f"ledger {ledger_id}")
        if request.is_repeat:
            return Plan(lambda: None)
        raise NoSuchLedger(f"there is no ledger {ledger_id}", ledger_id=ledger_id)
    _check_deletion(store, access, ledger_id, found.metadata)

    def act() -> None:
        current = found
        for _ in range(DELETE_TRIES_MAX):
            try:
                version = current.version if request.version is None else request.version
                store.delete_ledger(ledger_id, version)
            except MetadataConflict:
                if request.version is not None:
                    raise
                current = store.read_ledger(ledger_id)
                _check_deletion(store, access, ledger_id, current.metadata)
                continue
            return
        raise MetadataConflict(f"ledger {ledger_id} changes again and again", ledger_id=ledger_id)

    return Plan(act, [_ledger_event("delete", ledger_id, found.metadata)])


def read_ledgers(
    store: MetadataStore, access: Access, request: messages.ReadLedgers
) -> list[LedgerRow | None]:
    """Return ledgers' metadata, as many as an answer has room for. Raises Unauthorized."""
    access.check(Need(READ, "read"), "ledgers")
    rows: list[LedgerRow | None] = []
    sizes: list[int] = []
    for offset in range(0, len(request.ledger_ids), READ_AT_ONCE):
        access.check_time()
        some = [
            check_ledger_id(ledger_id)
            for ledger_id in request.ledger_ids[offset : offset + READ_AT_ONCE]
        ]
        for ledger_id, ledger in zip(some, store.read_ledgers(some), strict=True):
            row = None if ledger is None else _ledger_row(access, ledger_id, ledger)
            rows.append(row)
            sizes.append(0 if row is None else len(row.metadata))
        if sum(sizes) > messages.ANSWER_BYTES_MAX:
            break
    return bounded(rows, sizes)


def list_ledgers(store: MetadataStore, access: Access, request: messages.ListLedgers) -> LedgerPage:
    """Return a page of ids. A limited client gets those that it may work with."""
    access.check(Need(READ, "list"), "ledgers")
    count_max = max(1, min(request.count_max, messages.KEYS_MAX))
    ids = store.list_ledgers(request.after, count_max)
    next_after = ids[-1] if len(ids) == count_max else None
    if access.is_limited:
        read = zip(ids, store.read_ledgers(ids), strict=True)
        ids = [
            one
            for one, found in read
            if isinstance(found, VersionedLedger)
            and access.allows_namespace(found.metadata.namespace)
        ]
    return LedgerPage(tuple(ids), next_after)


def update_mark(store: MetadataStore, access: Access, request: messages.UpdateMark) -> bytes:
    """Change the mark of a ledger that misses copies; return it. Raises Unauthorized, NoSuchLedger."""
    ledger_id = request.ledger_id
    access.check(Need(WRITE, "mark missing copies of"), f"ledger {ledger_id}")
    found = _ledger_found(store, ledger_id)
    if found is not None:
        access.check_ledger(ledger_id, found.metadata)
    elif access.is_limited:
        # Marks are made before the ledger is created (INV-E4), and forgotten behind its deletion.
        access.check(Need(ADD, "mark missing copies of"), f"ledger {ledger_id}")
    try:
        add, remove = from_json(request.add), from_json(request.remove)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the mark of ledger {ledger_id} is none: {error}") from None
    if (
        add
        and len(request.add) + len(to_json(store.marks.read(ledger_id).missing)) > MARK_BYTES_MAX
    ):
        raise ForbiddenChange(
            f"the mark of ledger {ledger_id} has more than {MARK_BYTES_MAX} bytes: repair it first"
        )
    return to_json(store.marks.update(ledger_id, add, remove).missing)


def _check_deletion(
    store: MetadataStore, access: Access, ledger_id: int, metadata: LedgerMetadata
) -> None:
    if metadata.is_placeholder:
        return access.check_all(needs_of_deletion(metadata), f"ledger {ledger_id}")
    access.check_ledger(ledger_id, metadata)
    needs = needs_of_deletion(metadata)
    # What a chain or a draft names for deletion it may name (INV-W4), and the janitor deletes it otherwise.
    if not all(access.has(need) for need in needs) and _is_pending(
        store, access, ledger_id, metadata
    ):
        needs = (Need(ADD, "delete"),)
    return access.check_all(needs, f"ledger {ledger_id}")


def _is_pending(
    store: MetadataStore, access: Access, ledger_id: int, metadata: LedgerMetadata
) -> bool:
    """Return whether its stream names a ledger for deletion: by its chain, or by a draft that was given up."""
    stream_id = metadata.custom.get(STREAM_KEY, b"").decode(errors="replace")
    try:
        path, folder = check_path(chain_path(stream_id)), check_folder(drafts_path(stream_id))
    except ConfigError:
        return False
    (record,) = store.records.read([path])
    if record is not None and ledger_id in get_chain(record.value).doomed:
        return True
    if not is_of_draft(metadata.custom):
        return False
    drafts = [f"{folder}/{name}" for name in store.records.children(folder)]
    for one in each_record(store.records, drafts):
        access.check_time()
        if one is not None and ledger_id in ledgers_to_delete(one.value):
            return True
    return False


def _ledger_row(access: Access, ledger_id: int, found: VersionedLedger | BadRecord) -> LedgerRow:
    if isinstance(found, BadRecord):
        # Its bytes may hold a password, and its namespace is not known: the client learns that nobody can read it.
        return LedgerRow(b"", found.version)
    access.check_ledger(ledger_id, found.metadata)
    metadata = found.metadata
    if not access.sees_passwords:
        metadata = replace(metadata, password=None)
    return LedgerRow(metadata.to_bytes(), found.version)


def _ledger_found(store: MetadataStore, ledger_id: int) -> VersionedLedger | None:
    (found,) = store.read_ledgers([ledger_id])
    return None if found is None else one_ledger(ledger_id, found)


def _metadata(raw: bytes) -> LedgerMetadata:
    try:
        return LedgerMetadata.from_bytes(raw)
    except StorageError as error:
        raise ConfigError(f"what is to be stored is no ledger's metadata: {error}") from None


def _ledger_event(operation: str, ledger_id: int, metadata: LedgerMetadata) -> Event:
    event: dict[str, Any] = {"operation": operation, "ledger": ledger_id}
    if metadata.namespace:
        event["namespace"] = metadata.namespace
    if stream := metadata.custom.get(STREAM_KEY):
        event["stream"] = stream.decode(errors="replace")[:100]
    return event


# --- placement --------------------------------------------------------------------------------------
#
# INV-W9: a ledger is created with a rule that is no looser than those of its cluster, namespace and stream (INV-P3).
# One that is enforced is stored with it, and its ensembles keep to it, then and after each change, as far as metadata
# says where bookies are.
#
# What is not judged: where bookies are of which nobody says it, or that are away and not in the table, as the gateway
# asks no bookie; minimums that are not enforced, as it cannot know which bookies a client reached; and changes of
# ledgers that store no rule, as those are then the cluster's to correct.


def check_new_placement(
    store: MetadataStore, tree: NamespaceTree, ledger_id: int, metadata: LedgerMetadata
) -> None:
    """Refuse a ledger with a rule that is too loose, or bookies that break an enforced one. Raises ForbiddenChange."""
    for age_s_max in (KNOWN_S, KNOWN_AGAIN_S):
        cluster = tree.cluster_rule(store, age_s_max)
        rule = rule_of(metadata.custom, cluster)
        looser = next(
            (
                f"{whose}, {rule_text(above)}"
                for whose, above in _rules_above(tree, cluster, metadata)
                if not keeps_to(rule, above)
            ),
            None,
        )
        if looser is None:
            break
    else:
        raise ForbiddenChange(
            f"ledger {ledger_id}: its rule of placement, {rule_text(rule)}, is looser than that of {looser}: what a"
            " call wants narrows a rule (INV-P3)"
        )
    is_binding = rule.enforce or any(getattr(rule, name) > 1 for name in ACK_COUNTS)
    if not (is_binding or rule.group_is_hard):
        return
    if not is_rule_stored(metadata.custom):
        raise ForbiddenChange(
            f"ledger {ledger_id} stores no rule of placement, and the cluster's binds ({rule_text(rule)}):"
            " clients from version 0.4 on store it"
        )
    _check_ensemble(store, tree, ledger_id, metadata, rule, metadata.fragments[-1].ensemble)


def check_changed_placement(
    store: MetadataStore,
    tree: NamespaceTree,
    ledger_id: int,
    old: LedgerMetadata,
    new: LedgerMetadata,
) -> None:
    """Refuse new ensembles that break the rule that the ledger stores, if it is enforced. Raises ForbiddenChange."""
    if not is_rule_stored(old.custom):
        return
    rule = rule_of(old.custom, DEFAULT_RULE)
    if not (rule.enforce or rule.group_is_hard):
        return
    known = {fragment.ensemble for fragment in old.fragments}
    for ensemble in {fragment.ensemble for fragment in new.fragments} - known:
        _check_ensemble(store, tree, ledger_id, new, rule, ensemble)


def _rules_above(
    tree: NamespaceTree, cluster: PlacementConfig, metadata: LedgerMetadata
) -> Iterator[tuple[str, PlacementConfig]]:
    """Yield the rules that a new ledger's must keep to, and whose they are."""
    yield "the cluster", cluster
    stream_id = metadata.custom.get(STREAM_KEY, b"").decode(errors="replace")
    namespace = tree.namespace_at(metadata.namespace) if metadata.namespace else None
    policy = tree.policy_of_stream(stream_id) if stream_id else None
    if policy is not None:
        yield f"stream {stream_id[:100]}", policy.rule()
        # A ledger of a namespace that is not its stream's is of both.
        if namespace is None or namespace == tree.namespace_of(stream_id):
            return
    if namespace is not None:
        yield f"namespace {metadata.namespace[:100]}", tree.policy_of_namespace(namespace).rule()


def _check_ensemble(
    store: MetadataStore,
    tree: NamespaceTree,
    ledger_id: int,
    metadata: LedgerMetadata,
    rule: PlacementConfig,
    ensemble: tuple[BookieId, ...],
) -> None:
    reasons = tree.enforced_faults(store, ensemble, metadata.write_quorum, rule)
    if not reasons:
        return
    raise ForbiddenChange(
        f"ledger {ledger_id}: its bookies break its rule of placement ({rule_text(rule)}), which is enforced:"
        f" {'; '.join(reasons)[:500]}"
    )


# --- records --------------------------------------------------------------------------------------


def read_records(
    store: MetadataStore, access: Access, request: messages.ReadRecords
) -> list[RecordRow | None]:
    """Return records, as many as an answer has room for. Raises Unauthorized."""
    for path in request.paths:
        access.check_reading(check_path(path), name_of(path))
    access.check_time()
    found = store.records.read_some(request.paths, messages.ANSWER_BYTES_MAX)
    rows = [None if one is None else RecordRow(one.value, one.version) for one in found]
    return bounded(rows, [0 if one is None else len(one.value) for one in found])


def list_children(
    store: MetadataStore, access: Access, request: messages.ListChildren
) -> list[list[str]]:
    """Return names below paths, as many lists as an answer has room for. Raises Unauthorized."""
    names = [name_of(check_folder(path)) for path in request.paths]
    for path, name in zip(request.paths, names, strict=True):
        access.check_reading(path, name)
    lists: list[list[str]] = []
    sizes: list[int] = []
    for offset in range(0, len(request.paths), FOLDERS_AT_ONCE):
        access.check_time()
        children = store.records.children_of(request.paths[offset : offset + FOLDERS_AT_ONCE])
        for name, below in zip(names[offset:], children, strict=False):
            visible = (
                access.visible_names(name.owner, below) if name.kind is Kind.NAMES_FOLDER else below
            )
            lists.append(visible)
            sizes.append(sum(map(len, visible)))
        if sum(sizes) > messages.ANSWER_BYTES_MAX:
            break
    return bounded(lists, sizes)


# --- changes --------------------------------------------------------------------------------------------------------


def plan_record_change(
    store: MetadataStore, tree: NamespaceTree, access: Access, request: messages.ChangeRecords
) -> Plan:
    """Change records, all or none. Raises Unauthorized, MetadataConflict, ConfigError, QuotaExceeded."""
    changes = [row.change() for row in request.changes]
    for change in changes:
        change.check()
    if len({change.path for change in changes}) != len(changes):
        raise ConfigError("a record is changed once by one request")
    held = store.records.read([change.path for change in changes])
    if request.is_repeat and all(map(_is_done, changes, held)):
        # It was judged when it was done; that it was done is what a reader of the records sees, too.
        for change in changes:
            access.check_reading(change.path, name_of(change.path))
        return Plan(lambda: [0 if one is None else one.version for one in held])
    for change, record in zip(changes, held, strict=True):
        if (record and record.version) != change.version:
            failed = conflict(change.path)
            failed.outcome = "unknown" if request.is_repeat else "not_written"
            raise failed
    records = [
        RecordChange(
            change.path,
            name_of(change.path),
            None if record is None else record.value,
            change.value,
        )
        for change, record in zip(changes, held, strict=True)
    ]
    judged = judge(records, tree, time.time_ns() // 1000)
    events = _Check(store, tree, access, judged).run()
    return Plan(lambda: store.records.change(changes), events)


def _is_done(change: Change, record: VersionedRecord | None) -> bool:
    """Return whether a record is as a change would have left it."""
    if change.value is None:
        return record is None
    return record is not None and record.value == change.value and record.version != change.version


class _Check:
    """Compares what a transaction needs with the client's rights, and what it says of ledgers with metadata."""

    def __init__(
        self, store: MetadataStore, tree: NamespaceTree, access: Access, judged: Judgement
    ) -> None:
        self._store = store
        self._tree = tree
        self._access = access
        self._judged = judged
        self._named = 0

    def run(self) -> list[Event]:
        """Return what the audit log gets. Raises Unauthorized, QuotaExceeded."""
        if self._access.is_limited:
            self._check_namespaces()
        events: list[Event] = []
        for name, change in self._judged.changes:
            what = name.label
            self._access.check_all(change.needs, what)
            self._check_ledgers(name, change, what)
            events += [
                {"operation": need.operation, "record": name.kind.value, **self._label(name)}
                for need in change.needs
                if need.operation.startswith(_AUDITED)
            ]
        for stream_id in self._judged.cursors:
            self._check_new_cursor(stream_id)
        for namespace_id in self._judged.patterns:
            self._check_new_pattern_cursor(namespace_id)
        for namespace_id in self._judged.coordinated:
            check_coordination_level(self._path_there(namespace_id), check_level(self._store))
        for stream_id in {stream_id for stream_id, _ in self._judged.pages}:
            self._check_new_pages(stream_id)
        for stream_id in self._judged.producers:
            check_producers_level(stream_id, check_level(self._store))
        for stream_id in {stream_id for stream_id, _ in self._judged.producers_pages}:
            self._check_new_producers_pages(stream_id)
        for stream_id, page in self._judged.unnamed:
            self._check_unnamed(stream_id, page)
        return events

    def _label(self, name: RecordName) -> dict[str, str]:
        key = "stream" if name.is_of_stream else "namespace"
        return {key: name.owner, **({"name": name.name} if name.name else {})}

    # --- namespaces -----------------------------------------------------------------------------------------------

    def _check_namespaces(self) -> None:
        access, judged = self._access, self._judged
        for namespace_id in judged.namespaces:
            path = self._path(namespace_id)
            access.check_namespace(path, f"what is in {path or 'the root namespace'}")
        for owner, below in judged.names:
            path = self._below(owner, below)
            access.check_namespace(path, f"namespace {path}")
        for namespace_id in judged.counted:
            path = self._path(namespace_id)
            if not access.is_on_the_way(path):
                access.check_namespace(path, f"what is counted of namespace {path}")
        for name, _ in judged.changes:
            if name.is_of_stream:
                self._check_stream(name)
            elif not name.is_of_namespace:
                access.check_namespace("", f"{name.kind.value}s of the cluster")

    def _check_stream(self, name: RecordName) -> None:
        namespace_id = self._judged.streams.get(name.owner)
        try:
            namespace_id = namespace_id or self._tree.namespace_of(name.owner)
        except StreamNotFound:
            raise ForbiddenChange(
                f"there is no stream {name.owner} that this could be a part of"
            ) from None
        path = self._path(namespace_id)
        self._access.check_namespace(path, f"stream {name.owner}")

    def _path(self, namespace_id: str) -> str:
        born = self._judged.born.get(namespace_id)
        return self._tree.path(namespace_id) if born is None else self._below(*born)

    def _below(self, owner: str, name: str) -> str:
        above = self._path(owner)
        return f"{above}/{name}" if above else name

    # --- cursors --------------------------------------------------------------------------------------------------

    def _check_new_cursor(self, stream_id: str) -> None:
        """Refuse a cursor of a stream that is not there, or has as many as it may have (INV-B1)."""
        self._access.check_time()
        where = stream_path(stream_id)
        (raw,) = self._store.records.read([where])
        record = None if raw is None else get(StreamRecord, raw.value, where)
        if record is None or record.deleting:
            raise ForbiddenChange(f"there is no stream {stream_id} that this could be a cursor of")
        names = self._store.records.children(cursors_path(stream_id))
        check_count(self._below(record.namespace, record.name), len(names))

    def _check_new_pattern_cursor(self, namespace_id: str) -> None:
        """Refuse a cursor of a namespace that is not there, or has as many as it may have (INV-B1); and INV-U4."""
        path = self._path_there(namespace_id)
        names = self._store.records.children(pattern_cursors_path(namespace_id))
        check_pattern_count(path, len(names))
        check_pattern_level(path, check_level(self._store))

    def _path_there(self, namespace_id: str) -> str:
        self._access.check_time()
        try:
            return self._path(namespace_id)
        except StreamNotFound:
            raise ForbiddenChange(
                f"there is no namespace {namespace_id} that this could be a cursor, lease or counter of"
            ) from None

    def _check_new_pages(self, stream_id: str) -> None:
        """Refuse pages that no change of the chain can name next, and more than a few that none names (INV-B1)."""
        self._access.check_time()
        where, folder = chain_path(stream_id), pages_path(stream_id)
        (raw,) = self._store.records.read([where])
        if raw is None:
            raise ForbiddenChange(f"there is no stream {stream_id} that this could be a page of")
        chain = get_chain(raw.value)
        numbers = [number for one, number in self._judged.pages if one == stream_id]
        if not all(
            chain.next_page <= number < chain.next_page + NEW_PAGES_MAX for number in numbers
        ):
            raise ForbiddenChange(
                f"the next page of stream {stream_id} has number {chain.next_page}"
            )
        unnamed = len(self._store.records.children(folder)) - len(chain.pages) + len(numbers)
        if unnamed > NEW_PAGES_MAX + UNNAMED_PAGES_MAX:
            raise ForbiddenChange(
                f"stream {stream_id} has {unnamed} pages that its chain does not name: a janitor deletes those"
            )

    def _check_new_producers_pages(self, stream_id: str) -> None:
        """Refuse pages that no change of the chain's kind can name now, and more than a few (INV-B1)."""
        self._access.check_time()
        chain = self._chain(stream_id)
        names = [name for one, name in self._judged.producers_pages if one == stream_id]
        if chain is None or chain.kind is not StreamKind.PRODUCERS:
            raise ForbiddenChange(
                f"stream {stream_id} has no producers, whose table a page could have"
            )
        if any(number_of_page(name) != chain.epoch for name in names):
            raise ForbiddenChange(f"the pages of stream {stream_id} have number {chain.epoch} now")
        count = len(self._store.records.children(producers_path(stream_id))) + len(names)
        if count > PRODUCERS_PAGES_MAX:
            raise ForbiddenChange(f"stream {stream_id} has {count} pages of producers: delete some")

    def _check_unnamed(self, stream_id: str, page: str) -> None:
        """Let whoever may not delete a stream delete only pages of producers that its chain does not name."""
        self._access.check_time()
        need = Need(DELETE, "delete pages of producers of")
        if not self._access.has(need):
            chain = self._chain(stream_id)
            if chain is not None and page in chain.producer_pages:
                self._access.check(need, f"stream {stream_id}")

    def _chain(self, stream_id: str) -> Chain | None:
        (raw,) = self._store.records.read([chain_path(stream_id)])
        return None if raw is None else get_chain(raw.value)

    # --- ledgers --------------------------------------------------------------------------------------------------

    def _check_ledgers(self, name: RecordName, change: ChangeNeeds, what: str) -> None:
        ended = [ledger_id for ledger_id, _ in change.ended]
        ids = {
            *change.fresh,
            *change.attached,
            *change.deleted,
            *change.forgotten,
            *ended,
            *change.unwritten,
        }
        if not ids:
            return
        self._named += len(ids)
        if self._named > LEDGERS_MAX:
            raise ForbiddenChange(f"one request names {LEDGERS_MAX} ledgers at most: send several")
        listed = sorted(ids)
        found = dict(zip(listed, self._store.read_ledgers(listed), strict=True))
        if change.fresh and max(change.fresh) > self._store.highest_drawn_id():
            raise ForbiddenChange(
                f"ledger id {max(change.fresh)} was not drawn: a record names ids that were"
            )
        for ledger_id in change.fresh:
            if found[ledger_id] is not None:
                raise ForbiddenChange(
                    f"ledger {ledger_id} is there already: a record names a ledger before it exists"
                )
        for ledger_id in change.forgotten:
            if found[ledger_id] is not None:
                raise ForbiddenChange(
                    f"ledger {ledger_id} is there still: delete it before {what} names it no more"
                )
        for ledger_id in (*change.attached, *change.deleted):
            ledger = found[ledger_id]
            if ledger is None and ledger_id in change.attached:
                raise ForbiddenChange(f"ledger {ledger_id} is not there: it cannot be a segment")
            if ledger is not None and not _is_of_stream(ledger, name.owner):
                raise ForbiddenChange(
                    f"ledger {ledger_id} is not one of stream {name.owner} ({STREAM_KEY})"
                )
        if reason := _shortened(change, found):
            self._access.check(
                Need(TRUNCATE, f"end a segment before its ledger's end ({reason}) in"), what
            )


def _is_of_stream(ledger: VersionedLedger | BadRecord, stream_id: str) -> bool:
    if isinstance(ledger, BadRecord):
        return False
    return (
        ledger.metadata.custom.get(STREAM_KEY) == stream_id.encode()
        or ledger.metadata.is_placeholder
    )


def _shortened(change: ChangeNeeds, found: dict[int, LedgerRead]) -> str:
    """Return which ledger has more than its chain is to say, or may get more; "": none."""
    for ledger_id in (*(one for one, _ in (*change.ended, *change.sizes)), *change.unwritten):
        if isinstance(found.get(ledger_id), BadRecord):
            return f"the metadata of ledger {ledger_id} cannot be read"
    readable = {one: ledger for one, ledger in found.items() if isinstance(ledger, VersionedLedger)}
    sizes = dict(change.sizes) if change.is_of_producers else {}
    for ledger_id, last in change.ended:
        ledger = readable.get(ledger_id)
        if ledger is None:
            if last >= 0:
                return f"ledger {ledger_id} is not there"
        elif not ledger.metadata.is_closed:
            # What an open ledger has only bookies know. Its writer may withdraw it, as it may close it anywhere.
            if last >= 0:
                return f"ledger {ledger_id} is not closed"
        elif ledger.metadata.last_entry_id != last and (
            last > ledger.metadata.last_entry_id or sizes.get(ledger_id) != ledger.metadata.length
        ):
            return f"ledger {ledger_id} ends at entry {ledger.metadata.last_entry_id}, not {last}"
    for ledger_id, size_bytes in change.sizes:
        ledger = readable.get(ledger_id)
        if ledger is not None and size_bytes > ledger.metadata.length:
            return f"ledger {ledger_id} has {ledger.metadata.length} bytes, not {size_bytes}"
    for ledger_id in change.unwritten:
        ledger = readable.get(ledger_id)
        if ledger is not None and ledger.metadata.is_closed and ledger.metadata.last_entry_id >= 0:
            return f"ledger {ledger_id} has entries"
    return ""


def draw_id(store: MetadataStore, access: Access) -> int:
    """Return a new ledger id. Raises Unauthorized."""
    access.check(Need(ADD, "draw"), "an id of a ledger")
    return store.next_ledger_id()


def list_bookies(store: MetadataStore) -> Sequence[messages.BookieRow]:
    """Return the live bookies."""
    return [
        messages.BookieRow(service_text(bookie.service), bookie.writable)
        for bookie in store.list_bookies()
    ]


def list_identities(store: MetadataStore, access: Access) -> Sequence[messages.IdentityRow]:
    """Return all bookies that ever were. Raises Unauthorized."""
    access.check(Need(READ | WRITE, "list"), "bookies that are away")
    return [
        messages.IdentityRow(identity.bookie_id, "", identity.bad.reason)
        if isinstance(identity, BadIdentity)
        else messages.IdentityRow(identity.bookie_id, identity_text(identity), "")
        for identity in store.list_identities()
    ]


# --- what watches compare ---------------------------------------------------------------------------------------------


def read_states(store: MetadataStore, access: Access, request: ReadStates) -> list[str]:
    """Return the states of a request's subjects: versions, and digests of names and of the bookies.

    Several subjects of a kind are read by one call, as far as their contents have room in memory. Raises ConfigError:
    one is none.

    One that may not be watched any more does not end the watches of others: it is FORBIDDEN.
    """
    found: dict[Subject, str] = dict.fromkeys(request.subjects, FORBIDDEN)
    records: list[str] = []
    folders: list[tuple[str, RecordName]] = []
    for subject in found:
        access.check_time()
        if isinstance(subject, str):
            name = name_of(check_path(subject[1:]))
            if _is_allowed(partial(access.check_reading, subject[1:], name)):
                if subject[0] == "=":
                    records.append(subject[1:])
                else:
                    folders.append((subject[1:], name))
    if None in found:
        found[None] = _digest(
            service_text(bookie.service) + str(bookie.writable) for bookie in store.list_bookies()
        )
    ledger_ids = [one for one in found if isinstance(one, int)]
    for ledger_id, ledger in _read(access, ledger_ids, store.read_ledgers, READ_AT_ONCE):
        found[ledger_id] = _ledger_state(access, ledger_id, ledger)
    for path, record in zip(records, each_record(store.records, records), strict=True):
        access.check_time()
        found[f"={path}"] = ABSENT if record is None else str(record.version)
    listed = _read(
        access, [path for path, _ in folders], store.records.children_of, FOLDERS_AT_ONCE
    )
    for (path, name), (_, names) in zip(folders, listed, strict=True):
        visible = (
            access.visible_names(name.owner, names) if name.kind is Kind.NAMES_FOLDER else names
        )
        found[f"/{path}"] = _digest(visible)
    return [found[subject] for subject in request.subjects]


def _read(
    access: Access, keys: Sequence[T], read: Callable[[Sequence[T]], Sequence[V]], at_once: int
) -> Iterator[tuple[T, V]]:
    """Yield keys and what some calls of `read` return for them."""
    for offset in range(0, len(keys), at_once):
        access.check_time()
        yield from zip(
            keys[offset : offset + at_once], read(keys[offset : offset + at_once]), strict=True
        )


def _ledger_state(access: Access, ledger_id: int, ledger: LedgerRead) -> str:
    if ledger is None:
        return ABSENT
    if isinstance(ledger, BadRecord):
        return FORBIDDEN if access.is_limited else str(ledger.version)
    is_allowed = _is_allowed(partial(access.check_ledger, ledger_id, ledger.metadata))
    return str(ledger.version) if is_allowed else FORBIDDEN


def _is_allowed(check: Callable[[], None]) -> bool:
    try:
        check()
    except Unauthorized:
        return False
    return True


def _digest(texts: Iterable[str]) -> str:
    joined = "\n".join(texts)
    return hashlib.blake2b(joined.encode(), digest_size=16).hexdigest() if joined else ABSENT
