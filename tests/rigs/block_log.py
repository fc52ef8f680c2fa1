"""The log of a block device, and the images that a power cut may leave of it.

What was written before a flush was answered is durable. Of every write behind the last flush each sector of 512 bytes
is there or not, by one of three models: `lost`: none is; `random`: each with an even chance, in the order of the
writes; `reordered`: of all versions of a sector, the durable one included, any.
"""

from __future__ import annotations

import os
import random
import struct
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

WRITE, FLUSH = 1, 2
SECTOR_BYTES = 512
MODELS = ("lost", "random", "reordered")
_HEADER = struct.Struct("<IIQ")


def header(kind: int, offset_bytes: int, size_bytes: int) -> bytes:
    """Return the bytes before one event's data."""
    return _HEADER.pack(kind, size_bytes, offset_bytes)


@dataclass(frozen=True)
class Event:
    """A write or a flush. `data_at`: where its data lies in the log. `end`: of its bytes in the log."""

    kind: int
    offset_bytes: int
    size_bytes: int
    data_at: int
    end: int


class BlockLog:
    """A log that is not written to any more."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        self.events: list[Event] = []
        at = 0
        while at < len(self._data):
            kind, size, offset = _HEADER.unpack_from(self._data, at)
            self.events.append(
                Event(kind, offset, size, at + _HEADER.size, at + _HEADER.size + size)
            )
            at += _HEADER.size + size
        self._ends = [event.end for event in self.events]

    def index_of(self, position: int) -> int:
        """Return how many events the log's first `position` bytes hold."""
        return bisect_left(self._ends, position + 1)

    def data(self, event: Event) -> memoryview:
        """Return what a write wrote."""
        return memoryview(self._data)[event.data_at : event.end]


class Images:
    """Builds images of a device at rising cuts. Files lie in `folder`, which should be in memory."""

    def __init__(
        self, base: Path, log: BlockLog, folder: Path, *, honours_flushes: bool = True
    ) -> None:
        """Begin with the image before the log's first event.

        Args:
            honours_flushes: False: the device lies, nothing since its first write is ever safe.
        """
        self._log = log
        self._folder = folder
        self._durable = folder / "durable"
        copy_sparse(base, self._durable)
        self._file = os.open(self._durable, os.O_RDWR)
        self._applied = 0
        self._pending: list[Event] = []
        self._honours_flushes = honours_flushes

    def image(self, cut: int, model: str, rng: random.Random, name: str = "image") -> Path:
        """Return an image of the moment when `cut` events were done; cuts may not fall. The caller removes it."""
        for event in self._log.events[self._applied : cut]:
            if event.kind == WRITE:
                self._pending.append(event)
            elif self._honours_flushes:
                for write in self._pending:
                    os.pwrite(self._file, self._log.data(write), write.offset_bytes)
                self._pending.clear()
        self._applied = cut
        path = self._folder / name
        copy_sparse(self._durable, path)
        if model != "lost":
            self._apply(path, rng, reordered=model == "reordered")
        return path

    @property
    def pending(self) -> int:
        """Writes that are not durable at the last cut."""
        return len(self._pending)

    def _apply(self, path: Path, rng: random.Random, *, reordered: bool) -> None:
        file = os.open(path, os.O_RDWR)
        try:
            versions: dict[int, list[memoryview]] = {}
            for write in self._pending:
                data = self._log.data(write)
                for at in range(0, len(data), SECTOR_BYTES):
                    sector = (write.offset_bytes + at) // SECTOR_BYTES
                    versions.setdefault(sector, []).append(data[at : at + SECTOR_BYTES])
            for sector, datas in versions.items():
                if reordered:
                    chosen = rng.randrange(-1, len(datas))
                else:
                    kept = [n for n in range(len(datas)) if rng.getrandbits(1)]
                    chosen = kept[-1] if kept else -1
                if chosen >= 0:
                    os.pwrite(file, datas[chosen], sector * SECTOR_BYTES)
        finally:
            os.close(file)

    def close(self) -> None:
        """Remove what was made, but for images."""
        os.close(self._file)
        self._durable.unlink()


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file's data and leave its holes out."""
    with open(source, "rb") as reading, open(target, "wb") as writing:
        end = os.fstat(reading.fileno()).st_size
        os.ftruncate(writing.fileno(), end)
        at = 0
        while at < end:
            try:
                at = os.lseek(reading.fileno(), at, os.SEEK_DATA)
            except OSError:
                break  # only a hole is left
            hole = os.lseek(reading.fileno(), at, os.SEEK_HOLE)
            os.lseek(writing.fileno(), at, os.SEEK_SET)
            while at < hole:
                at += os.sendfile(writing.fileno(), reading.fileno(), at, hole - at)
