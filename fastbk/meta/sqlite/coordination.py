"""AutoRecovery's coordination in records, for stores without sessions of their own: sqlite and memory.

autorecovery/disable              AutoRecovery rests while it is there
autorecovery/lost_bookie_delay    seconds
autorecovery/checks/<name>        when a check ended last, in ms since 1970
autorecovery/votes                the number of the last vote; votes/<number> is one: its voter and session
autorecovery/locks/<ledger>       the lock of a ledger: its holder and session

A vote or lock counts while its session lives (`RecordSessions`).

Decision 105.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from fastbk.errors import Error, MetadataConflict, MetadataUnavailable
from fastbk.meta.api import (
    UNREADABLE,
    Check,
    JoinedWatch,
    Watch,
    check_delay,
    stored_number,
    trigger_audit,
)
from fastbk.meta.records import (
    Change,
    RecordStore,
    VersionedRecord,
    bad_record,
    check_path,
    each_record,
)
from fastbk.model.ids import BookieId, LedgerId, check_ledger_id
from fastbk.observe.library_log import LibraryLog

BASE = "autorecovery"
_DISABLE = f"{BASE}/disable"
_DELAY = f"{BASE}/lost_bookie_delay"
_CHECKS = f"{BASE}/checks"
_VOTES = f"{BASE}/votes"
_LOCKS = f"{BASE}/locks"
_TRIES_MAX = 50
_LOCK_NAME = re.compile("[0-7][0-9a-f]{15}")


class _HeldClaim:
    """A vote or lock of this process."""

    def __init__(
        self, coordination: RecordCoordination, session: OwnSession, path: str, version: int
    ) -> None:
        self._coordination = coordination
        self._session = session
        self._path = path
        self._version = version
        self._lock = threading.Lock()
        self._is_gone = False

    @property
    def is_lost(self) -> bool:
        """Whether it is gone, as far as this process knows."""
        return self._is_gone or self._coordination.sessions.has_ended(self._session)

    def _is_there(self) -> bool:
        """Return whether the store still has it, and its session."""
        if self.is_lost:
            return False
        if not self._coordination.sessions.has(self._path, self._version, self._session):
            self._is_gone = True
        return not self.is_lost

    def _end(self) -> None:
        with self._lock:
            if self._is_gone:
                return
            self._is_gone = True
        self._coordination.end_claim(Change(self._path, None, self._version))


class RecordVote(_HeldClaim):
    """A vote in records."""

    def is_elected(self) -> bool:
        """Return whether the vote is the lowest one that counts (INV-H1)."""
        return not self.is_lost and self._coordination.is_lowest(self._path) and self._is_there()

    def close(self) -> None:
        """Withdraw the vote."""
        self._end()


class RecordLock(_HeldClaim):
    """A ledger's lock in records."""

    def __init__(
        self, coordination: RecordCoordination, session: OwnSession, path: str, version: int
    ) -> None:
        super().__init__(coordination, session, path, version)
        self.ledger_id: LedgerId = int(path.rpartition("/")[2], 16)

    def is_held(self) -> bool:
        """Return whether the lock is still held."""
        return self._is_there()

    def release(self) -> None:
        """Give the lock back."""
        self._end()


class RecordCoordination:
    """A `Coordination` over a store's records."""

    def __init__(
        self, records: RecordStore, lease_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self.sessions = RecordSessions(records, lease_s, clock, self._renewed)
        self._lock = threading.Lock()
        self._unreleased: list[Change] = []

    # --- switches ------------------------------------------------------------------------------------------------

    def is_enabled(self) -> bool:
        """Return whether AutoRecovery is allowed to work."""
        return self._read(_DISABLE) is None

    def enable(self) -> bool:
        """Let AutoRecovery work again."""
        return self._put(_DISABLE, None)

    def disable(self) -> bool:
        """Let AutoRecovery rest."""
        return not self._put(_DISABLE, b"disabled", only_new=True)

    def lost_bookie_delay_s(self) -> int | None:
        """Return how long a bookie may be away before its ledgers are marked."""
        return self._read_number(_DELAY)

    def set_lost_bookie_delay(self, seconds: int) -> None:
        """Set that delay."""
        self._put(_DELAY, str(check_delay(seconds)).encode())

    def trigger_audit(self) -> None:
        """Have the auditor check for lost bookies now."""
        trigger_audit(self)

    def check_time_ms(self, check: Check) -> int:
        """Return when a check ended last."""
        found = self._read_number(f"{_CHECKS}/{check.value}")
        return -1 if found is None else found

    def set_check_time(self, check: Check, time_ms: int) -> None:
        """Set that time."""
        self._put(f"{_CHECKS}/{check.value}", str(time_ms).encode())

    def watch_switches(self, callback: Callable[[], None]) -> Watch:
        """Call back after a write of the switch or of the delay."""
        return JoinedWatch([self._records.watch(path, callback) for path in (_DISABLE, _DELAY)])

    def _read(self, path: str) -> VersionedRecord | None:
        (found,) = self._records.read([path])
        return found

    def _read_number(self, path: str) -> int | None:
        found = self._read(path)
        return None if found is None else stored_number(path, found.value)

    def _put(self, path: str, value: bytes | None, *, only_new: bool = False) -> bool:
        """Write or delete a record; return whether there was one before. `only_new`: leave one that is there."""
        for _ in range(_TRIES_MAX):
            found = self._read(path)
            if found is None and value is None:
                return False
            if found is not None and only_new:
                return True
            with suppress(MetadataConflict):
                self._records.change([Change(path, value, found.version if found else None)])
                return found is not None
        raise _too_often(path)

    # --- the auditor ---------------------------------------------------------------------------------------------

    def vote(self, voter: BookieId) -> RecordVote:
        """Stand for election."""
        session = self.sessions.own()
        for _ in range(_TRIES_MAX):
            last = self._read(_VOTES)
            number = 1 + (0 if last is None else self._last_vote(last))
            path = f"{_VOTES}/{number:016d}"
            with suppress(MetadataConflict):
                version = None if last is None else last.version
                counter = Change(_VOTES, str(number).encode(), version)
                vote = Change(path, claim_bytes(voter, session))
                return RecordVote(self, session, path, self._records.change([counter, vote])[1])
        raise _too_often(_VOTES)

    def _last_vote(self, last: VersionedRecord) -> int:
        """Return the number of the last vote. Where nobody can read it, that of the last one that is there."""
        number = stored_number(_VOTES, last.value)
        if number is not None:
            return number
        names = self._records.children(_VOTES)
        return max(
            (int(one) for one in names if one.isascii() and one.isdigit() and len(one) <= 18),
            default=0,
        )

    def auditor(self) -> BookieId | None:
        """Return the voter of the lowest vote that counts."""
        return next((one.holder for one in self.sessions.living(self._claims(_VOTES))), None)

    def watch_election(self, callback: Callable[[], None]) -> Watch:
        """Call back after votes came or went; a vote of an ended session goes when another voter removes it."""
        return self._records.watch_children(_VOTES, callback)

    def is_lowest(self, path: str) -> bool:
        """Return whether no vote below `path` counts, after the removal of those that do not; used by votes."""
        lower = [one for one in self._claims(_VOTES) if one.path < path]
        return all(self.sessions.has_removed(one) for one in lower)

    # --- locks ---------------------------------------------------------------------------------------------------

    def lock(self, ledger_id: LedgerId, holder: str) -> RecordLock | None:
        """Take the lock of a ledger."""
        path = f"{_LOCKS}/{check_ledger_id(ledger_id):016x}"
        session = self.sessions.own()
        self._release_rest()
        for _ in range(_TRIES_MAX):
            if not all(self.sessions.has_removed(one) for one in self.sessions.claims([path])):
                return None
            with suppress(MetadataConflict):
                change = Change(path, claim_bytes(holder, session))
                return RecordLock(self, session, path, self._records.change([change])[0])
        raise _too_often(path)

    def worker_of(self, ledger_id: LedgerId) -> str | None:
        """Return who holds a ledger's lock."""
        found = self.sessions.claims([f"{_LOCKS}/{check_ledger_id(ledger_id):016x}"])
        return next((one.holder for one in self.sessions.living(found)), None)

    def locks(self) -> Iterator[tuple[LedgerId, str]]:
        """Yield all locks with their holders."""
        claims = self._claims(_LOCKS)
        living = set(self.sessions.living(claims))
        for one in claims:
            if one in living:
                if _LOCK_NAME.fullmatch(one.name):
                    yield int(one.name, 16), one.holder
                else:
                    bad_record(one.path, "it is no lock: its name is no ledger's id")
            else:
                self.sessions.has_removed(one)

    # --- votes and locks -----------------------------------------------------------------------------------------

    def _claims(self, folder: str) -> list[Claim]:
        """Return the votes or locks of a folder, by path."""
        return self.sessions.claims([f"{folder}/{one}" for one in self._records.children(folder)])

    def end_claim(self, removal: Change) -> None:
        """Remove a vote or lock of this process if it is still there; used by those (INV-H2).

        One that cannot be removed now is removed later: its session goes on.
        """
        with self._lock:
            self._unreleased.append(removal)
        self._release_rest()

    def _release_rest(self) -> None:
        with self._lock:
            removals = list(self._unreleased)
        for one in removals:
            with suppress(MetadataConflict):
                self._records.change([one])
            with self._lock, suppress(ValueError):  # another thread was faster
                self._unreleased.remove(one)

    def _renewed(self) -> None:
        self._release_rest()
        # Those who wait for the election see the votes of ended sessions go.
        for vote in self._claims(_VOTES):
            self.sessions.has_removed(vote)

    def close(self) -> None:
        """End this process's session: its votes and locks count no more."""
        self.sessions.close()


def _too_often(path: str) -> MetadataUnavailable:
    return MetadataUnavailable(
        f"{path} was changed by others {_TRIES_MAX} times: try again", outcome="not_written"
    )


# --- sessions ----------------------------------------------------------------------------------------------------
#
# Sessions of processes in records: votes and locks of AutoRecovery last as long as their session.
#
# autorecovery/sessions/<id>        a process that has votes or locks, its boot and the end of its lease
#
# A lease ends by the monotonic clock of the machine, which all processes share and nobody sets.
# Another boot id ends it, too, since that clock begins anew. A lease that ran out is never renewed.
# Whoever meets an ended session deletes its record by compare-and-set, and only then takes what it
# had.


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


class Claim(msgspec.Struct, frozen=True):
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
            # another process removed it, or its holder renewed
            return not self.claims([claim.path])
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
