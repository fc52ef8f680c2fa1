"""An append of `fastbk.sync` that is under way: callers wait for it, and the pipe ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING

from fastbk.errors import Error
from fastbk.model.ids import EntryId
from fastbk.option_checks import checked_timeout

if TYPE_CHECKING:
    from fastbk.client.sync_writer import LedgerWriter


class Pending:
    """An append that was sent; `result()` waits for it."""

    __slots__ = ("_error", "_is_done", "_latch", "_size", "_writer", "entry_id")

    def __init__(self, writer: LedgerWriter, entry_id: EntryId, size: int) -> None:
        self.entry_id = entry_id
        self._writer = writer
        self._size = size
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
            raise self._error.copy()
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

    def __init__(self, writer: LedgerWriter, entry_id: EntryId, size: int) -> None:
        super().__init__(writer, entry_id, size)
        self._context = copy_context()

    def admit(
        self, admit: Callable[[list[bytes], int, Pending], None], datas: list[bytes], size: int
    ) -> None:
        """Give it to the asyncio writer, on the loop."""
        self._context.run(admit, datas, size, self)
