"""Text of others, made safe to send, to log and to show: of clients, certificates, tokens, files and libraries.

It may hold lone surrogates, which no encoding takes, control characters and escape sequences, which a terminal obeys,
and marks that turn the direction of a line. And it may be of any length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

CHARACTERS_MAX = 1000
"""Maximum length of a text of others in a message of ours."""
_SHOWN_BYTES_MAX = 40
"""Maximum bytes of data in what `repr` returns."""
DEPTH_MAX = 20
"""Maximum depth of lists and tables in each other, where JSON has to be made by hand."""
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


def printable_json(value: object) -> bytes:
    """Return a value as JSON of one line that can be shown; never raises.

    What is not printable stands there as JSON's escapes, so it means the same. Only what JSON cannot say is changed:
    lone surrogates become text, as `printable` has them, and so do objects, large integers and what lies too deep.
    """
    try:
        data = msgspec.json.encode(value, enc_hook=_text_of)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        # UnicodeEncodeError is a ValueError
        data = msgspec.json.encode(_encodable(value, DEPTH_MAX))
    text = data.decode()
    if text.isprintable():
        return data
    return "".join(one if one.isprintable() else _json_escape(one) for one in text).encode()


def _encodable(value: object, depth: int) -> object:
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, str):
        return _SURROGATE.sub(lambda found: _escape(found[0]), value)
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else hex(value)[:CHARACTERS_MAX]
    if depth and isinstance(value, Mapping):
        return {
            str(_encodable(str(name), 0)): _encodable(one, depth - 1) for name, one in value.items()
        }
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [_encodable(one, depth - 1) for one in value]
    return _text_of(value)


def _text_of(value: object) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - whatever another's object does when it is shown
        text = f"a {type(value).__name__}"
    return _SURROGATE.sub(lambda found: _escape(found[0]), text)


def shown_bytes(data: bytes | memoryview) -> str:
    """Return the beginning of what may be long, as Python writes bytes."""
    return repr(bytes(data[:_SHOWN_BYTES_MAX])) + ("…" if len(data) > _SHOWN_BYTES_MAX else "")


def _escape(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _json_escape(character: str) -> str:
    data = character.encode("utf-16-be")
    return "".join(f"\\u{data[start]:02x}{data[start + 1]:02x}" for start in range(0, len(data), 2))
