"""What several callers want and is done once: something that is asked for again and again, and the end of something.

Also what is said once: that somebody else has a ledger, stream or cursor now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from fastbk.errors import (
    ClientClosed,
    CursorFenced,
    Error,
    LedgerFenced,
    NoSuchLedger,
    StreamNotFound,
    WriterFenced,
)

TAKEN_AWAY = (LedgerFenced, NoSuchLedger, WriterFenced, StreamNotFound, CursorFenced)
"""What ends writers and cursors whose ledger, stream or cursor somebody else has opened, or deleted.

The first call that meets it raises it, and the application stops. The end of its block says it only where no call has.
"""


def may_end_quietly(closing: Error, leaving: BaseException | None, *, is_reported: bool) -> bool:
    """Return whether the end of a block keeps to itself what closing raised.

    `leaving`: the exception that ends the block. It says more than what closing says after it, and gets that as a note.
    `is_reported`: whether a call of the block has raised that somebody else has it now (TAKEN_AWAY).
    """
    if leaving is None:
        return is_reported and isinstance(closing, TAKEN_AWAY)
    if not isinstance(leaving, type(closing)):
        leaving.add_note(f"Closing failed, too: {closing}")
    return True


class Coalescer:
    """Runs `work` after each `poke`; pokes that come while it runs are answered by one run more."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._is_wanted = False
        self._task: asyncio.Task[None] | None = None

    def schedule(self) -> None:
        """Have it done from now on; to be called on the loop."""
        self._is_wanted = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._is_wanted:
                self._is_wanted = False
                await self._work()
        finally:
            self._task = None

    def cancel(self) -> None:
        """Give up what is under way."""
        self._is_wanted = False
        if self._task is not None:
            self._task.cancel()


class SharedEnd:
    """The end of something: made once, by the first who calls for it; each who calls later waits for it, too."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0

    async def reach(
        self,
        end: Callable[[], Coroutine[object, object, None]],
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `end()` if nobody has; wait for it, and raise what it raised.

        `give_up()` is called when nobody waits for it any more. It goes on without it.
        """
        task = self._task
        if task is None:
            task = self._task = asyncio.get_running_loop().create_task(end())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting += 1
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            if self._waiting == 1:
                give_up()
            raise
        finally:
            self._waiting -= 1
        if task.cancelled():
            raise ClientClosed("closing was given up: the event loop was stopped")
        error = task.exception()
        if error is not None:
            raise error.copy() if isinstance(error, Error) else error
