"""A record's headers as bytes: names (UTF-8) and values (bytes), in the order given, a name as often as one likes.

Of each: 2 bytes of the name's size, the name, 4 bytes of the value's size, the value; sizes are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias

from fastbk.errors import ConfigError, ProtocolError

Headers: TypeAlias = tuple[tuple[str, bytes], ...]

_NAME_SIZE = struct.Struct("<H")
_VALUE_SIZE = struct.Struct("<I")
NAME_BYTES_MAX = 0xFFFF


def put_headers(headers: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the bytes of headers. Raises ConfigError for a name of more than 64 KiB."""
    parts: list[bytes] = []
    for name, value in headers:
        raw = name.encode()
        if len(raw) > NAME_BYTES_MAX:
            raise ConfigError(f"a header's name has {len(raw)} bytes: at most {NAME_BYTES_MAX}")
        parts += (_NAME_SIZE.pack(len(raw)), raw, _VALUE_SIZE.pack(len(value)), value)
    return b"".join(parts)


def get_headers(raw: bytes | memoryview) -> Headers:
    """Return what `put_headers` wrote. Raises ProtocolError."""
    found: list[tuple[str, bytes]] = []
    at = 0
    try:
        while at < len(raw):
            (size,) = _NAME_SIZE.unpack_from(raw, at)
            name = bytes(raw[at + 2 : at + 2 + size]).decode()
            at += 2 + size
            (size,) = _VALUE_SIZE.unpack_from(raw, at)
            value = bytes(raw[at + 4 : at + 4 + size])
            at += 4 + size
            if at > len(raw):
                raise ProtocolError("a record's headers end too early")
            found.append((name, value))
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a record's headers make no sense: {error}") from error
    return tuple(found)
