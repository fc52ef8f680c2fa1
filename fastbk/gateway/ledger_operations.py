"""What clients do with ledgers by a gateway. Blocking: in a thread of the store's.

Each change is decided by the metadata as it is and is made by compare-and-set on the version that was read: what was
judged is what changes (INV-M1, INV-W1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fastbk.errors import ConfigError, MetadataConflict, NoSuchLedger, StorageError
from fastbk.gateway.ledger_rules import (
    needs_of_creation,
    needs_of_deletion,
    needs_of_update,
)
from fastbk.gateway.rules import ADD, ADMIN, DELETE, READ, WRITE, ForbiddenChange, Need
from fastbk.meta.api import VersionedLedger, one_ledger
from fastbk.meta.gateway import messages
from fastbk.meta.gateway.messages import LedgerPage, LedgerRow, bounded
from fastbk.meta.records import BadRecord, check_folder, check_path, each_record
from fastbk.model.ids import check_ledger_id
from fastbk.model.ledger import STREAM_KEY, LedgerMetadata
from fastbk.model.missing_replica import from_json, to_json
from fastbk.stream.chain import get_chain
from fastbk.stream.drafts import is_of_draft, ledgers_to_delete
from fastbk.stream.paths import chain_path, drafts_path

if TYPE_CHECKING:
    from fastbk.gateway.access import Access
    from fastbk.meta.api import MetadataStore

READ_AT_ONCE = 100
MARK_BYTES_MAX = 64 * 1024
"""Of what is added to a mark, and of a mark that more is added to."""
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


def plan_creation(store: MetadataStore, access: Access, request: messages.CreateLedger) -> Plan:
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

    def act() -> int:
        try:
            return store.create_ledger(ledger_id, metadata)
        except MetadataConflict:
            found = (
                _found(store, ledger_id) if request.is_repeat and metadata.creation_token else None
            )
            if found is None or found.metadata.creation_token != metadata.creation_token:
                raise
            return found.version

    return Plan(act, [_event("create", ledger_id, metadata)])


def plan_update(store: MetadataStore, access: Access, request: messages.UpdateLedger) -> Plan:
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
    events = [_event(need.operation, ledger_id, new) for need in needs]
    return Plan(lambda: store.update_ledger(ledger_id, new, request.version), events)


def plan_deletion(store: MetadataStore, access: Access, request: messages.DeleteLedger) -> Plan:
    """Delete a ledger. Raises Unauthorized, MetadataConflict, NoSuchLedger."""
    ledger_id = check_ledger_id(request.ledger_id)
    found = _found(store, ledger_id)
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

    return Plan(act, [_event("delete", ledger_id, found.metadata)])


def read(
    store: MetadataStore, access: Access, request: messages.ReadLedgers
) -> list[LedgerRow | None]:
    """Return ledgers' metadata, as many as an answer has room for. Raises Unauthorized."""
    access.check(Need(READ, "read"), "ledgers")
    rows: list[LedgerRow | None] = []
    sizes: list[int] = []
    for at in range(0, len(request.ledger_ids), READ_AT_ONCE):
        access.check_time()
        some = [check_ledger_id(one) for one in request.ledger_ids[at : at + READ_AT_ONCE]]
        for ledger_id, found in zip(some, store.read_ledgers(some), strict=True):
            row = None if found is None else _row(access, ledger_id, found)
            rows.append(row)
            sizes.append(0 if row is None else len(row.metadata))
        if sum(sizes) > messages.ANSWER_BYTES_MAX:
            break
    return bounded(rows, sizes)


def page(store: MetadataStore, access: Access, request: messages.ListLedgers) -> LedgerPage:
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


def mark(store: MetadataStore, access: Access, request: messages.UpdateMark) -> bytes:
    """Change the mark of a ledger that misses copies; return it. Raises Unauthorized, NoSuchLedger."""
    ledger_id = request.ledger_id
    access.check(Need(WRITE, "mark missing copies of"), f"ledger {ledger_id}")
    found = _found(store, ledger_id)
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


def _row(access: Access, ledger_id: int, found: VersionedLedger | BadRecord) -> LedgerRow:
    if isinstance(found, BadRecord):
        # Its bytes may hold a password, and its namespace is not known: the client learns that nobody can read it.
        return LedgerRow(b"", found.version)
    access.check_ledger(ledger_id, found.metadata)
    metadata = found.metadata
    if not access.sees_passwords:
        metadata = replace(metadata, password=None)
    return LedgerRow(metadata.to_bytes(), found.version)


def _found(store: MetadataStore, ledger_id: int) -> VersionedLedger | None:
    (found,) = store.read_ledgers([ledger_id])
    return None if found is None else one_ledger(ledger_id, found)


def _metadata(raw: bytes) -> LedgerMetadata:
    try:
        return LedgerMetadata.from_bytes(raw)
    except StorageError as error:
        raise ConfigError(f"what is to be stored is no ledger's metadata: {error}") from None


def _event(operation: str, ledger_id: int, metadata: LedgerMetadata) -> Event:
    event: dict[str, Any] = {"operation": operation, "ledger": ledger_id}
    if metadata.namespace:
        event["namespace"] = metadata.namespace
    if stream := metadata.custom.get(STREAM_KEY):
        event["stream"] = stream.decode(errors="replace")[:100]
    return event
