"""Cursors in metadata: a record each, and for states that are many a ledger of its own; how one is taken over.

Records are listed, changed by their holder alone, and deleted with their ledgers.

A holder is known by what it drew when it opened the cursor. Only openings and deletions change a record that has
another holder; so a change that loses against one's own earlier change, whose answer was lost, is simply repeated.

Taking a cursor over fences its former holder, finds what it kept, and begins a new epoch (INV-S10). What the former
holder was told is kept is in the record, or in the ledger that the record names, which is fenced first. A ledger that
cannot be read now makes this fail, and not go back to the record's older state.

Decision 133.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from fastbk.client.client import Client
from fastbk.client.ledger_writer import LedgerWriter
from fastbk.errors import (
    ConfigError,
    CursorFenced,
    Error,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    QuotaExceeded,
    StorageError,
    StreamExists,
    StreamNotFound,
    WrongType,
)
from fastbk.meta.records import BadRecord, Change, VersionedRecord, decoded
from fastbk.model.ledger import CURSOR_KEY
from fastbk.observe.library_log import LibraryLog
from fastbk.option_checks import check_type
from fastbk.retry import Retry, jittered
from fastbk.stream.context import StreamContext, clock_us, gathered
from fastbk.stream.cursor.state import (
    DOOMED_MAX,
    NONE,
    CursorAcks,
    CursorRecord,
    CursorState,
    Data,
    check_data,
    get_record,
    get_state,
    put_record,
    put_state,
)
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.opening import create_ledger, new_owner
from fastbk.stream.paths import cursors_path, split_path
from fastbk.stream.positions import DLSN, FIRST, AtSeq, Start
from fastbk.stream.reader.search import (
    find_key,
    first_from,
    has_no_records_before,
    is_truncated,
    key_of,
    position_behind,
    resolve,
    tail_position,
    truncated,
)

if TYPE_CHECKING:
    from fastbk.client.metadata_calls import RecordCalls


_log = LibraryLog("fastbk.stream.cursor")

Held = TypeVar("Held", bound="HeldRecord")
NAME_BYTES_MAX = 80
"""Maximum bytes of a cursor's name in UTF-8: what is not plain becomes three characters each in the record's name."""
CURSORS_MAX = 1000
"""Maximum cursors of one stream. They are listed by one answer, and a janitor reads them all where they hold data."""
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
    """When its holder used it, as far as the record says."""
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
    """Version of its record."""
    fault: str = ""
    """Why its record cannot be read; "": it can. It holds all that it may hold then, until it is deleted."""
    pattern: str = ""
    """Pattern of the streams that it reads beside this one; "": it is this stream's alone."""

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
        """Epoch of that holder."""

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
        """Version of the record, as it was last written."""
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


# --- where states are kept ------------------------------------------------------------------------
#
# Where a cursor's states are kept: in its record of metadata, or, while they are many, in a ledger
# of its own.
#
# The record names the place of the latest state (INV-S10), and a record names each ledger of states
# (INV-S8). README.md, "Where states are stored", has the formats.


RECORD_RATE_PER_S = 2.0
"""States that may go to the record for good; beyond it, and a burst, a ledger is made."""
RECORD_BURST = 5.0
RECORD_PAUSE_S = 0.1
"""Pause between states that go to the record where there is no ledger to be had."""
LEDGER_AGAIN_S = 30.0
"""After a ledger has failed, none is tried for so long."""
KEEP_ALIVE_S = 30.0
"""While states go to a ledger, the record is renewed so often: retention goes by it."""


class StateStorage:
    """One holder's. One call at a time.

    Attributes:
        serial: of the last state that was made.
    """

    def __init__(
        self, context: StreamContext, name: str, store: CursorStore[CursorRecord], acks: CursorAcks
    ) -> None:
        self.serial = store.record.state.serial
        self._context = context
        self._name = name
        self._store = store
        self._acks = acks
        self._epoch = store.record.state.epoch
        self._ledger: CursorLedger | None = None
        self._reserved = NONE
        self._doomed = list(store.record.doomed)
        self._ended: list[CursorLedger] = []
        self._entries_before = 0
        self._loop = asyncio.get_running_loop()
        self._tokens = RECORD_BURST
        self._tokens_at_s = self._renewed_at_s = self._loop.time()
        self._no_ledger_until_s = 0.0

    def _state(self) -> CursorState:
        self.serial += 1
        return self._acks.state(self.serial, self._epoch, clock_us())

    async def keep(self) -> int:
        """Keep the state as it is now; return the count of changes that are in it.

        Raises CursorFenced; anything else: nobody knows whether it is kept, and another call tries again.
        """
        changes, state = self._acks.changes, self._state()
        if self._ledger is not None:
            try:
                await self._ledger.append(state)
                return changes
            except Error as error:
                _log.warning("cursor.ledger_failed", cursor=self._label, reason=str(error))
                self._leave_ledger()
        await self._spend_token()
        await self._write(state)
        return changes

    @property
    def _label(self) -> str:
        return f"{self._context.name}/{self._name}"

    # --- the record -----------------------------------------------------------------------------------------------

    async def _spend_token(self) -> None:
        now_s = self._loop.time()
        grown = (now_s - self._tokens_at_s) * RECORD_RATE_PER_S
        self._tokens = min(RECORD_BURST, self._tokens + grown) - 1
        self._tokens_at_s = now_s
        if self._tokens < -RECORD_BURST:
            self._tokens = -RECORD_BURST
            await asyncio.sleep(RECORD_PAUSE_S)

    async def _write(self, state: CursorState) -> None:
        record: CursorRecord = replace(
            self._store.record,
            state=state,
            ledger=NONE if self._ledger is None else self._ledger.ledger_id,
            reserved=self._reserved,
            doomed=tuple(self._doomed),
            used_at_us=max(self._store.record.used_at_us, state.time_us),
        )
        await self._store.write(record)
        self._renewed_at_s = self._loop.time()

    def _doom(self, ledger: CursorLedger) -> None:
        self._doomed.append(ledger.ledger_id)
        self._ended.append(ledger)

    def _leave_ledger(self) -> None:
        if self._ledger is not None:
            self._doom(self._ledger)
            self._ledger = None
            self._no_ledger_until_s = self._loop.time() + jittered(LEDGER_AGAIN_S)

    # --- what is due beside ---------------------------------------------------------------------------------------

    def renew_in_s(self) -> float | None:
        """Return in how many seconds `tend` has to be called, even if nothing is to be kept; None: not at all."""
        expire_s = self._store.record.expire_after_s
        pause_s = KEEP_ALIVE_S if self._ledger is not None else None
        if expire_s > 0:
            pause_s = min(KEEP_ALIVE_S, expire_s / 4)
        if pause_s is None:
            return None
        return max(0.0, self._renewed_at_s + pause_s - self._loop.time())

    async def tend(self) -> None:
        """Renew the record where it is time, change to another ledger or none, delete what is not needed.

        Raises CursorFenced; other troubles wait for the next call.
        """
        try:
            if self.renew_in_s() == 0.0:
                await self._renew()
            if self._wants_ledger():
                await self._next_ledger()
            await self._clean()
        except CursorFenced:
            raise
        except Error as error:
            self._no_ledger_until_s = self._loop.time() + jittered(LEDGER_AGAIN_S)
            self._renewed_at_s = self._loop.time()
            _log.warning("cursor.upkeep_waits", cursor=self._label, reason=str(error))

    async def _renew(self) -> None:
        ledger = self._ledger
        if ledger is not None:
            # Back to the record, where it is enough.
            recent = ledger.entries - self._entries_before
            self._entries_before = ledger.entries
            if recent <= (self._loop.time() - self._renewed_at_s) * RECORD_RATE_PER_S / 2:
                self._doom(ledger)
                self._ledger = None
        await self._write(self._state())

    def _wants_ledger(self) -> bool:
        if self._loop.time() < self._no_ledger_until_s or len(self._doomed) >= DOOMED_MAX:
            return False
        if self._ledger is not None:
            return self._ledger.entries >= ENTRIES_MAX
        return self._tokens < 1

    async def _next_ledger(self) -> None:
        """Have a new ledger; the former one, if any, keeps what comes until the record names the new one."""
        self._reserved = await self._context.client.records.draw_ledger_id()
        try:
            await self._write(self._state())
            policy = await self._context.policy()
            made = CursorLedger(
                await create_ledger(self._context, policy, self._reserved, cursor=self._name)
            )
        except Error:
            self._doomed.append(self._reserved)
            raise
        finally:
            self._reserved = NONE
        former, self._ledger, self._entries_before = self._ledger, made, 0
        if former is not None:
            self._doom(former)
        try:
            await self._write(self._state())
        except Error:
            # Which of the two the record names is not known: the next state goes to the record, and says that neither.
            self._leave_ledger()
            raise

    async def _clean(self) -> None:
        """Delete ledgers that the record says are doomed; the next change of the record forgets them."""
        ended, self._ended = self._ended, []
        for ledger in ended:
            await ledger.close()
        for ledger_id in self._store.record.doomed:
            if ledger_id in self._doomed:
                await self._context.client.records.retire_ledger_id(
                    ledger_id, self._context.stream_id, of_cursor(self._name)
                )
                self._doomed.remove(ledger_id)

    async def close(self, is_dirty: bool) -> None:
        """Bring the state back to the record, and delete all ledgers. Raises CursorFenced.

        Raises anything else only where it is not known whether the state is kept.
        """
        if self._ledger is not None and is_dirty:
            with suppress(Error):
                await self._ledger.append(self._state())
                is_dirty = False
        try:
            await self._leave_all(is_dirty)
        except Error as error:
            if is_dirty or isinstance(error, CursorFenced):
                raise
            _log.info("cursor.upkeep_waits", cursor=self._label, reason=str(error))

    async def _leave_all(self, is_dirty: bool) -> None:
        if self._ledger is not None:
            self._doom(self._ledger)
            self._ledger = None
            is_dirty = True
        if is_dirty:
            await self._write(self._state())
        await self._clean()
        if tuple(self._doomed) != self._store.record.doomed:
            await self._write(self._state())


# --- the ledger -----------------------------------------------------------------------------------

APPEND_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
ENTRIES_MAX = 50_000
"""Then another one takes its place."""


class CursorLedger:
    """The writer of a cursor's ledger: whole states, appended; of a fenced ledger the last one counts (INV-S10).

    Attributes:
        entries: states that were appended.
    """

    def __init__(self, writer: LedgerWriter) -> None:
        self.ledger_id = writer.ledger_id
        self.entries = 0
        self._writer = writer

    async def append(self, state: CursorState) -> None:
        """Keep a state: on the ack quorum's disks when this returns. What it raises ends the ledger."""
        await self._writer.append(put_state(state), timeout=APPEND_TIMEOUT_S)
        self.entries += 1

    async def close(self) -> None:
        """End the writer; the ledger is to be deleted, so it does not matter how far it gets."""
        with suppress(Error):
            await self._writer.close(timeout=CLOSE_TIMEOUT_S)


async def last_state(client: Client, ledger_id: int) -> CursorState | None:
    """Fence the ledger, so that nothing more is acknowledged to its writer; return its last state, if it has any.

    Raises NoSuchLedger, and what recovery and reads raise.
    """
    async with await client.open_ledger(ledger_id, recovery=True) as reader:
        last = reader.metadata.last_entry_id
        if last is None or last < 0:
            return None
        (entry,) = [one async for one in reader.read(last, last)]
        return get_state(entry.data)


# --- taking a cursor over -------------------------------------------------------------------------


OPEN_TIMEOUT_S = 30.0
AGAIN_S = 0.01
AGAIN_S_MAX = 0.5


def checked_keeping(hold: bool, expire_after: float | None) -> tuple[bool, float]:
    """Return whether a cursor holds data, and the seconds without a holder after which it is deleted, 0: never.

    By one rule for every way in, since both are kept in its record. Raises ConfigError.
    """
    check_type("hold", hold, bool)
    check_type("expire_after", expire_after, float | None)
    if expire_after is not None and not 1 <= expire_after <= 1e9:
        raise ConfigError("expire_after must be from 1 to 1e9 seconds, or None")
    return hold, float(expire_after or 0.0)


@dataclass(frozen=True, slots=True)
class CursorRequest:
    """What an opening says about its cursor."""

    start: Start = "earliest"
    """Where a cursor begins that is new."""
    raises: bool = True
    """Whether a new cursor whose start was truncated is an error, or begins there, so that its holder gets a Gap."""
    holds: bool = True
    expire_after_s: float = 0.0
    is_new: bool = False
    """Whether a cursor that is there already is an error."""
    mark: tuple[DLSN, int] | None = None
    """Where a cursor that is there goes on, with the number of that record, in place of its own mark; what it was
    opened with stays. None: it goes on at its mark."""


async def take_over(
    context: StreamContext, name: str, wish: CursorRequest
) -> CursorStore[CursorRecord]:
    """Make the cursor, or take it over; return its record, which nobody else changes from now on.

    Tried anew for half a minute while others change it, or metadata does not answer. Raises StreamNotFound,
    StreamExists, PositionTruncated, QuotaExceeded, MetadataOnHold, what the ledger's recovery raises, and the last
    trouble with metadata.
    """
    path, holder = path_of(context.stream_id, name), new_owner()
    retry = Retry(AGAIN_S, AGAIN_S_MAX, OPEN_TIMEOUT_S)
    records = context.client.records
    await records.check_not_held()
    while True:
        try:
            found = await records.read(path)
            if found is not None and get_record(found.value).holder == holder:
                # The answer to our own change was lost.
                return _store(context, name, get_record(found.value), found.version)
            if found is not None and get_record(found.value).is_deleting:
                await delete_cursor(context.client, context.stream_id, name)
                found = None
            _check_is_wanted(context, name, wish, is_there=found is not None)
            if found is None:
                check_count(
                    context.name, len(await records.children(cursors_path(context.stream_id)))
                )
            record = replace(await _record(context, path, name, found, wish), holder=holder)
            change = Change(path, put_record(record), None if found is None else found.version)
            (version,) = await records.change(change)
            if found is None:
                await _check_stream(context, path, version)
            return _store(context, name, record, version)
        except (MetadataConflict, MetadataUnavailable) as error:
            failed: Error = error
        await asyncio.sleep(retry.pause_s(failed))


def _check_is_wanted(
    context: StreamContext, name: str, wish: CursorRequest, *, is_there: bool
) -> None:
    if is_there and wish.is_new:
        raise StreamExists(f"{context.name} has a cursor {name} already")
    if not is_there and wish.mark is not None:
        raise StreamNotFound(f"{context.name} has no cursor {name}")


def _store(
    context: StreamContext, name: str, record: CursorRecord, version: int
) -> CursorStore[CursorRecord]:
    path, label = path_of(context.stream_id, name), f"{context.name}/{name}"
    return CursorStore(context.client.records, path, label, record, version, put_record, get_record)


async def _record(
    context: StreamContext, path: str, name: str, found: VersionedRecord | None, wish: CursorRequest
) -> CursorRecord:
    now_us = clock_us()
    if found is None:
        mark, seq = await first_mark(context, wish.start, raises=wish.raises)
        record = CursorRecord(CursorState(1, 1, mark, seq, time_us=now_us), created_us=now_us)
    else:
        former = get_record(found.value)
        try:
            state = await _state_of(context, former)
        except Error as error:
            now = await context.client.records.read(path)
            if now is None or now.version != found.version:
                raise MetadataConflict(f"cursor {path} was changed by somebody else") from error
            if not isinstance(error, NotEnoughBookies):
                raise
            raise NotEnoughBookies(
                f"cursor {context.name}/{name}: the ledger with its last state cannot be read. Open it again when its"
                " bookies are back. `delete_cursor` gives up what it has acknowledged, and then a new one begins at a"
                f" place of your choice: {error}",
                ledger_id=former.ledger,
                replicas=error.replicas,
            ) from error
        record = replace(
            former,
            state=replace(state, epoch=former.state.epoch + 1, time_us=now_us),
            ledger=NONE,
            reserved=NONE,
            doomed=former.ledgers,
        )
        if wish.mark is not None:
            return replace(record, state=_moved(record.state, *wish.mark), used_at_us=now_us)
    return replace(record, holds=wish.holds, expire_after_s=wish.expire_after_s, used_at_us=now_us)


def _moved(state: CursorState, mark: DLSN, mark_seq: int) -> CursorState:
    """Return a state of a higher serial that begins there: nothing behind the mark is done."""
    return replace(
        state,
        serial=state.serial + 1,
        mark=mark,
        mark_seq=mark_seq,
        firsts=(),
        ends=(),
        behinds=(),
    )


async def _state_of(context: StreamContext, former: CursorRecord) -> CursorState:
    """Return the latest state that was kept; its ledger's writer is fenced."""
    state = former.state
    if former.ledger == NONE:
        return state
    try:
        other = await last_state(context.client, former.ledger)
    except NoSuchLedger:
        # It was there before the record named it: somebody deleted it. Was it one who opened the cursor just now, our
        # change of the record will be refused; else what the record has is all that is left.
        _log.warning("cursor.ledger_missing", stream=context.name, ledger_id=former.ledger)
        return state
    return state if other is None or other.serial <= state.serial else other


async def first_mark(context: StreamContext, start: Start, *, raises: bool) -> tuple[DLSN, int]:
    """Return the mark of a new cursor, and its number where it is known.

    A position or sequence number that was truncated is treated as by readers: it raises PositionTruncated, or the mark
    stays before the records that are gone, so that delivery hands out a Gap.
    """
    chain = (await context.store.read()).chain
    if isinstance(start, DLSN):
        if start >= chain.trim or has_no_records_before(chain.trim, chain, start):
            return max(start, chain.trim), NONE
        if raises:
            raise truncated(context.name, start, chain.trim)
        return start, NONE
    if isinstance(start, AtSeq):
        tail = await tail_position(context)
        found = await find_key(context, key_of(start))
        if await is_truncated(context, start, tail, found):
            if raises:
                raise truncated(context.name, f"record {start.seq}", chain.trim)
            return FIRST, start.seq
        return found or await position_behind(context, tail), start.seq
    if start == "latest":
        # With its number, a mark behind the last record of a segment that is deleted later is no gap.
        tail = await tail_position(context)
        mark = await position_behind(context, tail)
        if tail is None:
            return mark, 0
        return mark, tail.seq + 1 if mark == tail.next else NONE
    return await clamped_start(context, start), NONE


async def clamped_start(context: StreamContext, where: Start) -> DLSN:
    """Return the position that is asked for, or the stream's first one if the stream begins behind it."""
    return max(await resolve(context, where), (await context.store.read()).chain.trim)


async def _check_stream(context: StreamContext, path: str, version: int) -> None:
    """Take a new cursor back whose stream was deleted while it was made: nobody else would find it."""
    try:
        await context.store.read()
    except StreamNotFound:
        await context.client.records.change(Change(path, None, version))
        raise


# --- made and moved by somebody who does not read -------------------------------------------------


async def create_cursor(
    context: StreamContext, name: str, start: Start, *, holds: bool, expire_after_s: float
) -> CursorInfo:
    """Make a cursor that nobody holds. Raises StreamExists, PositionTruncated, QuotaExceeded, StreamNotFound.

    ConfigError: the position lies behind the stream's end.
    """
    if isinstance(start, DLSN):
        await _check_not_beyond(context, start)
    wish = CursorRequest(start, True, holds, expire_after_s, is_new=True)
    store = await take_over(context, name, wish)
    return info_of(name, store.record, store.version)


async def place_of(context: StreamContext, where: Start) -> tuple[DLSN, int]:
    """Return the position of the first record at or behind `where` that is still there, and its number.

    Behind the last record it is that of the next one. Raises ConfigError for a position that lies behind the end.
    """
    if isinstance(where, DLSN):
        await _check_not_beyond(context, where)
    mark = await clamped_start(context, where)
    tail = await tail_position(context)
    record = await first_from(context, (await context.store.read()).chain, mark)
    if record is not None and tail is not None and record.seq <= tail.seq:
        return record.dlsn, record.seq
    return await position_behind(context, tail), 0 if tail is None else tail.seq + 1


async def place_before(context: StreamContext, info: CursorInfo, count: int) -> tuple[DLSN, int]:
    """Return the place so many records before a cursor's mark, or the stream's first one."""
    seq = info.mark_seq if info.mark_seq != NONE else (await place_of(context, info.mark))[1]
    return await place_of(context, AtSeq(max(seq - count, 0)))


async def _check_not_beyond(context: StreamContext, where: DLSN) -> None:
    """Raise ConfigError where no record can be before the stream has grown: whoever waits there waits in silence."""
    tail = await tail_position(context)
    end = await position_behind(context, tail)
    last = end if tail is None else max(end, DLSN(tail.dlsn.segment + 1, 0, 0))
    is_in_last = tail is not None and where.segment == tail.dlsn.segment
    if where > last or (tail is not None and is_in_last and where.entry > tail.dlsn.entry + 1):
        there = "has no records" if tail is None else f"ends with {tail.dlsn}"
        raise ConfigError(
            f"{where} lies behind the end: {context.name} {there}. `latest` is behind its last record"
        )


async def move_cursor(context: StreamContext, name: str, mark: DLSN, seq: int) -> CursorInfo:
    """Have a cursor go on at that record, by one change of its record; whoever holds it is fenced (INV-S10).

    Its options and its map stay. Raises StreamNotFound, and what opening a cursor raises.
    """
    store = await take_over(context, name, CursorRequest(mark=(mark, seq)))
    moved = info_of(name, store.record, store.version)
    for ledger_id in store.record.doomed:  # where the former holder kept its states
        await context.client.records.retire_ledger_id(ledger_id, context.stream_id, of_cursor(name))
    if store.record.doomed:
        with suppress(CursorFenced):  # a holder has it already, who forgets them
            await store.write(replace(store.record, doomed=()))
    return moved


# --- marks in many streams ------------------------------------------------------------------------
#
# The marks of one cursor in many streams, moved by somebody who keeps positions elsewhere and reads
# by other means.
#
# Of a cursor only its record is used: it is taken over once, as by any holder, so that two who use
# one name find out (INV-S10); each move is then one change of metadata. Nothing is read ahead, and
# no ledger is made.


TOGETHER = 16
"""Streams whose marks are moved at once."""
RENEW_S = 300.0
"""A mark that stays where it is is noted as used so often."""


@dataclass(slots=True)
class _OpenCursor:
    store: CursorStore[CursorRecord]
    mark: DLSN
    renewed_s: float


class CursorPositions:
    """Cursors of one name. Not safe for several calls at once."""

    def __init__(self, catalog: Catalog, name: str, data: Mapping[str, int | str]) -> None:
        """`data`: the cursors' map, says who moves them. Raises ConfigError for what is no name of a cursor."""
        path_of("", name)
        self._catalog = catalog
        self._name = name
        self._data: Data = check_data(data)
        self._held: dict[str, _OpenCursor] = {}

    async def move(self, marks: Mapping[str, tuple[DLSN, int]]) -> dict[str, Error]:
        """Have the marks there, by the streams' paths: position and number of the first record that is not done.

        A cursor that is not there is made. Returns what could not be moved, and why; the next call tries again.
        """
        failed, now_s = dict[str, Error](), time.monotonic()

        async def move(path: str) -> None:
            mark, seq = marks[path]
            held = self._held.get(path)
            if held is None or held.mark != mark or now_s > held.renewed_s + RENEW_S:
                try:
                    await self._move(path, mark, seq)
                except Error as error:
                    self._held.pop(path, None)
                    failed[path] = error

        await gathered(move, marks, TOGETHER)
        return failed

    async def _move(self, path: str, mark: DLSN, seq: int) -> None:
        held = self._held.get(path)
        if held is None:
            store = await self._opened(path, mark)
            held = self._held[path] = _OpenCursor(store, mark, 0.0)
            is_moved = (store.record.state.mark, store.record.state.mark_seq) != (mark, seq)
        else:
            is_moved = held.mark != mark
        record, now_us = held.store.record, clock_us()
        state = record.state
        if is_moved or state.data != self._data:
            state = replace(
                state,
                serial=state.serial + 1,
                mark=mark,
                mark_seq=seq,
                firsts=(),
                ends=(),
                behinds=(),
                data=self._data,
                time_us=now_us,
            )
        await held.store.write(replace(record, state=state, doomed=(), used_at_us=now_us))
        held.mark, held.renewed_s = mark, time.monotonic()

    async def _opened(self, path: str, mark: DLSN) -> CursorStore[CursorRecord]:
        *where, name = split_path(path)
        context = await self._catalog.context(tuple(where), name)
        store = await take_over(context, self._name, CursorRequest(mark, raises=False))
        for ledger_id in store.record.doomed:  # whoever held it before kept its states there
            await self._catalog.records.retire_ledger_id(
                ledger_id, context.stream_id, of_cursor(self._name)
            )
        return store
