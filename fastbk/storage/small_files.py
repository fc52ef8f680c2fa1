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
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.native.hashes import crc32c
from fastbk.printable_text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastbk.native.disk import Disk

READ_ONLY_NAME = "read_only"
IMPORT_NAME = "import.json"
EXPLICIT_LACS_NAME = "explicit_lacs.json"
FORMAT = 1
"""Format of these three files."""

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
    try:
        right = crc32c(_canonical(fields))
        json.dumps(
            fields, ensure_ascii=False
        ).encode()  # lone surrogates: no encoding takes what it says
    except (ValueError, RecursionError):
        raise CorruptDataError(f"{name}: not what its name says, or damaged") from None
    if stored != right:
        raise CorruptDataError(f"{name}: its checksum is wrong: damaged or edited by hand")
    try:
        return msgspec.convert(fields, kind)
    except (ValueError, RecursionError) as error:  # msgspec's own, and UnicodeEncodeError
        raise CorruptDataError(f"{name}: {printable(str(error))}") from None


def _canonical(fields: object) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def remove(disk: Disk, path: str) -> None:
    """Remove a file durably; nothing happens without one. Raises OSError."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return
    disk.sync_directory(path.rpartition("/")[0])


class SealedFile(msgspec.Struct, Generic[T], frozen=True):
    """One kind of small file, under its name in any directory.

    Attributes:
        kind: its content, with a field `format`; `format`: the highest that this version reads.
        check: raises CorruptDataError, with the name that it is given, for content that cannot be.
    """

    name: str
    kind: type[T]
    format: int = FORMAT
    check: Callable[[T, str], None] = lambda content, name: None

    def decode(self, raw: bytes, name: str = "") -> T:
        """Return what a file says. Raises CorruptDataError, FormatTooNewError."""
        content = decode(raw, self.kind, self.format, name or self.name)
        self.check(content, name or self.name)
        return content

    def read(self, disk: Disk, directory: str) -> T | None:
        """Return what the directory's file says, None without one. Raises as `decode`, and OSError."""
        path = f"{directory}/{self.name}"
        try:
            return self.decode(disk.read_file(path), path)
        except FileNotFoundError:
            return None

    def write(self, disk: Disk, directory: str, content: T) -> None:
        """Put the file there, whole and durable. Raises OSError."""
        disk.replace_file(f"{directory}/{self.name}", encode(content))

    def remove(self, disk: Disk, directory: str) -> None:
        """Remove the file durably; nothing happens without one. Raises OSError."""
        remove(disk, f"{directory}/{self.name}")


class ReadOnlyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's request for a read-only bookie; `asked_s`: wall clock."""

    asked_s: int
    format: int = FORMAT


_READ_ONLY = SealedFile(READ_ONLY_NAME, ReadOnlyRequest)


def is_read_only_requested(disk: Disk, directory: str) -> bool:
    """Return whether the request stands. A damaged file says yes. Raises FormatTooNewError, OSError."""
    try:
        return _READ_ONLY.read(disk, directory) is not None
    except CorruptDataError:
        return True


def write_read_only_request(disk: Disk, directory: str, *, is_read_only: bool) -> None:
    """Write the request down, or take it back, durably. Raises OSError."""
    if is_read_only:
        _READ_ONLY.write(disk, directory, ReadOnlyRequest(asked_s=int(time.time())))
    else:
        _READ_ONLY.remove(disk, directory)


class ImportMark(msgspec.Struct, frozen=True, kw_only=True):
    """Whose data is being imported; `incarnation`: hex, of the bookie that it becomes."""

    bookie_id: str
    incarnation: str
    format: int = FORMAT


_IMPORT_MARK = SealedFile(IMPORT_NAME, ImportMark)
read_import_mark, write_import_mark = _IMPORT_MARK.read, _IMPORT_MARK.write
remove_import_mark = _IMPORT_MARK.remove


class ExplicitLacs(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `explicit_lacs.json`."""

    bodies: tuple[str, ...] = ()
    format: int = FORMAT


_EXPLICIT_LACS = SealedFile(EXPLICIT_LACS_NAME, ExplicitLacs)


def read_explicit_lacs(disk: Disk, directory: str) -> list[bytes]:
    """Return the bodies; none where the file is missing or damaged. Raises FormatTooNewError, OSError."""
    try:
        found = _EXPLICIT_LACS.read(disk, directory) or ExplicitLacs()
        return [base64.b64decode(body, validate=True) for body in found.bodies]
    except (CorruptDataError, ValueError):
        return []


def write_explicit_lacs(disk: Disk, directory: str, bodies: Iterable[bytes]) -> None:
    """Keep them, whole and durable, in place of those before. Raises OSError."""
    content = ExplicitLacs(bodies=tuple(base64.b64encode(body).decode() for body in bodies))
    _EXPLICIT_LACS.write(disk, directory, content)
