"""A thread that runs an event loop with one asyncio client on it: what the calls without `await` stand on.

Streams keep going between calls (segments are made and ended, acknowledgements come in), so unlike the blocking client
of ledgers they need a thread of their own. It is started by the first call, and ends with `close`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any, Generic, Protocol, TypeVar

from fastbk.errors import ClientClosed

T = TypeVar("T")
_FORKED = "this client was made before a fork: make a new one in the child"
_open_loops: weakref.WeakSet[LoopThread[Any]] = weakref.WeakSet()


class Closing(Protocol):
    """An asyncio client."""

    async def close(self, *, timeout: float | None = None) -> None:
        """Close it."""


C = TypeVar("C", bound=Closing)


class LoopThread(Generic[C]):
    """Runs coroutines for callers in any thread; calls of several threads run side by side."""

    def __init__(self, connect: Callable[[], C]) -> None:
        """`connect` makes the client; it is called on the loop, at the first use, and closed with this."""
        self.is_closed: str | None = None
        self._connect = connect
        self._client: C | None = None
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        _open_loops.add(self)

    def client(self) -> C:
        """Return the asyncio client. Only on the loop."""
        if self._client is None:
            self._client = self._connect()
        return self._client

    def check(self) -> None:
        """Raise ClientClosed where nothing can be done any more: after `close`, and in a forked child."""
        if self.is_closed is not None:
            raise ClientClosed(self.is_closed)

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop, started where it was not. Raises ClientClosed."""
        self.check()
        with self._lock:
            self.check()
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="fastbk-streams", daemon=True
                )
                self._thread.start()
            return self._loop

    def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await on the loop what `make` returns, and return its result.

        Whatever ends the wait in the caller's thread (Ctrl-C) cancels what it waited for. Raises ClientClosed.
        """

        async def made() -> T:
            return await make()

        coroutine = made()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop())
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except CancelledError:
            self.check()
            raise
        except BaseException:
            future.cancel()
            raise

    def call_plain(self, call: Callable[[], T]) -> T:
        """Call a function on the loop and return its result."""

        async def made() -> T:
            return call()

        return self.call(made)

    def iterate(self, make: Callable[[], AsyncIterator[T]], at_once: int = 1) -> Iterator[T]:
        """Yield what an asynchronous iterator yields, `at_once` items for each turn to the loop and back."""
        source = self.call_plain(make)

        async def some() -> list[T]:
            found: list[T] = []
            async for item in source:
                found.append(item)
                if len(found) >= at_once:
                    break
            return found

        try:
            while found := self.call(some):
                yield from found
        finally:
            close = getattr(source, "aclose", None)
            if close is not None and self.is_closed is None:
                self.call(close)

    def close(self, timeout_s: float) -> None:
        """End what is under way, close the client and the thread. A second call does nothing."""
        with self._lock:
            if self.is_closed is not None:
                return
            self.is_closed = "this client is closed: make a new one"
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        ended = asyncio.run_coroutine_threadsafe(self._end(timeout_s), loop)
        try:
            ended.result(2 * timeout_s + 1)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout_s)

    async def _end(self, timeout_s: float) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=timeout_s)
        if self._client is not None:
            await self._client.close(timeout=timeout_s)

    def mark_forked(self) -> None:
        """Make this refuse everything: it lives in a forked child, which has neither the thread nor its sockets."""
        self.is_closed = _FORKED
        self._lock = threading.Lock()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _after_fork_in_child() -> None:
    for one in list(_open_loops):
        one.mark_forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
