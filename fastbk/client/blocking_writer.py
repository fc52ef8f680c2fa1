"""The blocking writer of one ledger: calls around its pipe. Made by `fastbk.sync.Client`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TypeAlias

from fastbk.client.blocking import Owner
from fastbk.client.blocking_pipe import BlockingPipe
from fastbk.client.blocking_runner import BlockingIo, run_blocking
from fastbk.client.held_entries import HeldEntries
from fastbk.client.rules import no_bookie_took_lac, wrong_use_of_ids
from fastbk.client.writer_stats import WriterStats
from fastbk.errors import (
    BufferFull,
    ConfigError,
    Error,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    Outcome,
    QuorumTimeout,
)
from fastbk.model.ids import BookieId, EntryId
from fastbk.model.ledger import LedgerMetadata
from fastbk.option_checks import checked_timeout
from fastbk.replication.actions import TellLac
from fastbk.replication.batch import split
from fastbk.replication.refusals import too_large
from fastbk.replication.writer_machine import WriterMachine
from fastbk.wire.statuses import Status, status_name

Data: TypeAlias = bytes | bytearray | memoryview

_CHUNK_ENTRIES = 512


class Pending:
    """An append that was sent; `result()` waits for it."""

    def __init__(self, writer: LedgerWriter, entry_id: EntryId) -> None:
        self._writer = writer
        self.entry_id = entry_id

    def done(self) -> bool:
        """Whether it is acknowledged or failed, as far as was heard."""
        adds = self._writer._adds
        return adds.head > self.entry_id or adds.failure is not None

    def result(self, timeout: float | None = None) -> EntryId:
        """Wait until it is acknowledged and return its id; raises as `append` does."""
        self._writer._wait(self.entry_id, checked_timeout(timeout))
        return self.entry_id


class LedgerWriter:
    """Appends to one ledger; made by `fastbk.sync.Client.create_ledger`. The rules are the asyncio writer's."""

    def __init__(
        self, client: Owner, machine: WriterMachine, io: BlockingIo, *, explicit_ids: bool
    ) -> None:
        self.ledger_id = io.ledger_id
        self._client = client
        self._config = client.config
        self._reactor = client.reactor
        self._io = io
        self._machine = machine
        self._adds = machine.adds
        self._blocked: Error | None = None
        self._done = False
        self._lac_told: EntryId = -1
        self._held: HeldEntries[Pending] | None = None
        if explicit_ids:
            config = client.config
            self._held = HeldEntries(
                self.ledger_id, config.entries_in_flight_max, config.bytes_in_flight_max
            )
        self._pipe = BlockingPipe(machine, io, client.config)

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last read or wrote it."""
        return self._machine.known.metadata

    # --- appending ---------------------------------------------------------------------------------------------

    def append(
        self, data: Data, *, entry_id: EntryId | None = None, timeout: float | None = None
    ) -> EntryId:
        """Append one entry and return its id once the ack quorum has it; for `entry_id` see the asyncio writer."""
        if self._held is not None or entry_id is not None:
            checked_timeout(timeout)
            return self.append_nowait(data, entry_id=entry_id).result(timeout)
        first, _ = self.append_many([data], timeout=timeout)
        return first

    def append_many(
        self, datas: Sequence[Data], *, timeout: float | None = None
    ) -> tuple[EntryId, EntryId]:
        """Append entries with consecutive ids; return the first and the last id once all are acknowledged."""
        limit_s = checked_timeout(timeout, self._config.append_timeout)
        owned = [data if type(data) is bytes else bytes(data) for data in datas]
        if not owned:
            raise ConfigError("append_many needs at least one entry")
        if self._held is not None:
            raise wrong_use_of_ids(self.ledger_id, None)
        self._check_sizes(owned)
        deadline_s = time.monotonic() + limit_s
        with self._client.turn():
            self._check()
            first = self._adds.next_entry_id
            for piece in split(owned, min(_CHUNK_ENTRIES, self._config.entries_in_flight_max)):
                size = sum(map(len, piece))
                if not self._run(partial(self._pipe.has_room, size), deadline_s):
                    begun = self._adds.next_entry_id > first
                    raise self._timeout(first, limit_s, "unknown" if begun else "not_written")
                self._send(piece, size)
                # Acks that are here already make room; without them this would fill the bounds first.
                self._reactor.turn(0.0)
            self._wait(first + len(owned) - 1, deadline_s - time.monotonic(), limit_s)
        return first, first + len(owned) - 1

    def append_nowait(self, data: Data, *, entry_id: EntryId | None = None) -> Pending:
        """Send an entry without waiting for its ack; raises BufferFull when the bounds are reached."""
        owned = data if type(data) is bytes else bytes(data)
        self._check_sizes([owned])
        with self._client.turn() as reactor:
            self._check()
            if self._held is not None or entry_id is not None:
                return self._hold(owned, entry_id)
            if not self._pipe.has_room(len(owned)):
                reactor.turn(0.0)
            if not self._pipe.has_room(len(owned)):
                raise BufferFull(f"ledger {self.ledger_id}: too much is in flight; call ready()")
            self._send([owned], len(owned))
            return Pending(self, self._adds.next_entry_id - 1)

    def _hold(self, data: bytes, entry_id: EntryId | None) -> Pending:
        held = self._held
        if held is None or entry_id is None:
            raise wrong_use_of_ids(self.ledger_id, entry_id)
        pending = Pending(self, entry_id)
        held.hold(entry_id, self._adds.next_entry_id, data, pending)
        self._send_held()
        return pending

    def _send_held(self) -> None:
        """Send what is next, and all behind it that is there, as far as there is room."""
        held, adds = self._held, self._adds
        while (
            held is not None
            and adds.failure is None
            and (size := held.size_of(adds.next_entry_id)) is not None
            and self._pipe.has_room(size)
        ):
            data, _ = held.take(adds.next_entry_id)
            self._send([data], size)

    def ready(self) -> None:
        """Return when `append_nowait` has room for an entry of ordinary size."""
        with self._client.turn():
            self._check()
            limit_s = self._config.append_timeout
            if not self._run(lambda: self._pipe.has_room(1), time.monotonic() + limit_s):
                raise self._timeout(self._adds.head, limit_s, "unknown")

    def _check_sizes(self, owned: list[bytes]) -> None:
        for data in owned:
            if len(data) > self._pipe.data_bytes_max:
                raise too_large(self.ledger_id, len(data), self._pipe.data_bytes_max)

    def _check(self) -> None:
        if self._adds.failure is not None:
            raise self._adds.failure.copy()
        if self._blocked is not None:
            raise self._blocked.copy()

    def _send(self, owned: list[bytes], size: int) -> None:
        self._check()
        self._pipe.send(owned, size)

    def _run(self, is_done: Callable[[], bool], deadline_s: float) -> bool:
        """Run until `is_done()`, the writer's end or the deadline; return which: True if done or ended."""
        if not self._held:
            return self._pipe.run_until(is_done, deadline_s)

        def is_done_with_held() -> bool:
            self._send_held()
            return is_done()

        return self._pipe.run_until(is_done_with_held, deadline_s)

    def _wait(
        self, entry_id: EntryId, timeout_s: float | None, shown_s: float | None = None
    ) -> None:
        limit_s = self._config.append_timeout if timeout_s is None else timeout_s
        adds = self._adds
        with self._client.turn():
            # What is held when the writer is closed is never sent: there is nothing to wait for.
            if not self._done:
                self._run(lambda: adds.head > entry_id, time.monotonic() + limit_s)
            if adds.head > entry_id:
                return
            if adds.failure is not None:
                error = adds.failure.copy()
                error.entry_id = adds.head
                error.outcome = adds.outcome(entry_id)
                raise error
            if self._held is not None and entry_id >= adds.next_entry_id:
                if self._done:
                    raise LedgerClosed(
                        f"ledger {self.ledger_id} was closed before entry {adds.next_entry_id} came;"
                        f" entry {entry_id} was never sent",
                        ledger_id=self.ledger_id,
                        entry_id=entry_id,
                    )
                raise self._timeout(entry_id, limit_s, "not_written")
            raise self._timeout(entry_id, limit_s if shown_s is None else shown_s, "unknown")

    def _timeout(self, entry_id: EntryId, limit_s: float, outcome: Outcome) -> QuorumTimeout:
        return QuorumTimeout(
            f"ledger {self.ledger_id}: entry {entry_id} was not acknowledged within {limit_s:g} s;"
            " it stays in the pipe, so read before appending it again",
            ledger_id=self.ledger_id,
            entry_id=entry_id,
            outcome=outcome,
            replicas=self._adds.trouble(),
        )

    # --- flush, force, close -----------------------------------------------------------------------------------

    def flush(self, *, timeout: float | None = None) -> None:
        """Return when everything appended so far is acknowledged; tells bookies the LAC, so that readers see it."""
        limit_s = checked_timeout(timeout, self._config.append_timeout)
        with self._client.turn():
            adds = self._adds
            if adds.failure is not None:
                raise adds.failure.copy()
            if adds.head != adds.next_entry_id:
                self._wait(adds.next_entry_id - 1, limit_s)
            if self._machine.last_add_confirmed > self._lac_told:
                self._tell_lac(min(1.0, self._config.read_timeout))

    def tell_last_add_confirmed(self) -> EntryId:
        """Tell the bookies the LAC now, so that readers see the last entries; return it."""
        with self._client.turn():
            self._check_open()
            lac = self._machine.last_add_confirmed
            if lac >= 0:
                said = self._tell_lac(self._config.read_timeout)
                if len(said) == len(self._machine.ensemble):
                    raise no_bookie_took_lac(self.ledger_id, lac, said)
            return lac

    def _tell_lac(self, timeout_s: float) -> dict[BookieId, str]:
        """Return why those that did not take it did not."""
        lac = self._lac_told = self._machine.last_add_confirmed
        ensemble = self._machine.ensemble
        requests = self._io.requests
        answers = self._reactor.ask_all(
            ensemble, lambda request_id: requests.frame(TellLac(lac), request_id), timeout_s
        )
        return {
            bookie_id: str(one) if isinstance(one, Error) else status_name(one.status)
            for bookie_id, one in zip(ensemble, answers, strict=True)
            if isinstance(one, Error) or one.status != Status.OK
        }

    def force(self, *, timeout: float | None = None) -> None:
        """Flush, then have the bookies confirm that everything before is durable; see the asyncio writer."""
        limit_s = checked_timeout(timeout, self._config.append_timeout)
        deadline_s = time.monotonic() + limit_s
        with self._client.turn():
            self._check_open()
            self.flush(timeout=limit_s)
            left_s = max(0.001, deadline_s - time.monotonic())
            self._machine.forced(run_blocking(self._machine.forcing(left_s), self._io))

    def _check_open(self) -> None:
        if self._adds.failure is not None:
            raise self._adds.failure.copy()
        if self._done and self._blocked is not None:
            raise self._blocked.copy()

    def close(self, *, timeout: float | None = None) -> None:
        """Flush, then close the ledger in the metadata; raises what ended the writer. Again: does nothing."""
        limit_s = checked_timeout(timeout, self._config.close_timeout)
        if self._done:
            return
        deadline_s = time.monotonic() + limit_s
        with self._client.turn():
            machine, adds = self._machine, self._adds
            self._blocked = LedgerClosed(
                f"ledger {self.ledger_id} is closed: go on in a new one", ledger_id=self.ledger_id
            )
            if self._held is not None:
                self._held.take_all()
            if adds.failure is None and adds.head != adds.next_entry_id:
                try:
                    self._wait(adds.next_entry_id - 1, limit_s)
                except Error as error:
                    machine.end(error, time.monotonic())
            if adds.failure is None:
                laggards_s = min(self._config.laggard_wait, deadline_s - time.monotonic())
                self._run(lambda: not self._pipe.has_laggards(), time.monotonic() + laggards_s)
            failure = adds.failure
            if not isinstance(failure, LedgerFenced):
                self._pipe.settle()
                left_s = max(0.001, deadline_s - time.monotonic())
                try:
                    run_blocking(machine.closing(left_s), self._io)
                except (LedgerClosed, NoSuchLedger):
                    # For good: there is nothing to call `close` again for.
                    self._finish()
                    raise
                self._io.closed_with_missing(self.ledger_id, machine.marked)
            self._finish()
            if failure is not None:
                raise failure.copy()

    def _finish(self) -> None:
        self._done = True
        self._pipe.stop()

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last acknowledged entry, -1 before the first."""
        return self._machine.last_add_confirmed

    @property
    def pending(self) -> int:
        """How many entries are sent and not acknowledged, as far as was heard."""
        return self._adds.next_entry_id - self._adds.head

    def stats(self) -> WriterStats:
        """Return this writer's figures now."""
        self._pipe.has_room(0)
        return WriterStats.of(self._machine, self.pending, self._pipe.bytes_in_flight)

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Error:
            if error is None:
                raise
