"""Holders of durable cursors in simulation: takeovers, acknowledgements, resets, crashes (S8, INV-S10)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastbk.errors import CursorFenced, MetadataConflict, PositionTruncated
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.state import CursorAcks
from fastbk.stream.cursor.store import delete_cursor
from fastbk.stream.positions import DLSN, FIRST
from fastbk.stream.records import Chunk, Gap, Record
from tests.fixtures.fake_ledgers import FakeClient
from tests.simulation.streams.facts import demand
from tests.simulation.streams.reading import AWAY, some_start

if TYPE_CHECKING:
    from tests.simulation.streams.whole import WholeWorld

ANYWHERE = DLSN(1 << 40, 0, 0)


@dataclass(slots=True)
class Life:
    """What holders of one cursor did, from its making to its deletion."""

    created_us: int
    base: DLSN
    """Where it began."""
    acked: set[DLSN] = field(default_factory=set)
    """What holders said is done, of what is not before the last reset. A reset makes a new set."""
    kept: dict[DLSN, int] = field(default_factory=dict)
    """What holders were told is kept, with its numbers."""
    opens: int = 0
    resets: int = 0
    reset_to: DLSN = FIRST
    """What is before it may have been passed by a reset."""


@dataclass(slots=True)
class CursorFacts:
    """One cursor, by its name."""

    name: str
    holds: bool
    expire_after_s: float | None
    may_reset: bool
    life: Life | None = None


class Holding:
    """One opening of a cursor."""

    def __init__(self, world: WholeWorld, client: FakeClient, facts: CursorFacts) -> None:
        self._world = world
        self._client = client
        self._facts = facts
        self._mine: dict[DLSN, int] = {}
        self._given: dict[DLSN, int] = {}
        self._last: DLSN | None = None

    def _cursor(self, **options: object) -> Cursor:
        rng, facts = self._world.rng, self._facts
        wanted = {
            "hold": facts.holds,
            "flush_interval": rng.choice([0.01, 0.3, 5]),
            "flush_acks": rng.choice([1, 3, 1000]),
            "expire_after": facts.expire_after_s,
            "tail": rng.random() < 0.7,
            "prefetch_bytes": rng.choice([1, 300, 8 << 20]),
            "on_gap": rng.choice(["raise", "yield"]),
            **options,
        }
        return Cursor(self._world.context(self._client), facts.name, **wanted)  # type: ignore[arg-type]

    async def live(self) -> None:
        """Open, read, acknowledge, and end somehow. Raises Broken."""
        rng, world = self._world.rng, self._world
        cursor = self._cursor(start=rng.choice(["earliest", "earliest", "latest"]))
        try:
            await cursor.open()
            self._opened(cursor)
            for _ in range(rng.choice([1, 5, 40])):
                async with asyncio.timeout(rng.choice([0.05, 5, 40])):
                    await self._do_something(cursor)
                await asyncio.sleep(rng.choice([0, 0.01, 1]))
        except (
            *AWAY,
            MetadataConflict,
            CursorFenced,
            PositionTruncated,
            TimeoutError,
            StopAsyncIteration,
        ):
            pass
        await self._end(cursor)
        if rng.random() < 0.05:
            with suppress(*AWAY):
                await delete_cursor(self._client, world.stream_id, self._facts.name)  # type: ignore[arg-type]

    # --- opening ------------------------------------------------------------------------------------------------

    def _opened(self, cursor: Cursor) -> None:
        """Check what the former holders left: all that they were told is kept, and nothing that nobody did."""
        parts = cursor._held()
        created_us = parts.flusher._keeper._store.record.created_us
        life = self._facts.life
        if life is None or life.created_us != created_us:
            life = self._facts.life = Life(created_us, cursor.mark)
        life.opens += 1
        self._life, self._from, self._resets = life, cursor.mark, life.resets
        self._acked = life.acked
        places, trim, acks = self._world.places, self._world.judge.chain.trim, parts.acks
        there = self._world.judge.cursors().get(self._facts.name)
        # Who was overtaken before its opening returned stands where it was then.
        is_holder = there is not None and there.state.epoch == cursor.epoch
        self._kept_before = kept = dict(life.kept) if is_holder else {}
        lost = [one for one, seq in kept.items() if one >= trim and not _is_done(acks, one, seq)]
        demand(
            not lost,
            f"S8: {lost[:3]} were kept as done, and {self._facts.name} is at {cursor.mark}",
        )
        since = max(trim, life.base, life.reset_to)
        ahead = [
            one
            for one in places.all_from(since)
            if one not in life.acked and _is_done(acks, one, places.seqs.get(one, -1))
        ]
        demand(
            not ahead,
            f"S8: nobody acknowledged {ahead[:3]}, and {self._facts.name} is at {cursor.mark}",
        )

    # --- work ---------------------------------------------------------------------------------------------------

    async def _do_something(self, cursor: Cursor) -> None:
        rng = self._world.rng
        what = rng.random()
        if what < 0.5:
            await self._read(cursor)
        elif what < 0.75:
            await self._acknowledge(cursor)
        elif what < 0.95 or not self._facts.may_reset:
            await self._kept_by(cursor.flush())
        elif what < 0.97:
            await cursor.backlog()
        else:
            await self._reset(cursor)

    async def _read(self, cursor: Cursor) -> None:
        rng = self._world.rng
        if rng.random() < 0.5:
            self._take([await anext(cursor)])
            return
        item = await cursor.read(rng.randint(1, 9), timeout=rng.choice([0.01, 3]))
        if item is not None:
            self._take([item] if isinstance(item, Gap) else item)

    def _take(self, items: Iterable[Record | Gap] | Chunk) -> None:
        world = self._world
        for item in items:
            if isinstance(item, Gap):
                demand(item.kind == "trimmed", f"S2: {item} is told, and nothing was lost")
                continue
            world.places.see(item)
            dlsn = item.dlsn
            demand(dlsn >= self._from, f"S8: {dlsn} lies before the mark {self._from}")
            demand(self._last is None or dlsn > self._last, f"S4: {dlsn} came behind {self._last}")
            demand(
                dlsn not in self._kept_before,
                f"S8: {dlsn} was kept as done, and is delivered again",
            )
            trim = world.judge.chain.trim
            # One who was overtaken by somebody who reset it goes by what was done before that.
            missed = [
                one
                for one in world.places.between(self._last or self._from, dlsn)
                if one >= trim and one not in self._given and one not in self._acked
            ]
            demand(not missed, f"S2, S8: {missed[:3]} were passed by before {dlsn}")
            self._last = dlsn
            self._given[dlsn] = item.seq

    async def _acknowledge(self, cursor: Cursor) -> None:
        rng, life = self._world.rng, self._life
        if not self._given:
            return
        dlsn = rng.choice(list(self._given)[-6:])
        record = self._record(dlsn)
        if rng.random() < 0.5:
            life.acked.add(dlsn)
            kept = cursor.ack_one(record)
            # there is no room: who does not wait has nothing acknowledged
            if asyncio.iscoroutine(kept):
                await kept  # else it is kept in groups
            self._mine[dlsn] = self._given[dlsn]
            return
        life.acked.update(self._world.places.upto(dlsn))
        kept = cursor.ack(record, data={"last": record.txid})
        self._mine.update({one: seq for one, seq in self._given.items() if one <= dlsn})
        if rng.random() < 0.4:
            await self._kept_by(kept)

    def _record(self, dlsn: DLSN) -> Record:
        return Record(
            dlsn, self._given[dlsn], self._world.places.txids[dlsn], 0, memoryview(b""), None, ()
        )

    async def _kept_by(self, keeping: object) -> None:
        """Await that what was acknowledged is kept; then it has to be, whoever holds the cursor by now."""
        life, mine = self._life, dict(self._mine)
        await keeping  # type: ignore[misc]
        record = self._world.judge.cursors().get(self._facts.name)
        is_same = (
            record is not None and record.created_us == life.created_us and not record.is_deleting
        )
        if not is_same or self._resets != life.resets or self._facts.life is not life:
            return
        assert record is not None
        acks = CursorAcks(self._world.judge.cursor_state(record))
        trim = self._world.judge.chain.trim
        lost = [one for one, seq in mine.items() if one >= trim and not _is_done(acks, one, seq)]
        demand(
            not lost,
            f"S8: {lost[:3]} were said to be kept, and the mark that is kept is {acks.mark}",
        )
        life.kept.update(mine)

    async def _reset(self, cursor: Cursor) -> None:
        world, life = self._world, self._life
        where = some_start(world)
        opens = life.opens
        life.resets += 1
        self._resets = life.resets
        life.kept.clear()
        reset_to, life.reset_to = life.reset_to, ANYWHERE
        world.judge.free.add(self._facts.name)
        self._given.clear()
        self._mine.clear()
        self._kept_before = {}
        await cursor.reset(where)
        if life.opens == opens:
            life.acked = set()
        self._acked = life.acked
        self._last, self._from = None, cursor.mark
        if isinstance(where, DLSN):
            demand(cursor.mark >= where, f"S8: reset to {where}, and the mark is {cursor.mark}")
        life.reset_to = max(reset_to, cursor.mark)

    # --- the end ------------------------------------------------------------------------------------------------

    async def _end(self, cursor: Cursor) -> None:
        if cursor._parts is None:
            return
        if self._world.rng.random() < 0.5:
            await cursor.abort()
            return
        with suppress(*AWAY, CursorFenced):
            await self._kept_by(cursor.close())

    # --- when all is over ---------------------------------------------------------------------------------------

    async def drain(self, records: list[Record]) -> None:
        """Hold it once more, read all that is left: with what was acknowledged it is everything (S8)."""
        cursor = self._cursor(on_gap="yield", tail=False)
        await cursor.open()
        self._opened(cursor)
        async for item in cursor:
            self._take([item])
        life, trim = self._life, self._world.judge.chain.trim
        since = max(trim, life.base, life.reset_to)
        left = [one.dlsn for one in records if one.dlsn >= since]
        left = [one for one in left if one not in self._given and one not in life.acked]
        demand(
            not left,
            f"S8: {left[:3]} were neither acknowledged nor delivered by {self._facts.name}",
        )
        if self._last is not None:
            cursor.ack(self._record(self._last))
        await cursor.close()
        await delete_cursor(self._client, self._world.stream_id, self._facts.name)  # type: ignore[arg-type]


def _is_done(acks: CursorAcks, dlsn: DLSN, seq: int) -> bool:
    return dlsn < acks.mark or (seq >= 0 and seq in acks.ranges)
