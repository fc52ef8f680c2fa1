"""One client process of the torture: `python -m tests.live.worker ROLE SETTINGS.json`, until it is stopped or killed.

A *writer* makes ledger after ledger; a *recoverer* takes over ledgers that are not closed, those of live writers too; a
*tailer* follows them. Each records what it was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import fastbk
from fastbk.client import Client
from fastbk.client.ledger_reader import LedgerReader
from fastbk.errors import Error
from tests.live import payload
from tests.live.history import Recorder
from tests.live.proxied_store import proxied

SHAPES = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2)]
WINDOWS = [1, 1, 8, 64]
SIZES = [40, 200, 1000, 9000]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a worker is told by the torture."""

    name: str
    run: int
    number: int
    seed: int
    uri: str
    ports: dict[str, int]
    history: str
    bookies: int


class Worker:
    """A client with a recorder."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self.settings = settings
        self.client = client
        self.rng = random.Random(settings.seed)
        self.recorder = Recorder(Path(settings.history), settings.name)

    # --- writing -----------------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Write ledger after ledger."""
        while True:
            try:
                await self._write_ledger()
            except Error:
                await asyncio.sleep(self.rng.uniform(0.01, 0.2))

    async def _write_ledger(self) -> None:
        rng, note = self.rng, self.recorder.note
        shapes = [one for one in SHAPES if one[0] <= self.settings.bookies]
        ensemble, write_quorum, ack_quorum = rng.choice(shapes)
        writer = await self.client.create_ledger(ensemble, write_quorum, ack_quorum)
        ledger_id = writer.ledger_id
        note("created", ledger=ledger_id, ensemble=ensemble, write_quorum=write_quorum)
        window = asyncio.Semaphore(rng.choice(WINDOWS))
        failure: list[Error] = []

        def answered(entry_id: int, future: asyncio.Future[int]) -> None:
            window.release()
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                assert future.result() == entry_id
                note("added", ledger=ledger_id, entry=entry_id, writer=self.settings.number)
            else:
                assert isinstance(error, Error), error
                failure.append(error)
                note(
                    "refused",
                    ledger=ledger_id,
                    entry=entry_id,
                    error=type(error).__name__,
                    outcome=error.outcome,
                )

        length = 0
        for entry_id in range(rng.choice([1, 20, 300, 3000])):
            await window.acquire()
            if failure:
                break
            size = rng.choice(SIZES)
            origin = payload.Origin(
                self.settings.run, ledger_id, entry_id, self.settings.number, size
            )
            data = payload.make(origin)
            note("add", ledger=ledger_id, entry=entry_id, writer=self.settings.number)
            try:
                await writer.ready()
                future = writer.append_nowait(data)
            except Error as error:
                failure.append(error)
                break
            length += len(data)
            future.add_done_callback(functools.partial(answered, entry_id))
            if rng.random() < 0.02:
                await asyncio.sleep(rng.uniform(0, 0.05))
        if not failure and rng.random() < 0.3:
            return  # left open, for a recoverer
        with contextlib.suppress(Error):
            await writer.close()
            note("closed", ledger=ledger_id, last=writer.last_add_confirmed, length=length)

    # --- recovering and reading --------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Take over ledgers that are not closed, again and again."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.05, 0.4))
            with contextlib.suppress(Error):
                ledger_id = await self._some_open_ledger()
                if ledger_id is not None:
                    await self._recover_one(ledger_id)

    async def _recover_one(self, ledger_id: int) -> None:
        async with await self.client.open_ledger(ledger_id, recovery=True) as reader:
            metadata = reader.metadata
            self.recorder.note(
                "opened",
                ledger=ledger_id,
                last=metadata.last_entry_id,
                length=metadata.length,
                by=self.settings.name,
            )
            await self.read_all(reader, self.settings.name, is_final=False)

    async def read_all(self, reader: LedgerReader, by: str, *, is_final: bool) -> None:
        """Read a closed ledger from end to end and record every entry."""
        async for batch in reader.read_batches():
            self.recorder.note_all(
                [
                    self._read(reader.ledger_id, one.entry_id, bytes(one.data), by, is_final)
                    for one in batch
                ]
            )

    def _read(
        self, ledger_id: int, entry_id: int, data: bytes, by: str, is_final: bool
    ) -> dict[str, object]:
        origin = payload.parse(data)
        is_good = origin is not None and (origin.ledger_id, origin.entry_id) == (
            ledger_id,
            entry_id,
        )
        crc = (zlib.crc32(data) or 1) if is_good else 0
        return {
            "op": "read",
            "ledger": ledger_id,
            "entry": entry_id,
            "crc": crc,
            "by": by,
            "final": is_final,
        }

    async def _some_open_ledger(self) -> int | None:
        infos = [one async for one in self.client.list_ledgers()]
        still_open = [one.ledger_id for one in infos[-200:] if not one.metadata.is_closed]
        return self.rng.choice(still_open) if still_open else None

    async def tail(self) -> None:
        """Follow ledgers that are being written."""
        turn = 0
        while True:
            await asyncio.sleep(0.02)
            turn += 1
            with contextlib.suppress(Error, TimeoutError):
                ledger_id = await self._some_open_ledger()
                if ledger_id is None:
                    continue
                async with (
                    asyncio.timeout(self.rng.uniform(0.1, 2)),
                    await self.client.open_ledger(ledger_id, recovery=False) as reader,
                ):
                    by = f"{self.settings.name}.{turn}"
                    async for entry in reader.tail():
                        data = bytes(entry.data)
                        self.recorder.note_all(
                            [
                                self._read(ledger_id, entry.entry_id, data, by, False),
                                {
                                    "op": "lac",
                                    "ledger": ledger_id,
                                    "lac": reader.last_known,
                                    "by": by,
                                },
                            ]
                        )


async def main(role: str, settings: Settings) -> None:
    """Do one role until cancelled."""
    store = proxied(settings.uri, settings.ports)
    options = {"append_timeout": 5.0, "read_timeout": 5.0, "close_timeout": 5.0}
    async with fastbk.connect(store, **options) as client:
        worker = Worker(settings, client)
        await {"writer": worker.write, "recoverer": worker.recover, "tailer": worker.tail}[role]()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Settings(**json.loads(Path(sys.argv[2]).read_text()))))
