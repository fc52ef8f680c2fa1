"""One stream with all that uses it: writers, readers, cursors, truncation, retention and janitors; a seed decides it.

In the first phase everything may fail. Then all is healed: one pass of a janitor has to bring everything in order, who
tails has to see a record that is appended alone, and what is left is compared with what everybody was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from unittest.mock import patch

from fastbk import errors
from fastbk.errors import Error
from fastbk.stream.chain import StreamKind
from fastbk.stream.chain_store import page_name
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.opening import delete_pending, new_owner, open_stream
from fastbk.stream.options import WriterOptions
from fastbk.stream.paths import pages_path
from fastbk.stream.policy import PolicyPatch, effective
from fastbk.stream.positions import DLSN
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Gap
from fastbk.stream.stream import truncate
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import FakeClient
from tests.fixtures.streams import new_stream
from tests.simulation.streams.actors import Actors
from tests.simulation.streams.facts import Broken, demand
from tests.simulation.streams.holding import CursorFacts, Holding
from tests.simulation.streams.loop import Clock
from tests.simulation.streams.places import Places
from tests.simulation.streams.reading import AWAY, Reading, some_start
from tests.simulation.streams.watching import QuietPlan, WatchedPlan, WholeJudge
from tests.simulation.streams.world import STREAM, World, live

CATCH_UP_S = 60.0
SIZES: tuple[dict[str, tuple[int, ...]], ...] = (
    {"chain_store.ROWS_MAX": (1280, 4, 8), "chain_store.PAGE_ROWS": (1024, 2, 5)},
    {"deletion.DROPPED_AT_ONCE": (256, 1, 3)},
    {"cursor.store.ENTRIES_MAX": (50_000, 2)},
    {"cursor.store.RECORD_BURST": (5, 0)},
    {"cursor.state.RANGES_MAX": (10_000, 10_000, 2)},
)
"""Bounds that no world would reach, and what they are in some."""


class WholeWorld(World):
    """Everybody who uses the stream of `World`."""

    stream_id = STREAM

    def __init__(self, seed: int, clock: Clock) -> None:
        super().__init__(seed, clock)
        # In some worlds janitors close what writers seem to have left; those that live go on in other segments.
        self._closes_left, self._left_after_s = seed % 4 == 3, 0.0 if seed % 8 == 3 else 25.0
        rng = self.rng
        age_s, size_bytes = rng.choice([0.0, 0.0, 60.0, 1000.0]), rng.choice([0, 0, 500, 3000])
        self.patch = PolicyPatch(
            roll_bytes=self.policy.roll_bytes,
            roll_age_s=self.policy.roll_age_s,
            retention_age_s=age_s,
            retention_bytes=size_bytes,
            hard_age_s=age_s * rng.choice([0, 0, 3]),
            hard_bytes=size_bytes * rng.choice([0, 0, 2]),
            hold_for_cursors=rng.random() < 0.8,
        )
        self.policy = effective([self.patch])
        self.places = Places(self.told)
        self.judge = WholeJudge(self.cluster, STREAM, self.policy, clock)
        self.last_txid = -1
        self._cursors = [
            CursorFacts(
                name, rng.random() < 0.7, rng.choice([None, None, 60.0]), rng.random() < 0.3
            )
            for name in "pq"[: rng.randrange(3)]
        ]
        self._processes = Actors(rng, self.cluster)

    # --- watching -----------------------------------------------------------------------------------------------

    def _effect(self, client: FakeClient, what: str) -> None:
        self._processes.look(self.judge.step)

    def warning(self, event: str, **facts: object) -> None:
        """A janitor tells of a stream that it could not work on: no bug may be passed by so."""
        name, _, reason = str(facts.get("reason", "")).partition(":")
        if event == "janitor.stream_failed":
            kind = getattr(errors, name, None)
            is_known = (
                kind is not None and issubclass(kind, Error) and kind is not errors.StorageError
            )
            if not is_known and self._processes.broken is None:
                self._processes.broken = Broken(f"the janitor failed: {name}: {reason}")

    info = warning

    # --- life ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live, then heal, then judge."""
        rng = self.rng
        await new_stream(self.cluster, STREAM, self.patch)
        with ExitStack() as stack:
            stack.enter_context(patch("fastbk.stream.janitor._log", self))
            for group in SIZES:
                at = rng.randrange(len(next(iter(group.values()))))
                for name, sizes in group.items():
                    stack.enter_context(patch(f"fastbk.stream.{name}", sizes[at]))
            self.judge.step()
            self._plan = self.cluster.plan = WatchedPlan(rng, self.clock, self._effect)
            watchers = [
                asyncio.ensure_future(
                    Reading(self, self._processes.client(), is_watcher=True).live()
                )
                for _ in range(rng.randint(1, 2))
            ]
            actors = [asyncio.ensure_future(one) for one in self._actors()]
            for number in range(rng.randint(1, 6)):
                await self._some_writers(number)
                self._shift(rng.choice([0, 0, -100, 50]))
                self._processes.check()
            self._processes.over.set()
            await asyncio.gather(*actors)
            await self._heal(watchers)

    def _actors(self) -> list[Coroutine[None, None, None]]:
        rng = self.rng
        actors = [
            self._processes.again(self._plan, lambda client: Reading(self, client).live())
            for _ in range(rng.randrange(3))
        ]
        for facts in self._cursors:
            for _ in range(rng.randint(1, 2)):
                live = lambda client, facts=facts: Holding(self, client, facts).live()  # noqa: E731
                actors.append(self._processes.again(self._plan, live))
        again = self._processes.again
        actors += [again(self._plan, self._janitor, 0.8) for _ in range(rng.randrange(3))]
        actors += [again(self._plan, self._truncate) for _ in range(rng.randrange(2))]
        return actors

    def _shift(self, by_s: float) -> None:
        self.clock.shift(by_s)

    async def _janitor(self, client: FakeClient) -> None:
        rng = self.rng
        options = JanitorOptions(
            roll_grace_s=rng.choice([0.0, 1.0, 60.0]),
            thorough_every=rng.choice([1, 3]),
            ledgers_per_s=rng.choice([1.0, 500.0]),
            left_after_s=self._left_after_s,
        )
        janitor = Janitor(client, options)  # type: ignore[arg-type]
        for _ in range(rng.randint(1, 6)):
            with suppress(*AWAY):
                await janitor.pass_once()
            looks = 3 if self._closes_left else 0
            while looks:
                with suppress(*AWAY):
                    await janitor.close_left_segments()
                await asyncio.sleep(15)
                looks -= 1
            await asyncio.sleep(rng.choice([0.1, 5, 60]))

    async def _truncate(self, client: FakeClient) -> None:
        where, kept, before = some_start(self), self.told.last_kept, self.judge.chain.trim
        try:
            point = await truncate(self.context(client), where)
        except AWAY:
            return
        now = self.judge.chain.trim
        demand(
            before <= point <= now,
            f"S7: truncated to {point}, {before} held before and {now} holds",
        )
        if isinstance(where, DLSN):
            at_least = where if kept is not None and where <= kept else before
            demand(
                point >= at_least, f"S7: truncation at {where} ended at {point}, {kept} was kept"
            )

    def _answered(self, done, ids, writer, client) -> None:  # type: ignore[no-untyped-def]
        super()._answered(done, ids, writer, client)
        for txid in ids:
            if txid in self.told.kept:
                self.places.note(self.told.kept[txid], txid)

    # --- the end ------------------------------------------------------------------------------------------------

    async def _heal(self, watchers: list[asyncio.Task[None]]) -> None:
        self.cluster.plan = QuietPlan(self._effect)
        # The clock may have gone back by some of it.
        ended, _ = await asyncio.wait(watchers, timeout=self.policy.roll_age_s + 200)
        for task in ended:
            task.result()
        # A record may have its time from right before the clock went back.
        last_s = max(self.judge.chain.last_time_us / 1e6, self.clock.latest_s())
        self.clock.shift(last_s - self.clock.time() + self.policy.roll_age_s + 61)
        await self._pass_once()
        await self._append_alone(watchers)
        context = self.context(self._processes.client())
        known = await open_stream(context.client, context.store, new_owner(), StreamKind.WRITER)
        await delete_pending(context, known)
        self._processes.check()
        self.judge.settle(self.told)
        records = self.judge.records()
        there = {one.dlsn for one in records}
        for record in records:
            self.places.see(record)
        chain = self.judge.chain
        lost = [
            p
            for p in self.places.all_from(DLSN(chain.deleting, 0, 0))
            if p not in there and p >= chain.trim
        ]
        demand(not lost, f"S2: {lost[:3]} were read, and are gone")
        await self._read_all([one.dlsn for one in records if one.dlsn >= chain.trim])
        for facts in self._cursors:
            await Holding(self, self._processes.client(), facts).drain(records)
        self._processes.check()
        left = set(self.cluster.ledgers) - {
            row.ledger_id for row in self.judge.rows(self.judge.chain)
        }
        demand(not left, f"S18: ledgers {left} are left")

    async def _pass_once(self) -> None:
        """One pass of a janitor, and nothing is left to be done (S9, S17, S18)."""
        janitor = Janitor(self._processes.client(), JanitorOptions(thorough_every=1))  # type: ignore[arg-type]
        counts = await janitor.pass_once()
        self._processes.check()
        demand(counts.errors == 0, "S18: the janitor could not work on the stream")
        judge, chain = self.judge, self.judge.chain
        for row in chain.open_rows:
            ledger = self.cluster.ledgers[row.ledger_id]
            demand(not ledger.acknowledged, f"S17: segment {row.number} is idle, and open")
        demand(
            chain.head == chain.deleting,
            f"S18: segments below {chain.deleting} are left half deleted",
        )
        demand(not chain.doomed, f"S18: ledgers {chain.doomed} wait to be deleted")
        folder = f"{pages_path(STREAM)}/"
        pages = {
            path.removeprefix(folder)
            for path in self.cluster.records.values
            if path.startswith(folder)
        }
        named = {page_name(page) for page in chain.pages}
        # One of a number that is not used yet may have been written by a writer who is slow: it may still be named.
        left = {one for one in pages - named if int(one.partition("-")[0]) < chain.next_page}
        demand(not left, f"S15, S18: pages {left} are there, and nothing names them")
        rows = judge.rows(chain)
        if rows and not rows[0].is_open:
            why = judge.why_kept(chain, rows, rows[0], is_late=False)
            demand(bool(why), f"S9: nothing holds segment {rows[0].number}, and it is there")

    async def _append_alone(self, watchers: list[asyncio.Task[None]]) -> None:
        """A record that is appended alone, with default settings, is seen by all who tail (S16)."""
        writer = StreamWriter(self.context(self._processes.client()), WriterOptions())
        await writer.open()
        txid = self.next_txid = max(self.next_txid, writer.last_txid + 1)
        self.next_txid += 1
        self.told.given[txid] = b"the last one"
        future = writer.append_nowait(self.told.given[txid], txid=txid)
        self.last_txid = txid
        place = self.told.kept[txid] = await future
        self.places.note(place, txid)
        done, waiting = await asyncio.wait(watchers, timeout=CATCH_UP_S)
        for task in done:
            task.result()
        demand(not waiting, "S16: a tailing reader does not get to the last record")
        await writer.close()

    async def _read_all(self, expected: list[DLSN]) -> None:
        """A new reader delivers exactly what is there and was not truncated (S2, S7)."""
        found: list[DLSN] = []
        async with StreamReader(self.context(self._processes.client()), tail=False) as reader:
            async for record in reader:
                assert not isinstance(record, Gap)
                self.places.see(record)
                found.append(record.dlsn)
        demand(
            found == expected, f"S2, S7: a new reader sees {found[:3]}…, there are {expected[:3]}…"
        )


def run_whole(seed: int) -> None:
    """Live the whole world of a seed. Raises Broken, Stuck, or whatever else should not be."""
    try:
        live(WholeWorld, seed, seed)
    except Error as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
