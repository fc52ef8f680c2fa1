"""Sends a writer's LAC to bookies when no later entry carries it, so that readers see the last entries (INV-C4).

`ExplicitLacSender` does so on the application's event loop. While the application keeps that loop for itself, the
thread of a `LacGuard` does (INV-C7).

Decisions 155 and 161.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fastbk.client.bookie_pool import BookiePool
from fastbk.client.config import ClientConfig
from fastbk.client.connection import Answer
from fastbk.client.ledger_options import no_bookie_took_lac
from fastbk.client.ledger_tags import show
from fastbk.client.runner import LedgerIo
from fastbk.errors import Error
from fastbk.meta.api import BookieRegistration
from fastbk.model.ids import BookieId, EntryId
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.procedure import WriteLac
from fastbk.retry import Retry
from fastbk.wire.statuses import Status, status_name

if TYPE_CHECKING:
    from fastbk.client.add_pipe import AddPipe
    from fastbk.client.bookie_pool import Peer, PendingRequest

UNANSWERED_MAX = 64
"""LACs that a bookie was sent and has not answered. It is sent the newest one when it answers."""
CHECK_S = 0.2
"""How often a guard checks which writers have set their timers."""
SECOND_CHECK_S = 0.1
"""How much later it checks whether these have run: if not, the loop is kept from running."""
UNUSED_S = 10.0
"""How long a guard keeps connections that it does not need, and its thread without a writer."""
GUARD_REQUESTS_MAX = 1_000
"""LACs that a guard has sent and that are not answered. The others follow with the next checks."""
GUARD_RETRY_S_MAX = 10.0
"""The longest pause before a guard sends a LAC again that a bookie did not take."""
GUARD_END_S = 2.0
"""How long the end of a client waits for its guard's thread. It needs much less."""
_CUT_S = 0.1
_log = LibraryLog("fastbk.client")


class ExplicitLacSender:
    """Sends the LAC: now, on request; and by a timer, which runs while the LAC moves and entries do not carry it.

    Attributes:
        timer: the timer, while it is set. The loop replaces or removes it when it is due.
        is_stopped: nothing more is to be sent.
    """

    def __init__(self, pipe: AddPipe, io: LedgerIo, config: ClientConfig) -> None:
        self._pipe = pipe
        self._io = io
        self._interval_s = config.explicit_lac_interval
        self._timeout_s = config.read_timeout
        self._loop = asyncio.get_running_loop()
        self.timer: asyncio.TimerHandle | None = None
        self.is_stopped = False
        self._sent_lac: EntryId = -1
        self._resend_to: set[BookieId] = set()
        self._unanswered: dict[BookieId, int] = {}
        self._requests: dict[PendingRequest, asyncio.Future[str | None] | None] = {}

    # --- what a guard's thread reads: plain values, which the loop may change meanwhile ------------------------

    @property
    def bookies(self) -> list[BookieId]:
        """The ensemble."""
        return [peer.bookie_id for peer in self._pipe.peers]

    @property
    def ledger(self) -> LedgerIo:
        """The ledger, and what encodes its requests."""
        return self._io

    def unsent_lac(self) -> EntryId | None:
        """Return the LAC if it has not left for the bookies, by itself or with an entry; None if it has."""
        pipe = self._pipe
        lac = pipe.machine.last_add_confirmed
        if lac < 0 or self.is_stopped:
            return None
        if lac > self._sent_lac and lac > pipe.carried_lac:
            return lac
        connections = [peer.add_channel.connection for peer in pipe.peers]
        # What many writers send in one turn of the loop leaves at its end, which may not come.
        return (
            lac
            if any(connection is not None and connection.holds_frames for connection in connections)
            else None
        )

    # --- on the loop -------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Start the timer: the LAC has moved."""
        if self.timer is None and self._interval_s:
            self.timer = self._loop.call_later(self._interval_s, self._send_when_due)

    def send_untold(self) -> None:
        """Send the LAC before this returns, unless all bookies were sent it, by itself or with an entry."""
        pipe = self._pipe
        lac = pipe.machine.last_add_confirmed
        if not self.is_stopped and lac > self._sent_lac and lac > pipe.carried_lac:
            # The timer goes on: it finds nothing to send, which costs less than a new one for each entry.
            self._send_new()

    def send_last(self) -> None:
        """Send the LAC of a writer that is about to end: no later entry will carry it."""
        if not self.is_stopped and self._pipe.machine.last_add_confirmed > self._sent_lac:
            self._send_new()

    def resend_to(self, bookie_id: BookieId) -> None:
        """Send the LAC again to a bookie that is back: it may have lost it."""
        self._unanswered.pop(bookie_id, None)
        if self._sent_lac >= 0:
            self._resend_to.add(bookie_id)
            self.schedule()

    def stop(self) -> None:
        """Send nothing more."""
        self._interval_s = 0
        self.is_stopped = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        given_up, self._requests = self._requests, {}
        for request, answered in given_up.items():
            request.cancel()
            if answered is not None and not answered.done():
                answered.set_result("the writer was ended")

    def _send_when_due(self) -> None:
        self.timer = None
        pipe = self._pipe
        lac = pipe.machine.last_add_confirmed
        if pipe.entries_in_flight:
            # The last of them will not carry its own.
            self.schedule()
            if lac <= pipe.carried_lac:
                return
        self._send_new()

    def _send_new(self) -> None:
        lac = self._pipe.machine.last_add_confirmed
        is_new = lac > self._sent_lac
        self._sent_lac = max(self._sent_lac, lac)
        request_id = self._io.pool.next_request_id()
        frame: bytes | bytearray | None = None
        for peer in self._pipe.peers:
            connection = peer.add_channel.connection
            if connection is None or not (is_new or peer.bookie_id in self._resend_to):
                continue  # losing it only delays visibility: a new connection repeats it
            if connection.speaks_apache:
                self._send(peer.bookie_id, lac, None)
                continue
            waiting = self._unanswered.get(peer.bookie_id, 0)
            if waiting >= UNANSWERED_MAX:
                continue
            self._unanswered[peer.bookie_id] = waiting + 1
            if frame is None:
                frame = self._io.requests.frame(WriteLac(lac), request_id)
            if self._io.requests.tag is not None:
                show(connection, self._io.requests.tag, self._io.pool.next_request_id())
            # Behind the entries, on their connection: another one might not be there yet.
            connection.send_request(request_id, frame, self._answered_by(peer))
        self._resend_to.clear()

    def _answered_by(self, peer: Peer) -> Callable[[Answer | Error], None]:
        bookie_id = peer.bookie_id

        def answered(_: Answer | Error) -> None:
            waiting = self._unanswered.get(bookie_id, 0)
            if waiting:
                self._unanswered[bookie_id] = waiting - 1
            if waiting >= UNANSWERED_MAX:
                self.resend_to(bookie_id)

        return answered

    def _send(
        self, bookie_id: BookieId, lac: EntryId, answered: asyncio.Future[str | None] | None
    ) -> None:
        def reply(outcome: Answer | Error) -> None:
            self._requests.pop(request, None)
            if answered is None or answered.done():
                return
            if isinstance(outcome, Error):
                answered.set_result(str(outcome))
            else:
                is_good = outcome.status == Status.OK
                answered.set_result(None if is_good else status_name(outcome.status))

        request = _send_lac(self._io.pool, self._io, bookie_id, lac, self._timeout_s, reply)
        self._requests[request] = answered

    async def send(self) -> EntryId:
        """Send the LAC now and return it once all have answered; NotEnoughBookies if none took it.

        An error that ends the writer meanwhile ends this, too.
        """
        lac = self._pipe.machine.last_add_confirmed
        if lac < 0:
            return lac
        replies = {peer.bookie_id: self._loop.create_future() for peer in self._pipe.peers}
        for bookie_id, future in replies.items():
            self._send(bookie_id, lac, future)
        answers = await asyncio.gather(*replies.values())
        refusals = {
            bookie_id: reason
            for bookie_id, reason in zip(replies, answers, strict=True)
            if reason is not None
        }
        if len(refusals) == len(replies):
            failure = self._pipe.machine.failure
            if failure is not None:
                raise failure.copy()
            raise no_bookie_took_lac(self._io.ledger_id, lac, refusals)
        self._sent_lac = max(self._sent_lac, lac)
        return lac


def _send_lac(
    pool: BookiePool,
    ledger: LedgerIo,
    bookie_id: BookieId,
    lac: EntryId,
    timeout_s: float,
    tell: Callable[[Answer | Error], None],
) -> PendingRequest:
    """Send a LAC by the connections of `pool`; `tell` is told the answer, not before this returns."""
    requests = ledger.requests
    return pool.peer(bookie_id).send_request(
        lambda request_id: requests.frame(WriteLac(lac), request_id), timeout_s, tell, requests.tag
    )


@dataclass(slots=True, eq=False)
class _Due:
    """A writer whose timer is set. If a later check finds the same timer, the loop does not run."""

    sender: ExplicitLacSender
    timer: asyncio.TimerHandle
    seen_s: float
    again_s: float = 0.0
    """When bookies that did not take the LAC are sent it again."""
    retry: Retry | None = None
    sent_to: dict[BookieId, EntryId] = field(default_factory=dict)
    """LACs that bookies were sent and have not failed to take."""

    def is_behind(self) -> bool:
        """Whether some bookies have yet to be sent the LAC."""
        lac = self.sender.unsent_lac()
        return lac is not None and any(
            self.sent_to.get(bookie, -1) < lac for bookie in self.sender.bookies
        )

    def failed(self, bookie_id: BookieId, now_s: float) -> None:
        """Have a bookie be sent the LAC again, after a pause that is longer each time."""
        self.sent_to.pop(bookie_id, None)
        if self.retry is None:
            self.retry = Retry(SECOND_CHECK_S, GUARD_RETRY_S_MAX)
        self.again_s = now_s + self.retry.pause_s()


class LacGuard:
    """Sends the LACs of a client's writers while the application keeps the client's loop for itself (INV-C7).

    It has a daemon thread, from the first writer to the client's end, or until there was no writer for UNUSED_S. An
    append costs nothing more: some times a second the thread compares the timers that writers have set. One that is
    overdue, and still there at the next check, belongs to a loop that does not run. The thread then runs an event loop
    of its own, with connections of its own to the bookies of the ensemble, and sends them the LAC. It never reads,
    fences or closes. To send a LAC again is always safe: it is acknowledged.

    Nothing can run while code in C holds the interpreter's lock (a long `sorted`, a large `json.loads`).
    """

    def __init__(self, pool: BookiePool) -> None:
        """`pool`: of the client. Nothing of it is changed but from its own loop."""
        self._pool = pool
        self._lock = threading.Lock()
        self._senders: set[ExplicitLacSender] = set()
        self._thread: threading.Thread | None = None
        self._is_ended = False
        self._stop = threading.Event()
        self._stopped: asyncio.Future[None] | None = None

    def watch(self, sender: ExplicitLacSender) -> None:
        """Send this one's LAC from now on when the running loop is kept from it."""
        with self._lock:
            if self._is_ended or not self._pool.config.explicit_lac_interval:
                return
            self._senders.add(sender)
            if self._thread is None:
                try:
                    self._start()
                except RuntimeError as error:
                    # There are too many threads. The writer works, and its timer sends the LAC.
                    self._thread = None
                    _log.warning("client.lac_guard_failed", reason=str(error))

    def _start(self) -> None:
        watched = asyncio.get_running_loop()
        stop, stopped = threading.Event(), watched.create_future()
        native_id = threading.get_native_id()

        def run() -> None:
            try:
                # Where gevent has patched threads, this is a greenlet of the application's own thread.
                if threading.get_native_id() != native_id:
                    _GuardRun(self, self._pool, watched).run(stop)
            except Exception as error:  # noqa: BLE001 -- the application goes on without
                self._pool.report(error)
            finally:
                with self._lock:
                    if self._thread is thread:
                        self._thread = None
                with suppress(RuntimeError):  # the application's loop is closed
                    watched.call_soon_threadsafe(_finish, stopped)

        self._thread = thread = threading.Thread(target=run, name="fastbk-lac-guard", daemon=True)
        self._stop, self._stopped = stop, stopped
        thread.start()

    def senders(self) -> list[ExplicitLacSender]:
        """Return those of writers that have not ended. In the guard's thread."""
        with self._lock:
            self._senders = {sender for sender in self._senders if not sender.is_stopped}
            return list(self._senders)

    def leave(self, *, for_good: bool) -> bool:
        """Return whether the guard's thread ends now; not if another writer came. In the guard's thread."""
        with self._lock:
            if for_good:
                self._senders.clear()
            if self._senders:
                return False
            self._thread = None
            return True

    async def end(self, timeout_s: float) -> None:
        """End the thread, on the watched loop."""
        with self._lock:
            self._is_ended = True
            self._senders.clear()
            thread, stopped = self._thread, self._stopped
        if thread is None or stopped is None:
            return
        self._stop.set()
        await asyncio.wait([stopped], timeout=min(timeout_s, GUARD_END_S))
        if stopped.done():
            thread.join(GUARD_END_S)  # has nothing left to do


class _GuardRun:
    """What a guard's thread does."""

    def __init__(
        self, guard: LacGuard, watched_pool: BookiePool, watched: asyncio.AbstractEventLoop
    ) -> None:
        self._guard = guard
        self._watched_pool = watched_pool
        self._watched = watched
        # No placement is asked for: the writers have their ensembles.
        self._config = replace(watched_pool.config, topology={}, topology_script=None)
        self._overdue_s = self._config.explicit_lac_interval + SECOND_CHECK_S / 2
        self._due: dict[ExplicitLacSender, _Due] = {}
        self._requests: set[PendingRequest] = set()
        self._now_s = self._needed_s = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Guard the writers until `stop` is set, or there was none for UNUSED_S.

        What a loop has left that is closed is sent for UNUSED_S at most.
        """
        while not stop.wait(SECOND_CHECK_S if self._due else CHECK_S):
            behind = self._check()
            is_closed = self._watched.is_closed()
            is_over = self._now_s - self._needed_s > UNUSED_S or (is_closed and not behind)
            if is_over and self._guard.leave(for_good=is_closed):
                return
            if behind:
                asyncio.run(self._send_lacs(stop))

    def _check(self) -> list[_Due]:
        """Return the overdue writers whose LACs some bookies have yet to be sent."""
        senders, is_closed = self._guard.senders(), self._watched.is_closed()
        now_s = self._now_s = time.monotonic()
        if senders and not is_closed:
            self._needed_s = now_s
        before, self._due = self._due, {}
        behind: list[_Due] = []
        for sender in senders:
            timer = sender.timer
            if timer is None:
                continue
            due = before.get(sender)
            if due is None or due.timer is not timer:
                due = _Due(sender, timer, now_s)
            self._due[sender] = due
            if (is_closed or now_s - due.seen_s > self._overdue_s) and due.is_behind():
                behind.append(due)
        return behind

    async def _send_lacs(self, stop: threading.Event) -> None:
        """Send LACs by connections of its own until none was overdue for UNUSED_S."""
        known = self._watched_pool.known

        async def listed() -> list[BookieRegistration]:
            # Where the bookies were when the application's loop ran last: metadata is not asked.
            return known.listed()

        pool: BookiePool | None = None
        used_s = self._now_s
        try:
            while not stop.is_set():
                behind = self._check()
                if behind or self._requests:
                    used_s = self._now_s
                patience_s = 0.0 if self._watched.is_closed() else UNUSED_S
                if self._now_s - used_s > patience_s or self._now_s - self._needed_s > UNUSED_S:
                    return
                if pool is None:
                    pool = BookiePool(self._config, listed, self._watched_pool.report)
                    pool.known.update(known.listed(), asyncio.get_running_loop().time())
                for due in behind:
                    self._send(pool, due)
                await asyncio.sleep(SECOND_CHECK_S)
        except Error as error:  # of files of TLS that are being replaced
            _log.warning("client.lac_guard_failed", reason=str(error))
            stop.wait(CHECK_S)
        finally:
            requests, self._requests = self._requests, set()
            for request in requests:
                request.cancel()
            if pool is not None:
                await pool.close(_CUT_S)

    def _send(self, pool: BookiePool, due: _Due) -> None:
        lac = due.sender.unsent_lac()
        if lac is None or self._now_s < due.again_s:
            return
        _log.debug("ledger.loop_blocked", ledger=due.sender.ledger.ledger_id, lac=lac)
        for bookie_id in due.sender.bookies:
            if due.sent_to.get(bookie_id, -1) < lac and len(self._requests) < GUARD_REQUESTS_MAX:
                self._send_to(bookie_id, pool, due, lac)

    def _send_to(self, bookie_id: BookieId, pool: BookiePool, due: _Due, lac: EntryId) -> None:
        def on_outcome(outcome: Answer | Error) -> None:
            self._requests.discard(request)
            if isinstance(outcome, Error) or outcome.status != Status.OK:
                due.failed(bookie_id, self._now_s)

        due.sent_to[bookie_id] = lac
        request = _send_lac(
            pool, due.sender.ledger, bookie_id, lac, self._config.read_timeout, on_outcome
        )
        self._requests.add(request)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
