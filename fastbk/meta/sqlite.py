"""The metadata store of one machine: a sqlite file that several processes share.

WAL mode with synchronous=FULL: a call that returned survives a power cut, and readers never wait for a writer.
Leases are compared by the machine's own monotonic clock, which all its processes share; after a reboot (another
boot id) every lease has run out. Watches are served by one thread that looks at sqlite's change counter.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from fastbk.errors import (
    MetadataConflict,
    NoSuchLedger,
    StorageError,
)
from fastbk.meta.api import (
    LIST_PAGE_COUNT,
    BookieIdentity,
    BookieRegistration,
    BookieService,
    DirectoryIdentity,
    Endpoint,
    VersionedIdentity,
    VersionedLedger,
    deleted_before,
)
from fastbk.meta.hold import HOLD_PATH, raise_if_held
from fastbk.meta.local_store import LocalStore, StoreLease, identity_conflict
from fastbk.meta.polling_watches import Watcher
from fastbk.meta.replica_marks import ReplicaMarks
from fastbk.meta.sqlite_file import SqliteFile
from fastbk.meta.sqlite_records import SqliteRecords
from fastbk.model.ids import BookieId, LedgerId, check_bookie_id, check_ledger_id
from fastbk.model.ledger import LedgerMetadata

LEASE_S = 10.0
WATCH_INTERVAL_S = 0.1
_VARIABLES_MAX = 500


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


class SqliteStore(LocalStore):
    """A `MetadataStore` in the file at `path` (made when it is not there and `may_make`). See `fastbk.meta.api`."""

    def __init__(
        self, path: str, timeout_s: float = 10.0, lease_s: float = LEASE_S, *, may_make: bool = True
    ) -> None:
        self.uri = f"sqlite:{path}"
        self._lease_s = lease_s
        self._boot_id = _boot_id()
        self._file = SqliteFile(path, timeout_s, may_make=may_make)
        self._watcher = Watcher(self._snapshot, WATCH_INTERVAL_S)
        self.records: SqliteRecords = SqliteRecords(self._file, lambda: self._watcher)
        self.marks = ReplicaMarks(self.records)

    def group(self) -> AbstractContextManager[None]:
        """Commit what calls of this thread change in one transaction, each with its own outcome."""
        return self._file.group()

    # --- ledgers -----------------------------------------------------------------------------------------------

    def instance_id(self) -> str:
        """Return the cluster's id."""
        with self._file.reading() as db:
            return str(db.execute("SELECT instance_id FROM cluster").fetchone()[0])

    def next_ledger_id(self) -> LedgerId:
        """Draw the next ledger id."""
        with self._file.transaction() as db:
            (ledger_id,) = db.execute("SELECT next_ledger_id FROM cluster").fetchone()
            db.execute("UPDATE cluster SET next_ledger_id = ?", (ledger_id + 1,))
            return int(ledger_id)

    def highest_drawn_id(self) -> LedgerId:
        """Return the last id drawn, or a higher one that was chosen."""
        with self._file.reading() as db:
            return int(db.execute("SELECT next_ledger_id FROM cluster").fetchone()[0]) - 1

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
        with self._file.reading() as db:
            row = db.execute(
                "SELECT metadata, version FROM ledgers WHERE ledger_id = ?", (ledger_id,)
            ).fetchone()
        if row is None:
            raise _no_such_ledger(ledger_id)
        return VersionedLedger(LedgerMetadata.from_bytes(row[0]), row[1])

    def read_ledgers(self, ledger_ids: Sequence[LedgerId]) -> list[VersionedLedger | None]:
        """Return several ledgers' metadata."""
        found: dict[LedgerId, VersionedLedger] = {}
        with self._file.reading() as db:
            for at in range(0, len(ledger_ids), _VARIABLES_MAX):
                some = ledger_ids[at : at + _VARIABLES_MAX]
                marks = ",".join("?" * len(some))
                rows = db.execute(
                    f"SELECT ledger_id, metadata, version FROM ledgers WHERE ledger_id IN ({marks})",  # noqa: S608
                    some,
                )
                for ledger_id, raw, version in rows:
                    found[ledger_id] = VersionedLedger(LedgerMetadata.from_bytes(raw), version)
        return [found.get(ledger_id) for ledger_id in ledger_ids]

    def update_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> int:
        """Compare-and-set on `version` (INV-M1)."""
        with self._file.transaction() as db:
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
        with self._file.reading() as db:
            rows = db.execute(
                "SELECT ledger_id FROM ledgers WHERE ledger_id > ? ORDER BY ledger_id LIMIT ?",
                (after, count_max),
            ).fetchall()
        return [row[0] for row in rows]

    # --- bookies -----------------------------------------------------------------------------------------------

    def register_bookie(self, service: BookieService, *, writable: bool) -> StoreLease[str]:
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
                    json.dumps(asdict(service)),
                    writable,
                    self._boot_id,
                    time.monotonic() + self._lease_s,
                ),
            )
            self._bookies_changed(db)
        return StoreLease(self, service.bookie_id, session, self._lease_s / 3)

    def _alive(self, boot_id: str, expires_s: float) -> bool:
        return boot_id == self._boot_id and expires_s > time.monotonic()

    def renew_lease(self, bookie_id: BookieId, session: str, writable: bool | None) -> None:
        """Push a lease's end; used by `StoreLease`."""
        with self._file.transaction() as db:
            row = db.execute(
                "SELECT session, writable FROM bookies WHERE bookie_id = ?", (bookie_id,)
            ).fetchone()
            if row is None or row[0] != session:
                raise MetadataConflict(
                    f"another process holds the registration of bookie {bookie_id}"
                )
            db.execute(
                "UPDATE bookies SET expires_s = ?, writable = coalesce(?, writable) WHERE bookie_id = ?",
                (time.monotonic() + self._lease_s, writable, bookie_id),
            )
            if writable is not None and bool(row[1]) != writable:
                self._bookies_changed(db)

    def end_lease(self, bookie_id: BookieId, session: str) -> None:
        """Deregister if the lease is still `session`'s; used by `StoreLease`."""
        with self._file.transaction() as db:
            ended = db.execute(
                "DELETE FROM bookies WHERE bookie_id = ? AND session = ?", (bookie_id, session)
            ).rowcount
            if ended:
                self._bookies_changed(db)

    @staticmethod
    def _bookies_changed(db: sqlite3.Connection) -> None:
        db.execute("UPDATE cluster SET bookies_version = bookies_version + 1")

    def list_bookies(self) -> list[BookieRegistration]:
        """Return the live bookies."""
        with self._file.reading() as db:
            rows = db.execute(
                "SELECT service, writable, boot_id, expires_s FROM bookies ORDER BY bookie_id"
            ).fetchall()
        return [
            BookieRegistration(_service(service), bool(writable))
            for service, writable, boot_id, expires_s in rows
            if self._alive(boot_id, expires_s)
        ]

    # --- identities --------------------------------------------------------------------------------------------

    def read_identity(self, bookie_id: BookieId) -> VersionedIdentity | None:
        """Return a bookie's identity."""
        with self._file.reading() as db:
            row = db.execute(
                "SELECT identity, version FROM identities WHERE bookie_id = ?", (bookie_id,)
            ).fetchone()
        return None if row is None else VersionedIdentity(_identity(row[0]), row[1])

    def foreign_cookie(self, bookie_id: BookieId) -> bytes | None:
        """Return None: no other system's bookies are here."""
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
        text = json.dumps(asdict(identity))
        with self._file.transaction() as db:
            if version is None:
                try:
                    db.execute(
                        "INSERT INTO identities VALUES (?, 0, ?)", (identity.bookie_id, text)
                    )
                except sqlite3.IntegrityError:
                    raise identity_conflict(identity.bookie_id) from None
                return 0
            changed = db.execute(
                "UPDATE identities SET identity = ?, version = version + 1 WHERE bookie_id = ? AND version = ?",
                (text, identity.bookie_id, version),
            ).rowcount
            if changed != 1:
                raise identity_conflict(identity.bookie_id)
            return version + 1

    def delete_identity(self, bookie_id: BookieId, version: int) -> None:
        """Forget an identity."""
        with self._file.transaction() as db:
            deleted = db.execute(
                "DELETE FROM identities WHERE bookie_id = ? AND version = ?", (bookie_id, version)
            ).rowcount
            if deleted != 1:
                raise identity_conflict(bookie_id)

    def list_identities(self) -> list[BookieIdentity]:
        """Return all identities."""
        with self._file.reading() as db:
            rows = db.execute("SELECT identity FROM identities ORDER BY bookie_id").fetchall()
        return [_identity(row[0]) for row in rows]

    # --- watches -----------------------------------------------------------------------------------------------

    def _ledger_version(self, ledger_id: LedgerId) -> object:
        with self._file.reading() as db:
            return db.execute(
                "SELECT version FROM ledgers WHERE ledger_id = ?", (ledger_id,)
            ).fetchone()

    # --- connection --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file."""
        self._watcher.close()
        self._file.close()


def _no_such_ledger(ledger_id: LedgerId) -> NoSuchLedger:
    return NoSuchLedger(f"there is no ledger {ledger_id}", ledger_id=ledger_id)


def _service(text: str) -> BookieService:
    """Raises StorageError."""
    try:
        fields = json.loads(text)
        endpoints = tuple(Endpoint(**one) for one in fields.pop("endpoints"))
        return BookieService(**fields, endpoints=endpoints)
    except _DAMAGED as error:
        raise StorageError(f"a bookie's registration in sqlite is damaged: {error!r}") from error


def _identity(text: str) -> BookieIdentity:
    """Raises StorageError."""
    try:
        fields = json.loads(text)
        directories = tuple(DirectoryIdentity(**one) for one in fields.pop("directories"))
        return BookieIdentity(**fields, directories=directories)
    except _DAMAGED as error:
        raise StorageError(f"a bookie's identity in sqlite is damaged: {error!r}") from error


_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
