"""An event loop without waiting: when nothing is ready, time jumps to the next timer. The rest is asyncio's own."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")

EPOCH_US = 1_800_000_000_000_000
CLOCKED = (
    "context",
    "deletion",
    "janitor",
    "namespace.catalog",
    "opening",
    "reader.stream_reader",
    "writer.engine",
    "writer.segment_lifecycle",
)
"""Modules of fastbk.stream that read a clock."""
DRAWING = {
    "chain_store": "secrets",
    "janitor": "random",
    "namespace.namespace": "secrets",
    "opening": "secrets",
}
"""Those that draw something, and from which module."""


class Stuck(Exception):
    """Nothing is ready and no timer runs: what is awaited never comes."""


class _Jumping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is ready, and no timer runs")
        if timeout > 0:
            self.now_s += timeout
        return []  # no socket, no thread: the system is not asked


class SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop in simulated seconds."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


class Clock:
    """In place of the module `time`: the loop's seconds, and a wall clock that may be set."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.shift_s = 0.0
        self._latest_s = 0.0

    def monotonic(self) -> float:
        return self._loop.time()

    def time(self) -> float:
        return self.time_ns() / 1e9

    def shift(self, by_s: float) -> None:
        self._latest_s = max(self._latest_s, self.time())
        self.shift_s += by_s

    def latest_s(self) -> float:
        """Return the latest time that it ever showed."""
        return max(self._latest_s, self.time())

    def time_ns(self) -> int:
        return EPOCH_US * 1000 + int((self._loop.time() + self.shift_s) * 1e9)


class Draws:
    """In place of `random` and `secrets`: the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def uniform(self, low: float, high: float) -> float:
        return self._rng.uniform(low, high)

    def randbits(self, count: int) -> int:
        return self._rng.getrandbits(count)

    def token_hex(self, size: int) -> str:
        return self._rng.randbytes(size).hex()


async def _end_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def run_simulated(main: Callable[[Clock], Coroutine[Any, Any, T]], seed: int = 0) -> T:
    """Run `main(clock)` on a loop of its own, end what it leaves, and return its result.

    `seed`: of what the product draws, ids and pauses.

    Raises Stuck, what it raises, and what any task raised that nobody looked at.
    """
    loop = SimulatedLoop()
    clock, draws = Clock(loop), Draws(seed)
    complaints: list[dict[str, Any]] = []
    tasks: list[asyncio.Task[Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))

    def keep(on: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=on, **options)
        tasks.append(task)
        return task

    loop.set_task_factory(keep)
    with ExitStack() as stack:
        for name in CLOCKED:
            stack.enter_context(patch(f"fastbk.stream.{name}.time", clock))
        for name in ("retry", "limits"):
            stack.enter_context(patch(f"fastbk.{name}.time", clock))
        # Draws of their own: one more pause changes no id.
        stack.enter_context(patch("fastbk.retry.random", Draws(seed)))
        for name, source in DRAWING.items():
            stack.enter_context(patch(f"fastbk.stream.{name}.{source}", draws))
        try:
            result = loop.run_until_complete(main(clock))
        finally:
            forgotten = [
                one for one in tasks if one.done() and not one.cancelled() and one._log_traceback
            ]
            loop.run_until_complete(_end_all())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
    broken = [one["exception"] for one in complaints if "exception" in one]
    broken += [error for error in (one.exception() for one in forgotten) if error is not None]
    if broken:
        raise broken[0]
    return result
