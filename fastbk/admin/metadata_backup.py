"""Takes a backup of a cluster's metadata while the cluster runs, and compares one with a store.

The order is that of dependence. Records (namespaces, streams and their chains, cursors) are read before ledgers, for a
chain names ledgers that are there already. What changed meanwhile is found last, by comparing the archive with the
store, so that deletions are noticed of everything that was read before.

INV-M11: a backup holds every ledger that one of its records names, but for those deleted meanwhile, which it lists, and
those whose metadata nobody can read, which it names (INV-M17).

What passes is not in a backup: registrations, locks, elections, marks of missing copies (the auditor makes them anew)
and AutoRecovery's positions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import fastbk
from fastbk.admin.metadata_archive import (
    KEPT,
    LEFT_OUT_MAX,
    PASSING,
    ArchiveWriter,
    Bookie,
    Bookies,
    Change,
    End,
    Head,
    Ledger,
    Ledgers,
    Record,
    Records,
    check_archive,
    full_name,
    items_of,
    reason_against,
)
from fastbk.admin.metadata_restore import raise_if_half_restored
from fastbk.durable_files import replaced
from fastbk.meta.api import BadIdentity, VersionedLedger, all_ledgers
from fastbk.meta.records import READ_AT_ONCE, bad_record, each_record
from fastbk.meta.rollback_mark import read_mark
from fastbk.meta.uri import is_zookeeper, parse_zookeeper

if TYPE_CHECKING:
    from fastbk.admin.metadata_archive import Summary
    from fastbk.meta.api import BookieIdentity, MetadataStore
    from fastbk.meta.records import RecordStore

T = TypeVar("T", Record, Ledger, Bookie)


def backup(store: MetadataStore, path: Path) -> Summary:
    """Write an archive to `path`, which only its owner may read, for metadata holds passwords.

    Raises MetadataUnavailable, StorageError, OSError; `path` is then as it was.
    """
    with replaced(path) as draft:
        draft.chmod(0o600)
        with draft.open("wb") as file:
            writer = ArchiveWriter(file)
            writer.write(_head(store))
            left_out = _LeftOut()
            for record in left_out.without(backed_up_records(store.records)):
                writer.add(record, len(record.value) + len(record.path))
            for ledger in left_out.without(_ledgers(store)):
                writer.add(ledger, len(ledger.metadata))
            for bookie in left_out.without(_bookies(store)):
                writer.add(bookie, 100)
            writer.end_page()
            file.flush()
            for change in differences(draft, store, file.tell()):
                writer.add(change, len(change.name))
            writer.end_page()
            writer.write(_end(store, writer, left_out.names))
        return check_archive(draft)


class _LeftOut:
    """What a backup cannot have, since nobody can read it, or no restore could write it: it stops nothing else."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def without(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the other items, and note these."""
        for one in items:
            reason = _reason_against(one)
            if not reason:
                yield one
            elif len(self.names) < LEFT_OUT_MAX:
                self.names.append(str(bad_record(full_name(one), reason)))


def differences(
    path: Path, store: MetadataStore, size_bytes: int | None = None
) -> Iterator[Change]:
    """Yield what a store has else than an archive, or its first part. Raises StorageError, MetadataUnavailable.

    It holds a page of each in memory.
    """
    records, ledgers, bookies = (
        items_of(path, Records, Record, size_bytes),
        items_of(path, Ledgers, Ledger, size_bytes),
        items_of(path, Bookies, Bookie, size_bytes),
    )
    now = backed_up_records(store.records)
    yield from _compared(records, now, lambda one: tuple(one.path.split("/")))
    yield from _compared(ledgers, _ledgers(store), lambda one: one.ledger_id)
    yield from _compared(bookies, _bookies(store), lambda one: one.bookie_id)


def backed_up_records(records: RecordStore) -> Iterator[Record]:
    """Yield the records that a backup has: each before those below it, names in order."""
    for name in records.children(""):
        if name not in PASSING:
            yield from _walk(records, [name])
            continue
        kept = [path for path in KEPT if path.startswith(f"{name}/")]
        for path, found in zip(kept, records.read(kept), strict=True):
            if found is not None:
                yield Record(path, found.value, found.version)


def _walk(records: RecordStore, paths: list[str]) -> Iterator[Record]:
    for at in range(0, len(paths), READ_AT_ONCE):
        some = paths[at : at + READ_AT_ONCE]
        below = records.children_of(some)
        for path, record, names in zip(some, each_record(records, some), below, strict=True):
            if record is not None:
                yield Record(path, record.value, record.version)
            yield from _walk(records, [f"{path}/{name}" for name in names])


# --- what a store and an archive have ------------------------------------------------------------------------------


def _head(store: MetadataStore) -> Head:
    raise_if_half_restored(store)
    coordination = store.coordination
    return Head(
        instance_id=store.instance_id(),
        began_ms=time.time_ns() // 1_000_000,
        mark=read_mark(store),
        is_enabled=coordination.is_enabled(),
        lost_bookie_delay_s=coordination.lost_bookie_delay_s(),
        software=f"fastbk {fastbk.__version__}",
    )


def _end(store: MetadataStore, writer: ArchiveWriter, left_out: list[str]) -> End:
    counts = writer.counts
    return End(
        ended_ms=time.time_ns() // 1_000_000,
        highest_drawn_id=store.highest_drawn_id(),
        records=counts[Record],
        ledgers=counts[Ledger],
        bookies=counts[Bookie],
        changes=counts[Change],
        left_out=left_out,
    )


def _ledgers(store: MetadataStore) -> Iterator[Ledger]:
    """Yield all; one that cannot be read has no metadata: it was not deleted."""
    for ledger_id, read in all_ledgers(store):
        raw = read.metadata.to_bytes() if isinstance(read, VersionedLedger) else b""
        yield Ledger(ledger_id, raw, read.version)


def _bookies(store: MetadataStore) -> Iterator[Bookie]:
    """Yield fastbk's and, in ZooKeeper, Apache's; one whose identity cannot be read has numbers that none has."""
    found = {one.bookie_id: _bookie(one) for one in store.list_identities()}
    if is_zookeeper(store.uri):
        from fastbk.meta.zookeeper.admin import Cookies

        with closing(Cookies(parse_zookeeper(store.uri))) as cookies:
            for bookie_id in cookies.names():
                raw = None if bookie_id in found else cookies.read(bookie_id)
                if raw is not None:
                    found[bookie_id] = Bookie(bookie_id, cookie=raw)
    for name in sorted(found):
        yield found[name]


def _bookie(one: BookieIdentity | BadIdentity) -> Bookie:
    if isinstance(one, BadIdentity):
        return Bookie(one.bookie_id, -1)
    places = [(each.directory_id, each.role, each.pair) for each in one.directories]
    return Bookie(one.bookie_id, one.incarnation, one.starts, places)


def _compared(old: Iterator[T], new: Iterator[T], key: Callable[[T], object]) -> Iterator[Change]:
    """Yield how two sequences in the same order differ. What is the same but for its version has not changed."""
    before, after = next(old, None), next(new, None)
    while before is not None or after is not None:
        if after is None or (before is not None and key(before) < key(after)):  # type: ignore[operator]
            assert before is not None
            yield Change(_kind(before), _name(before), "deleted")
            before = next(old, None)
        elif before is None or key(before) > key(after):  # type: ignore[operator]
            if not _reason_against(after):  # else it is left out of the archive
                yield Change(_kind(after), _name(after), "added")
            after = next(new, None)
        else:
            if _content(before) != _content(after):
                yield Change(_kind(after), _name(after), "changed")
            before, after = next(old, None), next(new, None)


def _reason_against(item: Record | Ledger | Bookie) -> str:
    """Return why an archive cannot have an item; "": it can."""
    if item == Bookie(_name(item), -1) or (isinstance(item, Ledger) and not item.metadata):
        return "nobody can read it"
    return reason_against(item)


def _kind(item: Record | Ledger | Bookie) -> str:
    return type(item).__name__.lower()


def _name(item: Record | Ledger | Bookie) -> str:
    if isinstance(item, Record):
        return item.path
    return str(item.ledger_id) if isinstance(item, Ledger) else item.bookie_id


def _content(item: Record | Ledger | Bookie) -> object:
    if isinstance(item, Record):
        return item.value
    return item.metadata if isinstance(item, Ledger) else item
