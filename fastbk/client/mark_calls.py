"""Marks of under-replicated ledgers (`fastbk.meta.replica_marks`) as coroutines of a client."""

from __future__ import annotations

from collections.abc import Sequence

from fastbk.client.metadata_calls import MetadataCalls
from fastbk.meta.replica_marks import LedgerMark
from fastbk.model.ids import LedgerId
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.actions import MarkReplicas


class MarkCalls:
    """The marks of a client's cluster. Every call ends within `metadata_timeout`; errors are those of the store."""

    def __init__(self, store: MetadataCalls) -> None:
        self._store = store

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
        """Change the mark of a ledger; remove only entries whose copies were verified."""
        return await self._store.call(lambda store: store.marks.update(ledger_id, add, remove))

    async def perform(self, ledger_id: LedgerId, action: MarkReplicas) -> None:
        """Do what a procedure asks for."""
        await self.update(ledger_id, action.add, action.remove)
