"""The metadata store of one machine: a sqlite file that several processes share.

Leases are compared by the machine's own monotonic clock, which all its processes share; after a reboot (another
boot id) every lease has run out. Watches are served by one thread that compares versions.

The database has WAL mode with synchronous=FULL: a transaction that returned survives a power cut, and readers never
wait for a writer. A store has one connection, used in turn.

`MemoryStore` is the same without a file.

Decision 101.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from urllib.parse import quote

from fastbk.errors import (
    ClientClosed,
    ConfigError,
    Error,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    StorageError,
)
from fastbk.meta.api import (
    LIST_PAGE_COUNT,
    NO_CLUSTER_REMEDY,
    BadIdentity,
    BookieIdentity,
    BookieRegistration,
    BookieService,
    IdentityVersion,
    LedgerRead,
    Subject,
    Subscriptions,
    VersionedIdentity,
    VersionedLedger,
    WatchHandle,
    deleted_before,
    identity_text,
    ledger_read,
    notify,
    one_ledger,
    parse_identity,
    parse_service,
    service_text,
    unreadable_identity,
    unreadable_service,
)
from fastbk.meta.format_level import LEVEL_PATH, first_record
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
from fastbk.meta.replica_marks import ReplicaMarks
from fastbk.meta.rollback import HOLD_PATH, raise_if_held
from fastbk.meta.sqlite.coordination import RecordCoordination, read_boot_id
from fastbk.model.ids import BookieId, LedgerId, check_bookie_id, check_ledger_id
from fastbk.model.ledger import LedgerMetadata
from fastbk.observe.library_log import LibraryLog
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
        """Check that no transaction is half open: after some errors, of the disk for one, sqlite takes back the whole
        by itself.
        """
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


LEASE_S = 10.0
WATCH_INTERVAL_S = 0.1
MEMORY_WATCH_INTERVAL_S = 0.01


class SqliteLease:
    """A lease while it is held. `session` tells one registration of a bookie from an earlier or later one."""

    def __init__(
        self, store: SqliteStore, bookie_id: BookieId, session: str, renew_interval_s: float
    ) -> None:
        self.renew_interval_s = renew_interval_s
        self._store = store
        self._bookie_id = bookie_id
        self._session = session
        self._closed = False

    def renew(self) -> None:
        """Push the end of the lease."""
        self._store.renew_lease(self._bookie_id, self._session, None)

    def set_writable(self, writable: bool) -> None:
        """Say whether normal adds are taken."""
        self._store.renew_lease(self._bookie_id, self._session, writable)

    def close(self) -> None:
        """Deregister."""
        if not self._closed:
            self._closed = True
            self._store.end_lease(self._bookie_id, self._session)


class SqliteStore:
    """A `MetadataStore` in the file at `path` (made when it is not there and `may_make`). See `fastbk.meta.api`."""

    def __init__(
        self,
        path: str,
        timeout_s: float = 10.0,
        lease_s: float = LEASE_S,
        *,
        may_make: bool = True,
        in_memory: bool = False,
        new_instance_id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`new_instance_id`: of a file that is made; None or "": any."""
        self.uri = f"{'memory' if in_memory else 'sqlite'}:{path}"
        self._lease_s = lease_s
        self._clock = clock
        self._boot_id = read_boot_id()
        self._file = SqliteFile(
            path, timeout_s, may_make=may_make, in_memory=in_memory, instance_id=new_instance_id
        )
        interval_s = MEMORY_WATCH_INTERVAL_S if in_memory else WATCH_INTERVAL_S
        # Of a store in memory nobody can read while another connection writes, not even the mark.
        mark = None if in_memory else self._file.mark
        self._watcher = Watcher(self._state_of, interval_s, self._states_of, mark)
        self.records = SqliteRecords(self._file, self._watcher)
        self.marks = ReplicaMarks(self.records)
        self.coordination = RecordCoordination(self.records, lease_s, clock)

    def group(self) -> AbstractContextManager[None]:
        """Commit what calls of this thread change in one transaction, each with its own outcome."""
        return self._file.group()

    # --- ledgers -----------------------------------------------------------------------------------------------

    def instance_id(self) -> str:
        """Return the cluster's id."""
        return str(self._file.row("SELECT instance_id FROM cluster")[0])

    def next_ledger_id(self) -> LedgerId:
        """Draw the next ledger id."""
        with self._file.transaction() as db:
            (ledger_id,) = db.execute("SELECT next_ledger_id FROM cluster").fetchone()
            db.execute("UPDATE cluster SET next_ledger_id = ?", (ledger_id + 1,))
            return int(ledger_id)

    def highest_drawn_id(self) -> LedgerId:
        """Return the last id drawn, or a higher one that was chosen."""
        return int(self._file.row("SELECT next_ledger_id FROM cluster")[0]) - 1

    def move_ids_above(self, ledger_id: LedgerId) -> None:
        """Move the counter (INV-M3)."""
        with self._file.transaction() as db:
            db.execute(
                "UPDATE cluster SET next_ledger_id = max(next_ledger_id, ?)", (ledger_id + 1,)
            )

    def create_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> int:
        """Store a new ledger; its version is 0."""
        check_ledger_id(ledger_id)
        with self._file.transaction() as db:
            if db.execute(
                "SELECT 1 FROM deleted_ledgers WHERE ledger_id = ?", (ledger_id,)
            ).fetchone():
                raise deleted_before(ledger_id)
            try:
                db.execute("INSERT INTO ledgers VALUES (?, 0, ?)", (ledger_id, metadata.to_bytes()))
            except sqlite3.IntegrityError:
                raise MetadataConflict(
                    f"ledger {ledger_id} exists already: choose another id", ledger_id=ledger_id
                ) from None
            # A chosen id must not be drawn later; the largest possible one leaves no room for drawing behind it.
            if ledger_id < 2**62:
                db.execute(
                    "UPDATE cluster SET next_ledger_id = max(next_ledger_id, ?)", (ledger_id + 1,)
                )
            return 0

    def read_ledger(self, ledger_id: LedgerId) -> VersionedLedger:
        """Return a ledger's metadata and version."""
        return one_ledger(ledger_id, *self.read_ledgers([ledger_id]))

    def read_ledgers(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRead]:
        """Return several ledgers' metadata."""
        found: dict[LedgerId, LedgerRead] = {}
        rows = self._file.rows(
            "SELECT ledger_id, metadata, version FROM ledgers"
            " WHERE ledger_id IN (SELECT value FROM json_each(?))",
            json.dumps(list(ledger_ids)),
        )
        for ledger_id, raw, version in rows:
            found[ledger_id] = ledger_read(ledger_id, raw, version)
        return [found.get(ledger_id) for ledger_id in ledger_ids]

    def update_ledger(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        if_identity: IdentityVersion | None = None,
    ) -> int:
        """Compare-and-set on `version` (INV-M1), and on a bookie's identity."""
        with self._file.transaction() as db:
            if if_identity is not None:
                row = db.execute(
                    "SELECT version FROM identities WHERE bookie_id = ?", (if_identity.bookie_id,)
                ).fetchone()
                if row is None or row[0] != if_identity.version:
                    raise if_identity.changed()
            changed = db.execute(
                "UPDATE ledgers SET metadata = ?, version = version + 1 WHERE ledger_id = ? AND version = ?",
                (metadata.to_bytes(), ledger_id, version),
            ).rowcount
            if changed != 1:
                raise self._changed(db, ledger_id)
            return version + 1

    def delete_ledger(self, ledger_id: LedgerId, version: int | None = None) -> None:
        """Remove a ledger, unless metadata is on hold (INV-M4)."""
        with self._file.transaction() as db:
            hold = db.execute("SELECT value FROM records WHERE path = ?", (HOLD_PATH,)).fetchone()
            raise_if_held(None if hold is None else hold[0])
            deleted = db.execute(
                "DELETE FROM ledgers WHERE ledger_id = ? AND (? IS NULL OR version = ?)",
                (ledger_id, version, version),
            ).rowcount
            if deleted != 1:
                raise self._changed(db, ledger_id)
            db.execute("INSERT INTO deleted_ledgers VALUES (?)", (ledger_id,))

    @staticmethod
    def _changed(db: sqlite3.Connection, ledger_id: LedgerId) -> MetadataConflict | NoSuchLedger:
        found = db.execute("SELECT 1 FROM ledgers WHERE ledger_id = ?", (ledger_id,)).fetchone()
        if found is None:
            return _no_such_ledger(ledger_id)
        return MetadataConflict(
            f"ledger {ledger_id} was changed by somebody else: read it again", ledger_id=ledger_id
        )

    def list_ledgers(
        self, after: LedgerId = -1, count_max: int = LIST_PAGE_COUNT
    ) -> list[LedgerId]:
        """Return one page of ids."""
        rows = self._file.rows(
            "SELECT ledger_id FROM ledgers WHERE ledger_id > ? ORDER BY ledger_id LIMIT ?",
            after,
            count_max,
        )
        return [row[0] for row in rows]

    # --- bookies -----------------------------------------------------------------------------------------------

    def register_bookie(self, service: BookieService, *, writable: bool) -> SqliteLease:
        """Announce a bookie, taking over a lease of the same incarnation."""
        check_bookie_id(service.bookie_id)
        session = uuid.uuid4().hex
        with self._file.transaction() as db:
            row = db.execute(
                "SELECT incarnation, boot_id, expires_s FROM bookies WHERE bookie_id = ?",
                (service.bookie_id,),
            ).fetchone()
            if (
                row is not None
                and self._alive(row[1], row[2])
                and row[0] != str(service.incarnation)
            ):
                raise MetadataConflict(
                    f"bookie id {service.bookie_id} is registered with other data (incarnation {row[0]});"
                    f" stop that bookie, or wait {self._lease_s:g} s after it died"
                )
            db.execute(
                "INSERT OR REPLACE INTO bookies VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    service.bookie_id,
                    session,
                    str(service.incarnation),
                    service_text(service),
                    writable,
                    self._boot_id,
                    self._clock() + self._lease_s,
                ),
            )
        return SqliteLease(self, service.bookie_id, session, self._lease_s / 3)

    def _alive(self, boot_id: str, expires_s: float) -> bool:
        return boot_id == self._boot_id and expires_s > self._clock()

    def renew_lease(self, bookie_id: BookieId, session: str, writable: bool | None) -> None:
        """Push a lease's end; used by `SqliteLease`."""
        with self._file.transaction() as db:
            renewed = db.execute(
                "UPDATE bookies SET expires_s = ?, writable = coalesce(?, writable)"
                " WHERE bookie_id = ? AND session = ?",
                (self._clock() + self._lease_s, writable, bookie_id, session),
            ).rowcount
            if renewed != 1:
                raise MetadataConflict(
                    f"another process holds the registration of bookie {bookie_id}"
                )

    def end_lease(self, bookie_id: BookieId, session: str) -> None:
        """Deregister if the lease is still `session`'s; used by `SqliteLease`."""
        with self._file.transaction() as db:
            db.execute(
                "DELETE FROM bookies WHERE bookie_id = ? AND session = ?", (bookie_id, session)
            )

    def list_bookies(self) -> list[BookieRegistration]:
        """Return the live bookies."""
        rows = self._file.rows(
            "SELECT bookie_id, service, writable, boot_id, expires_s FROM bookies ORDER BY bookie_id"
        )
        return [
            BookieRegistration(_service(bookie_id, service), bool(writable))
            for bookie_id, service, writable, boot_id, expires_s in rows
            if self._alive(boot_id, expires_s)
        ]

    # --- identities --------------------------------------------------------------------------------------------

    def read_identity(self, bookie_id: BookieId) -> VersionedIdentity | None:
        """Return a bookie's identity."""
        row = self._file.row(
            "SELECT identity, version FROM identities WHERE bookie_id = ?", bookie_id
        )
        return None if row is None else VersionedIdentity(_identity(bookie_id, *row), row[1])

    def foreign_cookie(self, bookie_id: BookieId) -> bytes | None:
        """Return None: no other system's bookies are here."""
        return None

    def pulsar_racks(self) -> bytes | None:
        """Return None: Pulsar has no metadata here."""
        return None

    def write_identity(
        self,
        identity: BookieIdentity,
        version: int | None,
        *,
        replaced_cookie: bytes | None = None,
    ) -> int:
        """Create or compare-and-set an identity."""
        check_bookie_id(identity.bookie_id)
        text = identity_text(identity)
        with self._file.transaction() as db:
            if version is None:
                try:
                    db.execute(
                        "INSERT INTO identities VALUES (?, 0, ?)", (identity.bookie_id, text)
                    )
                except sqlite3.IntegrityError:
                    raise _identity_conflict(identity.bookie_id) from None
                return 0
            changed = db.execute(
                "UPDATE identities SET identity = ?, version = version + 1 WHERE bookie_id = ? AND version = ?",
                (text, identity.bookie_id, version),
            ).rowcount
            if changed != 1:
                raise _identity_conflict(identity.bookie_id)
            return version + 1

    def delete_identity(self, bookie_id: BookieId, version: int) -> None:
        """Forget an identity."""
        with self._file.transaction() as db:
            deleted = db.execute(
                "DELETE FROM identities WHERE bookie_id = ? AND version = ?", (bookie_id, version)
            ).rowcount
            if deleted != 1:
                raise _identity_conflict(bookie_id)

    def list_identities(self) -> list[BookieIdentity | BadIdentity]:
        """Return all identities."""
        rows = self._file.rows(
            "SELECT bookie_id, identity, version FROM identities ORDER BY bookie_id"
        )
        identities: list[BookieIdentity | BadIdentity] = []
        for bookie_id, text, version in rows:
            try:
                identities.append(parse_identity(text, bookie_id))
            except StorageError as error:
                identities.append(unreadable_identity(bookie_id, error, version))
        return identities

    # --- watches -----------------------------------------------------------------------------------------------

    def watch_ledger(
        self, ledger_id: LedgerId, callback: Callable[[LedgerId], None]
    ) -> WatchHandle:
        """Report changes of one ledger."""
        return self._watcher.add(ledger_id, lambda: callback(ledger_id))

    def watch_bookies(self, callback: Callable[[], None]) -> WatchHandle:
        """Report changes of the set of live bookies; a lease that runs out is one."""
        return self._watcher.add(None, callback)

    def _state_of(self, subject: Subject) -> object:
        if subject is None:
            return [(bookie.service, bookie.writable) for bookie in self.list_bookies()]
        if isinstance(subject, int):
            return self._file.row("SELECT version FROM ledgers WHERE ledger_id = ?", subject)
        return self.records.state_of(subject)

    def _states_of(self, subjects: Sequence[Subject]) -> list[object]:
        """Return the states of several, of ledgers and records by one query each."""
        ledger_ids = [subject for subject in subjects if isinstance(subject, int)]
        select = "SELECT ledger_id, version FROM ledgers WHERE ledger_id IN (SELECT value FROM json_each(?))"
        rows = self._file.rows(select, json.dumps(ledger_ids)) if ledger_ids else []
        known: dict[Subject, object] = dict.fromkeys(ledger_ids)
        known |= {ledger_id: (version,) for ledger_id, version in rows}
        known.update(
            self.records.states_of(
                [subject for subject in subjects if isinstance(subject, str)]
            ).items()
        )
        return [
            self._state_of(subject) if subject is None else known[subject] for subject in subjects
        ]

    # --- connection --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file, after the session in it."""
        self.coordination.close()
        self._watcher.close()
        self._file.close()


class MemoryStore(SqliteStore):
    """A store in the memory of this process, for tests and simulation.

    Stores of one name share what they hold while at least one of them is open. A `clock` that is handed in lets leases
    run out when a test says so.
    """

    def __init__(
        self, name: str = "", lease_s: float = LEASE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(name, lease_s=lease_s, in_memory=True, clock=clock)


def _service(bookie_id: BookieId, text: str) -> BookieService:
    try:
        return parse_service(text, bookie_id)
    except StorageError as error:
        return unreadable_service(bookie_id, error)


def _identity(bookie_id: BookieId, text: str, version: int) -> BookieIdentity:
    try:
        return parse_identity(text, bookie_id)
    except StorageError as error:
        raise unreadable_identity(bookie_id, error, version).bad.error() from error


def _no_such_ledger(ledger_id: LedgerId) -> NoSuchLedger:
    return NoSuchLedger(f"there is no ledger {ledger_id}", ledger_id=ledger_id)


def _identity_conflict(bookie_id: BookieId) -> MetadataConflict:
    return MetadataConflict(
        f"the identity of bookie {bookie_id} was changed by somebody else: read it again"
    )


# --- records -----------------------------------------------------------------------------------------------------
#
# Records in sqlite: see `fastbk.meta.records`. Names below a path are found by the index of paths.


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
        paths = [subject[1:] for subject in subjects if subject[0] != "/"]
        select = "SELECT path, version FROM records WHERE path IN (SELECT value FROM json_each(?))"
        rows = self._file.rows(select, json.dumps(paths)) if paths else []
        versions = {path: (version,) for path, version in rows}
        return {
            subject: self.children(subject[1:]) if subject[0] == "/" else versions.get(subject[1:])
            for subject in subjects
        }


# --- watches -----------------------------------------------------------------------------------------------------
#
# Watches for stores that cannot push: a thread that compares what it sees with what it saw.


_log = LibraryLog("fastbk.meta")


class Watcher:
    """Calls back when `look` gives another answer than before; its thread lives while there are watches.

    `look(subject)` returns anything comparable; it runs in the watcher's thread, and once in the caller's when a watch
    is added, so that no change after `add` returned is missed. `look_all` returns the same of several subjects, in
    their order, where that costs less. `mark` returns what changes with each change of any subject but the set of
    bookies, whose leases also end by the clock: while it stays the same, nothing else is looked at.
    """

    def __init__(
        self,
        look: Callable[[Subject], object],
        interval_s: float,
        look_all: Callable[[Sequence[Subject]], Sequence[object]] | None = None,
        mark: Callable[[], object] | None = None,
    ) -> None:
        self._look = look
        self._mark = mark
        self._look_all = look_all or (lambda subjects: [look(subject) for subject in subjects])
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._subscriptions = Subscriptions()
        self._stop: threading.Event | None = None

    def add(self, subject: Subject, callback: Callable[[], None]) -> WatchHandle:
        """Subscribe `callback` to changes of `subject`."""
        handle = WatchHandle(self, subject, callback)
        now = self._look(subject)
        with self._lock:
            self._subscriptions.add(handle, now)
            if self._stop is None:
                self._stop = threading.Event()
                threading.Thread(
                    target=self._run, args=(self._stop,), name="fastbk-watch", daemon=True
                ).start()
        return handle

    def remove(self, handle: WatchHandle) -> None:
        """End a subscription; the last one ends the thread."""
        with self._lock:
            self._subscriptions.remove(handle)
            if not self._subscriptions and self._stop is not None:
                self._stop.set()
                self._stop = None

    def close(self) -> None:
        """End all subscriptions."""
        with self._lock:
            handles = self._subscriptions.all()
        for handle in handles:
            self.remove(handle)

    def _run(self, stop: threading.Event) -> None:
        mark: object = None
        while not stop.wait(self._interval_s):
            try:
                # Before anything is looked at: what changes meanwhile is looked at the next time.
                before, mark = mark, None if self._mark is None else self._mark()
                is_same = mark is not None and mark == before
                with self._lock:
                    subjects = [
                        one for one in self._subscriptions.seen if one is None or not is_same
                    ]
                now = dict(zip(subjects, self._look_all(subjects), strict=True))
            except ClientClosed:
                return  # a watch that began while the store was closed
            except Error as error:
                # The store is away; what changed meanwhile is told when it is back.
                mark = None
                _log.debug("metadata.watch_waits", reason=str(error))
                continue
            with self._lock:
                changed = [
                    one
                    for subject in now
                    for one in self._subscriptions.changed(subject, now[subject])
                ]
            for handle in changed:
                notify(handle)
