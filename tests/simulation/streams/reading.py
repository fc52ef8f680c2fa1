"""Readers of a stream in simulation, from every kind of position, and what each of them must see (S2, S7, S12)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING

from fastbk.errors import MetadataUnavailable, NotEnoughBookies, PositionTruncated, QuorumTimeout
from fastbk.stream.positions import DLSN, FIRST, AtSeq, AtTime, AtTxid, Start, to_time, to_us
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Gap, Record
from tests.fixtures.fake_ledgers import FakeClient
from tests.simulation.streams.facts import demand

if TYPE_CHECKING:
    from tests.simulation.streams.whole import WholeWorld

AWAY = (MetadataUnavailable, NotEnoughBookies, QuorumTimeout)
"""What passes: the same call may succeed later."""


def some_start(world: WholeWorld) -> Start:
    """Return where a reader, a cursor or a truncation may begin."""
    rng, places = world.rng, world.places.all_from(DLSN(0, 0, 0))
    some = rng.choice(places) if places else DLSN(1, 0, 0)
    kind = rng.randrange(7)
    if kind == 0:
        return "earliest"
    if kind == 1:
        return "latest"
    if kind == 2:
        return rng.choice(
            [some, some._replace(entry=some.entry + 1, slot=0), DLSN(some.segment + 1, 0, 0)]
        )
    if kind == 3:
        return AtSeq(rng.randrange(max(world.judge.chain.end_seq + 3, 1)))
    if kind == 4:
        return AtTxid(rng.randrange(world.next_txid + 2))
    if kind == 5:
        now = to_time(world.clock.time_ns() // 1000)
        return AtTime(now - timedelta(seconds=rng.choice([0.0, 1.0, 60.0, 500.0])))
    return some


class Reading:
    """One reader, from its opening to its end."""

    def __init__(self, world: WholeWorld, client: FakeClient, *, is_watcher: bool = False) -> None:
        """`is_watcher`: it tails until it meets the last record of the world."""
        self._world = world
        self._client = client
        self._is_watcher = is_watcher
        self._last: DLSN | None = None
        self._next_seq: int | None = None
        self._resumes_at: DLSN | None = None
        self._key: AtSeq | AtTxid | AtTime | None = None
        self._floor = DLSN(0, 0, 0)
        self._was_told = False
        self._is_done = False

    async def live(self) -> None:
        """Read until the end, if there is one. Raises Broken."""
        world, rng = self._world, self._world.rng
        start = rng.choice(["earliest", "latest"]) if self._is_watcher else some_start(world)
        self._end = None if self._is_watcher or rng.random() < 0.7 else some_start(world)
        self._is_tailing = self._is_watcher or rng.random() < 0.5
        self._raises = rng.random() < 0.5
        reader = StreamReader(
            world.context(self._client),
            start,
            end=self._end,
            tail=self._is_tailing,
            prefetch_bytes=rng.choice([1, 300, 8 << 20]),
            on_gap="raise" if self._raises else "yield",
        )
        while True:
            kept, trim = world.told.last_kept, world.judge.chain.trim
            try:
                await reader.open()
                break
            except AWAY:
                await asyncio.sleep(rng.random())
        self._begin(start, reader.position, kept, trim)
        self._kept_before = kept
        self._has_moved = False
        try:
            while not self._is_done and await self._go_on(reader):
                pass
        finally:
            await reader.close()

    def _begin(self, where: Start, position: DLSN, kept: DLSN | None, trim: DLSN) -> None:
        """The reader stands there now; `kept`, `trim`: the last record that was kept, the trim point, just before."""
        self._last, self._next_seq, self._was_told = None, None, False
        self._resumes_at, self._floor = position, trim
        self._key = where if isinstance(where, AtSeq | AtTxid | AtTime) else None
        if isinstance(where, DLSN):
            demand(position == where, f"S4: a reader from {where} on stands at {position}")
        elif where == "earliest":
            demand(
                trim <= position <= self._world.judge.chain.trim, f"S7: {position} is not the first"
            )
        elif where == "latest" and kept is not None:
            demand(position > kept, f"S16: {position} is not behind {kept}, which was acknowledged")

    async def _go_on(self, reader: StreamReader) -> bool:
        """Take something; return False at the end."""
        rng, world = self._world.rng, self._world
        try:
            async with asyncio.timeout(rng.choice([0.001, 0.5, 30])):
                if rng.random() < 0.05 and not self._is_watcher:
                    await self._seek(reader, some_start(world))
                demand(reader.lag.records >= 0, "S16: a reader is ahead of all there is")
                if rng.random() < 0.5:
                    self._took([await anext(reader)])
                    return True
                if rng.random() < 0.5:
                    item = await reader.read(rng.randint(1, 9), timeout=rng.choice([0.01, 5]))
                else:
                    wait_s = rng.choice([0, 0.1])
                    async with aclosing(
                        reader.chunks(rng.randint(1, 9), max_wait=wait_s)
                    ) as chunks:
                        item = await anext(chunks)
                self._took([item] if isinstance(item, Gap) else list(item or ()))
                if not isinstance(item, Gap) and not item and reader.is_at_end:
                    self._ended(reader)
                    return False
        except StopAsyncIteration:
            self._ended(reader)
            return False
        except PositionTruncated as error:
            demand(self._raises, "a reader that was to yield gaps raised one")
            await self._pass_by(reader, DLSN.parse(error.first_available or ""))
        except AWAY:
            await asyncio.sleep(rng.choice([0.01, 1]))
        except TimeoutError:
            pass
        return True

    async def _pass_by(self, reader: StreamReader, available: DLSN) -> None:
        trim = self._world.judge.chain.trim
        demand(
            reader.position < available <= trim,
            f"S7: told {available} at {reader.position}, {trim} holds",
        )
        last = self._last
        while True:
            try:
                await reader.seek(available)
                break
            except AWAY:
                await asyncio.sleep(0.5)
        self._begin(available, reader.position, None, available)
        self._last, self._was_told = last, True
        self._has_moved = True

    async def _seek(self, reader: StreamReader, where: Start) -> None:
        kept, trim = self._world.told.last_kept, self._world.judge.chain.trim
        await reader.seek(where)
        self._begin(where, reader.position, kept, trim)
        self._has_moved = True
        if isinstance(where, DLSN):
            self._floor = (
                FIRST  # a reader that is open knows the trim point by a watch: it may be late
            )

    def _took(self, items: list[Record | Gap]) -> None:
        for item in items:
            if isinstance(item, Gap):
                self._gap(item)
            else:
                self._record(item)

    def _gap(self, gap: Gap) -> None:
        trim = self._world.judge.chain.trim
        demand(not self._raises, "a reader that was to raise gaps yielded one")
        demand(gap.kind == "trimmed", f"S2: {gap} is told, and nothing was lost")
        demand(gap.first < gap.next <= trim, f"S7: {gap} is told, and {trim} is the trim point")
        demand(
            self._last is None or gap.first > self._last, f"S4: {gap} is told behind {self._last}"
        )
        if self._next_seq is not None:
            self._next_seq = None if gap.records is None else self._next_seq + gap.records
        self._resumes_at, self._was_told = gap.next, True

    def _record(self, record: Record) -> None:
        world, dlsn = self._world, record.dlsn
        world.places.see(record)
        demand(dlsn >= self._floor, f"S7: {dlsn} was truncated before the reader began")
        demand(self._last is None or dlsn > self._last, f"S4: {dlsn} came behind {self._last}")
        if self._next_seq is not None:
            demand(
                record.seq == self._next_seq,
                f"S3, S12: {record.seq} came, expected was {self._next_seq}",
            )
        if self._resumes_at is not None:
            trim = world.judge.chain.trim
            missed = [
                p
                for p in world.places.between(self._resumes_at, dlsn)
                if p >= trim and self._wants(p)
            ]
            demand(not missed, f"S2: {missed[:3]} were passed by in silence before {dlsn}")
        if self._key is not None:
            self._check_key(record)
        if isinstance(self._end, DLSN):
            demand(dlsn < self._end, f"{dlsn} is not before the end {self._end}")
        elif isinstance(self._end, AtSeq):
            demand(record.seq < self._end.seq, f"{record.seq} is not before the end {self._end}")
        self._resumes_at, self._key = None, None
        self._next_seq, self._last = record.seq + 1, dlsn
        self._is_done = self._is_watcher and record.txid == world.last_txid

    def _wants(self, place: DLSN) -> bool:
        """Whether a record that was not delivered should have been, by where the reader was to begin."""
        key, places = self._key, self._world.places
        if isinstance(key, AtTxid):
            return places.txids[place] >= key.txid
        if isinstance(key, AtSeq):
            return places.seqs.get(place, -1) >= key.seq
        return key is None

    def _check_key(self, record: Record) -> None:
        key = self._key
        if isinstance(key, AtSeq):
            is_there = record.seq == key.seq or (self._was_told and record.seq > key.seq)
            demand(
                is_there,
                f"S2: from record {key.seq} on, {record.seq} came first, and no gap was told",
            )
        elif isinstance(key, AtTxid):
            demand(record.txid >= key.txid, f"from id {key.txid} on, {record.txid} came")
        elif isinstance(key, AtTime):
            demand(record.time_us >= to_us(key.time), f"from {key.time} on, {record.time_us} came")

    def _ended(self, reader: StreamReader) -> None:
        demand(not self._is_tailing or self._end is not None, "a tailing reader ended")
        if self._end is None and not self._has_moved and self._kept_before is not None:
            demand(
                reader.position > self._kept_before,
                f"S2: ended at {reader.position} before {self._kept_before}",
            )
