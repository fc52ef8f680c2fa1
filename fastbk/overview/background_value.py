"""A value that is read in the background, so that a slow metadata store or bookie delays nobody who shows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from fastbk.errors import Error

T = TypeVar("T")


class BackgroundValue(Generic[T]):
    """The newest value of `read`, begun anew at most every `interval_s`, one at a time.

    Attributes:
        value: the newest; at first the one given. error: why the last read failed; "" if it did not.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], Awaitable[T]],
        value: T,
        *,
        interval_s: float,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name`: for errors."""
        self.value = value
        self.error = ""
        self._name = name
        self._read = read
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._due_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def refresh(self) -> None:
        """Begin to read, if that is due and none is under way. Returns at once."""
        if (self._task is None or self._task.done()) and self._clock() >= self._due_s:
            self._task = asyncio.create_task(self._run())

    async def settled(self, within_s: float) -> None:
        """Return when the read under way has ended, or after that time."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=within_s)

    async def close(self) -> None:
        """End a read under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                self.value = await self._read()
            self.error = ""
        except TimeoutError:
            self.error = f"{self._name}: not read within {self._timeout_s:g} s"
        except (Error, OSError) as error:
            self.error = f"{self._name}: {' '.join(str(error).split())}"
        finally:
            self._due_s = self._clock() + self._interval_s
