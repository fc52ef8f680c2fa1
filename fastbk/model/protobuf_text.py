"""Protobuf's text form, as far as Apache's nodes in ZooKeeper use it: cookies, and ledger metadata of version 2.

Reading gives names and values as they stand, without a schema; numbers and the names of enum values stay text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class TextMessage:
    """Fields by name, each with all its values in order: bytes of a string, text of anything else, or a message."""

    values: dict[str, list[bytes | str | TextMessage]] = field(default_factory=dict)

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


def parse(raw: bytes) -> TextMessage:
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
