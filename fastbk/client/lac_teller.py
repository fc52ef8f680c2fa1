"""Tells bookies a writer's LAC when no later entry carries it, so that readers see the last entries."""

from __future__ import annotations

import asyncio

from fastbk.client.bookie_pool import Peer
from fastbk.client.config import ClientConfig
from fastbk.errors import Error
from fastbk.model.entry import make_lac_body
from fastbk.model.ids import EntryId
from fastbk.native import client_codec as codec
from fastbk.replication.add_machine import AddMachine


class LacTeller:
    """A timer that runs while entries are acknowledged and writes the LAC once the writer has fallen idle."""

    def __init__(
        self,
        machine: AddMachine,
        peers: list[Peer],
        ledger_codec: codec.LedgerCodec,
        password: bytes,
        config: ClientConfig,
    ) -> None:
        self._machine = machine
        self._peers = peers
        self._codec = ledger_codec
        self._password = password
        self._interval_s = config.explicit_lac_interval
        self._timeout_s = config.read_timeout
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._told: EntryId = -1
        self._tasks: set[asyncio.Task[None]] = set()

    def poke(self) -> None:
        """The LAC has moved."""
        if self._timer is None and self._interval_s:
            self._timer = self._loop.call_later(self._interval_s, self._tell)

    def stop(self) -> None:
        """Tell nothing more."""
        self._interval_s = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()

    def _tell(self) -> None:
        self._timer = None
        machine = self._machine
        if machine.head != machine.next_entry_id:
            # Entries in flight carry a LAC; the last of them will not carry its own.
            self.poke()
            return
        lac = machine.last_add_confirmed
        if lac <= self._told:
            return
        self._told = lac
        body = make_lac_body(machine.ledger_id, lac, self._codec.digest_type, self._password)
        for peer in self._peers:
            if peer.adds.connection is not None:
                task = self._loop.create_task(self._write(peer, lac, body))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _write(self, peer: Peer, lac: EntryId, body: bytes) -> None:
        try:
            await peer.request(
                lambda request_id: codec.put_write_lac(
                    request_id, self._machine.ledger_id, lac, self._codec.master_key, body
                ),
                self._timeout_s,
            )
        except Error:
            # Losing it only delays visibility; the next one says the same.
            return
