"""A reading handle on a simulated client: LACs, ranges, tails, through the product's procedures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fastbk.errors import DigestMismatch, NoSuchEntry, NotEnoughBookies
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, EntryId
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.lac_procedures import (
    PollLac,
    PollOptions,
    ReadLastConfirmed,
    TryReadLastConfirmed,
)
from fastbk.replication.reading import ReadOptions, ReadRange
from tests.simulation.client import Client
from tests.simulation.running import Ledger, Running

if TYPE_CHECKING:
    from tests.simulation.world import World

TAIL_POLLS_MAX = 12
POLL_S = 0.3


class Reader:
    """One handle. `lac`: the highest that it was told."""

    def __init__(self, world: World, client: Client, ledger: Ledger) -> None:
        self.world = world
        self.client = client
        self.ledger = ledger
        self.lac: EntryId = -1
        self._polls = 0
        # What each range has to hand out next.
        self._expected: dict[int, EntryId] = {}
        self._is_tailing = False

    # --- metadata and LAC --------------------------------------------------------------------------------------

    def _with_metadata(self, then: Callable[[LedgerMetadata], None]) -> None:
        def told(outcome: Any) -> None:
            if isinstance(outcome, VersionedLedger):
                then(outcome.metadata)

        self.client.read_metadata(self.ledger.ledger_id, told)

    def _learn(self, lac: EntryId) -> None:
        before, self.lac = self.lac, max(self.lac, lac)
        self.world.checks.lac_told(self.client.name, self.ledger.ledger_id, before, self.lac)

    def read_lac(self, is_quorum: bool, then: Callable[[LedgerMetadata], None] | None) -> None:
        ledger_id = self.ledger.ledger_id

        def ask(metadata: LedgerMetadata) -> None:
            if metadata.is_closed:
                self._learn(metadata.last_entry_id)
                if then is not None:
                    then(metadata)
                return
            kind = ReadLastConfirmed if is_quorum else TryReadLastConfirmed
            procedure = kind(ledger_id, metadata, self.world.workload.pacing())

            def done(running: Running[EntryId]) -> None:
                if procedure.error is None:
                    self._learn(procedure.value())
                    if then is not None:
                        then(metadata)

            Running(self.client, self.ledger, procedure, done).start()

        self._with_metadata(ask)

    # --- ranges ------------------------------------------------------------------------------------------------

    def options(self, *, is_unconfirmed: bool = False) -> ReadOptions:
        drawn = self.world.plan.options
        return ReadOptions(
            batch_entries=7,
            batch_bytes=64,
            size_bytes_max=128,
            speculative_s=drawn["speculative_s"] or None,
            parallel=bool(drawn["parallel"]),
            is_unconfirmed=is_unconfirmed,
            pacing=self.world.workload.pacing(),
        )

    def range(
        self,
        metadata: LedgerMetadata,
        first: EntryId,
        last: EntryId,
        when_done: Callable[[ReadRange], None],
        *,
        is_unconfirmed: bool = False,
        turn: int = 0,
    ) -> None:
        """Read [first, last]; `turn` rotates which replica is preferred."""

        def order(bookies: Sequence[BookieId]) -> Sequence[BookieId]:
            at = turn % len(bookies)
            return [*bookies[at:], *bookies[:at]]

        options = self.options(is_unconfirmed=is_unconfirmed)
        procedure = ReadRange(self.ledger.ledger_id, metadata, first, last, options, order)
        self._expected[id(procedure)] = first
        Running(
            self.client, self.ledger, procedure, lambda running: when_done(procedure), self._take
        ).start()

    def _take(self, running: Running[Any]) -> None:
        procedure = running.procedure
        assert isinstance(procedure, ReadRange)
        checks, ledger_id = self.world.checks, self.ledger.ledger_id
        while found := procedure.take_found(self.client.kernel.now_s):
            for one in found:
                expected = self._expected[id(procedure)]
                checks.in_order(self.client.name, ledger_id, expected, one.entry_id)
                self._expected[id(procedure)] = expected + 1
                checks.was_read(self.client.name, ledger_id, one.entry_id, bytes(one.data))
            running.perform_actions()

    def read_all(self) -> None:
        def read(metadata: LedgerMetadata) -> None:
            if self.lac >= 0:
                self.range(metadata, 0, self.lac, self._was_read, turn=self.client.index)

        self.read_lac(True, read)

    def _was_read(self, procedure: ReadRange) -> None:
        if isinstance(procedure.error, NoSuchEntry):
            self.world.checks.no_such_entry(
                self.client.name, self.ledger.ledger_id, procedure.position
            )

    def read_unconfirmed(self) -> None:
        """Read whatever is there; what is beyond the LAC may vanish later, so nothing is remembered of it."""

        def read(metadata: LedgerMetadata) -> None:
            last = metadata.last_entry_id if metadata.is_closed else self.lac
            if last >= 0:
                self.range(metadata, 0, last, lambda procedure: None, is_unconfirmed=True)

        self._with_metadata(read)

    def read_own(self, entry_id: EntryId) -> None:
        """Read what this client's writer was told to be stored (I15)."""
        world, ledger_id = self.world, self.ledger.ledger_id

        def done(procedure: ReadRange) -> None:
            error = procedure.error
            if error is not None and not isinstance(error, NotEnoughBookies | DigestMismatch):
                world.checks.own_not_read(self.client.name, ledger_id, entry_id, str(error))

        self._with_metadata(lambda metadata: self.range(metadata, entry_id, entry_id, done))

    # --- tails -------------------------------------------------------------------------------------------------

    def tail(self) -> None:
        """Follow the ledger by long polls, reading each entry once it is confirmed."""
        if not self._is_tailing:
            self._is_tailing = True
            self._polls = TAIL_POLLS_MAX
            self._with_metadata(self._poll)

    def _poll(self, metadata: LedgerMetadata) -> None:
        self._polls -= 1
        if self._polls < 0 or metadata.is_closed:
            self._is_tailing = False
            return
        world, position = self.world, self.lac + 1
        options = PollOptions(wait_s=POLL_S, pacing=world.workload.pacing())
        procedure = PollLac(self.ledger.ledger_id, metadata, position, options)

        def done(running: Running[Any]) -> None:
            if procedure.error is None:
                news = procedure.value()
                # An entry that is handed out is as good as its LAC.
                handed_out = -1 if news.entry is None else news.entry.entry_id
                self._learn(max(self.lac, news.lac, handed_out))
                if news.entry is not None:
                    world.checks.was_read(
                        self.client.name,
                        self.ledger.ledger_id,
                        news.entry.entry_id,
                        bytes(news.entry.data),
                    )
            self._with_metadata(self._poll)

        running = Running(self.client, self.ledger, procedure, done)

        def changed(versioned: VersionedLedger) -> None:
            procedure.metadata_changed(versioned.metadata, self.client.kernel.now_s)
            running.pump()

        running.watch = changed
        watchers = world.store.watchers.setdefault(self.ledger.ledger_id, [])
        if self.client not in watchers:
            watchers.append(self.client)
        running.start()
