"""Runs procedures of fastbk/replication for callers without an event loop: the blocking twin of `runner.py`.

Requests and pauses go on side by side while the reactor runs; calls of the metadata store block. Whoever waits for the
procedure runs it, holding the client.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fastbk.client.blocking import Posted, Reactor
from fastbk.client.requests import LedgerRequests
from fastbk.errors import ClientClosed, Error, QuorumTimeout
from fastbk.meta.api import MetadataStore
from fastbk.model.ids import LedgerId
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.actions import (
    Action,
    Ask,
    BookieRequest,
    Choose,
    MarkReplicas,
    Outcome,
    ReadMetadata,
    Replaced,
    Sleep,
    UpdateMetadata,
    Withdraw,
)
from fastbk.replication.procedure import Procedure

T = TypeVar("T")

_TURN_S_MAX = 0.1


@dataclass(frozen=True, slots=True)
class BlockingIo:
    """What procedures about one ledger act on."""

    ledger_id: LedgerId
    requests: LedgerRequests
    reactor: Reactor
    store: Callable[[], MetadataStore]
    choose: Callable[[Choose], Replaced]
    closed_with_missing: Callable[[LedgerId, tuple[MissingReplica, ...]], None]
    """Called when a writer has closed its ledger, with what bookies lack of it."""


class BlockingRunner(Generic[T]):
    """One procedure over a reactor. Use: `start()`, then `run_until(...)`; or `poll()` beside other work."""

    def __init__(
        self,
        procedure: Procedure[T],
        io: BlockingIo,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock`: the procedure's; None: `time.monotonic`."""
        self.procedure = procedure
        self._io = io
        self._clock = time.monotonic if clock is None else clock
        self._posted: dict[int, tuple[BookieRequest, Posted]] = {}
        self._wake_s: dict[int, float] = {}
        self._done: deque[tuple[int, Outcome]] = deque()

    def start(self) -> None:
        """Begin; call once."""
        self.procedure.start(self._clock())
        self.step()

    def step(self) -> None:
        """Perform what the procedure asks for now."""
        while actions := self.procedure.take_actions():
            for action in actions:
                self._perform(action)

    def poll(self) -> bool:
        """Hand over what has come meanwhile; return whether there was anything. No waiting but for the store."""
        now_s = time.monotonic()
        for tag, (request, posted) in list(self._posted.items()):
            if posted.look(now_s):
                del self._posted[tag]
                answer = posted.outcome
                assert answer is not None
                if isinstance(answer, Error):
                    self._done.append((tag, answer))
                else:
                    self._done.append((tag, self._io.requests.reply(request, answer)))
        for tag, at_s in list(self._wake_s.items()):
            if at_s <= now_s:
                del self._wake_s[tag]
                self._done.append((tag, None))
        if not self._done:
            return False
        while self._done:
            tag, outcome = self._done.popleft()
            self.procedure.completed(tag, outcome, self._clock())
            self.step()
        return True

    def run_until(self, is_done: Callable[[], bool], deadline_s: float = float("inf")) -> bool:
        """Run until `is_done()` or the deadline; return which: True if done."""
        reactor = self._io.reactor
        while not is_done():
            if self.poll():
                continue
            if reactor.is_closed is not None:
                raise ClientClosed(reactor.is_closed)
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return False
            ends_s = [deadline_s, now_s + _TURN_S_MAX, *self._wake_s.values()]
            reactor.turn(max(0.0, min(ends_s) - now_s))
        return True

    def stop(self) -> None:
        """Withdraw everything."""
        if not self.procedure.is_finished:
            self.procedure.cancel()
            self.procedure.take_actions()
        for _, posted in self._posted.values():
            posted.cancel()
        self._posted.clear()
        self._wake_s.clear()
        self._done.clear()

    def _perform(self, action: Action) -> None:
        tag, io = action.tag, self._io
        if isinstance(action, Ask):
            request = action.request
            posted = io.reactor.post(
                action.bookie_id,
                lambda request_id: io.requests.frame(request, request_id),
                action.timeout_s,
            )
            self._posted[tag] = (request, posted)
        elif isinstance(action, Withdraw):
            gone = self._posted.pop(tag, None)
            if gone is not None:
                gone[1].cancel()
            self._wake_s.pop(tag, None)
        elif isinstance(action, Sleep):
            self._wake_s[tag] = time.monotonic() + action.pause_s
        else:
            self._done.append((tag, self._call(action)))

    def _call(self, action: ReadMetadata | UpdateMetadata | MarkReplicas | Choose) -> Outcome:
        io = self._io
        try:
            if isinstance(action, ReadMetadata):
                return io.store().read_ledger(io.ledger_id)
            if isinstance(action, UpdateMetadata):
                return io.store().update_ledger(io.ledger_id, action.metadata, action.version)
            if isinstance(action, MarkReplicas):
                io.store().marks.update(io.ledger_id, action.add, action.remove)
                return None
            return io.choose(action)
        except ClientClosed:
            raise
        except Error as error:
            return error


def run_blocking(procedure: Procedure[T], io: BlockingIo, timeout_s: float | None = None) -> T:
    """Run a procedure to its end and return its result, or raise its error; QuorumTimeout at the deadline."""
    runner = BlockingRunner(procedure, io)
    deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    try:
        runner.start()
        if not runner.run_until(lambda: procedure.is_finished, deadline_s):
            raise QuorumTimeout(
                f"ledger {io.ledger_id}: not done within {timeout_s:g} s", ledger_id=io.ledger_id
            )
    finally:
        runner.stop()
    return procedure.value()
