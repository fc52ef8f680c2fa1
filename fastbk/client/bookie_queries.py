"""Questions to one bookie that only operators have: its own figures, and which entries of a ledger it holds."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from fastbk.client.bookie_pool import BookiePool
from fastbk.errors import Error, NotEnoughBookies, ProtocolError
from fastbk.model.ids import BookieId, EntryId, LedgerId, creation_mark
from fastbk.native import client_codec as codec
from fastbk.wire.messages import InfoReply, decode_reply
from fastbk.wire.statuses import Status, status_name

_RANGE = struct.Struct("<qq")
_RANGES_A_CALL = 4096


async def bookie_info(pool: BookiePool, bookie_id: BookieId, timeout_s: float) -> InfoReply:
    """Return a bookie's own figures. Raises NotEnoughBookies, QuorumTimeout or ProtocolError."""
    answer = await pool.peer(bookie_id).request(codec.put_info, timeout_s)
    reply = decode_reply(answer.frame)[2] if answer.kind == codec.INFO_REPLY else None
    if not isinstance(reply, InfoReply):
        raise ProtocolError(f"bookie {bookie_id} answered {status_name(answer.status)} to Info")
    return reply


async def stored_ranges(
    pool: BookiePool,
    bookie_id: BookieId,
    ledger_id: LedgerId,
    timeout_s: float,
    creation_token: int = 0,
) -> list[tuple[EntryId, EntryId]]:
    """Return the ranges [first, last] of consecutive ids of the ledger that the bookie holds, ascending.

    Raises NotEnoughBookies when the bookie is not reached or cannot tell.
    """
    ranges: list[tuple[EntryId, EntryId]] = []
    first = 0
    while True:

        def build(request_id: int, at: EntryId = first) -> bytes:
            frame = codec.put_list_entries(request_id, ledger_id, at, _RANGES_A_CALL)
            return codec.with_creation(frame, creation_mark(creation_token))

        answer = await pool.peer(bookie_id).request(build, timeout_s)
        if answer.status in (Status.NO_LEDGER, Status.NO_ENTRY, Status.OTHER_CREATION):
            return ranges
        if answer.status != Status.OK:
            raise _cannot_list(bookie_id, ledger_id, answer.status)
        for low, high in _RANGE.iter_unpack(answer.extra):
            if ranges and ranges[-1][1] == low - 1:
                ranges[-1] = (ranges[-1][0], high)
            else:
                ranges.append((low, high))
        if answer.entry_id <= first:
            return ranges
        first = answer.entry_id


async def stored_of(
    pool: BookiePool,
    bookie_id: BookieId,
    ledger_id: LedgerId,
    entry_ids: Iterable[EntryId],
    timeout_s: float,
    creation_token: int = 0,
) -> list[EntryId]:
    """Return which of these entries the bookie holds, each read by itself: for bookies that give no list of them.

    Raises NotEnoughBookies when the bookie is not reached or cannot tell.
    """
    held: list[EntryId] = []
    for entry_id in entry_ids:

        def build(request_id: int, at: EntryId = entry_id) -> bytes:
            frame = codec.put_read(request_id, ledger_id, at)
            return codec.with_creation(frame, creation_mark(creation_token))

        answer = await pool.peer(bookie_id).request(build, timeout_s)
        if answer.status == Status.OK:
            held.append(entry_id)
        elif answer.status not in (Status.NO_LEDGER, Status.NO_ENTRY, Status.OTHER_CREATION):
            raise _cannot_list(bookie_id, ledger_id, answer.status)
    return held


def _cannot_list(bookie_id: BookieId, ledger_id: LedgerId, status: int) -> Error:
    return NotEnoughBookies(
        f"bookie {bookie_id} cannot say what it holds of ledger {ledger_id}",
        ledger_id=ledger_id,
        replicas={bookie_id: status_name(status)},
    )
