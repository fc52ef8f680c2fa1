"""Load on one real bookie that bears being refused, and what its clients were told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import fastbk
from fastbk.errors import Error, NoSuchLedger
from tests.rigs.judge import Found, Key, Known, judge
from tests.rigs.kill_points import ENTRY_BYTES_MAX, payload

if TYPE_CHECKING:
    from fastbk.client.client import Client

ALONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
RETRY_S = 0.02
READ_ENTRIES = 500
APPEND_TIMEOUT_S = 5.0


class Load:
    """Writers that go on with another ledger whenever one can't be written any more."""

    def __init__(self, uri: str, entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        self.uri = uri
        self._entry_bytes_max = entry_bytes_max
        self.acked: dict[Key, bytes] = {}
        self.sent: dict[Key, list[bytes]] = {}
        self.acked_bytes = 0
        self.deleted: set[int] = set()
        self.refused = 0
        """Ledgers that could not be made or written to their end."""
        self._stop = asyncio.Event()

    def client(self) -> Client:
        """A client that does not wait long."""
        return fastbk.connect(self.uri, append_timeout=APPEND_TIMEOUT_S, read_timeout=30.0)

    def stop(self) -> None:
        """Have all writers end."""
        self._stop.set()

    async def write_on(self, window: int = 48, entries_max: int = 2000) -> None:
        """Write one ledger after the other until `stop`."""
        self._stop.clear()
        while not self._stop.is_set():
            async with self.client() as client:
                try:
                    await self.write_ledger(client, window, entries_max)
                except Error:
                    self.refused += 1
                    await asyncio.sleep(RETRY_S)

    async def write_ledger(self, client: Client, window: int, entries: int) -> int:
        """Write one ledger with so many entries, fewer after `stop`; return its id. Raises what ends it."""
        writer = await client.create_ledger(**ALONE)
        ledger_id = writer.ledger_id
        pending: set[asyncio.Future[int]] = set()
        try:
            for number in range(entries):
                if self._stop.is_set():
                    break
                key = (ledger_id, number)
                data = payload(*key, self._entry_bytes_max)
                self.sent[key] = [data]
                future = writer.append_nowait(data)
                future.add_done_callback(self._noting(key))
                pending.add(future)
                if len(pending) >= window:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for each in done:
                        each.result()
        finally:
            results = await asyncio.gather(*pending, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        await writer.close()
        return ledger_id

    def _noting(self, key: Key) -> Callable[[asyncio.Future[int]], None]:
        def note(done: asyncio.Future[int]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._note(key)

        return note

    def _note(self, key: Key) -> None:
        """An entry was acknowledged just now."""
        self.acked[key] = self.sent[key][0]
        self.acked_bytes += len(self.sent[key][0])

    def ledgers(self) -> list[int]:
        """All that were written to and not deleted."""
        return sorted({key[0] for key in self.sent} - self.deleted)

    async def compare(self, ledger_ids: Iterable[int]) -> list[str]:
        """Read these ledgers from the running bookie, and judge."""
        wanted = set(ledger_ids)
        acked = {key: data for key, data in self.acked.items() if key[0] in wanted}
        found = Found()
        counts: dict[int, int] = {}
        for ledger_id, entry_id in acked:
            counts[ledger_id] = max(counts.get(ledger_id, 0), entry_id + 1)
        async with self.client() as client:
            for ledger_id, count in counts.items():
                reader = await client.open_ledger(ledger_id, recovery=False)
                for first in range(0, count, READ_ENTRIES):
                    last = min(count, first + READ_ENTRIES) - 1
                    for entry in await reader.read_unconfirmed(first, last):
                        found.entries[ledger_id, entry.entry_id] = bytes(entry.data)
        return judge(Known(acked, self.sent), found)

    async def delete(self, ledger_ids: Iterable[int]) -> None:
        """Delete ledgers; what is known of them is forgotten."""
        gone = set(ledger_ids)
        self.deleted |= gone
        async with self.client() as client:
            for ledger_id in gone:
                with contextlib.suppress(NoSuchLedger):
                    await client.delete_ledger(ledger_id)
        self.acked = {key: data for key, data in self.acked.items() if key[0] not in gone}
        self.sent = {key: data for key, data in self.sent.items() if key[0] not in gone}
