"""Closed ledgers become the next segments of a stream: by one change of its chain, and a repeat does nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastbk.client.ledger_reader import LedgerReader
from fastbk.errors import ConfigError
from fastbk.stream.chain import NONE, Chain
from fastbk.stream.chain_changes import Contents, check_epoch
from fastbk.stream.chain_changes import attach as attached
from fastbk.stream.context import StreamContext
from fastbk.stream.opening import PASSWORD, new_owner, open_stream
from fastbk.stream.pacing import segment_works
from fastbk.stream.positions import DLSN
from fastbk.stream.segment_contents import contents_of
from fastbk.stream.writer_queue import TXID_MAX

LEDGERS_MAX = 256
STREAM_KEY = "fastbk.stream"
"""Of a ledger's custom metadata: the stream that it belongs to."""


def attached_number(chain: Chain, key: str) -> int:
    """Return the last number that was attached under `key`; -1 if none was, or 256 other keys came after it."""
    return next((one.number for one in chain.attachments if one.key == key), NONE)


async def attach(
    context: StreamContext, ledger_ids: Sequence[int], key: str, number: int
) -> DLSN | None:
    """Put closed ledgers behind all that the stream has, in this order; return the position of its last record.

    All of them or none. `key` and `number` make it repeatable: numbers of one key rise from 0, and a number that the
    key had, or one below it, changes nothing. The stream is taken over first: a writer that it has is fenced.

    A ledger's entries must be those of a stream (`fastbk/stream/README.md`); their transaction ids are taken as
    relative to the stream's last one.
    The ledgers are the stream's from then on, and are deleted with its segments.

    Raises ConfigError for a ledger that is open, empty, or a stream's already; StorageError for one with other
    entries; MetadataConflict when a writer opened the stream meanwhile (call it again); StreamSealed, StreamNotFound.
    """
    if not 1 <= len(ledger_ids) <= LEDGERS_MAX or len(set(ledger_ids)) != len(ledger_ids):
        raise ConfigError(f"1 to {LEDGERS_MAX} different ledgers can be attached at once")
    if number < 0:
        raise ConfigError("a key's numbers begin with 0")
    known = await context.store.read()
    if number <= attached_number(known.chain, key):
        return known.chain.last_dlsn
    async with segment_works(context.client):
        known = await open_stream(context.client, context.store, new_owner())
    epoch = known.chain.epoch
    if number <= attached_number(known.chain, key):
        return known.chain.last_dlsn
    await _check_new(context, known.chain, ledger_ids)
    found = tuple([(one, await _contents(context, one)) for one in ledger_ids])
    now_us = time.time_ns() // 1000

    def decide(chain: Chain) -> Chain:
        check_epoch(chain, epoch)
        wanted = attached(chain, found, key, number, now_us)
        if wanted.last_txid > TXID_MAX:
            raise ConfigError("the stream's transaction ids would rise above 2^62")
        return wanted

    known = await context.store.change(decide, known)
    return known.chain.last_dlsn


async def _check_new(context: StreamContext, chain: Chain, ledger_ids: Sequence[int]) -> None:
    taken = {chain.reserved, *chain.doomed}
    async for row in context.store.rows_from(chain, chain.head):
        taken.add(row.ledger_id)
    for ledger_id in ledger_ids:
        if ledger_id in taken:
            raise ConfigError(f"ledger {ledger_id} is one of {context.name}'s already")


async def _contents(context: StreamContext, ledger_id: int) -> Contents:
    async with await context.client.open_ledger(
        ledger_id, recovery=False, password=PASSWORD
    ) as reader:
        if not reader.metadata.is_closed:
            raise ConfigError(f"ledger {ledger_id} is open: close it before it is attached")
        await _claim(context, reader)
        contents = await contents_of(reader, 0)
    if contents.records == 0:
        raise ConfigError(f"ledger {ledger_id} has no records: nothing can be attached")
    return contents


async def _claim(context: StreamContext, reader: LedgerReader) -> None:
    """Mark the ledger as the stream's; one that is marked as another's is left alone."""
    owner, ours = reader.metadata.custom.get(STREAM_KEY), context.stream_id.encode()
    if owner not in (None, ours):
        raise ConfigError(f"ledger {reader.ledger_id} is a segment of another stream")
    if owner is None:
        await context.client.edit_metadata(reader.ledger_id, {STREAM_KEY: ours})
