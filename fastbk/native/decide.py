"""The bookie's decisions as typed Python: what a real bookie's journal decides, by the same C, with no bookie around.

`LedgerTable` is the table of ledger states of one bookie. A simulated bookie asks `decide` for each record in the order
of its journal, `stored` for each entry it keeps, `replay` for each record that it reads back after a crash, and
`missing` for what to answer about something it does not have (`src/journal/decide.h`).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import NativeFullError, check
from fastbk.native.store import LedgerState, pack_state, unpack_state

if TYPE_CHECKING:
    from fastbk.native.cdata import CData

__all__ = [
    "NO_KEY",
    "RECOVERY",
    "Kind",
    "LedgerTable",
    "Limit",
    "Notice",
    "Take",
    "Verdict",
    "entries_same",
]

RECOVERY = 1  # flag of an add that is part of a recovery or a repair
NO_KEY = bytes(20)
STATE_BYTES = 72


class Kind(IntEnum):
    """Kinds of records that go through the journal's order."""

    ADD = 1
    ADD_BATCH = 2
    FENCE = 3
    FORCE = 4


class Limit(IntEnum):
    """What the journal refuses with READ_ONLY: nothing, normal adds, whatever has to be written."""

    OPEN = lib.FBK_JOURNAL_OPEN
    NO_ADDS = lib.FBK_JOURNAL_NO_ADDS
    NO_WRITES = lib.FBK_JOURNAL_NO_WRITES


class Take(IntEnum):
    """What becomes of a record.

    NEW is written and acknowledged when durable. CHECK is written, and answered after a comparison with what is
    stored: the first copy wins. FENCE is written and answered when durable. ORDERED writes nothing, but is answered in
    the order like a fence. BARRIER is answered when everything before it is durable. REFUSED is answered by its status.
    """

    NEW = lib.FBK_TAKE_NEW
    CHECK = lib.FBK_TAKE_CHECK
    FENCE = lib.FBK_TAKE_FENCE
    ORDERED = lib.FBK_TAKE_ORDERED
    BARRIER = lib.FBK_TAKE_BARRIER
    REFUSED = lib.FBK_TAKE_REFUSED


class Notice(IntEnum):
    """What metadata says of a ledger.

    LIMBO_OVER: it does not count on this bookie for it any more. CONFIRMED: it lists it. EXPIRING: it did not for too
    long.
    """

    DELETED = 1
    LIMBO_OVER = 2
    LIMBO_OVER_FENCED = 3
    CONFIRMED = 5
    EXPIRING = 6


class Verdict(NamedTuple):
    """The decision; `status` is a wire status number, 0 unless refused."""

    take: Take
    status: int


TAKES = tuple(Take)


class LedgerTable:
    """The ledger states of one bookie, in memory that C owns. To be used by one thread."""

    def __init__(self, ledgers_max: int = 1_000_000) -> None:
        """Make an empty table with room for `ledgers_max` ledgers. Raises NativeFullError without memory."""
        self._own(lib.fbk_decide_table_create(ledgers_max))
        self.ledgers_max = ledgers_max

    def _own(self, handle: CData) -> None:
        if handle == ffi.NULL:
            raise NativeFullError("no memory for a table of ledger states")
        self._handle = ffi.gc(handle, lib.fbk_decide_table_destroy)
        self._request = ffi.new("struct fbk_decide_request *")
        self._status = ffi.new("uint32_t *")
        self._state = ffi.new(f"uint8_t[{STATE_BYTES}]")

    def decide(
        self,
        ledger_id: int,
        entry_id: int,
        kind: Kind,
        flags: int = 0,
        master_key: bytes = NO_KEY,
        *,
        entry_count: int = 1,
        limit: Limit = Limit.OPEN,
        reads_only: bool = False,
        creation_mark: int = 0,
    ) -> Verdict:
        """Return what becomes of a record that is next in the journal's order, and change the ledger's state by it.

        Args:
            ledger_id: 0..2^63-1; others are refused with BAD_REQUEST.
            entry_id: first of a batch, 0..2^63-1; of a fence the entry to read, -1 = the highest.
            flags: RECOVERY or 0.
            master_key: 20 bytes; the first that a ledger sees is its own.
            entry_count: of a batch add.
            limit: of the journal's files. reads_only: the disk is full.
            creation_mark: which creation of the ledger is meant; 0: not said.

        Raises NativeFullError without memory: nothing changed.
        """
        request = self._fill(ledger_id, entry_id, kind, flags, master_key, entry_count)
        request.creation_mark = creation_mark
        request.journal_limit = limit
        request.reads_only = reads_only
        take = lib.fbk_decide_table_decide(self._handle, request, self._status)
        if take < 0:
            check(take, "decide about a record")
        return Verdict(TAKES[take], int(self._status[0]))

    def replay(
        self,
        ledger_id: int,
        kind: Kind,
        flags: int = 0,
        master_key: bytes = NO_KEY,
        *,
        entry_id: int = 0,
        creation_mark: int = 0,
    ) -> None:
        """Take note of a record that was read back from the journal: key, mark, fence. Its entries go to `stored`."""
        request = self._fill(ledger_id, entry_id, kind, flags, master_key, 1)
        request.creation_mark = creation_mark
        check(lib.fbk_decide_table_replay(self._handle, request), "replay a record")

    def stored(self, ledger_id: int, entry_id: int, lac: int) -> bool:
        """Take note of an entry that is kept now, with the LAC in it. Returns whether the ledger's LAC grew."""
        return bool(
            check(
                lib.fbk_decide_table_stored(self._handle, ledger_id, entry_id, lac), "note an entry"
            )
        )

    def notice(self, ledger_id: int, notice: Notice) -> bool:
        """Take note of what metadata says of a ledger. Returns whether anything changed by it."""
        return bool(lib.fbk_decide_table_notice(self._handle, ledger_id, notice))

    def missing(self, ledger_id: int, *, in_doubt: bool = False) -> int:
        """Return the wire status for an entry that is not here: NO_LEDGER, NO_ENTRY or CANNOT_TELL (INV-X1).

        `in_doubt`: the bookie has damage on record, so that it may say "no" about nothing.
        """
        return int(lib.fbk_decide_table_no(self._handle, ledger_id, in_doubt))

    def get(self, ledger_id: int) -> LedgerState | None:
        """Return the state of a ledger, None if it was never heard of."""
        if not lib.fbk_decide_table_get(self._handle, ledger_id, self._state):
            return None
        return unpack_state(bytes(ffi.buffer(self._state)))

    def put(self, state: LedgerState) -> None:
        """Replace or make the state of a ledger, whatever it was: limbo, deleted, loaded from a disk.

        Raises CorruptDataError (a negative id), NativeFullError.
        """
        check(lib.fbk_decide_table_put(self._handle, pack_state(state)), "put a ledger state")

    def states(self) -> Iterator[LedgerState]:
        """Yield all states in no order; the table must not change meanwhile."""
        cursor = ffi.new("uint64_t *")
        while lib.fbk_decide_table_next(self._handle, cursor, self._state):
            yield unpack_state(bytes(ffi.buffer(self._state)))

    def copy(self) -> LedgerTable:
        """Return an independent copy: what a flush makes durable."""
        copy = LedgerTable.__new__(LedgerTable)
        copy._own(lib.fbk_decide_table_copy(self._handle))
        copy.ledgers_max = self.ledgers_max
        return copy

    def clear(self) -> None:
        """Forget everything: memory after a crash, or a disk that was wiped."""
        self._own(lib.fbk_decide_table_create(self.ledgers_max))

    def __len__(self) -> int:
        """Return how many ledgers are known."""
        return int(lib.fbk_decide_table_count(self._handle))

    def _fill(
        self,
        ledger_id: int,
        entry_id: int,
        kind: Kind,
        flags: int,
        master_key: bytes,
        entry_count: int,
    ) -> CData:
        if len(master_key) != len(NO_KEY):
            raise ValueError(f"a master key has {len(NO_KEY)} bytes, not {len(master_key)}")
        request: CData = self._request
        request.ledger_id = ledger_id
        request.entry_id = entry_id
        request.kind = kind
        request.flags = flags
        request.entry_count = entry_count
        request.creation_mark = 0
        ffi.memmove(request.master_key, master_key, len(master_key))
        return request


def entries_same(stored: bytes, given: bytes, digest_type: int) -> bool:
    """Return whether two entries have the same ids, length field and data; LAC and digest may differ.

    `digest_type` 0: not known; then the entries have to tell by a CRC that is right in both.
    """
    return bool(lib.fbk_python_entry_same(stored, len(stored), given, len(given), digest_type))
