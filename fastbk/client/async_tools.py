"""What the asyncio clients of ledgers and streams have in common: iterators, and work that several callers share.

INV-C6: an iterator never takes an error for the end. An asynchronous generator that an exception has left is at its
end. A caller that asked it for more would be told that there is nothing more, and would pass over all that it did not
yield. So the iterators here raise their error again.

Decision 156.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import ParamSpec, TypeVar

from fastbk.errors import (
    ClientClosed,
    CursorFenced,
    Error,
    LedgerFenced,
    NoSuchLedger,
    ProducerFenced,
    StreamNotFound,
    WriterFenced,
)

P = ParamSpec("P")
T = TypeVar("T")

# --- iterators ------------------------------------------------------------------------------------


class _Handed(AsyncGenerator[T, None]):
    """What is iterated over with `async for`, or call by call with `anext`."""

    async def __anext__(self) -> T:
        raise NotImplementedError

    async def asend(self, value: None, /) -> T:
        """Do the same as `anext`."""
        return await self.__anext__()

    async def athrow(self, kind: object, value: object = None, trace: object = None, /) -> T:
        """End it, and raise that."""
        await self.aclose()
        raise kind if isinstance(kind, BaseException) else RuntimeError(kind)


class Generated(_Handed[T]):
    """What an asynchronous generator yields. The error that ends it is raised again by each later call."""

    def __init__(self, source: AsyncGenerator[T, None]) -> None:
        self._source = source
        self._failure: BaseException | None = None

    async def __anext__(self) -> T:
        failure = self._failure
        if failure is not None:
            raise failure.copy() if isinstance(failure, Error) else failure
        try:
            return await self._source.__anext__()
        except StopAsyncIteration:
            raise
        except BaseException as error:
            if self._source.ag_frame is None:  # type: ignore[attr-defined]
                self._failure = _kept(error)
            raise

    async def aclose(self) -> None:
        """End it."""
        await self._source.aclose()


def _kept(error: BaseException) -> BaseException:
    """Return what later calls raise. It has no traceback, which would keep the frames of the caller."""
    if isinstance(error, Error):
        return error.copy()
    if isinstance(error, Exception):
        return error
    return ClientClosed(
        "this iteration was cancelled: begin another one behind what you have of it"
    )


def raised_again(
    make: Callable[P, AsyncGenerator[T, None]],
) -> Callable[P, AsyncGenerator[T, None]]:
    """Return an asynchronous generator function whose iterators raise their error again (INV-C6)."""

    @functools.wraps(make)
    def begun(*args: P.args, **options: P.kwargs) -> AsyncGenerator[T, None]:
        return Generated(make(*args, **options))

    return begun


class Elements(_Handed[T]):
    """What the items of an asynchronous generator hold, one by one. An error of the generator is its own."""

    def __init__(self, source: AsyncGenerator[Iterable[T], None]) -> None:
        """`source` raises its error again."""
        self._source = source
        self._left: Iterator[T] = iter(())

    async def __anext__(self) -> T:
        while True:
            for one in self._left:
                return one
            self._left = iter(await self._source.__anext__())

    async def aclose(self) -> None:
        """End it."""
        self._left = iter(())
        await self._source.aclose()


class Repeated(_Handed[T]):
    """What a call returns, again and again, until that is None.

    The call takes something away only when it returns: after an error, or after it was cancelled, the next one raises
    again, or returns what was not handed out (INV-C6).
    """

    def __init__(self, call: Callable[[], Awaitable[T | None]]) -> None:
        self._call = call
        self._is_over = False

    async def __anext__(self) -> T:
        item = None if self._is_over else await self._call()
        if item is None:
            self._is_over = True
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """End it."""
        self._is_over = True


# --- work that is done once for several callers ----------------------------------------------------


TAKEN_AWAY = (
    LedgerFenced,
    NoSuchLedger,
    WriterFenced,
    ProducerFenced,
    StreamNotFound,
    CursorFenced,
)
"""What ends those whose ledger, stream, cursor or producer's name somebody else has opened, or deleted.

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
