"""Taking a cursor over: its former holder is fenced, what it kept is found, and a new epoch begins (INV-S10).

What the former holder was told is kept is in the record, or in the ledger that the record names, which is fenced
first. A ledger that cannot be read now makes this fail, and not go back to the record's older state.

Decision 133.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from fastbk.errors import (
    ConfigError,
    CursorFenced,
    Error,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    StreamExists,
    StreamNotFound,
)
from fastbk.meta.records import Change, VersionedRecord
from fastbk.observe.library_log import LibraryLog
from fastbk.option_checks import check_type
from fastbk.retry import Retry
from fastbk.stream.context import StreamContext, clock_us, gathered
from fastbk.stream.cursor.state import (
    NONE,
    CursorRecord,
    CursorState,
    Data,
    check_data,
    get_record,
    put_record,
)
from fastbk.stream.cursor.store import (
    CursorInfo,
    CursorStore,
    check_count,
    delete_cursor,
    info_of,
    last_state,
    of_cursor,
    path_of,
)
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.opening import new_owner
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

_log = LibraryLog("fastbk.stream.cursor")

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
