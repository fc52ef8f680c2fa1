"""What callers of `fastbk.sync` append, on its way to the loop, and how they wait for it.

An exception may be raised in a caller at almost any moment (`loop_thread.py`). So an append is one
step: that of putting it into a queue (INV-C3). What is counted over all appends, such as ids, stands
in the appends themselves: there is no second step that an exception could keep from being taken. And
nobody waits with a lock in hand.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from fastbk.errors import Error
from fastbk.model.ids import EntryId
from fastbk.option_checks import checked_timeout

if TYPE_CHECKING:
    from fastbk.client.loop_thread import LoopThread
    from fastbk.client.sync_writer import LedgerWriter

_LOOK_S = 1.0


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
                latch.acquire(timeout=min(left_s, _LOOK_S))
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


class Pending:
    """An append that was sent; `result()` waits for it."""

    __slots__ = ("_error", "_given", "_is_done", "_latch", "_size", "_writer", "entry_id")

    def __init__(self, writer: LedgerWriter, entry_id: EntryId, size: int, given: int = 0) -> None:
        """`given`: bytes of all that was appended up to this, it included."""
        self.entry_id = entry_id
        self._writer = writer
        self._size = size
        self._given = given
        self._error: Error | None = None
        self._is_done = False
        self._latch: threading.Lock | None = None

    def done(self) -> bool:
        """Whether it is acknowledged or failed."""
        return self._is_done

    def result(self, timeout: float | None = None) -> EntryId:
        """Wait until it is acknowledged and return its id; raises as `append` does.

        Without `timeout` the client's append_timeout ends the wait, and with it the writer. For
        an entry that is held for others before it, only the wait ends.
        """
        checked_timeout(timeout)
        if not self._is_done:
            self._writer._wait(self, timeout)
        if self._error is not None:
            raise self._writer._inner._reported(self._error)
        return self.entry_id

    def _wait(self, timeout_s: float) -> bool:
        """Return whether it is done. Several threads may wait."""
        latch = self._latch
        if latch is None:
            latch = self._writer._new_latch(self)
        if not self._is_done:
            if not latch.acquire(timeout=timeout_s):
                return False
            latch.release()  # for the next one that waits
        return True

    # --- on the loop: what the pipe gives ----------------------------------------

    def set_result(self, _: object) -> None:
        """It is acknowledged."""
        self._writer._bytes_settled += self._size
        self._end()

    def set_exception(self, error: Error) -> None:
        """It has failed."""
        self._error = error
        self._end()

    def _end(self) -> None:
        # First this, then the latch: whoever makes a latch later looks at this once more.
        self._is_done = True
        if self._latch is not None:
            self._latch.release()


class TracedPending(Pending):
    """An append with the context of its caller, whose span it may be in."""

    __slots__ = ("_context",)

    def __init__(self, writer: LedgerWriter, entry_id: EntryId, size: int, given: int = 0) -> None:
        super().__init__(writer, entry_id, size, given)
        self._context = copy_context()

    def admit(
        self, admit: Callable[[list[bytes], int, Pending], None], datas: list[bytes], size: int
    ) -> None:
        """Give it to the asyncio writer, on the loop."""
        self._context.run(admit, datas, size, self)
