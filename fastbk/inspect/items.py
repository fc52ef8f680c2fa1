"""What all readers share: the items that they yield, a file that is only read, and where salvaged entries go.

There is one item for each thing found in a file, and for each stretch that cannot be read.
`FileReader` reads a file in pieces, whatever state its disk is in.
`Salvage` writes the entries that could be read to a place of their own: one JSON object a line, one file a ledger.

    {"ledger_id", "entry_id", "last_add_confirmed", "length", "entry": the stored bytes in base64, digest included}

Nothing is joined or left out: an entry that lies in two places is written twice, in the order of reading.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import struct
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fastbk.errors import StorageError, os_errors_as
from fastbk.safe_files import make_directory, open_found, opener
from fastbk.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

Fact = int | str | bool | None | list[object] | dict[str, object]

DAMAGE = "damage"
END = "end"
TOTAL = "total"

ENTRY_HEADER = struct.Struct(">qqqq")
"""Apache's: ledger, entry, last add confirmed, length."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing found.

    Attributes:
        what: its kind: "header", "batch", "fence", "run", "entry", "location", "state", ...; "damage": bytes that
            cannot be read; "end": where the content ends, and why; "total": figures of the whole file.
        offset_bytes: where in the file.
        facts: what is known of it, by name.
        entry: of an "entry": its bytes as they are stored, verified.
    """

    what: str
    offset_bytes: int
    facts: dict[str, Fact] = field(default_factory=dict)
    entry: bytes | None = None

    @property
    def is_damage(self) -> bool:
        """Whether this is something that should be there and cannot be read."""
        return self.what == DAMAGE

    def number(self, name: str) -> int:
        """Return a fact that is a whole number."""
        value = self.facts[name]
        assert isinstance(value, int)
        return value

    def covers(self, ledger_id: int | None, entry_id: int | None) -> bool:
        """Return whether it speaks of this ledger and entry; None asks for any. Damage and ends always do."""
        if self.what in (DAMAGE, END, TOTAL, "header"):
            return True
        if ledger_id is None and entry_id is None:
            return True
        if ledger_id is not None and self.facts.get("ledger_id") != ledger_id:
            return False
        if entry_id is None:
            return True
        first = self.facts.get("first_entry_id", self.facts.get("entry_id"))
        last = self.facts.get("last_entry_id", first)
        return isinstance(first, int) and isinstance(last, int) and first <= entry_id <= last


def damage(offset_bytes: int, reason: str, size_bytes: int | None = None, **facts: Fact) -> Item:
    """Return an item for bytes that cannot be read; `size_bytes` where it is known how many."""
    shown: dict[str, Fact] = {"reason": reason, **facts}
    if size_bytes is not None:
        shown["size_bytes"] = size_bytes
    return Item(DAMAGE, offset_bytes, shown)


def entry_item(
    offset_bytes: int, ledger_id: int, entry_id: int, raw: bytes, *, is_whole: bool
) -> Item:
    """Return an "entry" if its checksum is right and it carries these ids, else a "damage" that names them."""
    ids: dict[str, Fact] = {"ledger_id": ledger_id, "entry_id": entry_id}
    if not is_whole:
        return damage(offset_bytes, "an entry's checksum is wrong", len(raw), **ids)
    if len(raw) < ENTRY_HEADER.size:
        return damage(offset_bytes, "an entry is shorter than its header", len(raw), **ids)
    own_ledger_id, own_entry_id, lac, length = ENTRY_HEADER.unpack_from(raw)
    if (own_ledger_id, own_entry_id) != (ledger_id, entry_id):
        reason = f"an entry says that it is entry {own_entry_id} of ledger {own_ledger_id}"
        return damage(offset_bytes, reason, len(raw), **ids)
    facts = {**ids, "last_add_confirmed": lac, "length": length, "size_bytes": len(raw)}
    return Item("entry", offset_bytes, facts, raw)


class Counter:
    """Counts what passes, for a file's "total"."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._entry_bytes = 0

    def through(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield all items, then the total."""
        last = 0
        for item in items:
            self._counts[item.what] = self._counts.get(item.what, 0) + 1
            self._entry_bytes += len(item.entry or b"")
            last = max(last, item.offset_bytes)
            yield item
        facts: dict[str, Fact] = {_plural(what): count for what, count in self._counts.items()}
        facts.pop("headers", None)
        facts.pop("ends", None)
        if "entries" in facts:
            facts["entry_bytes"] = self._entry_bytes
        yield Item(TOTAL, last, facts)


def _plural(what: str) -> str:
    irregular = {"entry": "entries", DAMAGE: "damaged", "batch": "batches"}
    return irregular.get(what, f"{what}s")


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
        offset = offset_bytes - self._piece_at
        if offset >= 0 and offset + size_bytes <= len(self._piece):
            return self._piece[offset : offset + size_bytes]
        if size_bytes >= PIECE_BYTES:
            return self._read(offset_bytes, size_bytes)
        self._piece_at = offset_bytes - offset_bytes % PAGE_BYTES
        self._piece = self._read(self._piece_at, PIECE_BYTES + PAGE_BYTES)
        offset = offset_bytes - self._piece_at
        return self._piece[offset : offset + size_bytes]

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


OPEN_FILES_MAX = 64
ENDING = ".jsonl"


def line_of(item: Item) -> str:
    """Return an entry's line."""
    names = ("ledger_id", "entry_id", "last_add_confirmed", "length")
    facts = {name: item.facts[name] for name in names}
    entry = base64.b64encode(item.entry or b"").decode()
    return json.dumps({**facts, "entry": entry}) + "\n"


class Salvage:
    """A directory, made if it is not there, in which each ledger gets a file. Refuses one that holds such files."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._open: OrderedDict[int, TextIO] = OrderedDict()
        self.entries = 0
        self.ledgers: set[int] = set()
        with os_errors_as(StorageError, directory):
            make_directory(Path(directory).absolute())
            names = [name for name in os.listdir(directory) if name.endswith(ENDING)]
        if names:
            raise StorageError(
                f"{directory} holds salvaged entries already: name another directory"
            )

    def take(self, item: Item) -> None:
        """Write an entry. Raises StorageError where there is no room."""
        ledger_id = item.number("ledger_id")
        with os_errors_as(StorageError, self._directory):
            self._file(ledger_id).write(line_of(item))
        self.entries += 1

    def _file(self, ledger_id: int) -> TextIO:
        file = self._open.get(ledger_id)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                _, oldest = self._open.popitem(last=False)
                oldest.close()
            path = f"{self._directory}/{ledger_id}{ENDING}"
            file = open(path, "a", encoding="ascii", opener=opener)  # noqa: SIM115 -- closed when it is the oldest, or at the end
            self._open[ledger_id] = file
            self.ledgers.add(ledger_id)
        self._open.move_to_end(ledger_id)
        return file

    def close(self) -> None:
        """Write out and close everything. Raises StorageError where there is no room."""
        with os_errors_as(StorageError, self._directory):
            while self._open:
                self._open.popitem()[1].close()
