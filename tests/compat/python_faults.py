"""The Python client's cells on bookies that are read-only."""

from __future__ import annotations

from fastbk.errors import LedgerClosed, LedgerFenced, NotEnoughBookies
from tests.compat.python_world import Cell, PythonWorld, append, check, refused
from tests.fixtures.wait import wait_until_async

KNOWN_S_MAX = 20.0


async def read_only_writer_moves(world: PythonWorld) -> None:
    writer = await world.create()
    await append(writer, 0, 100)
    victim = writer.metadata.fragments[-1].ensemble[1]
    await world.set_read_only(victim)
    for first in range(100, 400, 20):
        await append(writer, first, 20)

    async def is_replaced() -> bool:
        return victim not in writer.metadata.fragments[-1].ensemble

    await wait_until_async(is_replaced, "the read-only bookie to be replaced", KNOWN_S_MAX)
    assert victim in writer.metadata.fragments[0].ensemble, "it keeps what it has"
    await writer.close()
    async with await world.open(writer.ledger_id) as reader:
        await check(reader, writer.ledger_id, 0, 399)


async def read_only_serves_reads(world: PythonWorld) -> None:
    """All that there is of this ledger is on one bookie."""
    writer = await world.create(1, 1, 1)
    await append(writer, 0, 100)
    await world.set_read_only(writer.metadata.fragments[0].ensemble[0])
    async with await world.open(writer.ledger_id) as reader:
        assert await reader.last_add_confirmed() == 99
        await check(reader, writer.ledger_id, 0, 99)
    await refused(writer.append(b"late"), LedgerFenced, LedgerClosed)


async def read_only_recovery(world: PythonWorld) -> None:
    writer = await world.create(2, 2, 2)
    await append(writer, 0, 100)
    for bookie_id in writer.metadata.fragments[0].ensemble:
        await world.set_read_only(bookie_id)
    async with await world.open(writer.ledger_id) as reader:
        await check(reader, writer.ledger_id, 0, 99)
    await refused(writer.append(b"late"), LedgerFenced, LedgerClosed)


async def read_only_not_chosen(world: PythonWorld) -> None:
    bookies = await world.client.list_bookies()
    victim = bookies[0].service.bookie_id
    await world.set_read_only(victim)

    async def is_out() -> bool:
        try:
            await world.create(len(bookies), 1, 1)
        except NotEnoughBookies:
            return True
        return False

    await wait_until_async(is_out, "the client to know of the read-only bookie", KNOWN_S_MAX)
    for _ in range(10):
        writer = await world.create(len(bookies) - 1, 1, 1)
        assert victim not in writer.metadata.fragments[0].ensemble, "a read-only bookie was chosen"
        await writer.close()
    await world.set_read_only(victim, is_read_only=False)

    async def is_back() -> bool:
        return not await is_out()

    await wait_until_async(is_back, "the client to choose it again", KNOWN_S_MAX)


FAULT_CELLS: dict[str, Cell] = {
    "python-read-only-writer-moves": read_only_writer_moves,
    "python-read-only-serves-reads": read_only_serves_reads,
    "python-read-only-recovery": read_only_recovery,
    "python-read-only-not-chosen": read_only_not_chosen,
}
