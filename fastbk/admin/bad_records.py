"""All records of metadata that nobody can read, and the removal of one that an operator names (INV-M17).

Everything else passes them over: listings, pages, gc, AutoRecovery, janitor, backup. So they are found by the same
calls, which name what they pass over, and by decoding each record as whoever reads it does.

Decision 145.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.coordination.records import get_names
from fastbk.coordination.records import get_record as get_record_of_coordination
from fastbk.errors import ConfigError, Error, MetadataConflict
from fastbk.meta import format_level, health_records, placement_record, rollback
from fastbk.meta.api import BadIdentity, Check, all_ledgers
from fastbk.meta.records import (
    READ_AT_ONCE,
    BadRecord,
    Change,
    VersionedRecord,
    bad_record,
    check_path,
    collected_bad_records,
    each_record,
)
from fastbk.meta.replica_marks import FOLDER as MARKS
from fastbk.meta.replica_marks import delete_ledger
from fastbk.stream.chain import get_chain, get_page
from fastbk.stream.cursor.state import get_record
from fastbk.stream.drafts import ledgers_named
from fastbk.stream.kind import get_table
from fastbk.stream.namespace.tree import (
    EntryRecord,
    NamespaceRecord,
    StoredRecord,
    StreamRecord,
    UsageRecord,
    get,
)
from fastbk.stream.object_records import ObjectCounts, ObjectRecord, UploadRecord
from fastbk.stream.object_records import get as get_object
from fastbk.stream.paths import kind_at
from fastbk.stream.pattern.store import get_pattern
from fastbk.stream.services import get_service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastbk.meta.api import MetadataStore
    from fastbk.meta.records import RecordStore

LEDGER, IDENTITY = "ledger ", "identity of bookie "
_DECODERS: dict[str, Callable[[str, bytes], object]] = {
    "namespace": lambda path, raw: get(NamespaceRecord, raw, path),
    "entry": lambda path, raw: get(EntryRecord, raw, path),
    "usage": lambda path, raw: get(UsageRecord, raw, path),
    "stored": lambda path, raw: get(StoredRecord, raw, path),
    "stream": lambda path, raw: get(StreamRecord, raw, path),
    "chain": lambda _, raw: get_chain(raw),
    "page": lambda _, raw: get_page(raw),
    "page of producers": lambda _, raw: get_table(raw),
    "write service": lambda path, raw: get_service(
        path.rpartition("/")[2], VersionedRecord(raw, 0)
    ),
    "cursor": lambda _, raw: get_record(raw),
    "pattern cursor": lambda _, raw: get_pattern(raw),
    "coordination": lambda _, raw: get_record_of_coordination(raw),
    "count of coordination": lambda _, raw: get_names(raw),
    "draft": lambda _, raw: ledgers_named(raw),
    "counts of objects": lambda path, raw: get_object(ObjectCounts, raw, path),
    "object": lambda path, raw: get_object(ObjectRecord, raw, path),
    "upload": lambda path, raw: get_object(UploadRecord, raw, path),
    rollback.HOLD_PATH: lambda _, raw: rollback.decode_hold(raw),
    format_level.LEVEL_PATH: lambda _, raw: format_level.decode(raw),
    rollback.MARK_PATH: lambda _, raw: rollback.decode_mark(raw),
    health_records.BACKUP_PATH: lambda _, raw: health_records.decode_backup(raw),
    health_records.PLACEMENT_FAULTS_PATH: lambda _, raw: health_records.decode_placement_faults(
        raw
    ),
    placement_record.PLACEMENT_PATH: lambda _, raw: placement_record.rules_or_default(raw),
}
"""By kind, or by path. Marks and AutoRecovery's coordination are read by their own calls."""


def find_bad_records(store: MetadataStore) -> list[BadRecord]:
    """Return all of them, each once, by name. Raises MetadataUnavailable."""
    with collected_bad_records() as found:
        for _ in all_ledgers(store):
            pass
        store.list_bookies()
        store.list_identities()
        placement_record.read_rules(store)
        for _ in store.marks.list():
            pass
        coordination = store.coordination
        coordination.auditor()
        coordination.lost_bookie_delay_s()
        for check in Check:
            coordination.check_time_ms(check)
        for _ in coordination.locks():
            pass
        for path, record in _records(store.records):
            _check(path, record)
    return sorted({one.path: one for one in found}.values(), key=lambda one: one.path)


def remove_bad_record(store: MetadataStore, name: str) -> None:
    """Remove a bad record, as `find_bad_records` names it.

    A ledger goes with what bookies hold of it. Raises ConfigError for one that can be read or is not there,
    MetadataOnHold, MetadataConflict, MetadataUnavailable.
    """
    bad = next((record for record in find_bad_records(store) if record.path == name), None)
    if bad is None:
        raise ConfigError(
            f"{name!r} is no record that cannot be read: `fastbk metadata bad-records` lists those"
        )
    if name.startswith(LEDGER):
        delete_ledger(store, int(name.removeprefix(LEDGER)), bad.version)
        return
    if name.startswith(IDENTITY):
        identity = next(
            one for one in store.list_identities() if one.bookie_id == name.removeprefix(IDENTITY)
        )
        assert isinstance(identity, BadIdentity)
        if any(bookie.service.bookie_id == identity.bookie_id for bookie in store.list_bookies()):
            raise MetadataConflict(f"bookie {identity.bookie_id} is running: stop it first")
        store.delete_identity(identity.bookie_id, identity.bad.version)
        return
    try:
        (found,) = store.records.read([check_path(name)])
    except ConfigError:
        found = None
    if found is None:
        raise ConfigError(
            f"{name} is not one of fastbk's records: it goes with the session that made it, or the tool that did (in"
            " ZooKeeper `deleteall` of zkCli.sh)"
        )
    store.records.change([Change(name, None, found.version)])


def _records(records: RecordStore) -> Iterator[tuple[str, VersionedRecord]]:
    """Yield all records but for marks, by path."""
    waiting = [child for child in records.children("") if child != MARKS]
    while waiting:
        some, waiting = waiting[:READ_AT_ONCE], waiting[READ_AT_ONCE:]
        for path, record in zip(some, each_record(records, some), strict=True):
            if record is not None:
                yield path, record
        below = records.children_of(some)
        waiting = [
            f"{path}/{name}" for path, names in zip(some, below, strict=True) for name in names
        ] + waiting


def _check(path: str, record: VersionedRecord) -> None:
    decode = _DECODERS.get(kind_at(path) or path)
    if decode is None:
        return
    try:
        decode(path, record.value)
    except Error as error:
        bad_record(path, error, record.version)
