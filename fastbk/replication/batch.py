"""Entries that were encoded together: the unit in which a writer sends and holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from fastbk.model.ids import EntryId

# What one call of C encodes at most, so that it is short.
BATCH_ENTRIES = 2048
BATCH_BYTES = 1024 * 1024

_COMPACT_COUNT = 256

Buffer: TypeAlias = bytes | bytearray | memoryview


class Batch:
    """Consecutive entries that were encoded together.

    Attributes:
        first_entry_id, end_entry_id: the half-open range of ids.
        frames: the encoded adds, one behind the other.
        offsets: where each frame starts in `frames`, and the end; one more than there are entries.
        data_sizes: bytes of data of each entry.
        length_before: the ledger's length before the first entry.
        admitted_s: the clock when it was encoded.
    """

    __slots__ = (
        "admitted_s",
        "data_sizes",
        "end_entry_id",
        "first_entry_id",
        "frames",
        "length_before",
        "offsets",
    )

    def __init__(
        self,
        first_entry_id: EntryId,
        frames: Buffer,
        offsets: Sequence[int],
        data_sizes: Sequence[int],
        length_before: int,
        admitted_s: float,
    ) -> None:
        self.first_entry_id = first_entry_id
        self.end_entry_id = first_entry_id + len(data_sizes)
        self.frames = frames
        self.offsets = offsets
        self.data_sizes = data_sizes
        self.length_before = length_before
        self.admitted_s = admitted_s


class BatchBuffer:
    """Batches by their numbers, counted from 0; those before `first` have been let go."""

    def __init__(self) -> None:
        self.first = 0
        self.held_bytes = 0
        self._batches: list[Batch | None] = []
        self._base = 0

    @property
    def end(self) -> int:
        """The number that the next batch gets."""
        return self._base + len(self._batches)

    def append(self, batch: Batch) -> None:
        """Hold one more."""
        self._batches.append(batch)
        self.held_bytes += len(batch.frames)

    def __getitem__(self, number: int) -> Batch:
        batch = self._batches[number - self._base]
        assert batch is not None
        return batch

    def release_first(self) -> None:
        """Drop the first one."""
        self.held_bytes -= len(self[self.first].frames)
        self._batches[self.first - self._base] = None
        self.first += 1
        dropped = self.first - self._base
        # The front of a list is dear to remove: many at a time, or when nothing else is left.
        if dropped == len(self._batches) or dropped >= _COMPACT_COUNT:
            del self._batches[:dropped]
            self._base = self.first


def split(datas: list[bytes], entries_max: int = BATCH_ENTRIES) -> list[list[bytes]]:
    """Return `datas` in pieces that one call may encode."""
    if len(datas) <= entries_max and sum(map(len, datas)) <= BATCH_BYTES:
        return [datas]
    pieces: list[list[bytes]] = []
    start = size = 0
    for at, data in enumerate(datas):
        if at > start and (at - start >= entries_max or size + len(data) > BATCH_BYTES):
            pieces.append(datas[start:at])
            start, size = at, 0
        size += len(data)
    pieces.append(datas[start:])
    return pieces
