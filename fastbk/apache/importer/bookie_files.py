"""The files of an Apache bookie: records and damage, journals and entry logs, and which files of its directories count.

Apache's journals and entry logs have no checksums of their own. What can be checked is an entry's digest, by whoever
knows its ledger's metadata (`LedgerTable`); that is how a reader finds its way again behind a length that makes no
sense.

What lies in such a file may be forged: clients choose the bytes of entries. So the work of finding the way again is
linear in the size of the file, whatever is in it (`Resync`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.errors import StorageError, os_errors_as
from fastbk.meta.api import all_ledgers
from fastbk.meta.records import BadRecord
from fastbk.model import cookie as cookies
from fastbk.model.entry import (
    DIGEST_BYTES,
    HEADER_BYTES,
    DigestType,
    digest,
    master_key,
    parse_lac_body,
)
from fastbk.model.ledger import LedgerState
from fastbk.native.hashes import crc32c
from fastbk.safe_files import open_found, read_found
from fastbk.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastbk.inspect.items import FileReader
    from fastbk.meta.api import MetadataStore
    from fastbk.model.cookie import Cookie
    from fastbk.model.ids import BookieId
    from fastbk.model.ledger import LedgerMetadata

RECORD_BYTES_MAX = 64 * MIB
"""A length above it is taken for damage: Apache's bookies take frames of 5 MiB unless told otherwise."""
LENGTH = struct.Struct(">i")
IDS = struct.Struct(">qq")
_WINDOW_BYTES_MIN, _WINDOW_BYTES_MAX = 256, 1 * MIB
_ALLOWANCE_BYTES = 128 * MIB
_ALLOWANCE_A_BYTE = 8
_NOT_ZERO = re.compile(rb"[^\0]")

Record = tuple[int, int, bytes, int]
"""Ledger, entry, all bytes from the ledger's id on, and where in the file they begin."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a file that say nothing.

    Attributes:
        path: of the file.
        offset_bytes, size_bytes: where, and how much was passed over.
        reason: for people.
        is_tail: nothing whole follows in this file: a write that was cut off looks so, too.
    """

    path: str
    offset_bytes: int
    size_bytes: int
    reason: str
    is_tail: bool = False

    def __str__(self) -> str:
        return f"{self.path} at {self.offset_bytes}: {self.reason}; {self.size_bytes} bytes are passed over"


Report = Callable[[Damage], None]


class Resync:
    """Finds the next whole record of one file behind damage.

    Candidates are checked, and lengths are taken back, only within an allowance that grows with the bytes that were
    passed: 8 bytes a byte, and 128 MiB. Beyond it a candidate counts as none.
    """

    def __init__(self, source: FileReader, known: LedgerTable, report: Report) -> None:
        """`report`: told of damage."""
        self._source = source
        self._known = known
        self._report = report
        self._reached = 0
        self._spent = 0

    def pass_over(self, at: int, before: int, reason: str) -> int:
        """Report damage and return where reading goes on: at the next whole entry, or the end of the file.

        Args:
            at: where a record should begin and none does.
            before: where the record before it begins, -1 for none: if that is no whole entry, its length may be what
                is damaged, and the next one lies within it.
            reason: for people.
        """
        start = at
        if before >= 0 and self._may_read(at, at - before):
            raw = self._source.read(before + LENGTH.size, at - before - LENGTH.size)
            ledger_id, entry_id = IDS.unpack_from(raw)
            if min(ledger_id, entry_id) < 0 or not self._known.is_whole(ledger_id, raw):
                start = before
        record = self._find_record(start + 1)
        end = self._source.size_bytes if record < 0 else record
        self._report(Damage(self._source.path, start, end - start, reason, record < 0))
        return end

    def _may_read(self, at: int, size_bytes: int) -> bool:
        """Take so many bytes from the allowance, as it is at this place of the file; False: there are not as many."""
        self._reached = max(self._reached, at)
        spent = self._spent + size_bytes
        if spent > _ALLOWANCE_BYTES + _ALLOWANCE_A_BYTE * self._reached:
            return False
        self._spent = spent
        return True

    def _find_record(self, from_bytes: int) -> int:
        """Return where the next record with a whole entry begins, at its length; -1: there is none up to the end.

        Every offset from `from_bytes` on is a candidate. Records of 16 MiB and more are not found: their lengths do
        not begin with a zero, which is what is searched for.
        """
        reach = LENGTH.size + IDS.size
        source, window_at, window_bytes = self._source, from_bytes, _WINDOW_BYTES_MIN
        while window_at + reach <= source.size_bytes:
            # What begins in a hole has a length of 0, but for the zeros that a length begins with.
            window_at = max(window_at, source.data_from(window_at) - LENGTH.size)
            window = source.read(window_at, window_bytes + reach)
            end = min(len(window) - reach + 1, window_bytes)
            index = window.find(b"\0", 0, end)
            while index >= 0:
                if self._begins_record(window_at + index, window, index):
                    return window_at + index
                index = window.find(b"\0", _past_zeros(window, index), end)
            window_at += window_bytes
            # The next record is near where damage is small: large windows would be read again and again.
            window_bytes = min(4 * window_bytes, _WINDOW_BYTES_MAX)
        return -1

    def _begins_record(self, offset_bytes: int, window: bytes, at: int) -> bool:
        (size_bytes,) = LENGTH.unpack_from(window, at)
        source = self._source
        if not HEADER_BYTES <= size_bytes <= source.size_bytes - offset_bytes - LENGTH.size:
            return False
        ledger_id, entry_id = IDS.unpack_from(window, at + LENGTH.size)
        if ledger_id < 0 or entry_id < 0 or not self._known.is_provable(ledger_id):
            return False
        if not self._may_read(offset_bytes, size_bytes):
            return False
        return self._known.is_whole(ledger_id, source.read(offset_bytes + LENGTH.size, size_bytes))


def _past_zeros(window: bytes, at: int) -> int:
    """Return where to look next: lengths of 0, of which a hole in a file has millions, are passed over at once."""
    if window[at : at + LENGTH.size] != bytes(LENGTH.size):
        return at + 1
    match = _NOT_ZERO.search(window, at)
    return len(window) if match is None else match.start() - LENGTH.size + 1


def is_empty_from(source: FileReader, at: int) -> bool:
    """Return whether there are only zeros up to the end of the file."""
    size_bytes = _WINDOW_BYTES_MIN
    while piece := source.read(at := source.data_from(at), size_bytes):
        if piece.count(0) != len(piece):
            return False
        at += len(piece)
        size_bytes = min(4 * size_bytes, _WINDOW_BYTES_MAX)
    return True


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What ledgers of one kind have in common; most clusters have few kinds.

    Attributes:
        digest_type, password: as metadata has them; None where it says nothing, as before release 4.3.
        is_closed: nothing can come to it any more.
        is_named: the bookie is in one of its ensembles, or may be with the next change: it is being recovered.
    """

    digest_type: DigestType | None
    password: bytes | None = field(repr=False)
    is_closed: bool
    is_named: bool

    @property
    def master_key(self) -> bytes | None:
        """The key that bookies compare, where metadata has the password."""
        return None if self.password is None else master_key(self.password)

    @property
    def is_provable(self) -> bool:
        """Whether entries have a digest that can be checked."""
        return self.digest_type is not None and self.digest_type is not DigestType.DUMMY

    def is_right(self, raw: bytes) -> bool:
        """Return whether an entry is as long as its header and digest, and has the right one where there is one."""
        kind = self.digest_type
        if kind is None:
            return len(raw) >= HEADER_BYTES
        start = HEADER_BYTES + DIGEST_BYTES[kind]
        if len(raw) < start:
            return False
        view = memoryview(raw)
        stored = view[HEADER_BYTES:start]
        if kind is DigestType.CRC32C:
            right = crc32c(view[start:], crc32c(view[:HEADER_BYTES]))
            return int.from_bytes(stored, "big") == right
        if kind is DigestType.HMAC and self.password is None:
            return True
        return digest(kind, raw[:HEADER_BYTES], view[start:], self.password or b"") == stored

    def lac_in(self, ledger_id: int, body: bytes) -> int:
        """Return the LAC that the body of an explicit LAC proves, -1 when it proves none."""
        if self.digest_type is None:
            return -1
        proven = parse_lac_body(body, ledger_id, self.digest_type, self.password or b"")
        return -1 if proven is None else proven


class LedgerTable:
    """All ledgers of a cluster."""

    def __init__(self, store: MetadataStore, bookie_id: BookieId) -> None:
        """Read the metadata of all ledgers. Raises MetadataUnavailable."""
        self._known: dict[int, LedgerSummary] = {}
        self._store = store
        kinds: dict[LedgerSummary, LedgerSummary] = {}
        for ledger_id, read in all_ledgers(store):
            # One that nobody can read may count on the bookie, and may be open.
            if isinstance(read, BadRecord):
                known = LedgerSummary(None, None, False, True)
            else:
                known = _known(read.metadata, bookie_id)
            self._known[ledger_id] = kinds.setdefault(known, known)

    def get(self, ledger_id: int) -> LedgerSummary | None:
        """Return what is known of a ledger, None for one that metadata does not list."""
        return self._known.get(ledger_id)

    def open_count(self) -> int:
        """Return how many of those that may count on the bookie are not closed."""
        return sum(known.is_named and not known.is_closed for known in self._known.values())

    def named(self) -> list[int]:
        """Return the ledgers that may count on the bookie, ascending."""
        return [ledger_id for ledger_id, known in self._known.items() if known.is_named]

    def is_provable(self, ledger_id: int) -> bool:
        """Return whether entries of this ledger have digests that can be checked."""
        known = self._known.get(ledger_id)
        return known is not None and known.is_provable

    def is_whole(self, ledger_id: int, raw: bytes) -> bool:
        """Return whether bytes are certainly an entry of this ledger."""
        known = self._known.get(ledger_id)
        return known is not None and known.is_provable and known.is_right(raw)


def _known(metadata: LedgerMetadata, bookie_id: BookieId) -> LedgerSummary:
    return LedgerSummary(
        metadata.digest_type,
        metadata.password,
        metadata.is_closed,
        metadata.state is LedgerState.IN_RECOVERY
        or any(bookie_id in fragment.ensemble for fragment in metadata.fragments),
    )


# Reads the journals and entry logs of an Apache bookie. All numbers are big-endian.
#
#
#     "BKLG" | version i32 | zeros up to 512, then records: size i32 | ledger i64 | entry i64 | ...
#
#
#
#     "BKLO" | version i32 | offset of the ledgers' map i64 | ledgers in it i32 | zeros up to 1024, then records:
#     size i32 | ledger i64 | entry i64 | ...
#

JOURNAL_MAGIC = b"BKLG"
JOURNAL_HEADER_BYTES = 512
JOURNAL_VERSIONS = (5, 6)
PADDING = -0x100
MASTER_KEY, FENCE, FORCE, EXPLICIT_LAC = -0x1000, -0x2000, -0x4000, -0x8000
"""Entry ids of records that are no entries: length and key; nothing; nothing; length and body."""


def read_journal(
    source: FileReader, from_bytes: int, known: LedgerTable, report: Report
) -> Iterator[Record]:
    """Yield the records of a journal file in order, those that are no entries included.

    Behind a length that makes no sense reading goes on at the next record with an entry that is certainly whole; what
    lies between is reported, and so is what lies at the end and is not whole.

    Args:
        source: the file.
        from_bytes: where the bookie's mark says that replay begins; 0 for the beginning.
        known: the ledgers, which say whether bytes are an entry.
        report: told of damage.

    A damaged header is reported, and the records behind it are read. Raises StorageError: a format that is not known.
    """
    header = source.read(0, len(JOURNAL_MAGIC) + LENGTH.size)
    if len(header) < len(JOURNAL_MAGIC) + LENGTH.size or not any(header):
        # Made, and not written to before the bookie ended.
        if any(source.read(0, JOURNAL_HEADER_BYTES)):
            report(Damage(source.path, 0, source.size_bytes, "the header is cut short", True))
        return
    (version,) = LENGTH.unpack_from(header, len(JOURNAL_MAGIC))
    if header[: len(JOURNAL_MAGIC)] != JOURNAL_MAGIC:
        size_bytes = min(JOURNAL_HEADER_BYTES, source.size_bytes)
        report(Damage(source.path, 0, size_bytes, "no header of a journal"))
    elif version not in JOURNAL_VERSIONS:
        versions = " and ".join(map(str, JOURNAL_VERSIONS))
        raise StorageError(f"{source.path} is a journal of format {version}, {versions} are known")
    resync = Resync(source, known, report)
    at, before = max(from_bytes, JOURNAL_HEADER_BYTES), -1
    while (head := source.read(at, LENGTH.size)) and len(head) == LENGTH.size:
        (size_bytes,) = LENGTH.unpack(head)
        body_at = at + LENGTH.size
        if size_bytes == 0 and is_empty_from(source, at):
            return
        if size_bytes == PADDING:
            padding = source.read(body_at, LENGTH.size)
            size_bytes = LENGTH.unpack(padding)[0] if len(padding) == LENGTH.size else -1
            if 0 <= size_bytes <= source.size_bytes - body_at - LENGTH.size:
                before, at = -1, body_at + LENGTH.size + size_bytes
                continue
            reason = "padding of an impossible length"
        elif not IDS.size <= size_bytes <= RECORD_BYTES_MAX:
            reason = f"a record of {size_bytes} bytes"
        elif size_bytes > source.size_bytes - body_at:
            reason = (
                f"a record of {size_bytes} bytes, of which {source.size_bytes - body_at} are there"
            )
        else:
            raw = source.read(body_at, size_bytes)
            yield (*IDS.unpack_from(raw), raw, body_at)
            before, at = at, body_at + size_bytes
            continue
        at, before = resync.pass_over(at, before, reason), -1


ENTRY_LOG_MAGIC = b"BKLO"
ENTRY_LOG_HEADER_BYTES = 1024
ENTRY_LOG_VERSIONS = (0, 1)
MAP_LEDGER = -1
_HEADER = struct.Struct(">4siqi")
_BLOCK_BYTES = 4096
_FILLER = b"\xf0"


def read_entry_log(source: FileReader, known: LedgerTable, report: Report) -> Iterator[Record]:
    """Yield the entries of an entry log in the order in which they were written.

    Entries are not checked, but for those that come first behind damage: reading goes on there with one that is
    certainly whole. A damaged header is reported, and the records behind it are read.

    Args:
        source: the file.
        known: the ledgers, which say whether bytes are an entry.
        report: told of damage; at the end of a log that was not closed it is what a crash leaves.

    Raises StorageError: a format that is not known.
    """
    header = source.read(0, _HEADER.size)
    if len(header) == _HEADER.size and header[: len(ENTRY_LOG_MAGIC)] == ENTRY_LOG_MAGIC:
        _, version, _, _ = _HEADER.unpack(header)
        if version not in ENTRY_LOG_VERSIONS:
            raise StorageError(
                f"{source.path} is an entry log of version {version}, {ENTRY_LOG_VERSIONS[-1]} is known"
            )
    elif any(header):
        report(
            Damage(
                source.path,
                0,
                min(ENTRY_LOG_HEADER_BYTES, source.size_bytes),
                "no header of an entry log",
            )
        )
    resync = Resync(source, known, report)
    at, before = ENTRY_LOG_HEADER_BYTES, -1
    while (head := source.read(at, LENGTH.size)) and len(head) == LENGTH.size:
        (size_bytes,) = LENGTH.unpack(head)
        body_at = at + LENGTH.size
        if size_bytes < 0 and _is_filled(source, at):
            at += _BLOCK_BYTES - at % _BLOCK_BYTES
            continue
        if size_bytes == 0 and is_empty_from(source, at):
            return
        if not IDS.size <= size_bytes <= RECORD_BYTES_MAX:
            reason = f"a record of {size_bytes} bytes"
        elif size_bytes > source.size_bytes - body_at:
            reason = (
                f"a record of {size_bytes} bytes, of which {source.size_bytes - body_at} are there"
            )
        else:
            raw = source.read(body_at, size_bytes)
            ledger_id, entry_id = IDS.unpack_from(raw)
            if ledger_id >= 0 and entry_id >= 0:
                yield ledger_id, entry_id, raw, body_at
            if ledger_id >= MAP_LEDGER:
                before, at = at, body_at + size_bytes
                continue
            reason = f"a record of ledger {ledger_id}"
        at, before = resync.pass_over(at, before, reason), -1


def _is_filled(source: FileReader, at: int) -> bool:
    """Return whether nothing but filler lies between here and the end of the block."""
    size_bytes = _BLOCK_BYTES - at % _BLOCK_BYTES
    return source.read(at, size_bytes) == _FILLER * size_bytes


# The directories of an Apache bookie: which files count, in which order, and where replay of its
# journals begins.
#

FOLDER = "current"
JOURNAL_ENDING, LOG_ENDING = ".txn", ".log"
_MARK = struct.Struct(">qq")
_DATABASES = ("locations", "ledgers")
_COOKIE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class JournalPart:
    """A journal file that counts, from an offset on, and whether it is the newest of its journal."""

    path: Path
    from_bytes: int
    is_newest: bool


@dataclass(frozen=True, slots=True)
class ApacheDirectories:
    """Where an Apache bookie's data lies: paths as in its configuration."""

    journals: tuple[Path, ...]
    ledgers: tuple[Path, ...]
    indexes: tuple[Path, ...]

    def entry_logs(self) -> list[Path]:
        """Return the entry logs, older ones first. Raises StorageError."""
        found = [
            (number, path)
            for directory in self.ledgers
            for number, path in _numbered(directory, LOG_ENDING)
        ]
        return [path for _, path in sorted(found)]

    def journal_parts(self, report: Report) -> list[JournalPart]:
        """Return the journal files that replay would read, in its order. Raises StorageError.

        A mark that lies behind all that is there would have everything passed over. It is reported, and all is read.
        """
        journal_parts = []
        for index, directory in enumerate(self.journals):
            file_id, offset_bytes = self._mark(index)
            files = sorted(_numbered(directory, JOURNAL_ENDING))
            with os_errors_as(StorageError, directory / FOLDER):
                sizes_bytes = {one: path.lstat().st_size for one, path in files if one == file_id}
            is_beyond = bool(files) and file_id > files[-1][0]
            if is_beyond or offset_bytes > sizes_bytes.get(file_id, offset_bytes):
                place = f"journal file {file_id:x} at {offset_bytes}"
                reason = f"the mark says {place}, behind what is there: all of the journal is read"
                report(Damage(f"{self._mark_name(index)} of {directory}", 0, 0, reason))
                file_id = offset_bytes = 0
            files = [file for file in files if file[0] >= file_id]
            journal_parts += [
                JournalPart(path, offset_bytes if number == file_id else 0, number == files[-1][0])
                for number, path in files
            ]
        return journal_parts

    def cookies(self) -> list[tuple[Path, Cookie]]:
        """Return the cookie of each directory that has one. Raises StorageError for damaged ones."""
        found = []
        for directory in dict.fromkeys((*self.journals, *self.ledgers, *self.indexes)):
            path = directory / FOLDER / "VERSION"
            try:
                raw = read_found(path, _COOKIE_BYTES_MAX)
                found.append((path, cookies.decode(raw, str(path))))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageError(f"{path}: {error.strerror}") from error
        return found

    def check_is_stopped(self) -> None:
        """Raise StorageError when a process holds the lock of one of the bookie's databases."""
        for directory in self.indexes:
            for name in _DATABASES:
                path = directory / FOLDER / name / "LOCK"
                if pid := _locked_by(path):
                    raise StorageError(
                        f"process {pid} holds {path}: the bookie is running. Stop it first; an import reads what lies"
                        " still"
                    )

    def _mark_name(self, journal: int) -> str:
        return "lastMark" if len(self.journals) == 1 else f"lastMark.{journal}"

    def _mark(self, journal: int) -> tuple[int, int]:
        """Return the file and offset up to which every ledger directory has everything; 0, 0 if one does not say.

        Apache takes the highest of them. One directory may be behind, though, if it could not be written to.
        """
        name = self._mark_name(journal)
        marks = []
        for directory in self.ledgers:
            path = directory / FOLDER / name
            try:
                raw = read_found(path, _MARK.size + 1)
            except FileNotFoundError:
                return 0, 0
            except OSError as error:
                raise StorageError(f"{path}: {error.strerror}") from error
            if len(raw) != _MARK.size:
                return 0, 0
            marks.append(_MARK.unpack(raw))
        file_id, offset_bytes = min(marks)
        return file_id, offset_bytes


def find_directories(
    journals: Sequence[str], ledgers: Sequence[str], indexes: Sequence[str] = ()
) -> ApacheDirectories:
    """Return the directories that were named; indexes lie beside the entry logs where none is named for them.

    Raises StorageError for one that holds no bookie's data.
    """
    directories = ApacheDirectories(
        tuple(map(Path, journals)), tuple(map(Path, ledgers)), tuple(map(Path, indexes or ledgers))
    )
    sorts = {
        "journal": directories.journals,
        "ledger": directories.ledgers,
        "index": directories.indexes,
    }
    for what, paths in sorts.items():
        if not paths:
            raise StorageError(f"no {what} directory is named")
        for path in paths:
            if not (path / FOLDER).is_dir():
                raise StorageError(
                    f"{path} is no {what} directory of an Apache bookie: it has no folder {FOLDER!r}. Name it as"
                    " its configuration does, and mount it first"
                )
    return directories


def _numbered(directory: Path, ending: str) -> list[tuple[int, Path]]:
    """Return the files that have a hexadecimal number for a name."""
    with os_errors_as(StorageError, directory / FOLDER):
        names = os.listdir(directory / FOLDER)
    numbered = []
    for name in names:
        stem = name.removesuffix(ending)
        if stem != name and stem and not set(stem) - set("0123456789abcdef"):
            numbered.append((int(stem, 16), directory / FOLDER / name))
    return numbered


def _locked_by(path: Path) -> int:
    """Return the process that holds a lock on the file, 0 for none."""
    wish = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        descriptor = open_found(path)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    try:
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(descriptor, fcntl.F_GETLK, wish))
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            return 0  # no locks on this file system
        raise
    finally:
        os.close(descriptor)
    return 0 if kind == fcntl.F_UNLCK else int(pid)
