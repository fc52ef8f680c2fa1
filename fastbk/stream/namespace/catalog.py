"""The tree of namespaces and streams as one client knows it: names found, changes tried until they are decided.

Ids of names are remembered, and looked at again with each use: one request reads all of a path's records, whether what
was remembered still holds or not. Nothing here is trusted without the compare-and-set of a change (INV-S12).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

from fastbk.client.client import Client
from fastbk.client.metadata_calls import RecordCalls
from fastbk.errors import (
    Error,
    MetadataConflict,
    MetadataUnavailable,
    PolicyInvalid,
    QuotaExceeded,
    StorageError,
    StreamNotFound,
)
from fastbk.formats import LEVEL_FIRST
from fastbk.meta.records import Change, VersionedRecord
from fastbk.observe.library_log import LibraryLog
from fastbk.retry import Retry
from fastbk.stream.chain_store import ChainStore
from fastbk.stream.context import StreamContext
from fastbk.stream.namespace.tree import (
    ROOT_ID,
    EntryRecord,
    Level,
    NamespaceRecord,
    Place,
    StoredRecord,
    StreamRecord,
    Tree,
    UsageRecord,
    Versioned,
    get,
    get_or,
    label,
)
from fastbk.stream.paths import entry_path, namespace_path, stored_path, stream_path, usage_path
from fastbk.stream.policy import (
    PLACEMENT_FIELDS,
    PolicyPatch,
    StreamPolicy,
    checked_patch,
    effective,
    level_needed,
    named,
)

_log = LibraryLog("fastbk.stream")

T = TypeVar("T")
V = TypeVar("V")
AGAIN_S = 0.005
"""First pause before a change is tried again; doubled up to half a second, and drawn between that and half of it."""
AGAIN_S_MAX = 0.5
IDS_KEPT = 10_000
"""Names of namespaces whose ids are remembered."""
TRIES_MAX = 20
"""So often a path is read again because somebody renames or deletes in it just then."""


class Catalog:
    """All namespaces and streams of one client's cluster."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.records = client.records
        self.lock = asyncio.Lock()
        """Held over each change of names: changes of one client would only be in each other's way."""
        self._timeout_s = client.config.metadata_timeout
        self._failed_s = float("-inf")
        self._ids: dict[tuple[str, ...], str] = {}
        self._stores: WeakValueDictionary[str, ChainStore] = WeakValueDictionary()

    # --- policies -----------------------------------------------------------------------------------------------

    async def checked_policy(self, patch: PolicyPatch | None) -> PolicyPatch:
        """Return a patch that was given, or an empty one.

        Raises PolicyInvalid, also where it names what the cluster's format level lacks (INV-U1).
        """
        known = checked_patch(patch)
        needed = level_needed(known)
        if needed > LEVEL_FIRST and (level := await self.records.format_level()) < needed:
            fields = ", ".join(sorted(PLACEMENT_FIELDS & named(known).keys()))
            raise PolicyInvalid(
                f"policy: {fields}: that needs format level {needed}, and the cluster has {level}. Versions without"
                " that level cannot read such a policy. Upgrade them, then run `fastbk cluster finalize`"
            )
        return known

    # --- finding ------------------------------------------------------------------------------------------------

    async def place(self, path: tuple[str, ...], *names: str) -> Place:
        """Return a namespace, and what `names` stand for in it. Raises StreamNotFound, MetadataUnavailable.

        One request reads both: a name read after its namespace may be one in a namespace that has another path by then.
        """
        for _ in range(len(path) + TRIES_MAX):
            ids = self._known_ids(path)
            is_whole = len(ids) == len(path) + 1
            wanted = [
                *(namespace_path(identifier) for identifier in ids),
                *(usage_path(identifier) for identifier in ids),
                *(entry_path(above, name) for above, name in zip(ids, path, strict=False)),
                *(entry_path(ids[-1], name) for name in names if is_whole),
            ]
            found = await self.records.read_all(wanted)
            count = len(ids)
            entries = [
                _versioned(EntryRecord, raw, where, None)
                for raw, where in zip(found[2 * count :], wanted[2 * count :], strict=True)
            ]
            if not self._agrees(path, ids, entries) or not is_whole:
                continue
            levels = [
                _level(
                    one,
                    found[index],
                    found[count + index],
                    NamespaceRecord(ids[index - 1], path[index - 1])
                    if index
                    else NamespaceRecord(),
                    entries[index - 1] if index else Versioned(None, None),
                )
                for index, one in enumerate(ids)
            ]
            if any(level.record.version is None for level in levels[1:]):
                continue  # deleted between the reading of its name and of itself
            here = {
                name: Versioned(entry.value, entry.version)
                for name, entry in zip(names, entries[len(path) :], strict=True)
                if entry.value is not None
            }
            return Place(path, tuple(levels), here)
        raise StorageError(f"namespace {label(path)} has a name in metadata, and no record")

    def _known_ids(self, path: tuple[str, ...]) -> list[str]:
        ids = [ROOT_ID]
        for index in range(len(path)):
            known = self._ids.get(path[: index + 1])
            if known is None:
                break
            ids.append(known)
        return ids

    def _agrees(
        self,
        path: tuple[str, ...],
        ids: list[str],
        entries: Sequence[Versioned[EntryRecord | None]],
    ) -> bool:
        """Remember what the names stand for; return whether it is what was thought. Raises StreamNotFound."""
        for index in range(min(len(path), len(entries))):
            name, entry = path[: index + 1], entries[index].value
            if entry is None or entry.kind != "namespace":
                self._ids.pop(name, None)
                why = "create it first"
                if entry is not None:
                    why = f"{label(name)} is a stream"
                elif name != path:
                    why = f"{label(name)} is not there"
                raise StreamNotFound(f"there is no namespace {label(path)}: {why}")
            if index + 1 >= len(ids) or ids[index + 1] != entry.id:
                if len(self._ids) >= IDS_KEPT:
                    self._ids.clear()
                self._ids[name] = entry.id
                return False
        return True

    async def stream_record(
        self, stream_id: str, name: str, instead: StreamRecord | None = None
    ) -> Versioned[StreamRecord]:
        """Return a stream's record, or `instead` of one that nobody can read.

        Raises StreamNotFound where it was deleted, or is being deleted, StorageError.
        """
        where = stream_path(stream_id)
        raw = await self.records.read(where)
        record = None
        if raw is not None and instead is not None:
            record = get_or(StreamRecord, raw.value, where, instead)
        elif raw is not None:
            record = get(StreamRecord, raw.value, where)
        if raw is None or record is None or record.deleting:
            raise StreamNotFound(f"there is no stream {name}: it was deleted")
        return Versioned(record, raw.version)

    async def context(self, path: tuple[str, ...], name: str) -> StreamContext:
        """Return what works with the stream of this name. Raises StreamNotFound, MetadataUnavailable."""
        place = await self.place(path, name)
        full, found = label((*path, name)), place.entries.get(name)
        if found is None or found.value.kind != "stream":
            where = f" {label(path)}" if path else ""
            what = f"create it, or see `fastbk stream list{where}`"
            if found is not None:
                what = "that is a namespace"
            raise StreamNotFound(f"there is no stream {full}: {what}")
        return self.context_by_id(found.value.id, full, place)

    def context_by_id(self, stream_id: str, name: str, place: Place) -> StreamContext:
        """Return what works with a stream of this id in this namespace."""
        store = self._store_of(stream_id, name)
        above = tuple(level.id for level in place.levels)
        policy = PolicySource(self.records, stream_id, name, above)
        return StreamContext(self.client, store, name, policy, policy.check_room)

    def _store_of(self, stream_id: str, name: str) -> ChainStore:
        store = self._stores.get(stream_id)
        if store is None:
            store = ChainStore(self.records, stream_id, self._timeout_s, name)
            self._stores[stream_id] = store
        store.name = name
        return store

    def reading(self, stream_id: str, name: str) -> StreamContext:
        """Return what reads a stream of this id, wherever it is. It has no policy: nothing is written by it."""
        return StreamContext(self.client, self._store_of(stream_id, name), name)

    # --- changing -----------------------------------------------------------------------------------------------

    async def until_decided(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt` returns; call it again while somebody is faster, or nobody knows what became of it.

        It has to look whether what it wants is there already. Raises what it raises otherwise, and MetadataConflict
        or MetadataUnavailable when the time is over.
        """
        called_s = time.monotonic()
        async with self.lock:
            if self._failed_s > called_s and time.monotonic() > called_s + self._timeout_s:
                raise MetadataUnavailable(
                    "changes before this one waited in vain for the metadata store",
                    outcome="not_written",
                )
            retry = Retry(AGAIN_S, AGAIN_S_MAX, self._timeout_s)
            while True:
                try:
                    return await attempt()
                except (MetadataConflict, MetadataUnavailable) as error:
                    failed = error
                try:
                    pause_s = retry.pause_s(failed)
                except Error:
                    self._failed_s = time.monotonic()
                    raise
                await asyncio.sleep(pause_s)


class Tries:
    """The attempts at one change of names, of which at most one takes effect."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.may_have_done_it = False
        """Whether one may have taken effect although it failed: its answer was lost."""

    async def change(self, changes: Sequence[Change]) -> None:
        """Do all of it or nothing."""
        try:
            await self._catalog.records.change(*changes)
        except Error as error:
            self.may_have_done_it |= error.outcome != "not_written"
            raise


async def entries_at(
    records: RecordCalls, namespace_id: str, names: Sequence[str]
) -> dict[str, Versioned[EntryRecord]]:
    """Return what names in a namespace stand for, by name; those are left out that stand for nothing."""
    return await records_at(
        records, EntryRecord, {name: entry_path(namespace_id, name) for name in names}
    )


async def records_at(
    records: RecordCalls,
    kind: type[Tree],
    paths: Mapping[str, str],
    instead: Callable[[str], Tree] | None = None,
) -> dict[str, Versioned[Tree]]:
    """Return the records at these paths, by the keys given; those are left out that are not there.

    One that nobody can read is named, and left out, too (INV-M17). `instead`: returns by its key what stands for it.
    """
    there: dict[str, Versioned[Tree]] = {}
    found = records.each([*paths.values()])
    for key, path in paths.items():
        raw = await anext(found)
        if raw is not None:
            record = get_or(kind, raw.value, path, None if instead is None else instead(key))
            if record is not None:
                there[key] = Versioned(record, raw.version)
    return there


def _level(
    namespace_id: str,
    raw: VersionedRecord | None,
    usage: VersionedRecord | None,
    known: NamespaceRecord,
    entry: Versioned[EntryRecord | None],
) -> Level:
    """Return one namespace. `known`: what the tree says of it, whatever its record says.

    Counts that nobody can read begin anew with the next change.
    """
    where, fault, record = namespace_path(namespace_id), "", NamespaceRecord()
    if raw is not None:
        record = get_or(NamespaceRecord, raw.value, where, known)
        fault = (
            f"the record {where} cannot be read: `set` its policy anew" if record is known else ""
        )
    counts = UsageRecord()
    if usage is not None:
        counts = get_or(UsageRecord, usage.value, usage_path(namespace_id), counts)
    return Level(
        namespace_id,
        Versioned(record, None if raw is None else raw.version),
        Versioned(counts, None if usage is None else usage.version),
        entry,
        fault,
    )


def _versioned(
    kind: type[Tree], raw: VersionedRecord | None, where: str, default: V
) -> Versioned[Tree | V]:
    if raw is None:
        return Versioned(default, None)
    return Versioned(get(kind, raw.value, where), raw.version)


# --- the policy in force --------------------------------------------------------------------------
#
# What policy is in force for one stream: read when a segment is made, from memory while metadata is
# away.


class PolicySource:
    """One stream's; awaiting a call is one request to metadata.

    The patches of all namespaces above it are read together with the stream's own, each time: a segment costs several
    requests anyway, and a watch on thousands of streams would cost more than it saves. A namespace never moves to
    another one, so the way up is known for good.
    """

    def __init__(
        self, records: RecordCalls, stream_id: str, name: str, namespace_ids: tuple[str, ...]
    ) -> None:
        """`namespace_ids`: of the namespaces that it is in, the root first."""
        self._records = records
        self._name = name
        self._paths = [*map(namespace_path, namespace_ids), stream_path(stream_id)]
        self._ids = namespace_ids
        self._bounds: list[tuple[str, int, str]] = []
        self._refusal: QuotaExceeded | None = None
        self._last: StreamPolicy | None = None
        self._versions: list[int | None] = []
        self._kept_for: type[Error] | None = None

    async def __call__(self) -> StreamPolicy:
        """Return what holds for the next segment.

        While metadata is away, or policies of several namespaces cannot be read or do not go together, what held last.
        Raises MetadataUnavailable, StorageError and PolicyInvalid if nothing did yet, StreamNotFound when the stream
        was deleted.
        """
        try:
            policy = await self._read()
        except (MetadataUnavailable, PolicyInvalid, StorageError) as error:
            if self._last is None:
                raise
            # once: each try comes here, of thousands of streams
            if type(error) is not self._kept_for:
                self._kept_for = type(error)
                _log.warning("stream.policy_kept", stream=self._name, reason=str(error))
            return self._last
        self._kept_for = None
        return policy

    def check_room(self) -> None:
        """Raise QuotaExceeded if at the last call a namespace had as many bytes as it may: no new segment then."""
        if self._refusal is not None:
            raise self._refusal.copy()

    async def _check_quota(self) -> None:
        """Compare what the janitor has counted with the quotas: a request only where a namespace above has one."""
        refusal: QuotaExceeded | None = None
        paths = [stored_path(one_id) for one_id, _, _ in self._bounds]
        found = await self._records.read_all(paths) if paths else []
        for (_, allowed, space), where, raw in zip(self._bounds, paths, found, strict=True):
            there = (
                0
                if raw is None
                else get_or(StoredRecord, raw.value, where, StoredRecord()).size_bytes
            )
            if there >= allowed:
                refusal = QuotaExceeded(
                    f"{self._name}: namespace {space or '(the root)'} has {there:,} bytes of {allowed:,}: truncate or"
                    " delete streams, or raise bytes_max"
                )
        self._refusal = refusal

    async def _read(self) -> StreamPolicy:
        found = await self._records.read_all(self._paths)
        versions = [None if one is None else one.version for one in found]
        if self._last is not None and versions == self._versions:
            await self._check_quota()
            return self._last
        own = None if found[-1] is None else get(StreamRecord, found[-1].value, self._paths[-1])
        if own is None or own.deleting:
            raise StreamNotFound(f"there is no stream {self._name}: it was deleted")
        above = [
            NamespaceRecord() if one is None else get(NamespaceRecord, one.value, where)
            for one, where in zip(found[:-1], self._paths, strict=False)
        ]
        self._last = effective([*(one.policy for one in above), own.policy])
        names = [one.name for one in above]
        self._bounds = [
            (one_id, one.policy.bytes_max, "/".join(names[1 : index + 1]))
            for index, (one_id, one) in enumerate(zip(self._ids, above, strict=True))
            if one.policy.bytes_max
        ]
        self._versions = versions
        await self._check_quota()
        return self._last
