"""A file that is only read, in pieces, whatever state its disk is in."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from fastbk.errors import StorageError, os_errors_as
from fastbk.private_files import open_found
from fastbk.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.inspect.items import Item

PAGE_BYTES = 4096
PIECE_BYTES = 1 * MIB
UNREADABLE = b"\xff"
"""Stands for bytes that the disk does not give: no checksum of ours is right about them."""


class FileReader:
    """One file, open for reading; the bytes that its disk fails to read are noted and stood in for.

    Raises StorageError where it cannot be opened, naming it; also for a link, a pipe or a device.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.unreadable: list[int] = []
        """Offsets of the pages that could not be read, each once."""
        with os_errors_as(StorageError, f"{self.path}: cannot be opened"):
            self._file = open_found(self.path)
        self.size_bytes = os.fstat(self._file).st_size
        self._piece_at = 0
        self._piece = b""

    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        """Return the bytes there; fewer only at the end of the file."""
        at = offset_bytes - self._piece_at
        if at >= 0 and at + size_bytes <= len(self._piece):
            return self._piece[at : at + size_bytes]
        if size_bytes >= PIECE_BYTES:
            return self._read(offset_bytes, size_bytes)
        self._piece_at = offset_bytes - offset_bytes % PAGE_BYTES
        self._piece = self._read(self._piece_at, PIECE_BYTES + PAGE_BYTES)
        at = offset_bytes - self._piece_at
        return self._piece[at : at + size_bytes]

    def data_from(self, offset_bytes: int) -> int:
        """Return where the next bytes are that may not be zeros; the end of the file where there are none.

        A file may have holes of any size, which would take for ever to read.
        """
        if offset_bytes >= self.size_bytes:
            return self.size_bytes
        try:
            return min(os.lseek(self._file, offset_bytes, os.SEEK_DATA), self.size_bytes)
        except OSError as error:
            # EINVAL and the like: this file system knows nothing of holes.
            return self.size_bytes if error.errno == errno.ENXIO else offset_bytes

    def damage(self) -> Iterator[Item]:
        """Yield an item for each page that the disk did not give."""
        from fastbk.inspect.items import damage

        for offset_bytes in sorted(self.unreadable):
            yield damage(offset_bytes, "the disk fails to read here", PAGE_BYTES)

    def _read(self, offset_bytes: int, size_bytes: int) -> bytes:
        size_bytes = max(0, min(size_bytes, self.size_bytes - offset_bytes))
        parts = []
        while size_bytes > 0:
            try:
                part = os.pread(self._file, size_bytes, offset_bytes)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise StorageError(f"{self.path}: {error.strerror}") from error
                part = self._page(offset_bytes, size_bytes)
            if not part:
                break
            parts.append(part)
            offset_bytes += len(part)
            size_bytes -= len(part)
        return b"".join(parts)

    def _page(self, offset_bytes: int, size_bytes: int) -> bytes:
        """Return the bytes up to the end of a page, or what stands for them."""
        size_bytes = min(size_bytes, PAGE_BYTES - offset_bytes % PAGE_BYTES)
        try:
            return os.pread(self._file, size_bytes, offset_bytes)
        except OSError as error:
            if error.errno != errno.EIO:
                raise StorageError(f"{self.path}: {error.strerror}") from error
            page = offset_bytes - offset_bytes % PAGE_BYTES
            if page not in self.unreadable:
                self.unreadable.append(page)
            return UNREADABLE * size_bytes

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
