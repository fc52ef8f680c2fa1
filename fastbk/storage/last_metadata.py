"""`metadata.last`: the last metadata that a bookie saw of each ledger it holds, and which ledgers it saw deleted.

It lies in every ledger directory, for `fastbk metadata rebuild`. The gc process alone writes it. It is a log of
records, the last one of a ledger counts; it is rewritten in order of the ids, by rename, when half of it is outdated.

    "FBKSEEN\\0" | version u32 | CRC32C of the 12 bytes before u32
    record: CRC32C of what follows u32 | body bytes u32 | ledger id i64 | number i64 | body

With a body, that is Apache's bytes of ledger metadata, and the number is the version that the store gave them. Without
one, metadata listed no ledger from the id to the number any more. A torn or damaged record ends what is read: what lay
behind it is seen again in the next round, but for deletions.

So nothing is written behind records that may be missing on the disk although memory has them: whoever opens the file to
write, and whoever's sync failed, first writes again what it holds (INV-X7).

Decision 108.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.model.ids import IdRanges
from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.native.hashes import crc32c
from fastbk.safe_files import open_found, replaced, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

NAME = "metadata.last"
MAGIC = b"FBKSEEN\0"
VERSION = 1
BODY_BYTES_MAX = 1 << 20
"""More than a store takes for one ledger."""
DELETED_RANGES_MAX = 500_000
"""With more of them the lowest are forgotten: 12 MB in the file, 80 MB in memory."""
SLACK_BYTES = 1 << 20
"""A file that is no larger than this, and twice what counts in it, is not rewritten."""
BUFFER_BYTES = 1 << 20
CHANGED_MAX = 100_000
"""Ledgers in the dict that is beside the sorted arrays; with more of them the file is rewritten."""
_HEADER = struct.Struct("<8sII")
_RECORD = struct.Struct("<IIqq")


def _header() -> bytes:
    front = MAGIC + VERSION.to_bytes(4, "little")
    return front + crc32c(front).to_bytes(4, "little")


def pack(ledger_id: int, number: int, body: bytes = b"") -> bytes:
    """Return the bytes of a record."""
    rest = _RECORD.pack(0, len(body), ledger_id, number)[4:] + body
    return crc32c(rest).to_bytes(4, "little") + rest


def records(path: Path) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield offset, ledger id, number and body of each record up to the first that is torn; nothing without a file.

    Raises CorruptDataError for a file that is something else, FormatTooNewError, OSError.
    """
    try:
        file = os.fdopen(open_found(path), "rb")
    except FileNotFoundError:
        return
    with file:
        front = file.read(_HEADER.size)
        if front != _header():
            if front[:8] != MAGIC or len(front) < _HEADER.size:
                raise CorruptDataError(f"{path}: no file of this name, or cut short")
            if crc32c(front[:12]) == int.from_bytes(front[12:], "little"):
                raise FormatTooNewError(f"{path}: this fastbk knows version {VERSION}")
            raise CorruptDataError(f"{path}: its header's checksum is wrong")
        at = _HEADER.size
        while len(head := file.read(_RECORD.size)) == _RECORD.size:
            crc, size, ledger_id, number = _RECORD.unpack(head)
            if size > BODY_BYTES_MAX or ledger_id < 0 or (not size and number < ledger_id):
                return
            body = file.read(size)
            if len(body) != size or crc32c(body, crc32c(head[4:])) != crc:
                return
            yield at, ledger_id, number, body
            at += _RECORD.size + size


def read_last_metadata(directory: str | Path) -> tuple[dict[int, tuple[int, bytes]], IdRanges]:
    """Return version and bytes of the last metadata by ledger, and the ids seen deleted. Raises as `records`."""
    seen: dict[int, tuple[int, bytes]] = {}
    deleted = IdRanges()
    for _, ledger_id, number, body in records(Path(directory) / NAME):
        if body:
            seen[ledger_id] = (number, body)
            deleted.remove(ledger_id)
        else:
            deleted.add(ledger_id, number)
    # A ledger is in the ranges if its last record is a deletion. Looked up once: a file may have millions of ranges.
    return {one: last for one, last in seen.items() if one not in deleted}, deleted


class LastMetadata:
    """The file of one ledger directory, for its only writer. 16 bytes of memory a ledger, 100 for a recent change."""

    def __init__(self, directory: str | Path) -> None:
        """Read what is there; a damaged file begins anew. Raises FormatTooNewError, OSError."""
        self._path = Path(directory) / NAME
        self._file = -1
        try:
            self._load()
        except BaseException:
            self._close_file()
            raise

    def _close_file(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _open_file(self) -> None:
        self._close_file()
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)

    def _load(self) -> None:
        """Take in what the file holds, whole records only, and make that durable. Raises as the constructor."""
        self._is_in_doubt = True
        self._buffer = bytearray()
        self._live_bytes = 0
        self._ids, self._offsets = array("q"), array("q")
        self._changed: dict[int, int] = {}
        self.deleted = IdRanges()
        self._end = 0
        self._close_file()
        with suppress(CorruptDataError):
            self._take_in()
        if not self._end:  # by rename: who reads while the bookie runs never meets half a header
            with replaced(self._path) as draft:
                draft.write_bytes(_header())
            self._open_file()
            self._end = _HEADER.size
        self._is_in_doubt = False

    def _take_in(self) -> None:
        """Read all records, and write each again as it was: so what is durable stays so at every moment (INV-X7)."""
        again, at_again = bytearray(_header()), 0
        end = 0
        for at, ledger_id, number, body in records(self._path):
            if not end:
                self._open_file()
            end = at + _RECORD.size + len(body)
            again += pack(ledger_id, number, body)
            if len(again) >= BUFFER_BYTES:
                self._write_at(again, at_again)
                at_again += len(again)
                again.clear()
            if body:
                self.deleted.remove(ledger_id)
                self._changed[ledger_id] = at
            else:
                self.deleted.add(ledger_id, number)
            if len(self._changed) > CHANGED_MAX:
                self._fold()
        self._fold()
        if end:
            self._write_at(again, at_again)
            os.ftruncate(self._file, end)
            os.fdatasync(self._file)
            sync_directory(self._path.parent)
            self._end = end

    def close(self) -> None:
        """Write what is left. Raises OSError."""
        try:
            self.flush()
        finally:
            self._close_file()

    @property
    def size_bytes(self) -> int:
        """Bytes of the file, with what is yet to be written."""
        return self._end + len(self._buffer)

    def see(self, ledger_id: int, version: int, body: bytes) -> bool:
        """Note the metadata of a ledger; return whether it is new. Durable after `flush`. Raises OSError."""
        self._settle()
        if len(body) > BODY_BYTES_MAX or self._body(ledger_id) == (version, body):
            return False
        self._make_room()
        self.deleted.remove(ledger_id)
        self._changed[ledger_id] = self.size_bytes
        self._buffer += pack(ledger_id, version, body)
        return True

    def see_deleted(self, ledger_ids: Sequence[int]) -> None:
        """Note, durably, that metadata lists these ledgers no more. Raises OSError."""
        self._settle()
        for first, last in IdRanges((ledger_id, ledger_id) for ledger_id in ledger_ids):
            self._make_room()
            self.deleted.add(first, last)
            self._buffer += pack(first, last)
        self.flush()

    def flush(self) -> None:
        """Make everything durable. Raises OSError: what waited is seen again, unless the disk has it all the same."""
        self._settle()
        if not self._buffer:
            return
        self._write()
        try:
            os.fdatasync(self._file)
        except OSError:
            self._is_in_doubt = True
            raise

    def _settle(self) -> None:
        """After a failed sync: begin anew with what can be read, which may be less than was written. Raises OSError."""
        if self._is_in_doubt:
            self._load()

    def rewrite_if_due(
        self, is_local: Container[int], *, pause: Callable[[], None] = lambda: None
    ) -> bool:
        """Rewrite the file, if half of it is outdated, without ledgers that are not here. Raises OSError.

        `pause` is called now and then, at least every 1,000 ledgers.
        """
        if (
            len(self._changed) < CHANGED_MAX
            and self.size_bytes < 2 * self._live_bytes + SLACK_BYTES
        ):
            return False
        self.flush()
        self._fold()
        self.deleted.drop_lowest(DELETED_RANGES_MAX)
        ids, offsets, at = array("q"), array("q"), _HEADER.size
        try:
            with replaced(self._path) as draft, draft.open("r+b") as file:
                file.write(_header())
                for first, last in self.deleted:
                    file.write(pack(first, last))
                    at += _RECORD.size
                for nth, (ledger_id, offset) in enumerate(
                    zip(self._ids, self._offsets, strict=True)
                ):
                    if nth % 1000 == 0:
                        pause()
                    if ledger_id not in is_local or ledger_id in self.deleted:
                        continue
                    raw = self._raw(offset)
                    file.write(raw)
                    ids.append(ledger_id)
                    offsets.append(at)
                    at += len(raw)
        except BaseException:
            # The new file may have the name, and not for good.
            self._is_in_doubt = not os.path.samestat(os.stat(self._path), os.fstat(self._file))
            raise
        self._open_file()
        self._ids, self._offsets, self._end, self._live_bytes = ids, offsets, at, at
        return True

    # ---- where a ledger's record lies

    def _in_arrays(self, ledger_id: int) -> int:
        index = bisect_left(self._ids, ledger_id)
        return index if index < len(self._ids) and self._ids[index] == ledger_id else -1

    def _body(self, ledger_id: int) -> tuple[int, bytes] | None:
        if ledger_id in self.deleted:
            return None
        offset = self._changed.get(ledger_id)
        if offset is None:
            index = self._in_arrays(ledger_id)
            if index < 0:
                return None
            offset = self._offsets[index]
        raw = self._raw(offset)
        return _RECORD.unpack_from(raw)[3], raw[_RECORD.size :]

    def _raw(self, offset: int) -> bytes:
        if offset >= self._end:
            raw, index = bytes(self._buffer), offset - self._end
        else:
            raw, index = os.pread(self._file, 4096, offset), 0
        size = _RECORD.size + _RECORD.unpack_from(raw, index)[1]
        if offset < self._end and size > len(raw):
            raw = os.pread(self._file, size, offset)
        return raw[index : index + size]

    def _fold(self) -> None:
        """Bring what is in the dict into the arrays."""
        if not self._changed:
            return
        both = dict(zip(self._ids, self._offsets, strict=True))
        both.update(self._changed)
        order = sorted(both)
        self._ids = array("q", order)
        self._offsets = array("q", map(both.__getitem__, order))
        self._changed.clear()

    def _make_room(self) -> None:
        """Write what waits, if that is much: while the disk takes nothing, nothing more is taken into memory."""
        if len(self._buffer) >= BUFFER_BYTES:
            self._write()

    def _write(self) -> None:
        self._write_at(self._buffer, self._end)
        self._end += len(self._buffer)
        self._buffer.clear()

    def _write_at(self, data: bytearray, offset: int) -> None:
        written = 0
        while written < len(data):
            written += os.pwrite(self._file, data[written:], offset + written)
