"""Small files of a directory: one JSON object with a format and a checksum each, written by rename.

    {"crc": CRC32C of the canonical JSON without it, "format": 1, ...}

Three of them are here whole:

- `read_only` (`asked_s`): in the first ledger directory while an operator wants no adds, where that is to outlive a
  restart.
- `import.json`: an import of another system's bookie has not ended, and no bookie starts. It lies in every directory
  from before the first byte is written there until metadata knows the bookie. The next import may throw away what is
  beside it, unless metadata has heard of that incarnation.
- `explicit_lacs.json` (`bodies`: base64 of what the writer signed: ledger id, LAC, digest): so that readers see as far
  after a restart as before it. Each is true for ever, since a LAC only grows. An old file, a damaged one or none only
  delays what readers see of a ledger's end.
"""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.native.hashes import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastbk.native.disk import Disk

READ_ONLY_NAME = "read_only"
IMPORT_NAME = "import.json"
EXPLICIT_LACS_NAME = "explicit_lacs.json"
FORMAT = 1
"""Of these three."""

T = TypeVar("T", bound=msgspec.Struct)


def encode(content: msgspec.Struct) -> bytes:
    """Return the file's bytes; the struct has a field `format`."""
    fields = msgspec.to_builtins(content)
    fields["crc"] = crc32c(_canonical(fields))
    return json.dumps(fields, sort_keys=True).encode() + b"\n"


def decode(raw: bytes, kind: type[T], format_known: int, name: str) -> T:
    """Return what a file says. Raises CorruptDataError, FormatTooNewError."""
    try:
        fields = json.loads(raw)
        stored, version = fields.pop("crc"), fields["format"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise CorruptDataError(f"{name}: not what its name says, or damaged") from None
    if isinstance(version, int) and version > format_known:
        raise FormatTooNewError(
            f"{name} has format {version}, this fastbk knows {format_known}: start the version that wrote it"
        )
    if stored != crc32c(_canonical(fields)):
        raise CorruptDataError(f"{name}: its checksum is wrong: damaged or edited by hand")
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise CorruptDataError(f"{name}: {error}") from None


def _canonical(fields: object) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def remove(disk: Disk, path: str) -> None:
    """Remove a file durably; nothing happens without one. Raises OSError."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return
    disk.sync_directory(path.rpartition("/")[0])


class ReadOnlyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's request for a read-only bookie; `asked_s`: wall clock."""

    asked_s: int
    format: int = FORMAT


def is_read_only_requested(disk: Disk, directory: str) -> bool:
    """Return whether the request stands. A damaged file says yes. Raises FormatTooNewError, OSError."""
    path = f"{directory}/{READ_ONLY_NAME}"
    try:
        decode(disk.read_file(path), ReadOnlyRequest, FORMAT, path)
    except FileNotFoundError:
        return False
    except CorruptDataError:
        return True
    return True


def write_read_only_request(disk: Disk, directory: str, *, is_read_only: bool) -> None:
    """Write the request down, or take it back, durably. Raises OSError."""
    path = f"{directory}/{READ_ONLY_NAME}"
    if is_read_only:
        disk.replace_file(path, encode(ReadOnlyRequest(asked_s=int(time.time()))))
    else:
        remove(disk, path)


class ImportMark(msgspec.Struct, frozen=True, kw_only=True):
    """Whose data is being imported; `incarnation`: hex, of the bookie that it becomes."""

    bookie_id: str
    incarnation: str
    format: int = FORMAT


def read_import_mark(disk: Disk, directory: str) -> ImportMark | None:
    """Return the mark, None when there is none. Raises CorruptDataError, FormatTooNewError, OSError."""
    path = f"{directory}/{IMPORT_NAME}"
    try:
        return decode(disk.read_file(path), ImportMark, FORMAT, path)
    except FileNotFoundError:
        return None


def write_import_mark(disk: Disk, directory: str, mark: ImportMark) -> None:
    """Put the mark there, whole and durable."""
    disk.replace_file(f"{directory}/{IMPORT_NAME}", encode(mark))


def remove_import_mark(disk: Disk, directory: str) -> None:
    """Remove the mark, durably; nothing happens without one."""
    remove(disk, f"{directory}/{IMPORT_NAME}")


class ExplicitLacs(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `explicit_lacs.json`."""

    bodies: tuple[str, ...] = ()
    format: int = FORMAT


def read_explicit_lacs(disk: Disk, directory: str) -> list[bytes]:
    """Return the bodies; none where the file is missing or damaged. Raises FormatTooNewError, OSError."""
    path = f"{directory}/{EXPLICIT_LACS_NAME}"
    try:
        found = decode(disk.read_file(path), ExplicitLacs, FORMAT, path)
        return [base64.b64decode(body, validate=True) for body in found.bodies]
    except (FileNotFoundError, CorruptDataError, ValueError):
        return []


def write_explicit_lacs(disk: Disk, directory: str, bodies: Iterable[bytes]) -> None:
    """Keep them, whole and durable, in place of those before. Raises OSError."""
    content = ExplicitLacs(bodies=tuple(base64.b64encode(body).decode() for body in bodies))
    disk.replace_file(f"{directory}/{EXPLICIT_LACS_NAME}", encode(content))
