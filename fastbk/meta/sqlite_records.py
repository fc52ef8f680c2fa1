"""Records in a sqlite file: see `fastbk.meta.records`. Names below a path are found by the index of parents."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from fastbk.meta.local_store import LocalRecords
from fastbk.meta.polling_watches import Watcher
from fastbk.meta.records import (
    Change,
    VersionedRecord,
    check_path,
    conflict,
    has_some_below,
)
from fastbk.meta.sqlite_file import SqliteFile

_READ_AT_ONCE = 500


class SqliteRecords(LocalRecords):
    """One store's way to its records."""

    def __init__(self, file: SqliteFile, watcher: Callable[[], Watcher]) -> None:
        self._file = file
        super().__init__(watcher)

    def read(self, paths: Sequence[str]) -> list[VersionedRecord | None]:
        """Return several records."""
        found: dict[str, VersionedRecord] = {}
        with self._file.reading() as db:
            for at in range(0, len(paths), _READ_AT_ONCE):
                some = [check_path(path) for path in paths[at : at + _READ_AT_ONCE]]
                marks = ",".join("?" * len(some))
                rows = db.execute(
                    f"SELECT path, value, version FROM records WHERE path IN ({marks})",  # noqa: S608
                    some,
                )
                found.update(
                    (path, VersionedRecord(value, version)) for path, value, version in rows
                )
        return [found.get(path) for path in paths]

    def change(self, changes: Sequence[Change]) -> list[int]:
        """Do all of it or nothing (INV-M1)."""
        for change in changes:
            change.check()
        with self._file.transaction() as db:
            return [self._change(db, change) for change in changes]

    def _change(self, db: sqlite3.Connection, change: Change) -> int:
        row = db.execute("SELECT version FROM records WHERE path = ?", (change.path,)).fetchone()
        if (None if row is None else row[0]) != change.version:
            raise conflict(change.path)
        if change.value is None:
            if self._names(db, change.path, 1):
                raise has_some_below(change.path)
            db.execute("DELETE FROM records WHERE path = ?", (change.path,))
            return 0
        (version,) = db.execute(
            "UPDATE records_version SET version = version + 1 RETURNING version"
        ).fetchone()
        db.execute(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (change.path, version, change.value)
        )
        return int(version)

    def children(self, path: str) -> list[str]:
        """Return the names below."""
        with self._file.reading() as db:
            return self._names(db, check_path(path), None)

    @staticmethod
    def _names(db: sqlite3.Connection, path: str, count_max: int | None) -> list[str]:
        """Return names below: from each one found the search goes on behind all that lies below it."""
        names: list[str] = []
        at, end = f"{path}/", f"{path}0"  # "0" follows "/"
        while count_max is None or len(names) < count_max:
            row = db.execute(
                "SELECT path FROM records WHERE path > ? AND path < ? ORDER BY path LIMIT 1",
                (at, end),
            ).fetchone()
            if row is None:
                break
            name = str(row[0])[len(path) + 1 :].partition("/")[0]
            names.append(name)
            at = f"{path}/{name}"
            below = db.execute(
                "SELECT path FROM records WHERE path >= ? AND path < ? ORDER BY path DESC LIMIT 1",
                (f"{at}/", f"{at}0"),
            ).fetchone()
            if below is not None and "/" in str(row[0])[len(path) + 1 :]:
                at = str(below[0])
        return sorted(set(names))

    def children_of(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the names below several paths."""
        return [self.children(path) for path in paths]

    def version_of(self, path: str) -> int | None:
        """Return a record's version."""
        with self._file.reading() as db:
            row = db.execute("SELECT version FROM records WHERE path = ?", (path,)).fetchone()
        return None if row is None else int(row[0])
