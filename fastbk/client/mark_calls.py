"""Marks of under-replicated ledgers (`fastbk.meta.replica_marks`) as coroutines of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastbk.client.metadata_calls import MetadataCalls
from fastbk.meta.replica_marks import LedgerMark
from fastbk.model.ids import LedgerId
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.actions import MarkReplicas


class MarkCalls:
    """The marks of a client's cluster. Every call to the store ends within `metadata_timeout`; errors are the store's.

    Changes of one ledger's mark take effect in the order of the calls. So a change that its caller gave up is never
    done behind a later one: a writer that closes its ledger gives up the change that is under way, then makes its own.
    """

    def __init__(self, store: MetadataCalls) -> None:
        self._store = store
        self._last: dict[LedgerId, asyncio.Task[LedgerMark]] = {}

    async def list(self) -> list[LedgerMark]:
        """Return all marks: which bookie may lack which entries."""
        return await self._store.call(lambda store: list(store.marks.list()))

    async def read(self, ledger_id: LedgerId) -> LedgerMark:
        """Return the mark of a ledger."""
        return await self._store.call(lambda store: store.marks.read(ledger_id))

    async def update(
        self,
        ledger_id: LedgerId,
        add: Sequence[MissingReplica] = (),
        remove: Sequence[MissingReplica] = (),
    ) -> LedgerMark:
        """Change the mark of a ledger; remove only entries whose copies were verified.

        A cancelled call may have changed it, or may still do so, but before any later call does.
        """
        before = self._last.get(ledger_id)
        task = asyncio.get_running_loop().create_task(self._update(before, ledger_id, add, remove))
        self._last[ledger_id] = task

        def ended(_: asyncio.Task[LedgerMark]) -> None:
            if self._last.get(ledger_id) is task:
                del self._last[ledger_id]
            if not task.cancelled():
                task.exception()  # its caller may have given it up

        task.add_done_callback(ended)
        return await asyncio.shield(task)

    async def _update(
        self,
        before: asyncio.Task[LedgerMark] | None,
        ledger_id: LedgerId,
        add: Sequence[MissingReplica],
        remove: Sequence[MissingReplica],
    ) -> LedgerMark:
        if before is not None:
            await asyncio.wait([before])
        return await self._store.call(lambda store: store.marks.update(ledger_id, add, remove))

    async def close(self, timeout_s: float) -> None:
        """Wait for changes that are under way, and give up those that take longer."""
        if self._last:
            _, late = await asyncio.wait(self._last.values(), timeout=timeout_s)
            for one in late:
                one.cancel()
            if late:
                await asyncio.wait(late)

    async def perform(self, ledger_id: LedgerId, action: MarkReplicas) -> None:
        """Do what a procedure asks for."""
        await self.update(ledger_id, action.add, action.remove)
