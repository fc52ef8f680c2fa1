"""The audit log of a ledger directory: every deletion of data, with its reason, before it happens.

One JSON object a line. Only appended to; a line that was cut short by a crash is closed by a line's end before
the next one. A file that is long enough becomes `audit.1.log`, in place of the one before it: whoever wants to keep
more copies that away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.storage.directories import AUDIT_NAME, AUDIT_OLD_NAME
from fastbk.units import MIB

if TYPE_CHECKING:
    from fastbk.native.disk import Disk

SIZE_BYTES_MAX = 64 * MIB
"""A longer one is set aside before the next line."""


class AuditLog:
    """`audit.log` of one directory. One thread of one process."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{AUDIT_NAME}"

    def append(self, *events: dict[str, object]) -> None:
        """Add one line an event, durably. Raises OSError: then what they announce must not be done."""
        if not events:
            return
        file, is_new = self._open()
        try:
            size = self._disk.size(file)
            cut = size > 0 and self._disk.read(file, 1, size - 1) != b"\n"
            lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
            self._disk.write_all(file, b"\n" + lines if cut else lines, size)
            self._disk.sync(file)
        finally:
            self._disk.close(file)
        if is_new:
            self._disk.sync_directory(self._directory)

    def _open(self) -> tuple[int, bool]:
        """Return the file to append to, and whether it is a new one."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return self._disk.open(self._path, create=True), True
        if self._disk.size(file) <= SIZE_BYTES_MAX:
            return file, False
        self._disk.close(file)
        self._disk.rename(self._path, f"{self._directory}/{AUDIT_OLD_NAME}")
        return self._disk.open(self._path, create=True), True

    def read(self) -> list[dict[str, object]]:
        """Return all whole lines."""
        try:
            raw = self._disk.read_file(self._path)
        except FileNotFoundError:
            return []
        events = []
        for line in raw.split(b"\n"):
            try:
                events.append(msgspec.json.decode(line, type=dict[str, object]))
            except (msgspec.MsgspecError, RecursionError):
                continue
        return events
