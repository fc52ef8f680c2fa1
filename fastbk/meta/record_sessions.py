"""Sessions of processes in records: votes and locks of AutoRecovery last as long as their session.

autorecovery/sessions/<id>        a process that has votes or locks, its boot and the end of its lease

A lease ends by the monotonic clock of the machine, which all processes share and nobody sets. Another boot id ends it,
too, since that clock begins anew. A lease that ran out is never renewed. Whoever meets an ended session deletes its
record by compare-and-set, and only then takes what it had.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fastbk.errors import Error, MetadataConflict
from fastbk.meta.coordination import UNREADABLE
from fastbk.meta.records import (
    Change,
    RecordStore,
    VersionedRecord,
    bad_record,
    check_path,
    each_record,
)
from fastbk.observe.library_log import LibraryLog

BASE = "autorecovery"
_SESSIONS = f"{BASE}/sessions"
_RENEWALS_A_LEASE = 3
LEASE_S_MAX = 3600.0
"""A lease that ends later was written by none of ours."""
_log = LibraryLog("fastbk.meta")


def read_boot_id() -> str:
    """Return what names this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class Claim:
    """A vote or a lock as it was read: whose it is, and in which session."""

    path: str
    version: int
    holder: str
    session: str

    @property
    def name(self) -> str:
        """The last name of the path."""
        return self.path.rpartition("/")[2]


class _Claim(msgspec.Struct):
    """A vote's or lock's JSON."""

    holder: str
    session: str


class _Lease(msgspec.Struct):
    """A session's JSON."""

    boot_id: str
    expires_s: float


class OwnSession:
    """A session of this process. It has ended once `ended` is set or its lease has run out."""

    def __init__(self, expires_s: float) -> None:
        self.session_id = uuid.uuid4().hex
        self.expires_s = expires_s
        self.ended = threading.Event()

    @property
    def path(self) -> str:
        """The path of its record."""
        return f"{_SESSIONS}/{self.session_id}"


class RecordSessions:
    """The sessions of one store's records. A thread renews this process's from its first use until `close`."""

    def __init__(
        self,
        records: RecordStore,
        lease_s: float,
        clock: Callable[[], float],
        on_renewed: Callable[[], None],
    ) -> None:
        """`on_renewed` is called after each renewal, in the thread."""
        self._records = records
        self._lease_s = lease_s
        self._clock = clock
        self._on_renewed = on_renewed
        self._boot_id = read_boot_id()
        self._lock = threading.Lock()
        self._own: OwnSession | None = None

    # --- anybody's -----------------------------------------------------------------------------------------------

    def read_all(self, paths: Sequence[str]) -> Iterator[tuple[str, VersionedRecord]]:
        """Yield the records at `paths` that are there."""
        for path, one in zip(paths, each_record(self._records, paths), strict=True):
            if one is not None:
                yield path, one

    def claims(self, paths: Sequence[str]) -> list[Claim]:
        """Return the votes or locks at `paths` that are there, in this order."""
        return [_parse_claim(path, one) for path, one in self.read_all(paths)]

    def living(self, claims: Iterable[Claim]) -> list[Claim]:
        """Return those of `claims` whose sessions have not ended."""
        listed = list(claims)
        paths = {one.session: f"{_SESSIONS}/{one.session}" for one in listed}
        living = {
            path for path, one in self.read_all(list(paths.values())) if self._is_running(one)
        }
        return [one for one in listed if paths[one.session] in living]

    def has_removed(self, claim: Claim) -> bool:
        """Remove a vote or lock whose session ended, and return whether it is gone (INV-H1, INV-H2).

        The session's record goes in the same step, so its process cannot renew what another one took.
        """
        path = f"{_SESSIONS}/{claim.session}"
        (session,) = self._records.read([path])
        if session is not None and self._is_running(session):
            return False
        changes = [Change(claim.path, None, claim.version)]
        if session is not None:
            changes.append(Change(path, None, session.version))
        try:
            self._records.change(changes)
        except MetadataConflict:
            return not self.claims(
                [claim.path]
            )  # another process removed it, or its holder renewed
        return True

    def _is_running(self, record: VersionedRecord) -> bool:
        """Return whether a session lives; one that nobody can read does not, so what it has may be taken."""
        try:
            lease = msgspec.json.decode(record.value, type=_Lease)
        except (ValueError, RecursionError) as error:
            bad_record(
                _SESSIONS, f"a session of AutoRecovery is damaged, and counts as ended: {error}"
            )
            return False
        left_s = lease.expires_s - self._clock()
        return lease.boot_id == self._boot_id and 0 < left_s <= LEASE_S_MAX

    def _remove_ended(self) -> None:
        paths = [f"{_SESSIONS}/{name}" for name in self._records.children(_SESSIONS)]
        for path, one in self.read_all(paths):
            if not self._is_running(one):
                with suppress(MetadataConflict):
                    self._records.change([Change(path, None, one.version)])

    # --- this process's ------------------------------------------------------------------------------------------

    def own(self) -> OwnSession:
        """Return this process's session; a new one if there is none, or it ended."""
        session = self._running_own()
        if session is not None:
            return session
        made = OwnSession(self._clock() + self._lease_s)
        # Not within the lock: a thread that has the store's lock for a group of calls may wait for this one.
        (version,) = self._records.change([Change(made.path, self._lease_bytes(made.expires_s))])
        with self._lock:
            session = self._running_own()
            if session is None:
                self._own = made
                threading.Thread(
                    target=self._renew_until_ended, args=(made,), name="fastbk-lease", daemon=True
                ).start()
                return made
        # Another thread was faster.
        with suppress(MetadataConflict):
            self._records.change([Change(made.path, None, version)])
        return session

    def _running_own(self) -> OwnSession | None:
        session = self._own
        return None if session is None or self.has_ended(session) else session

    def has_ended(self, session: OwnSession) -> bool:
        """Return whether a session of this process has ended, as far as it knows. Makes no request."""
        return session.ended.is_set() or session.expires_s <= self._clock()

    def has(self, path: str, version: int, session: OwnSession) -> bool:
        """Return whether the store has a vote or lock of this process, and its session."""
        claim, lease = self._records.read([path, session.path])
        is_there = claim is not None and claim.version == version
        return is_there and lease is not None and self._is_running(lease)

    def _lease_bytes(self, expires_s: float) -> bytes:
        return json.dumps({"boot_id": self._boot_id, "expires_s": expires_s}).encode()

    def _renew_until_ended(self, session: OwnSession) -> None:
        while not session.ended.wait(self._lease_s / _RENEWALS_A_LEASE):
            try:
                self._renew(session)
                self._remove_ended()
                self._on_renewed()
            except Error as error:
                _log.debug("metadata.lease_waits", reason=str(error))

    def _renew(self, session: OwnSession) -> None:
        """Push the end of this process's lease. A session that ended stays ended."""
        found = None
        if not self.has_ended(session):
            (found,) = self._records.read([session.path])
        if found is None:
            session.ended.set()
            return
        expires_s = self._clock() + self._lease_s
        try:
            self._records.change(
                [Change(session.path, self._lease_bytes(expires_s), found.version)]
            )
        except MetadataConflict:
            session.ended.set()
        else:
            session.expires_s = expires_s

    def close(self) -> None:
        """End this process's session: its votes and locks count no more."""
        with self._lock:
            session, self._own = self._own, None
        if session is None:
            return
        session.ended.set()
        # What fails here ends with the lease.
        with suppress(Error):
            for path, one in self.read_all([session.path]):
                self._records.change([Change(path, None, one.version)])


def claim_bytes(holder: str, session: OwnSession) -> bytes:
    """Return what the record of a vote or lock holds."""
    return json.dumps({"holder": holder, "session": session.session_id}).encode()


def _parse_claim(path: str, record: VersionedRecord) -> Claim:
    """Return a vote or lock; one that nobody can read is of no session that lives, and goes (INV-M17)."""
    try:
        claim = msgspec.json.decode(record.value, type=_Claim)
        check_path(f"{_SESSIONS}/{claim.session}")
    except (ValueError, RecursionError) as error:
        bad_record(path, f"a vote or lock of AutoRecovery is damaged, and counts no more: {error}")
        return Claim(path, record.version, UNREADABLE, UNREADABLE)
    return Claim(path, record.version, claim.holder, claim.session)
