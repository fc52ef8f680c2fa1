"""A cursor of a pattern over streams that come, go and change their names, with janitors: INV-S10, INV-S20.

The holders of the cursor are killed and take it over from each other. A judge looks after each effect at what a janitor
is about to delete. At the end all is healed, and one more holder reads what is left: with what was acknowledged before,
that is everything that was appended to the streams whose names match.
"""

from __future__ import annotations

import asyncio
import random
from bisect import insort
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field

from fastbk.errors import CursorFenced, Error, MetadataConflict, PositionTruncated
from fastbk.stream.chain import Chain, get_chain
from fastbk.stream.cursor.state import CursorAcks
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.namespace.tree import StreamRecord, get
from fastbk.stream.paths import chain_path
from fastbk.stream.pattern.cursor import PatternAcks, PatternCursor
from fastbk.stream.pattern.store import PatternRecord, get_pattern, is_match, path_of
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN, FIRST
from fastbk.stream.records import Chunk, Gap, Origin, OriginRecord
from tests.fixtures.fake_ledgers import Cluster, FakeClient
from tests.fixtures.streams import as_client
from tests.simulation.streams.actors import Actors
from tests.simulation.streams.facts import Broken, Judge, demand
from tests.simulation.streams.holding import _is_done
from tests.simulation.streams.loop import Clock
from tests.simulation.streams.reading import AWAY
from tests.simulation.streams.watching import NEW_S, QuietPlan, WatchedPlan
from tests.simulation.streams.world import live

SPACE, PATTERN, CURSOR = "s", "a*", "c"
NAMES = ("a0", "a1", "a2", "a3", "b0", "b1")
PASSES = (
    *AWAY,
    MetadataConflict,
    CursorFenced,
    PositionTruncated,
    TimeoutError,
    StopAsyncIteration,
)
"""What ends a holder, and no world."""


@dataclass(slots=True)
class Facts:
    """One stream."""

    id: str
    name: str = ""
    since_s: float | None = None
    """From when on its name matches; None: it does not, or is gone."""
    left: int = 0
    """How often it was not the pattern's any more: its position may be lost each time."""
    base: DLSN = FIRST
    """Where the cursor began in it."""
    has_lost: bool = False
    """Whether a janitor has deleted what the cursor had not read, as it might."""
    places: list[DLSN] = field(default_factory=list)
    """Of the records that writers were told are kept."""
    acked: set[DLSN] = field(default_factory=set)
    kept: dict[DLSN, int] = field(default_factory=dict)
    """What holders were told is kept as done, with its numbers; since it last left."""


class PatternJudge:
    """Follows all streams and the cursor from effect to effect."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.streams: dict[str, Facts] = {}
        self.space_id = ""
        self.record: PatternRecord | None = None
        self._cluster = cluster
        self._clock = clock
        self._made_s = 0.0
        self._seen: dict[str, int] = {}
        self._chains: dict[str, Chain] = {}

    def step(self) -> None:
        """Look at what has changed."""
        changed = {
            path: one
            for path, one in self._cluster.records.values.items()
            if self._is_new(path, one.version)
        }
        for path, one in changed.items():
            folder, *rest = path.split("/")
            if folder == "streams" and len(rest) == 2:
                self._look_at_name(rest[1], get(StreamRecord, one.value, path))
        if (mine := changed.get(path_of(self.space_id, CURSOR))) is not None:
            self._look_at_cursor(get_pattern(mine.value))
        for path, one in changed.items():
            folder, *rest = path.split("/")
            if folder == "streams" and rest[2:] == ["chain"]:
                self._look_at_chain(rest[1], get_chain(one.value))
        for stream_id, facts in self.streams.items():
            if chain_path(stream_id) not in self._cluster.records.values:
                facts.since_s = None

    def _is_new(self, path: str, version: int) -> bool:
        known, self._seen[path] = self._seen.get(path), version
        return known != version

    def _look_at_name(self, stream_id: str, record: StreamRecord) -> None:
        facts = self.streams.setdefault(stream_id, Facts(stream_id))
        facts.name = record.name
        if not record.deleting and is_match(PATTERN, record.name):
            facts.since_s = self._clock.monotonic() if facts.since_s is None else facts.since_s
        elif facts.since_s is not None:
            facts.since_s = None
            facts.left += 1
            facts.kept.clear()

    def _look_at_cursor(self, record: PatternRecord) -> None:
        before, self.record = self.record, record
        if before is None:
            self._made_s = self._clock.monotonic()
            for stream_id, facts in self.streams.items():
                facts.base = record.mark_of(stream_id)
            return
        demand(record.serial >= before.serial, "S10: an older state was written over a newer one")
        is_same = record.epoch == before.epoch and record.holder == before.holder
        demand(is_same or record.epoch > before.epoch, "S10: a former holder wrote")
        for stream_id, one in before.positions.items():
            facts = self.streams[stream_id]
            went_back = facts.left == 0 and record.mark_of(stream_id) < one.mark
            demand(not went_back, f"S10: the mark of {facts.name} went back from {one.mark}")

    def _look_at_chain(self, stream_id: str, chain: Chain) -> None:
        """Check that what is to be deleted was read, where whoever decided had to know cursor and name (S20)."""
        before = self._chains.get(stream_id, chain)
        self._chains[stream_id] = chain
        if chain.deleting <= before.deleting:
            return
        facts, now_s = self.streams[stream_id], self._clock.monotonic()
        record = self.record
        mark = FIRST if record is None else record.mark_of(stream_id)
        for row in Judge(self._cluster, stream_id).rows(before):
            is_read = row.number < mark.segment or (row.number, row.last_entry_id) < mark[:2]
            if not before.deleting <= row.number < chain.deleting or is_read:
                continue
            is_known = record is not None and now_s - self._made_s > NEW_S
            is_held = is_known and facts.since_s is not None and now_s - facts.since_s > NEW_S
            demand(
                not is_held,
                f"S20: segment {row.number} of {facts.name} is to be deleted, the cursor is at {mark}",
            )
            facts.has_lost = True

    def first_of(self, facts: Facts) -> DLSN:
        """Return the position from which on records of a stream have to be delivered or done."""
        chain = self._chains[facts.id]
        return max(chain.trim, DLSN(chain.deleting, 0, 0), facts.base)


class Holding:
    """One opening of the cursor."""

    def __init__(self, world: PatternWorld, client: FakeClient, **options: object) -> None:
        rng = world.rng
        wanted = {
            "flush_interval": rng.choice([0.01, 0.3, 5]),
            "flush_acks": rng.choice([1, 3, 1000]),
            "tail": rng.random() < 0.8,
            "prefetch_bytes": rng.choice([1, 300, 8 << 20]),
            "on_gap": rng.choice(["raise", "yield", "yield"]),
            **options,
        }
        self._world = world
        self._judge = world.judge
        self.cursor: PatternCursor[Gap] = PatternCursor(
            Catalog(as_client(client)),
            (SPACE,),
            PATTERN,
            CURSOR,
            world.start,
            **wanted,  # type: ignore[arg-type]
        )
        self.given: dict[str, dict[DLSN, int]] = {}
        self._last: dict[str, DLSN] = {}
        self._left: dict[str, int] = {}
        self._kept_before: dict[str, set[DLSN]] = {}
        self._mine: dict[str, dict[DLSN, int]] = {}

    def _is_followed(self, facts: Facts) -> bool:
        """Whether the stream was the pattern's all the time: else it may begin anew, or end, at any moment."""
        return facts.left == self._left.setdefault(facts.id, facts.left)

    async def open(self) -> None:
        """Open the cursor; all that former holders were told is kept is so, and nothing that nobody did is done."""
        await self.cursor.open()
        judge, acks = self._judge, self.cursor._held().acks
        is_holder = judge.record is not None and judge.record.epoch == self.cursor.epoch
        for stream_id, facts in judge.streams.items():
            found = acks.get(stream_id)
            self._left[stream_id] = facts.left
            if found is None or not is_holder:
                continue
            first = judge.first_of(facts)
            self._kept_before[stream_id] = {*facts.kept}
            lost = [
                one
                for one, seq in facts.kept.items()
                if one >= first and not _is_done(found, one, seq)
            ]
            demand(
                not lost,
                f"S10: {lost[:3]} of {facts.name} were kept as done, and the mark is {found.mark}",
            )
            ahead = [
                one for one in facts.places if first <= one < found.mark and one not in facts.acked
            ]
            demand(
                not ahead,
                f"S20: nobody acknowledged {ahead[:3]} of {facts.name}, and the mark is {found.mark}",
            )

    async def live(self) -> None:
        """Open, read, acknowledge, and end somehow. Raises Broken."""
        rng = self._world.rng
        try:
            await self.open()
            for _ in range(rng.choice([1, 5, 40])):
                async with asyncio.timeout(rng.choice([0.05, 5, 40])):
                    await self._do_something()
                await asyncio.sleep(rng.choice([0, 0.01, 1]))
        except PASSES:
            pass
        if self.cursor._parts is None:
            return
        if rng.random() < 0.5:
            await self.cursor.abort()
            return
        with suppress(*AWAY, CursorFenced):
            await self._kept_by(self.cursor.close())

    async def _do_something(self) -> None:
        rng = self._world.rng
        what = rng.random()
        if what < 0.3:
            self.take(await anext(self.cursor))
        elif what < 0.55:
            item = await self.cursor.read(rng.randint(1, 9), timeout=rng.choice([0.01, 3]))
            if item is not None:
                self.take(item)
        elif what < 0.9:
            await self._acknowledge()
        else:
            await self._kept_by(self.cursor.flush())

    def take(self, item: object) -> None:
        """See what was delivered."""
        judge = self._judge
        if isinstance(item, Gap):
            name = item.stream.rpartition("/")[2]
            may_be = [one for one in judge.streams.values() if one.left or one.has_lost]
            demand(
                item.kind == "trimmed" and bool(may_be),
                f"S20: {item} of {name} is told, and nothing was lost",
            )
            return
        for record in item if isinstance(item, Chunk) else [item]:
            assert isinstance(record, OriginRecord) and record.origin is not None
            facts, dlsn = judge.streams[record.origin.id], record.dlsn
            demand(
                bytes(record.payload).startswith(facts.id.encode()),
                f"S12: {dlsn} of {facts.name} is another's",
            )
            given = self.given.setdefault(facts.id, {})
            if self._is_followed(facts):
                last = self._last.get(facts.id)
                demand(
                    last is None or dlsn > last, f"S11: {dlsn} of {facts.name} came behind {last}"
                )
                before = self._kept_before.get(facts.id, set())
                demand(
                    dlsn not in before,
                    f"S10: {dlsn} of {facts.name} was kept as done, and is delivered again",
                )
                low = max(last or FIRST, judge.first_of(facts))
                missed = [one for one in facts.places if low <= one < dlsn and one not in given]
                missed = [one for one in missed if one not in facts.acked]
                demand(
                    not missed, f"S20: {missed[:3]} of {facts.name} were passed by before {dlsn}"
                )
                self._last[facts.id] = dlsn
            given[dlsn] = record.seq

    async def _acknowledge(self) -> None:
        rng = self._world.rng
        if not self.given:
            return
        stream_id = rng.choice(sorted(self.given))
        facts, given = self._judge.streams[stream_id], self.given[stream_id]
        dlsn = rng.choice([*given][-6:])
        origin = Origin(f"{SPACE}/{facts.name}", stream_id)
        record = OriginRecord(dlsn, given[dlsn], 0, 0, memoryview(b""), None, (), origin)
        if rng.random() < 0.4:
            facts.acked.add(dlsn)
            kept, done = self.cursor.ack_one(record), {dlsn: given[dlsn]}
        else:
            done = {one: seq for one, seq in given.items() if one <= dlsn}
            facts.acked |= done.keys()
            kept = self.cursor.ack(record)
        is_awaited = rng.random() < 0.4 or asyncio.iscoroutine(kept)
        if self._is_followed(facts):
            self._mine.setdefault(stream_id, {}).update(done)
        if is_awaited:
            await self._kept_by(kept)

    async def _kept_by(self, keeping: Awaitable[None]) -> None:
        """Await that what was acknowledged is kept; then it has to be, whoever holds the cursor by now."""
        mine = {stream_id: dict(done) for stream_id, done in self._mine.items()}
        await keeping
        record = self._judge.record
        assert record is not None
        acks = PatternAcks(record)
        for stream_id, done in mine.items():
            facts = self._judge.streams[stream_id]
            if not self._is_followed(facts) or facts.since_s is None:
                continue
            found, first = acks.get(stream_id) or CursorAcks(), self._judge.first_of(facts)
            lost = [
                one for one, seq in done.items() if one >= first and not _is_done(found, one, seq)
            ]
            demand(
                not lost,
                f"S10: {lost[:3]} of {facts.name} were said to be kept, the mark is {found.mark}",
            )
            facts.kept.update(done)


class PatternWorld:
    """Holders of one cursor, writers, janitors, and those who create, rename and delete streams."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self.rng = rng = random.Random(seed)
        self.clock = clock
        self.cluster = Cluster()
        self.judge = PatternJudge(self.cluster, clock)
        self.start = rng.choice(["earliest", "earliest", "latest"])
        self._policy = PolicyPatch(
            roll_bytes=rng.choice([1, 150, 400]),
            retention_bytes=rng.choice([1, 500]),
            roll_age_s=60.0,
        )
        self._processes = Actors(rng, self.cluster)

    def _space(self, client: FakeClient) -> Namespace:
        return Namespace(Catalog(as_client(client)), SPACE)

    def _effect(self, client: FakeClient, what: str) -> None:
        if what == "metadata.change":
            self._processes.look(self.judge.step)

    # --- life ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live, then heal, then judge."""
        rng = self.rng
        first = self._space(self._processes.client())
        await first.create(self._policy)
        await first.create_streams(NAMES[:2])
        self.judge.space_id = (await first._catalog.place((SPACE,))).here.id
        self.judge.step()
        plan = self.cluster.plan = WatchedPlan(rng, self.clock, self._effect)
        again = self._processes.again
        lives = [self._write] * rng.randint(1, 3) + [self._hold] * rng.randint(1, 2)
        lives += [self._clean] * rng.randint(1, 2) + [self._meddle] * rng.randint(1, 2)
        actors = [asyncio.ensure_future(again(plan, one, 0.3)) for one in lives]
        await asyncio.sleep(rng.choice([60, 200]))
        self._processes.over.set()
        await asyncio.gather(*actors)
        self._processes.check()
        self.cluster.plan = QuietPlan(self._effect)
        old_s = asyncio.get_running_loop().time() + NEW_S
        while asyncio.get_running_loop().time() < old_s:
            await asyncio.sleep(NEW_S)
        await self._clean(self._processes.client())
        self._processes.check()
        await self._drain()

    async def _hold(self, client: FakeClient) -> None:
        await Holding(self, client).live()

    async def _clean(self, client: FakeClient) -> None:
        rng, janitor = (
            self.rng,
            Janitor(as_client(client), JanitorOptions(thorough_every=1, roll_grace_s=1.0)),
        )
        for _ in range(3):
            with suppress(*AWAY):
                await janitor.pass_once()
            await asyncio.sleep(rng.choice([0.1, 5]))

    async def _meddle(self, client: FakeClient) -> None:
        """Create, rename and delete streams."""
        rng, space = self.rng, self._space(client)
        for _ in range(rng.randint(1, 6)):
            await asyncio.sleep(rng.choice([0.1, 5, 60]))
            one, other = rng.sample(NAMES, 2)
            with suppress(Error):
                match rng.randrange(6):
                    case 0:
                        await space.delete_stream(one)
                    case 1 | 2:
                        await space.rename_stream(one, other)
                    case _:
                        await space.create_stream(one)

    async def _write(self, client: FakeClient) -> None:
        """Append to some stream, whatever it is called meanwhile."""
        rng = self.rng
        stream = self._space(client).stream(rng.choice(NAMES))
        with suppress(Error):
            stream_id = (await stream.context()).store.stream_id
            async with stream.writer() as writer:
                for _ in range(rng.randint(1, 20)):
                    place = await writer.append(
                        b"%s %d" % (stream_id.encode(), rng.getrandbits(60))
                    )
                    insort(self.judge.streams[stream_id].places, place)
                    await asyncio.sleep(rng.choice([0, 0.01, 1]))

    # --- the end ------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Hold it once more, and read all that is left: with what was acknowledged it is everything (S20)."""
        last = Holding(self, self._processes.client(), tail=False, on_gap="yield")
        await last.open()
        async for item in last.cursor:
            last.take(item)
        await last.cursor.close()
        self._processes.check()
        for facts in self.judge.streams.values():
            if facts.since_s is None:
                continue
            first, given = self.judge.first_of(facts), last.given.get(facts.id, {})
            left = [
                one
                for one in facts.places
                if one >= first and one not in given and one not in facts.acked
            ]
            demand(
                not left, f"S20: {left[:3]} of {facts.name} were neither acknowledged nor delivered"
            )


def run_patterns(seed: int) -> None:
    """Live the world of patterns of a seed. Raises Broken, Stuck, or whatever else should not be."""
    try:
        live(PatternWorld, seed, seed)
    except Error as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
