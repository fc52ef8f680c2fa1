"""The folders of a ledger directory, how one is born, and how much room is left on its disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastbk.errors import StorageError
from fastbk.storage import entry_log_files, locations_files
from fastbk.storage.manifest import SLOTS, Manifest, ManifestLost, ManifestMissing, ManifestSlots

if TYPE_CHECKING:
    from fastbk.native.disk import Disk

AUDIT_NAME = "audit.log"
AUDIT_OLD_NAME = "audit.1.log"
JOURNAL_ENDING = ".journal"


def log_path(directory: str, log_id: int) -> str:
    """Return the path of an entry log."""
    return f"{directory}/{entry_log_files.FOLDER}/{entry_log_files.log_name(log_id)}"


def locations_path(directory: str, file_id: int) -> str:
    """Return the path of a locations file."""
    return f"{directory}/{locations_files.FOLDER}/{locations_files.locations_name(file_id)}"


def make_ledger_directory(disk: Disk, directory: str) -> None:
    """Make the folders and the first manifest of a new ledger directory, durably; again is harmless.

    To be done before its identity is written: a directory with an identity always has a manifest.
    """
    for folder in (entry_log_files.FOLDER, locations_files.FOLDER):
        disk.make_directory(f"{directory}/{folder}")
    disk.sync_directory(directory)
    if _first_manifest_is_due(disk, directory):
        slots = ManifestSlots(disk, directory)
        if not slots.commit(Manifest(generation=1)):
            raise StorageError(f"could not write the first manifest: {'; '.join(slots.complaints)}")


def _first_manifest_is_due(disk: Disk, directory: str) -> bool:
    """Return whether no commit was ever finished here: each fills both slots before it returns, in order."""
    try:
        ManifestSlots(disk, directory).load()
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
    found = sorted(name for name in names if name.endswith(JOURNAL_ENDING))
    for folder, is_ours in (
        (entry_log_files.FOLDER, entry_log_files.log_id_of),
        (locations_files.FOLDER, locations_files.locations_id_of),
    ):
        if folder in names:
            inside = disk.list(f"{directory}/{folder}")
            found += sorted(f"{folder}/{name}" for name in inside if is_ours(name) is not None)
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
