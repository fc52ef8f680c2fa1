"""An event loop without waiting: when nothing is ready, time jumps to the next timer. The rest is asyncio's own."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")

EPOCH_US = 1_800_000_000_000_000
MODULES = ("append_engine", "chain_store", "segment_keeper", "segment_writer")
"""Of fastbk.stream: those that read a clock."""


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
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop in simulated seconds."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the simulated time."""
        return self._jumping.now_s


class Clock:
    """In place of the module `time`: the loop's seconds, and a wall clock that may be set."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.shift_s = 0.0

    def monotonic(self) -> float:
        """Return the loop's time."""
        return self._loop.time()

    def time_ns(self) -> int:
        """Return the wall clock's time."""
        return EPOCH_US * 1000 + int((self._loop.time() + self.shift_s) * 1e9)


async def _end_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def run_simulated(main: Callable[[Clock], Coroutine[Any, Any, T]]) -> T:
    """Run `main(clock)` on a loop of its own, end what it leaves, and return its result.

    Raises Stuck, what it raises, and what any task raised that nobody looked at.
    """
    loop = SimulatedLoop()
    clock = Clock(loop)
    complaints: list[dict[str, Any]] = []
    tasks: list[asyncio.Task[Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))

    def keep(on: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=on, **options)
        tasks.append(task)
        return task

    loop.set_task_factory(keep)
    with ExitStack() as stack:
        for name in MODULES:
            stack.enter_context(patch(f"fastbk.stream.{name}.time", clock))
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
