"""Cutting off a stream's old end, exact to the record, inside the open segment, too (INV-S7)."""

from __future__ import annotations

from fastbk.errors import NoSuchLedger
from fastbk.stream.chain import changes
from fastbk.stream.chain.chain import Chain
from fastbk.stream.context import StreamContext
from fastbk.stream.positions import DLSN, Start
from fastbk.stream.reader.search import resolve


async def truncate(context: StreamContext, before: Start) -> DLSN:
    """Have all records before this position gone for readers; return the trim point that holds then.

    It never falls, and never goes beyond the end: of what is written now, that is behind the last record that is
    acknowledged and known to be. A repeat does nothing. Space comes back by whole segments, when a janitor gets to it.
    Raises StreamNotFound, MetadataUnavailable (it may have happened), and what reading raises.
    """
    wanted = await resolve(context, before)
    known = await context.store.read()
    if wanted <= known.chain.trim:
        return known.chain.trim
    point = min(wanted, await end_of(context, known.chain))
    # Once a position is within the end it stays so: what is acknowledged is kept by whoever takes the stream over.
    known = await context.store.change(lambda chain: changes.truncate(chain, point), known)
    return known.chain.trim


def closed_end(chain: Chain) -> DLSN:
    """Return where the first record behind all closed segments is, or will be."""
    open_rows = chain.open_rows
    return DLSN(open_rows[0].number if open_rows else chain.next_number, 0, 0)


async def end_of(context: StreamContext, chain: Chain) -> DLSN:
    """Return a position behind the last record that is acknowledged, and not behind any that is still to come."""
    for row in reversed(chain.open_rows):
        try:
            reader = await context.client.open_ledger(row.ledger_id, recovery=False)
            async with reader:
                last_entry_id = await reader.last_add_confirmed()
        except NoSuchLedger:
            continue  # dropped by somebody who took the stream over, just now perhaps: nothing was in it
        if last_entry_id >= 0:
            return DLSN(row.number, last_entry_id + 1, 0)
    return closed_end(chain)
