"""`import.json`: an import of another system's bookie that has not ended; no bookie starts where it lies.

It lies in every directory from before the first byte is written there until metadata knows the bookie. What is in a
directory with it may be thrown away: whoever imports next begins anew, unless metadata has heard of that incarnation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.storage import small_files

if TYPE_CHECKING:
    from fastbk.native.disk import Disk

NAME = "import.json"
FORMAT = 1


class ImportMark(msgspec.Struct, frozen=True, kw_only=True):
    """Whose data is being imported; `incarnation`: hex, of the bookie that it becomes."""

    bookie_id: str
    incarnation: str
    format: int = FORMAT


def read_mark(disk: Disk, directory: str) -> ImportMark | None:
    """Return the mark, None when there is none. Raises CorruptDataError, FormatTooNewError, OSError."""
    path = f"{directory}/{NAME}"
    try:
        return small_files.decode(disk.read_file(path), ImportMark, FORMAT, path)
    except FileNotFoundError:
        return None


def write_mark(disk: Disk, directory: str, mark: ImportMark) -> None:
    """Put the mark there, whole and durable."""
    disk.replace_file(f"{directory}/{NAME}", small_files.encode(mark))


def remove_mark(disk: Disk, directory: str) -> None:
    """Remove the mark, durably; nothing happens without one."""
    try:
        disk.unlink(f"{directory}/{NAME}")
    except FileNotFoundError:
        return
    disk.sync_directory(directory)
