"""Everything that an Apache bookie has stored, as entries and ledger states of ours: checked, counted, in order.

Entry logs come first, older ones before newer ones, then the journals from their mark on: of several copies of an entry
the last one counts, as it does for Apache's bookie; among those in entry logs the one that its index names, if that can
be read. A damaged copy does not count at all.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastbk.apache.importer.index_check import IndexCounts, Indexes, IndexUse
from fastbk.apache.importer.logs import (
    EXPLICIT_LAC,
    FENCE,
    MASTER_KEY,
    read_entry_log,
    read_journal,
)
from fastbk.apache.importer.records import LENGTH, Damage
from fastbk.inspect.items import FileReader
from fastbk.native.ledger_state import FENCED, HAS_KEY, LedgerState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.apache.importer.directories import ApacheDirectories
    from fastbk.apache.importer.index import Listed
    from fastbk.apache.importer.records import LedgerSummary, LedgerTable, Record

DAMAGE_KEPT_MAX = 1000
LEFT_OUT_KEPT_MAX = 1_000_000
_LAC = slice(16, 24)
_BODY_AT = 16
_KEY_BYTES = 20


@dataclass
class Counts:
    """What was found. `entries`, `bytes`: of ledgers that metadata lists, each copy; `read_bytes`: of files."""

    files: int = 0
    read_bytes: int = 0
    entries: int = 0
    bytes: int = 0
    unproven_entries: int = 0
    """Those without a digest that could be checked."""
    damaged_entries: int = 0
    """Copies that fail their digest; another copy of the same entry may be whole."""
    damaged_places: int = 0
    """Bytes of files that say nothing, but for cut-off ends."""
    cut_off_ends: int = 0
    left_out_entries: int = 0
    """Of ledgers that metadata does not list: deleted ones."""
    left_out_bytes: int = 0
    left_out_ledgers: set[int] = field(default_factory=set)
    """The first `LEFT_OUT_KEPT_MAX` ones: a file may name any number."""
    damage: list[Damage] = field(default_factory=list)
    """The first ones."""
    journal_entries: int = 0
    """Of `entries`, those of journals."""
    index: IndexCounts = field(default_factory=IndexCounts)

    @property
    def log_entries(self) -> int:
        """Of `entries`, those of entry logs."""
        return self.entries - self.journal_entries

    @property
    def is_damaged(self) -> bool:
        """Whether something that was found is damaged, or something that should be here is not."""
        index = self.index
        return bool(
            self.damaged_entries
            + self.damaged_places
            + index.damaged_places
            + index.missing_entries
        )

    def note(self, damage: Damage, *, is_expected: bool) -> None:
        """Count damage of a file; `is_expected`: a crash leaves it there."""
        if is_expected:
            self.cut_off_ends += 1
        else:
            self.damaged_places += 1
        self.keep(damage)

    def keep(self, damage: Damage) -> None:
        """Keep it for people."""
        if len(self.damage) < DAMAGE_KEPT_MAX:
            self.damage.append(damage)


@dataclass(slots=True)
class _Ledger:
    highest: int = -1
    lac: int = -1
    flags: int = 0
    key: bytes | None = None


class Content:
    """What lies in an Apache bookie's directories. Read `entries` to its end, then `states` and `doubtful`."""

    def __init__(
        self, directories: ApacheDirectories, known: LedgerTable, use: IndexUse = IndexUse.USE
    ) -> None:
        self.counts = Counts()
        self._directories = directories
        self._known = known
        self._use = use
        self._ledgers: dict[int, _Ledger] = {}
        self._in_limbo: set[int] = set()

    def entries(self) -> Iterator[Record]:
        """Yield the entries of ledgers that metadata lists. Raises StorageError.

        Of several copies of an entry that are yielded the last one counts.
        """
        counts = self.counts
        with closing(Indexes(self._directories, self._use, counts.index, counts.damage)) as indexes:
            listed = list(indexes.listed(self._known))
            yield from self._in_logs(indexes)
            yield from self._in_journals(indexes)
            for one in listed:
                self._add_listed(one)
            indexes.find_missing(self._known)

    def doubtful(self) -> set[int]:
        """Return the ledgers of which the indexes say that something is missing, or that they were in limbo before."""
        return self._in_limbo | self.counts.index.missing_ledgers

    def _in_logs(self, indexes: Indexes) -> Iterator[Record]:
        for path in self._directories.entry_logs():
            number, index = int(path.stem, 16) << 32, indexes.of(path)
            with FileReader(path) as source:

                def on_log(damage: Damage) -> None:
                    # A log is only closed when it is full: the newest one of each directory, at least, is not.
                    self.counts.note(damage, is_expected=damage.is_tail)

                records = read_entry_log(source, self._known, on_log)
                for record in self._of(source, records):
                    if indexes.counts_in_log(index, record[0], record[1], number | record[3]):
                        yield record
                self._unreadable(source)

    def _in_journals(self, indexes: Indexes) -> Iterator[Record]:
        for part in self._directories.journal_parts(self._on_mark):
            is_newest = part.is_newest
            with FileReader(part.path) as source:

                def on_journal(damage: Damage, is_newest: bool = is_newest) -> None:
                    self.counts.note(damage, is_expected=damage.is_tail and is_newest)

                records = read_journal(source, part.from_bytes, self._known, on_journal)
                for record in self._of(source, records):
                    self.counts.journal_entries += 1
                    indexes.note_copy(record[0], record[1])
                    yield record
                self._unreadable(source)

    def _on_mark(self, damage: Damage) -> None:
        self.counts.note(damage, is_expected=False)

    def states(self) -> list[LedgerState]:
        """Return the states of all ledgers that were met, ascending; fenced where they are not closed."""
        found = []
        for ledger_id, one in sorted(self._ledgers.items()):
            known = self._known.get(ledger_id)
            assert known is not None, "only those are noted"
            key = known.master_key or one.key
            flags = one.flags | (0 if known.is_closed else FENCED) | (HAS_KEY if key else 0)
            found.append(
                LedgerState(
                    ledger_id,
                    one.highest,
                    one.lac,
                    flags=flags,
                    master_key=key or bytes(_KEY_BYTES),
                )
            )
        return found

    def _of(self, source: FileReader, records: Iterator[Record]) -> Iterator[Record]:
        counts = self.counts
        counts.files += 1
        before_bytes = counts.read_bytes
        for record in records:
            ledger_id, entry_id, raw, _ = record
            counts.read_bytes += len(raw) + LENGTH.size
            known = self._known.get(ledger_id)
            if known is None:
                if entry_id >= 0:
                    counts.left_out_entries += 1
                    counts.left_out_bytes += len(raw)
                if len(counts.left_out_ledgers) < LEFT_OUT_KEPT_MAX:
                    counts.left_out_ledgers.add(ledger_id)
                continue
            ledger = self._ledgers.get(ledger_id)
            if ledger is None:
                ledger = self._ledgers[ledger_id] = _Ledger()
            if entry_id < 0:
                self._note(ledger, known, record)
            elif not known.is_right(raw):
                counts.damaged_entries += 1
                reason = f"entry {entry_id} of ledger {ledger_id} fails its digest"
                counts.keep(Damage(source.path, -1, len(raw), reason))
            else:
                counts.entries += 1
                counts.bytes += len(raw)
                counts.unproven_entries += not known.is_provable
                ledger.highest = max(ledger.highest, entry_id)
                ledger.lac = max(ledger.lac, int.from_bytes(raw[_LAC], "big", signed=True))
                yield record
        counts.read_bytes = before_bytes + source.size_bytes

    def _add_listed(self, listed: Listed) -> None:
        """Take in what an index says of a ledger."""
        ledger_id, key = listed.ledger_id, listed.master_key
        known = self._known.get(ledger_id)
        assert known is not None, "only those are taken"
        if listed.is_in_limbo:
            self._in_limbo.add(ledger_id)
        if known.master_key is not None and key and key != known.master_key:
            self.counts.index.other_keys += 1
            self.counts.index.report(
                f"the key of ledger {ledger_id} in its index is not that of the password in metadata, which counts"
            )
        lac = known.lac_in(ledger_id, listed.explicit_lac) if listed.explicit_lac else -1
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            if not listed.is_fenced and lac < 0:
                return  # nothing of it is here, and nothing would be said by naming it
            ledger = self._ledgers[ledger_id] = _Ledger()
        ledger.flags |= FENCED if listed.is_fenced else 0
        ledger.lac = max(ledger.lac, lac)
        if len(key) == _KEY_BYTES:
            ledger.key = ledger.key or key

    @staticmethod
    def _note(ledger: _Ledger, known: LedgerSummary, record: Record) -> None:
        ledger_id, kind, raw, _ = record
        body = raw[_BODY_AT + LENGTH.size :]
        if kind == FENCE:
            ledger.flags |= FENCED
        elif kind == MASTER_KEY and len(body) == _KEY_BYTES:
            ledger.key = ledger.key or body
        elif kind == EXPLICIT_LAC:
            ledger.lac = max(ledger.lac, known.lac_in(ledger_id, body))

    def _unreadable(self, source: FileReader) -> None:
        for offset_bytes in source.unreadable:
            damage = Damage(source.path, offset_bytes, 4096, "the disk fails to read here")
            self.counts.note(damage, is_expected=False)


class Rate:
    """Bytes a second since it was made."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def of(self, size_bytes: int) -> int:
        """Return the rate of so many bytes."""
        return int(size_bytes / max(time.monotonic() - self._began_s, 1e-3))
