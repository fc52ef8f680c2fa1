"""Cursors that are held, taken over, crashed and cut off at random, on ledgers in memory. INV-S8, INV-S10."""

from __future__ import annotations

import asyncio
import random

import pytest

from fastbk.errors import CursorFenced, Error
from fastbk.stream.cursor import store
from fastbk.stream.cursor.store import delete_cursor
from tests.fixtures.cursor_holder import STREAM, Holder, ledgers_named, make_stream
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan, RandomPlan


async def hold(client: FakeClient, rng: random.Random, kept: list[int], given: list[int]) -> None:
    """Hold the cursor for a while. `kept`: marks that were kept for sure, `given`: what was acknowledged."""
    holder = await Holder.open(client, interval_s=0.001, changes_max=rng.choice([1, 5, 1000]))
    seq = max(holder.acks.mark_seq, 0)
    assert seq >= max(kept, default=0), "INV-S10: at least what was flushed"
    assert seq <= max(given, default=0), "INV-S10: at most what was acknowledged"
    try:
        for _ in range(rng.randrange(60)):
            for _ in range(rng.randrange(3)):
                seq += 1
                given.append(seq + 1)
                holder.ack(seq)
            if rng.random() < 0.7:
                kept.append(await holder.flush())
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
        if rng.random() < 0.5:
            await holder.flusher.close()
    except Error:
        pass
    finally:
        holder.flusher.abort()


async def end_all_but(spared: set[asyncio.Task[object]]) -> None:
    others = asyncio.all_tasks() - spared
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def life(seed: int) -> None:
    rng, spared = random.Random(seed), asyncio.all_tasks()
    cluster = Cluster()
    make_stream(cluster)
    plan = RandomPlan(rng, away=rng.choice([0, 0.1]), lost=rng.choice([0, 0.2]))
    kept: list[int] = []
    given: list[int] = []
    for turn in range(rng.randint(2, 5)):
        cluster.plan = plan
        clients = [cluster.client(f"{turn}{name}") for name in "ab"[: rng.randint(1, 2)]]
        tasks = [asyncio.ensure_future(hold(one, rng, kept, given)) for one in clients]
        for _ in range(rng.randrange(600)):
            await asyncio.sleep(0)
        for client, task in zip(clients, tasks, strict=True):
            if rng.random() < 0.6:
                client.crash()
                task.cancel()
        done, _ = await asyncio.wait(tasks)
        for client in clients:
            client.crash()
        for one in done:
            if not one.cancelled() and isinstance(one.exception(), AssertionError):
                raise one.exception() or AssertionError
        await end_all_but(spared)
        assert set(cluster.ledgers) <= ledgers_named(cluster, "c"), "INV-S8"
    cluster.plan = Plan()
    last = await Holder.open(cluster.client())
    seq = max(last.acks.mark_seq, 0)
    assert max(kept, default=0) <= seq <= max(given, default=0), "INV-S10"
    await last.flusher.close()
    assert cluster.ledgers == {}
    assert await delete_cursor(cluster.client(), STREAM, "c")  # type: ignore[arg-type]


@pytest.mark.slow
async def test_no_order_of_takeovers_crashes_and_outages_loses_a_mark(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-S10: at most what was acknowledged, at least what was flushed. INV-S8."""
    monkeypatch.setattr(store, "RECORD_PAUSE_S", 0.0)
    monkeypatch.setattr(store, "ENTRIES_MAX", 7)
    monkeypatch.setattr(store, "LEDGER_AGAIN_S", 0.01)
    for _ in range(60):
        seed = rng.getrandbits(32)
        try:
            await asyncio.wait_for(life(seed), 20)
        except BaseException:
            print(f"seed {seed}")
            raise


@pytest.mark.parametrize("what", ["create", "append", "metadata.change"])
@pytest.mark.parametrize("nth", range(12))
@pytest.mark.parametrize("is_after", [False, True])
async def test_a_takeover_beside_any_step_loses_nothing(
    what: str, nth: int, is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-S10: whoever opens it just before or after a step of the holder finds all that the holder was told."""
    monkeypatch.setattr(store, "RECORD_PAUSE_S", 0.0)
    monkeypatch.setattr(store, "ENTRIES_MAX", 4)
    cluster = Cluster()
    make_stream(cluster)
    kept = given = 0
    later: list[Holder] = []
    told: list[tuple[int, int]] = []

    class Beside(Plan):
        left = nth

        async def _step(self, client: FakeClient, step: str) -> None:
            if client.name != "former" or step != what or later:
                return
            self.left -= 1
            if self.left < 0:
                told.append((kept, given))
                later.append(await Holder.open(cluster.client("later")))

        async def before(self, client: FakeClient, step: str) -> None:
            if not is_after:
                await self._step(client, step)

        async def after(self, client: FakeClient, step: str) -> None:
            if is_after:
                await self._step(client, step)

    former = await Holder.open(cluster.client("former"))
    cluster.plan = Beside()
    try:
        for seq in range(60):
            given = seq + 1
            former.ack(seq)
            kept = await former.flush()
            await asyncio.sleep(0)
    except CursorFenced:
        assert later
    assert later or (what, nth) >= ("create", 3), "the step was there"
    if later:
        ((floor, ceiling),) = told
        assert floor <= max(later[0].acks.mark_seq, 0) <= ceiling, "INV-S10"
        assert kept <= max(later[0].acks.mark_seq, 0), "INV-S10: nothing was kept behind its back"
        await later[0].flusher.close()
    former.flusher.abort()
    assert set(cluster.ledgers) <= ledgers_named(cluster, "c"), "INV-S8"
