"""How a command is run on its terminal: messages and colours, `--quiet`, `--timeout SECONDS` and `--watch SECONDS`.

Colours are for a terminal only: not in pipes and files, not where NO_COLOR is set (https://no-color.org) or TERM is
`dumb`. `main` calls `configure` once, before anything is printed.

Names, reasons and records are text of others. A terminal would obey its control characters. So everything that a
command prints goes through `Printer`, which escapes them; what moves the terminal's cursor itself is a `control`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import signal
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from fastbk.errors import Error
from fastbk.exit_codes import of_command
from fastbk.printable_text import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

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
        part.replace(_MARK, "\x1b")
        if index % 2
        else part
        if part.isprintable()
        else printable(part, len(part))
        for index, part in enumerate(parts)
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


# How a command is run: `--quiet`, `--timeout SECONDS` and `--watch SECONDS`.

WATCH_DEFAULT_S = 2.0
WATCH_MIN_S = 0.1
SECONDS_MAX = 1e6
END_S = 5.0
"""What a command that is at its deadline may take to end in order; each further wait cuts it harder."""


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add --quiet and --timeout. A command that has one of its own keeps that."""
    parser.add_argument(
        "--quiet", "-q", action="store_true", help="print no messages and no progress, only errors"
    )
    if "--timeout" not in parser._option_string_actions:
        parser.add_argument(
            "--timeout",
            dest="deadline_s",
            type=seconds,
            metavar="SECONDS",
            help="end after that time with exit code 75, as Ctrl-C would end it",
        )


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Add --watch, for a verb that only shows something."""
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_watch_seconds,
        const=WATCH_DEFAULT_S,
        metavar="SECONDS",
        help=f"show it again every so many seconds ({WATCH_DEFAULT_S:g}), until Ctrl-C or --timeout",
    )


def seconds(text: str) -> float:
    """Return a time in seconds that an option gives, above 0. Raises ArgumentTypeError."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 < found <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return found


def _watch_seconds(text: str) -> float:
    try:
        return max(WATCH_MIN_S, seconds(text))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"{error}: write --watch=5, or put --watch behind the other words"
        ) from None


class Deadline:
    """Ends what runs within `with` after so many seconds, as Ctrl-C would: it raises KeyboardInterrupt.

    In the main thread only, where signals arrive. Without seconds it does nothing.

    Attributes:
        reason: why the command was ended; empty before that.
    """

    def __init__(self, seconds: float | None) -> None:
        self.reason = ""
        self._seconds = seconds

    def __enter__(self) -> None:
        if self._seconds is not None:
            self._former = signal.signal(signal.SIGALRM, self._end)
            signal.setitimer(signal.ITIMER_REAL, self._seconds, END_S)

    def __exit__(self, *_: object) -> None:
        if self._seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._former)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.reason = (
            f"not done within {self._seconds:g} s (--timeout): try again, or give it more time"
        )
        # The loop of a command cancels its task then, and what it holds is given back.
        signal.raise_signal(signal.SIGINT)


def repeated(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a verb once, or with --watch again and again until it is interrupted; return the last exit code.

    On a terminal each answer takes the place of the one before, elsewhere it follows that. An error is an answer, too:
    who watches a cluster wants to see it go and come back.
    """
    interval_s = getattr(options, "watch", None)
    if interval_s is None:
        return run(options)
    code = 0
    began_s = time.monotonic()
    try:
        while True:
            answer = io.StringIO()
            try:
                with contextlib.redirect_stdout(answer):
                    code = run(options)
                text, problem = answer.getvalue(), ""
            except Error as error:
                code = of_command(error)
                text, problem = answer.getvalue(), f"fastbk: {' '.join(str(error).split())}\n"
            _show(text, problem, interval_s)
            # From the beginning on, so that answers do not drift.
            spent_s = time.monotonic() - began_s
            time.sleep(interval_s - spent_s % interval_s)
    except KeyboardInterrupt:
        if sys.stdout.isatty():
            print()  # behind the ^C
        return code


def _show(text: str, problem: str, interval_s: float) -> None:
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        sys.stdout.flush()
        sys.stderr.write(problem)
        return
    import shutil  # 2 ms that --help need not take

    columns, rows = shutil.get_terminal_size()
    # In UTC as all times that fastbk prints.
    head = f"every {interval_s:g} s, now {time.strftime('%H:%M:%SZ', time.gmtime())}; Ctrl-C ends"
    painted = [painted(line, "error") for line in problem.splitlines()]
    lines = fitting([head, "", *text.splitlines(), *painted], columns, rows)
    # Home and erase line by line: clearing the whole screen first would flicker.
    body = "".join(f"{shown(line)}\x1b[K\r\n" for line in lines)
    control(f"\x1b[H{body}\x1b[J", sys.stdout)


def fitting(lines: list[str], columns: int, rows: int) -> list[str]:
    """Return lines that fit a screen of so many columns and rows, the cursor's row behind them included."""
    room = max(2, rows - 1)
    if len(lines) > room:
        hidden = len(lines) - room + 1
        lines = [
            *lines[: room - 1],
            f"... {hidden} more lines: make the window larger, or leave --watch out",
        ]
    return [_cut(line, columns) for line in lines]


def _cut(line: str, columns: int) -> str:
    """Return a line that takes one row; a longer one loses its colours with its end."""
    bare = plain(line)
    return line if len(bare) <= columns else bare[: max(0, columns - 1)] + "…"
