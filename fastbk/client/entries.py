"""What readers hand out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from fastbk.model.ids import EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.actions import Found


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `data` is a view of the answer that it came in: keep `bytes(entry.data)` to keep it alone."""

    ledger_id: LedgerId
    entry_id: EntryId
    data: memoryview


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger as the metadata store has it."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    version: int


class Batch:
    """Entries with consecutive ids that were read together, at least one."""

    __slots__ = ("_found", "first_entry_id", "ledger_id")

    def __init__(self, ledger_id: LedgerId, found: Sequence[Found]) -> None:
        self.ledger_id = ledger_id
        self.first_entry_id = found[0].entry_id
        self._found = found

    @property
    def last_entry_id(self) -> EntryId:
        """The id of the last entry."""
        return self._found[-1].entry_id

    @property
    def datas(self) -> list[memoryview]:
        """The data of all entries in order, without an object for each entry."""
        return cast("list[memoryview]", [data for _, _, _, data in self._found])

    @property
    def lengths(self) -> list[int]:
        """Of each entry: bytes of data of the ledger up to and with it, as its writer said."""
        return [length for _, _, length, _ in self._found]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Entry]:
        for entry_id, _, _, data in self._found:
            # What came over the wire is a view already; a call an entry would be felt.
            yield Entry(self.ledger_id, entry_id, data)  # type: ignore[arg-type]
