"""Reads the index files of InterleavedLedgerStorage and SortedLedgerStorage: `<hex>/<hex>/<ledger>.idx`, one a ledger.

    "BKLE" | version i32 | key's length i32 | key | state i32 | of version 1: explicit LAC's length i32 | body
    | zeros up to 1024, then a location i64 for each entry from 0 on, 0 for none

The folders are named by the last byte but one and the last byte of the ledger's id. Bit 0 of the state: fenced. A file
is as long as its highest entry wants, in pages; a crash may cut the last page short, or the header of a new file. All
numbers are big-endian.
"""

from __future__ import annotations

import array
import errno
import os
import struct
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING

from fastbk.apache.importer.directories import FOLDER
from fastbk.apache.importer.index import NOWHERE, UNKNOWN, Listed, is_location
from fastbk.apache.importer.records import Damage
from fastbk.errors import StorageError
from fastbk.private_files import open_found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from fastbk.apache.importer.records import Report

ENDING, MOVED_ENDING = ".idx", ".idx.rloc"
"""The second one: it was being moved to another directory. Apache's bookie takes it when there is no other."""
MAGIC = b"BKLE"
HEADER_BYTES = 1024
VERSIONS = (0, 1)
FENCED_BIT = 1
LAC_BYTES_MIN = 16
PAGES_KEPT = 1024
_PAGE_BYTES = 8192
_PIECE_BYTES = 1 << 20
_LOCATION_BYTES = 8
_INT = struct.Struct(">i")
_HEXADECIMAL = set("0123456789abcdef")


def read_header(raw: bytes, ledger_id: int) -> Listed:
    """Return what the first `HEADER_BYTES` of an index file say; ValueError with the reason if they make no sense.

    EOFError: they are cut short.
    """
    at = 0

    def take(size_bytes: int) -> bytes:
        nonlocal at
        if size_bytes < 0 or at + size_bytes > HEADER_BYTES:
            raise ValueError(f"a length of {size_bytes} in its header")
        if at + size_bytes > len(raw):
            raise EOFError("its header is cut short")
        at += size_bytes
        return raw[at - size_bytes : at]

    def number() -> int:
        return int(_INT.unpack(take(_INT.size))[0])

    if take(len(MAGIC)) != MAGIC:
        raise ValueError("no header of an index file")
    version = number()
    if version not in VERSIONS:
        raise ValueError(f"an index file of version {version}, {VERSIONS[-1]} is known")
    key = take(number())
    state = number()
    lac = take(number()) if version >= 1 else b""
    if 0 < len(lac) < LAC_BYTES_MIN:
        raise ValueError(f"an explicit LAC of {len(lac)} bytes")
    return Listed(ledger_id, bool(state & FENCED_BIT), master_key=key, explicit_lac=lac)


class IndexFiles:
    """All index files of a bookie. Memory: some 100 bytes a ledger, and `PAGES_KEPT` pages."""

    def __init__(self, directories: Sequence[Path], report: Report) -> None:
        """Find them. Raises StorageError where a directory cannot be read.

        Args:
            directories: the index directories, those that have `current`.
            report: told of damage; at the end of a file it is what a crash leaves.
        """
        self.name = "index files in " + ", ".join(map(str, directories))
        self._report = report
        self._folders = [directory / FOLDER for directory in directories]
        self._found: dict[int, int] = {}
        """Ledger -> its folder's number, doubled, and 1 more if the file was being moved."""
        self._pages: OrderedDict[tuple[int, int], bytes | None] = OrderedDict()
        for index in range(len(self._folders)):
            self._scan(index)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._found)

    def covers(self, log: Path) -> bool:
        """Return True: all entry logs of a bookie are numbered in one row."""
        return bool(self._found)

    def ledgers(self) -> Iterator[Listed]:
        """Yield what the headers say; of a damaged one, that the ledger is there."""
        for ledger_id in sorted(self._found):
            path = self._path(ledger_id)
            try:
                yield read_header(self._read(path, 0, HEADER_BYTES), ledger_id)
                continue
            except EOFError as error:
                damage = Damage(path, 0, 0, str(error), is_tail=True)
            except (OSError, ValueError) as error:
                damage = Damage(path, 0, HEADER_BYTES, str(error))
            self._report(damage)
            yield Listed(ledger_id)

    def location(self, ledger_id: int, entry_id: int) -> int:
        """Return where an entry counts, `NOWHERE`, or `UNKNOWN`. Damage is reported by `entries`, not here."""
        if ledger_id not in self._found:
            return NOWHERE
        number, at = divmod(entry_id * _LOCATION_BYTES, _PAGE_BYTES)
        page = self._page(ledger_id, number)
        if page is None:
            return UNKNOWN
        raw = page[at : at + _LOCATION_BYTES]
        value = int.from_bytes(raw, "big", signed=True) if len(raw) == _LOCATION_BYTES else NOWHERE
        return value if value == NOWHERE or is_location(value) else UNKNOWN

    def entries(self, is_wanted: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
        """Yield ledger and entry of all that they name; report positions that make no sense, and cut off ends."""
        for ledger_id in sorted(self._found):
            if is_wanted(ledger_id):
                path = self._path(ledger_id)
                try:
                    for entry_id in self._entries(path):
                        yield ledger_id, entry_id
                except OSError as error:
                    self._report(Damage(path, HEADER_BYTES, 0, f"cannot be read: {error}"))

    def close(self) -> None:
        """Forget the pages."""
        self._pages.clear()

    def _entries(self, path: str) -> Iterator[int]:
        file = open_found(path)
        try:
            size_bytes = os.fstat(file).st_size
            at, wrong, first_wrong = HEADER_BYTES, 0, 0
            # Files of ledgers whose other entries are on other bookies have holes, which are not read.
            while (at := _data_from(file, at)) >= 0:
                piece = os.pread(file, _PIECE_BYTES, at)
                whole_bytes = len(piece) - len(piece) % _LOCATION_BYTES
                if not whole_bytes:
                    break
                if piece.count(0) != len(piece):
                    values = array.array("q", piece[:whole_bytes])
                    if sys.byteorder == "little":
                        values.byteswap()
                    first = (at - HEADER_BYTES) // _LOCATION_BYTES
                    for entry_id, value in enumerate(values, first):
                        if value:
                            if is_location(value):
                                yield entry_id
                            else:
                                first_wrong = first_wrong if wrong else entry_id
                                wrong += 1
                at += whole_bytes
            if wrong:
                offset_bytes = HEADER_BYTES + first_wrong * _LOCATION_BYTES
                reason = f"{wrong} positions, that of entry {first_wrong} first, are none"
                self._report(Damage(path, offset_bytes, wrong * _LOCATION_BYTES, reason))
            if over := max(0, size_bytes - HEADER_BYTES) % _LOCATION_BYTES:
                reason = "the end is cut short"
                self._report(Damage(path, size_bytes - over, over, reason, is_tail=True))
        finally:
            os.close(file)

    def _page(self, ledger_id: int, number: int) -> bytes | None:
        key = ledger_id, number
        if key in self._pages:
            self._pages.move_to_end(key)
            return self._pages[key]
        page: bytes | None = None
        offset_bytes = HEADER_BYTES + number * _PAGE_BYTES
        try:
            # The kernel knows no offsets above that; no file has an entry there.
            page = b""
            if offset_bytes < 1 << 62:
                page = self._read(self._path(ledger_id), offset_bytes, _PAGE_BYTES)
        except OSError:
            page = None
        self._pages[key] = page
        if len(self._pages) > PAGES_KEPT:
            self._pages.popitem(last=False)
        return page

    @staticmethod
    def _read(path: str, offset_bytes: int, size_bytes: int) -> bytes:
        file = open_found(path)
        try:
            return os.pread(file, size_bytes, offset_bytes)
        finally:
            os.close(file)

    def _path(self, ledger_id: int) -> str:
        index, is_moved = divmod(self._found[ledger_id], 2)
        return (
            f"{self._folders[index]}/{_relative(ledger_id)}{MOVED_ENDING if is_moved else ENDING}"
        )

    def _scan(self, index: int) -> None:
        root = str(self._folders[index])
        for upper in _folders_in(root):
            for lower in _folders_in(f"{root}/{upper}"):
                for name in _names(f"{root}/{upper}/{lower}"):
                    self._note(index, f"{upper}/{lower}/{name}")

    def _note(self, index: int, relative: str) -> None:
        is_moved = relative.endswith(MOVED_ENDING)
        ending = MOVED_ENDING if is_moved else ENDING
        stem = relative.rpartition("/")[2].removesuffix(ending)
        if not relative.endswith(ending) or not stem or set(stem) - _HEXADECIMAL:
            return
        ledger_id = int(stem, 16)
        if ledger_id >= 1 << 63 or relative != _relative(ledger_id) + ending:
            reason = "an index file in a place where its ledger's is not looked for"
            self._report(Damage(f"{self._folders[index]}/{relative}", 0, 0, reason))
        elif not is_moved or ledger_id not in self._found:
            self._found[ledger_id] = index * 2 + is_moved


def _relative(ledger_id: int) -> str:
    """Return the path of a ledger's index file without its ending."""
    return f"{ledger_id >> 8 & 0xFF:x}/{ledger_id & 0xFF:x}/{ledger_id:x}"


def _data_from(file: int, offset_bytes: int) -> int:
    """Return where the next location lies that may not be in a hole, -1: there is none."""
    try:
        found = os.lseek(file, offset_bytes, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return -1
        if error.errno == errno.EINVAL:
            return offset_bytes  # this file system knows nothing of holes
        raise
    return max(found - (found - HEADER_BYTES) % _LOCATION_BYTES, offset_bytes)


def _folders_in(path: str) -> list[str]:
    return [name for name in _names(path) if len(name) <= 2 and not set(name) - _HEXADECIMAL]


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except NotADirectoryError:
        return []
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
