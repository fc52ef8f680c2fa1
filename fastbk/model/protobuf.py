"""The few lines of protobuf that ledger metadata needs: varints and length-delimited fields, checked reading."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

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


class Field(msgspec.Struct, frozen=True):
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


# --- text form ---------------------------------------------------------------------------------------------------
#
# Protobuf's text form, as far as Apache's nodes in ZooKeeper use it: cookies, and ledger metadata of version 2.
#
# Reading gives names and values as they stand, without a schema; numbers and the names of enum values stay text.


_TOKEN = re.compile(
    rb"""[ \t\r\n]+ | \#[^\n]*                                    # between tokens
    | (?P<word>[A-Za-z0-9_.+\-]+)
    | (?P<sign>[:{}<>;,])
    | (?P<text>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_LETTERS = dict(zip(b"abfnrtv\\'\"?", b"\a\b\f\n\r\t\v\\'\"?", strict=True))
_CLOSING = {b"{": b"}", b"<": b">"}
_DEPTH_MAX = 8


class TextMessage(msgspec.Struct):
    """Fields by name, each with all its values in order: bytes of a string, text of anything else, or a message."""

    values: dict[str, list[bytes | str | TextMessage]] = msgspec.field(default_factory=dict)

    def content(self, name: str) -> bytes | None:
        """Return the last string under `name`, None if there is none; raise ValueError if it is no string."""
        value = self.values.get(name, [None])[-1]
        if value is not None and not isinstance(value, bytes):
            raise ValueError(f"{name} is not a string")
        return value

    def contents(self, name: str) -> list[bytes]:
        """Return all strings under `name`; raise ValueError if one is no string."""
        found = [value for value in self.values.get(name, []) if isinstance(value, bytes)]
        if len(found) != len(self.values.get(name, [])):
            raise ValueError(f"{name} is not a string")
        return found

    def word(self, name: str) -> str | None:
        """Return the last number or enum value under `name` as text; raise ValueError if it is neither."""
        value = self.values.get(name, [None])[-1]
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name} is not a number or name")
        return value

    def messages(self, name: str) -> list[TextMessage]:
        """Return all messages under `name`; raise ValueError if one is no message."""
        found = [value for value in self.values.get(name, []) if isinstance(value, TextMessage)]
        if len(found) != len(self.values.get(name, [])):
            raise ValueError(f"{name} is not a message")
        return found


def quoted(value: bytes) -> str:
    """Return `value` as a string of the text form, without the quotes around it; all in ASCII."""
    out = []
    for code in value:
        if code in b'"\\':
            out.append("\\" + chr(code))
        elif code in b"\n\r\t":
            out.append({10: "\\n", 13: "\\r", 9: "\\t"}[code])
        elif 0x20 <= code < 0x7F or code == ord("'"):
            out.append(chr(code))
        else:
            out.append(f"\\{code:03o}")
    return "".join(out)


def parse_text(raw: bytes) -> TextMessage:
    """Return the message that `raw` is the text of; raise ValueError for anything else."""
    tokens = _tokens(raw)
    message, at = _message(tokens, 0, None, 0)
    assert at == len(tokens)
    return message


def _tokens(raw: bytes) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    at = 0
    while at < len(raw):
        match = _TOKEN.match(raw, at)
        if match is None:
            raise ValueError(f"byte {at} begins nothing that is known")
        if match.lastgroup is not None:
            found.append((match.lastgroup, match[0]))
        at = match.end()
    return found


def _message(
    tokens: list[tuple[str, bytes]], at: int, closing: bytes | None, depth: int
) -> tuple[TextMessage, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("messages lie too deep in each other")
    message = TextMessage()
    while at < len(tokens):
        kind, token = tokens[at]
        at += 1
        if token in (b";", b","):
            continue
        if closing is not None and token == closing:
            return message, at
        if kind != "word":
            raise ValueError(f"{token!r} stands where a field's name is expected")
        value, at = _value(tokens, at, depth)
        message.values.setdefault(token.decode(), []).append(value)
    if closing is not None:
        raise ValueError("a message is cut off")
    return message, at


def _value(
    tokens: list[tuple[str, bytes]], at: int, depth: int
) -> tuple[bytes | str | TextMessage, int]:
    has_colon = at < len(tokens) and tokens[at][1] == b":"
    at += has_colon
    if at == len(tokens):
        raise ValueError("a value is cut off")
    kind, token = tokens[at]
    at += 1
    if token in _CLOSING:
        return _message(tokens, at, _CLOSING[token], depth + 1)
    if not has_colon or kind == "sign":
        raise ValueError(f"{token!r} stands where a value is expected")
    if kind == "word":
        return token.decode(), at
    parts = [_unquoted(token)]  # joined once: a million of them would take minutes otherwise
    while at < len(tokens) and tokens[at][0] == "text":
        parts.append(_unquoted(tokens[at][1]))
        at += 1
    return b"".join(parts), at


def _unquoted(token: bytes) -> bytes:
    def one(match: re.Match[bytes]) -> bytes:
        octal, hexadecimal, letter = match.groups()
        if octal is not None:
            return bytes([int(octal, 8) & 0xFF])
        if hexadecimal is not None:
            return bytes([int(hexadecimal, 16)])
        if letter[0] not in _LETTERS:
            raise ValueError(f"unknown escape {match[0]!r}")
        return bytes([_LETTERS[letter[0]]])

    return _ESCAPE.sub(one, token[1:-1])
