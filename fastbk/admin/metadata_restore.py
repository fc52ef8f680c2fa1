"""Restores metadata from an archive, into an empty store.

INV-M13: a restore writes into a store that is empty, or that the same archive has begun to fill, and to no other. It
puts metadata on hold first, and the hold is not confirmed before everything is there. So a restore that was cut off is
run again, and nobody acts on half of it.

An archive may have records that need a higher format level than it says itself, as where that record was damaged when
the backup was made. The level is raised to what they need (INV-U4): no bookie runs, and janitors are on hold.

The order is the reverse of that of dependence: ledgers, then the records that name them, then bookies' identities,
without which no bookie starts. An item that nobody can read is named, and all else is written (INV-M17): whoever
restores decides, before the hold is confirmed, whether a rebuild from the bookies brings it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from fastbk.admin.metadata_archive import (
    Bookie,
    Bookies,
    Ledger,
    Ledgers,
    Record,
    Records,
    Summary,
    check_archive,
    read_archive,
    storable,
)
from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.formats import LEVEL_FIRST, PATTERN_CURSOR, level_of
from fastbk.meta.api import BookieIdentity, DirectoryIdentity, GroupingStore
from fastbk.meta.format_level import LEVEL_PATH, decode, raise_level, read_or_first
from fastbk.meta.hold import new_hold, place_hold
from fastbk.meta.records import BadRecord, Change
from fastbk.meta.rollback_mark import RESERVE_IDS, Mark, is_counted, raise_mark
from fastbk.meta.uri import is_zookeeper, parse_zookeeper
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.stream.paths import CURSORS
from fastbk.units import format_utc_ms

if TYPE_CHECKING:
    from pathlib import Path

    from fastbk.meta.api import MetadataStore

RESTORE_PATH = "cluster/restore"
AT_ONCE = 16
"""Calls of a store that has no groups."""
CHANGE_BYTES_MAX = 500_000
CHANGES_MAX = 200
T = TypeVar("T")


class RestoreRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which archive a store was filled from."""

    archive_id: str
    is_complete: bool


@dataclass
class Restored:
    """What a restore wrote.

    `left_out`: what the backup could not have, and what it has and nobody can read or the store does not take, with
    the reasons.
    """

    archive_id: str
    hold_id: str = ""
    ledgers: int = 0
    records: int = 0
    bookies: int = 0
    deleted: int = 0
    """Ledgers that were deleted while the backup was made: not restored."""
    highest_id: int = -1
    was_complete: bool = False
    """It had been restored before, and nothing was written."""
    left_out: list[str] = field(default_factory=list)
    level_raised: int = 0
    """The format level that its records needed, and that it did not say; 0: it said it."""


def raise_if_half_restored(store: MetadataStore) -> None:
    """Raise MetadataConflict if a restore of the store was cut off."""
    found = _restore_record(store)
    if found is not None and not found[0].is_complete:
        raise MetadataConflict(
            f"a restore of this metadata was cut off (backup {found[0].archive_id}): run the same `fastbk metadata"
            " restore` again"
        )


def restore(store: MetadataStore, path: Path) -> Restored:
    """Fill an empty store from an archive; return what was written.

    Raises StorageError (damage), ConfigError (another cluster's), MetadataConflict (bookies run, or the store is not
    empty), MetadataUnavailable.
    """
    summary = check_archive(path)
    out = Restored(summary.archive_id, left_out=[*summary.end.left_out, *summary.not_restorable])
    if summary.head.instance_id != store.instance_id():
        raise ConfigError(
            f"the backup is of the cluster {summary.head.instance_id}, the store is of {store.instance_id()}: restore"
            " it where no cluster is yet; the new one gets the old id"
        )
    found = _restore_record(store)
    if found is not None and found[0] == RestoreRecord(
        archive_id=summary.archive_id, is_complete=True
    ):
        out.was_complete = True
        return out
    if alive := store.list_bookies():
        names = ", ".join(one.service.bookie_id for one in alive)
        raise MetadataConflict(f"bookies run: {names}. Stop all of them")
    if found is None:
        _check_empty(store)
    elif found[0].archive_id != summary.archive_id:
        raise MetadataConflict(
            f"this metadata was restored from another backup, {found[0].archive_id}"
        )
    # First of all: a store whose ids cannot be moved stays empty.
    _move_ids(store, summary, out)
    taken = format_utc_ms(summary.head.began_ms)
    # Nobody deletes what half a store does not list.
    out.hold_id = place_hold(
        store, new_hold(f"metadata was restored from a backup of {taken}")
    ).hold_id
    begun = RestoreRecord(archive_id=summary.archive_id, is_complete=False)
    version = _put_restore_record(store, begun, None if found is None else found[1])
    for frame in read_archive(path):
        if isinstance(frame, Ledgers):
            _write_ledgers(store, storable(frame.items), summary.deleted, out)
    level = LEVEL_FIRST
    for frame in read_archive(path):
        if isinstance(frame, Records):
            items = storable(frame.items)
            _write_records(store, items, out)
            level = max([level, *map(_level_needed, items)])
    if read_or_first(store).level < level:
        out.level_raised = raise_level(store, level).level
    _write_switches(store, summary)
    for frame in read_archive(path):
        if isinstance(frame, Bookies):
            _write_bookies(store, storable(frame.items), out)
    _put_restore_record(store, msgspec.structs.replace(begun, is_complete=True), version)
    return out


def _restore_record(store: MetadataStore) -> tuple[RestoreRecord, int] | None:
    (found,) = store.records.read([RESTORE_PATH])
    if found is None:
        return None
    try:
        return msgspec.json.decode(found.value, type=RestoreRecord), found.version
    except (ValueError, RecursionError) as error:
        raise StorageError(f"the record {RESTORE_PATH} in metadata is damaged: {error}") from error


def _put_restore_record(store: MetadataStore, record: RestoreRecord, version: int | None) -> int:
    (version,) = store.records.change([Change(RESTORE_PATH, msgspec.json.encode(record), version)])
    return version


def _check_empty(store: MetadataStore) -> None:
    there = [f"ledger {one}" for one in store.list_ledgers(count_max=1)]
    there += [f"bookie {one.bookie_id}" for one in store.list_identities()]
    there += [f"records {one}" for one in store.records.children("") if one != "cluster"]
    if there:
        raise MetadataConflict(
            f"the store is not empty: {', '.join(there[:5])}. Restore where no cluster is, or into one that `fastbk"
            " metadata format` has emptied"
        )


def _move_ids(store: MetadataStore, summary: Summary, out: Restored) -> None:
    """Have no id be drawn that any ledger had, also of those made after the backup (INV-M3).

    A mark that is far above the counter is of an earlier version, and of an id that somebody chose.
    """
    mark, drawn = summary.head.mark, summary.end.highest_drawn_id
    marked = [one for one in (mark.highest_id, mark.floor) if is_counted(one, drawn)]
    highest = max(drawn, *marked, -1)
    if highest < 0:
        return
    out.highest_id = highest + RESERVE_IDS
    store.move_ids_above(LedgerId(out.highest_id))
    raise_mark(store, Mark(age=mark.age, highest_id=mark.highest_id, floor=out.highest_id))


def _for_all(store: MetadataStore, call: Callable[[T], object], items: Iterable[T]) -> None:
    """Call for each item: in one commit where the store has such, else some at a time."""
    if isinstance(store, GroupingStore):
        with store.group():
            for one in items:
                call(one)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(call, items):
            pass


def _write_ledgers(
    store: MetadataStore, items: list[Ledger], deleted: set[int], out: Restored
) -> None:
    there = store.read_ledgers([LedgerId(one.ledger_id) for one in items])
    due: list[Ledger] = []
    for one, found in zip(items, there, strict=True):
        if one.ledger_id in deleted:
            out.deleted += 1
        elif found is None:
            due.append(one)
        elif isinstance(found, BadRecord) or found.metadata.to_bytes() != one.metadata:
            raise _is_other(f"ledger {one.ledger_id}")

    def create(one: Ledger) -> None:
        store.create_ledger(LedgerId(one.ledger_id), LedgerMetadata.from_bytes(one.metadata))

    _for_all(store, create, due)
    out.ledgers += len(due)


def _write_records(store: MetadataStore, items: list[Record], out: Restored) -> None:
    there = store.records.read([one.path for one in items])
    changes: list[Change] = []
    size_bytes = 0
    for one, found in zip(items, there, strict=True):
        if found is not None:
            if (
                found.value != one.value and one.path != LEVEL_PATH
            ):  # it may have been raised before the cut
                raise _is_other(f"record {one.path}")
            continue
        if changes and (
            len(changes) == CHANGES_MAX or size_bytes + len(one.value) > CHANGE_BYTES_MAX
        ):
            store.records.change(changes)
            changes, size_bytes = [], 0
        changes.append(Change(one.path, one.value))
        size_bytes += len(one.value)
        out.records += 1
    if changes:
        store.records.change(changes)


def _level_needed(record: Record) -> int:
    """Return the format level that a cluster with this record has at least."""
    if record.path.startswith(f"{CURSORS}/"):
        return level_of(PATTERN_CURSOR)
    try:
        return decode(record.value).level if record.path == LEVEL_PATH else LEVEL_FIRST
    except StorageError:
        return LEVEL_FIRST


def _write_switches(store: MetadataStore, summary: Summary) -> None:
    head, coordination = summary.head, store.coordination
    if not head.is_enabled:
        coordination.disable()
    if head.lost_bookie_delay_s is not None:
        # One that is none was stored before writes were checked.
        coordination.set_lost_bookie_delay(max(head.lost_bookie_delay_s, 0))


def _write_bookies(store: MetadataStore, items: list[Bookie], out: Restored) -> None:
    for one in items:
        if one.cookie:
            _write_cookie(store, one, out)
            continue
        places = tuple(DirectoryIdentity(*each) for each in one.directories)
        identity = BookieIdentity(BookieId(one.bookie_id), one.incarnation, places, one.starts)
        found = store.read_identity(identity.bookie_id)
        if found is None:
            store.write_identity(identity, None)
            out.bookies += 1
        elif found.identity != identity:
            raise _is_other(f"bookie {one.bookie_id}")


def _write_cookie(store: MetadataStore, one: Bookie, out: Restored) -> None:
    """Write the cookie of one of Apache's bookies, which are in ZooKeeper only."""
    if not is_zookeeper(store.uri):
        out.left_out.append(f"bookie {one.bookie_id} is one of Apache's, which need ZooKeeper")
        return
    from fastbk.meta.zookeeper.admin import Cookies

    with closing(Cookies(parse_zookeeper(store.uri))) as cookies:
        found = cookies.read(BookieId(one.bookie_id))
        if found is None:
            cookies.create(BookieId(one.bookie_id), one.cookie)
            out.bookies += 1
        elif found != one.cookie:
            raise _is_other(f"the cookie of {one.bookie_id}")


def _is_other(what: str) -> MetadataConflict:
    return MetadataConflict(
        f"{what} is in the store already, and not as the backup has it: somebody uses the store. End everybody who"
        " does, empty it, and restore again"
    )
