"""The thread that runs the asyncio client for callers without `await`: threads, scripts, gevent.

There is one loop in one thread for all clients of a process. The first call of a client starts it,
and it ends with the last client. gevent runs that thread as a greenlet, and asyncio permits one
running loop in each native thread.

A signal's handler, `PyThreadState_SetAsyncExc` or gevent can raise an exception in a caller at almost
any moment, also when the loop has just finished the call. INV-C3: what a call has produced has an
owner at every moment. Three rules keep it:

- Records, entries and items of listings are put where the next call of the same object finds them
  (`Hand`). The caller's mark moves past an item in the last step before the caller has the item.
- Any other result is the call's until the last step of `call`. The result of a call that is given up
  goes to its `undo`, which closes what was opened.
- What callers append is appended in one step, with all that is counted of it (`AppendQueue`).

CPython raises such exceptions when a function begins, behind a call of a C function, and when a loop
jumps back. Between other instructions, and when Python functions return, it raises none.

Decision 98.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 -- its own end is registered first, and so comes after ours
import contextvars
import functools
import math
import operator
import os
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Sequence,
)
from contextlib import suppress
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from fastbk.errors import ClientClosed, Error

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
CHECK_S = 1.0
"""How often a caller that waits checks whether the thread has ended."""


class Closing(Protocol):
    """An asyncio client."""

    async def settle(self, timeout_s: float) -> list[str]:
        """Wait until all that its writers took is acknowledged; return what is not, for people."""

    async def close(self, *, timeout: float | None = None) -> None:
        """Close it."""


C = TypeVar("C", bound=Closing)


class _Shared:
    """The loop of this process and its thread. The module's lock guards `clients`, who use it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(_owned_task)
        self.clients: set[_Part[Any]] = set()
        self.ident: int | None = None
        self.has_ended = False
        self.thread = threading.Thread(target=self._run, name="fastbk", daemon=True)

    def stop(self) -> None:
        """End the loop, and so the thread."""
        with suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        self.ident = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.has_ended = True
            self.loop.close()


# A signal's handler may make calls, or close a client, while its own thread holds a lock: it has to get that, too.
_lock = threading.RLock()
_shared: _Shared | None = None
_ending: threading.Thread | None = None
_has_warned = False
_open_threads: weakref.WeakSet[LoopThread[Any]] = weakref.WeakSet()


def _join(part: _Part[Any]) -> _Shared:
    """Return the loop, started where there was none, for one client more; again after an interrupt."""
    global _shared, _ending
    with _lock:
        shared: _Shared | None = _shared
        if shared is None:
            if _ending is not None:
                _ending.join()
                _ending = None
            started = _started_apart()
            shared = _shared
            if shared is None:
                shared = _shared = started
            else:  # a signal's handler has started one meanwhile
                started.stop()
        # In this order: who is let go before it is counted leaves the loop all the same.
        part.shared = shared
        shared.clients.add(part)
        return shared


def _started_apart() -> _Shared:
    """Make the loop and start its thread, both from a thread that nobody interrupts.

    What comes in the middle of `Thread.start` leaves the lock of an Event taken: the new thread then waits for it for
    ever. Or it ends as a RuntimeError. In the middle of a loop's making it leaves sockets open.
    """
    latch = threading.Lock()
    latch.acquire()
    made: list[_Shared] = []
    failures: list[BaseException] = []
    is_wanted = True

    def make() -> None:
        try:
            shared = _Shared()
            shared.thread.start()
            made.append(shared)
            if not is_wanted:
                shared.stop()
        except BaseException as error:  # noqa: BLE001 -- raised in the caller's thread
            failures.append(error)
        finally:
            latch.release()

    try:
        _thread.start_new_thread(make, ())
        latch.acquire()
    except BaseException:
        is_wanted = False  # before: who has not made it yet ends it, too
        for shared in made:
            shared.stop()
        raise
    if failures:
        raise failures[0]
    return made[0]


def _check_gevent() -> None:
    """Warn once where gevent runs greenlets in this thread and has not patched locks.

    A call then keeps all greenlets from running, and `gevent.Timeout` does not end it.
    """
    global _has_warned
    local, monkey = sys.modules.get("gevent._hub_local"), sys.modules.get("gevent.monkey")
    hub_of_thread = getattr(local, "get_hub_if_exists", None)
    if _has_warned or hub_of_thread is None or hub_of_thread() is None:
        return
    if monkey is None or not monkey.is_module_patched("threading"):
        _has_warned = True
        warnings.warn(
            "fastbk.sync blocks all greenlets of gevent, and gevent.Timeout does not end its calls: call"
            " gevent.monkey.patch_all() before fastbk.sync is imported",
            RuntimeWarning,
            stacklevel=2,
        )


def _leave(part: _Part[Any], shared: _Shared) -> None:
    """Have one client less; the last one ends the thread. Only on the loop."""
    global _shared, _ending
    with _lock:
        shared.clients.discard(part)
        if not shared.clients and shared is _shared:
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
        self.has_ended = False
        self.ending = Notices()
        """Wakes who waits until it `has_ended`. No threading.Event: an interrupt can leave its lock with the caller."""
        self.failure: BaseException | None = None
        """What kept it from ending as it should."""
        self._connect = connect
        self._client: C | None = None

    def client(self) -> C:
        """Return the asyncio client, made at its first use."""
        if self._client is None:
            self._client = self._connect()
        return self._client

    def begin_end(
        self, timeout_s: float, settle_s: float, then: Callable[[], None] = lambda: None
    ) -> None:
        """Begin to end, unless that was begun; call `then` behind it. On the loop."""
        if not self.is_ended:
            self.is_ended = True
            _endings.add(
                task := asyncio.get_running_loop().create_task(self._end(timeout_s, settle_s))
            )
            task.add_done_callback(_endings.discard)
            task.add_done_callback(lambda _: then())

    async def _end(self, timeout_s: float, settle_s: float) -> None:
        """End the calls under way, wait for what was appended, close the client, and end what is left."""
        shared = self.shared
        assert shared is not None
        me = asyncio.current_task()
        try:
            await _cancel(self.calls - {me}, timeout_s)
            if self._client is not None:
                # Callers may not have waited for their last appends.
                self.lost = await self._client.settle(settle_s)
                await self._client.close(timeout=timeout_s)
        except Exception as error:  # noqa: BLE001 -- raised by each `close`
            self.failure = error
        finally:
            await _cancel({task for task in self.tasks if not task.done()} - {me}, timeout_s)
            self.shared = None
            self.has_ended = True
            self.ending.notify()
            _leave(self, shared)


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

    begin = functools.partial(part.begin_end, timeout_s, timeout_s, lambda: _warn_lost(part))
    shared.loop.call_soon_threadsafe(begin, context=part.context)


_endings: set[asyncio.Task[None]] = set()


class _Call(Generic[T]):
    """A call on its way to the loop and back.

    Attributes:
        is_over: there is a result or an error.
        is_taken: the caller has the result.
    """

    __slots__ = (
        "_calls",
        "_goes_on",
        "_is_given_up",
        "_latch",
        "_make",
        "_task",
        "_undo",
        "error",
        "is_over",
        "is_taken",
        "result",
    )

    def __init__(
        self,
        part: _Part[Any],
        make: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        self.error: BaseException | None = None
        self.result: T | None = None
        self.is_over = False
        self.is_taken = False
        self._goes_on = goes_on
        self._is_given_up = False
        self._calls = part.calls
        self._make = make
        self._undo = undo
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
        if self._is_given_up and self.error is None:
            await self._undone()
        # Not in the task's callback, which would run a turn of the loop later.
        self.end()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._task = None  # it is gone here, and not in the caller's thread
        if not self.is_over:  # cancelled before it began
            self.error = asyncio.CancelledError()
            self.end()

    def end(self) -> None:
        """Let the caller go on."""
        self.is_over = True
        self._latch.release()

    def give_up(self) -> None:
        """Cancel it, since its caller does not wait any more. On the loop.

        A result that is there already, or comes all the same, is undone (INV-C3).
        """
        if self._is_given_up or self._goes_on:
            return
        self._is_given_up = True
        if not self.is_over:
            if self._task is not None:
                self._task.cancel()
        elif not self.is_taken and self.error is None:
            task = asyncio.get_running_loop().create_task(self._undone())
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _undone(self) -> None:
        result, self.result = self.result, None
        if self._undo is not None:
            with suppress(Error, asyncio.CancelledError):
                await self._undo(result)  # type: ignore[arg-type]

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
        self._lock = threading.RLock()
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
                    self._shared = _join(self._part)
            if self.is_closed is not None:  # by a signal's handler, which has found nothing to end
                self._schedule(
                    self._shared, lambda: self._part.begin_end(self.close_timeout_s, 0.0)
                )
                self.check()
        return self._shared

    def soon(self, callback: Callable[[], object]) -> None:
        """Call a function on the loop, and wait for nothing. Raises ClientClosed."""
        self._schedule(self._started(), callback)

    def _schedule(self, shared: _Shared, callback: Callable[[], object]) -> None:
        try:
            shared.loop.call_soon_threadsafe(callback, context=self._part.context)
        except RuntimeError:  # the loop is closed
            raise ClientClosed(self.is_closed or _CLOSED) from None

    def call(
        self,
        make: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
        *,
        goes_on: bool = False,
    ) -> T:
        """Await on the loop what `make` returns, and return its result.

        What ends the wait in the caller's thread (Ctrl-C) cancels what it waited for, unless it
        `goes_on`: closing does. `undo` is awaited with a result that the caller did not get
        (INV-C3). Raises ClientClosed.
        """
        return self._waited(self._started(), _Call(self._part, make, undo, goes_on=goes_on))

    def call_plain(self, call: Callable[[], T]) -> T:
        """Call a function on the loop and return its result."""

        async def made() -> T:
            return call()

        return self.call(made)

    def _waited(self, shared: _Shared, call: _Call[T]) -> T:
        if "gevent" in sys.modules:
            _check_gevent()
        if shared.ident == threading.get_ident():
            raise RuntimeError("a call without `await` on the thread that would have to run it")
        try:
            self._schedule(shared, call.begin)
            while not call.wait(CHECK_S):
                # The call that ends the thread may have ended since, and with it the thread.
                if shared.has_ended and not call.is_over:
                    raise ClientClosed(self.is_closed or _CLOSED)
            if call.error is None:
                call.is_taken = True  # with no call between this and the caller's frame: INV-C3
                return call.result  # type: ignore[return-value]
        except BaseException:
            if not shared.has_ended:
                self._schedule(shared, call.give_up)
            raise
        error, call.error = call.error, None
        try:
            if isinstance(error, asyncio.CancelledError):
                self.check()
            raise error
        finally:
            del error  # or its traceback would keep this frame, and this frame it

    def iterate(self, make: Callable[[], AsyncIterator[T]], at_once: int = 1) -> LoopIterator[T]:
        """Return an iterator over what an asynchronous one yields, `at_once` items for each call."""
        return LoopIterator(self, _Fetcher(make, at_once))

    def close(self, timeout_s: float, settle_s: float = SETTLE_S) -> None:
        """End what is under way and close the client; the last one ends the thread.

        `settle_s`: how long to wait for appends that nobody has waited for. An exception in the caller's thread ends
        the wait, and not the closing. Called again, it waits for that, and raises the same.
        """
        with self._lock:
            if self.is_closed is None:
                self.is_closed = _CLOSED
            shared, part = self._shared, self._part
        if shared is None:
            return
        if shared.ident == threading.get_ident():
            raise RuntimeError("a call without `await` on the thread that would have to run it")
        if not part.has_ended:
            with suppress(ClientClosed):  # the loop has ended, and all with it
                self._schedule(shared, lambda: part.begin_end(timeout_s, min(settle_s, timeout_s)))
        part.ending.wait(lambda: part.has_ended or shared.has_ended, math.inf)
        if shared is not _shared:
            shared.thread.join(timeout_s)
        if part.failure is not None:
            raise part.failure

    def mark_forked(self) -> None:
        """Refuse everything: a forked child has neither the thread nor its sockets."""
        self.is_closed = _FORKED
        self._lock = threading.RLock()
        self._shared = self._part.shared = None


class Hand(Generic[T]):
    """What the loop has fetched for a caller, from the item on that the caller gets next (INV-C3).

    Attributes:
        items: all that was fetched; those before `index` are handed out.
        at: so many parts of the item at `index` are handed out, where a caller takes it by parts.
    """

    __slots__ = ("at", "index", "is_empty", "item", "items", "size")

    def __init__(self, items: Sequence[T] = (), index: int = 0) -> None:
        self.items = items
        self.index = index
        self.at = 0
        self.is_empty = index >= len(items)
        self.item: Any = None if self.is_empty else items[index]
        """The item that the caller gets next, or the rest of."""
        self.size = len(self.item) if isinstance(self.item, Sequence) else 0

    def behind(self) -> Self:
        """Return the same behind that item."""
        return type(self)(self.items, self.index + 1)


class _ListedHand(Hand[Any]):
    """Items that can only be iterated: the one at `index` is made a list."""

    __slots__ = ()

    def __init__(self, items: Sequence[Any] = (), index: int = 0) -> None:
        super().__init__(items, index)
        if not self.is_empty:
            self.item = list(self.item)
            self.size = len(self.item)


class _Fetcher(Generic[T]):
    """The part of an iterator that lives on the loop. Its iterator may be let go meanwhile.

    A fetch is not cancelled with the call that waits for it: an asynchronous generator is at its end
    once an exception was raised in it. The next call waits for the same fetch.

    Attributes:
        hand: written here when the caller has all of the former one.
        failure: what ended it, after the items in `hand`.
        is_over: nothing comes after the items in `hand`.
    """

    _hand_type: type[Hand[Any]] = Hand

    def __init__(self, make: Callable[[], AsyncIterator[Any]], at_once: int = 1) -> None:
        self.hand: Hand[T] = Hand()
        self.failure: BaseException | None = None
        self.is_over = False
        self._make = make
        self._at_once = at_once
        self._source: AsyncIterator[Any] | None = None
        self._task: asyncio.Task[None] | None = None

    async def fetch(self) -> None:
        """Fetch more, unless a call that was interrupted has done so."""
        if not self.hand.is_empty or self.failure is not None or self.is_over:
            return
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        found: list[T] = []
        is_over, failure = False, None
        try:
            if self._source is None:
                self._source = self._make()
            is_over = await self._fill(self._source, found)
        except BaseException as error:  # noqa: BLE001 -- raised in the caller's thread
            failure = error
        self._task = None
        self.hand = self._hand_type(found)
        # After the items: a caller that was interrupted may look at any moment.
        self.is_over, self.failure = is_over, failure

    async def _fill(self, source: AsyncIterator[T], found: list[T]) -> bool:
        """Return whether the source has ended."""
        async for item in source:
            found.append(item)
            if len(found) >= self._at_once:
                return False
        return True

    async def end(self) -> None:
        """End the source."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


class ListFetcher(_Fetcher[T]):
    """Fetches lists, and hands out their items."""

    async def _fill(self, source: AsyncIterator[Any], found: list[T]) -> bool:
        try:
            found += await anext(source)
        except StopAsyncIteration:
            return True
        return False


class ElementFetcher(ListFetcher[T]):
    """Fetches lists, and hands out what their items hold."""

    _hand_type = _ListedHand


class LoopIterator(Iterator[T]):
    """What an asynchronous iterator yields, for callers without `await`. Not for several threads.

    An interrupted `next` takes nothing (INV-C3). An error is raised again by each later call: it is
    not taken for the end.
    """

    def __init__(self, thread: LoopThread[Any], fetcher: _Fetcher[T]) -> None:
        self._thread = thread
        self._fetcher = fetcher

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        hand = self._fetched()
        item: T = hand.item
        following = hand.behind()
        self._fetcher.hand = following
        return item

    def _fetched(self) -> Hand[T]:
        """Return what is there to be handed out. Raises StopIteration, what ended the source."""
        fetcher = self._fetcher
        while fetcher.hand.is_empty:
            failure = fetcher.failure
            if failure is not None:
                if isinstance(failure, asyncio.CancelledError):
                    self._thread.check()
                raise failure.copy() if isinstance(failure, Error) else failure
            if fetcher.is_over:
                raise StopIteration
            self._thread.call(fetcher.fetch)
        return fetcher.hand

    def close(self) -> None:
        """End it without waiting: the garbage collector may call this in any thread."""
        thread = self._thread
        self._fetcher.is_over = True
        self._fetcher.hand = Hand()
        if thread.is_closed is None and thread._shared is not None:
            with suppress(ClientClosed):
                thread._schedule(thread._shared, _Call(thread._part, self._fetcher.end).begin)

    __del__ = close


class ElementIterator(LoopIterator[T]):
    """Hands out what the items hold, one by one."""

    def __init__(self, thread: LoopThread[Any], fetcher: ElementFetcher[Any]) -> None:
        super().__init__(thread, fetcher)

    def __next__(self) -> T:
        while True:
            hand = self._fetcher.hand
            index = hand.at
            if index < hand.size:
                element: T = hand.item[index]
                hand.at = index + 1
                return element
            if hand.is_empty:
                self._fetched()
            else:
                self._fetcher.hand = hand.behind()


class Facade(Protocol[A_co]):
    """An object without `await` over an asyncio one."""

    def _call(self, act: Callable[[A_co], Awaitable[T]], /) -> T:
        """Await on the loop what `act` returns of the asyncio object."""


def facade_text(facade: object, inner: object | None) -> str:
    """Return what `repr` of an object without `await` says: what the asyncio object says; the loop is not asked."""
    return (
        f"<{type(facade).__name__}, not open>"
        if inner is None
        else f"<fastbk.sync {repr(inner)[1:]}"
    )


class OpeningFacade(Protocol[A_co]):
    """A facade that opens others."""

    def _opening(
        self, act: Callable[[A_co], Awaitable[T]], undo: Callable[[T], Awaitable[object]], /
    ) -> T:
        """Like `_call`; `undo` closes what the caller did not get."""


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


def _made_by(
    act: Callable[[A], Awaitable[T]], made: Callable[[Any, T], R], facade: object
) -> Callable[[A], Awaitable[R]]:
    async def act_and_make(inner: A) -> R:
        return made(facade, await act(inner))

    return act_and_make


def blocking_as(
    method: Callable[Concatenate[A, P], Awaitable[T]], made: Callable[[Any, T], R]
) -> Callable[Concatenate[Facade[A], P], R]:
    """Like `blocking`, and return `made(facade, result)`: the result's own facade."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Facade[A], /, *args: P.args, **options: P.kwargs) -> R:
        return self._call(_made_by(operator.methodcaller(name, *args, **options), made, self))

    return call


def blocking_opening(
    method: Callable[Concatenate[A, P], Awaitable[T]],
    made: Callable[[Any, T], R],
    undo: Callable[[R], Awaitable[object]],
) -> Callable[Concatenate[OpeningFacade[A], P], R]:
    """Like `blocking_as`; `undo` closes what a caller that was interrupted did not get (INV-C3)."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: OpeningFacade[A], /, *args: P.args, **options: P.kwargs) -> R:
        return self._opening(
            _made_by(operator.methodcaller(name, *args, **options), made, self), undo
        )

    return call


def _warn_lost(part: _Part[Any]) -> None:
    """Nobody waits for it: say on the standard error what was lost, as the interpreter does with errors then."""
    for line in part.lost:
        sys.stderr.write(
            f"fastbk: {line}. Close writers and cursors, or wait for what they took.\n"
        )


def _end_all() -> None:
    """The interpreter ends: clients that nobody has closed are, so that what they took is stored."""
    for open_thread in list(_open_threads):
        if open_thread.is_closed is None:
            with suppress(Exception):
                open_thread.close(open_thread.close_timeout_s, open_thread.close_timeout_s)
            _warn_lost(open_thread._part)
    # Clients that were let go are being closed.
    if (shared := _shared) is not None:
        shared.thread.join(END_S)
    elif (ending := _ending) is not None:
        ending.join(END_S)


# Functions of `atexit` come too late: by then no thread takes calls of metadata any more.
getattr(threading, "_register_atexit", atexit.register)(_end_all)


def _after_fork_in_child() -> None:
    global _lock, _shared, _ending
    _lock, _shared, _ending = threading.RLock(), None, None
    for open_thread in list(_open_threads):
        open_thread.mark_forked()


os.register_at_fork(after_in_child=_after_fork_in_child)


# --- appends on their way to the loop --------------------------------------------------------------


class Wakeup:
    """Has the loop call a function once for all that was queued since the last time."""

    def __init__(self, thread: LoopThread[Any], act: Callable[[], None]) -> None:
        """`act` runs on the loop; it takes all that is queued when it begins, or later."""
        self._thread = thread
        self._act = act
        self._is_due = False

    def wake(self) -> None:
        """Have it called, after something was queued. Raises ClientClosed."""
        if self._is_due:
            return
        try:
            self._is_due = True
            self._thread.soon(self._call)
        except BaseException:
            # An interrupt, perhaps before the loop was woken: the next one wakes it for this, too.
            self._is_due = False
            raise

    def _call(self) -> None:
        self._is_due = False  # before: what is queued from here on wakes the loop again
        self._act()


class AppendQueue(Wakeup, Generic[A]):
    """What several threads append with one writer, in the order of their calls.

    Attributes:
        lock: held by whoever looks at `last` and then calls `put`; nobody waits while holding it.
        sent: the last append that was handed to the asyncio writer. Written on the loop only.
    """

    def __init__(self, thread: LoopThread[Any], hand_over: Callable[[], None], sent: A) -> None:
        """`hand_over` runs on the loop, and hands over what `taken` gives; `sent` stands for what was before."""
        super().__init__(thread, hand_over)
        self.lock = threading.Lock()
        self.sent = sent
        self._queue: deque[A] = deque()

    def last(self) -> A:
        """Return the last append: in the queue, or else the last that was sent."""
        try:
            return self._queue[-1]
        except IndexError:
            return self.sent  # `taken` sets it before it empties the queue

    def put(self, append: A) -> None:
        """Take an append. The lock is held."""
        self._queue.append(append)
        if not self._is_due:
            self.wake()

    def taken(self) -> Iterator[A]:
        """Yield all that is queued, each out of the queue. On the loop."""
        queue = self._queue
        while queue:
            self.sent = queue[0]
            queue.popleft()
            yield self.sent

    def call(self, act: Callable[[], Awaitable[T]], *, goes_on: bool = False) -> T:
        """Run something on the loop behind all that was appended here."""

        async def acted() -> T:
            self._act()
            return await act()

        return self._thread.call(acted, goes_on=goes_on)


class Notices:
    """Wakes threads that wait until something is so."""

    def __init__(self) -> None:
        self._latches: deque[threading.Lock] = deque()

    def notify(self) -> None:
        """Something has changed: those who wait check again."""
        with suppress(IndexError):
            while True:
                self._latches.popleft().release()

    def wait(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Return whether it is so, after at most so many seconds."""
        end_s = time.monotonic() + timeout_s
        while not is_so():
            latch = threading.Lock()
            latch.acquire()
            try:
                self._latches.append(latch)
                left_s = end_s - time.monotonic()
                if is_so() or left_s <= 0:
                    return is_so()
                # It checks by itself, too: whoever was to tell it may have been interrupted.
                latch.acquire(timeout=min(left_s, CHECK_S))
            finally:
                with suppress(ValueError):
                    self._latches.remove(latch)
        return True


class Turns:
    """The order of those who wait for room: whoever's turn is the first of `waiting`, and nobody passes.

    Use it as follows. The turn is ended by one step, which an exception cannot come before:

        turn = object()
        try:
            turns.begin(turn, timeout_s)
            ...
        finally:
            if turn in turns.waiting:
                turns.waiting.remove(turn)
            turns.notify()
    """

    def __init__(self) -> None:
        self.waiting: deque[object] = deque()
        self._notices = Notices()
        self.notify = self._notices.notify

    def begin(self, turn: object, timeout_s: float) -> bool:
        """Return when it is this one's turn; False if it is not in time."""
        self.waiting.append(turn)
        return self._notices.wait(lambda: self.waiting[0] is turn, timeout_s)
