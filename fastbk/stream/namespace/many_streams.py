"""What is done with many streams at once: names taken away, all of a namespace deleted, its policies checked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from fastbk.errors import Error, MetadataConflict, NamespaceNotEmpty, PolicyInvalid, StreamNotFound
from fastbk.observe.library_log import LibraryLog
from fastbk.stream.context import gathered
from fastbk.stream.namespace.catalog import Catalog, Place, label, records_at
from fastbk.stream.namespace.listing import entries_of
from fastbk.stream.namespace.tree_changes import namespace_deleted, patches, streams_unnamed
from fastbk.stream.namespace.tree_records import (
    NO_PATCH,
    NamespaceRecord,
    StreamRecord,
    get_or,
)
from fastbk.stream.paths import namespace_path, stream_path
from fastbk.stream.policy import PolicyPatch, StreamPolicy, effective

_log = LibraryLog("fastbk.stream")

STREAMS_AT_ONCE = 50
"""Of one change of names: a transaction of a few records each."""
DELETIONS_AT_ONCE = 8
PASSES_MAX = 10
"""So often a namespace is emptied anew because somebody creates streams in it meanwhile."""

# --- deletion ---------------------------------------------------------------------------------------------------


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
    found = await records_at(catalog.records, StreamRecord, paths)
    return [name for name, record in found.items() if not record.value.deleting]


async def delete_data(catalog: Catalog, ids: Sequence[str]) -> None:
    """Delete what streams without names hold; what cannot be done now is left to the janitor."""
    from fastbk.stream.janitor.stream_deletion import delete_stream

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
            return
    raise NamespaceNotEmpty(f"somebody goes on creating streams in {label(path)}", retryable=True)


async def _empty(catalog: Catalog, path: tuple[str, ...]) -> None:
    """Delete what is in a namespace now; what has got another name meanwhile is left to the next pass."""
    place = await catalog.place(path)
    async for entries in entries_of(catalog, place.here.id):
        for name, entry in entries:
            if entry.kind == "namespace":
                with suppress(StreamNotFound):  # somebody else has deleted or renamed it meanwhile
                    await delete_namespace(catalog, (*path, name), recursive=True)
        names = [name for name, entry in entries if entry.kind == "stream"]
        for at in range(0, len(names), STREAMS_AT_ONCE):
            some = names[at : at + STREAMS_AT_ONCE]
            ids = await unname(catalog, path, some, missing_ok=True)
            await delete_data(catalog, list(ids.values()))


async def _delete_empty(catalog: Catalog, path: tuple[str, ...]) -> str:
    """Delete a namespace; return its id."""
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
        seen = place.here.id
        await catalog.records.change(*namespace_deleted(place))
        return seen

    return await catalog.until_decided(attempt)


# --- policies ---------------------------------------------------------------------------------------------------


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
