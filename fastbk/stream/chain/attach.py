"""Closed ledgers become the next segments of a stream: by one change of its chain, and a repeat does nothing."""

from __future__ import annotations

from collections.abc import Sequence

from fastbk.client.ledger_reader import LedgerReader
from fastbk.errors import ConfigError, DraftGone, StreamBusy
from fastbk.meta.records import Change
from fastbk.model.ledger import STREAM_KEY, custom_of_stream
from fastbk.stream.chain.chain import KEY_CHARACTERS_MAX, Chain
from fastbk.stream.chain.changes import Contents, check_epoch, open_for_append
from fastbk.stream.chain.changes import attach as attached
from fastbk.stream.chain.drafts import Draft
from fastbk.stream.chain.opening import new_owner, open_stream
from fastbk.stream.chain.segment_contents import contents_of
from fastbk.stream.chain.segment_slots import slots_of
from fastbk.stream.chain.store import VersionedChain
from fastbk.stream.context import StreamContext, clock_us, gathered
from fastbk.stream.positions import DLSN, NUMBER_MAX, TXID_MAX

LEDGERS_MAX = 2048
"""At once: with as many drafts the one change of metadata has some 700 KB, of the 1 MB that ZooKeeper takes."""
LOOKED_AT_TOGETHER = 32


async def attach(
    context: StreamContext, ledger_ids: Sequence[int], key: str, number: int
) -> DLSN | None:
    """Put closed ledgers behind all that the stream has, in this order; return the position of its last record.

    All of them or none. `key` and `number` make it repeatable: numbers of one key rise from 0, and a number that the
    key had, or one below it, changes nothing. The stream is taken over first: a writer that it has is fenced.

    A ledger's entries must be those of a stream (`fastbk/stream/README.md`). Transaction ids stay as they are where a
    stream's writer wrote them; others count from the stream's last one on (INV-S15). The ledgers are the stream's from
    then on, and are deleted with its segments.

    Raises ConfigError for a ledger that is open, empty, a stream's already, or older than the stream's end;
    StorageError for one with other entries; MetadataConflict when a writer opened the stream meanwhile (call it again);
    StreamSealed, StreamNotFound.
    """
    _check_arguments(ledger_ids, key, number)
    known = await _open_chain(context, key, number, is_fencing=True)
    if number <= known.chain.attached_number(key):
        return known.chain.last_dlsn
    await _check_new(context, known.chain, ledger_ids)
    return await _attach(context, known, ledger_ids, key, number, ())


async def attach_drafts(
    context: StreamContext, drafts: Sequence[Draft], number: int, *, is_fencing: bool = True
) -> DLSN | None:
    """Attach the ledgers of drafts, as `attach` does, under the drafts' key; these drafts are gone with it.

    `is_fencing` False: StreamBusy where the stream has an open segment, which a writer may be writing to, or one that
    died has left. (A writer that has appended nothing yet cannot be told from none, and is fenced.)

    Raises DraftGone when one of the drafts was given up, MetadataConflict also when one was just now.
    """
    keys = {draft.key for draft in drafts}
    if len(keys) != 1:
        raise ConfigError("drafts of one key can be attached together, and one at least")
    ledger_ids = [ledger_id for draft in drafts for ledger_id in draft.ledgers]
    (key,) = keys
    _check_arguments(ledger_ids, key, number)
    known = await _open_chain(context, key, number, is_fencing=is_fencing)
    if number <= known.chain.attached_number(key):
        return known.chain.last_dlsn
    if any(draft.is_given_up for draft in drafts):
        raise DraftGone(f"a draft of {key} was given up: nothing of it can be attached")
    gone = [Change(draft.path, None, draft.version) for draft in drafts]
    return await _attach(context, known, ledger_ids, key, number, gone)


def _check_arguments(ledger_ids: Sequence[int], key: str, number: int) -> None:
    if not 1 <= len(ledger_ids) <= LEDGERS_MAX or len(set(ledger_ids)) != len(ledger_ids):
        raise ConfigError(
            f"1 to {LEDGERS_MAX} different ledgers can be attached at once, not {len(ledger_ids)}"
        )
    if not 0 <= number <= NUMBER_MAX or len(key) > KEY_CHARACTERS_MAX:
        raise ConfigError(
            f"a key has {KEY_CHARACTERS_MAX} characters at most, and its numbers begin with 0"
        )


async def _open_chain(
    context: StreamContext, key: str, number: int, *, is_fencing: bool
) -> VersionedChain:
    """Return the chain in an epoch of its own, without open segments; or as it is, where the number was attached."""
    known = await context.store.read()
    if number <= known.chain.attached_number(key):
        return known
    owner = new_owner()
    if is_fencing:
        async with slots_of(context.client):
            return await open_stream(context.client, context.store, owner)

    def decide(chain: Chain) -> Chain:
        if chain.open_rows:
            raise StreamBusy(
                f"stream {context.name} has an open segment, made by {chain.owner}: a writer has it, or died with it"
            )
        return open_for_append(chain, owner)

    return await context.store.change(decide, known)


async def _attach(
    context: StreamContext,
    known: VersionedChain,
    ledger_ids: Sequence[int],
    key: str,
    number: int,
    also: Sequence[Change],
) -> DLSN | None:
    epoch = known.chain.epoch

    async def contents(ledger_id: int) -> tuple[int, Contents]:
        return ledger_id, await _contents(context, ledger_id)

    found = tuple(await gathered(contents, ledger_ids, LOOKED_AT_TOGETHER))
    now_us = clock_us()

    def decide(chain: Chain) -> Chain:
        check_epoch(chain, epoch)
        wanted = attached(chain, found, key, number, now_us)
        if wanted.last_txid > TXID_MAX:
            raise ConfigError("the stream's transaction ids would rise above 2^62")
        return wanted

    known = await context.store.change(decide, known, also=also)
    return known.chain.last_dlsn


async def _check_new(context: StreamContext, chain: Chain, ledger_ids: Sequence[int]) -> None:
    taken = {chain.reserved, *chain.doomed}
    async for row in context.store.rows_from(chain, chain.head):
        taken.add(row.ledger_id)
    for ledger_id in ledger_ids:
        if ledger_id in taken:
            raise ConfigError(f"ledger {ledger_id} is one of {context.name}'s already")


async def _contents(context: StreamContext, ledger_id: int) -> Contents:
    async with await context.client.open_ledger(ledger_id, recovery=False) as reader:
        if not reader.metadata.is_closed:
            raise ConfigError(
                f"ledger {ledger_id} is open: close it by `fastbk ledger recover {ledger_id}` before it is attached"
            )
        await _claim(context, reader)
        contents = await contents_of(reader, 0)
    if contents.records == 0:
        raise ConfigError(f"ledger {ledger_id} has no records: nothing can be attached")
    return contents


async def _claim(context: StreamContext, reader: LedgerReader) -> None:
    """Mark the ledger as the stream's and its namespace's; one that is marked as another's is left alone."""
    owner, ours = reader.metadata.custom.get(STREAM_KEY), context.stream_id.encode()
    if owner not in (None, ours):
        raise ConfigError(f"ledger {reader.ledger_id} is a segment of another stream")
    if owner is None:
        namespace = (
            "" if reader.metadata.namespace else context.namespace
        )  # one that it has it keeps
        await context.client.edit_metadata(
            reader.ledger_id, custom_of_stream(context.stream_id, namespace)
        )
