"""Listings of streams: what lies in a namespace and how much, what happens in it, and all streams of a cluster.

Many streams are read at a time, in requests of some hundreds of records. Of a whole cluster the ids of some parts are
held in memory at any moment, of one in 256 where there are many streams, and the records of some hundreds, but of no
more chains than `ITEMS_AT_ONCE` says (INV-M18).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from fastbk.client.metadata_calls import RecordCalls
from fastbk.errors import Error, MetadataUnavailable, StorageError, StreamNotFound
from fastbk.meta.api import Watch
from fastbk.meta.records import BadRecord, VersionedRecord, decoded
from fastbk.retry import jittered
from fastbk.stream.chain import Chain, KindName, get_chain, get_page
from fastbk.stream.chain_store import VersionedChain, page_path
from fastbk.stream.namespace.catalog import Catalog, entries_at
from fastbk.stream.namespace.tree import (
    ROOT_ID,
    EntryRecord,
    Kind,
    NamespaceRecord,
    StreamRecord,
    UsageRecord,
    get,
    get_or,
    label,
)
from fastbk.stream.paths import (
    STREAMS,
    chain_path,
    decode,
    names_path,
    namespace_path,
    part_path,
    stream_path,
    usage_path,
)
from fastbk.stream.policy import PolicyPatch, StreamPolicy, effective
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
    """Records of the closed segments that are kept."""
    size_bytes: int
    """Bytes of the closed segments that are kept: data of their entries, one copy."""
    trim: DLSN
    """Records before it are gone."""
    last_dlsn: DLSN | None
    """DLSN of the last record of all closed segments; None: there never was one."""
    last_txid: int
    last_time: datetime | None
    is_sealed: bool
    epoch: int
    """How often it was opened for append."""
    owner: str
    """Who said so last: a hint for people."""
    fault: str = ""
    """Why its records cannot be read; "": they can. The other figures mean nothing then, but for name and id."""
    kind: KindName = "writer"
    """Who appends: one writer, or producers. A stream that nobody has written to takes both."""


async def entries_of(
    catalog: Catalog, namespace_id: str, prefix: str = ""
) -> AsyncGenerator[list[tuple[str, EntryRecord]], None]:
    """Yield names in a namespace that begin with `prefix`, with what they stand for, some hundreds at a time."""
    names = await _names(catalog, namespace_id, prefix)
    for offset in range(0, len(names), NAMES_AT_ONCE):
        some = names[offset : offset + NAMES_AT_ONCE]
        entries = await entries_at(catalog.records, namespace_id, some)
        yield [(name, entry.value) for name, entry in entries.items()]


async def _names(catalog: Catalog, namespace_id: str, prefix: str) -> list[str]:
    """Return names, sorted: all of them, some 100 bytes each, as their order is not that of the parts they lie in."""
    parts = await catalog.records.children(namespace_path(namespace_id))
    names: list[str] = []
    for offset in range(0, len(parts), PARTS_AT_ONCE):
        some = [names_path(namespace_id, part) for part in parts[offset : offset + PARTS_AT_ONCE]]
        for child in await catalog.records.children_of(some):
            names += [name for name in map(decode, child) if name.startswith(prefix)]
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
        kind=chain.kind.label,
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
            for offset in range(0, len(streams), STREAMS_AT_ONCE):
                some = {one_id: name for name, one_id in streams[offset : offset + STREAMS_AT_ONCE]}
                for info in await infos_of(catalog.records, where, some):
                    yield info


# --- events ---------------------------------------------------------------------------------------
#
# What happens in a namespace, told in order and without losing anything between a listing and what
# follows.
#
# Names are compared with what was told before, whenever the count of changes in the namespace's
# usage record has risen; a listing counts whole only if that count was the same before and after
# it. Where names change faster than they can be listed, a listing is not one moment's: then a name
# that it lacks is told as deleted only if the record of what it stood for says so, for ids are
# never used again. Several changes may be told as one: what was created and deleted in between is
# not told of.


AGAIN_S = 0.5
"""Pause while metadata is away."""
LISTINGS_MAX = 10
"""So often names are listed again because they changed meanwhile; then what is certain of it is told."""

Names = dict[str, tuple[str, EntryRecord]]
"""By id: the name, and what stands there."""


@dataclass(frozen=True, slots=True)
class NamespaceEvent:
    """One change. Events of a name may come in another order than they happened, those of an id do not."""

    kind: Literal["present", "created", "deleted", "renamed", "policy"]
    """"present": it was there when the watch began. "policy": its own; of the watched namespace inherited ones, too."""
    what: Kind
    name: str
    """Name of the stream or namespace in the watched namespace; its path if it is that itself."""
    id: str
    former: str = ""
    """What it was called before it was renamed."""


class _Watched:
    """One namespace as it was last told."""

    def __init__(self, catalog: Catalog, path: tuple[str, ...], ids: tuple[str, ...]) -> None:
        self._catalog = catalog
        self._records = catalog.records
        self._id = ids[-1]
        self._path = path
        self._name = path[-1] if path else ""
        self.paths = [usage_path(self._id), *map(namespace_path, ids)]
        self.is_gone = False
        self._names: Names | None = None
        self._changes = -1
        self._policies: list[PolicyPatch] | None = None

    async def poll(self) -> list[NamespaceEvent]:
        """Return what happened since the last look."""
        found = await self._records.read_all(self.paths)
        usage = UsageRecord()
        if found[0] is not None:
            usage = get_or(UsageRecord, found[0].value, self.paths[0], usage)
        if found[-1] is None and self._id != ROOT_ID:
            self.is_gone = True
            return [NamespaceEvent("deleted", "namespace", label(self._path), self._id)]
        levels = [
            NamespaceRecord()
            if raw is None
            else get_or(NamespaceRecord, raw.value, where, self._unread(where))
            for raw, where in zip(found[1:], self.paths[1:], strict=True)
        ]
        events = list(self._of_itself(levels))
        if usage.changes != self._changes:
            names, changes = await self._list(usage.changes)
            events += _differences(self._names, names)
            self._names, self._changes = names, changes
        return events

    def _unread(self, where: str) -> NamespaceRecord:
        """Return what stands for a record that nobody can read: it has the name that it had."""
        return NamespaceRecord(name=self._name if where == self.paths[-1] else "")

    def _of_itself(self, levels: list[NamespaceRecord]) -> Iterator[NamespaceEvent]:
        name, policies = levels[-1].name, [level.policy for level in levels]
        if name != self._name:
            former, self._path = label(self._path), (*self._path[:-1], name)
            self._name = name
            yield NamespaceEvent("renamed", "namespace", label(self._path), self._id, former)
        if self._policies is not None and policies != self._policies:
            yield NamespaceEvent("policy", "namespace", label(self._path), self._id)
        self._policies = policies

    async def _list(self, changes: int) -> tuple[Names, int]:
        for _ in range(LISTINGS_MAX):
            names: Names = {}
            async for entries in entries_of(self._catalog, self._id):
                names.update({entry.id: (name, entry) for name, entry in entries})
            raw = await self._records.read(self.paths[0])
            after = (
                0
                if raw is None
                else get_or(UsageRecord, raw.value, self.paths[0], UsageRecord()).changes
            )
            if after == changes:
                break
            changes = after
        else:
            names |= await self._not_gone(set(self._names or {}) - names.keys())
            # the next look, which the latest change has asked for already, lists again
            changes = -1
        return names, changes

    async def _not_gone(self, missing: set[str]) -> Names:
        """Return those of these ids, known and missing in a listing, that were renamed while it was made."""
        known = self._names or {}
        wanted = [(one_id, known[one_id][1]) for one_id in sorted(missing)]
        found = await self._records.read_all(
            [
                stream_path(one_id) if entry.kind == "stream" else namespace_path(one_id)
                for one_id, entry in wanted
            ]
        )
        there: Names = {}
        for (one_id, entry), raw in zip(wanted, found, strict=True):
            if raw is None:
                continue
            if entry.kind == "stream":
                stream = get_or(
                    StreamRecord, raw.value, stream_path(one_id), StreamRecord("", known[one_id][0])
                )
                if not stream.deleting:
                    there[one_id] = (stream.name, entry)
            else:
                named = get_or(
                    NamespaceRecord,
                    raw.value,
                    namespace_path(one_id),
                    NamespaceRecord("", known[one_id][0]),
                )
                there[one_id] = (named.name, entry)
        return there


def _differences(before: Names | None, after: Names) -> Iterator[NamespaceEvent]:
    """Yield what happened: first what went, then what is called otherwise, then what came."""
    for one_id, (name, entry) in (before or {}).items():
        if one_id not in after:
            yield NamespaceEvent("deleted", entry.kind, name, one_id)
    for one_id, (name, entry) in after.items():
        known = None if before is None else before.get(one_id)
        if known is not None and known[0] != name:
            yield NamespaceEvent("renamed", entry.kind, name, one_id, known[0])
        if known is not None and known[1].policy_changes != entry.policy_changes:
            yield NamespaceEvent("policy", entry.kind, name, one_id)
    for one_id, (name, entry) in after.items():
        if before is None:
            yield NamespaceEvent("present", entry.kind, name, one_id)
        elif one_id not in before:
            yield NamespaceEvent("created", entry.kind, name, one_id)


async def watch_namespace(
    catalog: Catalog, path: tuple[str, ...]
) -> AsyncGenerator[NamespaceEvent, None]:
    """Yield all that is there, then what happens, until the namespace is deleted. Raises StreamNotFound at first."""
    async with contextlib.aclosing(watched_changes(catalog, path)) as changes:
        async for events in changes:
            for event in events:
                yield event


async def watched_changes(
    catalog: Catalog, path: tuple[str, ...]
) -> AsyncGenerator[list[NamespaceEvent], None]:
    """Like `watch_namespace`, what was found together at a time: first all that is there, which may be nothing."""
    place = await catalog.place(path)
    watched = _Watched(catalog, path, tuple(level.id for level in place.levels))
    changed = asyncio.Event()
    watches: list[Watch] = []
    try:
        for where in watched.paths:
            watches.append(await catalog.records.watch(where, changed.set))
        is_first = True
        while not watched.is_gone:
            changed.clear()
            try:
                events = await watched.poll()
            except MetadataUnavailable:
                if is_first:
                    raise
                changed.set()
                await asyncio.sleep(jittered(AGAIN_S))
                continue
            if is_first and watched.is_gone:
                raise StreamNotFound(f"there is no namespace {label(path)}")
            is_first = False
            yield events
            if not watched.is_gone:
                await changed.wait()
    finally:
        for watch in watches:
            watch.close()


# --- all streams of a cluster ---------------------------------------------------------------------


ITEMS_AT_ONCE = 16_384
"""Of chains that are yielded together, some 8 MB: 200 chains have more only where some are long. One chain may have
more by itself."""
NAMESPACES_DEEP_MAX = 100
FEW_IDS = 2000
"""While parts that are listed at once have no more than that, more of them are, the next time."""
PARTS_MAX = 64


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """One stream, as it was read."""

    stream_id: str
    record: StreamRecord | None
    known: VersionedChain | None
    """Its chain."""
    policy: StreamPolicy | None
    """None: without a record, or where the patches do not go together."""
    trouble: Error | None = None
    """Why something of it could not be understood."""
    counted_in: tuple[str, ...] = ()
    """Ids of the namespaces above it that have a quota of bytes."""
    path: str = ""
    """Namespace and name; empty where that is not known."""


async def all_streams(records: RecordCalls) -> AsyncGenerator[list[StreamSnapshot], None]:
    """Yield all streams, those that are being deleted too, in lists. Raises MetadataUnavailable."""
    namespaces = Namespaces(records)
    async for stream_ids in ids_below(records, STREAMS):
        found = records.each(
            [
                path
                for stream_id in stream_ids
                for path in (stream_path(stream_id), chain_path(stream_id))
            ]
        )
        group = _Group[StreamSnapshot]()
        for stream_id in stream_ids:
            snapshot = await _found(namespaces, stream_id, await anext(found), await anext(found))
            for full in group.add(
                snapshot, 0 if snapshot.known is None else snapshot.known.chain.items
            ):
                yield full
        if group.rest:
            yield group.rest


async def chains_at_once(records: RecordCalls) -> AsyncGenerator[list[Chain], None]:
    """Yield the chains of all streams, in lists, without those that cannot be read. Raises MetadataUnavailable."""
    async for stream_ids in ids_below(records, STREAMS):
        group = _Group[Chain]()
        async for found in records.each([*map(chain_path, stream_ids)]):
            chain = None
            with suppress(StorageError):
                chain = None if found is None else get_chain(found.value)
            if chain is not None:
                for full in group.add(chain, chain.items):
                    yield full
        if group.rest:
            yield group.rest


class _Group(Generic[T]):
    """Chains, or what has one, that are yielded together."""

    def __init__(self) -> None:
        self.rest: list[T] = []
        self._items = 0

    def add(self, one: T, items: int) -> list[list[T]]:
        """Add one, with so many items of its chain; return the group before it, if that is full now."""
        full: list[list[T]] = []
        if self.rest and (len(self.rest) >= STREAMS_AT_ONCE or self._items + items > ITEMS_AT_ONCE):
            full, self.rest, self._items = [self.rest], [], 0
        self.rest.append(one)
        self._items += items
        return full


async def ids_below(records: RecordCalls, folder: str) -> AsyncGenerator[list[str], None]:
    """Yield the ids that lie in the parts of a folder, part by part; many parts at once where each has few."""
    parts, index, together = await records.children(folder), 0, 1
    while index < len(parts):
        some = parts[index : index + together]
        index += len(some)
        listed = await records.children_of([part_path(folder, part) for part in some])
        found = [identifier for ids in listed for identifier in ids]
        together = max(together // 2, 1) if len(found) > FEW_IDS else min(2 * together, PARTS_MAX)
        yield found


async def _found(
    namespaces: Namespaces,
    stream_id: str,
    raw: VersionedRecord | None,
    chain: VersionedRecord | None,
) -> StreamSnapshot:
    record: StreamRecord | None = None
    known: VersionedChain | None = None
    policy: StreamPolicy | None = None
    path, counted = "", tuple[str, ...]()
    trouble: Error | None = None
    try:
        if raw is not None:
            record = get(StreamRecord, raw.value, stream_path(stream_id))
            space = await namespaces.of(record.namespace)
            path, counted = "/".join([*space.path, record.name]), space.counted
            policy = effective([*space.patches, record.policy])
    except MetadataUnavailable:
        raise
    except Error as error:
        trouble, policy = _alone(error), None
    try:
        if chain is not None:
            known = VersionedChain(get_chain(chain.value), chain.version)
    except StorageError as error:
        trouble = trouble or _alone(error)
    return StreamSnapshot(stream_id, record, known, policy, trouble, counted, path)


def _alone(error: Error) -> Error:
    """Return an error without its traceback, which holds the record and what was unpacked of it."""
    return StorageError(str(error))


class _Space(NamedTuple):
    """What is known of one namespace; of each the outermost first."""

    path: tuple[str, ...] = ()
    patches: tuple[PolicyPatch, ...] = ()
    """Those that hold in it."""
    counted: tuple[str, ...] = ()
    """Ids of the namespaces with a quota of bytes: of this one and those above it."""


class Namespaces:
    """What holds in namespaces, each read once."""

    def __init__(self, records: RecordCalls) -> None:
        self._records = records
        self._known = {"": _Space()}

    async def of(self, namespace_id: str) -> _Space:
        """Return what holds in a namespace. Raises MetadataUnavailable, StorageError."""
        unknown: list[tuple[str, NamespaceRecord]] = []
        while namespace_id not in self._known and len(unknown) < NAMESPACES_DEEP_MAX:
            path = namespace_path(namespace_id)
            raw = await self._records.read(path)
            record = NamespaceRecord() if raw is None else get(NamespaceRecord, raw.value, path)
            unknown.append((namespace_id, record))
            namespace_id = record.parent
        if namespace_id not in self._known:
            raise StorageError(
                f"namespace {unknown[0][0]} lies in itself, or below {NAMESPACES_DEEP_MAX} others"
            )
        space = self._known[namespace_id]
        for one_id, record in reversed(unknown):
            space = self._known[one_id] = _Space(
                (*space.path, record.name) if record.name else space.path,
                (*space.patches, record.policy),
                (*space.counted, one_id) if record.policy.bytes_max else space.counted,
            )
        return space
