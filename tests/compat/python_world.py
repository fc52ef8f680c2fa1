"""What the Python client's cells see and demand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastbk.client.client import Client
from fastbk.client.ledger_reader import LedgerReader
from fastbk.client.ledger_writer import LedgerWriter
from fastbk.errors import Error
from tests.compat.python_side import PASSWORD, payload
from tests.compat.rig import Cluster


class PythonWorld:
    """What a cell sees: a cluster and a client."""

    def __init__(self, cluster: Cluster, client: Client, options: dict[str, object]) -> None:
        self.cluster = cluster
        self.client = client
        self.options = options

    async def create(
        self, ensemble: int = 3, write_quorum: int = 3, ack_quorum: int = 2
    ) -> LedgerWriter:
        return await self.client.create_ledger(
            ensemble, write_quorum, ack_quorum, password=PASSWORD
        )

    async def written(self, count: int, *quorum: int) -> int:
        """Make a closed ledger with so many entries and return its id."""
        async with await self.create(*quorum) as writer:
            await append(writer, 0, count)
        return writer.ledger_id

    async def open(self, ledger_id: int, *, recovery: bool = True) -> LedgerReader:
        return await self.client.open_ledger(ledger_id, password=PASSWORD, recovery=recovery)

    async def kill(self, bookie_id: str) -> None:
        """SIGKILL a bookie; after the cell it is started again."""
        await asyncio.to_thread(self.cluster.member(bookie_id).kill)

    async def set_read_only(self, bookie_id: str, *, is_read_only: bool = True) -> None:
        """Have a bookie refuse adds; after the cell it takes them."""
        await asyncio.to_thread(self.cluster.set_read_only, bookie_id, is_read_only=is_read_only)

    async def restore(self) -> None:
        for member in self.cluster.members:
            await asyncio.to_thread(self.cluster.restore, member.bookie_id)


Cell = Callable[[PythonWorld], Awaitable[None]]


async def append(writer: LedgerWriter, first: int, count: int) -> None:
    ids = await writer.append_many([payload(writer.ledger_id, first + n) for n in range(count)])
    assert tuple(ids) == (first, first + count - 1), f"ids {ids}"


async def check(reader: LedgerReader, ledger_id: int, first: int, last: int) -> None:
    """Demand that the entries are there as they were written."""
    next_id = first
    async for entry in reader.read(first, last):
        assert entry.entry_id == next_id, f"entry {entry.entry_id} instead of {next_id}"
        assert bytes(entry.data) == payload(ledger_id, next_id), f"bytes of entry {next_id}"
        next_id += 1
    assert next_id == last + 1, f"entries end before {next_id}"


async def refused(call: Awaitable[object], *kinds: type[Error]) -> None:
    """Demand that a call ends with one of these errors."""
    try:
        await call
    except kinds:
        return
    raise AssertionError(f"went through instead of {kinds[0].__name__}")
