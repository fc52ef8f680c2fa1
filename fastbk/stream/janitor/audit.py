"""The audit log of streams: one JSON line for each ledger, cursor and stream that is deleted, with the reason."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fastbk.durable_files import sync_directory
from fastbk.errors import StorageError
from fastbk.observe.library_log import LibraryLog
from fastbk.private_files import opener
from fastbk.units import MIB

_log = LibraryLog("fastbk.stream.janitor")

SIZE_BYTES_MAX = 64 * MIB
"""A longer file becomes `<name>.1`, in place of the one before it."""
Event = dict[str, object]
Sink = Callable[[Sequence[Event]], None]
"""Keeps events before it returns; raises OSError."""


def log_lines(events: Sequence[Event]) -> None:
    """Write events to the process's log: where no file is named."""
    for event in events:
        _log.info("janitor.deletes", **event)


@dataclass(frozen=True, slots=True)
class AuditFile:
    """A file that events are appended to, durably. Several processes may write to the same one."""

    _path: Path

    def __call__(self, events: Sequence[Event]) -> None:
        """Append a line an event. Raises OSError: then what they announce must not be done."""
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        is_new = self._set_aside()
        file = opener(os.fspath(self._path), os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                lines = b"\n" + lines  # a crash cut a line short
            if os.write(file, lines) != len(lines):
                raise OSError(f"{self._path}: a line was written in part")
            os.fsync(file)
        finally:
            os.close(file)
        if is_new:
            sync_directory(self._path.parent)

    def _set_aside(self) -> bool:
        try:
            if self._path.stat().st_size <= SIZE_BYTES_MAX:
                return False
            self._path.rename(self._path.with_name(f"{self._path.name}.1"))
        except FileNotFoundError:
            pass
        return True


class Audit:
    """Tells a sink of deletions, off the event loop, one call at a time."""

    def __init__(self, sink: Sink = log_lines) -> None:
        self._sink = sink
        self._turn = asyncio.Lock()

    async def record(self, reason: str, *events: Event) -> None:
        """Return when these deletions are noted. Raises StorageError: then nothing may be deleted."""
        if not events:
            return
        now_s = int(time.time())
        lines = [{"time_s": now_s, "reason": reason, **event} for event in events]
        async with self._turn:
            try:
                if self._sink is log_lines:
                    self._sink(lines)
                else:
                    await asyncio.to_thread(self._sink, lines)
            except OSError as error:
                raise StorageError(f"the audit log cannot be written: {error}") from error
