"""Records of coordination in metadata: read, created, changed, deleted and listed, of one namespace.

Every change names the version that it was made from. A change whose answer was lost is told by its key, or its
number, when the record is read again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from fastbk.coordination.records import (
    NAMES_MAX,
    AnyRecord,
    NamesRecord,
    get_names,
    get_record,
    kind_of,
    put_names,
    put_record,
)
from fastbk.errors import (
    ConfigError,
    Error,
    MetadataConflict,
    MetadataUnavailable,
    QuotaExceeded,
    StorageError,
    StreamNotFound,
)
from fastbk.formats import COORDINATION, level_of
from fastbk.meta.records import BadRecord, Change
from fastbk.meta.records import decoded as read_or_bad
from fastbk.retry import Retry
from fastbk.stream.namespace.tree import ROOT_ID
from fastbk.stream.paths import check_name, coordination_path, decode, encode, namespace_path

if TYPE_CHECKING:
    from fastbk.client.metadata_calls import RecordCalls
    from fastbk.stream.namespace.namespace import Namespace

T = TypeVar("T")
R = TypeVar("R", bound=AnyRecord)
AGAIN_S = 0.005
"""First pause before a change is tried again; doubled up to half a second."""
AGAIN_S_MAX = 0.5


def new_key() -> str:
    """Return a key that no other change has."""
    return secrets.token_hex(8)


def check_level(namespace: str, level: int) -> None:
    """Raise ConfigError if a cluster of this format level has no records of coordination (INV-U1)."""
    needed = level_of(COORDINATION)
    if level < needed:
        raise ConfigError(
            f"namespace {namespace or '(the root)'} gets no lease, counter or configuration: that needs format level"
            f" {needed}, and the cluster has {level}. Versions without that level cannot read these records. Upgrade"
            " them, then run `fastbk cluster finalize`"
        )


def _readable(path: str, decode: Callable[[bytes], T], raw: bytes) -> T:
    """Return what a record says. Raises StorageError with what to do where nobody can read it."""
    try:
        return decode(raw)
    except StorageError as error:
        raise BadRecord(path, str(error)).error() from error


@dataclass(frozen=True, slots=True)
class Stored(Generic[R]):
    """A record as it was read, and the version that a change of it has to name. `record` None: there is none."""

    record: R | None
    version: int | None
    names: NamesRecord
    names_version: int | None

    @property
    def floor(self) -> int:
        """Above it a new record's number lies (INV-K1)."""
        return self.names.floor


class NamedRecord(Generic[R]):
    """The record of one name in a namespace, of one kind."""

    def __init__(self, namespace: Namespace, name: str, kind: type[R]) -> None:
        """No I/O. Raises ConfigError for what is no name."""
        self.name = check_name(name)
        self.namespace = namespace
        self.kind = kind
        self._id: str | None = None

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"{self.kind.__struct_config__.tag} {self.namespace.path}/{self.name}"

    @property
    def records(self) -> RecordCalls:
        """The records of the namespace's cluster."""
        return self.namespace.client.records

    @property
    def timeout_s(self) -> float:
        """For how long a change is tried."""
        return self.namespace.client.config.metadata_timeout

    def renew_place(self) -> None:
        """Find the namespace anew at the next call: it may have been deleted, and made again."""
        self._id = None

    async def place(self) -> tuple[str, str]:
        """Return the paths of the count of names and of the record. Raises StreamNotFound, MetadataUnavailable."""
        if self._id is None:
            self._id = await self.namespace.namespace_id()
        folder = coordination_path(self._id)
        return folder, f"{folder}/{encode(self.name)}"

    async def read(self) -> Stored[R]:
        """Return the record. Raises ConfigError for one of another kind, StorageError, MetadataUnavailable."""
        folder, path = await self.place()
        names, raw = await self.records.read_all([folder, path])
        record = None if raw is None else _readable(path, get_record, raw.value)
        # Only a new name needs the count: one that nobody can read stops no other.
        counted = NamesRecord()
        if names is not None and raw is None:
            counted = _readable(folder, get_names, names.value)
        if record is not None and not isinstance(record, self.kind):
            raise ConfigError(f"{self.namespace.path}/{self.name} is a {kind_of(record)} already")
        return Stored(
            record,
            None if raw is None else raw.version,
            counted,
            None if names is None else names.version,
        )

    async def change(self, stored: Stored[R], record: R) -> int:
        """Replace or create the record; return its version.

        Raises MetadataConflict, MetadataUnavailable (it may have happened), QuotaExceeded, ConfigError, StreamNotFound.
        """
        folder, path = await self.place()
        change = Change(path, put_record(record), stored.version)
        if stored.version is not None:
            (version,) = await self.records.change(change)
            return version
        if stored.names.names >= NAMES_MAX:
            raise QuotaExceeded(
                f"namespace {self.namespace.path or '(the root)'} has {stored.names.names:,} leases, counters and"
                f" configurations, of {NAMES_MAX:,}: delete those that nobody uses (`fastbk coordination delete`)"
            )
        check_level(self.namespace.path, await self.records.format_level())
        counted = NamesRecord(stored.names.names + 1, stored.names.floor)
        _, version = await self.records.change(
            Change(folder, put_names(counted), stored.names_version), change
        )
        if self._id != ROOT_ID and await self.records.read(namespace_path(self._id or "")) is None:
            with suppress(Error):  # a janitor deletes it otherwise
                await self.records.change(Change(path, None, version))
            raise StreamNotFound(f"there is no namespace {self.namespace.path}: it was deleted")
        return version

    async def follow_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back on the loop after each change of the record; return what ends that."""
        _, path = await self.place()
        return (await self.records.watch(path, callback)).close

    def retry(self) -> Retry:
        """Return the pauses between the attempts at one change."""
        return Retry(AGAIN_S, AGAIN_S_MAX, self.timeout_s)


@dataclass(frozen=True, slots=True)
class NameInfo:
    """One name of a namespace. `fault`: why its record cannot be read; "": it can."""

    name: str
    record: AnyRecord | None
    version: int
    fault: str = ""


async def list_names(namespace: Namespace) -> list[NameInfo]:
    """Return a namespace's leases, counters and configurations, by name. Raises StreamNotFound, MetadataUnavailable."""
    records, folder = namespace.client.records, coordination_path(await namespace.namespace_id())
    parts = await records.children(folder)
    stored = records.each([f"{folder}/{part}" for part in parts])
    infos = []
    for part in parts:
        raw = await anext(stored)
        if raw is None:
            continue
        record = read_or_bad(f"{folder}/{part}", lambda: get_record(raw.value))  # noqa: B023
        if isinstance(record, BadRecord):
            infos.append(NameInfo(decode(part), None, raw.version, record.reason))
        else:
            infos.append(NameInfo(decode(part), record, raw.version))
    return infos


async def delete_name(namespace: Namespace, name: str) -> bool:
    """Delete a name; return whether there was one. Its holder finds out at its next renewal.

    The floor keeps its number, so that one made anew goes on with higher tokens (INV-K1). Raises MetadataUnavailable.
    """
    records, folder = namespace.client.records, coordination_path(await namespace.namespace_id())
    path = f"{folder}/{encode(check_name(name))}"
    retry = Retry(AGAIN_S, AGAIN_S_MAX, namespace.client.config.metadata_timeout)
    while True:
        try:
            counted, raw = await records.read_all([folder, path])
            if raw is None:
                return False
            number = _readable(path, get_record, raw.value).number
            names = NamesRecord(1)
            if counted is not None:
                names = _readable(folder, get_names, counted.value)
            after = NamesRecord(max(names.names - 1, 0), max(names.floor, number))
            await records.change(
                Change(path, None, raw.version),
                Change(folder, put_names(after), None if counted is None else counted.version),
            )
        except (MetadataConflict, MetadataUnavailable) as error:
            failed = error
        else:
            return True
        await asyncio.sleep(retry.pause_s(failed))
