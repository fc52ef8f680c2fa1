"""Small files of a directory as one JSON object with a format and a checksum: written by rename, refused when damaged.

{"crc": CRC32C of the canonical JSON without it, "format": 1, ...}
"""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec

from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.native.hashes import crc32c

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
