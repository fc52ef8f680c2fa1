"""What long commands share: a line of progress on stderr, and limits of rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.cli.options import note
from fastbk.errors import ConfigError
from fastbk.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable


def rate_of(text: str) -> float:
    """Return the bytes a second that --rate names; 0 = no limit. Raises ConfigError."""
    if text == "0":
        return 0.0
    try:
        return float(parse_size(text))
    except ValueError as error:
        raise ConfigError(f"--rate {text}: {error}") from error


class ProgressLine:
    """Progress on stderr: overwritten on a terminal, a line every few seconds elsewhere."""

    EVERY_TERMINAL_S, EVERY_LOG_S = 0.2, 10.0

    def __init__(self) -> None:
        import sys
        import time

        self._clock = time.monotonic
        self._is_terminal = sys.stderr.isatty()
        self._next_s = 0.0

    def at(self, text: Callable[[], str]) -> None:
        """Say how far it is, when it is time for that."""
        now_s = self._clock()
        if now_s < self._next_s:
            return
        self._next_s = now_s + (self.EVERY_TERMINAL_S if self._is_terminal else self.EVERY_LOG_S)
        if self._is_terminal:
            import sys

            print(f"\r\x1b[K{text()}", end="", file=sys.stderr, flush=True)
        else:
            note(text())

    def end(self) -> None:
        """Clear the line."""
        if self._is_terminal:
            import sys

            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
