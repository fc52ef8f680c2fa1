"""Where a cursor's states are kept: in its record of metadata, or, while they are many, in a ledger of its own.

The record names the place of the latest state (INV-S10), and a record names each ledger of states (INV-S8).
README.md, "Where states are stored", has the formats.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from msgspec.structs import replace

from fastbk.client.client import Client
from fastbk.client.ledger_writer import LedgerWriter
from fastbk.errors import CursorFenced, Error
from fastbk.observe.library_log import LibraryLog
from fastbk.retry import jittered
from fastbk.stream.chain.opening import create_ledger
from fastbk.stream.context import StreamContext, clock_us
from fastbk.stream.cursor.acks import CursorAcks
from fastbk.stream.cursor.state import (
    DOOMED_MAX,
    NONE,
    CursorRecord,
    CursorState,
    get_state,
    put_state,
)
from fastbk.stream.cursor.store import CursorStore, of_cursor

_log = LibraryLog("fastbk.stream.cursor")

RECORD_RATE_PER_S = 2.0
"""States that may go to the record for good; beyond it, and a burst, a ledger is made."""
RECORD_BURST = 5.0
RECORD_PAUSE_S = 0.1
"""Between states that go to the record where there is no ledger to be had."""
LEDGER_AGAIN_S = 30.0
"""After a ledger has failed, none is tried for so long."""
KEEP_ALIVE_S = 30.0
"""While states go to a ledger, the record is renewed so often: retention goes by it."""


class StateStorage:
    """One holder's. One call at a time.

    Attributes:
        serial: of the last state that was made.
    """

    def __init__(
        self, context: StreamContext, name: str, store: CursorStore[CursorRecord], acks: CursorAcks
    ) -> None:
        self.serial = store.record.state.serial
        self._context = context
        self._name = name
        self._store = store
        self._acks = acks
        self._epoch = store.record.state.epoch
        self._ledger: CursorLedger | None = None
        self._reserved = NONE
        self._doomed = list(store.record.doomed)
        self._ended: list[CursorLedger] = []
        self._entries_before = 0
        self._loop = asyncio.get_running_loop()
        self._tokens = RECORD_BURST
        self._tokens_at_s = self._renewed_at_s = self._loop.time()
        self._no_ledger_until_s = 0.0

    def _state(self) -> CursorState:
        self.serial += 1
        return self._acks.state(self.serial, self._epoch, clock_us())

    async def keep(self) -> int:
        """Keep the state as it is now; return the count of changes that are in it.

        Raises CursorFenced; anything else: nobody knows whether it is kept, and another call tries again.
        """
        changes, state = self._acks.changes, self._state()
        if self._ledger is not None:
            try:
                await self._ledger.append(state)
                return changes
            except Error as error:
                _log.warning("cursor.ledger_failed", cursor=self._label, reason=str(error))
                self._leave_ledger()
        await self._spend_token()
        await self._write(state)
        return changes

    @property
    def _label(self) -> str:
        return f"{self._context.name}/{self._name}"

    # --- the record -----------------------------------------------------------------------------------------------

    async def _spend_token(self) -> None:
        now_s = self._loop.time()
        grown = (now_s - self._tokens_at_s) * RECORD_RATE_PER_S
        self._tokens = min(RECORD_BURST, self._tokens + grown) - 1
        self._tokens_at_s = now_s
        if self._tokens < -RECORD_BURST:
            self._tokens = -RECORD_BURST
            await asyncio.sleep(RECORD_PAUSE_S)

    async def _write(self, state: CursorState) -> None:
        record: CursorRecord = replace(
            self._store.record,
            state=state,
            ledger=NONE if self._ledger is None else self._ledger.ledger_id,
            reserved=self._reserved,
            doomed=tuple(self._doomed),
            used_at_us=max(self._store.record.used_at_us, state.time_us),
        )
        await self._store.write(record)
        self._renewed_at_s = self._loop.time()

    def _doom(self, ledger: CursorLedger) -> None:
        self._doomed.append(ledger.ledger_id)
        self._ended.append(ledger)

    def _leave_ledger(self) -> None:
        if self._ledger is not None:
            self._doom(self._ledger)
            self._ledger = None
            self._no_ledger_until_s = self._loop.time() + jittered(LEDGER_AGAIN_S)

    # --- what is due beside ---------------------------------------------------------------------------------------

    def renew_in_s(self) -> float | None:
        """Return in how many seconds `tend` has to be called, even if nothing is to be kept; None: not at all."""
        expire_s = self._store.record.expire_after_s
        pause_s = KEEP_ALIVE_S if self._ledger is not None else None
        if expire_s > 0:
            pause_s = min(KEEP_ALIVE_S, expire_s / 4)
        if pause_s is None:
            return None
        return max(0.0, self._renewed_at_s + pause_s - self._loop.time())

    async def tend(self) -> None:
        """Renew the record where it is time, change to another ledger or none, delete what is not needed.

        Raises CursorFenced; other troubles wait for the next call.
        """
        try:
            if self.renew_in_s() == 0.0:
                await self._renew()
            if self._wants_ledger():
                await self._next_ledger()
            await self._clean()
        except CursorFenced:
            raise
        except Error as error:
            self._no_ledger_until_s = self._loop.time() + jittered(LEDGER_AGAIN_S)
            self._renewed_at_s = self._loop.time()
            _log.warning("cursor.upkeep_waits", cursor=self._label, reason=str(error))

    async def _renew(self) -> None:
        ledger = self._ledger
        if ledger is not None:
            # Back to the record, where it is enough.
            recent = ledger.entries - self._entries_before
            self._entries_before = ledger.entries
            if recent <= (self._loop.time() - self._renewed_at_s) * RECORD_RATE_PER_S / 2:
                self._doom(ledger)
                self._ledger = None
        await self._write(self._state())

    def _wants_ledger(self) -> bool:
        if self._loop.time() < self._no_ledger_until_s or len(self._doomed) >= DOOMED_MAX:
            return False
        if self._ledger is not None:
            return self._ledger.entries >= ENTRIES_MAX
        return self._tokens < 1

    async def _next_ledger(self) -> None:
        """Have a new ledger; the former one, if any, keeps what comes until the record names the new one."""
        self._reserved = await self._context.client.records.draw_ledger_id()
        try:
            await self._write(self._state())
            policy = await self._context.policy()
            made = CursorLedger(
                await create_ledger(self._context, policy, self._reserved, cursor=self._name)
            )
        except Error:
            self._doomed.append(self._reserved)
            raise
        finally:
            self._reserved = NONE
        former, self._ledger, self._entries_before = self._ledger, made, 0
        if former is not None:
            self._doom(former)
        try:
            await self._write(self._state())
        except Error:
            # Which of the two the record names is not known: the next state goes to the record, and says that neither.
            self._leave_ledger()
            raise

    async def _clean(self) -> None:
        """Delete ledgers that the record says are doomed; the next change of the record forgets them."""
        ended, self._ended = self._ended, []
        for ledger in ended:
            await ledger.close()
        for ledger_id in self._store.record.doomed:
            if ledger_id in self._doomed:
                await self._context.client.records.retire_ledger_id(
                    ledger_id, self._context.stream_id, of_cursor(self._name)
                )
                self._doomed.remove(ledger_id)

    async def close(self, is_dirty: bool) -> None:
        """Bring the state back to the record, and delete all ledgers. Raises CursorFenced.

        Raises anything else only where it is not known whether the state is kept.
        """
        if self._ledger is not None and is_dirty:
            with suppress(Error):
                await self._ledger.append(self._state())
                is_dirty = False
        try:
            await self._leave_all(is_dirty)
        except Error as error:
            if is_dirty or isinstance(error, CursorFenced):
                raise
            _log.info("cursor.upkeep_waits", cursor=self._label, reason=str(error))

    async def _leave_all(self, is_dirty: bool) -> None:
        if self._ledger is not None:
            self._doom(self._ledger)
            self._ledger = None
            is_dirty = True
        if is_dirty:
            await self._write(self._state())
        await self._clean()
        if tuple(self._doomed) != self._store.record.doomed:
            await self._write(self._state())


# --- the ledger -------------------------------------------------------------------------------------------------

APPEND_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
ENTRIES_MAX = 50_000
"""Then another one takes its place."""


class CursorLedger:
    """The writer of a cursor's ledger: whole states, appended; of a fenced ledger the last one counts (INV-S10).

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


async def last_state(client: Client, ledger_id: int) -> CursorState | None:
    """Fence the ledger, so that nothing more is acknowledged to its writer; return its last state, if it has any.

    Raises NoSuchLedger, and what recovery and reads raise.
    """
    async with await client.open_ledger(ledger_id, recovery=True) as reader:
        last = reader.metadata.last_entry_id
        if last is None or last < 0:
            return None
        (entry,) = [one async for one in reader.read(last, last)]
        return get_state(entry.data)
