"""Asynchronous iterators that clients hand out. INV-C6: an error is never taken for the end.

An asynchronous generator that an exception has left is at its end. Whoever asked it for more would be told that there
is nothing more, and would pass over all that it did not yield.

Decision 156.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from fastbk.errors import ClientClosed, Error

P = ParamSpec("P")
T = TypeVar("T")


class _Handed(AsyncGenerator[T, None]):
    """What is iterated over with `async for`, or call by call with `anext`."""

    async def __anext__(self) -> T:
        raise NotImplementedError

    async def asend(self, value: None, /) -> T:
        """As `anext`."""
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
