"""What callers of `fastbk.sync` append, on its way to the loop, and how they wait for it.

An exception may be raised in a caller at almost any moment (`loop_thread.py`). So an append is one
step: that of putting it into a queue (INV-C3). What is counted over all appends, such as ids, stands
in the appends themselves: there is no second step that an exception could keep from being taken. And
nobody waits with a lock in hand.

The writers of ledgers and of streams are both made around an `AppendQueue`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from fastbk.client.loop_thread import LoopThread

A = TypeVar("A")
T = TypeVar("T")
LOOK_S = 1.0
"""How often a caller that waits checks by itself: whoever was to wake it may have been interrupted."""


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
                latch.acquire(timeout=min(left_s, LOOK_S))
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
