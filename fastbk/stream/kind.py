"""Changes of a stream's kind, and the pages of metadata that have its table of producers meanwhile.

Whoever changes it takes the stream over, so nobody appends any more, and then makes one change of the chain (INV-S28).

INV-S29: pages are written before the chain names them, never change, and are deleted when it names them no more. Their
number is the epoch of the takeover that wrote them, so whatever a chain of that epoch does not name when the change is
done nobody will ever name.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from fastbk.client.metadata_calls import RecordCalls
from fastbk.errors import Error, MetadataConflict, ProtocolError, StorageError
from fastbk.meta.records import Change
from fastbk.observe.library_log import LibraryLog
from fastbk.retry import Retry
from fastbk.stream.chain import Chain, StreamKind, change_kind
from fastbk.stream.chain_store import VersionedChain
from fastbk.stream.context import StreamContext
from fastbk.stream.opening import (
    check_producers_level,
    delete_pending,
    new_owner,
    open_stream,
    slots_of,
)
from fastbk.stream.paths import number_of_page, page_part, producers_path
from fastbk.stream.provenance import Row, get_rows, put_rows, table_of_log

_log = LibraryLog("fastbk.stream")

AGAIN_S, AGAIN_S_MAX = 0.01, 0.5
TAKEN_BACK_S = 10.0
"""How long a change is tried anew while a service takes the stream back for its producers."""


async def set_kind(context: StreamContext, kind: StreamKind) -> None:
    """Make a stream one of this kind, and leave it to nobody; whoever appended so far is fenced.

    Nothing happens to a stream that is of this kind. Raises ConfigError where the cluster's format level has no
    producers, MetadataConflict while somebody takes the stream over again and again, StreamSealed, StreamNotFound, and
    what recovery, reads and metadata raise: the same call may then succeed later.
    """
    if (await context.store.read()).chain.kind is kind:
        return
    if kind is StreamKind.PRODUCERS:
        check_producers_level(context.name, await context.client.records.format_level())
    retry = Retry(AGAIN_S, AGAIN_S_MAX, TAKEN_BACK_S)
    while True:
        try:
            known = await _changed(context, kind)
        except MetadataConflict as error:
            await asyncio.sleep(retry.pause_s(error))
        else:
            break
    await _delete_unnamed(context, known.chain)


async def _changed(context: StreamContext, kind: StreamKind) -> VersionedChain:
    """Take the stream over, and change its kind. Raises MetadataConflict where another one was faster."""
    async with slots_of(context.client):
        owner = f"kind {new_owner()}"
        known = await open_stream(context.client, context.store, owner, None)
        known = await delete_pending(context, known)
        epoch, pages = known.chain.epoch, tuple[str, ...]()
        await _delete_unnamed(context, known.chain)
        if known.chain.kind is StreamKind.PRODUCERS:
            rows = [*(await table_of(context, known.chain)).values()]
            pages = await write_pages(context.client.records, context.stream_id, epoch, rows)
        return await context.store.change(
            lambda chain: change_kind(chain, epoch, kind, pages), known
        )


async def _delete_unnamed(context: StreamContext, chain: Chain) -> None:
    """Delete pages that no chain names, nor ever will; `chain`: as this change took it over, or left it.

    What fails here the next change does, or the stream's deletion.
    """
    from fastbk.stream.deletion import delete_records

    folder = producers_path(context.stream_id)
    try:
        names = await context.client.records.children(folder)
        unnamed = [
            name
            for name in names
            if name not in chain.producer_pages and number_of_page(name) <= chain.epoch
        ]
        await delete_records(context.client, [f"{folder}/{name}" for name in unnamed])
    except Error as error:
        _log.info("stream.producer_pages_wait", stream=context.name, reason=str(error))


async def table_of(context: StreamContext, chain: Chain) -> dict[bytes, Row]:
    """Return the table of producers of a stream whose segments are all closed: of its log, or else of its pages.

    Raises StorageError for a table that cannot be read, and what reads raise: nobody may append as a producer then.
    """
    found = await table_of_log(context, chain)
    if found is not None:
        return found
    rows = await read_pages(context.client.records, context.stream_id, chain.producer_pages)
    return {row.name: row for row in rows}


# --- pages ----------------------------------------------------------------------------------------


VERSION = 1
_MARK = b"FBKT"
PAGE_ROWS = 2500
PAGE_BYTES_MAX = 256 * 1024
"""Maximum bytes of a page: `PAGE_ROWS` of the longest names, and more. ZooKeeper takes four times as many."""


async def write_pages(
    records: RecordCalls, stream_id: str, epoch: int, rows: Sequence[Row]
) -> tuple[str, ...]:
    """Write a table to as many pages as it needs; return their names. Raises MetadataUnavailable, MetadataConflict."""
    names: list[str] = []
    for offset in range(0, len(rows), PAGE_ROWS):
        name = page_part(epoch, secrets.randbits(62))
        page = put_table(rows[offset : offset + PAGE_ROWS])
        await records.change(Change(f"{producers_path(stream_id)}/{name}", page))
        names.append(name)
    return tuple(names)


async def read_pages(records: RecordCalls, stream_id: str, names: Sequence[str]) -> list[Row]:
    """Return the table that `write_pages` wrote. Raises StorageError, MetadataUnavailable."""
    rows: list[Row] = []
    found = await records.read_all([f"{producers_path(stream_id)}/{name}" for name in names])
    for name, record in zip(names, found, strict=True):
        if record is None:
            raise StorageError(f"stream {stream_id}: page {name} of its producers is gone")
        rows += get_table(record.value)
    return rows


def put_table(rows: Sequence[Row]) -> bytes:
    """Return a page's bytes: a mark, a version, and rows as an entry has them."""
    return _MARK + bytes([VERSION]) + put_rows(rows)


def get_table(raw: bytes) -> tuple[Row, ...]:
    """Return what `put_table` was given. Raises StorageError."""
    if raw[: len(_MARK)] != _MARK or len(raw) <= len(_MARK) or len(raw) > PAGE_BYTES_MAX:
        raise StorageError(f"{len(raw)} bytes are no page of a stream's producers")
    if raw[len(_MARK)] != VERSION:
        raise StorageError(
            f"a page of producers of version {raw[len(_MARK)]}: this fastbk reads version {VERSION}"
        )
    try:
        return get_rows(raw[len(_MARK) + 1 :])
    except ProtocolError as error:
        raise StorageError(f"a page of producers is damaged: {error}") from error
