"""The files of a bookie's directories by name and id, how a ledger directory is born, and how much room is left."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import StorageError, check_invariant
from fastbk.storage.manifest import SLOTS, Manifest, ManifestLost, ManifestMissing, ManifestSlots

if TYPE_CHECKING:
    from fastbk.native.disk import Disk

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errors of a disk that takes nothing: it keeps no bookie from starting, and from serving what it holds."""
DELETION_LOG_NAME = "audit.log"
DELETION_LOG_OLD_NAME = "audit.1.log"
"""The name that it had first, on disk. A bookie's audit log (`[audit] file`) is another one."""


class NumberedFiles(msgspec.Struct, frozen=True):
    """Files of one kind, named by 16 hex digits of an id and `ending`, in a folder of each directory; "": directly."""

    folder: str
    ending: str

    def name(self, file_id: int) -> str:
        """Return the name of a file, 1..2⁶⁴−1."""
        return f"{file_id:016x}{self.ending}"

    def id_of(self, name: str) -> int | None:
        """Return the id in a file's name; None for any other name."""
        match = re.fullmatch(r"([0-9a-f]{16})" + re.escape(self.ending), name)
        return int(match[1], 16) if match else None

    def path(self, directory: str, file_id: int) -> str:
        """Return the path of a file."""
        return f"{self._in(directory)}/{self.name(file_id)}"

    def ids_in(self, disk: Disk, directory: str) -> list[int]:
        """Return the ids of the files that are there, ascending. Raises OSError."""
        names = disk.list(self._in(directory))
        return sorted(found for name in names if (found := self.id_of(name)) is not None)

    def _in(self, directory: str) -> str:
        return f"{directory}/{self.folder}" if self.folder else directory


LOGS = NumberedFiles("logs", ".log")
LOCATIONS = NumberedFiles("locations", ".loc")
JOURNALS = NumberedFiles("", ".journal")
locations_path = LOCATIONS.path
JOURNAL_LOG = 1 << 63
"""This bit of a log's id says that it is a journal file whose runs stay in it: the other bits are the file's id."""


def log_path(directory: str, log_id: int, journal_directory: str = "") -> str:
    """Return the path of a log: of an entry log in a ledger directory, or of a journal file that is one."""
    if not log_id & JOURNAL_LOG:
        return LOGS.path(directory, log_id)
    check_invariant(journal_directory != "", "INV-X5: whose journal directory holds this log")
    return JOURNALS.path(journal_directory, log_id ^ JOURNAL_LOG)


def missing_log(log_id: int) -> str:
    """Return what is said of a log that the manifest lists and that is not there, with what to do."""
    if log_id & JOURNAL_LOG:
        return (
            "is missing: the manifest lists this journal file, whose runs of entries are nowhere else. Put it back"
            " while the bookie is stopped; else run `fastbk bookie repair ID`"
        )
    return (
        "is missing: the manifest lists this entry log. Put it back while the bookie is stopped; else run"
        " `fastbk bookie repair ID`"
    )


def settle_names(disk: Disk, directory: str) -> None:
    """Make durable what a directory shows of renames and removals; before its small files are believed (INV-X7).

    Whoever made them may have died before the sync. A disk that takes nothing keeps nobody from reading. Raises
    OSError.
    """
    try:
        disk.sync_directory(directory)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def make_ledger_directory(disk: Disk, directory: str) -> None:
    """Make the folders and the first manifest of a new ledger directory, durably; again is harmless.

    To be done before its identity is written: a directory with an identity always has a manifest.
    """
    for files in (LOGS, LOCATIONS):
        disk.make_directory(f"{directory}/{files.folder}")
    disk.sync_directory(directory)
    slots = ManifestSlots(disk, directory)
    if not _first_manifest_is_due(slots, disk, directory):
        slots.settle()
    elif not slots.commit(Manifest(generation=1)):
        raise StorageError(f"could not write the first manifest: {'; '.join(slots.complaints)}")


def _first_manifest_is_due(slots: ManifestSlots, disk: Disk, directory: str) -> bool:
    """Return whether no commit was ever finished here: each fills both slots before it returns, in order."""
    try:
        slots.load()
    except ManifestMissing:
        return True
    except ManifestLost:
        if SLOTS[1] in disk.list(directory):
            raise
        return True
    return False


def data_in(disk: Disk, directory: str) -> list[str]:
    """Return names of files that say that this directory has held a bookie's data; empty if it never did.

    The folders and the first manifest, which a birth that was cut short leaves behind, do not count.
    """
    names = set(disk.list(directory))
    found = sorted(name for name in names if name.endswith(JOURNALS.ending))
    for files in (LOGS, LOCATIONS):
        if files.folder in names:
            ids = files.ids_in(disk, directory)
            found += [f"{files.folder}/{files.name(one)}" for one in ids]
    if names & set(SLOTS):
        try:
            is_used = ManifestSlots(disk, directory).load() != Manifest(generation=1)
        except ManifestLost:
            is_used = SLOTS[1] in names
        if is_used:
            found.append("manifest")
    return found


def free_bytes(directory: str) -> int:
    """Return the bytes that an ordinary user may still write to the disk of `directory`."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize
