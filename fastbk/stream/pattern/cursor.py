"""A durable cursor over all streams that a pattern chooses: one holder, and one record with all positions."""

from __future__ import annotations

import asyncio
from typing import Literal, Never

from msgspec.structs import replace

from fastbk.errors import (
    ClientClosed,
    ConfigError,
    CursorFenced,
    Error,
    StreamNotFound,
)
from fastbk.observe.library_log import LibraryLog
from fastbk.stream.chain import Chain
from fastbk.stream.context import StreamContext, clock_us
from fastbk.stream.cursor.cursor import CursorHolder, Held
from fastbk.stream.cursor.delivery import CursorDelivery
from fastbk.stream.cursor.state import CursorAcks, CursorState, Data
from fastbk.stream.cursor.store import CursorStore, checked_keeping, clamped_start
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.listing import STREAMS_AT_ONCE
from fastbk.stream.namespace.tree import StreamRecord, get_or
from fastbk.stream.options import GapT
from fastbk.stream.paths import stream_path
from fastbk.stream.pattern.reader import How, PatternRecords, PatternSource
from fastbk.stream.pattern.store import (
    RANGES_MAX,
    CursorStart,
    PatternCursorRequest,
    PatternRecord,
    StreamPosition,
    begins_of,
    is_match,
    put_pattern,
    take_over,
)
from fastbk.stream.positions import DLSN, FIRST, Start, check_start
from fastbk.stream.reader.read_ahead import ReadTurns
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk, Gap, Origin, OriginRecord, Record

_log = LibraryLog("fastbk.stream.pattern")

RECORD_BURST = 5.0
RECORD_PAUSE_S = 0.1
"""Pause between states, after a burst of them: the record is one of metadata."""
RECORD_BYTES_PER_S = 1 << 20
"""Rate of states that are written: one of 512 KiB takes half a second's turn."""
KEEP_ALIVE_S = 30.0


class PatternAcks:
    """What is done of all streams.

    Attributes:
        changes: counts what has changed; what is kept is compared by it.
    """

    def __init__(self, record: PatternRecord) -> None:
        self.changes = 0
        self.data: Data = dict(record.data)
        self._streams: dict[str, CursorAcks] = {}
        self._written: dict[str, tuple[int, StreamPosition]] = {}
        self._gaps, self._gap_records = record.gaps, record.gap_records
        self._counted_at, self._counted = -RANGES_MAX, 0
        for stream_id, position in record.positions.items():
            state = CursorState(
                0,
                0,
                position.mark,
                position.mark_seq,
                position.firsts,
                position.ends,
                position.behinds,
            )
            self._streams[stream_id] = CursorAcks(state)

    def get(self, stream_id: str) -> CursorAcks | None:
        """Return what is done of a stream; None: it is not read."""
        return self._streams.get(stream_id)

    def begin(self, stream_id: str, mark: DLSN) -> CursorAcks:
        """A stream comes; return what is done of it: what was before, or what lies before `mark`."""
        found = self._streams.get(stream_id)
        if found is None:
            found = self._streams[stream_id] = CursorAcks(CursorState(mark=mark))
            if mark != FIRST:
                self.changed()
        return found

    def drop(self, stream_id: str) -> None:
        """A stream is not read any more."""
        acks = self._streams.pop(stream_id, None)
        if acks is not None:
            self._gaps, self._gap_records = (
                self._gaps + acks.gaps,
                self._gap_records + acks.gap_records,
            )
            self.changed()

    def keep_only(self, stream_ids: set[str]) -> None:
        """Drop all streams but these."""
        for stream_id in self._streams.keys() - stream_ids:
            self.drop(stream_id)

    def changed(self) -> None:
        """Something was done."""
        self.changes += 1

    def has_room(self, acks: CursorAcks, seq: int) -> bool:
        """Whether `ack_one` needs no range more than all streams may have together."""
        # Each change makes one range more at most, so there is no need to count them all each time.
        if self._counted + self.changes - self._counted_at >= RANGES_MAX:
            self._counted_at, self._counted = self.changes, self.ranges
        is_full = self._counted + self.changes - self._counted_at >= RANGES_MAX
        return not is_full or seq <= acks.mark_seq or acks.ranges.touches(seq, seq + 1)

    @property
    def ranges(self) -> int:
        """Ranges done behind the marks, of all streams."""
        return sum(len(stream.ranges) for stream in self._streams.values())

    @property
    def gap_records(self) -> int:
        """Records that were gone before they were done, over the cursor's life."""
        return self._gap_records + sum(stream.gap_records for stream in self._streams.values())

    def put_into(self, record: PatternRecord) -> PatternRecord:
        """Return the record with all of it. A stream of which nothing is done needs no place in it (INV-S20)."""
        positions: dict[str, StreamPosition] = {}
        for stream_id, acks in self._streams.items():
            if acks.mark == FIRST and not acks.ranges:
                continue
            known = self._written.get(stream_id)
            if known is None or known[0] != acks.changes:
                ranges = acks.ranges
                one = StreamPosition(
                    acks.mark,
                    acks.mark_seq,
                    tuple(ranges.firsts),
                    tuple(ranges.ends),
                    tuple(ranges.behinds),
                )
                known = self._written[stream_id] = (acks.changes, one)
            positions[stream_id] = known[1]
        for stream_id in self._written.keys() - positions.keys():
            del self._written[stream_id]
        gaps = self._gaps + sum(stream.gaps for stream in self._streams.values())
        return replace(
            record,
            positions=positions,
            data=dict(self.data),
            gaps=gaps,
            gap_records=self.gap_records,
        )


class PatternStorage:
    """Keeps the states of one holder, in the record. One call at a time; see `Keeper`."""

    def __init__(self, store: CursorStore[PatternRecord], acks: PatternAcks) -> None:
        self._store = store
        self._acks = acks
        self._loop = asyncio.get_running_loop()
        self._used_at_s = self._loop.time()
        self._tokens, self._tokens_at_s = RECORD_BURST, self._used_at_s

    async def keep(self) -> int:
        """Keep the state as it is now, after a pause where many were kept."""
        await self._pause()
        changes = self._acks.changes
        await self._write()
        return changes

    async def _pause(self) -> None:
        """Wait where more was written than metadata is for; all that is acknowledged meanwhile is kept together."""
        now_s = self._loop.time()
        self._tokens = min(
            RECORD_BURST, self._tokens + (now_s - self._tokens_at_s) / RECORD_PAUSE_S
        )
        self._tokens_at_s = now_s
        if self._tokens < 1:
            await asyncio.sleep((1 - self._tokens) * RECORD_PAUSE_S)

    async def _write(self) -> None:
        record, now_us = self._store.record, clock_us()
        record = replace(
            self._acks.put_into(record),
            serial=record.serial + 1,
            time_us=now_us,
            used_at_us=max(record.used_at_us, now_us),
        )
        size_bytes = len(put_pattern(record))
        self._tokens -= max(1.0, size_bytes / (RECORD_BYTES_PER_S * RECORD_PAUSE_S))
        await self._store.write(record)
        self._used_at_s = self._loop.time()

    def renew_in_s(self) -> float | None:
        """Return in how many seconds `tend` has to be called; None: not at all."""
        expire_s = self._store.record.expire_after_s
        if expire_s <= 0:
            return None
        return max(0.0, self._used_at_s + min(KEEP_ALIVE_S, expire_s / 4) - self._loop.time())

    async def tend(self) -> None:
        """Note that the cursor is used, where it is time."""
        if self.renew_in_s() != 0.0:
            return
        try:
            await self._write()
        except CursorFenced:
            raise
        except Error as error:
            self._used_at_s = self._loop.time()
            _log.warning("cursor.upkeep_waits", reason=str(error))

    async def close(self, is_dirty: bool) -> None:
        """Keep what is not kept."""
        if is_dirty:
            await self._write()


class PatternCursor(CursorHolder[Held[PatternAcks], Never, GapT], PatternRecords[GapT]):
    """Reads all streams of one namespace whose names match, and keeps what is done of each in one record.

    Made by `Namespace.cursor("shop/*", name)`. It has one holder, as `Cursor` has: `async with` makes it or takes it
    over, and whoever held it finds out (CursorFenced). What was acknowledged and not kept when a process dies is
    delivered again (INV-S10). Retention keeps what is not done in all streams that match, in those too that came a
    moment ago (INV-S20). A stream that is deleted, or renamed to what does not match, loses its position.
    """

    def __init__(
        self,
        catalog: Catalog,
        path: tuple[str, ...],
        pattern: str,
        name: str,
        start: CursorStart = "earliest",
        *,
        hold: bool = True,
        flush_interval: float = 1.0,
        flush_acks: int = 1000,
        expire_after: float | None = None,
        tail: bool = True,
        prefetch_bytes: int = 8 << 20,
        on_gap: Literal["raise", "yield"] = "raise",
    ) -> None:
        """Make a handle; no I/O. Options are those of `Cursor`, but for what follows.

        Args:
            catalog, path: of the namespace.
            pattern: such as `shop/*`, from the namespace on. It is the cursor's for good.
            name: of the cursor, 1 to 80 bytes, one of its namespace's cursors of patterns.
            start: where a cursor that is new begins in the streams that are there then; others are read from their
                first record on.
            hold, flush_interval, flush_acks, expire_after, tail: as `Cursor` has them.
            prefetch_bytes: of all streams together.
            on_gap: "raise" raises what is gone of one stream in its turn, until `reset` of that stream.
        """
        PatternRecords.__init__(self, catalog, path, pattern)
        super().__init__(
            name,
            flush_interval=flush_interval,
            flush_acks=flush_acks,
            tail=tail,
            prefetch_bytes=prefetch_bytes,
            on_gap=on_gap,
        )
        self._wish = PatternCursorRequest(self._names, start, *checked_keeping(hold, expire_after))

    def __repr__(self) -> str:
        return f"<PatternCursor {self.name} of {self.pattern}{'' if self._parts else ', not open'}>"

    # --- life -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the cursor, or take it over.

        Raises StreamNotFound (there is no such namespace), QuotaExceeded, ConfigError for another pattern than it has,
        and for a new one while the cluster's format level has none (`fastbk cluster finalize`), MetadataUnavailable,
        StorageError where its record cannot be read.
        """
        if self._parts is not None:
            raise ClientClosed(f"{self!r} was opened before: make a new handle")
        space = (await self._catalog.place(self._path)).here.id
        begins = lambda: begins_of(self._catalog, self._path, space, self._wish)  # noqa: E731
        store = await take_over(
            self._catalog.client, space, "/".join(self._path), self.name, self._wish, begins
        )
        acks = PatternAcks(store.record)
        flusher = self._flusher(
            f"{self.pattern} {self.name}", acks, PatternStorage(store, acks), self._catalog.client
        )
        self._parts = Held(acks, flusher, store.record.epoch)
        source = PatternSource(
            self._catalog,
            self._path,
            self._names,
            self._made,
            self._gone,
            is_tailing=self._is_tailing,
            prefetch_bytes=self._prefetch_bytes,
        )
        try:
            await source.open()
        except BaseException:
            flusher.abort()
            raise
        self._source = source
        before, absent = acks.changes, sorted(set(store.record.positions) - source.parts().keys())
        # the others went while nobody held it
        acks.keep_only({*source.parts(), *await self._unseen(space, absent)})
        if acks.changes != before:
            flusher.touch()

    async def _unseen(self, space: str, stream_ids: list[str]) -> list[str]:
        """Return those of these streams, which no name that can be read stands for, that are there all the same."""
        records, kept = self._catalog.records, list[str]()
        for offset in range(0, len(stream_ids), STREAMS_AT_ONCE):
            some = stream_ids[offset : offset + STREAMS_AT_ONCE]
            found = await records.read_all([stream_path(one) for one in some])
            for stream_id, raw in zip(some, found, strict=True):
                unread = StreamRecord(space, self._names)
                record = (
                    None
                    if raw is None
                    else get_or(StreamRecord, raw.value, stream_path(stream_id), unread)
                )
                is_there = record is not None and not record.deleting
                if record is unread or (
                    record is not None and is_there and is_match(self._names, record.name)
                ):
                    kept.append(stream_id)
        return kept

    async def _made(
        self,
        origin: Origin,
        context: StreamContext,
        how: How,
        arrived: asyncio.Event,
        turns: ReadTurns,
        size: int,
    ) -> tuple[StreamReader[Gap], CursorDelivery]:
        parts = self._parts
        assert parts is not None
        mark = FIRST
        if how == "renamed" and parts.acks.get(origin.id) is None:
            # What it had lost before it got this name was nobody's to read.
            mark = _first_of((await context.store.read()).chain)
        known = parts.acks.changes
        acks = parts.acks.begin(origin.id, mark)
        if parts.acks.changes != known:
            parts.flusher.touch()
        reader: StreamReader[Gap] = StreamReader(
            context,
            acks.mark,
            tail=self._is_tailing,
            prefetch_bytes=size,
            on_gap="yield",
            arrived=arrived,
            turns=turns,
            start_seq=acks.mark_seq,
        )
        await reader.open()
        name = f"{origin.path} {self.name}"
        return reader, CursorDelivery(
            reader, acks, self._changed, raises=self._raises, name=name, is_polled=True
        )

    def _changed(self) -> None:
        if self._parts is not None:
            self._parts.acks.changed()
        super()._changed()

    def _gone(self, stream_id: str) -> None:
        if self._parts is not None and self._parts.acks.get(stream_id) is not None:
            self._parts.acks.drop(stream_id)
            self._parts.flusher.touch()
            self._room.set()

    async def _stop_reading(self) -> None:
        await PatternRecords.close(self)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _taken(
        self, max_records: int, max_bytes: int, timeout: float | None
    ) -> Chunk | Gap | None:
        self._alive()
        item = await self._opened().next(max_records, max_bytes, timeout)
        self._alive()
        return item

    def _is_done(self, chunk: Chunk, at: int) -> bool:
        acks = None if chunk.origin is None else self._alive().acks.get(chunk.origin.id)
        return acks is None or acks.is_done(chunk.first_seq + at)

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def _place(self, done: Record | Chunk) -> tuple[str, int, DLSN]:
        check_pattern_done(done)
        assert isinstance(done, OriginRecord | Chunk) and done.origin is not None
        if isinstance(done, Chunk):
            return done.origin.id, done.first_seq + len(done) - 1, done.last_dlsn
        return done.origin.id, done.seq, done.dlsn

    def _acks_of(self, stream_id: str) -> CursorAcks | None:
        return self._held().acks.get(stream_id)

    def _is_stale(self, stream_id: str, seq: int) -> bool:
        part, chunk = self._opened().parts().get(stream_id), self._chunk
        is_at_hand = chunk is not None and chunk.origin is not None and chunk.origin.id == stream_id
        is_ahead = chunk is not None and is_at_hand and seq >= chunk.first_seq + self._at
        delivery = None if part is None else part.delivery
        return isinstance(delivery, CursorDelivery) and delivery.is_stale(seq, is_ahead=is_ahead)

    def _has_room(self, acks: CursorAcks, seq: int) -> bool:
        return self._held().acks.has_room(acks, seq)

    async def reset(self, stream: str, where: Start) -> None:
        """Begin anew in one stream, by its path, also backwards, but not before what it still has; kept on return.

        Everything behind it is not done, and is delivered (again). An acknowledgement of a record that was handed out
        before, and not again since, changes nothing. Raises StreamNotFound for a stream that is not read.
        """
        parts = self._alive()
        check_start(where)
        part = next(
            (one for one in self._opened().parts().values() if one.origin.path == stream), None
        )
        acks = None if part is None else parts.acks.get(part.origin.id)
        if part is None or acks is None or not isinstance(part.delivery, CursorDelivery):
            raise StreamNotFound(f"{self!r} does not read a stream {stream}")
        mark = await clamped_start(self._catalog.reading(part.origin.id, stream), where)
        await part.delivery.seek(mark)
        part.rest = None
        if (
            self._chunk is not None
            and self._chunk.origin is not None
            and self._chunk.origin.id == part.origin.id
        ):
            self._chunk = None
        acks.reset(mark)
        part.bell.set()
        self._changed()
        await self.flush()

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def marks(self) -> dict[str, DLSN]:
        """The position of each stream that is read before which everything is done, by path."""
        acks = self._held().acks
        found = {
            part.origin.path: acks.get(stream_id)
            for stream_id, part in self._opened().parts().items()
        }
        return {path: one.mark for path, one in found.items() if one is not None}

    @property
    def ranges(self) -> int:
        """Ranges done behind the marks of all streams: at most 4,000."""
        return self._held().acks.ranges


def _first_of(chain: Chain) -> DLSN:
    return max(chain.trim, FIRST)


def check_pattern_done(done: object) -> None:
    """Raise TypeError for what cannot be done: a Gap, a position; ConfigError for a record of another reader."""
    if not isinstance(done, Record | Chunk):
        raise TypeError(
            f"a record or chunk is acknowledged, not {type(done).__name__}: it says its stream"
        )
    if not done.stream:
        raise ConfigError("this record says no stream: acknowledge what this cursor has handed out")
