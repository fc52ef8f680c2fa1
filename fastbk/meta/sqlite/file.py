"""The sqlite database behind `SqliteStore`: opening, format, transactions, errors. One connection, used in turn.

WAL mode with synchronous=FULL: a transaction that returned survives a power cut, and readers never wait for a writer.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from fastbk.errors import ClientClosed, ConfigError, MetadataUnavailable, StorageError
from fastbk.meta.api import NO_CLUSTER_REMEDY
from fastbk.meta.format_level import LEVEL_PATH, first_record
from fastbk.safe_files import FILE_MODE, tighten

FORMAT = 3
"""2 remembers deleted ledgers, 3 has records. Older files are made so when they are opened."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS cluster (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    instance_id TEXT NOT NULL,
    next_ledger_id INTEGER NOT NULL,
    bookies_version INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS ledgers (
    ledger_id INTEGER PRIMARY KEY,
    version INTEGER NOT NULL,
    metadata BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS deleted_ledgers (
    ledger_id INTEGER PRIMARY KEY
);
CREATE TABLE IF NOT EXISTS identities (
    bookie_id TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    identity TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS bookies (
    bookie_id TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    service TEXT NOT NULL,
    writable INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    expires_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS records (
    path TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    value BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records_version (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL
);
INSERT OR IGNORE INTO records_version VALUES (1, 0);
"""


class SqliteFile:
    """The file at `path`, made when it is not there and `may_make`. Safe to use from any thread.

    `instance_id`: of a file that is made; None: a new one. `in_memory`: `path` names memory of this process instead,
    which lasts while it is open under that name.
    """

    def __init__(
        self,
        path: str,
        timeout_s: float,
        *,
        may_make: bool = True,
        in_memory: bool = False,
        instance_id: str | None = None,
    ) -> None:
        self._path = path
        self._instance_id = instance_id
        self._timeout_s = timeout_s
        self._may_make = may_make
        self._in_memory = in_memory
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._is_group = self._is_begun = False
        self._connection: sqlite3.Connection | None = self._connect()
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        if not self._may_make and not os.path.lexists(self._path):
            raise self._no_cluster("no such file")
        place = self._path
        if self._in_memory:
            place = f"file:/fastbk/{quote(place, safe='')}?vfs=memdb"
        elif self._may_make:
            self._keep_private()
        try:
            return sqlite3.connect(
                place,
                timeout=self._timeout_s,
                isolation_level=None,
                check_same_thread=False,
                uri=self._in_memory,
            )
        except sqlite3.Error as error:
            raise MetadataUnavailable(
                f"{self._path}: {error}; does its directory exist and may it be written?",
                outcome="not_written",
            ) from error

    def _keep_private(self) -> None:
        """Make the file, if it is not there, for its owner alone: it holds ledgers' passwords.

        The files that sqlite makes beside it get the same rights.
        """
        # What goes wrong here goes wrong again when sqlite opens it, which says so.
        with suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(self._path, flags, FILE_MODE))
        for ending in ("", "-wal", "-shm"):
            tighten(f"{self._path}{ending}")

    def _prepare(self) -> None:
        with self._errors():
            connection = self._open_connection()
            if not self._may_make and connection.execute("PRAGMA user_version").fetchone() == (0,):
                raise self._no_cluster("the file holds something else, or nothing yet")
            # Two processes may open a new file at once: sqlite does not wait for this lock by itself.
            deadline = time.monotonic() + self._timeout_s
            while True:
                try:
                    connection.execute("PRAGMA journal_mode=WAL")
                    break
                except sqlite3.OperationalError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.005)
            connection.execute("PRAGMA synchronous=FULL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > FORMAT:
                raise StorageError(
                    f"{self._path} has format {version}; this version knows {FORMAT}: use a newer fastbk"
                )
            if version == FORMAT:
                return
            with self.transaction() as db:
                for statement in _SCHEMA.split(";\n"):
                    db.execute(statement)
                made = db.execute(
                    "INSERT OR IGNORE INTO cluster VALUES (1, ?, 0, 0)",
                    (self._instance_id or str(uuid.uuid4()),),
                )
                # Another process may have made the file since its version was read.
                if made.rowcount and not self._instance_id:
                    db.execute("UPDATE records_version SET version = 1")
                    db.execute("INSERT INTO records VALUES (?, 1, ?)", (LEVEL_PATH, first_record()))
                db.execute(f"PRAGMA user_version={FORMAT}")

    def _no_cluster(self, why: str) -> ConfigError:
        return ConfigError(
            f"there is no cluster at sqlite:{self._path}: {why}; is the path right? {NO_CLUSTER_REMEDY}"
        )

    def _open_connection(self) -> sqlite3.Connection:
        if self._pid != os.getpid():
            raise ClientClosed(
                "this metadata store was opened before a fork: open it again in the child"
            )
        if self._connection is None:
            raise ClientClosed("this metadata store is closed")
        return self._connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            # Errors of a connection's own making, as of a closed one, have no code.
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                raise self._no_cluster("the file is something else") from error
            raise MetadataUnavailable(
                f"{self._path}: {error}; is the file readable and is there room on its disk?"
            ) from error

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for reading."""
        with self._lock, self._errors():
            yield self._open_connection()

    def row(self, select: str, *values: object) -> Any:  # noqa: ANN401 -- as the columns are
        """Return the first row that a statement finds, None if there is none."""
        with self.reading() as db:
            return db.execute(select, values).fetchone()

    def rows(self, select: str, *values: object) -> list[Any]:
        """Return all rows that a statement finds."""
        with self.reading() as db:
            return db.execute(select, values).fetchall()

    def mark(self) -> tuple[int, int]:
        """Return what changes with each commit, of this connection or another. Not of a store in memory."""
        with self.reading() as db:
            # The first counts what others commit, the second what this connection changes.
            return db.execute("PRAGMA data_version").fetchone()[0], db.total_changes

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for one transaction, committed at the end unless there was an exception."""
        with self._lock, self._errors():
            db = self._open_connection()
            if self._is_group:
                with self._part_of_group(db):
                    yield db
                return
            # IMMEDIATE: takes the write lock first, so that what is read below is what is changed.
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                # Also after a commit that failed: left open, the transaction would refuse every later one.
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def group(self) -> Iterator[None]:
        """Commit all transactions of this block in one, at its end: what a commit costs is one sync of the disk.

        Each is done or not by itself; one that fails takes back nothing of the others. What any of them returned, or
        raised, holds only once the block has ended without an exception: after one nobody knows of any of them.
        """
        with self._lock, self._errors():
            self._open_connection()
            self._is_group, self._is_begun = True, False
            try:
                yield
                if self._is_begun:
                    self._check_whole(self._open_connection())
                    self._open_connection().execute("COMMIT")
            except BaseException:
                db = self._connection
                if db is not None and db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            finally:
                self._is_group = False

    @contextmanager
    def _part_of_group(self, db: sqlite3.Connection) -> Iterator[None]:
        if not self._is_begun:
            db.execute("BEGIN IMMEDIATE")
            self._is_begun = True
        self._check_whole(db)
        db.execute("SAVEPOINT part")
        try:
            yield
            db.execute("RELEASE part")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK TO part")
                db.execute("RELEASE part")
            raise

    def _check_whole(self, db: sqlite3.Connection) -> None:
        """After some errors, of the disk for one, sqlite takes back the whole transaction by itself."""
        if not db.in_transaction:
            raise MetadataUnavailable(
                f"{self._path}: what was to be committed together was taken back: is there room on its disk?"
            )

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        with self._lock:
            connection, self._connection = self._connection, None
            # In a forked child the parent's connection is left alone: closing it would drop the parent's locks.
            if connection is not None and self._pid == os.getpid():
                connection.close()
