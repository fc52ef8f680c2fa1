"""Log lines of the bookie's processes: JSON in service, aligned text on a terminal; written to
stderr.

Control plane only: nothing that runs once per entry or per batch may log; that counts in shared
memory (`fastbk.observe.names`). An event is a noun and a past participle (`journal.rolled`),
everything else a typed key with its unit (`wait_us=180`). Role, number, bookie id and pid are bound
once at the start of a process.

Not the standard library's logging: its import costs more than all of this module's users need, in
every child. One line is one write, so lines of several processes on one pipe do not mix.
The client library, whose applications own their stderr, logs by `fastbk.observe.library_log`."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from fastbk.printable_text import printable, printable_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""error: someone must act; warning: it healed itself; info: changes of state; debug: off unless
asked for.
"""

_PRIORITIES = {"debug": b"<7>", "info": b"<6>", "warning": b"<4>", "error": b"<3>"}
"""Those of syslog. systemd's journal takes them off a line's beginning, so that `journalctl -p err` finds errors."""
JOURNAL_STREAM = "JOURNAL_STREAM"
"""systemd sets it for a service: device and inode of the stream that goes to the journal."""
LEVEL_VARIABLE = "FASTBK_LOG_LEVEL"
_LINE_BYTES_MAX = 16_384
_bound: dict[str, object] = {}
_style = "json"
_level = LEVELS["info"]
_has_priorities = False
_also: list[Callable[[str, str, Mapping[str, object]], None]] = []


def configure(style: str | None = None, level: str | None = None) -> None:
    """Choose how and what this process logs; called once at its start.

    Args:
        style: `json` or `text`; None: FASTBK_LOG_STYLE, else text on a terminal, JSON elsewhere.
        level: one of LEVELS; None: FASTBK_LOG_LEVEL, else `info`. An unknown word is `info`.
    """
    global _style, _level, _has_priorities
    style = style or os.environ.get("FASTBK_LOG_STYLE") or ("text" if os.isatty(2) else "json")
    level = level or os.environ.get(LEVEL_VARIABLE) or "info"
    _style = "text" if style == "text" else "json"
    _level = LEVELS.get(level, LEVELS["info"])
    _has_priorities = _goes_to_journal()


def _goes_to_journal() -> bool:
    stream = os.environ.get(JOURNAL_STREAM)
    if not stream:
        return False
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"  # else somebody has redirected it since


def level() -> str:
    """Return the level of this process, one of LEVELS."""
    return next(name for name, number in LEVELS.items() if number == _level)


def set_level(name: str) -> None:
    """Log from this level on, one of LEVELS."""
    global _level
    _level = LEVELS[name]


def bind(**values: object) -> None:
    """Add these keys to every later line of this process."""
    _bound.update(values)


def add_taker(take: Callable[[str, str, Mapping[str, object]], None]) -> None:
    """Have `take` called with the level, event and values of each later line, also of those below the level.

    It is called by whichever thread logs, must not wait, and must not log.
    """
    _also.append(take)


def remove_taker(take: Callable[[str, str, Mapping[str, object]], None]) -> None:
    """End what `add_taker` began; again: does nothing."""
    if take in _also:
        _also.remove(take)


def debug(event: str, **values: object) -> None:
    """Log what only a search for a fault needs."""
    write("debug", event, values)


def info(event: str, **values: object) -> None:
    """Log a change of state: a handful a minute."""
    write("info", event, values)


def warning(event: str, **values: object) -> None:
    """Log what went wrong and healed by itself."""
    write("warning", event, values)


def error(event: str, **values: object) -> None:
    """Log what someone has to act upon."""
    write("error", event, values)


def json_line(level: str, event: str, values: dict[str, object], now_s: float) -> bytes:
    """Return one line of the JSON style, its newline included."""
    line = {"time": utc(now_s), "level": level, "event": event, **_bound, **values}
    return printable_json(line) + b"\n"


def text_line(level: str, event: str, values: dict[str, object], now_s: float) -> bytes:
    """Return one line of the terminal style, its newline included."""
    who = str(_bound.get("role", ""))
    if "index" in _bound:
        who += f"[{_bound['index']}]"
    clock = utc(now_s)[11:23]
    short = {name: value for name, value in values.items() if not _has_lines(value)}
    lines = [f"{clock} {level:<7} {who:<12} {message(f'{event:<24}', short)}".rstrip()]
    for name, value in values.items():
        # such as a traceback; no line of it can be taken for one of the log's
        if name not in short:
            lines += [
                f"    {name}:",
                *(f"    | {printable(one)}" for one in str(value).splitlines()),
            ]
    return "\n".join(lines).encode() + b"\n"


def message(event: str, values: Mapping[str, object]) -> str:
    """Return an event and its keys as one line of text; text of others in it is escaped."""
    return " ".join((event, *(f"{name}={_text(value)}" for name, value in values.items())))


def write(level: str, event: str, values: dict[str, object]) -> None:
    """Log an event at a level that is given by its name."""
    for take in _also:
        take(level, event, values)
    if LEVELS[level] < _level:
        return
    make = text_line if _style == "text" else json_line
    line = make(level, event, values, time.time())
    if len(line) > _LINE_BYTES_MAX:
        cut = {
            "cut_bytes": len(line),
            "start": line[: _LINE_BYTES_MAX // 4].decode("utf-8", "replace"),
        }
        line = make(level, event, cut, time.time())
    if _has_priorities:
        line = b"".join(_PRIORITIES[level] + one for one in line.splitlines(keepends=True))
    try:
        os.write(2, line)
    except OSError:
        pass  # nobody listens any more; the process has better things to do than to die of it


def _text(value: object) -> str:
    text = (
        printable(value, _LINE_BYTES_MAX)
        if isinstance(value, str)
        else printable_json(value).decode()
    )
    return text if text and " " not in text else f'"{text}"'


def _has_lines(value: object) -> bool:
    return isinstance(value, str) and "\n" in value


def utc(now_s: float) -> str:
    """Return a moment as log lines have it, in microseconds: `2026-11-28T03:12:00.250000Z`."""
    whole = int(now_s)
    return (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
        + f".{int((now_s - whole) * 1e6):06d}Z"
    )


LOG_INTERVAL_S = 10.0
LIMITS_MAX = 100
OTHERS = "others"
"""Stands for the limits beyond LIMITS_MAX, whose names come from somewhere else, such as a library's reasons."""


class LimitLog:
    """Counts what a process's limits refused or closed, and logs it at a bounded rate.

    An attacker chooses how often a limit is reached, so one line per event would fill the log. Each limit
    writes one line at once, and then at most one per LOG_INTERVAL_S, with the number of events since the last.

    Attributes:
        counts: events of each limit since the process started; a limit without events is missing.
    """

    def __init__(
        self, event: str, clock: Callable[[], float] = time.monotonic, level: str = "warning"
    ) -> None:
        """`event`: the name of the log line, and `level` its level."""
        self.counts: dict[str, int] = {}
        self._event = event
        self._level = level
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}

    def note(self, limit: str, count: int = 1, **values: object) -> None:
        """Count events of a limit; log them unless a line of the same limit was written just now."""
        if limit not in self.counts and len(self.counts) >= LIMITS_MAX:
            limit = OTHERS
        total = self.counts.get(limit, 0) + count
        self.counts[limit] = total
        now_s = self._clock()
        logged_s, logged_total = self._logged.get(limit, (-LOG_INTERVAL_S, 0))
        if now_s - logged_s < LOG_INTERVAL_S:
            return
        self._logged[limit] = (now_s, total)
        line = {"limit": limit, "count": total - logged_total, "total": total, **values}
        write(self._level, self._event, line)
