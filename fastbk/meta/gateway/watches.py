"""Watches by a gateway: requests that it answers when something has changed, or when their time is over.

Two threads send them. One waits long, for all that was watched when its request began. The other waits shortly, for
what came since, until the first one's next request takes that over. A gateway without room for more answers at once,
and what is not there it watches for a second only: then these threads poll.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fastbk.errors import ClientClosed, Error
from fastbk.meta.gateway.messages import KEYS_MAX
from fastbk.meta.subscriptions import Subject, Subscriptions, WatchHandle, notify
from fastbk.observe.library_log import LibraryLog

if TYPE_CHECKING:
    States = Sequence[str]

_log = LibraryLog("fastbk.meta")
LONG_WAIT_S, SHORT_WAIT_S = 10.0, 1.0
POLL_S = 1.0
"""Between requests that are answered early, and nothing has changed; and while no gateway answers."""
THREADS_MAX = 16
"""Those of watches that have ended wait for their answers yet. When there are so many, new watches have no others."""
CHANGE_S = 0.05
"""Between the beginnings of two requests, the first of which was answered with a change: 20 a second of each thread."""


class _Threads:
    """The two threads, from the first watch until there is none."""

    def __init__(self) -> None:
        self.is_stopped = threading.Event()
        self.waited_for: set[Subject] = set()
        self.is_long_busy = False
        self.is_rest_wanted = False
        """The long one goes on soon with what the short one waits for, which then does not begin again."""


class GatewayWatches:
    """The watches of one store. See `fastbk.meta.api.MetadataStore`."""

    def __init__(self, states: Callable[[Sequence[Subject], States | None, float], States]) -> None:
        """`states(subjects, seen, wait_s)`: returns the states, once one is not as it was seen, or wait_s is over.

        `seen`: None: at once. Raises Error.
        """
        self._states = states
        self._wake = threading.Condition()  # its lock may be taken twice by one thread
        self._subscriptions = Subscriptions()
        self._threads: _Threads | None = None
        self._thread_count = 0

    def add(self, subject: Subject, callback: Callable[[], None]) -> WatchHandle:
        """Subscribe `callback` to changes of `subject` from now on. Raises Error."""
        handle = WatchHandle(self, subject, callback)
        (now,) = self._states([subject], None, 0.0)
        with self._wake:
            self._subscriptions.add(handle, now)
            if self._threads is None:
                self._threads = _Threads()
                for is_long in (True, False):
                    arguments = (self._threads, is_long)
                    threading.Thread(
                        target=self._run, args=arguments, name="fastbk-watch", daemon=True
                    ).start()
                    self._thread_count += 1
            self._wake.notify_all()
        return handle

    def remove(self, handle: WatchHandle) -> None:
        """End a subscription; the last one ends the threads, which may wait for an answer yet."""
        with self._wake:
            self._subscriptions.remove(handle)
            if (
                not self._subscriptions
                and self._threads is not None
                and self._thread_count + 2 <= THREADS_MAX
            ):
                self._end(self._threads)
            self._wake.notify_all()

    def close(self) -> None:
        """End all subscriptions."""
        with self._wake:
            handles = self._subscriptions.all()
        for handle in handles:
            self.remove(handle)

    # --- in the threads ---------------------------------------------------------------------------------------------

    def _run(self, threads: _Threads, is_long: bool) -> None:
        while not threads.is_stopped.is_set():
            seen, wait_s = self._next(threads, is_long=is_long)
            began_s = time.monotonic()
            changed: list[WatchHandle] = []
            pause_s = POLL_S
            try:
                if seen:
                    now = self._states(list(seen), list(seen.values()), wait_s)
                    changed = self._changed(seen, now)
                    pause_s = CHANGE_S if changed else POLL_S
                    pause_s = max(0.0, pause_s - (time.monotonic() - began_s))
            except ClientClosed:
                self._end(threads)
            except Error as error:
                # The gateways are away; what changed meanwhile is told when they are back.
                _log.debug("metadata.watch_waits", reason=str(error))
            finally:
                with self._wake:
                    threads.waited_for.difference_update(seen)
                    threads.is_long_busy &= not is_long
                    self._wake.notify_all()
            for handle in changed:
                notify(handle)
            if seen:
                threads.is_stopped.wait(pause_s)
        with self._wake:
            self._thread_count -= 1

    def _next(self, threads: _Threads, *, is_long: bool) -> tuple[dict[Subject, str], float]:
        """Return what a thread waits for next, as it was seen, and how long; nothing when it has to end."""
        with self._wake:
            while not threads.is_stopped.is_set():
                known = self._subscriptions.seen.items()
                seen = {one: str(state) for one, state in known if one not in threads.waited_for}
                if seen and (is_long or (threads.is_long_busy and not threads.is_rest_wanted)):
                    is_all = not threads.waited_for
                    if is_long:
                        threads.is_long_busy, threads.is_rest_wanted = True, not is_all
                    threads.waited_for.update(seen)
                    if len(seen) > KEYS_MAX:
                        return seen, 0.0  # more than one request has room for is polled
                    return seen, LONG_WAIT_S if is_long and is_all else SHORT_WAIT_S
                if is_long and not known:
                    self._end(threads)
                else:
                    self._wake.wait()
        return {}, 0.0

    def _end(self, threads: _Threads) -> None:
        with self._wake:
            threads.is_stopped.set()
            if self._threads is threads:
                self._threads = None
            self._wake.notify_all()

    def _changed(self, seen: dict[Subject, str], now: States) -> list[WatchHandle]:
        with self._wake:
            return [
                one
                for subject, state in zip(seen, now, strict=True)
                # One that ended and began anew meanwhile may have had a later state at once.
                if self._subscriptions.seen.get(subject) == seen[subject]
                for one in self._subscriptions.changed(subject, state)
            ]
