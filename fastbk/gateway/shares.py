"""What clients share at a gateway, so that one leaves some for others: requests, bytes, threads, waits (INV-B1).

- `Shares`: how many of something clients have, all together and each one.
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
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fastbk.errors import MetadataUnavailable
from fastbk.limits import RateLimit
from fastbk.meta.gateway.messages import ABSENT, FORBIDDEN, WAIT_MS_MAX

if TYPE_CHECKING:
    from fastbk.client.metadata_calls import MetadataCalls
    from fastbk.meta.api import MetadataStore, Subject, Watch
    from fastbk.meta.gateway.messages import ReadStates

Scale = Callable[[int], int]
"""Returns a bound of connections as it is where the process may have fewer descriptors than all bounds together."""


def as_it_is(bound: int) -> int:
    """Return a bound where there are descriptors for all."""
    return bound


class Shares:
    """Of one kind: requests, or what they watch."""

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
"""Of the eight that there are for ZooKeeper (`fastbk.client.metadata_calls.CALLS_AT_ONCE`)."""
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
"""Between two times that a request's states are read when the first showed no change: what its client may not see may
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
