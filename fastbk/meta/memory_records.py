"""Records in memory: see `fastbk.meta.records`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fastbk.errors import ClientClosed
from fastbk.meta.local_store import LocalRecords
from fastbk.meta.polling_watches import Watcher
from fastbk.meta.records import (
    Change,
    VersionedRecord,
    check_path,
    conflict,
    has_some_below,
)


@dataclass(slots=True)
class KeptRecords:
    """What stores of one name share."""

    lock: threading.RLock
    values: dict[str, VersionedRecord] = field(default_factory=dict)
    next_version: int = 1


class MemoryRecords(LocalRecords):
    """One store's way to its records."""

    def __init__(
        self, kept: KeptRecords, is_closed: Callable[[], bool], watcher: Callable[[], Watcher]
    ) -> None:
        self._kept = kept
        self._is_closed = is_closed
        super().__init__(watcher)

    def _open(self) -> KeptRecords:
        if self._is_closed():
            raise ClientClosed("this metadata store is closed")
        return self._kept

    def read(self, paths: Sequence[str]) -> list[VersionedRecord | None]:
        """Return several records."""
        kept = self._open()
        with kept.lock:
            return [kept.values.get(check_path(path)) for path in paths]

    def change(self, changes: Sequence[Change]) -> list[int]:
        """Do all of it or nothing (INV-M1)."""
        kept = self._open()
        with kept.lock:
            after = dict(kept.values)
            versions: list[int] = []
            for change in changes:
                change.check()
                held = after.get(change.path)
                if (held and held.version) != change.version:
                    raise conflict(change.path)
                if change.value is None:
                    if any(path.startswith(f"{change.path}/") for path in after):
                        raise has_some_below(change.path)
                    del after[change.path]
                    versions.append(0)
                else:
                    after[change.path] = VersionedRecord(change.value, kept.next_version)
                    versions.append(kept.next_version)
                    kept.next_version += 1
            kept.values.clear()
            kept.values.update(after)
            return versions

    def children(self, path: str) -> list[str]:
        """Return the names below."""
        return self.children_of([path])[0]

    def children_of(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the names below several paths."""
        kept = self._open()
        found: dict[str, set[str]] = {check_path(path): set() for path in paths}
        with kept.lock:
            for one in kept.values:
                at = one.find("/")
                while at >= 0:
                    end = one.find("/", at + 1)
                    names = found.get(one[:at])
                    if names is not None:
                        names.add(one[at + 1 : end] if end >= 0 else one[at + 1 :])
                    at = end
        return [sorted(found[path]) for path in paths]

    def version_of(self, path: str) -> int | None:
        """Return a record's version."""
        (found,) = self.read([path])
        return None if found is None else found.version
