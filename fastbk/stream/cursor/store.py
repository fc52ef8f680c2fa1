"""Cursors in metadata: one record each, listed, changed by its holder alone, deleted with its ledgers.

A holder is known by what it drew when it opened the cursor. Only openings and deletions change a record that has
another holder; so a change that loses against one's own earlier change, whose answer was lost, is simply repeated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from fastbk.errors import (
    ConfigError,
    CursorFenced,
    MetadataConflict,
    MetadataUnavailable,
    QuotaExceeded,
    StorageError,
    WrongType,
)
from fastbk.meta.records import BadRecord, Change, decoded
from fastbk.model.ledger import CURSOR_KEY
from fastbk.stream.cursor.state import CursorRecord, CursorState, Data, get_record, put_record
from fastbk.stream.paths import cursors_path
from fastbk.stream.positions import DLSN

if TYPE_CHECKING:
    from fastbk.client.client import Client
    from fastbk.client.record_calls import RecordCalls

Held = TypeVar("Held", bound="HeldRecord")
NAME_BYTES_MAX = 80
"""Of a cursor's name in UTF-8: what is not plain becomes three characters each in the record's name."""
CURSORS_MAX = 1000
"""Of one stream. They are listed by one answer, and a janitor reads them all where they hold data."""
_UNREADABLE = CursorRecord(CursorState())
TRIES_MAX = 8


@dataclass(frozen=True, slots=True)
class CursorInfo:
    """A cursor, as its record says. While it is flushed often its state is up to half a minute later than this."""

    name: str
    mark: DLSN
    """Every record before it is done."""
    mark_seq: int
    """The number of the first record that is not done; -1 while none was seen."""
    ranges: int
    """Ranges done behind the mark."""
    packed_data: bytes = dataclasses.field(repr=False)
    """The user's map, by MessagePack: as a dict it takes twenty times the memory (INV-M18)."""
    holds: bool
    """Whether retention keeps what is not done."""
    expires_at_us: int
    """When it may be deleted if nobody uses it, in µs since 1970; 0: never."""
    used_at_us: int
    """By its holder, as far as the record says."""
    moved_at_us: int
    """When the state that the record has was made: its mark was not moved since then."""
    created_us: int
    epoch: int
    holder: str
    """Who has opened it last: a hint for people."""
    gaps: int
    gap_records: int
    is_deleting: bool
    """Its deletion has begun: it holds nothing, and `delete_cursor` goes on with it."""
    ledgers: tuple[int, ...]
    """All ledgers that are named by it."""
    version: int
    """Of its record."""
    fault: str = ""
    """Why its record cannot be read; "": it can. It holds all that it may hold then, until it is deleted."""
    pattern: str = ""
    """Of the streams that it reads beside this one; "": it is this stream's alone."""

    @property
    def label(self) -> str:
        """Its name, with its pattern if it has one: a pattern's cursor and a stream's may have the same."""
        return f"{self.pattern} {self.name}" if self.pattern else self.name

    @property
    def data(self) -> Data:
        """The user's map; unpacked by each call."""
        return cast("Data", msgspec.msgpack.decode(self.packed_data))

    def is_expired(self, now_us: int) -> bool:
        """Whether nobody has used it for as long as it said."""
        return 0 < self.expires_at_us <= now_us


def path_of(stream_id: str, name: str) -> str:
    """Return where a cursor is. Raises ConfigError for what is no name."""
    return f"{cursors_path(stream_id)}/{part_of(name)}"


def part_of(name: str) -> str:
    """Return a cursor's name as the last part of a path. Raises ConfigError for what is no name."""
    if not isinstance(name, str):
        raise WrongType(f"{name!r} is no name of a cursor: it is text")
    if not name or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
        raise ConfigError(f"{name!r} is no name of a cursor: 1 to {NAME_BYTES_MAX} bytes of text")
    # "." and ".." cannot be names of records, so what begins with a dot is written in another way.
    quoted = quote(name, safe="@:+=~-_.")
    return "%2E" + quoted[1:] if quoted[0] == "." else quoted


def check_count(stream: str, count: int) -> None:
    """Raise QuotaExceeded if a stream that has so many cursors may not get another one (INV-B1).

    Only who makes a cursor checks it: those that are there go on, however many they are.
    """
    if count >= CURSORS_MAX:
        raise QuotaExceeded(
            f"stream {stream} has {count:,} cursors, and a new one needs fewer than {CURSORS_MAX:,}: delete cursors"
            f" that nobody uses (`fastbk stream cursors {stream}` lists them, `--delete CURSOR` deletes one)"
        )


def info_of(name: str, record: CursorRecord, version: int) -> CursorInfo:
    """Return what a record says."""
    state = record.state
    return CursorInfo(
        name=name,
        mark=state.mark,
        mark_seq=state.mark_seq,
        ranges=len(state.firsts),
        packed_data=msgspec.msgpack.encode(state.data),
        holds=record.holds and not record.is_deleting,
        expires_at_us=record.expires_at_us,
        used_at_us=record.used_at_us,
        moved_at_us=state.time_us,
        created_us=record.created_us,
        epoch=state.epoch,
        holder=record.holder,
        gaps=state.gaps,
        gap_records=state.gap_records,
        is_deleting=record.is_deleting,
        ledgers=record.ledgers,
        version=version,
    )


async def cursors_of(records: RecordCalls, stream_id: str) -> list[CursorInfo]:
    """Return a stream's cursors, by name; one whose record cannot be read has a `fault`. Raises MetadataUnavailable."""
    folder = cursors_path(stream_id)
    names = await records.children(folder)
    found = records.each([f"{folder}/{name}" for name in names])
    infos: list[CursorInfo] = []
    for name in names:
        one = await anext(found)
        if one is not None:
            record = decoded(f"{folder}/{name}", lambda: get_record(one.value))  # noqa: B023
            if isinstance(record, BadRecord):
                unknown = info_of(unquote(name), _UNREADABLE, one.version)
                infos.append(dataclasses.replace(unknown, fault=record.reason))
            else:
                infos.append(info_of(unquote(name), record, one.version))
    return infos


def of_cursor(name: str) -> dict[str, bytes | None]:
    """Return what the custom metadata of a cursor's ledgers has."""
    return {CURSOR_KEY: name.encode()}


async def delete_cursor(
    client: Client, stream_id: str, name: str, *, expected: CursorInfo | None = None
) -> bool:
    """Delete a cursor with its ledgers; return whether there was one. Repeatable after a crash at any step.

    Whoever holds it finds itself fenced. `expected`: only if its record is still as it was listed, so that a cursor
    that is used again after all is not taken for an expired one.
    """
    path = path_of(stream_id, name)
    await client.records.check_not_held()
    for _ in range(TRIES_MAX):
        found = await client.records.read(path)
        if found is None:
            return False
        held = found.version
        try:
            record = get_record(found.value)
        except StorageError:
            if expected is not None and expected.version != held:
                return False
            # Its ledgers are not known: they go with the stream, as no record names them any more.
            try:
                await client.records.change(Change(path, None, held))
            except MetadataConflict:
                continue
            return True
        if not record.is_deleting and expected is not None and expected.version != held:
            return False
        try:
            if not record.is_deleting:
                # Fences the holder first: it must not take a state for kept that goes with its ledger.
                epoch = replace(record.state, epoch=record.state.epoch + 1)
                record = replace(record, state=epoch, holder="", is_deleting=True)
                (held,) = await client.records.change(Change(path, put_record(record), held))
            for ledger_id in record.ledgers:
                await client.records.retire_ledger_id(ledger_id, stream_id, of_cursor(name))
            await client.records.change(Change(path, None, held))
            return True
        except MetadataConflict:
            continue
    raise MetadataUnavailable(f"cursor {name}: others change it again and again", retryable=True)


class HeldRecord(Protocol):
    """The record of a cursor of one stream, or of a pattern of streams."""

    @property
    def holder(self) -> str:
        """Who has it."""

    @property
    def epoch(self) -> int:
        """Of that holder."""

    @property
    def is_deleting(self) -> bool:
        """Whether its deletion has begun."""


class CursorStore(Generic[Held]):
    """The record of a cursor that is held.

    Attributes:
        record: as it was last written.
    """

    def __init__(
        self,
        records: RecordCalls,
        path: str,
        name: str,
        record: Held,
        version: int,
        put: Callable[[Held], bytes],
        get: Callable[[bytes], Held],
    ) -> None:
        """`name`: with its stream's, for messages. `put`, `get`: the record's bytes, and back."""
        self.record = record
        self._records = records
        self._path = path
        self._name = name
        self._version = version
        self._put = put
        self._get = get

    @property
    def version(self) -> int:
        """Of the record, as it was last written."""
        return self._version

    async def write(self, record: Held) -> None:
        """Replace the record (INV-S10: of this holder only).

        Raises CursorFenced, MetadataOnHold: nothing was replaced; MetadataUnavailable: it may be.
        """
        await self._records.check_not_held()
        for _ in range(TRIES_MAX):
            try:
                change = Change(self._path, self._put(record), self._version)
                (self._version,) = await self._records.change(change)
                self.record = record
                return
            except MetadataConflict:
                found = await self._records.read(self._path)
            if found is None:
                raise self._fenced("deleted")
            there = self._get(found.value)
            if there.holder != record.holder:
                raise self._fenced(_fate(there))
            self._version = found.version
        raise MetadataUnavailable(f"cursor {self._name}: its record changes again and again")

    def _fenced(self, fate: str) -> CursorFenced:
        return CursorFenced(
            f"cursor {self._name} was {fate}. What was acknowledged here and not stored is delivered again. A"
            " cursor has one holder: open it again only where this process is to be the one"
        )


def _fate(record: HeldRecord) -> str:
    if record.is_deleting:
        return "deleted"
    return f"opened by {record.holder} (epoch {record.epoch})"
