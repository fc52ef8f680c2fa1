"""Serves requests of authenticated clients: who it is, what it may do, what the audit log gets, and then the store.

Clients share a gateway, so that one leaves some for others (INV-B1):

- `Shares`: how many requests, or watched paths, clients have, all together and each one.
- `Budgets`: what one client may write a second.
- `Turns`: how many threads of the store one client may have at once.
- `Waits`: requests that wait for a change of what their clients watch. The gateway watches in the metadata store what
  they wait for, once for all clients.

Decision 132.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fastbk.errors import (
    ConfigError,
    Error,
    InvariantError,
    MetadataConflict,
    MetadataOnHold,
    MetadataUnavailable,
    NoSuchLedger,
    QuotaExceeded,
    StorageError,
    Unauthorized,
)
from fastbk.gateway.access import Access, NamespaceTree
from fastbk.gateway.operations import Plan, result_of
from fastbk.limits import RateLimit
from fastbk.meta.gateway import messages
from fastbk.meta.gateway.messages import (
    ABSENT,
    FORBIDDEN,
    WAIT_MS_MAX,
    decode_request,
    encode,
    failure_of,
)
from fastbk.observe.logs import LimitLog
from fastbk.printable_text import printable
from fastbk.security.admission import Client, Refused
from fastbk.security.rights import NOBODY

if TYPE_CHECKING:
    from fastbk.client.metadata_calls import MetadataCalls
    from fastbk.meta.api import MetadataStore, Subject, Watch
    from fastbk.meta.gateway.messages import ReadStates
    from fastbk.security.admission import Admission
    from fastbk.security.audit_log import AuditLog

REQUESTS_MAX = 256
"""That the store works on, or that wait for it; beyond it a client is sent away to try again."""
REQUESTS_OF_ONE_MAX = 64
"""The same of one principal, so that one leaves room for others."""
STORE_TIMEOUT_S = 10.0
_STATUSES: tuple[tuple[type[Error], int], ...] = (
    (ConfigError, 400),
    (Unauthorized, 403),
    (QuotaExceeded, 403),
    (NoSuchLedger, 404),
    (MetadataConflict, 409),
    (MetadataOnHold, 423),
    (MetadataUnavailable, 503),
)
_WRITES = (
    messages.ChangeRecords,
    messages.DrawId,
    messages.CreateLedger,
    messages.UpdateLedger,
    messages.DeleteLedger,
    messages.UpdateMark,
)
Answer = tuple[int, bytes]
"""Status and body."""


Scale = Callable[[int], int]
"""Returns a bound of connections as it is where the process may have fewer descriptors than all bounds together."""


def as_it_is(bound: int) -> int:
    """Return a bound where there are descriptors for all."""
    return bound


@dataclass(slots=True)
class Peer:
    """The client of one connection, and the token that it was last accepted with; b"": with none."""

    client: Client
    certificate: bytes | None = None
    """What the connection showed."""
    token: bytes = b""
    waited_s: float = 0.0
    """How long its last request waited for a change."""


class Service:
    """One gateway's.

    Attributes:
        requests: how many were answered, by operation and status.
        seconds: how long they took, by operation, without waiting for changes.
        waits: those that wait for changes.
        limits: how often a limit refused one, or had it answered at once.
    """

    def __init__(
        self,
        calls: MetadataCalls,
        admission: Admission,
        audit: AuditLog,
        scale: Scale = as_it_is,
        budgets: Budgets | None = None,
    ) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: Counter[str] = Counter()
        self.limits = LimitLog("gateway.limit_reached")
        self._turns = Turns(calls)
        self.waits = Waits(self._turns, self.limits.note, scale)
        self._admission = admission
        self._audit = audit
        self._tree: NamespaceTree | None = None
        self._budgets = budgets or Budgets(0, 0)
        self._active = Shares(scale(REQUESTS_MAX), scale(REQUESTS_OF_ONE_MAX))
        self._refusals = LimitLog("gateway.client_refused")
        self._faults = LimitLog("gateway.request_failed", level="error")

    async def answer(self, peer: Peer, name: str, token: bytes, body: bytes) -> Answer:
        """Return the answer to one request; `token`: what it was shown with, b"": nothing."""
        began_s, peer.waited_s = time.monotonic(), 0.0
        status, answer = await self._answer(peer, name, token, body)
        known = name if name in messages.OPERATIONS else "unknown"
        self.requests[known, status] += 1
        self.seconds[known] += time.monotonic() - began_s - peer.waited_s  # type: ignore[assignment]
        return status, answer

    async def _answer(self, peer: Peer, name: str, token: bytes, body: bytes) -> Answer:
        if reason := self._authenticate(peer, token):
            return 401, encode(failure_of(Unauthorized(reason)))
        try:
            request = decode_request(name, body)
            self._check_budget(peer.client.principal.name, request, len(body))
            result = await self._placed(peer, name, request)
            # It may have waited for so long that its client is not served any more.
            if isinstance(request, messages.ReadStates) and (
                reason := self._authenticate(peer, token)
            ):
                return 401, encode(failure_of(Unauthorized(reason)))
            return 200, encode(result)
        except Unauthorized as error:
            self._note(
                peer,
                "request.denied",
                operation=name,
                ledger=error.ledger_id,
                reason=str(error)[:500],
            )
            return _failed(error)
        except Error as error:
            return _failed(error)
        except (Exception, InvariantError) as error:  # noqa: BLE001 -- one request's fault must not end the gateway
            trace = "".join(traceback.format_exception(error, limit=-12))
            self._faults.note(
                type(error).__name__, operation=printable(name), reason=repr(error), trace=trace
            )
            fault = StorageError(
                f"a fault of the gateway's: {error!r}; see its log", outcome="unknown"
            )
            return _failed(fault)

    def _check_budget(self, principal: str, request: messages.Request, size_bytes: int) -> None:
        if isinstance(request, _WRITES) and (used_up := self._budgets.take(principal, size_bytes)):
            self.limits.note(used_up)
            raise MetadataUnavailable(
                f"{principal} has used up its {used_up} of ten seconds: try again, or have the"
                f" gateway's {used_up}_rate raised",
                outcome="not_written",
            )

    async def _placed(self, peer: Peer, name: str, request: messages.Request) -> object:
        """Return the result of a request, which has a place among those of its kind meanwhile (INV-B1)."""
        principal = peer.client.principal.name
        if isinstance(request, messages.ReadStates) and request.wait_ms > 0:
            count = len(request.subjects)
            if self.waits.enter(principal, count):
                try:
                    return await self._states(peer, request)
                finally:
                    self.waits.leave(principal, count)
        if not self._active.take(principal):
            busy = "this gateway has too many requests: try again"
            raise MetadataUnavailable(busy, outcome="not_written")
        try:
            return await self._result(peer, name, request)
        finally:
            self._active.give_back(principal)

    # --- who it is ------------------------------------------------------------------------------------------------

    def _authenticate(self, peer: Peer, token: bytes) -> str:
        """Return why a client is not served; "": it is."""
        before = peer.client.principal.name
        if not token and before.startswith("token:"):
            # Behind a proxy that shares connections it would be another client's request.
            shown = "each request needs a token: this one has none, though its connection has shown one before"
            return self._refuse(peer, shown, shown)
        try:
            if token and self._admission.takes("token") and token != peer.token:
                # Another client's, perhaps, behind a proxy: nothing of the one before is the new one's.
                client = Client(is_secure=peer.client.is_secure, address=peer.client.address)
                self._admission.meet(client, peer.certificate)
                peer.client, peer.token = client, token
                self._admission.by_token(client, token)
        except Refused as refused:
            peer.token = b""
            return self._refuse(peer, str(refused), refused.detail)
        if peer.client.principal is NOBODY:
            return self._refuse(peer, peer.client.refusal, peer.client.refusal)
        if ended := self._admission.why_ended(peer.client, time.time()):
            self._note(peer, "client.ended", reason=ended)
            peer.client.principal, peer.client.refusal, peer.token = NOBODY, ended, b""
            return ended
        if peer.client.principal.name != before:
            self._note(peer, "client.authenticated", method="token")
        return ""

    def _refuse(self, peer: Peer, reason: str, detail: str) -> str:
        self._refusals.note("refused", reason=detail, address=peer.client.address)
        self._note(peer, "client.refused", reason=detail)
        return reason

    def _note(self, peer: Peer, event: str, **values: object) -> None:
        self._audit.note(
            event, address=peer.client.address, principal=peer.client.principal.name, **values
        )

    # --- what it wants --------------------------------------------------------------------------------------------

    async def _result(self, peer: Peer, name: str, request: messages.Request) -> object:
        limit_s = min(STORE_TIMEOUT_S, max(0.1, request.timeout_ms / 1e3))
        end_s = time.monotonic() + limit_s
        client = peer.client.principal.name
        plan = await self._turns.call(
            client, partial(self._planned, peer.client, request, end_s), limit_s
        )
        if not isinstance(plan, Plan):
            return plan
        # The log has a change before it is made: one that is made and not logged there is none.
        for event in plan.events:
            self._note(peer, "request.allowed", request=name, **event)
        return await self._turns.call(
            client, lambda _: plan.act(), max(0.1, end_s - time.monotonic())
        )

    async def _states(self, peer: Peer, request: messages.ReadStates) -> object:
        """Return what a client watches, when it has changed or the client's wait is over."""
        read_s = 0.0

        async def read() -> list[str]:
            nonlocal read_s
            began_s = time.monotonic()
            client = peer.client.principal.name
            work = partial(self._planned, peer.client, request, began_s + STORE_TIMEOUT_S)
            found = await self._turns.call(client, work, STORE_TIMEOUT_S)
            read_s += time.monotonic() - began_s
            assert isinstance(found, list)
            return found

        began_s = time.monotonic()
        states = await self.waits.states(peer.client.principal.name, request, read)
        peer.waited_s = time.monotonic() - began_s - read_s
        return states

    def _planned(
        self, client: Client, request: messages.Request, end_s: float, store: MetadataStore
    ) -> object:
        """Return the result of a request; of one that the audit log gets first, its plan. In a store's thread."""
        tree = self._tree
        if tree is None:
            tree = self._tree = NamespaceTree(store.records)
        result = result_of(store, tree, Access(client.principal, tree, end_s), request)
        if isinstance(result, Plan) and not (result.events and self._audit.is_on):
            return result.act()
        return result


def _failed(error: Error) -> Answer:
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    return status, encode(failure_of(error))


# --- what clients share ---------------------------------------------------------------------------


class Shares:
    """Shares in one kind: requests, or what they watch."""

    def __init__(self, all_max: int, one_max: int) -> None:
        """`all_max`: of all clients. `one_max`: of each."""
        self._all_max = all_max
        self._one_max = one_max
        self._taken: Counter[str] = Counter()
        self.total = 0

    def take(self, client: str, count: int = 1) -> bool:
        """Take some for a client; return whether there were as many left."""
        if self.total + count > self._all_max or self._taken[client] + count > self._one_max:
            if not self._taken[client]:
                del self._taken[client]
            return False
        self.total += count
        self._taken[client] += count
        return True

    def give_back(self, client: str, count: int = 1) -> None:
        """Give back what was taken."""
        self.total -= count
        self._taken[client] -= count
        if not self._taken[client]:
            del self._taken[client]


class Budgets:
    """What clients may write a second, each one of its own: requests, and bytes of them (INV-B1).

    What is not used is saved for `BURST_S`; a client that has used up more is sent away until it has some again.
    """

    BURST_S = 10.0
    CLIENTS_MAX = 10_000
    """Remembered; those that wrote last stay."""

    def __init__(
        self, writes_per_s: float, bytes_per_s: float, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """0: no limit."""
        self._rates = {"writes": writes_per_s, "data": bytes_per_s}
        self._clock_s = clock_s
        self._known: OrderedDict[str, dict[str, RateLimit]] = OrderedDict()

    def take(self, client: str, size_bytes: int) -> str:
        """Take a write of a client's; return which of the two is used up, "": none was, and it may be made."""
        limits = self._known.get(client)
        if limits is None:
            limits = self._known[client] = {
                name: RateLimit(per_s, clock_s=self._clock_s, burst_s=self.BURST_S, is_rested=True)
                for name, per_s in self._rates.items()
                if per_s > 0
            }
            if len(self._known) > self.CLIENTS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(client)
        for name, limit in limits.items():
            if limit.wait_s() > 0:
                return name
        for name, limit in limits.items():
            limit.take(1 if name == "writes" else size_bytes)
        return ""


CALLS_OF_ONE_MAX = 6
"""Maximum calls of one client among the eight for ZooKeeper (`fastbk.client.metadata_calls.CALLS_AT_ONCE`)."""
T = TypeVar("T")


class Turns:
    """The calls of all clients of one gateway. Belongs to one event loop.

    A call that its client does not wait for any more goes on in its thread. It counts until the thread has ended: a
    client that gives up early and comes again does not get more threads that way.
    """

    def __init__(self, calls: MetadataCalls) -> None:
        self._calls = calls
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._users: dict[str, int] = {}

    async def call(self, client: str, work: Callable[[MetadataStore], T], limit_s: float) -> T:
        """Return what `work` returns in a thread. Raises MetadataUnavailable after the limit, and what it raises."""
        end_s = time.monotonic() + limit_s
        turns = self._turns.setdefault(client, asyncio.Semaphore(CALLS_OF_ONE_MAX))
        self._users[client] = self._users.get(client, 0) + 1
        try:
            async with asyncio.timeout(limit_s):
                await turns.acquire()
        except TimeoutError:
            self._leave(client)
            text = f"{client} has {CALLS_OF_ONE_MAX} requests at work here already: send fewer at once, or try again"
            raise MetadataUnavailable(text, outcome="not_written") from None
        except BaseException:
            self._leave(client)
            raise
        loop, begun = asyncio.get_running_loop(), threading.Lock()

        def ended() -> None:
            turns.release()
            self._leave(client)

        def run(store: MetadataStore) -> T:
            if not begun.acquire(blocking=False):
                raise MetadataUnavailable("nobody waits for it any more", outcome="not_written")
            try:
                return work(store)
            finally:
                with suppress(RuntimeError):  # the loop is closed: nobody waits for a turn
                    loop.call_soon_threadsafe(ended)

        try:
            return await self._calls.call(run, max(0.1, end_s - time.monotonic()))
        finally:
            if begun.acquire(blocking=False):  # it never began, and does not begin now
                ended()

    def _leave(self, client: str) -> None:
        self._users[client] -= 1
        if not self._users[client]:
            del self._users[client], self._turns[client]


WAITS_MAX, WAITS_OF_ONE_MAX = 2000, 1000
"""Requests that wait, of all clients and of one principal."""
SUBJECTS_MAX, SUBJECTS_OF_ONE_MAX = 50_000, 20_000
"""What these name, all together, whether it is watched or not: it takes memory."""
ABSENT_WAIT_S = 1.0
QUIET_S = 1.0
"""Pause between two reads of a request's states when the first showed no change: what its client may not see may
change all the time.
"""
LINGER_S, LINGERING_MAX = 30.0, SUBJECTS_MAX
"""How long a watch stays after the last request that waited for it, as most clients come back at once; and how many."""
ARM_TIMEOUT_S = 10.0


@dataclass(slots=True)
class _Watched:
    """One subject that is watched."""

    watch: Watch
    waiting: set[asyncio.Event] = field(default_factory=set)


class Waits:
    """The waiting requests of one gateway. Belongs to one event loop.

    A request is answered when a state differs from what its client has seen, or when its time is over. The states are
    read again after the watches are there, and after each time that one fires: so an answer with the states that the
    client has seen means that nothing changed until then (INV-W5).

    What is not there is not watched. A request that names such a subject is answered after `ABSENT_WAIT_S`, and its
    client asks again. Where there is no room for more it is answered at once.
    """

    def __init__(
        self, turns: Turns, note_limit: Callable[[str], None], scale: Scale = as_it_is
    ) -> None:
        """`note_limit`: gets the name of a limit that has a request answered at once."""
        self._turns = turns
        self._note_limit = note_limit
        self._requests = Shares(scale(WAITS_MAX), scale(WAITS_OF_ONE_MAX))
        self._subjects = Shares(SUBJECTS_MAX, SUBJECTS_OF_ONE_MAX)
        self._watched: dict[Subject, _Watched] = {}
        self._lingering: dict[
            Subject, float
        ] = {}  # those nobody waits for, and since when, the oldest first
        self._timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """How many requests wait now."""
        return self._requests.total

    def enter(self, client: str, subjects: int) -> bool:
        """Take a place for a client's request that names so many subjects; return whether there was one."""
        if not self._requests.take(client):
            self._note_limit("waits")
        elif not self._subjects.take(client, subjects):
            self._requests.give_back(client)
            self._note_limit("watched")
        else:
            return True
        return False

    def leave(self, client: str, subjects: int) -> None:
        """Give the place back."""
        self._requests.give_back(client)
        self._subjects.give_back(client, subjects)

    async def states(
        self, client: str, request: ReadStates, read: Callable[[], Awaitable[list[str]]]
    ) -> list[str]:
        """Return the states of a request's subjects, once one differs from what was seen; it has a place. Raises Error.

        `read`: returns the states now, as far as the client may see them.
        """
        now = await read()
        seen = list(request.seen or ())
        if now != seen or request.wait_ms <= 0:
            return now
        pairs = zip(request.subjects, now, strict=True)
        subjects = list(
            dict.fromkeys(subject for subject, state in pairs if state not in (ABSENT, FORBIDDEN))
        )
        wait_s = min(request.wait_ms, WAIT_MS_MAX) / 1e3
        if ABSENT in now:
            wait_s = min(wait_s, ABSENT_WAIT_S)
        return await self._changed(client, subjects, seen, wait_s, read)

    async def _changed(
        self,
        client: str,
        subjects: list[Subject],
        seen: list[str],
        wait_s: float,
        read: Callable[[], Awaitable[list[str]]],
    ) -> list[str]:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_s
        fired = asyncio.Event()
        try:
            await self._watch(client, subjects, fired)
            pause_s = 0.0
            while True:
                fired.clear()
                now = await read()
                if now != seen or loop.time() >= end_s:
                    return now
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(end_s):
                        await asyncio.sleep(pause_s)
                        await fired.wait()
                if not fired.is_set():
                    return now
                pause_s = QUIET_S
        finally:
            self._leave(subjects, fired)

    # --- the store's watches ----------------------------------------------------------------------------------------

    async def _watch(self, client: str, subjects: list[Subject], fired: asyncio.Event) -> None:
        """Have `fired` set when one of the subjects changes."""
        missing = []
        for subject in subjects:
            if subject in self._watched:
                self._wait(subject, fired)
            else:
                missing.append(subject)
        if not missing:
            return
        for subject, watch in zip(missing, await self._armed(client, missing), strict=True):
            if subject in self._watched:
                watch.close()  # another request was quicker
            else:
                self._watched[subject] = _Watched(watch)
            self._wait(subject, fired)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._sweep)

    def _wait(self, subject: Subject, fired: asyncio.Event) -> None:
        self._watched[subject].waiting.add(fired)
        self._lingering.pop(subject, None)

    async def _armed(self, client: str, subjects: Sequence[Subject]) -> list[Watch]:
        """Return watches of subjects. Those that are there only when nobody waits for them any more are closed."""
        loop, lock = asyncio.get_running_loop(), threading.Lock()
        begun: list[Watch] = []
        is_given_up = False

        def close_all() -> None:
            for watch in begun:
                watch.close()

        def arm(store: MetadataStore) -> list[Watch]:
            for subject in subjects:
                watch = _begin(store, subject, partial(_fire, loop, self._fired, subject))
                with lock:
                    begun.append(watch)
                    if is_given_up:
                        close_all()
                        break
            return begun

        try:
            return await self._turns.call(client, arm, ARM_TIMEOUT_S)
        except BaseException:
            with lock:
                is_given_up = True
                close_all()
            raise

    def _fired(self, subject: Subject) -> None:
        watched = self._watched.get(subject)
        if watched is not None:
            for waiter in watched.waiting:
                waiter.set()

    def _leave(self, subjects: list[Subject], fired: asyncio.Event) -> None:
        now_s = asyncio.get_running_loop().time()
        for subject in subjects:
            watched = self._watched.get(subject)
            if watched is not None and fired in watched.waiting:
                watched.waiting.remove(fired)
                if not watched.waiting:
                    self._lingering[subject] = now_s
        while len(self._lingering) > LINGERING_MAX:
            self._end_oldest()

    def _sweep(self) -> None:
        """End watches that no request has waited for lately."""
        loop = asyncio.get_running_loop()
        old_s = loop.time() - LINGER_S
        while self._lingering and next(iter(self._lingering.values())) <= old_s:
            self._end_oldest()
        self._timer = loop.call_later(LINGER_S, self._sweep) if self._watched else None

    def _end_oldest(self) -> None:
        """End the watch that has had nobody who waits for the longest time."""
        subject = next(iter(self._lingering))
        del self._lingering[subject]
        self._watched.pop(subject).watch.close()

    def close(self) -> None:
        """End all watches; no request waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for watched in self._watched.values():
            watched.watch.close()
        self._watched.clear()
        self._lingering.clear()


def _begin(store: MetadataStore, subject: Subject, callback: Callable[[], None]) -> Watch:
    if subject is None:
        return store.watch_bookies(callback)
    if isinstance(subject, int):
        return store.watch_ledger(subject, lambda _: callback())
    kind, path = subject[:1], subject[1:]
    return (
        store.records.watch(path, callback)
        if kind == "="
        else store.records.watch_children(path, callback)
    )


def _fire(
    loop: asyncio.AbstractEventLoop, fired: Callable[[Subject], None], subject: Subject
) -> None:
    """Tell the loop, from a thread of the store's."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(fired, subject)
