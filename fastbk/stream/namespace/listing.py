"""What lies in a namespace, and how much: many streams at a time, in requests of some hundreds of records."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from fastbk.client.record_calls import RecordCalls
from fastbk.errors import StorageError
from fastbk.meta.records import BadRecord, decoded
from fastbk.stream.chain.chain import Chain, get_chain, get_page
from fastbk.stream.chain.store import page_path
from fastbk.stream.namespace.catalog import Catalog, entries_at, label
from fastbk.stream.namespace.tree_records import EntryRecord, StreamRecord, get
from fastbk.stream.paths import (
    chain_path,
    decode,
    names_path,
    namespace_path,
    stream_path,
)
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN, to_time

PARTS_AT_ONCE = 8
"""Parts of a namespace's names that are listed by one call: most namespaces have no more names than that."""
NAMES_AT_ONCE = 500
STREAMS_AT_ONCE = 200
"""A chain is 100 bytes for a new stream, and 40 KB for one of 100,000 segments."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What metadata says of a stream. What the open segment holds counts when it is closed."""

    name: str
    path: str
    """Namespace and name."""
    id: str
    created: datetime
    policy: PolicyPatch
    """What it says itself."""
    segments: int
    """Those that are kept, open ones too."""
    open_segments: int
    records: int
    """Of the closed segments that are kept."""
    size_bytes: int
    """Of the closed segments that are kept: data of their entries, one copy."""
    trim: DLSN
    """Records before it are gone."""
    last_dlsn: DLSN | None
    """Of the last record of all closed segments; None: there never was one."""
    last_txid: int
    last_time: datetime | None
    is_sealed: bool
    epoch: int
    """How often it was opened for append."""
    owner: str
    """Who said so last: a hint for people."""
    fault: str = ""
    """Why its records cannot be read; "": they can. The other figures mean nothing then, but for name and id."""


async def entries_of(
    catalog: Catalog, namespace_id: str, prefix: str = ""
) -> AsyncGenerator[list[tuple[str, EntryRecord]], None]:
    """Yield names in a namespace that begin with `prefix`, with what they stand for, some hundreds at a time."""
    names = await _names(catalog, namespace_id, prefix)
    for at in range(0, len(names), NAMES_AT_ONCE):
        some = names[at : at + NAMES_AT_ONCE]
        found = await entries_at(catalog.records, namespace_id, some)
        yield [(name, entry.value) for name, entry in found.items()]


async def _names(catalog: Catalog, namespace_id: str, prefix: str) -> list[str]:
    """Return names, sorted: all of them, some 100 bytes each, as their order is not that of the parts they lie in."""
    parts = await catalog.records.children(namespace_path(namespace_id))
    names: list[str] = []
    for at in range(0, len(parts), PARTS_AT_ONCE):
        some = [names_path(namespace_id, part) for part in parts[at : at + PARTS_AT_ONCE]]
        for found in await catalog.records.children_of(some):
            names += [name for name in map(decode, found) if name.startswith(prefix)]
    return sorted(names)


async def infos_of(
    records: RecordCalls, path: tuple[str, ...], names: Mapping[str, str]
) -> list[StreamInfo]:
    """Return what metadata says of these streams of a namespace, by id with their names; not of those that are gone.

    One whose records cannot be read has a `fault`.
    """
    ids = [*names]
    found = records.each(
        [one for stream_id in ids for one in (stream_path(stream_id), chain_path(stream_id))]
    )
    infos: list[StreamInfo] = []
    for stream_id in ids:
        raw, raw_chain = await anext(found), await anext(found)
        if raw is None or raw_chain is None:
            continue
        where = stream_path(stream_id)
        record = decoded(where, lambda: get(StreamRecord, raw.value, where))  # noqa: B023
        chain = decoded(chain_path(stream_id), lambda: get_chain(raw_chain.value))  # noqa: B023
        if isinstance(record, StreamRecord) and record.deleting:
            continue
        name = names.get(stream_id, stream_id)
        if isinstance(record, StreamRecord):
            name = record.name
        if isinstance(record, BadRecord):
            infos.append(_bad_info(path, name, stream_id, StreamRecord("", name), record))
        elif isinstance(chain, BadRecord):
            infos.append(_bad_info(path, name, stream_id, record, chain))
        else:
            try:
                (size_bytes,) = await kept_bytes(records, [chain])
            except StorageError as error:
                bad = BadRecord(chain_path(stream_id), str(error))
                infos.append(_bad_info(path, name, stream_id, record, bad))
            else:
                infos.append(_info(path, record, chain, size_bytes))
    return infos


async def kept_bytes(records: RecordCalls, chains: Sequence[Chain]) -> list[int]:
    """Return the bytes of each chain's closed segments, of those that are kept: data of their entries, one copy."""
    gone = await _gone_bytes(records, chains)
    return [
        sum(page.size_bytes for page in chain.pages)
        + sum(row.size_bytes for row in chain.rows if not row.is_open)
        - gone.get(chain.stream_id, 0)
        for chain in chains
    ]


async def _gone_bytes(records: RecordCalls, chains: Sequence[Chain]) -> dict[str, int]:
    """Return what first pages count although it is deleted: a page stays until the last of its segments goes."""
    cut = [chain for chain in chains if chain.pages and chain.pages[0].first < chain.head]
    if not cut:
        return {}
    found = records.each([page_path(one.stream_id, one.pages[0]) for one in cut])
    gone: dict[str, int] = {}
    for chain in cut:
        raw = await anext(found)
        if raw is not None:
            gone[chain.stream_id] = sum(
                row.size_bytes for row in get_page(raw.value) if row.number < chain.head
            )
    return gone


def _bad_info(
    path: tuple[str, ...], name: str, stream_id: str, record: StreamRecord, bad: BadRecord
) -> StreamInfo:
    fault = f"{bad.path}: {bad.reason}"
    info = _info(path, msgspec.structs.replace(record, name=name), Chain(stream_id), 0)
    return dataclasses.replace(info, fault=fault)


def _info(path: tuple[str, ...], record: StreamRecord, chain: Chain, size_bytes: int) -> StreamInfo:
    return StreamInfo(
        record.name,
        label((*path, record.name)),
        chain.stream_id,
        to_time(record.created_us),
        record.policy,
        chain.next_number - chain.head,
        len(chain.open_rows),
        chain.end_seq - chain.head_seq,
        size_bytes,
        chain.trim,
        chain.last_dlsn,
        chain.last_txid,
        to_time(chain.newest_time_us) if chain.newest_time_us >= 0 else None,
        chain.is_sealed,
        chain.epoch,
        chain.owner,
    )


async def list_streams(
    catalog: Catalog, path: tuple[str, ...], prefix: str, *, recursive: bool
) -> AsyncGenerator[StreamInfo, None]:
    """Yield the streams of a namespace by name, those of the namespaces below it behind them."""
    place = await catalog.place(path)
    waiting = [(path, place.here.id, prefix)]
    seen = {place.here.id}  # a damaged tree may lead into itself
    while waiting:
        where, namespace_id, begins = waiting.pop(0)
        async for entries in entries_of(catalog, namespace_id, begins):
            streams = [(name, one.id) for name, one in entries if one.kind == "stream"]
            if recursive:
                below = [
                    (name, one.id)
                    for name, one in entries
                    if one.kind == "namespace" and one.id not in seen
                ]
                seen.update(one_id for _, one_id in below)
                waiting += [((*where, name), one_id, "") for name, one_id in below]
            for at in range(0, len(streams), STREAMS_AT_ONCE):
                some = {one_id: name for name, one_id in streams[at : at + STREAMS_AT_ONCE]}
                for info in await infos_of(catalog.records, where, some):
                    yield info
