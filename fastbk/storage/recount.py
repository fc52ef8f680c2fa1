"""Counting what lives in which entry log: one pass over all locations, in the background thread.

Run when something was deleted. What flushes add meanwhile is added to the count at its commit
(`Checkpoint.commit_recount`), so nothing is subtracted anywhere, and nothing can be subtracted twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.native.store import Scope

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastbk.native.store import Store
    from fastbk.storage.commits import Commits
    from fastbk.storage.manifest import LogEntry

LOOKS_MAX = 10
"""A pass begins anew when a merge takes a file away just before it."""


class Recount:
    """One count. `logs`: as they were when it was begun; `live`: log id -> bytes."""

    def __init__(self, commits: Commits, deleted: Collection[int]) -> None:
        """Plan it. `deleted`: ledgers whose deletion is durable."""
        self.logs: tuple[LogEntry, ...] = ()
        self.live: dict[int, int] = {}
        self._commits = commits
        self._deleted = deleted

    def run(self, store: Store) -> int:
        """Count; return the bytes that were read. Raises OSError, CorruptDataError when a locations file is damaged."""
        for _ in range(LOOKS_MAX):
            manifest = self._commits.manifest
            files = [entry.file_id for entry in manifest.locations]
            scope = Scope(files, (log.log_id for log in manifest.logs), self._deleted)
            try:
                self.live = store.log_bytes(scope)
            except FileNotFoundError:
                continue
            self.logs = manifest.logs
            return sum(entry.size_bytes for entry in manifest.locations)
        raise OSError("locations files are replaced faster than they can be read")
