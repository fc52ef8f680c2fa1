"""Processes of a simulated world: each does what it is for until it ends, is stopped, or crashes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress

from tests.fixtures.fake_ledgers import Cluster, FakeClient
from tests.simulation.streams.watching import WatchedPlan

Life = Callable[[FakeClient], Coroutine[None, None, None]]


class Actors:
    """Makes processes one behind the other, until the first phase of a world is over."""

    def __init__(self, rng: random.Random, cluster: Cluster) -> None:
        self._rng = rng
        self._cluster = cluster
        self.broken: BaseException | None = None
        """What was found first; some callers of the product pass by what one stream raises."""
        self._count = 0
        self.over = asyncio.Event()
        """Set: nobody makes another process."""

    def client(self) -> FakeClient:
        self._count += 1
        return self._cluster.client(f"r{self._count}")

    def look(self, judge: Callable[[], None]) -> None:
        """Judge an effect, until one is found to be wrong."""
        if self.broken is None:
            try:
                judge()
            except BaseException as error:
                self.broken = error
                raise

    def check(self) -> None:
        """Raise what was found to be broken meanwhile."""
        if self.broken is not None:
            raise self.broken

    async def again(
        self,
        plan: WatchedPlan,
        live: Life,
        crashes: float = 0.4,
        pauses_s: Sequence[float] = (0.01, 1, 20),
    ) -> None:
        """Have one process after the other do this, each until it ends, crashes or is stopped."""
        rng = self._rng
        while not self.over.is_set():
            client, over = self.client(), asyncio.Event()
            if rng.random() < crashes:
                plan.crash_at(client, rng.randint(1, 60), rng.random() < 0.5, over.set)
            task = asyncio.ensure_future(live(client))
            task.add_done_callback(lambda _, over=over: over.set())  # type: ignore[misc]
            with suppress(TimeoutError):
                async with asyncio.timeout(rng.choice([0.1, 5, 60, 200])):
                    await over.wait()
            if not task.done():
                client.crash()
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]
            self.check()
            await asyncio.sleep(rng.choice(pauses_s))
