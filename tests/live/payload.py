"""Payloads that tell where they come from: any byte string can be traced to its writer without a table."""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass

_HEADER = struct.Struct(">4sIqqIII")
_MAGIC = b"fbkT"


@dataclass(frozen=True, slots=True)
class Origin:
    """Who wrote a payload, and as what."""

    run: int
    ledger_id: int
    entry_id: int
    writer: int
    size_bytes: int


def make(origin: Origin) -> bytes:
    """Return `size_bytes` (at least the header's 36) that only this origin has."""
    head = _HEADER.pack(
        _MAGIC, origin.run, origin.ledger_id, origin.entry_id, origin.writer, origin.size_bytes, 0
    )
    count = max(0, origin.size_bytes - len(head))
    body = hashlib.shake_128(head).digest(count)
    return head[:-4] + zlib.crc32(body).to_bytes(4, "big") + body


def parse(data: bytes) -> Origin | None:
    """Return the origin of a payload; None: no writer ever made these bytes."""
    if len(data) < _HEADER.size:
        return None
    magic, run, ledger_id, entry_id, writer, size_bytes, _ = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        return None
    origin = Origin(run, ledger_id, entry_id, writer, size_bytes)
    return origin if make(origin) == data else None
