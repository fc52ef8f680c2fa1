"""Names of entry logs, and which of them are to be appended to, sealed or deleted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from fastbk.storage.manifest import LogEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FOLDER = "logs"
ENDING = ".log"
_NAME = re.compile(r"([0-9a-f]{16})\.log")


def log_name(log_id: int) -> str:
    """Return the file name of an entry log."""
    return f"{log_id:016x}{ENDING}"


def log_id_of(name: str) -> int | None:
    """Return the id in an entry log's file name; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def appended(logs: Iterable[LogEntry], entry: LogEntry) -> tuple[LogEntry, ...]:
    """Return `logs` with `entry` put in or in place of its older self; every other log is sealed."""
    others = [
        msgspec.structs.replace(log, sealed=True) for log in logs if log.log_id != entry.log_id
    ]
    return tuple(sorted([*others, entry], key=lambda log: log.log_id))


def with_live_bytes(
    logs: Iterable[LogEntry], live: Mapping[int, int]
) -> tuple[tuple[LogEntry, ...], tuple[LogEntry, ...]]:
    """Return (the logs to keep, those that are dead): a sealed log that no location names any more is dead."""
    counted = [msgspec.structs.replace(log, live_bytes=live.get(log.log_id, 0)) for log in logs]
    kept = tuple(log for log in counted if log.live_bytes > 0 or not log.sealed)
    dead = tuple(log for log in counted if log.live_bytes == 0 and log.sealed)
    return kept, dead
