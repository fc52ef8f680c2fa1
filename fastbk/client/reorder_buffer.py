"""Entries whose ids the caller chose, held until all before them are there: what is sent is always dense (INV-C1).

So no bookie ever has an entry without the writer having sent the one before it, and a recovery that finds a gap may
rely on it. No I/O.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from fastbk.errors import BufferFull, DuplicateEntryId
from fastbk.model.ids import ID_MAX, EntryId, LedgerId
from fastbk.option_checks import checked_integer

T = TypeVar("T")


class ReorderBuffer(Generic[T]):
    """What came before its turn, each with whatever waits for it. Bounded in entries and bytes.

    Attributes:
        size_bytes: bytes of data held.
    """

    def __init__(self, ledger_id: LedgerId, entries_max: int, bytes_max: int) -> None:
        self.size_bytes = 0
        self._ledger_id = ledger_id
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._held: dict[EntryId, tuple[bytes, T]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, entry_id: EntryId, next_entry_id: EntryId, data: bytes, waiter: T) -> None:
        """Take an entry; `next_entry_id`: the lowest id that was not given yet.

        Raises DuplicateEntryId for one that was, BufferFull when there is no room for one that is not the next.
        """
        checked_integer("entry_id", entry_id, 0, ID_MAX)
        if entry_id < next_entry_id or entry_id in self._held:
            raise DuplicateEntryId(
                f"ledger {self._ledger_id}: entry {entry_id} was appended before: give each id once",
                ledger_id=self._ledger_id,
                entry_id=entry_id,
            )
        is_full = (
            len(self._held) >= self._entries_max or self.size_bytes + len(data) > self._bytes_max
        )
        if is_full and entry_id != next_entry_id:
            raise BufferFull(
                f"ledger {self._ledger_id}: {len(self._held)} entries of {self.size_bytes} bytes wait for"
                f" entry {next_entry_id}; append that one",
                ledger_id=self._ledger_id,
                entry_id=entry_id,
            )
        self._held[entry_id] = (data, waiter)
        self.size_bytes += len(data)

    def size_of(self, entry_id: EntryId) -> int | None:
        """Return the bytes of an entry that is held, None if it is not."""
        held = self._held.get(entry_id)
        return None if held is None else len(held[0])

    def pop(self, entry_id: EntryId) -> tuple[bytes, T]:
        """Give out an entry that is held."""
        data, waiter = self._held.pop(entry_id)
        self.size_bytes -= len(data)
        return data, waiter

    def pop_all(self) -> list[T]:
        """Give up everything that is held; return what waits for it, by id."""
        held, self._held = self._held, {}
        self.size_bytes = 0
        return [waiter for _, (_, waiter) in sorted(held.items(), key=lambda one: one[0])]
