"""Ending segments that nobody writes to any more: their writer is gone, and they are past their age.

A writer that lives ends its segments by age itself. So who finds records in an open segment, and nothing newer than its
age and a grace, takes the stream over, and leaves it closed. A segment without records is left alone, whoever has it:
there is nothing to end. The clock of the writer counts against ours: the grace has to be more than they differ. A time
that lies ahead of ours says nothing: then it counts when this janitor saw that entry first (INV-S22). A
ledger that is reserved and not made stays named until then, too: its writer may live, and only a takeover tells it.

A writer that died may not have sent its last LAC. Readers see nothing above the LAC, since only a fence or a close
proves that it stays (INV-S18). So much sooner than by age, the ledger of a segment with entries above a LAC that
stands still is closed, and the chain is left as it is: a writer that lives after all goes on in another segment
(INV-S16).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from fastbk.client.client import Client
from fastbk.client.entries import Entry
from fastbk.client.ledger_reader import LedgerReader
from fastbk.errors import NoSuchLedger
from fastbk.observe.library_log import LibraryLog
from fastbk.stream.chain.chain import Chain, Segment
from fastbk.stream.chain.opening import new_owner, open_stream
from fastbk.stream.chain.segment_contents import head_of
from fastbk.stream.chain.store import ChainStore, VersionedChain
from fastbk.stream.policy import StreamPolicy

_log = LibraryLog("fastbk.stream.janitor")
T = TypeVar("T")

READERS_MAX = 10_000
"""Of open segments; more of them are opened anew each time."""
READ_TIMEOUT_S = 5.0
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
        self._ahead: OrderedDict[int, tuple[int, int]] = OrderedDict()

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
        made_us = open_rows[0].created_us
        if now_us < max(
            limit_us + made_us if made_us <= now_us else 0, self._due_us.get(newest, 0)
        ):
            return known
        last = await last_written(self._client, known.chain)
        due_us = limit_us + (now_us if last is None else self._written_us(last, now_us))
        if due_us > now_us:
            _remember(self._due_us, newest, due_us)
            return known
        self._due_us.pop(newest, None)
        self._ahead.pop(newest, None)
        return await open_stream(self._client, store, f"janitor {new_owner()}")

    def _written_us(self, last: Entry, now_us: int) -> int:
        """Return when an open segment's last entry was written at the latest."""
        time_us = head_of(last).time_us
        if time_us <= now_us:
            return time_us
        entry_id, seen_us = self._ahead.get(last.ledger_id, (-1, 0))
        if entry_id != last.entry_id or seen_us > now_us:
            seen_us = now_us
            _remember(self._ahead, last.ledger_id, (last.entry_id, seen_us))
        return seen_us


def _remember(known: OrderedDict[int, T], ledger_id: int, value: T) -> None:
    known[ledger_id] = value
    known.move_to_end(ledger_id)
    if len(known) > REMEMBERED_MAX:
        known.popitem(last=False)


async def last_written(client: Client, chain: Chain) -> Entry | None:
    """Return the last entry in the open segments, None if there is none."""
    for row in reversed(chain.open_rows):
        reader = await client.open_ledger(row.ledger_id, recovery=False)
        async with reader:
            last = await _last_entry(reader)
        if last is not None:
            return last
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


class LeftSegments:
    """Closes ledgers of open segments whose writer left entries above the LAC, and remembers which may be such.

    A segment without such entries costs one read of an entry that is not there, and no call of metadata.
    """

    def __init__(self, client: Client, after_s: float) -> None:
        """`after_s`: for how long a LAC has to stand still below entries."""
        self._client = client
        self._after_s = after_s
        self._readers: dict[int, LedgerReader] = {}
        self._stuck: dict[
            int, tuple[int, float]
        ] = {}  # by ledger: its LAC, and since when it is known
        self._open: set[int] = set()

    def begin(self) -> None:
        """Another look at all chains begins: forget what the last one did not find open any more."""
        for ledger_id in [one for one in self._readers if one not in self._open]:
            del self._readers[ledger_id]
        for ledger_id in [one for one in self._stuck if one not in self._open]:
            del self._stuck[ledger_id]
        self._open.clear()

    async def close_left(self, chain: Chain, now_s: float) -> int:
        """Look at a chain's open segments; return how many ledgers were closed. Raises what reading and recovery do."""
        closed = 0
        for row in chain.open_rows:
            self._open.add(row.ledger_id)
            try:
                closed += await self._close_if_left(chain, row, now_s)
            except NoSuchLedger:
                continue  # it was deleted meanwhile
        return closed

    async def _close_if_left(self, chain: Chain, row: Segment, now_s: float) -> bool:
        reader = await self._reader(row.ledger_id)
        if not await _is_stuck(reader):
            self._stuck.pop(row.ledger_id, None)
            return False
        known, lac = self._stuck.get(row.ledger_id), reader.last_known
        if known is None or known[0] != lac:
            self._stuck[row.ledger_id] = lac, now_s
            return False
        since_s = known[1]
        if now_s - since_s < self._after_s:
            return False
        async with await self._client.open_ledger(row.ledger_id, recovery=True) as recovered:
            last_entry_id = recovered.last_known
        _log.info(
            "janitor.closed_left_segment",
            stream=chain.stream_id,
            segment=row.number,
            ledger_id=row.ledger_id,
            lac=lac,
            last_entry_id=last_entry_id,
        )
        self._readers.pop(row.ledger_id, None)
        return True

    async def _reader(self, ledger_id: int) -> LedgerReader:
        reader = self._readers.get(ledger_id)
        if reader is None:
            reader = await self._client.open_ledger(ledger_id, recovery=False)
            if len(self._readers) < READERS_MAX:
                self._readers[ledger_id] = reader
        return reader


async def _is_stuck(reader: LedgerReader) -> bool:
    """Return whether an open ledger has an entry above the LAC that its bookies say now."""
    for _ in range(2):
        if reader.is_closed:
            return False
        above = reader.last_known + 1
        if not await reader.read_unconfirmed(above, above, timeout=READ_TIMEOUT_S):
            return False
        await reader.try_last_add_confirmed(timeout=READ_TIMEOUT_S)
        if reader.last_known < above:
            return not reader.is_closed
    return False  # the LAC moves: somebody writes
