"""Ending segments that nobody writes to any more: their writer is gone, and they are past their age.

A writer that lives ends its segments by age itself. So who finds records in an open segment, and nothing newer than its
age and a grace, takes the stream over, and leaves it closed. A segment without records is left alone, whoever has it:
there is nothing to end. The clock of the writer counts against ours: the grace has to be more than they differ. A
ledger that is reserved and not made stays named until then, too: its writer may live, and only a takeover tells it.
"""

from __future__ import annotations

from collections import OrderedDict

from fastbk.client.client import Client
from fastbk.client.entries import Entry
from fastbk.client.ledger_reader import LedgerReader
from fastbk.stream.chain.chain import Chain
from fastbk.stream.chain.opening import new_owner, open_stream
from fastbk.stream.chain.segment_contents import head_of
from fastbk.stream.chain.store import ChainStore, VersionedChain
from fastbk.stream.policy import StreamPolicy

REMEMBERED_MAX = 100_000
"""Open segments of which it is remembered when to look again; others are looked at in every pass."""
UNCONFIRMED_READ = 16
"""Entries behind the LAC that are looked at: a writer that died may not have told of its last ones."""


class IdleRolling:
    """Remembers when each open segment can be due at the earliest."""

    def __init__(self, client: Client, grace_s: float) -> None:
        self._client = client
        self._grace_s = grace_s
        self._due_us: OrderedDict[int, int] = OrderedDict()

    async def roll_if_idle(
        self, store: ChainStore, known: VersionedChain, policy: StreamPolicy, now_us: int
    ) -> VersionedChain:
        """Take the stream over if its last records are older than a segment may be; return what holds then.

        Raises what reading and recovery raise.
        """
        open_rows = known.chain.open_rows
        if not open_rows or not policy.roll_age_s:
            return known
        limit_us = int((policy.roll_age_s + self._grace_s) * 1e6)
        newest = open_rows[-1].ledger_id
        if now_us < max(open_rows[0].created_us + limit_us, self._due_us.get(newest, 0)):
            return known
        last_us = await last_written_us(self._client, known.chain)
        due_us = limit_us + (now_us if last_us is None else last_us)
        if due_us > now_us:
            self._remember(newest, due_us)
            return known
        self._due_us.pop(newest, None)
        return await open_stream(self._client, store, f"janitor {new_owner()}")

    def _remember(self, ledger_id: int, due_us: int) -> None:
        self._due_us[ledger_id] = due_us
        self._due_us.move_to_end(ledger_id)
        if len(self._due_us) > REMEMBERED_MAX:
            self._due_us.popitem(last=False)


async def last_written_us(client: Client, chain: Chain) -> int | None:
    """Return the time of the last entry in the open segments, None if there is none."""
    for row in reversed(chain.open_rows):
        reader = await client.open_ledger(row.ledger_id, recovery=False)
        async with reader:
            last = await _last_entry(reader)
        if last is not None:
            return head_of(last).time_us
    return None


async def _last_entry(reader: LedgerReader) -> Entry | None:
    last_entry_id = await reader.last_add_confirmed()
    if not reader.is_closed:
        first = last_entry_id + 1
        untold = await reader.read_unconfirmed(first, first + UNCONFIRMED_READ - 1)
        if untold:
            return untold[-1]
    if last_entry_id < 0:
        return None
    (entry,) = [one async for one in reader.read(last_entry_id, last_entry_id)]
    return entry
