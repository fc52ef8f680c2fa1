"""Which entry logs are to be appended to, sealed or deleted, and the room that dead ones give back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.storage.manifest import LogEntry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

def appended(logs: Iterable[LogEntry], entry: LogEntry) -> tuple[LogEntry, ...]:
    """Return `logs` with `entry` put in or in place of its older self; every other log is sealed."""
    others = [
        msgspec.structs.replace(log, sealed=True) for log in logs if log.log_id != entry.log_id
    ]
    return tuple(sorted([*others, entry], key=lambda log: log.log_id))


def recounted(
    logs: Iterable[LogEntry], before: Iterable[LogEntry], live: Mapping[int, int]
) -> tuple[LogEntry, ...]:
    """Return `logs` with the live bytes that were counted when they were as `before`; what came since is added.

    Logs that are not in `before` are new, and stay as they are.
    """
    difference = {log.log_id: live.get(log.log_id, 0) - log.live_bytes for log in before}
    return tuple(
        msgspec.structs.replace(
            log, live_bytes=max(0, log.live_bytes + difference.get(log.log_id, 0))
        )
        for log in logs
    )


def split_dead(
    logs: Iterable[LogEntry],
) -> tuple[tuple[LogEntry, ...], tuple[LogEntry, ...]]:
    """Return (the logs to keep, those that are dead): a sealed log in which nothing lives is dead."""
    every = tuple(logs)
    kept = tuple(log for log in every if log.live_bytes or not log.sealed)
    return kept, tuple(log for log in every if log.sealed and not log.live_bytes)


class Reclaimed:
    """Of one ledger directory, since the start. Written by the flush thread; anybody may read the two totals."""

    def __init__(self) -> None:
        self.freed_bytes = 0
        """Of logs that are gone; those that compaction emptied are counted by compaction."""
        self.failures = 0
        """Times that a log of either kind could not be unlinked."""
        self._dead: dict[str, int] = {}
        """Paths of logs that are to go, and the bytes that count when they have."""

    def add(self, path: str, freed_bytes: int) -> None:
        """Note that a log is to go."""
        self._dead[path] = freed_bytes

    def tried(self, paths: Iterable[str], left: Collection[str]) -> None:
        """Note that all of `paths` were to be unlinked just now, and which of them could not be."""
        for path in paths:
            if path not in self._dead:
                continue
            if path in left:
                self.failures += 1
            else:
                self.freed_bytes += self._dead.pop(path)
