"""The sequence number of an open segment's first record, where the chain does not say it yet."""

from __future__ import annotations

from fastbk.client.entries import Entry
from fastbk.errors import Error, NoSuchLedger
from fastbk.native.stream_codec import KIND_RECORDS
from fastbk.stream.chain.chain import NONE, Segment
from fastbk.stream.chain.opening import PASSWORD
from fastbk.stream.chain.segment_contents import head_of
from fastbk.stream.context import StreamContext

PART_ENTRIES = 64


async def first_sequence(context: StreamContext, row: Segment) -> int:
    """Return the number of the first record of `row`, a segment that has a record.

    A writer goes on in the second open segment only when all it sent to the first is acknowledged: then everything
    that the first one's bookies hold stays, also what lies beyond its LAC, and its last record ends the numbers.
    """
    while row.base_seq == NONE:
        chain = (await context.store.read()).chain
        now = await context.store.row(chain, row.number)
        if now is None or now.ledger_id != row.ledger_id:
            raise NoSuchLedger(
                f"{context.name}: segment {row.number} is gone", ledger_id=row.ledger_id
            )
        row = now
        before = await context.store.row(chain, row.number - 1)
        if row.base_seq == NONE and before is not None and before.base_seq != NONE:
            try:
                return before.base_seq + await _records_of(context, before)
            except NoSuchLedger:
                # Deleted, or closed and deleted, meanwhile: the chain knows.
                if (await context.store.read()).chain == chain:
                    raise
    return row.base_seq


async def _records_of(context: StreamContext, row: Segment) -> int:
    if not row.is_open:
        return row.records
    async with await context.client.open_ledger(
        row.ledger_id, recovery=False, password=PASSWORD
    ) as reader:
        last: Entry | None = None
        at = max(await reader.last_add_confirmed() - 1, 0)
        while True:
            found = await reader.read_unconfirmed(at, at + PART_ENTRIES - 1)
            for entry in found:
                if head_of(entry).kind == KIND_RECORDS:
                    last = entry
            if len(found) < PART_ENTRIES:
                break
            at += PART_ENTRIES
        if last is None:
            raise Error(
                f"{context.name}: segment {row.number} has no record, and one behind it has"
            )
        head = head_of(last)
        return head.first_record + head.record_count
