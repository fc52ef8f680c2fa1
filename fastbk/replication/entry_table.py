"""Entries of one answer as a table: what readers pass on without an object for each entry."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import cast, overload

from fastbk.native.client_codec import EntrySums, entry_sums
from fastbk.replication.procedure import Found

WORDS = 5
"""Words of an entry in the table: its id, its LAC, the ledger's length behind it, where its data begins, its bytes."""
_ID, _LAC, _LENGTH, _AT, _BYTES = range(WORDS)


class EntryTable(Sequence[Found]):
    """Entries whose digests are good and whose ids ascend; a `Found` is made only of what is looked at.

    `data`: what they lie in, which lives as long as any part of this does. `words`: the table.
    """

    __slots__ = ("_known_sums", "_last", "data", "words")

    def __init__(self, data: bytes | memoryview, words: array[int]) -> None:
        self.data = data
        self.words = words
        self._last = len(words) // WORDS
        self._known_sums: EntrySums | None = None

    def __len__(self) -> int:
        return self._last

    @overload
    def __getitem__(self, index: int) -> Found: ...
    @overload
    def __getitem__(self, index: slice) -> EntryTable: ...
    def __getitem__(self, index: int | slice) -> Found | EntryTable:
        """Return an entry, or a run of consecutive ones in the same memory."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self._last)
            if step != 1:
                raise ValueError("a run's entries follow each other: slices have no step")
            return EntryTable(self.data, self.words[WORDS * start : WORDS * max(start, stop)])
        if not -self._last <= index < self._last:
            raise IndexError(f"entry {index} of {self._last}")
        at = WORDS * (index % self._last)
        entry_id, lac, length, start, size = self.words[at : at + WORDS]
        return Found(entry_id, lac, length, memoryview(self.data)[start : start + size])

    def __iter__(self) -> Iterator[Found]:
        words = self.words.tolist()
        columns = (words[_ID::WORDS], words[_LAC::WORDS], words[_LENGTH::WORDS], self.datas)
        # As `Found(*row)` for each row, at a third of its cost.
        return map(tuple.__new__, repeat(Found), zip(*columns, strict=True))

    @property
    def datas(self) -> list[memoryview]:
        """The data of all entries, as views."""
        view, words = memoryview(self.data), self.words
        starts, sizes = words[_AT::WORDS], words[_BYTES::WORDS]
        return [view[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    @property
    def lengths(self) -> array[int]:
        """For each entry the bytes of data of the ledger up to and with it, as its writer said."""
        return self.words[_LENGTH::WORDS]

    @property
    def _sums(self) -> EntrySums:
        """Looked up several times on an entry's way; in Python a number would be made for each entry."""
        if self._known_sums is None:
            self._known_sums = entry_sums(self.words)
        return self._known_sums

    @property
    def lac_max(self) -> int:
        """The highest LAC of at least one entry."""
        return self._sums.lac_max

    @property
    def size_bytes(self) -> int:
        """Bytes of data of all entries."""
        return self._sums.data_bytes


def table_of(found: Sequence[Found]) -> EntryTable:
    """Return entries as a table: themselves if they are one, else of copies of their data."""
    if isinstance(found, EntryTable):
        return found
    words = array("q")
    at = 0
    for entry_id, lac, length, data in found:
        words.extend((entry_id, lac, length, at, len(data)))
        at += len(data)
    return EntryTable(b"".join([one.data for one in found]), words)


def size_bytes_of(found: Sequence[Found]) -> int:
    """Return the bytes of data of entries."""
    if isinstance(found, EntryTable):
        return found.size_bytes
    return sum([len(one.data) for one in found])


def datas_of(found: Sequence[Found]) -> list[memoryview]:
    """Return the data of entries, without an object for each entry where they are a run."""
    if isinstance(found, EntryTable):
        return found.datas
    return cast("list[memoryview]", [data for _, _, _, data in found])
