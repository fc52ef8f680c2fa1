"""What a command may do with the terminal: colours by state, and whether messages are wanted.

Colours are for a terminal only: not in pipes and files, not where NO_COLOR is set (https://no-color.org) or TERM is
`dumb`. `main` calls `configure` once, before anything is printed.
"""

from __future__ import annotations

import os
import re
import sys

RED, YELLOW, GREEN = 31, 33, 32
_COLOURS = {
    RED: ("fail", "down", "silent", "frozen", "failed", "damage", "problem", "failing", "refused", "error"),
    YELLOW: ("warn", "warning", "note", "read-only", "full", "starting", "replaying", "draining", "paused", "slow",
             "held", "maintenance", "ignored", "near full"),
    GREEN: ("ok", "up", "writable", "on", "whole"),
}  # fmt: skip
_COLOUR_OF = {word: colour for colour, words in _COLOURS.items() for word in words}
_ESCAPES = re.compile(r"\x1b\[\d*m")

_has_colours = False
_is_quiet = False


def configure(*, is_quiet: bool = False) -> None:
    """Take in what this process's streams and environment are, and whether messages are wanted."""
    global _has_colours, _is_quiet
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    _has_colours = sys.stdout.isatty() and not is_plain
    _is_quiet = is_quiet


def is_quiet() -> bool:
    """Return whether messages and progress are not wanted; errors always are."""
    return _is_quiet


def painted(text: str, state: str | None = None) -> str:
    """Return `text` in the colour of a state (default: of itself); as it is for other states, and without colours."""
    colour = _COLOUR_OF.get((text if state is None else state).strip().lower().replace("_", "-"))
    return f"\x1b[{colour}m{text}\x1b[0m" if _has_colours and colour else text


def plain(text: str) -> str:
    """Return `text` without colours."""
    return _ESCAPES.sub("", text)


def padded(text: str, width: int, align: str) -> str:
    """Return `text` filled up to `width` columns (`align`: `<` or `>`); colours take no column."""
    return f"{text:{align}{width + len(text) - len(plain(text))}}"
