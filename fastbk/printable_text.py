"""Text of others, made safe to send, to log and to show: of clients, certificates, tokens, files and libraries.

It may hold lone surrogates, which no encoding takes, control characters and escape sequences, which a terminal obeys,
and marks that turn the direction of a line. And it may be of any length.
"""

from __future__ import annotations

import re

CHARACTERS_MAX = 1000
"""Of a text of others in a message of ours."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def printable(text: str, characters_max: int = CHARACTERS_MAX, *, kept: str = "") -> str:
    """Return one line that can be encoded and shown. What is printable stays as it is.

    Every other character becomes an escape as Python writes it (`\\x1b`, `\\u202e`), except those in `kept`. Of a text
    that is longer than `characters_max` the beginning is returned, with "..." behind it.
    """
    cut = text[:characters_max]
    if not cut.isprintable():
        cut = "".join(one if one.isprintable() or one in kept else _escape(one) for one in cut)
    return cut if len(text) <= characters_max else f"{cut}..."


def printable_json(line: bytes) -> bytes:
    """Return JSON with all that is not printable as escapes of JSON: it means the same, and can be shown."""
    text = line.decode()
    if text.isprintable():
        return line
    return "".join(one if one.isprintable() else _json_escape(one) for one in text).encode()


def encodable(value: object) -> object:
    """Return what JSON could be made of, with the lone surrogates of its texts escaped: no encoding takes those."""
    if isinstance(value, str):
        return _SURROGATE.sub(lambda found: _escape(found[0]), value)
    if isinstance(value, dict):
        return {encodable(name): encodable(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encodable(one) for one in value]
    return value


def _escape(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _json_escape(character: str) -> str:
    data = character.encode("utf-16-be")
    return "".join(f"\\u{data[at]:02x}{data[at + 1]:02x}" for at in range(0, len(data), 2))
