"""Takes a backup of a cluster's metadata while the cluster runs, and compares one with a store.

The order is that of dependence. Records (namespaces, streams and their chains, cursors) are read before ledgers, for a
chain names ledgers that are there already. What changed meanwhile is found last, by comparing the archive with the
store, so that deletions are noticed of everything that was read before.

INV-M11: a backup holds every ledger that one of its records names, but for those deleted meanwhile, which it lists.

What passes is not in a backup: registrations, locks, elections, marks of missing copies (the auditor makes them anew)
and AutoRecovery's positions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import fastbk
from fastbk.admin.metadata_archive import (
    KEPT,
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
    items_of,
)
from fastbk.admin.metadata_restore import raise_if_half_restored
from fastbk.durable_files import replaced
from fastbk.meta.api import all_ledgers
from fastbk.meta.rollback_mark import read_mark
from fastbk.meta.uri import is_zookeeper, parse_zookeeper

if TYPE_CHECKING:
    from fastbk.admin.metadata_archive import Summary
    from fastbk.meta.api import MetadataStore
    from fastbk.meta.records import RecordStore

READ_AT_ONCE = 500
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
            for record in backed_up_records(store.records):
                writer.add(record, len(record.value) + len(record.path))
            for ledger in _ledgers(store):
                writer.add(ledger, len(ledger.metadata))
            for bookie in _bookies(store):
                writer.add(bookie, 100)
            writer.end_page()
            file.flush()
            for change in differences(draft, store, file.tell()):
                writer.add(change, len(change.name))
            writer.end_page()
            writer.write(_end(store, writer))
        return check_archive(draft)


def differences(path: Path, store: MetadataStore, size_bytes: int | None = None) -> Iterator[Change]:
    """Yield what a store has else than an archive, or its first part. Raises StorageError, MetadataUnavailable.

    It holds a page of each in memory.
    """
    records, ledgers, bookies = (
        items_of(path, Records, Record, size_bytes),
        items_of(path, Ledgers, Ledger, size_bytes),
        items_of(path, Bookies, Bookie, size_bytes),
    )
    now = backed_up_records(store.records)
    yield from _compared("record", records, now, lambda one: tuple(one.path.split("/")))
    yield from _compared("ledger", ledgers, _ledgers(store), lambda one: one.ledger_id)
    yield from _compared("bookie", bookies, _bookies(store), lambda one: one.bookie_id)


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
        found = records.read(some)
        below = records.children_of(some)
        for path, record, names in zip(some, found, below, strict=True):
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


def _end(store: MetadataStore, writer: ArchiveWriter) -> End:
    counts = writer.counts
    return End(
        ended_ms=time.time_ns() // 1_000_000,
        highest_drawn_id=store.highest_drawn_id(),
        records=counts[Record],
        ledgers=counts[Ledger],
        bookies=counts[Bookie],
        changes=counts[Change],
    )


def _ledgers(store: MetadataStore) -> Iterator[Ledger]:
    for ledger_id, read in all_ledgers(store):
        yield Ledger(ledger_id, read.metadata.to_bytes(), read.version)


def _bookies(store: MetadataStore) -> Iterator[Bookie]:
    """Yield fastbk's and, in ZooKeeper, Apache's."""
    found = {
        one.bookie_id: Bookie(
            one.bookie_id,
            one.incarnation,
            one.starts,
            [(each.directory_id, each.role, each.pair) for each in one.directories],
        )
        for one in store.list_identities()
    }
    if is_zookeeper(store.uri):
        from fastbk.meta.zookeeper_cookies import Cookies

        with closing(Cookies(parse_zookeeper(store.uri))) as cookies:
            for bookie_id in cookies.names():
                raw = None if bookie_id in found else cookies.read(bookie_id)
                if raw is not None:
                    found[bookie_id] = Bookie(bookie_id, cookie=raw)
    for name in sorted(found):
        yield found[name]


def _compared(
    kind: str, old: Iterator[T], new: Iterator[T], key: Callable[[T], object]
) -> Iterator[Change]:
    """Yield how two sequences in the same order differ. What is the same but for its version has not changed."""
    before, after = next(old, None), next(new, None)
    while before is not None or after is not None:
        if after is None or (before is not None and key(before) < key(after)):  # type: ignore[operator]
            assert before is not None
            yield Change(kind, _name(before), "deleted")
            before = next(old, None)
        elif before is None or key(before) > key(after):  # type: ignore[operator]
            yield Change(kind, _name(after), "added")
            after = next(new, None)
        else:
            if _content(before) != _content(after):
                yield Change(kind, _name(after), "changed")
            before, after = next(old, None), next(new, None)


def _name(item: Record | Ledger | Bookie) -> str:
    if isinstance(item, Record):
        return item.path
    return str(item.ledger_id) if isinstance(item, Ledger) else item.bookie_id


def _content(item: Record | Ledger | Bookie) -> object:
    if isinstance(item, Record):
        return item.value
    return item.metadata if isinstance(item, Ledger) else item
