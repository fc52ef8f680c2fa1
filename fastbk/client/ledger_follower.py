"""Keeps the metadata of a ledger that is tailed up to date, beside the tail and never in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastbk.errors import MetadataUnavailable
from fastbk.meta.api import Watch
from fastbk.retry import Retry

AGAIN_S = 0.1
AGAIN_S_MAX = 5.0


class LedgerFollower:
    """Begins a watch at the first `follow`, reads the metadata, and reads it again at each change and each `check`.

    Nothing else: the store's watch looks again by itself after its connection was lost (`fastbk.meta.api`). So an idle
    tail makes no calls.

    While the metadata store is away the tail goes on with the metadata it has (S13), and the follower tries again.

    Attributes:
        failure: why the ledger cannot be followed any more, such as NoSuchLedger; None while it is followed.
    """

    def __init__(
        self,
        watch: Callable[[Callable[[], None]], Awaitable[Watch]],
        read: Callable[[], Awaitable[object]],
    ) -> None:
        """`watch(changed)` begins a watch; `read()` reads and keeps the metadata. MetadataUnavailable: try again."""
        self.failure: BaseException | None = None
        self._watch = watch
        self._read = read
        self._changed = asyncio.Event()
        self._listener: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None

    def follow(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each read, and after a failure, until `pause`."""
        self._listener = listener
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    def pause(self) -> None:
        """Call nobody; go on reading."""
        self._listener = None

    def check(self) -> None:
        """Read the metadata now: a bookie knows more than was read."""
        self._changed.set()

    async def _run(self) -> None:
        retry = Retry(AGAIN_S, AGAIN_S_MAX)
        watch: Watch | None = None
        try:
            while True:
                try:
                    if watch is None:
                        watch = await self._watch(self._changed.set)
                    self._changed.clear()  # a change during the read is read again
                    await self._read()
                except MetadataUnavailable as error:
                    await asyncio.sleep(retry.pause_s(error))
                    continue
                retry.restart()
                self._notify()
                await self._changed.wait()
        finally:
            if watch is not None:
                watch.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.failure = task.exception()
            self._notify()

    def _notify(self) -> None:
        if self._listener is not None:
            self._listener()

    async def stop(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
