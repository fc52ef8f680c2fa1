"""A namespace: where streams are made and found, and what they inherit."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from fastbk.client.async_tools import Generated, raised_again
from fastbk.errors import (
    ConfigError,
    Error,
    MetadataConflict,
    NamespaceNotEmpty,
    PolicyInvalid,
    StorageError,
    StreamExists,
    StreamNotFound,
)
from fastbk.model.ledger import NAMESPACE_KEY
from fastbk.observe.library_log import LibraryLog
from fastbk.option_checks import check_options
from fastbk.stream.context import clock_us, gathered
from fastbk.stream.cursor.store import CursorPositions
from fastbk.stream.namespace.catalog import Catalog, Tries, records_at
from fastbk.stream.namespace.listing import (
    NamespaceEvent,
    StreamInfo,
    entries_of,
    list_streams,
    watch_namespace,
)
from fastbk.stream.namespace.stream_ranges import StreamRanges
from fastbk.stream.namespace.tree import (
    NO_PATCH,
    NamespaceRecord,
    Place,
    StoredRecord,
    StreamRecord,
    get_or,
    label,
    namespace_created,
    namespace_deleted,
    namespace_policy_set,
    namespace_renamed,
    patches,
    stream_renamed,
    streams_created,
    streams_unnamed,
)
from fastbk.stream.options import (
    AnyCursorOptions,
    AnyPatternReaderOptions,
    CursorOptions,
    PatternReaderOptions,
)
from fastbk.stream.paths import check_name, namespace_path, split_path, stored_path, stream_path
from fastbk.stream.policy import PolicyPatch, StreamPolicy, effective
from fastbk.stream.stream import Stream

if TYPE_CHECKING:
    from fastbk.client.client import Client
    from fastbk.client.ledger_writer import LedgerWriter
    from fastbk.model.ids import LedgerId
    from fastbk.placement.config import PlacementConfig
    from fastbk.stream.pattern.cursor import PatternCursor
    from fastbk.stream.pattern.reader import PatternReader, PatternStart
    from fastbk.stream.pattern.store import PatternCursorInfo
    from fastbk.stream.positions import AtTime
    from fastbk.stream.records import Gap

_log = LibraryLog("fastbk.stream")

STREAMS_AT_ONCE = 100
"""Created in one transaction of 300 records."""


class Namespace:
    """A namespace of one client's cluster, by its path; made by `client.namespace("tenant/app")`, without I/O.

    A handle stands for its path: when the namespace is renamed, it is found there no longer. Calls raise
    StreamNotFound where there is no such namespace, MetadataUnavailable (what was to change may have changed),
    ConfigError for a name that cannot be one.
    """

    def __init__(self, catalog: Catalog, path: str = "") -> None:
        """`path`: names with slashes between them; empty: the root, which is always there."""
        self._catalog = catalog
        self._path = split_path(path)

    @property
    def path(self) -> str:
        """Names from the root, with slashes between them; empty for the root."""
        return "/".join(self._path)

    @property
    def client(self) -> Client:
        """The client that made it."""
        return self._catalog.client

    async def namespace_id(self) -> str:
        """Return the id of the namespace that is at the path now. Raises StreamNotFound, MetadataUnavailable."""
        return (await self._catalog.place(self._path)).here.id

    def __repr__(self) -> str:
        return f"<Namespace {label(self._path)}>"

    def namespace(self, path: str) -> Namespace:
        """Return a namespace below this one. No I/O."""
        split_path(path)
        return Namespace(self._catalog, "/".join([*self._path, path]))

    def stream(self, name: str) -> Stream:
        """Return a stream of this namespace. No I/O."""
        return Stream(self._catalog, self._path, check_name(name))

    def stream_of_id(self, stream_id: str, name: str) -> Stream:
        """Return the stream of this id for reading, whatever has its name by now. No I/O.

        `name`: what it had in this namespace, as `StreamRange` has it with the id; `path` and messages show it.
        """
        context = self._catalog.reading(stream_id, label((*self._path, check_name(name))))
        return Stream(self._catalog, self._path, name, context)

    # --- the namespace itself -----------------------------------------------------------------------------------

    async def create(self, policy: PolicyPatch | None = None, *, exist_ok: bool = False) -> None:
        """Create the namespace, and those above it that are missing.

        Raises StreamExists; with `exist_ok` only where the name is a stream's, and then a namespace that is there
        keeps its policy. Raises PolicyInvalid.
        """
        for depth in range(1, len(self._path)):
            await self._create(self._path[:depth], NO_PATCH, exist_ok=True)
        await self._create(
            self._path, await self._catalog.checked_policy(policy), exist_ok=exist_ok
        )

    async def _create(self, path: tuple[str, ...], policy: PolicyPatch, *, exist_ok: bool) -> None:
        # a new id each time: an attempt may have made it, and somebody have deleted it
        tried: set[str] = set()

        async def attempt() -> None:
            if not path:
                if not exist_ok:
                    raise StreamExists("the root namespace is always there")
                return
            place = await self._catalog.place(path[:-1], path[-1])
            found = place.entries.get(path[-1])
            if found is None:
                effective([*patches(place), policy])
                namespace_id = new_id()
                tried.add(namespace_id)
                await self._catalog.records.change(
                    *namespace_created(place, path[-1], namespace_id, policy, clock_us())
                )
            elif found.value.kind == "stream" or (found.value.id not in tried and not exist_ok):
                raise StreamExists(f"there is a {found.value.kind} {label(path)} already")

        await self._catalog.until_decided(attempt)

    async def exists(self) -> bool:
        """Return whether there is such a namespace."""
        try:
            await self._catalog.place(self._path)
        except StreamNotFound:
            return False
        return True

    async def rename(self, name: str) -> Namespace:
        """Give the namespace another name in the one above it, and return it there. Raises StreamExists.

        Streams in it go on as they are, writers and readers with them.
        """
        new = (*self._path[:-1], check_name(name))
        seen: str | None = None
        tries = Tries(self._catalog)

        async def attempt() -> None:
            nonlocal seen
            if seen is not None and await self._was_renamed(seen):
                if tries.may_have_done_it:
                    return
                raise StreamNotFound(f"there is no namespace {label(self._path)}: it was renamed")
            place = await self._catalog.place(self._path)
            seen = seen or place.here.id
            if place.here.id != seen:
                raise StreamNotFound(f"there is no namespace {label(self._path)}: it was deleted")
            if new != self._path:
                if (await self._catalog.place(new[:-1], name)).entries:
                    raise StreamExists(f"the name {label(new)} is taken")
                await tries.change(namespace_renamed(place, name))

        await self._catalog.until_decided(attempt)
        return Namespace(self._catalog, "/".join(new))

    async def _was_renamed(self, namespace_id: str) -> bool:
        where = namespace_path(namespace_id)
        raw = await self._catalog.records.read(where)
        record = None if raw is None else get_or(NamespaceRecord, raw.value, where, None)
        return record is not None and record.name != self._path[-1]

    async def delete(self, *, recursive: bool = False) -> None:
        """Delete the namespace. Raises NamespaceNotEmpty, unless `recursive`: then all in it goes first.

        If that ends half-way, by a failure or because it was cancelled, the same call goes on with what is left.
        """
        if not self._path:
            raise ConfigError("the root namespace is always there: delete what is in it")
        await delete_namespace(self._catalog, self._path, recursive=recursive)

    # --- policies -----------------------------------------------------------------------------------------------

    async def policy(self) -> PolicyPatch:
        """Return what the namespace says itself; the rest it inherits. Raises StorageError: it cannot be read."""
        here = (await self._catalog.place(self._path)).here
        if here.fault:
            raise StorageError(f"the policy of {label(self._path)} is not known: {here.fault}")
        return here.record.value.policy

    async def set_policy(
        self, patch: PolicyPatch | None = None, *, inherit: Iterable[str] = ()
    ) -> None:
        """Change what `patch` names, and inherit the fields of `inherit` again. Streams follow at their next segment.

        Raises PolicyInvalid, also where a stream or namespace below would have one that cannot be.
        """
        fields, known = list(inherit), await self._catalog.checked_policy(patch)

        async def attempt() -> None:
            place = await self._catalog.place(self._path)
            before = place.here.record.value.policy
            after = before.changed(known).without(fields)
            if after != before or place.here.fault:
                await check_below(self._catalog, place, after)
                await self._catalog.records.change(*namespace_policy_set(place, after))

        await self._catalog.until_decided(attempt)

    async def effective_policy(self, stream: str | None = None) -> StreamPolicy:
        """Return what holds for the namespace, or for the next segment of one of its streams."""
        if stream is not None:
            return await self.stream(stream).effective_policy()
        return effective(patches(await self._catalog.place(self._path)))

    # --- streams ------------------------------------------------------------------------------------------------

    def spans(self) -> StreamRanges:
        """Return what looks at where many streams begin and end, again and again; paths are from the root. No I/O."""
        return StreamRanges(self._catalog)

    def marks(self, name: str, data: Mapping[str, int | str]) -> CursorPositions:
        """Return what moves the marks of cursors of one name, in streams by their paths from the root. No I/O."""
        return CursorPositions(self._catalog, name, data)

    async def create_stream(
        self, name: str, policy: PolicyPatch | None = None, *, exist_ok: bool = False
    ) -> Stream:
        """Create a stream. Raises StreamExists (with `exist_ok` one that is there is left as it is), QuotaExceeded."""
        (stream,) = await self.create_streams([name], policy, exist_ok=exist_ok)
        return stream

    async def create_streams(
        self, names: Sequence[str], policy: PolicyPatch | None = None, *, exist_ok: bool = False
    ) -> list[Stream]:
        """Create many streams, a hundred at a time: of each hundred all or none. Raises as `create_stream`."""
        every = list(dict.fromkeys(map(check_name, names)))
        known = await self._catalog.checked_policy(policy)
        for offset in range(0, len(every), STREAMS_AT_ONCE):
            some = every[offset : offset + STREAMS_AT_ONCE]
            await self._create_some(some, known, exist_ok=exist_ok)
        return [self.stream(name) for name in names]

    async def _create_some(
        self,
        names: Sequence[str],
        policy: PolicyPatch,
        *,
        exist_ok: bool,
        ids: Mapping[str, str] | None = None,
    ) -> None:
        tried: set[str] = set()  # new ids each time, as in `_create`
        given = ids or {}

        async def attempt() -> None:
            place = await self._catalog.place(self._path, *names)
            for name, found in place.entries.items():
                entry = found.value
                if entry.kind != "stream" or (entry.id not in tried and not exist_ok):
                    raise StreamExists(
                        f"there is a {entry.kind} {label((*self._path, name))} already"
                    )
            missing = {
                name: given.get(name) or new_id() for name in names if name not in place.entries
            }
            if missing:
                tried.update(missing.values())
                effective([*patches(place), policy])
                changes = streams_created(place, missing, policy, clock_us())
                await self._catalog.records.change(*changes)

        await self._catalog.until_decided(attempt)

    async def delete_stream(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a stream: its name at once, its data now or, where that fails, by the janitor. Raises StreamNotFound.

        Whoever writes or reads it is told StreamNotFound.
        """
        await self.delete_streams([name], missing_ok=missing_ok)

    async def delete_streams(self, names: Sequence[str], *, missing_ok: bool = False) -> None:
        """Delete many streams, as `delete_stream`; the names that are given go all or none."""
        wanted = list(dict.fromkeys(map(check_name, names)))
        if wanted:
            ids = await unname(self._catalog, self._path, wanted, missing_ok=missing_ok)
            await delete_data(self._catalog, list(ids.values()))

    async def rename_stream(self, old: str, new: str) -> Stream:
        """Give a stream another name in this namespace. Writers and readers go on. Raises StreamExists."""
        check_name(old), check_name(new)
        seen: str | None = None
        tries, full = Tries(self._catalog), label((*self._path, old))

        async def attempt() -> None:
            nonlocal seen
            if (
                seen is not None
                and (await self._catalog.stream_record(seen, full)).value.name != old
            ):
                if tries.may_have_done_it:
                    return
                raise StreamNotFound(f"there is no stream {full}: it was renamed")
            place = await self._catalog.place(self._path, old, new)
            entry = place.entries.get(old)
            if entry is None or entry.value.kind != "stream":
                raise StreamNotFound(f"there is no stream {full}")
            if entry.value.id != (seen or entry.value.id):
                raise StreamNotFound(f"there is no stream {full}: it was deleted")
            seen = entry.value.id
            if old == new:
                return
            if new in place.entries:
                raise StreamExists(f"the name {label((*self._path, new))} is taken")
            record = await self._catalog.stream_record(seen, full)
            await tries.change(stream_renamed(place, entry, record, new))

        await self._catalog.until_decided(attempt)
        return self.stream(new)

    # --- ledgers ------------------------------------------------------------------------------------------------

    async def create_ledger(
        self,
        ensemble: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: str | None = None,
        password: bytes = b"",
        metadata: Mapping[str, bytes] | None = None,
        *,
        explicit_ids: bool = False,
        deferred_sync: bool = False,
        placement: PlacementConfig | None = None,
        allow_missing_bookies: bool | None = None,
        publish: Literal["immediate", "piggyback"] = "piggyback",
        ledger_id: LedgerId | None = None,
    ) -> LedgerWriter:
        """Create a ledger of this namespace, and return its writer; see `Client.create_ledger`.

        Quorums, `digest` and `allow_missing_bookies` that are left out are those of the namespace's policy; with a
        `write_quorum` of its own a ledger has its majority as `ack_quorum`. The policy's placement holds for the
        ledger, `placement` narrows it (INV-P3). Retention and quotas are those of streams: a ledger stays until it is
        deleted.
        """
        policy = await self.effective_policy()
        wanted = placement or self._catalog.client.config.placement
        if ack_quorum is None and write_quorum is None:
            ack_quorum = policy.ack_quorum
        return await self._catalog.client.create_ledger(
            policy.ensemble if ensemble is None else ensemble,
            policy.write_quorum if write_quorum is None else write_quorum,
            ack_quorum,
            policy.digest if digest is None else digest,
            password,
            {**(metadata or {}), **({NAMESPACE_KEY: self.path.encode()} if self._path else {})},
            explicit_ids=explicit_ids,
            deferred_sync=deferred_sync,
            placement=policy.placement_for(wanted),
            allow_missing_bookies=policy.allow_missing_bookies
            if allow_missing_bookies is None
            else allow_missing_bookies,
            publish=publish,
            ledger_id=ledger_id,
        )

    # --- many streams as one ------------------------------------------------------------------------------------

    @overload
    def reader(
        self,
        pattern: str,
        start: PatternStart = ...,
        *,
        on_gap: Literal["raise"] = ...,
        **options: Unpack[PatternReaderOptions],
    ) -> PatternReader: ...

    @overload
    def reader(
        self,
        pattern: str,
        start: PatternStart = ...,
        *,
        on_gap: Literal["raise", "yield"],
        **options: Unpack[PatternReaderOptions],
    ) -> PatternReader[Gap]: ...

    def reader(
        self, pattern: str, start: PatternStart = "earliest", **options: Any
    ) -> PatternReader[Gap]:
        """Return a reader of all streams whose names match, such as "shop/*"; `async with` opens it.

        Options: those of `PatternReader`. Raises ConfigError.
        """
        from fastbk.stream.pattern.reader import PatternReader

        check_options(options, AnyPatternReaderOptions)
        return PatternReader(self._catalog, self._path, pattern, start, **options)

    @overload
    def cursor(
        self,
        pattern: str,
        name: str,
        start: Literal["earliest", "latest"] | AtTime = ...,
        *,
        on_gap: Literal["raise"] = ...,
        **options: Unpack[CursorOptions],
    ) -> PatternCursor: ...

    @overload
    def cursor(
        self,
        pattern: str,
        name: str,
        start: Literal["earliest", "latest"] | AtTime = ...,
        *,
        on_gap: Literal["raise", "yield"],
        **options: Unpack[CursorOptions],
    ) -> PatternCursor[Gap]: ...

    def cursor(
        self,
        pattern: str,
        name: str,
        start: Literal["earliest", "latest"] | AtTime = "earliest",
        **options: Any,
    ) -> PatternCursor[Gap]:
        """Return a durable cursor over all streams whose names match; `async with` makes it, or takes it over.

        Options: those of `PatternCursor`. Raises ConfigError.
        """
        from fastbk.stream.pattern.cursor import PatternCursor

        check_options(options, AnyCursorOptions)
        return PatternCursor(self._catalog, self._path, pattern, name, start, **options)

    async def pattern_cursors(self) -> list[PatternCursorInfo]:
        """Return the cursors of patterns in this namespace, by name. One that cannot be read has a `fault`."""
        from fastbk.stream.pattern.store import pattern_cursors_of

        return await pattern_cursors_of(
            self._catalog.records, (await self._catalog.place(self._path)).here.id
        )

    async def create_pattern_cursor(
        self,
        pattern: str,
        name: str,
        start: Literal["earliest", "latest"] | AtTime = "earliest",
        *,
        hold: bool = True,
        expire_after: float | None = None,
    ) -> PatternCursorInfo:
        """Make a cursor of a pattern that nobody holds yet; `cursor(pattern, name)` opens it, and has these options.

        Raises StreamExists where there is one, QuotaExceeded, ConfigError while the cluster's format level has none.
        """
        from fastbk.stream.cursor.store import checked_keeping
        from fastbk.stream.pattern.store import PatternCursorRequest, made_or_moved, split_pattern

        space, names = split_pattern(pattern)
        wish = PatternCursorRequest(names, start, *checked_keeping(hold, expire_after), is_new=True)
        return await made_or_moved(self._catalog, (*self._path, *space), name, wish)

    async def move_pattern_cursor(
        self, pattern: str, name: str, where: Literal["earliest", "latest"] | AtTime
    ) -> PatternCursorInfo:
        """Have a cursor of a pattern go on at `where` in all its streams; all from there on is delivered (again).

        Whoever holds it is fenced, and finds out when it next stores something. Its options and its map stay. Raises
        StreamNotFound if there is no such cursor, ConfigError if it has another pattern.
        """
        from fastbk.stream.pattern.store import PatternCursorRequest, made_or_moved, split_pattern

        space, names = split_pattern(pattern)
        wish = PatternCursorRequest(names, where, is_move=True)
        return await made_or_moved(self._catalog, (*self._path, *space), name, wish)

    async def delete_pattern_cursor(self, name: str) -> bool:
        """Delete a cursor of a pattern; whoever holds it finds itself fenced. Returns whether there was one."""
        from fastbk.stream.pattern.store import delete_pattern_cursor

        return await delete_pattern_cursor(
            self._catalog.records, (await self._catalog.place(self._path)).here.id, name
        )

    # --- looking ------------------------------------------------------------------------------------------------

    def streams(
        self, prefix: str = "", *, recursive: bool = False
    ) -> AsyncGenerator[StreamInfo, None]:
        """Yield the streams whose names begin with `prefix`, by name, with sizes.

        `recursive`: also those of namespaces below whose names begin with it. Streams that come or go meanwhile may be
        in it or not.
        """
        return Generated(list_streams(self._catalog, self._path, prefix, recursive=recursive))

    @raised_again
    async def namespaces(self, prefix: str = "") -> AsyncGenerator[Namespace, None]:
        """Yield the namespaces directly below, by name."""
        place = await self._catalog.place(self._path)
        async for entries in entries_of(self._catalog, place.here.id, prefix):
            for name, entry in entries:
                if entry.kind == "namespace":
                    yield self.namespace(name)

    async def stream_count(self) -> int:
        """Return how many streams there are in this namespace and below it."""
        return (await self._catalog.place(self._path)).here.usage.value.streams

    async def stored_bytes(self) -> int | None:
        """Return what a janitor has counted last for `bytes_max`; None: there is no quota, or no count yet."""
        place = await self._catalog.place(self._path)
        where = stored_path(place.here.id)
        raw = await self._catalog.records.read(where)
        if raw is None or not place.here.record.value.policy.bytes_max:
            return None
        stored = get_or(StoredRecord, raw.value, where, None)
        return None if stored is None else stored.size_bytes

    def watch(self) -> AsyncGenerator[NamespaceEvent, None]:
        """Yield all that is directly in the namespace as "present", then what happens to it, until it is deleted.

        Nothing is lost between the one and the other, nor while metadata is away. Close it (`aclosing`) to end it.
        """
        return Generated(watch_namespace(self._catalog, self._path))


async def restore_stream(namespace: Namespace, name: str, stream_id: str) -> Stream:
    """Make a stream whose records are lost anew, under the id that its ledgers name. Raises StreamExists."""
    ids = {check_name(name): stream_id}
    await namespace._create_some([name], NO_PATCH, exist_ok=False, ids=ids)
    return namespace.stream(name)


# --- many streams at once -------------------------------------------------------------------------
#
# What is done with many streams at once: names taken away, all of a namespace deleted, its policies
# checked.


NAMES_AT_ONCE = 50
"""Names in one change of names: a transaction of a few records each."""
DELETIONS_AT_ONCE = 8
PASSES_MAX = 10
"""So often a namespace is emptied anew because somebody creates streams in it meanwhile."""

# --- deletion -------------------------------------------------------------------------------------


async def unname(
    catalog: Catalog, path: tuple[str, ...], names: Sequence[str], *, missing_ok: bool = False
) -> dict[str, str]:
    """Take away the names of these streams, all or none; return their ids. Their data is to be deleted from now on.

    Raises StreamNotFound for a name that no stream has; with `missing_ok` it is passed over. MetadataOnHold.
    """
    await catalog.client.records.check_not_held()
    seen: dict[str, str] = {}

    async def attempt() -> dict[str, str]:
        place = await catalog.place(path, *names)
        versions: dict[str, int | None] = {}
        for name in names:
            entry = place.entries.get(name)
            if entry is not None and entry.value.kind == "stream":
                if entry.value.id == seen.setdefault(name, entry.value.id):
                    versions[name] = entry.version
            elif name not in seen and not missing_ok:
                raise StreamNotFound(f"there is no stream {label((*path, name))}")
        gone = [name for name in seen if name not in versions]
        for name in await _renamed(catalog, gone, seen):
            if not missing_ok:
                raise StreamNotFound(f"there is no stream {label((*path, name))}: it was renamed")
            del seen[name]
        if versions:
            paths = {name: stream_path(seen[name]) for name in versions}
            here = place.here.id  # of a record that nobody can read the rest is not needed any more
            records = await records_at(
                catalog.records, StreamRecord, paths, lambda name: StreamRecord(here, name)
            )
            for name in versions.keys() - records.keys():
                raise MetadataConflict(
                    f"record {paths[name]} is gone, and a name still stands for it"
                )
            found = {name: (versions[name], seen[name], records[name]) for name in versions}
            await catalog.records.change(*streams_unnamed(place, found))
        return seen

    return await catalog.until_decided(attempt)


async def _renamed(catalog: Catalog, names: Sequence[str], ids: dict[str, str]) -> list[str]:
    """Return those of these names that stood for a stream which has another one now, or will have.

    Of the others the streams are deleted: by an attempt of ours whose answer was lost, or by somebody else, which is
    the same.
    """
    paths = {name: stream_path(ids[name]) for name in names}
    records = await records_at(catalog.records, StreamRecord, paths)
    return [name for name, record in records.items() if not record.value.deleting]


async def delete_data(catalog: Catalog, ids: Sequence[str]) -> None:
    """Delete what streams without names hold; what cannot be done now is left to the janitor."""
    from fastbk.stream.deletion import delete_stream

    async def delete(stream_id: str) -> None:
        try:
            await delete_stream(catalog.client, stream_id)
        except Error as error:
            _log.warning("stream.deletion_waits", stream=stream_id, reason=str(error))

    await gathered(delete, ids, DELETIONS_AT_ONCE)


async def delete_namespace(catalog: Catalog, path: tuple[str, ...], *, recursive: bool) -> None:
    """Delete a namespace; with `recursive` all that is in it first.

    Raises StreamNotFound, NamespaceNotEmpty, MetadataOnHold.
    """
    from fastbk.stream.deletion import delete_coordination
    from fastbk.stream.pattern.store import delete_all_of

    await catalog.client.records.check_not_held()
    for _ in range(PASSES_MAX):
        if recursive:
            await _empty(catalog, path)
        try:
            gone_id = await _delete_empty(catalog, path)
        except NamespaceNotEmpty:
            if not recursive:
                raise
        else:
            with suppress(Error):  # a janitor deletes what is left of them
                await delete_all_of(catalog.records, gone_id)
                await delete_coordination(catalog.records, gone_id)
            return
    raise NamespaceNotEmpty(f"somebody goes on creating streams in {label(path)}", retryable=True)


async def _empty(catalog: Catalog, path: tuple[str, ...]) -> None:
    """Delete what is in a namespace now; what has got another name meanwhile is left to the next pass."""
    from fastbk.stream.object_records import delete_objects

    place = await catalog.place(path)
    await delete_objects(catalog, path)
    async for entries in entries_of(catalog, place.here.id):
        for name, entry in entries:
            if entry.kind == "namespace":
                with suppress(StreamNotFound):  # somebody else has deleted or renamed it meanwhile
                    await delete_namespace(catalog, (*path, name), recursive=True)
        names = [name for name, entry in entries if entry.kind == "stream"]
        for offset in range(0, len(names), NAMES_AT_ONCE):
            some = names[offset : offset + NAMES_AT_ONCE]
            ids = await unname(catalog, path, some, missing_ok=True)
            await delete_data(catalog, list(ids.values()))


async def _delete_empty(catalog: Catalog, path: tuple[str, ...]) -> str:
    """Delete a namespace; return its id."""
    from fastbk.stream.object_records import counts_of, names_deleted

    seen: str | None = None

    async def attempt() -> str:
        nonlocal seen
        if seen is not None:
            raw = await catalog.records.read(namespace_path(seen))
            if raw is None:
                return seen  # an attempt of ours did it, or somebody else, which is the same
            record = get_or(NamespaceRecord, raw.value, namespace_path(seen), None)
            if record is not None and record.name != path[-1]:
                raise StreamNotFound(f"there is no namespace {label(path)}: it was renamed")
        place = await catalog.place(path)
        if seen is not None and place.here.id != seen:
            raise MetadataConflict(f"another namespace is {label(path)} just now")
        if await catalog.records.children(namespace_path(place.here.id)):
            raise NamespaceNotEmpty(f"{label(path)} has streams or namespaces in it")
        counts, version = await counts_of(catalog.records, place.here.id)
        if counts.objects:
            raise NamespaceNotEmpty(f"{label(path)} has {counts.objects:,} objects in it")
        seen = place.here.id
        # Who gives an object a name meanwhile changes the counts, or makes them with the usage (INV-O5).
        await catalog.records.change(
            *names_deleted(place.here.id, version), *namespace_deleted(place)
        )
        return seen

    return await catalog.until_decided(attempt)


# --- policies -------------------------------------------------------------------------------------


async def check_below(catalog: Catalog, place: Place, policy: PolicyPatch) -> None:
    """Raise PolicyInvalid if with `policy` here something in the namespace, or below it, had one that cannot be."""
    base = _checked([*patches(replace(place, levels=place.levels[:-1])), policy], place.path)
    waiting = [(place.path, place.here.id, base)]
    while waiting:
        path, namespace_id, above = waiting.pop()
        async for entries in entries_of(catalog, namespace_id):
            paths = [
                stream_path(one.id) if one.kind == "stream" else namespace_path(one.id)
                for _, one in entries
            ]
            found = await catalog.records.read_all(paths)
            for (name, one), where, raw in zip(entries, paths, found, strict=True):
                if raw is None:
                    continue
                full = (*path, name)
                if one.kind == "stream":
                    patch = get_or(StreamRecord, raw.value, where, StreamRecord("", "")).policy
                    if patch != NO_PATCH:
                        _checked([patch], full, above)
                else:
                    patch = get_or(NamespaceRecord, raw.value, where, NamespaceRecord()).policy
                    waiting.append((full, one.id, _checked([patch], full, above)))


def _checked(
    found: Sequence[PolicyPatch], path: tuple[str, ...], base: StreamPolicy | None = None
) -> StreamPolicy:
    try:
        return effective(found) if base is None else effective(found, base)
    except PolicyInvalid as error:
        raise PolicyInvalid(f"for {label(path)}: {error}") from error


def new_id() -> str:
    """Return an id that nothing has had."""
    return secrets.token_hex(8)
