"""How a command is run: `--quiet`, `--timeout SECONDS` and `--watch SECONDS`."""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import sys
import time
from typing import TYPE_CHECKING

from fastbk.cli import terminal
from fastbk.errors import Error
from fastbk.exit_codes import of_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

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
    painted = [terminal.painted(line, "error") for line in problem.splitlines()]
    lines = fitting([head, "", *text.splitlines(), *painted], columns, rows)
    # Home and erase line by line: clearing the whole screen first would flicker.
    body = "".join(f"{terminal.shown(line)}\x1b[K\r\n" for line in lines)
    terminal.control(f"\x1b[H{body}\x1b[J", sys.stdout)


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
    bare = terminal.plain(line)
    return line if len(bare) <= columns else bare[: max(0, columns - 1)] + "…"
