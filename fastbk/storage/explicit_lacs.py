"""`explicit_lacs.json`: explicit LACs of a pair's ledgers, so that readers see as far after a restart as before it.

    {"format": 1, "bodies": [base64 of what the writer signed: ledger id, LAC, digest], "crc"} (`small_files.py`)

Each is true for ever, since a LAC only grows and its writer signed it: an old file, or none, delays what readers see of
a ledger's end and nothing else. So a damaged one is as good as none.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import msgspec

from fastbk.native.ffi import CorruptDataError
from fastbk.storage import small_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastbk.native.disk import Disk

NAME = "explicit_lacs.json"
FORMAT = 1


class ExplicitLacs(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content."""

    bodies: tuple[str, ...] = ()
    format: int = FORMAT


def read_explicit_lacs(disk: Disk, directory: str) -> list[bytes]:
    """Return the bodies; none where the file is missing or damaged. Raises FormatTooNewError, OSError."""
    path = f"{directory}/{NAME}"
    try:
        found = small_files.decode(disk.read_file(path), ExplicitLacs, FORMAT, path)
        return [base64.b64decode(body, validate=True) for body in found.bodies]
    except (FileNotFoundError, CorruptDataError, ValueError):
        return []


def write_explicit_lacs(disk: Disk, directory: str, bodies: Iterable[bytes]) -> None:
    """Keep them, whole and durable, in place of those before. Raises OSError."""
    content = ExplicitLacs(bodies=tuple(base64.b64encode(body).decode() for body in bodies))
    disk.replace_file(f"{directory}/{NAME}", small_files.encode(content))
