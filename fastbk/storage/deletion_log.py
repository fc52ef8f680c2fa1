"""The deletion log of a ledger directory: every deletion of data, with its reason, before it happens.

It is `audit.log`, one JSON object a line, and is only appended to. If a crash cut a line short, a newline closes it
before the next line. A long file becomes `audit.1.log` and replaces the one before it: copy that away to keep more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.storage.directories import DELETION_LOG_NAME, DELETION_LOG_OLD_NAME
from fastbk.units import MIB

if TYPE_CHECKING:
    from fastbk.native.disk import Disk

SIZE_BYTES_MAX = 64 * MIB
"""A longer one is set aside before the next line."""


class DeletionLog:
    """`audit.log` of one directory. One thread of one process."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{DELETION_LOG_NAME}"

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
        self._disk.rename(self._path, f"{self._directory}/{DELETION_LOG_OLD_NAME}")
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
            except (ValueError, RecursionError):
                continue
        return events
