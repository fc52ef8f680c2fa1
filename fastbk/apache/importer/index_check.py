"""What the indexes of an Apache bookie add to what its journals and entry logs say.

Journals and entry logs hold the entries. The indexes say which copy of an entry counts, which ledgers were fenced, and
which keys the bookie compared; and they name entries that should be there. An entry that they name and nothing holds is
reported, and its ledger comes in limbo. They never take an entry away that is there and whole: an index may be behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from fastbk.apache.importer.index import (
    NOWHERE,
    UNKNOWN,
    Databases,
    IndexFiles,
    NoReaderError,
    has_databases,
)
from fastbk.apache.importer.logs import ENTRY_LOG_HEADER_BYTES
from fastbk.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastbk.apache.importer.directories import ApacheDirectories
    from fastbk.apache.importer.index import Index, Listed
    from fastbk.apache.importer.records import Damage, LedgerTable

KEPT_MAX = 1000


class IndexUse(Enum):
    """Whether indexes are looked at: not at all, those that can be read, or all of them or no import."""

    IGNORE = "ignore"
    USE = "use"
    REQUIRE = "require"


@dataclass
class IndexCounts:
    """What indexes say, and where they and the files disagree. Entries: of ledgers that metadata lists, whole ones."""

    read: list[str] = field(default_factory=list)
    """The indexes that are used."""
    not_read: list[str] = field(default_factory=list)
    """Those that are not, with reasons."""
    ledgers: int = 0
    unlisted_ledgers: int = 0
    """Of `ledgers`, those that metadata does not list: deleted ones."""
    entries: int = 0
    """That they name."""
    in_place: int = 0
    """Copies in entry logs where an index says that they are; the others are these:"""
    elsewhere: int = 0
    """The index names another place: what compaction or a second add has left behind."""
    not_named: int = 0
    """The index does not name the entry: it was written shortly before the bookie ended, or dropped."""
    not_checked: int = 0
    """No index was there, or it could not be read at this entry."""
    other_keys: int = 0
    """Ledgers whose key is not that of the password in metadata, which counts."""
    missing_entries: int = 0
    """That an index names, and no file holds whole."""
    missing_ledgers: set[int] = field(default_factory=set)
    damaged_places: int = 0
    cut_off_ends: int = 0
    told: list[str] = field(default_factory=list)
    """Missing entries and keys that disagree, the first ones, for people."""

    def report(self, text: str) -> None:
        """Keep it for people."""
        if len(self.told) < KEPT_MAX:
            self.told.append(text)


class Indexes:
    """All indexes of a bookie. Memory: a bit for each entry and some bytes for each ledger, beside their own."""

    def __init__(
        self,
        directories: ApacheDirectories,
        use: IndexUse,
        counts: IndexCounts,
        damage: list[Damage],
    ) -> None:
        """Open them. Raises StorageError where `use` says that one has to be read and it cannot be.

        Args:
            directories: of the bookie.
            use: see there.
            counts: what is found is counted there.
            damage: what is damaged is added to it, up to `KEPT_MAX`.
        """
        self._use = use
        self._counts = counts
        self._damage = damage
        self._indexes: list[Index] = []
        self._seen = EntryBitmap()
        if use is not IndexUse.IGNORE:
            try:
                self._open(directories)
            except BaseException:
                self.close()
                raise

    def of(self, log: Path) -> Index | None:
        """Return the index that an entry log belongs to."""
        return next((index for index in self._indexes if index.covers(log)), None)

    def listed(self, known: LedgerTable) -> Iterator[Listed]:
        """Yield the ledgers that they list and metadata, too. To be read to its end before entries are judged."""
        for index in self._indexes:
            for listed in index.ledgers():
                self._counts.ledgers += 1
                if known.get(listed.ledger_id) is None:
                    self._counts.unlisted_ledgers += 1
                else:
                    yield listed

    def counts_in_log(
        self, index: Index | None, ledger_id: int, entry_id: int, location: int
    ) -> bool:
        """Return whether a copy in an entry log, which is whole, counts for more than what came before it.

        A copy elsewhere than the index says counts only as long as that one has not come, or was not whole.
        """
        counts = self._counts
        named = UNKNOWN if index is None else index.location(ledger_id, entry_id)
        if named == location:
            counts.in_place += 1
        elif named == UNKNOWN:
            counts.not_checked += 1
        elif named == NOWHERE:
            counts.not_named += 1
        else:
            counts.elsewhere += 1
            # Logs come in the order of their numbers, so the other copy is behind us.
            if named < location and self._seen.has(ledger_id, entry_id):
                return False
        self.note_copy(ledger_id, entry_id)
        return True

    def note_copy(self, ledger_id: int, entry_id: int) -> None:
        """Note that a whole copy is there."""
        if self._indexes:
            self._seen.add(ledger_id, entry_id)

    def find_missing(self, known: LedgerTable) -> None:
        """Count what they name and no copy was seen of. Raises StorageError for damage if they are required."""
        for index in self._indexes:
            first = last = ledger = -1
            for ledger_id, entry_id in index.entries(lambda one: known.get(one) is not None):
                self._counts.entries += 1
                if self._seen.has(ledger_id, entry_id):
                    continue
                if (ledger_id, entry_id) != (ledger, last + 1):
                    self._missing(index, ledger, first, last)
                    ledger, first = ledger_id, entry_id
                last = entry_id
            self._missing(index, ledger, first, last)
        if self._use is IndexUse.REQUIRE and self._counts.damaged_places:
            raise StorageError(
                f"indexes are damaged in {self._counts.damaged_places} places, and are to be whole: {self._damage[-1]}."
                " Say --index use to go on with what can be read of them"
            )

    def close(self) -> None:
        """Close them."""
        for index in self._indexes:
            index.close()

    def _missing(self, index: Index, ledger_id: int, first: int, last: int) -> None:
        if ledger_id >= 0:
            self._counts.missing_entries += last - first + 1
            self._counts.missing_ledgers.add(ledger_id)
            which = f"entry {first}" if first == last else f"entries {first} to {last}"
            self._counts.report(
                f"{index.name}: {which} of ledger {ledger_id} should be here, and no file has a whole copy"
            )

    def _open(self, directories: ApacheDirectories) -> None:
        covered = []
        if len(directories.indexes) == len(directories.ledgers):
            for ledgers, index in zip(directories.ledgers, directories.indexes, strict=True):
                if has_databases(index):
                    covered.append(ledgers)
                    try:
                        self._add(Databases(ledgers, index, self._report))
                    except NoReaderError as error:
                        self._not_read(f"RocksDB in {index}: {error}")
                    except StorageError as error:
                        self._counts.damaged_places += 1
                        self._not_read(f"RocksDB in {index}: {error}")
        try:
            files = IndexFiles(directories.indexes, self._report)
        except StorageError as error:
            self._counts.damaged_places += 1
            self._not_read(str(error))
            return
        if len(files):
            self._add(files)
        elif any(
            _has_records(log) for log in directories.entry_logs() if log.parents[1] not in covered
        ):
            places = ", ".join(map(str, directories.indexes))
            self._not_read(f"there is none in {places}; is it elsewhere (indexDirectories)?")

    def _add(self, index: Index) -> None:
        self._indexes.append(index)
        self._counts.read.append(index.name)

    def _not_read(self, reason: str) -> None:
        if self._use is IndexUse.REQUIRE:
            raise StorageError(f"an index is to be read and cannot be: {reason}")
        self._counts.not_read.append(reason)

    def _report(self, damage: Damage) -> None:
        if damage.is_tail:
            self._counts.cut_off_ends += 1
        else:
            self._counts.damaged_places += 1
        if len(self._damage) < KEPT_MAX:
            self._damage.append(damage)


def _has_records(log: Path) -> bool:
    """Return whether an entry log has more than its header: what is in no log yet is in no index."""
    try:
        return log.stat().st_size > ENTRY_LOG_HEADER_BYTES
    except OSError:
        return True


PIECE_ENTRIES = 4096


class EntryBitmap:
    """A set of entries, for there may be hundreds of millions: a bit each, 250 bytes for each piece of a ledger."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, int], int] = {}

    def add(self, ledger_id: int, entry_id: int) -> None:
        """Take an entry in."""
        key = ledger_id, entry_id // PIECE_ENTRIES
        self._pieces[key] = self._pieces.get(key, 0) | 1 << entry_id % PIECE_ENTRIES

    def has(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether it was seen."""
        piece = self._pieces.get((ledger_id, entry_id // PIECE_ENTRIES), 0)
        return bool(piece >> entry_id % PIECE_ENTRIES & 1)
