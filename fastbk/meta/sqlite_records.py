"""Records in sqlite: see `fastbk.meta.records`. Names below a path are found by the index of paths."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence

from fastbk.meta.polling_watches import Watcher
from fastbk.meta.records import (
    Change,
    VersionedRecord,
    check_folder,
    check_path,
    children_subject,
    conflict,
    count_within,
    has_some_below,
    record_names,
    record_subject,
)
from fastbk.meta.sqlite_file import SqliteFile
from fastbk.meta.subscriptions import Subject, WatchHandle

_BEHIND_ALL = "\x7f"
"""No name holds it, and it sorts behind every character that one may hold."""


class SqliteRecords:
    """One store's way to its records."""

    def __init__(self, file: SqliteFile, watcher: Watcher) -> None:
        self._file = file
        self._watcher = watcher

    def read(self, paths: Sequence[str]) -> list[VersionedRecord | None]:
        """Return several records."""
        rows = self._file.rows(
            "SELECT path, value, version FROM records WHERE path IN (SELECT value FROM json_each(?))",
            json.dumps([check_path(path) for path in paths]),
        )
        found = {path: VersionedRecord(value, version) for path, value, version in rows}
        return [found.get(path) for path in paths]

    def read_some(self, paths: Sequence[str], bytes_max: int) -> list[VersionedRecord | None]:
        """Return the first ones of several records; their sizes are read before (INV-M18)."""
        rows = self._file.rows(
            "SELECT path, length(value) FROM records WHERE path IN (SELECT value FROM json_each(?))",
            json.dumps([check_path(path) for path in paths]),
        )
        sizes = dict(rows)
        return self.read(paths[: count_within((sizes.get(path, 0) for path in paths), bytes_max)])

    def change(self, changes: Sequence[Change]) -> list[int]:
        """Do all of it or nothing (INV-M1)."""
        for change in changes:
            change.check()
        with self._file.transaction() as db:
            return [self._change(db, change) for change in changes]

    def _change(self, db: sqlite3.Connection, change: Change) -> int:
        path = change.path
        row = db.execute("SELECT version FROM records WHERE path = ?", (path,)).fetchone()
        if (None if row is None else row[0]) != change.version:
            raise conflict(path)
        if change.value is None:
            below = (f"{path}/", f"{path}0")  # "0" follows "/"
            if db.execute("SELECT 1 FROM records WHERE path > ? AND path < ?", below).fetchone():
                raise has_some_below(path)
            db.execute("DELETE FROM records WHERE path = ?", (path,))
            return 0
        (version,) = db.execute(
            "UPDATE records_version SET version = version + 1 RETURNING version"
        ).fetchone()
        db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (path, version, change.value))
        return int(version)

    def children(self, path: str) -> list[str]:
        """Return the names below: from each one found the search goes on behind all that lies below it."""
        names: set[str] = set()
        below = f"{path}/" if check_folder(path) else ""
        at, end = below, f"{path}0" if path else _BEHIND_ALL
        with self._file.reading() as db:
            while row := db.execute(
                "SELECT path FROM records WHERE path > ? AND path < ? ORDER BY path LIMIT 1",
                (at, end),
            ).fetchone():
                name, slash, _ = str(row[0])[len(below) :].partition("/")
                names.add(name)
                at = f"{below}{name}/{_BEHIND_ALL}" if slash else f"{below}{name}"
        return record_names(path, names)

    def children_of(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the names below several paths."""
        return [self.children(path) for path in paths]

    def watch(self, path: str, callback: Callable[[], None]) -> WatchHandle:
        """Report changes of a record."""
        return self._watcher.add(record_subject(path), callback)

    def watch_children(self, path: str, callback: Callable[[], None]) -> WatchHandle:
        """Report names that are added or removed."""
        return self._watcher.add(children_subject(path), callback)

    def state_of(self, subject: str) -> object:
        """Return what a watch of `subject` compares: a record's version, or the names below a path."""
        kind, path = subject[0], subject[1:]
        if kind == "/":
            return self.children(path)
        return self._file.row("SELECT version FROM records WHERE path = ?", path)

    def states_of(self, subjects: Sequence[str]) -> dict[Subject, object]:
        """Return the same of several subjects; of all records by one query."""
        paths = [one[1:] for one in subjects if one[0] != "/"]
        select = "SELECT path, version FROM records WHERE path IN (SELECT value FROM json_each(?))"
        rows = self._file.rows(select, json.dumps(paths)) if paths else []
        versions = {path: (version,) for path, version in rows}
        return {
            one: self.children(one[1:]) if one[0] == "/" else versions.get(one[1:])
            for one in subjects
        }
