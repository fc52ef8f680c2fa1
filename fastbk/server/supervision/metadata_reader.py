"""Reads ledgers' metadata for a bookie's children: a queue, a thread, and one read at a time.

Children that wait for one ledger share its read. The queue is bounded: a ledger too many is dropped, and its child
requests it again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from fastbk.model.ids import LedgerId
    from fastbk.server.process_table import Process
    from fastbk.server.supervision.spawn import Boot

Found = TypeVar("Found")
Waiting: TypeAlias = "dict[LedgerId, set[Process]]"

WAITING_MAX = 16_384
"""Ledgers that are requested and not read yet, of all children together."""
READ_AT_ONCE_MAX = 64


class MetadataReader(ABC, Generic[Found]):
    """One bookie's, over all its boots. All but `_read` is called on the loop."""

    def __init__(self, name: str) -> None:
        """`name`: of its thread and its task."""
        self._name = name
        self._boot: Boot | None = None
        self._waiting: OrderedDict[LedgerId, set[Process]] = OrderedDict()
        self._thread: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None

    def attach(self, boot: Boot) -> None:
        """Answer the children of a new boot."""
        self._boot = boot

    def detach(self) -> None:
        """The boot is over: no child waits for an answer any more."""
        self._boot = None
        self._waiting.clear()

    async def close(self) -> None:
        """Stop reading. A read under way ends by itself, and its answer is dropped."""
        self.detach()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    # --- for subclasses ----------------------------------------------------------------------------------------

    @abstractmethod
    def _read(self, ledger_ids: list[LedgerId]) -> Found:
        """Read up to READ_AT_ONCE_MAX ledgers, in the thread. What it raises is a defect."""

    @abstractmethod
    def _answer(self, waiting: Waiting, found: Found) -> float:
        """Send what was read to the children that waited for it; return the pause before the next read, in seconds."""

    def _want(self, ledger_id: LedgerId, process: Process) -> None:
        """Have a ledger read for a child; one too many is dropped."""
        if ledger_id in self._waiting:
            self._waiting[ledger_id].add(process)
        elif len(self._waiting) < WAITING_MAX:
            self._waiting[ledger_id] = {process}
        if self._task is None:
            self._begin()

    def _send(self, process: Process, message: dict[str, Any]) -> None:
        """A child that does not read, or is gone, does without: it may request it again."""
        child = None if self._boot is None else self._boot.children.get(process)
        if child is not None:
            child.send(message)

    # --- inside ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._work(), name=f"fastbk {self._name}")
        self._task.add_done_callback(self._done)

    async def _work(self) -> None:
        """Read until no child waits."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)
        loop = asyncio.get_running_loop()
        while self._waiting:
            count = min(READ_AT_ONCE_MAX, len(self._waiting))
            waiting = dict(self._waiting.popitem(last=False) for _ in range(count))
            found = await loop.run_in_executor(self._thread, self._read, list(waiting))
            pause_s = self._answer(waiting, found)
            if pause_s:
                await asyncio.sleep(pause_s)

    def _done(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._task = None
            if self._waiting:  # requested after the task's last check, and before this
                self._begin()
        if not task.cancelled():
            task.result()  # a defect of ours is the loop's to report
