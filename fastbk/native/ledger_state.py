"""What is known of a ledger beside its entries, and its 72 bytes on disk (`src/base/layout_states.h`)."""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from fastbk.native.hashes import crc32c

STATE = struct.Struct("<qqqQI20sIIII")
FENCED, LIMBO, DELETED, HAS_KEY = 1, 2, 4, 8
UNCONFIRMED = 64


class Listed(NamedTuple):
    """A ledger as metadata lists it. `master_key`: None where metadata has no password."""

    ledger_id: int
    creation_mark: int = 0
    master_key: bytes | None = None


class LedgerState(msgspec.Struct, frozen=True):
    """What is known of a ledger beside its entries; -1 = none yet.

    Attributes:
        deleted_s: wall clock, 0 = not deleted.
        creation_mark: of the ledger's creation token (`fastbk.model.ids`), 0 = none.
    """

    ledger_id: int
    highest_entry_id: int = -1
    lac: int = -1
    changed_sequence: int = 0
    flags: int = 0
    master_key: bytes = bytes(20)
    deleted_s: int = 0
    creation_mark: int = 0


def pack_state(state: LedgerState) -> bytes:
    """Return the 72 bytes of a state as they lie in files and shared memory."""
    front = STATE.pack(
        state.ledger_id,
        state.highest_entry_id,
        state.lac,
        state.changed_sequence,
        state.flags,
        state.master_key,
        state.deleted_s,
        state.creation_mark,
        0,
        0,
    )[:-4]
    return front + crc32c(front).to_bytes(4, "little")


def unpack_state(raw: bytes) -> LedgerState:
    """Return the state in 72 bytes whose checksum was verified."""
    ledger, highest, lac, sequence, flags, key, deleted_s, mark, _, _ = STATE.unpack(raw)
    return LedgerState(ledger, highest, lac, sequence, flags, key, deleted_s, mark)
