"""How much room entry logs give back that go because nothing lives in them: counted when they are unlinked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


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
