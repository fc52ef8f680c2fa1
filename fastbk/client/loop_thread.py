"""The thread that runs the asyncio client for callers without `await`: threads, scripts, gevent.

There is one loop in one thread for all clients of a process. The first call of a client starts it,
and it ends with the last client. gevent runs that thread as a greenlet, and asyncio permits one
running loop in each native thread.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 -- its own end is registered first, and so comes after ours
import contextvars
import functools
import operator
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from fastbk.errors import ClientClosed

T = TypeVar("T")
P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")
A_co = TypeVar("A_co", covariant=True)
_FORKED = "this client was made before a fork: make a new one in the child"
_CLOSED = "this client is closed: make a new one"
SETTLE_S = 1.0
"""How long a client that is closed waits for what its writers took. One that is let go waits for its close timeout."""
END_S = 10.0
"""How long the interpreter's end waits for clients that nobody has any more."""
_LOOK_S = 1.0
"""How often a caller that waits checks whether the thread has ended."""


class Closing(Protocol):
    """An asyncio client."""

    async def settle(self, timeout_s: float) -> list[str]:
        """Wait until all that its writers took is acknowledged; return what is not, for people."""

    async def close(self, *, timeout: float | None = None) -> None:
        """Close it."""


C = TypeVar("C", bound=Closing)


class _Shared:
    """The loop of this process and its thread. The module's lock guards `clients`, its count."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(_owned_task)
        self.clients = 0
        self.ident: int | None = None
        self.has_ended = False
        self.thread = threading.Thread(target=self._run, name="fastbk", daemon=True)

    def _run(self) -> None:
        self.ident = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.has_ended = True
            self.loop.close()


_lock = threading.Lock()
_shared: _Shared | None = None
_ending: threading.Thread | None = None
_open_threads: weakref.WeakSet[LoopThread[Any]] = weakref.WeakSet()


def _join() -> _Shared:
    """Return the loop, started where there was none, for one client more."""
    global _shared, _ending
    with _lock:
        if _shared is None:
            if _ending is not None:
                _ending.join()
                _ending = None
            _shared = _Shared()
            _shared.thread.start()
        _shared.clients += 1
        return _shared


def _leave(shared: _Shared) -> None:
    """Count one client less; the last one ends the thread. Only on the loop."""
    global _shared, _ending
    with _lock:
        shared.clients -= 1
        if shared.clients == 0 and shared is _shared:
            _shared, _ending = None, shared.thread
            shared.loop.call_soon(shared.loop.stop)


class _Part(Generic[C]):
    """One client's part on the loop: the client and its tasks. It may outlive its LoopThread."""

    def __init__(self, connect: Callable[[], C]) -> None:
        self.shared: _Shared | None = None
        self.calls: set[asyncio.Task[None]] = set()
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.context = contextvars.Context()
        self.context.run(_owner.set, self)
        self.is_ended = False
        self.lost: list[str] = []
        """What its writers took and could not store when it ended, for people."""
        self._connect = connect
        self._client: C | None = None

    def client(self) -> C:
        """Return the asyncio client, made at its first use."""
        if self._client is None:
            self._client = self._connect()
        return self._client

    async def end(self, timeout_s: float, settle_s: float) -> None:
        """End the calls under way, wait for what was appended, close the client, and end what is left."""
        shared, self.is_ended = self.shared, True
        assert shared is not None
        me = asyncio.current_task()
        try:
            await _cancel(self.calls - {me}, timeout_s)
            if self._client is not None:
                # Callers may not have waited for their last appends.
                self.lost = await self._client.settle(settle_s)
                await self._client.close(timeout=timeout_s)
        finally:
            await _cancel({task for task in self.tasks if not task.done()} - {me}, timeout_s)
            self.shared = None
            _leave(shared)


async def _cancel(tasks: set[Any], timeout_s: float) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s)


_owner: contextvars.ContextVar[_Part[Any]] = contextvars.ContextVar("fastbk client")


def _owned_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
    /,
    **options: Any,  # noqa: ANN401 -- asyncio's own
) -> asyncio.Task[T]:
    """Make a task, and note whose it is: of the client whose call has led to it."""
    task: asyncio.Task[T] = asyncio.Task(coroutine, loop=loop, **options)
    owner = _owner.get(None)
    if owner is not None:
        owner.tasks.add(task)
    return task


def _let_go(part: _Part[Any], timeout_s: float) -> None:
    """Close a client that nobody has any more. Takes no lock: it runs in any thread at any time."""
    shared = part.shared
    if shared is None or part.is_ended or shared.has_ended:
        return

    def begin() -> None:
        if not part.is_ended:
            part.is_ended = True
            _endings.add(task := shared.loop.create_task(part.end(timeout_s, timeout_s)))
            task.add_done_callback(_endings.discard)
            task.add_done_callback(lambda _: _say_lost(part))

    shared.loop.call_soon_threadsafe(begin, context=part.context)


_endings: set[asyncio.Task[None]] = set()


class _Call(Generic[T]):
    """A call on its way to the loop and back."""

    __slots__ = ("_calls", "_latch", "_make", "_task", "error", "is_over", "result")

    def __init__(self, part: _Part[Any], make: Callable[[], Awaitable[T]]) -> None:
        self.error: BaseException | None = None
        self.result: T | None = None
        self.is_over = False
        self._calls = part.calls
        self._make = make
        self._task: asyncio.Task[None] | None = None
        # A plain lock: half the price of a future's condition. gevent patches it all the same.
        self._latch = threading.Lock()
        self._latch.acquire()

    def begin(self) -> None:
        """Start it. On the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._calls.add(self._task)
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        try:
            self.result = await self._make()
        except BaseException as error:  # noqa: BLE001 -- raised in the caller's thread
            self.error = error
        # Not in the task's callback, which would run a turn of the loop later.
        self.end()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not self.is_over:  # cancelled before it began
            self.error = asyncio.CancelledError()
            self.end()

    def end(self) -> None:
        """Let the caller go on."""
        self.is_over = True
        self._latch.release()

    def cancel(self) -> None:
        """Give it up. On the loop."""
        if self._task is not None:
            self._task.cancel()

    def wait(self, timeout_s: float) -> bool:
        """Return whether it is over."""
        return self.is_over or self._latch.acquire(timeout=timeout_s)


class LoopThread(Generic[C]):
    """Runs coroutines of one client for callers in any thread. Their calls run side by side."""

    def __init__(self, connect: Callable[[], C], close_timeout_s: float = 10.0) -> None:
        """`connect` makes the client on the loop, at the first use. It is closed with this.

        `close_timeout_s`: how long the client's end may take when this is let go without `close`.
        """
        self.is_closed: str | None = None
        self.close_timeout_s = close_timeout_s
        self._part = _Part(connect)
        self._lock = threading.Lock()
        self._shared: _Shared | None = None
        weakref.finalize(self, _let_go, self._part, close_timeout_s).atexit = False
        _open_threads.add(self)

    def client(self) -> C:
        """Return the asyncio client. Only on the loop."""
        return self._part.client()

    def check(self) -> None:
        """Raise ClientClosed after `close`, and in a forked child."""
        if self.is_closed is not None:
            raise ClientClosed(self.is_closed)

    def _started(self) -> _Shared:
        """Return the loop, started where it was not. Raises ClientClosed."""
        self.check()
        if self._shared is None:
            with self._lock:
                self.check()
                if self._shared is None:
                    self._shared = self._part.shared = _join()
        return self._shared

    def soon(self, callback: Callable[[], object]) -> None:
        """Call a function on the loop, and wait for nothing. Raises ClientClosed."""
        self._schedule(self._started(), callback)

    def _schedule(self, shared: _Shared, callback: Callable[[], object]) -> None:
        try:
            shared.loop.call_soon_threadsafe(callback, context=self._part.context)
        except RuntimeError:  # the loop is closed
            raise ClientClosed(self.is_closed or _CLOSED) from None

    def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await on the loop what `make` returns, and return its result.

        What ends the wait in the caller's thread (Ctrl-C) cancels what it waited for.
        Raises ClientClosed.
        """
        return self._waited(self._started(), _Call(self._part, make))

    def call_plain(self, call: Callable[[], T]) -> T:
        """Call a function on the loop and return its result."""

        async def made() -> T:
            return call()

        return self.call(made)

    def _waited(self, shared: _Shared, call: _Call[T]) -> T:
        if shared.ident == threading.get_ident():
            raise RuntimeError("a call without `await` on the thread that would have to run it")
        try:
            self._schedule(shared, call.begin)
            while not call.wait(_LOOK_S):
                if shared.has_ended:
                    raise ClientClosed(self.is_closed or _CLOSED)
        except BaseException:
            if not shared.has_ended:
                self._schedule(shared, call.cancel)
            raise
        error, call.error = call.error, None
        if error is None:
            return call.result  # type: ignore[return-value]
        try:
            if isinstance(error, asyncio.CancelledError):
                self.check()
            raise error
        finally:
            del error  # or its traceback would keep this frame, and this frame it

    def iterate(self, make: Callable[[], AsyncIterator[T]], at_once: int = 1) -> Iterator[T]:
        """Yield what an asynchronous iterator yields, `at_once` items for each call of the loop."""
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
            self._close(source)

    def _close(self, source: AsyncIterator[T]) -> None:
        """End an iterator without waiting: the garbage collector may call this in any thread."""
        close = getattr(source, "aclose", None)
        if close is not None and self.is_closed is None:
            with suppress(ClientClosed):
                self._schedule(self._started(), _Call(self._part, close).begin)

    def close(self, timeout_s: float, settle_s: float = SETTLE_S) -> None:
        """End what is under way and close the client; the last one ends the thread.

        `settle_s`: how long to wait for appends that nobody has waited for.
        """
        with self._lock:
            if self.is_closed is not None:
                return
            self.is_closed = _CLOSED
            shared = self._shared
        if shared is None:
            return
        self._waited(shared, _Call(self._part, lambda: self._part.end(timeout_s, min(settle_s, timeout_s))))
        if shared is not _shared:
            shared.thread.join(timeout_s)

    def mark_forked(self) -> None:
        """Refuse everything: a forked child has neither the thread nor its sockets."""
        self.is_closed = _FORKED
        self._lock = threading.Lock()
        self._shared = self._part.shared = None


class Facade(Protocol[A_co]):
    """An object without `await` over an asyncio one."""

    def _call(self, act: Callable[[A_co], Awaitable[T]], /) -> T:
        """Await on the loop what `act` returns of the asyncio object."""


def facade_text(facade: object, inner: object | None) -> str:
    """Return what `repr` of an object without `await` says: what the asyncio object says; the loop is not asked."""
    return f"<{type(facade).__name__}, not open>" if inner is None else f"<fastbk.sync {repr(inner)[1:]}"


def blocking(
    method: Callable[Concatenate[A, P], Awaitable[T]],
) -> Callable[Concatenate[Facade[A], P], T]:
    """Return an asyncio object's method as its facade has it: no `await`, but the same arguments, types and docs."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Facade[A], /, *args: P.args, **options: P.kwargs) -> T:
        act: Callable[[A], Awaitable[T]] = operator.methodcaller(name, *args, **options)
        return self._call(act)

    return call


def blocking_as(
    method: Callable[Concatenate[A, P], Awaitable[T]], made: Callable[[Any, T], R]
) -> Callable[Concatenate[Facade[A], P], R]:
    """Like `blocking`, and return `made(facade, result)`: the result's own facade."""
    plain = blocking(method)

    @functools.wraps(method)
    def call(self: Facade[A], /, *args: P.args, **options: P.kwargs) -> R:
        return made(self, plain(self, *args, **options))

    return call


def _say_lost(part: _Part[Any]) -> None:
    """Nobody waits for it: say on the standard error what was lost, as the interpreter does with errors then."""
    for line in part.lost:
        sys.stderr.write(f"fastbk: {line}. Close writers, or wait for their appends.\n")


def _end_all() -> None:
    """The interpreter ends: clients that nobody has closed are, so that what they took is stored."""
    for one in list(_open_threads):
        if one.is_closed is None:
            with suppress(Exception):
                one.close(one.close_timeout_s, one.close_timeout_s)
            _say_lost(one._part)
    # Clients that were let go are being closed.
    if (shared := _shared) is not None:
        shared.thread.join(END_S)
    elif (ending := _ending) is not None:
        ending.join(END_S)


# Functions of `atexit` come too late: by then no thread takes calls of metadata any more.
getattr(threading, "_register_atexit", atexit.register)(_end_all)


def _after_fork_in_child() -> None:
    global _lock, _shared, _ending
    _lock, _shared, _ending = threading.Lock(), None, None
    for one in list(_open_threads):
        one.mark_forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
