"""Deleting a whole stream: cursors, ledgers, pages, and last its chain and record, in one change.

Its name has gone before (`namespace.py`), together with a mark in its record. Every step may be repeated by anybody
after a crash of whoever began it; the janitor does that for every record with the mark. Nobody's help is needed: the
chain shuts writers and readers out, and the ledgers of open segments are fenced before they are deleted, so that a
writer's next append fails and finds the stream gone. What it has under way then is lost with the stream (INV-S19).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from urllib.parse import unquote

from fastbk.client.client import Client
from fastbk.errors import MetadataConflict, StorageError, StreamNotFound
from fastbk.meta.records import Change
from fastbk.model.ledger import STREAM_KEY
from fastbk.observe.library_log import LibraryLog
from fastbk.stream.chain.chain import NONE, Chain, Segment, put_chain
from fastbk.stream.chain.changes import CONDEMNED, condemn, drop_condemned, forget_deleted
from fastbk.stream.chain.drafts import drafts_of, give_up
from fastbk.stream.chain.store import ChainStore, VersionedChain, page_path
from fastbk.stream.context import gathered
from fastbk.stream.cursor.store import delete_cursor
from fastbk.stream.janitor.audit import Audit
from fastbk.stream.janitor.segment_deletion import Deleter, delete_records
from fastbk.stream.namespace.tree_records import StreamRecord, get
from fastbk.stream.paths import cursors_path, drafts_path, pages_path, stream_path

_log = LibraryLog("fastbk.stream")

REASON = "the stream was deleted"
FENCED_TOGETHER = 16
TRIES_MAX = 20
"""How often the last change is tried while others, slow ones, still write below the stream."""


async def delete_stream(client: Client, stream_id: str, deleter: Deleter | None = None) -> None:
    """Delete a stream that has no name any more. Nothing happens where there is none.

    Raises MetadataConflict for a stream that has a name, MetadataOnHold, MetadataUnavailable and what deleting raises;
    the same call, or a janitor, goes on then.
    """
    await client.records.check_not_held()
    deleter = deleter or Deleter(client, Audit())
    where = stream_path(stream_id)
    raw = await client.records.read(where)
    if raw is not None and not get(StreamRecord, raw.value, where).deleting:
        raise MetadataConflict(f"stream {stream_id} has a name: nothing of it is deleted")
    store = ChainStore(client.records, stream_id, client.config.metadata_timeout, is_deleter=True)
    try:
        known = await _condemned(deleter, store)
    except StreamNotFound:
        await delete_leftovers(deleter, stream_id)
        return
    await _fence(client, [row.ledger_id for row in known.chain.open_rows])
    known = await _delete_ledgers(deleter, store, known)
    for _ in range(TRIES_MAX):
        await delete_leftovers(deleter, stream_id)
        try:
            await _delete_chain_and_record(client, store)
            break
        except MetadataConflict:
            continue  # a slow writer has put something below it, or another one deletes it as well
    else:
        raise MetadataConflict(
            f"stream {stream_id} cannot be deleted: somebody goes on writing below its record",
            retryable=True,
        )
    await delete_leftovers(deleter, stream_id)


async def _condemned(deleter: Deleter, store: ChainStore) -> VersionedChain:
    """Shut writers out; return the chain. One that cannot be read goes with all ledgers that say they are its stream's.

    Raises StreamNotFound, MetadataConflict.
    """
    try:
        return await store.change(condemn)
    except StorageError as error:
        client, stream_id = deleter.client, store.stream_id
        raw = await client.records.read(store.path)
        if raw is None:
            raise StreamNotFound(f"there is no stream {stream_id}") from None
        _log.warning("stream.bad_record", path=store.path, reason=str(error))
        # Nobody can change such a chain, so no ledger comes to it; one page of a damaged chain is as bad as the chain.
        owner = stream_id.encode()
        mine = [
            one.ledger_id
            async for one in client.list_ledgers()
            if one.metadata.custom.get(STREAM_KEY) == owner
        ]
        await _fence(client, mine)
        await deleter.ledgers_of(stream_id, (), mine, REASON)
        empty = Chain(stream_id, owner=CONDEMNED, is_sealed=True)
        (version,) = await client.records.change(Change(store.path, put_chain(empty), raw.version))
        return VersionedChain(empty, version)


async def _fence(client: Client, ledger_ids: Sequence[int]) -> None:
    """Fence ledgers, as far as their bookies answer; a closed one costs a look at its metadata."""
    await gathered(client.fence, ledger_ids, FENCED_TOGETHER)


async def _delete_ledgers(
    deleter: Deleter, store: ChainStore, known: VersionedChain
) -> VersionedChain:
    """Delete all ledgers that the chain names: those of pages first, page by page, as they are the oldest."""
    while known.chain.pages:
        page = known.chain.pages[0]
        rows: list[Segment] = []
        try:
            rows = [row for row in await store.page(page) if row.number >= known.chain.head]
        except (
            StorageError
        ) as error:  # its ledgers stay, and `fastbk doctor` names ledgers that no chain does
            _log.warning(
                "stream.bad_record", path=page_path(store.stream_id, page), reason=str(error)
            )
        await deleter.ledgers_of(store.stream_id, rows, (), REASON)
        known = await store.change(partial(drop_condemned, below=page.last + 1), known)
    while (others := _other_ledgers(known.chain)) or known.chain.rows:
        rows_end, doomed = known.chain.next_number, known.chain.doomed
        await deleter.ledgers_of(store.stream_id, known.chain.rows, others, REASON)

        def empty(chain: Chain, end: int = rows_end, gone: tuple[int, ...] = doomed) -> Chain:
            return forget_deleted(drop_condemned(chain, end), gone)

        known = await store.change(empty, known)
        if known.chain.reserved != NONE and not known.chain.rows and not known.chain.doomed:
            break  # it stays named, and is retired
    return known


def _other_ledgers(chain: Chain) -> list[int]:
    return [*chain.doomed, *([] if chain.reserved == NONE else [chain.reserved])]


async def _delete_chain_and_record(client: Client, store: ChainStore) -> None:
    paths = [store.path, stream_path(store.stream_id)]
    found = await client.records.read_all(paths)
    changes = [
        Change(path, None, one.version) for path, one in zip(paths, found, strict=True) if one
    ]
    if changes:
        await client.records.change(*changes)


async def delete_leftovers(deleter: Deleter, stream_id: str) -> None:
    """Delete the cursors, drafts and pages of a stream that is deleted, or that one who was slow wrote after it was."""
    client, folder = deleter.client, pages_path(stream_id)
    cursors = await client.records.children(cursors_path(stream_id))
    if cursors:
        for name in cursors:
            await deleter.audit.record(REASON, {"stream": stream_id, "cursor": name})
            await delete_cursor(client, stream_id, unquote(name))
    drafts = await drafts_of(client, stream_id)
    for draft in drafts:
        await deleter.audit.record(REASON, draft.event())
    await give_up(client, drafts)
    # Pages, and what no cursor or draft can be: it has no ledgers that anybody knows of.
    for below in (folder, cursors_path(stream_id), drafts_path(stream_id)):
        rest = await client.records.children(below)
        await delete_records(client, [f"{below}/{name}" for name in rest])
