"""The blocking client's repairs of copies that were missing when it closed or recovered a ledger.

The blocking twin of `copy_repairs.py`. Nobody serves the sockets of this client between calls. So
repairs go on while it is called, beside what the call is about, and for a moment when it is closed.
They cost a call nothing where there is nothing to repair.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from fastbk.client.blocking import Reactor
from fastbk.client.blocking_runner import BlockingIo, BlockingRunner
from fastbk.client.rules import checking_of
from fastbk.errors import Error, NoSuchLedger
from fastbk.meta.api import MetadataStore
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.repairing_missing import RepairMissing, RepairQueue

CLOSE_WAIT_S = 1.0
"""How long a client that is closed goes on with what can be done at once."""
_LOOK_S = 0.1


class Owner(Protocol):
    """The blocking client, as its repairs see it."""

    reactor: Reactor

    def store(self) -> MetadataStore:
        """Return the metadata store, opened."""

    def tool_io(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> BlockingIo:
        """Return what procedures about the ledger act on."""


class BlockingRepairs:
    """The repairs of one client, one at a time. All calls are made while holding the client."""

    def __init__(self, client: Owner) -> None:
        self._client = client
        self._queue = RepairQueue()
        self._checks: deque[tuple[LedgerId, LedgerMetadata]] = deque()
        self._runner: BlockingRunner[Any] | None = None
        self._ended: Callable[[], None] = _nothing
        self._bookies_version = 0
        self._is_in_round = False
        self._is_polling = False

    @property
    def waiting(self) -> int:
        """How many ledgers wait for a repair."""
        return len(self._queue)

    @property
    def is_checking(self) -> bool:
        """Whether something is being checked or repaired, or a recovered ledger is to be checked."""
        return bool(self._checks or self._runner)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do, now or later."""
        return not (self._queue or self._checks or self._runner)

    def add(self, ledger_id: LedgerId, missing: tuple[MissingReplica, ...]) -> None:
        """Repair these when their bookies are there."""
        self._queue.add(ledger_id, missing)
        if self._queue:
            self._client.reactor.before_wait = self.poll

    def check_recovered(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        """Check a ledger that was recovered."""
        self._checks.append((ledger_id, metadata))
        self._client.reactor.before_wait = self.poll

    def poll(self, timeout_s: float) -> float:
        """Go on without waiting, but for the metadata store; return how long the reactor may wait.

        The reactor calls it each time before it waits, as long as there is something to do.
        """
        if self._is_polling:
            return timeout_s
        self._is_polling = True
        try:
            self._go_on()
        finally:
            self._is_polling = False
        if self.is_idle:
            self._client.reactor.before_wait = None
        return min(timeout_s, _LOOK_S)

    def close(self) -> None:
        """Do what can be done at once, within a moment, and give up the rest; it stays marked."""
        if self.is_idle:
            return
        self._queue.hurry()
        reactor, end_s = self._client.reactor, time.monotonic() + CLOSE_WAIT_S
        with suppress(Error):
            while time.monotonic() < end_s:
                reactor.turn(_LOOK_S if self._runner else 0.0)
                if not (self._checks or self._runner or self._is_in_round):
                    break
        if self._runner is not None:
            self._runner.stop()
        self._runner = None
        self._checks.clear()
        self._queue.clear()

    def _go_on(self) -> None:
        """Take the next step that is possible."""
        if (runner := self._runner) is not None:
            runner.poll()
            if not runner.procedure.is_finished:
                return
            self._runner = None
            runner.stop()
            self._ended()
        reactor = self._client.reactor
        if self._bookies_version != reactor.bookies_version:
            self._bookies_version = reactor.bookies_version
            self._queue.hurry()
        with suppress(Error):
            if self._checks:
                self._begin_check()
            elif self._is_in_round:
                self._begin_repair()
            elif self._queue and time.monotonic() >= self._queue.due_s:
                self._begin_round()

    def _start(self, runner: BlockingRunner[Any], ended: Callable[[], None]) -> None:
        self._runner, self._ended = runner, ended
        runner.start()

    def _begin_check(self) -> None:
        client, store = self._client, self._client.store()
        ledger_id, metadata = self._checks.popleft()
        checking = checking_of(ledger_id, metadata, client.reactor.bookies())

        def ended() -> None:
            # Also what the dead writer had marked.
            if checking.error is None:
                with suppress(Error):
                    self.add(ledger_id, store.marks.read(ledger_id).missing)

        self._start(BlockingRunner(checking, client.tool_io(ledger_id, metadata)), ended)

    def _begin_round(self) -> None:
        writable: set[BookieId] = set()
        try:
            listed = self._client.reactor.bookies()
            writable = {one.service.bookie_id for one in listed if one.writable}
        finally:
            self._queue.begin_round(writable, time.monotonic())
        self._is_in_round = True

    def _begin_repair(self) -> None:
        queue, client = self._queue, self._client
        if (step := queue.next()) is None:
            self._is_in_round = False
            return
        ledger_id, missing = step
        try:
            metadata = client.store().read_ledger(ledger_id).metadata
        except NoSuchLedger:
            queue.deleted(ledger_id)
            return
        repairing = RepairMissing(ledger_id, missing)

        def ended() -> None:
            if repairing.error is None and repairing.value():
                queue.repaired(ledger_id, missing)

        self._start(BlockingRunner(repairing, client.tool_io(ledger_id, metadata)), ended)


def _nothing() -> None:
    """Stand in for what is to be done at the end of a procedure."""
