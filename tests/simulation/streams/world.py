"""One stream under writers, takeovers, crashes, outages and roll by size and age: a seed decides all of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

from fastbk.errors import Error, MetadataUnavailable, NotEnoughBookies
from fastbk.meta.records import Change
from fastbk.stream.chain import Chain, StreamKind, put_chain
from fastbk.stream.chain_store import ChainStore
from fastbk.stream.context import StreamContext
from fastbk.stream.opening import delete_pending, new_owner, open_stream
from fastbk.stream.options import WriterOptions
from fastbk.stream.paths import chain_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan, RandomPlan
from tests.simulation.streams.facts import Judge, Told, demand
from tests.simulation.streams.loop import Clock, run_simulated

STREAM = "ab"
LIMIT_S = 360_000.0


class WorldPlan(RandomPlan):
    """Calls take time; metadata goes away for a while, or loses answers; bookies refuse or are slow."""

    def __init__(self, rng: random.Random, clock: Clock) -> None:
        super().__init__(rng, rng.choice([0, 0, 0.05, 0.2]), rng.choice([0, 0, 0.1, 0.3]))
        self._clock = clock
        self._slow = rng.choice([0.0, 0.001, 0.1])
        self._refuses = rng.choice([0, 0, 0.02])
        self._is_out_until_s = 0.0
        self._outages = rng.choice([0, 0, 0.002])

    async def after(self, client: FakeClient, what: str) -> None:
        await super().after(client, what)
        if what == "create" and self.rng.random() < self.lost:
            raise MetadataUnavailable("the answer was lost")

    async def before(self, client: FakeClient, what: str) -> None:
        if self.rng.random() < self._outages:
            self._is_out_until_s = self._clock.monotonic() + self.rng.choice([1, 10, 70])
        if what.startswith("metadata") and self._clock.monotonic() < self._is_out_until_s:
            rng = self.rng
            await asyncio.sleep(rng.random())
            raise MetadataUnavailable("metadata is away", outcome="not_written")
        if self._slow:
            rng = self.rng
            await asyncio.sleep(rng.uniform(0, self._slow))
        await super().before(client, what)
        if what in ("create", "open", "append") and self.rng.random() < self._refuses:
            raise NotEnoughBookies("too few bookies answer")


class World:
    """Writers of one stream; at the end it is opened once more, and judged."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self.rng = random.Random(seed)
        self.clock = clock
        self.cluster = Cluster()
        self.told = Told()
        self.next_txid = 0
        self.policy = StreamPolicy(
            roll_bytes=self.rng.choice([0, 150, 400, 5000]),
            roll_age_s=self.rng.choice([1, 30, 7200]),
        )

    def context(self, client: FakeClient) -> StreamContext:
        async def policy() -> StreamPolicy:
            return self.policy

        store = ChainStore(client.records, STREAM, 10.0)  # type: ignore[arg-type]
        return StreamContext(client, store, "sim/ab", policy)  # type: ignore[arg-type]

    async def run(self) -> None:
        """Live, then heal, then judge."""
        first = self.cluster.client("first")
        await first.records.change(Change(chain_path(STREAM), put_chain(Chain(STREAM))))
        judge = Judge(self.cluster, STREAM)
        self.cluster.plan = WorldPlan(self.rng, self.clock)
        judging = asyncio.ensure_future(self._judge_often(judge))
        for number in range(self.rng.randint(1, 6)):
            await self._some_writers(number)
            self.clock.shift(self.rng.choice([0, 0, -100, 50]))
        judging.cancel()
        await asyncio.gather(judging, return_exceptions=True)
        if judging.done() and not judging.cancelled() and judging.exception() is not None:
            raise judging.exception()  # type: ignore[misc]
        self.cluster.plan = Plan()
        judge.look()
        context = self.context(self.cluster.client("last"))
        await delete_pending(
            context,
            await open_stream(context.client, context.store, new_owner(), StreamKind.WRITER),
        )
        judge.settle(self.told)
        left = set(self.cluster.ledgers) - {row.ledger_id for row in judge.rows(judge.chain)}
        assert not left, f"S18: ledgers {left} are left"

    async def _judge_often(self, judge: Judge) -> None:
        while True:
            judge.look()
            await asyncio.sleep(self.rng.random() * 5)
            if self.rng.random() < 0.1:
                self.clock.shift(self.rng.choice([-20, 1, 50]))

    async def _some_writers(self, number: int) -> None:
        clients = [
            self.cluster.client(f"{number}{name}")
            for name in "abc"[: self.rng.choice([1, 1, 2, 3])]
        ]
        tasks = [asyncio.ensure_future(self._write(one)) for one in clients]
        limit_s = self.rng.choice([0.01, 1, 20, 200])
        await asyncio.wait(tasks, timeout=limit_s)
        for client, task in zip(clients, tasks, strict=True):
            if not task.done():
                client.crash()
                task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]

    async def _write(self, client: FakeClient) -> None:
        rng = self.rng
        options = WriterOptions(
            entries_in_flight=rng.randint(1, 6),
            batch_bytes=rng.choice([1, 300, 65536]),
            linger=rng.choice([0, 0, 0.01]),
            publish=rng.choice(["immediate", "piggyback"]),
        )
        writer = StreamWriter(self.context(client), options)
        futures: list[asyncio.Future[DLSN]] = []
        try:
            await writer.open()
            for _ in range(rng.randrange(60)):
                self._append(writer, client, futures)
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.choice([0, 0.001, 0.5, 40]))
                if rng.random() < 0.05:
                    await rng.choice([writer.flush, writer.publish, writer.roll, writer.ready])()
            if rng.random() < 0.3:
                writer.abort()
            else:
                await writer.close()
        except Error:
            pass

    def _append(
        self, writer: StreamWriter, client: FakeClient, futures: list[asyncio.Future[DLSN]]
    ) -> None:
        count = self.rng.choice([1, 1, 1, 3])
        ids = [max(self.next_txid, writer.last_txid + 1) + at for at in range(count)]
        self.next_txid = ids[-1] + 1
        payloads = [
            b"%s %d " % (client.name.encode(), txid) * self.rng.choice([1, 5]) for txid in ids
        ]
        self.told.given.update(zip(ids, payloads, strict=True))
        try:
            if count == 1:
                future = writer.append_nowait(payloads[0], txid=ids[0])
            else:
                future = writer.append_batch_nowait(payloads, txids=ids)
        except Error:
            self.told.never_sent.update(ids)
            return
        before = futures[-1] if futures else None
        futures.append(future)

        def answered(done: asyncio.Future[DLSN]) -> None:
            if not done.cancelled() and done.exception() is None and before is not None:
                is_first = before.done() and not before.cancelled() and before.exception() is None
                demand(is_first, "S5: an append succeeded behind one that did not")
            self._answered(done, ids, writer, client)

        future.add_done_callback(answered)

    def _answered(
        self, done: asyncio.Future[DLSN], ids: list[int], writer: StreamWriter, client: FakeClient
    ) -> None:
        if done.cancelled() or client.is_crashed:
            return
        error = done.exception()
        if error is None:
            chain = Judge(self.cluster, STREAM).chain
            for slot, txid in enumerate(ids):
                place = done.result()._replace(slot=done.result().slot + slot)
                self.told.acknowledged(txid, place, writer.epoch, chain)
        elif isinstance(error, Error) and error.outcome == "not_written":
            self.told.never_sent.update(ids)


class AnyWorld(Protocol):
    """What a seed decides all of."""

    async def run(self) -> None:
        """Live, then heal, then judge."""


def live(world: Callable[[int, Clock], AnyWorld], seed: int, draws: int) -> None:
    """Live the world of a seed. `draws`: the seed of what the product draws."""

    async def main(clock: Clock) -> None:
        await asyncio.wait_for(world(seed, clock).run(), LIMIT_S)

    run_simulated(main, draws)


def run_seed(seed: int) -> None:
    """Live the world of a seed. Raises Broken, Stuck, or whatever else should not be."""
    live(World, seed, 0)
