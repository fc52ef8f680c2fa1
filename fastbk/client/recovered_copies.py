"""Which copies a recovered ledger misses: its dead writer may have known of some, and told nobody.

Entries below the LAC that a recovery begins with are not written again. So each bookie of the fragments that the dead
writer wrote last is asked which entries it holds. That reads no data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from fastbk.client.bookie_pool import BookiePool
from fastbk.client.inspecting import held_ranges
from fastbk.errors import Error
from fastbk.meta.api import BookieService
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.copying import share_of

Range = tuple[EntryId, EntryId]
REASON = "found missing after a recovery"


async def missing_copies(
    pool: BookiePool,
    registered: Mapping[BookieId, BookieService],
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    at: int,
    timeout_s: float,
) -> list[MissingReplica]:
    """Return what the bookies of a closed ledger lack of its fragments from position `at` on.

    A bookie that is away, or cannot tell, may lack its whole share. Bookies that speak only Apache's protocols are left
    out: many of them give no list.
    """
    found: list[MissingReplica] = []
    firsts = [one.first_entry_id for one in metadata.fragments]
    lasts = [*(first - 1 for first in firsts[1:]), metadata.last_entry_id]
    held: dict[BookieId, list[Range] | Error] = {}
    for fragment, last in list(zip(metadata.fragments, lasts, strict=True))[at:]:
        for index, bookie_id in enumerate(fragment.ensemble):
            service = registered.get(bookie_id)
            if last < fragment.first_entry_id or (service and service.endpoint() is None):
                continue
            if bookie_id not in held and service is not None:
                held[bookie_id] = await _held(pool, bookie_id, ledger_id, timeout_s)
            there = held.get(bookie_id)
            if there is None or isinstance(there, Error):
                reason = f"not checked after a recovery: {there or 'it was away'}"
                found.append(MissingReplica(bookie_id, fragment.first_entry_id, last, reason))
                continue
            wanted = share_of(index, metadata, fragment.first_entry_id, last)
            ranges = await asyncio.to_thread(missing_ranges, wanted, there)
            found += [MissingReplica(bookie_id, *one, REASON) for one in ranges]
    return found


async def _held(
    pool: BookiePool, bookie_id: BookieId, ledger_id: LedgerId, timeout_s: float
) -> list[Range] | Error:
    try:
        return await held_ranges(pool, bookie_id, ledger_id, timeout_s)
    except Error as error:
        return error


def missing_ranges(wanted: Iterable[Range], held: Sequence[Range]) -> list[Range]:
    """Return the parts of the ranges `wanted` that are in none of `held`; both ascend.

    Parts with nothing wanted between them become one.
    """
    found: list[Range] = []
    is_open = False  # all that is wanted since the last found range is missing, too
    at = 0
    for first, last in wanted:
        position = first
        while position <= last:
            while at < len(held) and held[at][1] < position:
                at += 1
            if at < len(held) and held[at][0] <= position:
                position = held[at][1] + 1
                is_open = False
                continue
            end = min(last, held[at][0] - 1) if at < len(held) else last
            start = found.pop()[0] if is_open else position
            found.append((start, end))
            is_open = True
            position = end + 1
    return found
