"""The tree of namespaces and streams: its records of metadata with their JSON, and its changes. Pure (INV-S12).

A change is the records that change together. Whatever changes a namespace's names also writes its usage record by
compare-and-set: who creates something in a namespace that is being deleted, or is as full as its quota allows, finds
out in the same transaction. Each change names the versions of the usage records that it was decided by: of two changes
of one namespace's names one wins, and the other is decided anew.

Decision 71.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from fastbk.errors import QuotaExceeded, StorageError, StreamExists
from fastbk.meta.records import REASON_CHARACTERS_MAX, Change, bad_record
from fastbk.stream.chain import Chain, put_chain
from fastbk.stream.paths import (
    NAME_BYTES_MAX,
    NAMES_MAX,
    chain_path,
    entry_path,
    namespace_path,
    stream_path,
    usage_path,
)
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import Count, TimeUs

ROOT_ID = "root"
NO_PATCH = PolicyPatch()
Kind = Literal["namespace", "stream"]
Id = Annotated[str, msgspec.Meta(max_length=64)]
Name = Annotated[str, msgspec.Meta(max_length=NAME_BYTES_MAX)]


class NamespaceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One namespace."""

    parent: Id = ""
    """Id of the namespace it is in, for good; empty: it is the root."""
    name: Name = ""
    policy: PolicyPatch = NO_PATCH
    created_us: TimeUs = 0


class EntryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a name in a namespace stands for."""

    kind: Kind
    id: Id
    policy_changes: Count = 0
    """Rises with each change of its policy patch, so that a look at the names tells of it."""


class UsageRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is counted of a namespace."""

    streams: Count = 0
    """In it and in the namespaces below it."""
    changes: Count = 0
    """Rises with each change of what is directly in it: names, and policies."""
    names: Count = 0
    """Directly in it."""


class StoredRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a janitor has counted of a namespace with a quota of bytes."""

    size_bytes: Count = 0
    """Of data in all ended segments in it and below, one copy."""
    counted_us: TimeUs = 0
    """When that count began, by the janitor's clock."""


class StreamRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One stream; its segments are in its chain."""

    namespace: Id
    name: Name
    policy: PolicyPatch = NO_PATCH
    created_us: TimeUs = 0
    deleting: bool = False
    """It has no name any more, and its data is being deleted."""


V = TypeVar("V")
Tree = TypeVar("Tree", NamespaceRecord, EntryRecord, UsageRecord, StoredRecord, StreamRecord)


def put(record: NamespaceRecord | EntryRecord | UsageRecord | StoredRecord | StreamRecord) -> bytes:
    """Return a record's bytes. Raises StorageError for what `get` would refuse (INV-S14)."""
    raw = msgspec.json.encode(record)
    try:
        msgspec.json.decode(raw, type=type(record))
    except ValueError as error:
        raise StorageError(f"a record would be one that nobody reads: {error}") from error
    return raw


def get(kind: type[Tree], raw: bytes, path: str) -> Tree:
    """Return what `put` wrote. Raises StorageError."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError) as error:
        # A decoder repeats what it found, of any length.
        reason = f"record {path} is damaged, or of a newer fastbk: {error}"
        raise StorageError(reason[:REASON_CHARACTERS_MAX]) from error


def get_or(kind: type[Tree], raw: bytes, path: str, instead: V) -> Tree | V:
    """Return what `put` wrote, `instead` of what nobody can read: that is named, and stops nothing else (INV-M17)."""
    try:
        return get(kind, raw, path)
    except StorageError as error:
        bad_record(path, error)
        return instead


# --- a namespace as it was read -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Versioned(Generic[V]):
    """A record as it was read; version None: there is none, and the value is what holds then."""

    value: V
    version: int | None


@dataclass(frozen=True, slots=True)
class Level:
    """One namespace of a path."""

    id: str
    record: Versioned[NamespaceRecord]
    usage: Versioned[UsageRecord]
    entry: Versioned[EntryRecord | None]
    """Its name in the namespace above; none for the root."""
    fault: str = ""
    """Why its record cannot be read: then it has parent and name by the tree, and its policy is not known."""


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace as it was found: its levels from the root down, and what some names in it stood for then."""

    path: tuple[str, ...]
    levels: tuple[Level, ...]
    entries: Mapping[str, Versioned[EntryRecord]]
    """By name; those are left out that stood for nothing."""

    @property
    def here(self) -> Level:
        """The namespace itself."""
        return self.levels[-1]


def label(path: Sequence[str]) -> str:
    """Return a path of names as messages write it."""
    return "/".join(path) or "the root namespace"


# --- changes --------------------------------------------------------------------------------------


def _usage(level: Level, streams: int, changes: int, names: int = 0) -> Change:
    usage = level.usage.value
    # Counts that nobody could read began anew: they are too low then, and never below 0.
    after = UsageRecord(
        max(0, usage.streams + streams), usage.changes + changes, max(0, usage.names + names)
    )
    return Change(usage_path(level.id), put(after), level.usage.version)


def touched(place: Place, streams: int = 0, namespaces: int = 0) -> list[Change]:
    """Something changed directly in the namespace, and so many streams and namespaces came (or went, below 0).

    Raises QuotaExceeded where more names would be in it than can be listed.
    """
    names = streams + namespaces
    if names > 0 and place.here.usage.value.names + names > NAMES_MAX:
        raise QuotaExceeded(
            f"{label(place.path)} has {place.here.usage.value.names:,} names, of {NAMES_MAX:,} that a namespace may"
            " have directly in it: make namespaces below it for more"
        )
    above = [_usage(level, streams, 0) for level in place.levels[:-1]] if streams else []
    return [*above, _usage(place.here, streams, 1, names)]


def check_quota(place: Place, more: int) -> None:
    """Raise QuotaExceeded if one of the namespaces may not have so many streams more."""
    for index, level in enumerate(place.levels):
        allowed, there = level.record.value.policy.streams_max or 0, level.usage.value.streams
        if 0 < allowed < there + more:
            raise QuotaExceeded(
                f"{label(place.path[:index])} has {there} streams of {allowed}: delete some, or raise streams_max"
            )


def patches(place: Place) -> list[PolicyPatch]:
    """Return the policy patches from the root down to the namespace. Raises StorageError: one cannot be read."""
    for index, level in enumerate(place.levels):
        if level.fault:
            raise StorageError(
                f"the policy of {label(place.path[:index])} is not known: {level.fault}"
            )
    return [level.record.value.policy for level in place.levels]


# --- streams --------------------------------------------------------------------------------------


def streams_created(
    place: Place, ids: Mapping[str, str], policy: PolicyPatch, now_us: int
) -> list[Change]:
    """New streams, by name with their ids. Raises QuotaExceeded."""
    check_quota(place, len(ids))
    changes = touched(place, len(ids))
    for name, stream_id in ids.items():
        record = StreamRecord(place.here.id, name, policy, now_us)
        changes += [
            Change(entry_path(place.here.id, name), put(EntryRecord("stream", stream_id))),
            Change(stream_path(stream_id), put(record)),
            Change(chain_path(stream_id), put_chain(Chain(stream_id))),
        ]
    return changes


def streams_unnamed(
    place: Place, found: Mapping[str, tuple[int | None, str, Versioned[StreamRecord]]]
) -> list[Change]:
    """Streams lose their names, and their data is to be deleted. By name: version of the name, id, record."""
    changes = touched(place, -len(found))
    for name, (version, stream_id, record) in found.items():
        after = replace(record.value, deleting=True)
        changes += [
            Change(entry_path(place.here.id, name), None, version),
            Change(stream_path(stream_id), put(after), record.version),
        ]
    return changes


def stream_renamed(
    place: Place, entry: Versioned[EntryRecord], record: Versioned[StreamRecord], new: str
) -> list[Change]:
    """A stream has another name in the same namespace."""
    where = stream_path(entry.value.id)
    return [
        *touched(place),
        Change(entry_path(place.here.id, record.value.name), None, entry.version),
        Change(entry_path(place.here.id, new), put(entry.value)),
        Change(where, put(replace(record.value, name=new)), record.version),
    ]


def stream_policy_set(
    place: Place,
    entry: Versioned[EntryRecord],
    record: Versioned[StreamRecord],
    policy: PolicyPatch,
) -> list[Change]:
    """A stream has another patch."""
    where = stream_path(entry.value.id)
    counted = replace(entry.value, policy_changes=entry.value.policy_changes + 1)
    return [
        *touched(place),
        Change(entry_path(place.here.id, record.value.name), put(counted), entry.version),
        Change(where, put(replace(record.value, policy=policy)), record.version),
    ]


# --- namespaces -----------------------------------------------------------------------------------


def namespace_created(
    place: Place, name: str, namespace_id: str, policy: PolicyPatch, now_us: int
) -> list[Change]:
    """A new namespace in `place`."""
    record = NamespaceRecord(place.here.id, name, policy, now_us)
    return [
        *touched(place, namespaces=1),
        Change(entry_path(place.here.id, name), put(EntryRecord("namespace", namespace_id))),
        Change(namespace_path(namespace_id), put(record)),
        Change(usage_path(namespace_id), put(UsageRecord())),
    ]


def _above(place: Place) -> Place:
    return Place(place.path[:-1], place.levels[:-1], {})


def namespace_deleted(place: Place) -> list[Change]:
    """A namespace that has nothing in it any more goes; the store refuses it where it still has."""
    above, here = _above(place), place.here
    return [
        *touched(above, namespaces=-1),
        Change(usage_path(here.id), None, here.usage.version),
        Change(entry_path(above.here.id, place.path[-1]), None, here.entry.version),
        Change(namespace_path(here.id), None, here.record.version),
    ]


def namespace_renamed(place: Place, new: str) -> list[Change]:
    """A namespace has another name in the same one."""
    above, here, entry = _above(place), place.here, place.here.entry.value
    if entry is None:
        raise StreamExists("the root namespace has no name that could be changed")
    return [
        *touched(above),
        Change(entry_path(above.here.id, place.path[-1]), None, here.entry.version),
        Change(entry_path(above.here.id, new), put(entry)),
        Change(
            namespace_path(here.id), put(replace(here.record.value, name=new)), here.record.version
        ),
    ]


def namespace_policy_set(place: Place, policy: PolicyPatch) -> list[Change]:
    """A namespace has another patch; those who watch the one above are told, too."""
    here, entry = place.here, place.here.entry.value
    changes = [
        Change(
            namespace_path(here.id),
            put(replace(here.record.value, policy=policy)),
            here.record.version,
        )
    ]
    if entry is not None:
        above = _above(place)
        counted = replace(entry, policy_changes=entry.policy_changes + 1)
        changes += [
            *touched(above),
            Change(entry_path(above.here.id, place.path[-1]), put(counted), here.entry.version),
        ]
    return changes
