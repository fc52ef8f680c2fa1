"""Files on their way into a manifest or out of every one: their ids, and what may be unlinked when (INV-X2).

An id is used once, whatever became of its file. A file that no durable manifest names is unlinked; one that a
manifest names which may or may not count after a restart waits for the next commit.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastbk.native.process import kill_point
from fastbk.storage.directories import LOCATIONS, LOGS, locations_path, log_path
from fastbk.storage.manifest import FLUSH, LogEntry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastbk.native.disk import Disk
    from fastbk.native.store import Store
    from fastbk.storage.manifest import Manifest


@dataclass(slots=True)
class Attempt:
    """The files made by a try that is not committed yet; `file_id` -1: no locations file."""

    generation: int
    file_id: int = -1
    paths: list[str] = field(default_factory=list)
    prepared: list[int] = field(default_factory=list)
    """Locations files that the store has looked into."""


class NewFiles:
    """Of one ledger directory; the flush thread's, but for new ids, which the background thread takes, too."""

    def __init__(self, disk: Disk, directory: str, manifest: Manifest) -> None:
        """Note what an earlier life left behind: its names stay taken until a commit of this life, ids go on behind."""
        self._lock = threading.Lock()
        self._disk = disk
        self._directory = directory
        logs = set(LOGS.ids_in(disk, directory)) - {log.log_id for log in manifest.logs}
        files = set(LOCATIONS.ids_in(disk, directory)) - {
            entry.file_id for entry in manifest.locations
        }
        self.next_log_id = max([manifest.next_log_id, *(one + 1 for one in logs)])
        self.next_file_id = max([manifest.next_file_id, *(one + 1 for one in files)])
        self._waiting = [log_path(directory, one) for one in sorted(logs)]
        """Paths to be unlinked after the next commit."""
        self._waiting += [locations_path(directory, one) for one in sorted(files)]

    def attempt(self, generation: int) -> Attempt:
        """Return a try that makes a locations file. Any thread."""
        attempt = Attempt(generation)
        attempt.file_id = self.new_locations(attempt)
        return attempt

    def new_locations(self, attempt: Attempt) -> int:
        """Return the id of a locations file that `attempt` makes. Any thread."""
        with self._lock:
            file_id = self.next_file_id
            self.next_file_id += 1
        attempt.paths.append(locations_path(self._directory, file_id))
        return file_id

    def new_log(self, attempt: Attempt, salt: int, created_s: int, kind: str = FLUSH) -> LogEntry:
        """Return an entry log that `attempt` makes. Any thread."""
        with self._lock:
            log_id = self.next_log_id
            self.next_log_id += 1
        attempt.paths.append(log_path(self._directory, log_id))
        return LogEntry(
            log_id=log_id,
            salt=salt,
            durable_bytes=0,
            live_bytes=0,
            sealed=False,
            kind=kind,
            created_s=created_s,
        )

    def abandon(self, store: Store, attempt: Attempt) -> None:
        """Before the commit: no manifest can name these files, and a full disk needs the room."""
        for file_id in attempt.prepared:
            store.drop_prepared(file_id)
        self.unlink(attempt.paths)

    def doubt(self, store: Store, attempt: Attempt) -> None:
        """After a commit of unknown outcome: the files stay until a later commit."""
        for file_id in attempt.prepared:
            store.drop_prepared(file_id)
        self._waiting += attempt.paths

    @property
    def waiting(self) -> frozenset[str]:
        """What is to be unlinked after the next commit."""
        return frozenset(self._waiting)

    def take_waiting(self) -> list[str]:
        """After a commit: return what may be unlinked now."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def unlink(self, paths: Iterable[str]) -> list[str]:
        """Remove files, durably; return complaints. What fails waits for the next commit."""
        complaints = []
        folders = set()
        for path in paths:
            folders.add(os.path.dirname(path))
            kill_point("index.before_unlink")
            try:
                self._disk.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                complaints.append(f"{path}: {error}")
                self._waiting.append(path)
        kill_point("index.after_unlink")
        for folder in folders:
            try:
                self._disk.sync_directory(folder)
            except OSError as error:
                complaints.append(f"{folder}: {error}")
        return complaints
