"""Takes a backup of a cluster's metadata while the cluster runs, compares one with a store, and restores one.

An archive is the file that holds a backup:

    magic, then frames of: size in bytes, CRC32C (4 bytes each, little-endian), MessagePack

The checksum of a frame begins with that of the frame before it, so frames that are lost, doubled or in another order
are noticed as well as changed bytes. The last frame is an `End` that counts what the others hold.

INV-M12: an archive is believed whole or not at all: `read_archive` raises before its end for what is damaged, and
`check_archive` reads all of it before anything is restored. It also refuses what no backup writes (`_Rules`): the file
may come from anybody, and a restore must not write what a store keeps for itself. A single item that is where it
belongs, and that this version cannot read or store, is named and passed over (INV-M17): an older version, which had
fewer bounds, may have backed it up, and all else in the file is needed.

A backup's order is that of dependence. Records (namespaces, streams and their chains, cursors) are read before ledgers,
for a chain names ledgers that are there already. What changed meanwhile is found last, by comparing the archive with
the store, so that deletions are noticed of everything that was read before.

INV-M11: a backup holds every ledger that one of its records names, but for those deleted meanwhile, which it lists, and
those whose metadata nobody can read, which it names (INV-M17).

What passes is not in a backup: registrations, locks, elections, marks of missing copies (the auditor makes them anew)
and AutoRecovery's positions.

INV-M13: a restore writes into a store that is empty, or that the same archive has begun to fill, and to no other. It
puts metadata on hold first, and the hold is not confirmed before everything is there. So a restore that was cut off is
run again, and nobody acts on half of it.

An archive may have records that need a higher format level than it says itself, as where that record was damaged when
the backup was made. The level is raised to what they need (INV-U4): no bookie runs, and janitors are on hold.

A restore's order is the reverse: ledgers, then the records that name them, then bookies' identities, without which no
bookie starts. An item that nobody can read is named, and all else is written (INV-M17): whoever restores decides,
before the hold is confirmed, whether a rebuild from the bookies brings it back.

Decision 111.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias, TypeVar

import msgspec

import fastbk
from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.formats import COORDINATION as COORDINATION_RECORD
from fastbk.formats import LEVEL_FIRST, LEVEL_MAX, OBJECT, PATTERN_CURSOR, PRODUCERS, level_of
from fastbk.meta.api import (
    BadIdentity,
    BookieIdentity,
    DirectoryIdentity,
    GroupingStore,
    VersionedLedger,
    all_ledgers,
)
from fastbk.meta.format_level import LEVEL_PATH, decode, raise_level, read_or_first
from fastbk.meta.placement_record import PLACEMENT_PATH
from fastbk.meta.records import (
    READ_AT_ONCE,
    BadRecord,
    bad_record,
    collected_bad_records,
    each_record,
)
from fastbk.meta.records import Change as RecordChange
from fastbk.meta.replica_marks import FOLDER as MARKS
from fastbk.meta.rollback import (
    RESERVE_IDS,
    Mark,
    is_counted,
    new_hold,
    place_hold,
    raise_mark,
    read_mark,
)
from fastbk.meta.uri import is_zookeeper, parse_zookeeper
from fastbk.model.ids import ID_MAX, BookieId, LedgerId, check_bookie_id, check_ledger_id
from fastbk.model.ledger import LedgerMetadata
from fastbk.native.hashes import crc32c
from fastbk.safe_files import replaced
from fastbk.stream.chain import StreamKind, get_chain
from fastbk.stream.namespace.tree import NamespaceRecord, StreamRecord, get
from fastbk.stream.paths import COORDINATION, CURSORS, OBJECTS, SERVICES, UPLOADS, kind_at
from fastbk.stream.policy import level_needed
from fastbk.units import format_utc_ms

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore
    from fastbk.meta.records import RecordStore

FORMAT = 1
LEFT_OUT_MAX = 1000
NAME_CHARACTERS_MAX = 1000
"""Maximum length of the name of an item that cannot be restored: the name may be what is wrong with it."""
MAGIC = b"FBKMETA1"
FRAME_BYTES_MAX = 16 << 20
PAGE_BYTES = 1 << 20
PAGE_ITEMS = 1000
_PREFIX_BYTES = 8
PASSING = ("cluster", MARKS, "autorecovery", SERVICES)
"""Folders of records that are not in a backup, but for `KEPT`."""
KEPT = ("autorecovery/settings", LEVEL_PATH, PLACEMENT_PATH)
DELETED_MAX = 1_000_000
"""Ledgers that were deleted while a backup was made: more are refused, for they are held in memory."""
DIRECTORIES_MAX = 1024


class Record(msgspec.Struct, array_like=True, frozen=True):
    """A record, and the version that it had."""

    path: str
    value: bytes
    version: int


class Ledger(msgspec.Struct, array_like=True, frozen=True):
    """A ledger: Apache's bytes of its metadata, and the version that they had."""

    ledger_id: int
    metadata: bytes
    version: int


class Bookie(msgspec.Struct, array_like=True, frozen=True):
    """What metadata knows of a bookie: id, role and pair of each directory; of one of Apache's, its `cookie` only."""

    bookie_id: str
    incarnation: int = 0
    starts: int = 0
    directories: list[tuple[str, str, int]] = []
    cookie: bytes = b""


class Change(msgspec.Struct, array_like=True, frozen=True):
    """What a store has else than an archive.

    `kind`: "record", "ledger" or "bookie". `change`: what became of it in the store: "added", "changed" or "deleted".
    """

    kind: str
    name: str
    change: str

    def __str__(self) -> str:
        return f"{self.change} {self.kind} {self.name}"


class Head(msgspec.Struct, tag="head", kw_only=True):
    """The first frame. Times are in ms since 1970. `is_enabled`, `lost_bookie_delay_s`: AutoRecovery's switches."""

    instance_id: str
    began_ms: int
    mark: Mark
    is_enabled: bool
    lost_bookie_delay_s: int | None
    software: str
    format: int = FORMAT


class Records(msgspec.Struct, tag="records"):
    """Some records, each before those below it, names in order."""

    items: list[Record]


class Ledgers(msgspec.Struct, tag="ledgers"):
    """Some ledgers, by rising id."""

    items: list[Ledger]


class Bookies(msgspec.Struct, tag="bookies"):
    """Some bookies, by id."""

    items: list[Bookie]


class Changes(msgspec.Struct, tag="changes"):
    """Some of what changed while the backup was made: it has these as they were before, or not at all."""

    items: list[Change]


class End(msgspec.Struct, tag="end", kw_only=True):
    """The last frame. `highest_drawn_id`: of ledger ids, when the backup ended."""

    ended_ms: int
    highest_drawn_id: int
    records: int
    ledgers: int
    bookies: int
    changes: int
    left_out: list[str] = []
    """What could not be read, or not be restored, with the reasons; `LEFT_OUT_MAX` of it."""


Page: TypeAlias = Records | Ledgers | Bookies | Changes
Frame: TypeAlias = Head | Page | End


@dataclass
class Summary:
    """What a whole archive is.

    Attributes:
        archive_id: of these very bytes. changes: the first `PAGE_ITEMS`.
        deleted: ids of ledgers that were deleted while the backup was made.
        not_restorable: what it has and no restore can write, with the reasons; `LEFT_OUT_MAX` of it, and how many more.
    """

    archive_id: str
    head: Head
    end: End
    changes: list[Change] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)
    not_restorable: list[str] = field(default_factory=list)


class ArchiveWriter:
    """Writes frames to a file, of single items in pages."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._crc = 0
        self._items: list[Record | Ledger | Bookie | Change] = []
        self._size_bytes = 0
        self._file.write(MAGIC)
        self.counts = {Record: 0, Ledger: 0, Bookie: 0, Change: 0}

    def add(self, item: Record | Ledger | Bookie | Change, size_bytes: int) -> None:
        """Add one item; those of a kind in a row share frames. `size_bytes`: about."""
        is_other = self._items and type(self._items[0]) is not type(item)
        if is_other or len(self._items) == PAGE_ITEMS or self._size_bytes >= PAGE_BYTES:
            self.end_page()
        self._items.append(item)
        self._size_bytes += size_bytes
        self.counts[type(item)] += 1

    def end_page(self) -> None:
        """Write the items that were added."""
        if not self._items:
            return
        page = {Record: Records, Ledger: Ledgers, Bookie: Bookies, Change: Changes}[
            type(self._items[0])
        ]
        self.write(page(self._items))
        self._items, self._size_bytes = [], 0

    def write(self, frame: Frame) -> None:
        """Write a frame."""
        body = msgspec.msgpack.encode(frame)
        self._crc = crc32c(body, self._crc)
        self._file.write(len(body).to_bytes(4, "little") + self._crc.to_bytes(4, "little") + body)


def read_archive(path: Path, size_bytes: int | None = None) -> Iterator[Frame]:
    """Yield the frames of an archive, the `End` last; with `size_bytes` those of its first part, which is whole.

    Raises StorageError for what is damaged or cut off.
    """
    for frame, _ in _frames(path, size_bytes):
        yield frame


def items_of(
    path: Path, page: type[Page], item: type[T], size_bytes: int | None = None
) -> Iterator[T]:
    """Yield what an archive's pages of a kind hold; see `read_archive`."""
    for frame in read_archive(path, size_bytes):
        if isinstance(frame, page):
            for one in frame.items:
                assert isinstance(one, item)
                yield one


def check_archive(path: Path) -> Summary:
    """Read all of an archive; return what it is. Raises StorageError."""
    frames = _frames(path)
    head, _ = next(frames)
    assert isinstance(head, Head)
    if head.format != FORMAT:
        raise StorageError(f"{path} has format {head.format}: this fastbk reads format {FORMAT}")
    rules, counts = _Rules(), {Records: 0, Ledgers: 0, Bookies: 0, Changes: 0}
    changes: list[Change] = []
    deleted: set[int] = set()
    for frame, crc in frames:
        if isinstance(frame, End):
            wanted = (frame.records, frame.ledgers, frame.bookies, frame.changes)
            if tuple(counts.values()) != wanted:
                raise _damaged(path, "its last part counts other things than there are")
            archive_id = f"{frame.ended_ms:x}-{crc:08x}"
            return Summary(archive_id, head, frame, changes, deleted, rules.not_restorable())
        assert not isinstance(frame, Head)
        counts[type(frame)] += len(frame.items)
        try:
            rules.check(frame)
        except (ConfigError, StorageError) as error:
            raise StorageError(
                f"{path} was not written by `fastbk metadata backup`: {error}"
            ) from error
        if isinstance(frame, Changes):
            changes += frame.items[: PAGE_ITEMS - len(changes)]
            gone = [
                item for item in frame.items if item.kind == "ledger" and item.change == "deleted"
            ]
            deleted |= {int(one.name) for one in gone}
            if len(deleted) > DELETED_MAX:
                raise _damaged(path, f"it names more than {DELETED_MAX:,} deleted ledgers")
    raise _damaged(path, "it ends before its last part")


def _frames(path: Path, size_bytes: int | None = None) -> Iterator[tuple[Frame, int]]:
    decoder = msgspec.msgpack.Decoder(Frame)
    crc, is_first = 0, True
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise StorageError(f"{path} is not what `fastbk metadata backup` wrote")
            while file.tell() != size_bytes and (prefix := file.read(_PREFIX_BYTES)):
                body_bytes = int.from_bytes(prefix[:4], "little")
                body = file.read(body_bytes) if body_bytes <= FRAME_BYTES_MAX else b""
                crc = crc32c(body, crc)
                if len(body) != body_bytes or crc != int.from_bytes(prefix[4:], "little"):
                    raise _damaged(path, f"at byte {file.tell() - len(body) - len(prefix)}")
                frame: Frame = decoder.decode(body)
                if isinstance(frame, Head) != is_first:
                    raise _damaged(path, "its first part is not in front")
                is_first = False
                if isinstance(frame, End) and file.read(1):
                    raise _damaged(path, "there is something behind its last part")
                yield frame, crc
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"{error}; it may be from a newer version") from error
    if is_first:
        raise _damaged(path, "it is empty")


def full_name(item: Record | Ledger | Bookie) -> str:
    """Return how a bad one is named by whoever meets it."""
    if isinstance(item, Record):
        return item.path
    return (
        f"ledger {item.ledger_id}"
        if isinstance(item, Ledger)
        else f"identity of bookie {item.bookie_id}"
    )


def reason_against(item: Record | Ledger | Bookie) -> str:
    """Return why no restore can write an item; "": it can."""
    try:
        _check_storable(item)
    except (StorageError, ConfigError) as error:
        return str(error)
    return ""


def storable(items: list[T]) -> list[T]:
    """Return the items that a restore can write."""
    return [item for item in items if not reason_against(item)]


def _check_storable(one: Record | Ledger | Bookie) -> None:
    if isinstance(one, Record):
        RecordChange(one.path, one.value).check()
    elif isinstance(one, Ledger):
        check_ledger_id(one.ledger_id)
        LedgerMetadata.from_bytes(one.metadata)
    else:
        check_bookie_id(BookieId(one.bookie_id))
        if (
            not 0 <= one.starts <= ID_MAX
            or one.incarnation < 0
            or len(one.directories) > DIRECTORIES_MAX
        ):
            raise StorageError(f"the identity of bookie {one.bookie_id} has numbers that none has")


class _Rules:
    """What holds for the items of every backup: each is there once, in order. It notes which cannot be stored."""

    def __init__(self) -> None:
        self._bad: list[str] = []
        self._bad_total = 0
        self._last_path: tuple[str, ...] = ()
        self._last_ledger_id: int | None = None
        self._last_bookie = ""

    def check(self, page: Page) -> None:
        """Raise ConfigError or StorageError for an item that breaks one."""
        for item in page.items:
            if not isinstance(item, Change):
                self._note(item)
            if isinstance(item, Record):
                self._check_record(item)
            elif isinstance(item, Ledger):
                self._check_ledger(item)
            elif isinstance(item, Bookie):
                self._check_bookie(item)
            elif item.kind == "ledger" and not (
                item.name.isascii() and item.name.isdigit() and len(item.name) < 20
            ):
                raise StorageError(f"{item.name[:40]!r} is no ledger's id")

    def not_restorable(self) -> list[str]:
        """Return what cannot be stored, with the reasons."""
        more = self._bad_total - len(self._bad)
        return [*self._bad, f"and {more:,} more"] if more else self._bad

    def _note(self, one: Record | Ledger | Bookie) -> None:
        if not (reason := reason_against(one)):
            return
        self._bad_total += 1
        if len(self._bad) < LEFT_OUT_MAX:
            with collected_bad_records():  # the caller prints them
                self._bad.append(str(bad_record(full_name(one)[:NAME_CHARACTERS_MAX], reason)))

    def _check_record(self, one: Record) -> None:
        names = tuple(one.path.split("/"))
        if names[0] in PASSING and one.path not in KEPT:
            raise StorageError(f"the record {one.path} is none that a backup holds")
        if names <= self._last_path:
            raise StorageError(f"the record {one.path} is there twice, or out of order")
        self._last_path = names

    def _check_ledger(self, one: Ledger) -> None:
        if self._last_ledger_id is not None and one.ledger_id <= self._last_ledger_id:
            raise StorageError(f"ledger {one.ledger_id} is there twice, or out of order")
        self._last_ledger_id = one.ledger_id

    def _check_bookie(self, one: Bookie) -> None:
        if one.bookie_id <= self._last_bookie:
            raise StorageError(f"bookie {one.bookie_id} is there twice, or out of order")
        self._last_bookie = one.bookie_id


def _damaged(path: Path, what: str) -> StorageError:
    return StorageError(f"{path} is damaged: {what}. Take another backup")


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
        for item in items:
            reason = _reason_against(item)
            if not reason:
                yield item
            elif len(self.names) < LEFT_OUT_MAX:
                self.names.append(str(bad_record(full_name(item), reason)))


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
    for start in range(0, len(paths), READ_AT_ONCE):
        some = paths[start : start + READ_AT_ONCE]
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
    found = {identity.bookie_id: _bookie(identity) for identity in store.list_identities()}
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


RESTORE_PATH = "cluster/restore"
AT_ONCE = 16
"""Calls of a store that has no groups."""
CHANGE_BYTES_MAX = 500_000
CHANGES_MAX = 200
Item = TypeVar("Item")


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
    (version,) = store.records.change(
        [RecordChange(RESTORE_PATH, msgspec.json.encode(record), version)]
    )
    return version


def _check_empty(store: MetadataStore) -> None:
    there = [f"ledger {ledger}" for ledger in store.list_ledgers(count_max=1)]
    there += [f"bookie {identity.bookie_id}" for identity in store.list_identities()]
    there += [f"records {child}" for child in store.records.children("") if child != "cluster"]
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


def _for_all(store: MetadataStore, call: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Call for each item: in one commit where the store has such, else some at a time."""
    if isinstance(store, GroupingStore):
        with store.group():
            for item in items:
                call(item)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(call, items):
            pass


def _write_ledgers(
    store: MetadataStore, items: list[Ledger], deleted: set[int], out: Restored
) -> None:
    there = store.read_ledgers([LedgerId(item.ledger_id) for item in items])
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
    there = store.records.read([item.path for item in items])
    changes: list[RecordChange] = []
    size_bytes = 0
    for one, found in zip(items, there, strict=True):
        if found is not None:
            # it may have been raised before the cut
            if found.value != one.value and one.path != LEVEL_PATH:
                raise _is_other(f"record {one.path}")
            continue
        if changes and (
            len(changes) == CHANGES_MAX or size_bytes + len(one.value) > CHANGE_BYTES_MAX
        ):
            store.records.change(changes)
            changes, size_bytes = [], 0
        changes.append(RecordChange(one.path, one.value))
        size_bytes += len(one.value)
        out.records += 1
    if changes:
        store.records.change(changes)


def _level_needed(record: Record) -> int:
    """Return the format level that a cluster with this record has at least."""
    if record.path.startswith(f"{CURSORS}/"):
        return level_of(PATTERN_CURSOR)
    if record.path.startswith(f"{COORDINATION}/"):
        return level_of(COORDINATION_RECORD)
    if record.path.startswith((f"{OBJECTS}/", f"{UPLOADS}/")):
        return level_of(OBJECT)
    try:
        kind = kind_at(record.path)
        if kind == "namespace":
            return level_needed(get(NamespaceRecord, record.value, record.path).policy)
        if kind == "stream":
            return level_needed(get(StreamRecord, record.value, record.path).policy)
        if kind == "chain" and get_chain(record.value).kind is not StreamKind.WRITER:
            return level_of(PRODUCERS)
        if kind == "page of producers":
            return level_of(PRODUCERS)
        return decode(record.value).level if record.path == LEVEL_PATH else LEVEL_FIRST
    except StorageError:
        return LEVEL_MAX  # whatever it said, no version that could restore it had a higher one


def _write_switches(store: MetadataStore, summary: Summary) -> None:
    head, coordination = summary.head, store.coordination
    if not head.is_enabled:
        coordination.disable()
    if head.lost_bookie_delay_s is not None:
        # One that is none was stored before writes were checked.
        coordination.set_lost_bookie_delay(max(head.lost_bookie_delay_s, 0))


def _write_bookies(store: MetadataStore, items: list[Bookie], out: Restored) -> None:
    for item in items:
        if item.cookie:
            _write_cookie(store, item, out)
            continue
        places = tuple(DirectoryIdentity(*each) for each in item.directories)
        identity = BookieIdentity(BookieId(item.bookie_id), item.incarnation, places, item.starts)
        found = store.read_identity(identity.bookie_id)
        if found is None:
            store.write_identity(identity, None)
            out.bookies += 1
        elif found.identity != identity:
            raise _is_other(f"bookie {item.bookie_id}")


def _write_cookie(store: MetadataStore, one: Bookie, out: Restored) -> None:
    """Write the cookie of one of Apache's bookies, which are in ZooKeeper only."""
    if not is_zookeeper(store.uri):
        out.left_out.append(f"bookie {one.bookie_id} is one of Apache's, which need ZooKeeper")
        return
    from fastbk.meta.zookeeper.admin import Cookies

    with closing(Cookies(parse_zookeeper(store.uri))) as cookies:
        record = cookies.read(BookieId(one.bookie_id))
        if record is None:
            cookies.create(BookieId(one.bookie_id), one.cookie)
            out.bookies += 1
        elif record != one.cookie:
            raise _is_other(f"the cookie of {one.bookie_id}")


def _is_other(what: str) -> MetadataConflict:
    return MetadataConflict(
        f"{what} is in the store already, and not as the backup has it: somebody uses the store. End everybody who"
        " does, empty it, and restore again"
    )
