"""The directories of an Apache bookie: which files count, in which order, and where replay of its journals begins.

Everything lies in the folder `current` of each: journals as `<hex>.txn`, entry logs as `<hex>.log`, the mark of the
journals as `lastMark` (`lastMark.<n>` where there are several), the cookie as `VERSION`. Nothing is ever written there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.apache.importer.records import Damage
from fastbk.errors import StorageError, os_errors_as
from fastbk.model import cookie as cookies
from fastbk.safe_files import open_found, read_found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.apache.importer.records import Report
    from fastbk.model.cookie import Cookie

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
        found = []
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
            found += [
                JournalPart(path, offset_bytes if number == file_id else 0, number == files[-1][0])
                for number, path in files
            ]
        return found

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


def find(
    journals: Sequence[str], ledgers: Sequence[str], indexes: Sequence[str] = ()
) -> ApacheDirectories:
    """Return the directories that were named; indexes lie beside the entry logs where none is named for them.

    Raises StorageError for one that holds no bookie's data.
    """
    found = ApacheDirectories(
        tuple(map(Path, journals)), tuple(map(Path, ledgers)), tuple(map(Path, indexes or ledgers))
    )
    sorts = {"journal": found.journals, "ledger": found.ledgers, "index": found.indexes}
    for what, paths in sorts.items():
        if not paths:
            raise StorageError(f"no {what} directory is named")
        for path in paths:
            if not (path / FOLDER).is_dir():
                raise StorageError(
                    f"{path} is no {what} directory of an Apache bookie: it has no folder {FOLDER!r}. Name it as"
                    " its configuration does, and mount it first"
                )
    return found


def _numbered(directory: Path, ending: str) -> list[tuple[int, Path]]:
    """Return the files that have a hexadecimal number for a name."""
    with os_errors_as(StorageError, directory / FOLDER):
        names = os.listdir(directory / FOLDER)
    found = []
    for name in names:
        stem = name.removesuffix(ending)
        if stem != name and stem and not set(stem) - set("0123456789abcdef"):
            found.append((int(stem, 16), directory / FOLDER / name))
    return found


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
