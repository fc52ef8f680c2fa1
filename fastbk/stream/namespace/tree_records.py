"""The tree of namespaces and streams as records of metadata: what they say, and their JSON. Pure.

Whatever changes a namespace's names also writes its usage record by compare-and-set: who creates something in a
namespace that is being deleted, or is as full as its quota allows, finds out in the same transaction (INV-S12).
"""

from __future__ import annotations

import secrets
from typing import Annotated, Literal, TypeVar

import msgspec

from fastbk.errors import StorageError
from fastbk.meta.records import REASON_CHARACTERS_MAX, bad_record
from fastbk.stream.paths import NAME_BYTES_MAX
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


def new_id() -> str:
    """Return an id that nothing has had."""
    return secrets.token_hex(8)
