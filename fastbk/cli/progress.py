"""What long commands share: a line of progress on stderr, sizes, and limits of rates."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

from fastbk.cli.options import note
from fastbk.cli.terminal import control, is_quiet, shown
from fastbk.errors import ConfigError
from fastbk.observe import logs
from fastbk.units import format_age_s, format_entries, format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable


def rate_of(text: str) -> float:
    """Return the bytes a second that --rate names; 0 = no limit. Raises ConfigError."""
    return 0.0 if text == "0" else float(size_of("--rate", text))


def size_of(option: str, text: str) -> int:
    """Return the bytes that the value of an option names. Raises ConfigError."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text}: {error}") from error


CLEAR = "\r\x1b[K"


class ProgressLine:
    """Progress on stderr: overwritten on a terminal, a line every few seconds elsewhere."""

    EVERY_TERMINAL_S, EVERY_LOG_S = 0.2, 10.0

    def __init__(self) -> None:
        self._clock = time.monotonic
        self._is_terminal = sys.stderr.isatty()
        self._is_shown = False
        self._next_s = 0.0

    def at(self, text: Callable[[], str]) -> None:
        """Say how far it is, when it is time for that; never with --quiet."""
        now_s = self._clock()
        if now_s < self._next_s or is_quiet():
            return
        self._next_s = now_s + (self.EVERY_TERMINAL_S if self._is_terminal else self.EVERY_LOG_S)
        if self._is_terminal:
            # A line that wraps could not be overwritten.
            line = text()[: shutil.get_terminal_size().columns - 1]
            control(f"{CLEAR}{shown(line)}", sys.stderr)
            if not self._is_shown:
                self._is_shown = True
                logs.add_taker(self._make_way)
        else:
            note(text())

    def end(self) -> None:
        """Clear the line."""
        if self._is_shown:
            self._is_shown = False
            logs.remove_taker(self._make_way)
            control(CLEAR, sys.stderr)

    def _make_way(self, *_: object) -> None:
        """Clear the line before a log line, which would stand behind it."""
        os.write(sys.stderr.fileno(), CLEAR.encode())


class ByteProgress(ProgressLine):
    """Entries, bytes and their rate, on a terminal only."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what
        self._began_s = self._clock()
        self._next_s = self._began_s + self.EVERY_TERMINAL_S

    def moved(self, entries: int, size_bytes: int) -> None:
        """Say how much was moved so far; cheap when it is not yet time for a new line."""
        if self._is_terminal:
            self.at(lambda: self._text(entries, size_bytes))

    def _text(self, entries: int, size_bytes: int) -> str:
        rate = int(size_bytes / max(1e-9, self._clock() - self._began_s))
        size = format_size(size_bytes)
        return f"{self._what}: {format_entries(entries)}, {size}, {format_size(rate)}/s"


def rate_and_left(done_bytes: int, total_bytes: int, spent_s: float) -> str:
    """Return the rate so far and the time that the rest takes at it: `12.0 MiB/s, 5 min left`.

    Without the time where no rate is known yet, or where more was done than there was to do.
    """
    rate = done_bytes / max(1e-9, spent_s)
    text = f"{format_size(int(rate))}/s"
    if rate > 0 and total_bytes > done_bytes:
        text += f", {format_age_s((total_bytes - done_bytes) / rate)} left"
    return text
