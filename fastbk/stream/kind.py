"""The pages of metadata that have the table of producers while a stream is of another kind.

INV-S29: pages are written before the chain names them, never change, and are deleted when it names them no more. Their
number is the epoch of the takeover that wrote them, so whatever a chain of that epoch or a later one does not name
nobody will ever name.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from fastbk.client.metadata_calls import RecordCalls
from fastbk.errors import StorageError
from fastbk.meta.records import Change
from fastbk.stream.chain import Chain
from fastbk.stream.context import StreamContext
from fastbk.stream.paths import page_part, producers_path
from fastbk.stream.provenance import Row, get_rows, table_of_log

VERSION = 1
_MARK = b"FBKT"
PAGE_BYTES_MAX = 256 * 1024
"""Maximum bytes of a page. ZooKeeper takes four times as many."""


async def table_of(context: StreamContext, chain: Chain) -> dict[bytes, Row]:
    """Return the table of producers of a stream, all of whose segments are closed.

    Where the newest segment has none, it is in pages, or nobody ever had a name. Raises as `table_of_log`.
    """
    found = await table_of_log(context, chain)
    if found is not None:
        return found
    records = context.client.records
    pages = await read_pages(records, context.stream_id, chain.producer_pages)
    return {row.name: row for page in pages for row in get_rows(page)}


async def write_pages(
    records: RecordCalls, stream_id: str, epoch: int, tables: Sequence[bytes]
) -> tuple[str, ...]:
    """Write a page for each part of a table; return their names. Raises MetadataUnavailable, MetadataConflict.

    What a failure leaves is deleted by the stream's next change of kind, or with the stream.
    """
    names: list[str] = []
    for table in tables:
        name = page_part(epoch, secrets.randbits(62))
        await records.change(Change(f"{producers_path(stream_id)}/{name}", put_table(table)))
        names.append(name)
    return tuple(names)


async def read_pages(records: RecordCalls, stream_id: str, names: Sequence[str]) -> list[bytes]:
    """Return the parts of a table that `write_pages` wrote. Raises StorageError, MetadataUnavailable."""
    found = await records.read_all([f"{producers_path(stream_id)}/{name}" for name in names])
    tables: list[bytes] = []
    for name, record in zip(names, found, strict=True):
        if record is None:
            raise StorageError(f"stream {stream_id}: page {name} of its producers is gone")
        tables.append(get_table(record.value))
    return tables


def put_table(rows: bytes) -> bytes:
    """Return a page's bytes: a mark, a version, rows as an entry has them."""
    raw = _MARK + bytes([VERSION]) + rows
    if len(raw) > PAGE_BYTES_MAX:
        raise StorageError(
            f"a page of producers has {len(raw)} bytes, and at most {PAGE_BYTES_MAX}"
        )
    return raw


def get_table(raw: bytes) -> bytes:
    """Return the rows that `put_table` was given. Raises StorageError."""
    if raw[: len(_MARK)] != _MARK or len(raw) <= len(_MARK) or len(raw) > PAGE_BYTES_MAX:
        raise StorageError(f"{len(raw)} bytes are no page of a stream's producers")
    if raw[len(_MARK)] != VERSION:
        raise StorageError(
            f"a page of producers of version {raw[len(_MARK)]}: this fastbk reads version {VERSION}"
        )
    return raw[len(_MARK) + 1 :]
