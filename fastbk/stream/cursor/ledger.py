"""A cursor's own ledger: whole states, appended; of a ledger that is fenced the last one counts (INV-S10)."""

from __future__ import annotations

from contextlib import suppress

from fastbk.client.client import Client
from fastbk.client.ledger_writer import LedgerWriter
from fastbk.errors import Error
from fastbk.stream.context import StreamContext
from fastbk.stream.cursor.state import CursorState, get_state, put_state

PASSWORD = b""
APPEND_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
ENTRIES_MAX = 50_000
"""Then another one takes its place."""


class CursorLedger:
    """The writer of one, from its creation.

    Attributes:
        entries: states that were appended.
    """

    def __init__(self, writer: LedgerWriter) -> None:
        self.ledger_id = writer.ledger_id
        self.entries = 0
        self._writer = writer

    async def append(self, state: CursorState) -> None:
        """Keep a state: on the ack quorum's disks when this returns. What it raises ends the ledger."""
        await self._writer.append(put_state(state), timeout=APPEND_TIMEOUT_S)
        self.entries += 1

    async def close(self) -> None:
        """End the writer; the ledger is to be deleted, so it does not matter how far it gets."""
        with suppress(Error):
            await self._writer.close(timeout=CLOSE_TIMEOUT_S)


async def create(context: StreamContext, cursor: str, ledger_id: int) -> CursorLedger:
    """Create a ledger, named in the cursor's record already (INV-S8), by the stream's policy."""
    policy = await context.policy()
    writer = await context.client.create_ledger(
        policy.ensemble,
        policy.write_quorum,
        policy.ack_quorum,
        policy.digest,
        PASSWORD,
        {"fastbk.stream": context.stream_id.encode(), "fastbk.cursor": cursor.encode()},
        ledger_id,
        placement=policy.placement(),
        allow_missing_bookies=policy.allow_missing_bookies,
    )
    return CursorLedger(writer)


async def last_state(client: Client, ledger_id: int) -> CursorState | None:
    """Fence the ledger, so that nothing more is acknowledged to its writer; return its last state, if it has any.

    Raises NoSuchLedger, and what recovery and reads raise.
    """
    async with await client.open_ledger(ledger_id, recovery=True, password=PASSWORD) as reader:
        last = reader.metadata.last_entry_id
        if last is None or last < 0:
            return None
        (entry,) = [one async for one in reader.read(last, last)]
        return get_state(entry.data)
