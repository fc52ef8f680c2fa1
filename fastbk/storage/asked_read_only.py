"""`read_only`: lies in the first ledger directory while an operator wants no adds, where that is to outlive a restart.

{"format": 1, "asked_s": wall clock, "crc"} (`small_files.py`)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.native.ffi import CorruptDataError
from fastbk.storage import small_files

if TYPE_CHECKING:
    from fastbk.native.disk import Disk

NAME = "read_only"
FORMAT = 1


class AskedReadOnly(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's wish for a read-only bookie."""

    asked_s: int
    format: int = FORMAT


def is_asked(disk: Disk, directory: str) -> bool:
    """Return whether the wish stands. A damaged file says yes. Raises FormatTooNewError, OSError."""
    path = f"{directory}/{NAME}"
    try:
        small_files.decode(disk.read_file(path), AskedReadOnly, FORMAT, path)
    except FileNotFoundError:
        return False
    except CorruptDataError:
        return True
    return True


def write(disk: Disk, directory: str, *, is_read_only: bool) -> None:
    """Write the wish down, or take it back, durably. Raises OSError."""
    path = f"{directory}/{NAME}"
    if is_read_only:
        wish = AskedReadOnly(asked_s=int(time.time()))
        disk.replace_file(path, small_files.encode(wish))
        return
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return
    disk.sync_directory(directory)
