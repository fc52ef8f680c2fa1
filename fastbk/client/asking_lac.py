"""Asks bookies for a ledger's LAC, on an asyncio loop: all of the ensemble once, or one until it moves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastbk.client.bookie_pool import BookiePool
from fastbk.client.config import ClientConfig
from fastbk.client.connection import Answer
from fastbk.client.lac import hear_lac, proven_lacs
from fastbk.errors import Error
from fastbk.model.ids import BookieId, EntryId
from fastbk.native import client_codec as codec
from fastbk.replication.read_machine import LacMachine
from fastbk.wire.statuses import Status, status_name


async def ask_all_lacs(
    pool: BookiePool,
    ledger_codec: codec.LedgerCodec,
    password: bytes,
    machine: LacMachine,
    timeout_s: float,
) -> None:
    """Tell `machine` what the bookies say until it is covered or all have answered."""

    async def ask(bookie_id: BookieId) -> None:
        try:
            answer = await pool.peer(bookie_id).request(
                lambda request_id: codec.put_read_lac(request_id, ledger_codec.ledger_id, -1),
                timeout_s,
            )
        except Error as error:
            machine.unreached(bookie_id, error)
        else:
            hear_lac(machine, bookie_id, answer, ledger_codec, password)

    loop = asyncio.get_running_loop()
    tasks = {loop.create_task(ask(bookie_id)) for bookie_id in machine.unheard}
    try:
        while tasks and not machine.is_covered:
            _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@dataclass(frozen=True, slots=True)
class News:
    """What a poll gave. `data`: the entry waited for, when it came along and is proven to be acknowledged."""

    last_add_confirmed: EntryId = -1
    data: memoryview | None = None
    trouble: str | None = None
    waited: bool = False
    """Whether the bookie held the answer back: if not, the next poll may come back at once, too."""


class LacPoller:
    """Long polls of a tailing reader."""

    def __init__(
        self,
        pool: BookiePool,
        ledger_codec: codec.LedgerCodec,
        password: bytes,
        config: ClientConfig,
    ) -> None:
        self._pool = pool
        self._codec = ledger_codec
        self._password = password
        self._config = config

    async def poll(self, bookie_id: BookieId, position: EntryId) -> News:
        """Wait at one bookie, at most `poll_interval`, until the LAC has reached `position`."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            answer = await self._ask(bookie_id, position, self._config.poll_interval)
            waited = loop.time() - started_s >= self._config.poll_interval / 2
            if answer.status in (Status.NO_LEDGER, Status.NO_ENTRY):
                # Nothing was written yet, or not to this bookie.
                return News(waited=waited)
            if answer.status != Status.OK:
                return News(trouble=f"{bookie_id}: {status_name(answer.status)}")
            lacs, _ = proven_lacs(answer, self._codec, self._password)
            known = max(lacs, default=-1)
            if known < position <= answer.lac:
                # The bookie claims it, and what came along does not prove it: its newest entry may.
                second = await self._ask(bookie_id, position, 0)
                if second.status == Status.OK:
                    lacs, _ = proven_lacs(second, self._codec, self._password)
                    known = max([known, *lacs])
        except Error as error:
            return News(trouble=f"{bookie_id}: {error}")
        if answer.entries and answer.entry_id == position <= known:
            found = self._codec.check_entry(answer.entries)
            if found is not None and found[0] == position:
                return News(known, found[2], waited=waited)
        return News(known, waited=waited)

    async def _ask(self, bookie_id: BookieId, position: EntryId, wait_s: float) -> Answer:
        flags = codec.FLAG_PIGGYBACK if wait_s else 0
        ledger_id = self._codec.ledger_id
        return await self._pool.peer(bookie_id).request(
            lambda request_id: codec.put_read_lac(
                request_id, ledger_id, position - 1, int(wait_s * 1000), flags
            ),
            wait_s + self._config.read_timeout,
        )
