"""What happens in a namespace, told in order and without losing anything between a listing and what follows.

Names are compared with what was told before, whenever the count of changes in the namespace's usage record has risen;
a listing counts whole only if that count was the same before and after it. Where names change faster than they can be
listed, a listing is not one moment's: then a name that it lacks is told as deleted only if the record of what it stood
for says so, for ids are never used again. Several changes may be told as one: what was created and deleted in between
is not told of.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Literal

from fastbk.errors import MetadataUnavailable, StreamNotFound
from fastbk.meta.api import Watch
from fastbk.retry import jittered
from fastbk.stream.namespace.catalog import Catalog, label
from fastbk.stream.namespace.listing import entries_of
from fastbk.stream.namespace.tree_records import (
    ROOT_ID,
    EntryRecord,
    Kind,
    NamespaceRecord,
    StreamRecord,
    UsageRecord,
    get_or,
)
from fastbk.stream.paths import namespace_path, stream_path, usage_path
from fastbk.stream.policy import PolicyPatch

AGAIN_S = 0.5
"""Pause while metadata is away."""
LISTINGS_MAX = 10
"""So often names are listed again because they changed meanwhile; then what is certain of it is told."""

Names = dict[str, tuple[str, EntryRecord]]
"""By id: name, and what stands there."""


@dataclass(frozen=True, slots=True)
class NamespaceEvent:
    """One change. Events of a name may come in another order than they happened, those of an id do not."""

    kind: Literal["present", "created", "deleted", "renamed", "policy"]
    """"present": it was there when the watch began. "policy": its own; of the watched namespace inherited ones, too."""
    what: Kind
    name: str
    """Of the stream or namespace in the watched namespace; of itself its path."""
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
            changes = (
                -1
            )  # the next look, which the latest change has asked for already, lists again
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
