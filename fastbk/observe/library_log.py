"""Events of the client library: records of the standard `logging`, by loggers below `fastbk`.

A library never writes to an application's stderr by itself. Without configuration nothing is written, also no warning:
the logger `fastbk` has a NullHandler. fastbk's own commands and servers call `forward`, which writes the events as
lines of `fastbk.observe.logs`. Processes that never use the client or metadata do not import this, nor `logging`.

Decision 85.
"""

from __future__ import annotations

import logging

from fastbk.observe import logs

ROOT = "fastbk"
_RESERVED = {*vars(logging.makeLogRecord({})), "message", "asctime", "event", "fields"}
"""Attributes of records that `extra` must not have."""

logging.getLogger(ROOT).addHandler(logging.NullHandler())


class LibraryLog:
    """One module's logger. An event is a noun and a past participle; its fields are typed, with their units.

    A record's message is the event with its fields. `record.event` is the event, `record.fields` a dict of all fields;
    each field is also an attribute of the record, unless `logging` uses that name itself.
    """

    def __init__(self, name: str) -> None:
        """`name`: of the logger, `fastbk` or below it."""
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: object) -> None:
        """Log what only a search for a fault needs."""
        self._log("debug", event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Log a change of state."""
        self._log("info", event, fields)

    def warning(
        self, event: str, /, *, failed: BaseException | None = None, **fields: object
    ) -> None:
        """Log what went wrong and is tried again. `failed`: its traceback goes with the record."""
        self._log("warning", event, fields, failed)

    def error(
        self, event: str, /, *, failed: BaseException | None = None, **fields: object
    ) -> None:
        """Log what someone has to act upon. `failed`: its traceback goes with the record."""
        self._log("error", event, fields, failed)

    def _log(
        self,
        level: str,
        event: str,
        fields: dict[str, object],
        failed: BaseException | None = None,
    ) -> None:
        number = logs.LEVELS[level]  # the numbers are those of `logging`
        if not self._logger.isEnabledFor(number):
            return
        extra = {name: value for name, value in fields.items() if name not in _RESERVED}
        extra |= {"event": event, "fields": fields}
        # The caller's line, not this one's: it is two calls up.
        self._logger.log(
            number, logs.message(event, fields), extra=extra, exc_info=failed, stacklevel=3
        )


class _Lines(logging.Handler):
    """Writes records as lines of the process's own log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        event, fields = getattr(record, "event", None), dict(getattr(record, "fields", {}))
        if event is None:
            event, fields = "log.record", {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        level = next(
            (name for name in reversed(logs.LEVELS) if record.levelno >= logs.LEVELS[name]), "debug"
        )
        logs.write(level, event, fields)


def forward() -> None:
    """Write the library's events to this process's log, by the level and style of `logs`; again: does nothing.

    For processes that are fastbk's own: commands, servers, and workers that Spark starts for its sources.
    """
    root = logging.getLogger(ROOT)
    if not any(isinstance(handler, _Lines) for handler in root.handlers):
        root.addHandler(_Lines())
        root.setLevel(logging.DEBUG)  # `logs` has the level
