"""Marks of under-replicated ledgers: which bookie may lack which entries. The same in every metadata store.

A mark is durable before the code that found the missing copies goes on. A repair removes it after it has verified the
copies, and nothing else does. Marks are records (`fastbk.meta.records`), so all drivers keep them. In ZooKeeper a mark
also sets Apache's node below `underreplication`, see `fastbk.meta.zookeeper.underreplication`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from fastbk.errors import Error, MetadataConflict, MetadataUnavailable
from fastbk.meta.records import Change, RecordStore, VersionedRecord, bad_record, each_record
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.missing_replica import MissingReplica, from_json, merged, to_json, without

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore

FOLDER = "under_replicated"
READ_AT_ONCE = 500
"""Marks that are read by one request."""
FOLDERS_AT_ONCE = 16
_TRIES_MAX = 20
_NAME = re.compile("[0-7][0-9a-f]{15}")


@dataclass(frozen=True, slots=True)
class LedgerMark:
    """The mark of one ledger; `missing` is empty when it has none, or when nobody can read it: `fault` says why."""

    ledger_id: LedgerId
    missing: tuple[MissingReplica, ...]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class UnderreplicatedLedger:
    """A ledger that misses copies.

    Attributes:
        missing: the bookies that lack them, as they were told; one may stand there several times.
        marked_ms: since when, by the clock of who marked it; None where that is not kept.
    """

    ledger_id: LedgerId
    missing: tuple[BookieId, ...]
    marked_ms: int | None = None


class ReplicaMarks:
    """The marks of one metadata store. Blocking calls; errors are those of the store."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    def read(self, ledger_id: LedgerId) -> LedgerMark:
        """Return the mark of a ledger."""
        (record,) = self.read_all([ledger_id])
        return record

    def read_all(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerMark]:
        """Return the marks of several ledgers, in their order."""
        records = self._records.read([path_of(ledger_id) for ledger_id in ledger_ids])
        return [_mark(*one) for one in zip(ledger_ids, records, strict=True)]

    def update(
        self,
        ledger_id: LedgerId,
        add: Sequence[MissingReplica] = (),
        remove: Sequence[MissingReplica] = (),
    ) -> LedgerMark:
        """Remove the entries of `remove`, then mark those of `add`, in one step; return the mark as it is then.

        Only code that has verified the copies may remove. Marking twice what is marked changes nothing. A mark that
        nobody can read stays as it is until something is added: then it says that. What it said beside it is found
        again by the auditor's check of all ledgers.
        """
        now_ms = int(time.time() * 1000)
        added = [one if one.marked_ms else replace(one, marked_ms=now_ms) for one in add]
        for _ in range(_TRIES_MAX):
            before, version = self._read(ledger_id)
            after = merged((*without(before, remove), *added))
            if after == before:
                break
            value = to_json(after) if after else None
            try:
                self._records.change([Change(path_of(ledger_id), value, version)])
            except MetadataConflict:
                continue
            break
        else:
            raise MetadataUnavailable(
                f"the mark of ledger {ledger_id} was changed by others {_TRIES_MAX} times: try again"
            )
        self._changed(ledger_id, after, remove)
        return LedgerMark(ledger_id, after)

    def forget(self, ledger_id: LedgerId) -> None:
        """Remove the whole mark of a ledger that was deleted."""
        mark = self.read(ledger_id)
        if mark.fault:
            with suppress(MetadataConflict):
                _, version = self._read(ledger_id)
                if version is not None:
                    self._records.change([Change(path_of(ledger_id), None, version)])
            return
        self.update(ledger_id, remove=mark.missing)

    def list(self) -> Iterator[LedgerMark]:
        """Yield all marks, folder by folder. Marks that come or go meanwhile may be missed."""
        folders = self.folders()
        for start in range(0, len(folders), FOLDERS_AT_ONCE):
            yield from self.list_folders(folders[start : start + FOLDERS_AT_ONCE])
        yield from self.foreign()

    def folders(self) -> Sequence[str]:
        """Return the folders that marks lie in, 256 at most; a ledger's is chosen by its id."""
        return [f"{FOLDER}/{name}" for name in self._records.children(FOLDER)]

    def list_folders(self, folders: Sequence[str]) -> Iterator[LedgerMark]:
        """Yield the marks of some folders, best of `FOLDERS_AT_ONCE`; those that can be read (INV-M17)."""
        listed = zip(folders, self._records.children_of(folders), strict=True)
        ids = _ledger_ids(f"{folder}/{name}" for folder, names in listed for name in names)
        while some := list(islice(ids, READ_AT_ONCE)):
            found = map(_mark, some, each_record(self._records, [path_of(one) for one in some]))
            yield from (mark for mark in found if mark.missing)

    def foreign(self) -> Iterator[LedgerMark]:
        """Yield the marks that only Apache's AutoRecovery made."""
        yield from ()

    def under_replicated(self) -> Iterator[UnderreplicatedLedger]:
        """Yield the marked ledgers as Apache's tools list them: the bookies that lack copies, and since when."""
        for mark in self.list():
            bookies = tuple(dict.fromkeys(one.bookie_id for one in mark.missing))
            since_ms = min(one.marked_ms for one in mark.missing)
            yield UnderreplicatedLedger(mark.ledger_id, bookies, since_ms)

    def _read(self, ledger_id: LedgerId) -> tuple[tuple[MissingReplica, ...], int | None]:
        (found,) = self._records.read([path_of(ledger_id)])
        return _mark(ledger_id, found).missing, None if found is None else found.version

    def _changed(
        self,
        ledger_id: LedgerId,
        marked: tuple[MissingReplica, ...],
        removed: Sequence[MissingReplica],
    ) -> None:
        """Bring what else a store keeps up to date; also called when nothing had to be changed."""


def _mark(ledger_id: LedgerId, record: VersionedRecord | None) -> LedgerMark:
    if record is None:
        return LedgerMark(ledger_id, ())
    try:
        return LedgerMark(ledger_id, from_json(record.value))
    except ValueError as error:
        bad = bad_record(path_of(ledger_id), f"the mark of ledger {ledger_id} is damaged: {error}")
        return LedgerMark(ledger_id, (), bad.reason)


def _ledger_ids(paths: Iterable[str]) -> Iterator[LedgerId]:
    """Yield the ids of the ledgers that these marks are of."""
    for path in paths:
        name = path.rpartition("/")[2]
        ledger_id = int(name, 16) if _NAME.fullmatch(name) else -1
        if ledger_id >= 0 and path_of(ledger_id) == path:
            yield ledger_id
        else:
            bad_record(path, "it is no mark: its name is no ledger's id")


def path_of(ledger_id: LedgerId) -> str:
    """Return the path of a ledger's mark."""
    return f"{FOLDER}/{ledger_id & 0xFF:02x}/{ledger_id:016x}"


def delete_ledger(store: MetadataStore, ledger_id: LedgerId, version: int | None = None) -> None:
    """Delete a ledger (if it still has `version`) and its mark. NoSuchLedger if there is no such ledger."""
    store.delete_ledger(ledger_id, version)
    with suppress(Error):  # reports leave out the mark of a ledger that does not exist
        store.marks.forget(ledger_id)
