"""AutoRecovery's coordination in records, for stores without sessions of their own: sqlite and memory.

autorecovery/disable              AutoRecovery rests while it is there
autorecovery/lost_bookie_delay    seconds
autorecovery/checks/<name>        when a check ended last, in ms since 1970
autorecovery/votes                the number of the last vote; votes/<number> is one: its voter and session
autorecovery/locks/<ledger>       the lock of a ledger: its holder and session

A vote or lock counts while its session lives (`fastbk.meta.record_sessions`).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from fastbk.errors import MetadataConflict, MetadataUnavailable
from fastbk.meta.api import Watch
from fastbk.meta.coordination import Check, JoinedWatch, check_delay, stored_number, trigger_audit
from fastbk.meta.record_sessions import BASE, Claim, OwnSession, RecordSessions, claim_bytes
from fastbk.meta.records import Change, RecordStore, VersionedRecord, bad_record
from fastbk.model.ids import BookieId, LedgerId, check_ledger_id

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
