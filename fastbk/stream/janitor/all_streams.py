"""All streams of a cluster, read some hundreds at a time: record, chain, and the policy in force.

At any moment the ids of some parts of them are held in memory, of one in 256 where there are many streams, and the
records of some hundreds, but of no more chains than `ITEMS_AT_ONCE` says (INV-M18).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from fastbk.client.metadata_calls import RecordCalls
from fastbk.errors import Error, MetadataUnavailable, StorageError
from fastbk.meta.records import VersionedRecord
from fastbk.stream.chain.chain import Chain, get_chain
from fastbk.stream.chain.store import VersionedChain
from fastbk.stream.namespace.tree_records import NamespaceRecord, StreamRecord, get
from fastbk.stream.paths import STREAMS, chain_path, namespace_path, part_path, stream_path
from fastbk.stream.policy import PolicyPatch, StreamPolicy, effective

STREAMS_AT_ONCE = 200
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
            [path for one in stream_ids for path in (stream_path(one), chain_path(one))]
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
    parts, at, together = await records.children(folder), 0, 1
    while at < len(parts):
        some = parts[at : at + together]
        at += len(some)
        listed = await records.children_of([part_path(folder, part) for part in some])
        found = [one for ids in listed for one in ids]
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
