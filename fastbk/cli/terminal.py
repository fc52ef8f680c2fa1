"""What a command may do with the terminal: colours by state, and whether messages are wanted.

Colours are for a terminal only: not in pipes and files, not where NO_COLOR is set (https://no-color.org) or TERM is
`dumb`. `main` calls `configure` once, before anything is printed.

Names, reasons and records are text of others. A terminal would obey its control characters. So everything that a
command prints goes through `Printer`, which escapes them; what moves the terminal's cursor itself is a `control`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import TextIO

from fastbk.printable_text import printable

RED, YELLOW, GREEN = 31, 33, 32
_COLOURS = {
    RED: ("fail", "down", "silent", "frozen", "failed", "damage", "problem", "failing", "refused", "error"),
    YELLOW: ("warn", "warning", "note", "read-only", "full", "starting", "replaying", "draining", "paused", "slow",
             "held", "maintenance", "ignored", "near full"),
    GREEN: ("ok", "up", "writable", "on", "whole"),
}  # fmt: skip
_COLOUR_OF = {word: colour for colour, words in _COLOURS.items() for word in words}
_MARK = f"\x1b{os.urandom(8).hex()}"
"""What `painted` puts where the terminal is to receive ESC. Text of others cannot have it, so it brings no colours."""
_COLOUR = re.compile(rf"{_MARK}\[\d+m")
_OURS = re.compile(rf"({_MARK}\[\d+m|[\n\t])")
"""What is printed as it is: line ends and the colours of `painted`."""

_has_colours = False
_is_quiet = False


def configure(*, is_quiet: bool = False) -> None:
    """Take in what this process's streams and environment are, and whether messages are wanted."""
    global _has_colours, _is_quiet
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    _has_colours = sys.stdout.isatty() and not is_plain
    _is_quiet = is_quiet
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, Printer):
            setattr(sys, name, Printer(stream))


class Printer:
    """A text stream that escapes what a terminal would obey; its `buffer` takes bytes as they are."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write text, its control characters escaped."""
        self.stream.write(shown(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts, their control characters escaped."""
        for line in lines:
            self.write(line)


def shown(text: str) -> str:
    """Return text with what a terminal would obey escaped, but for line ends, tabs and colours."""
    if text.isprintable():
        return text
    parts = _OURS.split(text)
    return "".join(
        one.replace(_MARK, "\x1b")
        if at % 2
        else one
        if one.isprintable()
        else printable(one, len(one))
        for at, one in enumerate(parts)
    )


def control(text: str, stream: TextIO) -> None:
    """Write what moves the cursor of a terminal or clears it; all text of others in it has gone through `shown`."""
    (stream.stream if isinstance(stream, Printer) else stream).write(text)
    stream.flush()


def write_payload(pieces: Iterable[bytes | memoryview]) -> None:
    """Write bytes of others to stdout: as they are to a pipe or a file, as `shown` text to a terminal."""
    if not sys.stdout.isatty():
        sys.stdout.buffer.writelines(pieces)
        return
    for piece in pieces:
        sys.stdout.write(bytes(piece).decode("utf-8", "backslashreplace"))


def is_quiet() -> bool:
    """Return whether messages and progress are not wanted; errors always are."""
    return _is_quiet


def painted(text: str, state: str | None = None) -> str:
    """Return `text` in the colour of a state (default: of itself); as it is for other states, and without colours."""
    colour = _COLOUR_OF.get((text if state is None else state).strip().lower().replace("_", "-"))
    return f"{_MARK}[{colour}m{text}{_MARK}[0m" if _has_colours and colour else text


def plain(text: str) -> str:
    """Return `text` without colours."""
    return _COLOUR.sub("", text)


def padded(text: str, width: int, align: str) -> str:
    """Return `text` filled up to `width` columns (`align`: `<` or `>`); colours take no column."""
    return f"{text:{align}{width + len(text) - len(plain(text))}}"
