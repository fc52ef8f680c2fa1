"""The few lines of protobuf that ledger metadata needs: varints and length-delimited fields, checked reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_VARINT = 0
_FIXED64 = 1
_DELIMITED = 2
_FIXED32 = 5
_WRAP = 1 << 64


def varint(value: int) -> bytes:
    """Return `value` (0..2^64-1) as a varint of 1 to 10 bytes."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the varint at `at` and the position behind it; raise ValueError when it is cut off or too long."""
    value = 0
    for count in range(10):
        if at + count >= len(raw):
            raise ValueError("a number is cut off")
        byte = raw[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & (_WRAP - 1), at + count + 1
    raise ValueError("a number is longer than 10 bytes")


def put_int(out: bytearray, number: int, value: int) -> None:
    """Append an int32, int64 or enum field; negative numbers take ten bytes, as protobuf has it."""
    out += varint(number << 3 | _VARINT)
    out += varint(value % _WRAP)


def put_bytes(out: bytearray, number: int, value: bytes) -> None:
    """Append a bytes, string or message field."""
    out += varint(number << 3 | _DELIMITED)
    out += varint(len(value))
    out += value


@dataclass(frozen=True, slots=True)
class Field:
    """One field as it stands in a message; `raw` is the whole of it, tag included."""

    number: int
    wire_type: int
    value: int
    body: bytes
    raw: bytes

    def integer(self) -> int:
        """Return the signed 64-bit number; raise ValueError for another wire type."""
        if self.wire_type != _VARINT:
            raise ValueError(f"field {self.number} is not a number")
        return self.value - _WRAP if self.value >= _WRAP // 2 else self.value

    def content(self) -> bytes:
        """Return the bytes; raise ValueError for another wire type."""
        if self.wire_type != _DELIMITED:
            raise ValueError(f"field {self.number} is not a string")
        return self.body


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of `message` in order; raise ValueError at the first byte that makes no sense."""
    at = 0
    while at < len(message):
        start = at
        tag, at = read_varint(message, at)
        number, wire_type, value, body = tag >> 3, tag & 7, 0, b""
        if wire_type == _VARINT:
            value, at = read_varint(message, at)
        elif wire_type in (_DELIMITED, _FIXED64, _FIXED32):
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire_type, -1)
            if size < 0:
                size, at = read_varint(message, at)
            if size > len(message) - at:
                raise ValueError(f"field {number} is cut off")
            body = message[at : at + size]
            at += size
        else:
            raise ValueError(f"field {number} has wire type {wire_type}")
        if number == 0:
            raise ValueError("field number 0")
        yield Field(number, wire_type, value, body, message[start:at])
