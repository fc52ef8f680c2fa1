"""Runs procedures of fastbk/replication on an asyncio loop: performs their actions, hands them the outcomes.

There is one runner a procedure. It owns whatever it has under way: requests, timers, calls of the metadata store.
Stopping it withdraws all of that; what a withdrawn call of the store did stays done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fastbk.client.bookie_pool import BookiePool
from fastbk.client.bookie_requests import LedgerRequests
from fastbk.client.connection import Answer
from fastbk.client.metadata_calls import MetadataCalls
from fastbk.errors import ClientClosed, Error
from fastbk.model.ids import LedgerId
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.procedure import (
    Action,
    AddEntries,
    AddEntry,
    Choose,
    MarkReplicas,
    Outcome,
    Procedure,
    ReadIdentity,
    ReadMetadata,
    Replaced,
    SendRequest,
    Sleep,
    UpdateMetadata,
    Withdraw,
)
from fastbk.retry import jittered
from fastbk.wire.statuses import Status

T = TypeVar("T")


class Cancellable(Protocol):
    """A timer, a task or a request."""

    def cancel(self) -> object:
        """Let go of it."""


@dataclass(frozen=True, slots=True)
class LedgerIo:
    """What procedures about one ledger act on. The calls of the store raise Errors."""

    ledger_id: LedgerId
    requests: LedgerRequests
    pool: BookiePool
    store: MetadataCalls
    mark_replicas: Callable[[LedgerId, MarkReplicas], Awaitable[None]]
    choose: Callable[[Choose], Awaitable[Replaced]]
    closed_with_missing: Callable[[LedgerId, tuple[MissingReplica, ...]], None]
    """Called when a writer has closed its ledger, with what bookies lack of it."""


class Runner(Generic[T]):
    """One procedure on the running loop.

    Use: `start()`; `on_step` is called whenever the procedure has moved, also when it was ended. Whoever calls the
    procedure itself (a writer, a reader that feeds it) calls `step()` afterwards.

    Attributes:
        fault: set when a fault of ours, or the end of the client, ended the run.
    """

    def __init__(self, procedure: Procedure[T], io: LedgerIo, on_step: Callable[[], None]) -> None:
        self.procedure = procedure
        self.fault: BaseException | None = None
        self._io = io
        self._on_step = on_step
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[int, Cancellable] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.procedure.is_finished or self.fault is not None

    def start(self) -> None:
        """Begin; call once."""
        pool = self._io.pool
        if pool.is_closed:
            self.end(ClientClosed("the client was closed: make a new one"))
            return
        pool.runs.add(self)
        try:
            self.procedure.start(self._loop.time())
        except Exception as error:  # noqa: BLE001 - whoever waits for the procedure has to learn of it
            self.end(error)
            return
        self.step()

    def step(self) -> None:
        """Perform what the procedure asks for now."""
        if self.fault is not None:
            return
        try:
            while actions := self.procedure.take_actions():
                for tag, action in actions:
                    self._perform(tag, action)
        except Exception as error:  # noqa: BLE001
            self.end(error)
            return
        if self.procedure.is_finished:
            self._io.pool.runs.discard(self)
        self._on_step()

    def stop(self) -> None:
        """Withdraw everything; `on_step` is not called any more."""
        self._io.pool.runs.discard(self)
        self._on_step = _nothing
        if not self.procedure.is_finished:
            self.procedure.cancel()
            self.procedure.take_actions()
        self._withdraw_all()

    def end(self, error: BaseException) -> None:
        """End it from outside: whoever waits gets `error`."""
        if self.is_over:
            return
        self.fault = error
        self._io.pool.runs.discard(self)
        self._withdraw_all()
        self._on_step()

    def value(self) -> T:
        """Return the procedure's result, or raise what ended it."""
        if self.fault is not None:
            raise self.fault.copy() if isinstance(self.fault, Error) else self.fault
        return self.procedure.value()

    # --- actions -----------------------------------------------------------------------------------------------

    def _perform(self, tag: int, action: Action) -> None:
        if isinstance(action, SendRequest):
            self._under_way[tag] = self._ask(tag, action)
        elif isinstance(action, Withdraw):
            gone = self._under_way.pop(tag, None)
            if gone is not None:
                gone.cancel()
        elif isinstance(action, Sleep):
            pause_s = jittered(action.pause_s) if action.is_retry else action.pause_s
            self._under_way[tag] = self._loop.call_later(pause_s, self._completed, tag, None)
        elif isinstance(action, ReadMetadata):
            self._run(tag, self._read_metadata())
        elif isinstance(action, UpdateMetadata):
            self._run(tag, self._update_metadata(action))
        elif isinstance(action, ReadIdentity):
            self._run(tag, self._read_identity(action))
        elif isinstance(action, MarkReplicas):
            self._run(tag, self._mark_replicas(action))
        else:
            self._run(tag, self._choose(action))

    def _ask(self, tag: int, action: SendRequest) -> Cancellable:
        requests, request = self._io.requests, action.request
        peer = self._io.pool.peer(action.bookie_id)

        def told(outcome: Answer | Error) -> None:
            if isinstance(outcome, Error):
                self._completed(tag, outcome)
                return
            try:
                reply = requests.reply(request, outcome)
            except Exception as error:  # noqa: BLE001
                self.end(error)
                return
            if reply.status == Status.OK and isinstance(request, AddEntry | AddEntries):
                copies = 1 if isinstance(request, AddEntry) else len(request.entries)
                peer.traffic.stored_copies += copies
            self._completed(tag, reply)

        return peer.send_request(
            lambda request_id: requests.frame(request, request_id),
            action.timeout_s,
            told,
            requests.tag,
        )

    def _run(self, tag: int, call: Coroutine[Any, Any, Outcome]) -> None:
        task = self._loop.create_task(call)
        self._under_way[tag] = task

        def done(finished: asyncio.Task[Outcome]) -> None:
            if finished.cancelled():
                return
            error = finished.exception()
            if error is None:
                self._completed(tag, finished.result())
            elif isinstance(error, ClientClosed) or not isinstance(error, Error):
                self.end(error)
            else:
                self._completed(tag, error)

        task.add_done_callback(done)

    async def _read_metadata(self) -> Outcome:
        return await self._io.store.read_ledger(self._io.ledger_id)

    async def _update_metadata(self, action: UpdateMetadata) -> Outcome:
        io = self._io
        return await io.store.update_ledger(
            io.ledger_id, action.metadata, action.version, action.if_identity
        )

    async def _read_identity(self, action: ReadIdentity) -> Outcome:
        return await self._io.store.read_identity(action.bookie_id)

    async def _mark_replicas(self, action: MarkReplicas) -> Outcome:
        await self._io.mark_replicas(self._io.ledger_id, action)
        return None

    async def _choose(self, action: Choose) -> Outcome:
        return await self._io.choose(action)

    def _completed(self, tag: int, outcome: Outcome) -> None:
        if self._under_way.pop(tag, None) is None or self.fault is not None:
            return
        try:
            self.procedure.completed(tag, outcome, self._loop.time())
        except Exception as error:  # noqa: BLE001
            self.end(error)
            return
        self.step()

    def _withdraw_all(self) -> None:
        under_way, self._under_way = self._under_way, {}
        for one in under_way.values():
            one.cancel()


def _nothing() -> None:
    """Stand in for `on_step` once nobody listens."""


async def run(procedure: Procedure[T], io: LedgerIo, runs: set[Runner[Any]] | None = None) -> T:
    """Run a procedure to its end and return its result, or raise its error. Cancelling withdraws everything.

    `runs`: holds its runner meanwhile, for whoever may have to end it.
    """
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stepped() -> None:
        if runner.is_over and not done.done():
            done.set_result(None)

    runner = Runner(procedure, io, stepped)
    runs = set() if runs is None else runs
    runs.add(runner)
    runner.start()
    try:
        await done
    finally:
        runs.discard(runner)
        runner.stop()
    return runner.value()
