"""What readers hand out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fastbk.model.ids import EntryId, LedgerId


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `data` is a view of the answer that it came in: keep `bytes(entry.data)` to keep it alone."""

    ledger_id: LedgerId
    entry_id: EntryId
    data: memoryview


class Batch:
    """Entries with consecutive ids that came in one answer, at least one."""

    __slots__ = ("first_entry_id", "ledger_id", "_found")

    def __init__(
        self, ledger_id: LedgerId, found: list[tuple[EntryId, EntryId, memoryview]]
    ) -> None:
        self.ledger_id = ledger_id
        self.first_entry_id = found[0][0]
        self._found = found

    @property
    def last_entry_id(self) -> EntryId:
        """The id of the last entry."""
        return self._found[-1][0]

    @property
    def datas(self) -> list[memoryview]:
        """The data of all entries in order, without an object for each entry."""
        return [data for _, _, data in self._found]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Entry]:
        for entry_id, _, data in self._found:
            yield Entry(self.ledger_id, entry_id, data)
