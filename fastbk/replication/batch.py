"""Entries that were encoded together: the unit in which a writer sends and holds them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

from fastbk.model.ids import EntryId

# What one call of C encodes at most, so that it is short.
BATCH_ENTRIES = 2048
BATCH_BYTES = 1024 * 1024

Buffer: TypeAlias = bytes | bytearray | memoryview


class Batch:
    """Consecutive entries that were encoded together.

    Attributes:
        first_entry_id, end_entry_id: the half-open range of ids.
        frames: the encoded adds, one behind the other; beside its data each takes the same number of bytes.
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
    )

    def __init__(
        self,
        first_entry_id: EntryId,
        frames: Buffer,
        data_sizes: Sequence[int],
        length_before: int,
        admitted_s: float,
    ) -> None:
        self.first_entry_id = first_entry_id
        self.end_entry_id = first_entry_id + len(data_sizes)
        self.frames = frames
        self.data_sizes = data_sizes
        self.length_before = length_before
        self.admitted_s = admitted_s

    def offsets(self) -> list[int]:
        """Return where each frame starts in `frames`, and the end: one more than there are entries."""
        sizes = self.data_sizes
        around = (len(self.frames) - sum(sizes)) // len(sizes)
        return list(accumulate((around + size for size in sizes), initial=0))


class BatchBuffer:
    """Batches by their numbers, counted from 0: those from `first` to before `end` are `held`."""

    def __init__(self) -> None:
        self.first = 0
        self.end = 0
        self.held_bytes = 0
        self.held: deque[Batch] = deque()

    def append(self, batch: Batch) -> None:
        """Hold one more."""
        self.held.append(batch)
        self.end += 1
        self.held_bytes += len(batch.frames)

    def __getitem__(self, number: int) -> Batch:
        return self.held[number - self.first]

    def release_first(self) -> None:
        """Drop the first one."""
        self.held_bytes -= len(self.held.popleft().frames)
        self.first += 1


def split(datas: list[bytes], cut: int) -> list[list[bytes]]:
    """Return `datas` in pieces that one call may encode; no piece goes on behind the first `cut` of them."""
    if len(datas) == 1:
        return [datas]
    if len(datas) <= min(BATCH_ENTRIES, cut) and sum(map(len, datas)) <= BATCH_BYTES:
        return [datas]
    pieces: list[list[bytes]] = []
    start = size = 0
    for at, data in enumerate(datas):
        if at > start and (
            at - start >= BATCH_ENTRIES or size + len(data) > BATCH_BYTES or at == cut
        ):
            pieces.append(datas[start:at])
            start, size = at, 0
        size += len(data)
    pieces.append(datas[start:])
    return pieces
