"""The file that holds a backup of a cluster's metadata.

    magic, then frames of: size in bytes, CRC32C (4 bytes each, little-endian), MessagePack

The checksum of a frame begins with that of the frame before it, so frames that are lost, doubled or in another order
are noticed as well as changed bytes. The last frame is an `End` that counts what the others hold.

INV-M12: an archive is believed whole or not at all: `read_archive` raises before its end for what is damaged, and
`check_archive` reads all of it before anything is restored. It also refuses what no backup writes (`_Rules`): the file
may come from anybody, and a restore must not write what a store keeps for itself. A single item that is where it
belongs, and that this version cannot read or store, is named and passed over (INV-M17): an older version, which had
fewer bounds, may have backed it up, and all else in the file is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeAlias, TypeVar

import msgspec

from fastbk.errors import ConfigError, StorageError
from fastbk.meta.format_level import LEVEL_PATH
from fastbk.meta.records import Change as RecordChange
from fastbk.meta.records import bad_record, collected_bad_records
from fastbk.meta.replica_marks import FOLDER as MARKS
from fastbk.meta.rollback import Mark
from fastbk.model.ids import ID_MAX, BookieId, check_bookie_id, check_ledger_id
from fastbk.model.ledger import LedgerMetadata
from fastbk.native.hashes import crc32c

FORMAT = 1
LEFT_OUT_MAX = 1000
NAME_CHARACTERS_MAX = 1000
"""Of an item that cannot be restored: its name may be what is wrong with it."""
MAGIC = b"FBKMETA1"
FRAME_BYTES_MAX = 16 << 20
PAGE_BYTES = 1 << 20
PAGE_ITEMS = 1000
_PREFIX_BYTES = 8
PASSING = ("cluster", MARKS, "autorecovery")
"""Folders of records that are not in a backup, but for `KEPT`."""
KEPT = ("autorecovery/settings", LEVEL_PATH)
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
T = TypeVar("T", Record, Ledger, Bookie)


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
