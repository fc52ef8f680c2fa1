"""When a cursor's state is kept: all that was acknowledged meanwhile goes together, and all who wait are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from fastbk.client.coalescer import SharedEnd
from fastbk.errors import ClientClosed, CursorFenced, Error
from fastbk.observe.library_log import LibraryLog
from fastbk.retry import Retry
from fastbk.stream.context import as_error

if TYPE_CHECKING:
    from fastbk.client.client import Settling

_log = LibraryLog("fastbk.stream.cursor")

AGAIN_S = 0.1
"""First pause after a state could not be kept; doubled up to five seconds. Whoever waits for it cuts it short."""
AGAIN_S_MAX = 5.0


class Changes(Protocol):
    """What acknowledgements come to."""

    @property
    def changes(self) -> int:
        """Counts what has changed."""


class Keeper(Protocol):
    """Where states are kept. One call at a time."""

    async def keep(self) -> int:
        """Keep the state as it is now; return the count of changes that are in it.

        Raises CursorFenced; anything else: nobody knows whether it is kept, and another call tries again.
        """

    def renew_in_s(self) -> float | None:
        """Return in how many seconds `tend` has to be called, even if nothing is to be kept; None: not at all."""

    async def tend(self) -> None:
        """Do what is due beside. Raises CursorFenced; other troubles wait for the next call."""

    async def close(self, is_dirty: bool) -> None:
        """Keep what is not kept. Raises CursorFenced; anything else where it is not known whether it is kept."""


class CursorFlusher:
    """One holder's: a task that keeps states, one at a time.

    Attributes:
        failure: what ended the holder: CursorFenced, ClientClosed, a bug; None while it may go on.
        is_reported: a call has raised CursorFenced: the end of the cursor's block need not say it again.
        trouble: why the last state could not be kept; None when it could.
    """

    def __init__(
        self,
        name: str,
        acks: Changes,
        keeper: Keeper,
        interval_s: float,
        changes_max: int,
        on_end: Callable[[], None],
        unsettled: set[Settling],
    ) -> None:
        """`interval_s`, `changes_max`: after either of them a state is kept, whoever waits for it or not.

        `on_end()` is called when `failure` is there. `unsettled`: of the client, which waits for what is kept.
        """
        self.failure: Error | None = None
        self.is_reported = False
        self.trouble: Error | None = None
        self._retry = Retry(AGAIN_S, AGAIN_S_MAX)
        self._name = name
        self._acks = acks
        self._keeper = keeper
        self._interval_s = interval_s
        self._changes_max = changes_max
        self._on_end = on_end
        self._kept = acks.changes
        self._taken = acks.changes
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._work = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._is_closing = False
        self._is_given_up = False
        self._closing = SharedEnd()
        self._unsettled = unsettled
        unsettled.add(self)
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    @property
    def is_dirty(self) -> bool:
        """Whether something changed that is not kept yet."""
        return self._kept < self._acks.changes

    @property
    def unkept(self) -> int:
        """How many changes are not kept yet."""
        return max(0, self._acks.changes - self._kept)

    def check(self) -> None:
        """Raise what ended the holder, in a call."""
        if self.failure is not None:
            self.is_reported = self.is_reported or isinstance(self.failure, CursorFenced)
            raise self.failure.copy()

    def touch(self) -> None:
        """Something was acknowledged; it is kept when it is time."""
        if self._acks.changes - self._taken >= self._changes_max:
            if not self._is_due:
                self._due()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._due)

    def _due(self) -> None:
        self._stop_timer()
        self._is_due = True
        self._work.set()

    async def until(self, changes: int) -> None:
        """Return when so many changes are kept; they are at once. Raises what ended the holder, or kept them from it.

        In the second case they are tried again, later or by the next call.
        """
        try:
            await self._until(changes)
        except CursorFenced:
            self.is_reported = True
            raise

    async def _until(self, changes: int) -> None:
        if changes <= self._kept:
            return
        if self.failure is not None:
            raise self.failure.copy()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((changes, future))
        self._due()
        await future

    # --- the task -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self.failure is None and not self._is_closing:
            await self._wait()
            try:
                if self._is_due and self.is_dirty and not self._is_closing:
                    await self._flush()
                if not self._is_closing:
                    await self._keeper.tend()
            except CursorFenced as error:
                self._end(error)
            except asyncio.CancelledError:
                self._end(ClientClosed(f"cursor {self._name} was given up"))
                raise
            except BaseException as error:
                # A bug of ours: nobody may wait for it for ever.
                self._end(as_error(error, f"cursor {self._name}"))
                raise

    async def _wait(self) -> None:
        timeout_s = self._keeper.renew_in_s()
        try:
            async with asyncio.timeout(timeout_s):
                await self._work.wait()
        except TimeoutError:
            pass
        self._work.clear()

    async def _flush(self) -> None:
        """Keep the state, or try again later."""
        self._is_due = False
        self._taken = self._acks.changes
        try:
            kept = await self._keeper.keep()
        except CursorFenced:
            raise
        except Error as error:
            self.trouble = error
            _log.warning("cursor.flush_waits", cursor=self._name, reason=str(error))
            self._resolve_waiters(self._taken, error)
            self._stop_timer()
            self._timer = self._loop.call_later(self._retry.pause_s(), self._due)
            return
        self._retry.restart()
        self.trouble = None
        self._kept = max(self._kept, kept)
        self._resolve_waiters(self._kept, None)

    def _resolve_waiters(self, changes: int, error: Error | None) -> None:
        """Answer those who wait for at most so many changes; what others wait for is due again."""
        waiting, self._waiting = self._waiting, []
        for wanted, future in waiting:
            if future.done():
                continue
            if wanted > changes:
                self._waiting.append((wanted, future))
                self._due()
            elif error is None:
                future.set_result(None)
            else:
                future.set_exception(error.copy())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, error: Error) -> None:
        self.failure = error
        self._unsettled.discard(self)
        self._stop_timer()
        self._resolve_waiters(self._acks.changes, error)
        self._on_end()

    # --- for a client that is about to be closed -----------------------------------------------------------------

    lost_event = "client.acknowledgements_lost"

    @property
    def label(self) -> str:
        """What it has taken."""
        return f"acknowledgements by cursor {self._name}"

    @property
    def is_unsettled(self) -> bool:
        """Whether something was acknowledged that is not kept."""
        return self.failure is None and self.is_dirty

    async def until_settled(self) -> None:
        """Return when all that was acknowledged so far is kept, or could not be."""
        with suppress(Error):
            await self._until(self._acks.changes)

    # --- the end --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Keep what is not kept yet, delete ledgers that are not needed, and end. Raises what kept it from that.

        Called again, it waits for the first call's end, and raises the same. After `abort` it does nothing.
        """
        if self._is_given_up:
            return
        try:
            await self._closing.reach(self._close, self.abort)
        except CursorFenced:
            self.is_reported = True
            raise

    async def _close(self) -> None:
        self._is_closing = True
        self._work.set()
        try:
            await asyncio.wait([self._task])
            if self.failure is not None:
                raise self.failure.copy()
            await self._keeper.close(self.is_dirty)
            self._kept = self._acks.changes
            self._resolve_waiters(self._kept, None)
        except Error as error:
            self._end(error)
            raise
        finally:
            self._end(self.failure or ClientClosed(f"cursor {self._name} is closed"))

    def abort(self) -> None:
        """Do nothing more: what was under way may be kept."""
        self._is_closing = self._is_given_up = True
        self._task.cancel()
        self._end(self.failure or ClientClosed(f"cursor {self._name} was given up"))


class Kept:
    """What `ack` returns: awaiting it has the acknowledgement kept at once; not awaiting it is fine, too."""

    __slots__ = ("_changes", "_flusher")

    def __init__(self, flusher: CursorFlusher, changes: int) -> None:
        self._flusher = flusher
        self._changes = changes

    def __await__(self) -> Generator[object, None, None]:
        return self._flusher.until(self._changes).__await__()
