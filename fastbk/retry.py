"""When to try again: pauses that double, end at a limit, and differ from caller to caller.

Code that acts makes a `Retry` and sleeps as it says, in whichever way it sleeps:

    retry = Retry(0.01, 1.0, give_up_s=10.0)
    while True:
        try:
            return await store.read(path)
        except MetadataUnavailable as error:
            await asyncio.sleep(retry.pause_s(error))  # or time.sleep, call_later, Event.wait

Pure procedures, which take the time as an argument, hold a `Backoff`. Its pauses are exact, so a seed repeats a run.
Whatever performs their pauses adds the jitter (`jittered`).
"""

from __future__ import annotations

import math
import random
import time


class Backoff:
    """Exact pauses: the first, then each twice the one before, up to `max_s`. Seconds, all above 0.

    Args:
        first_s, max_s: the shortest and the longest pause.
        give_up_s: counted from `now_s`, and anew from each `restart`.
        now_s: any clock's time, the same clock as in later calls.
    """

    __slots__ = ("_end_s", "_first_s", "_give_up_s", "_max_s", "_pause_s")

    def __init__(
        self, first_s: float, max_s: float, give_up_s: float = math.inf, now_s: float = 0.0
    ) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._give_up_s = give_up_s
        self.restart(now_s)

    def restart(self, now_s: float = 0.0) -> None:
        """Begin anew, with the first pause and all the time: something went well."""
        self._pause_s = self._first_s
        self._end_s = now_s + self._give_up_s

    def next_s(self) -> float:
        """Return the next pause, whatever the time is."""
        pause_s = self._pause_s
        self._pause_s = min(self._max_s, 2 * pause_s)
        return pause_s

    def next_in_time_s(self, now_s: float) -> float | None:
        """Return the next pause, None when it is time to give up."""
        left_s = self._end_s - now_s
        if left_s < self._first_s:
            return None
        # Half of what is left: the last try comes before the end, not at it.
        return max(self._first_s, min(self.next_s(), left_s / 2))


def exact(pause_s: float) -> float:
    """Return the pause as it is: for pure code, until a driver gives it `jittered` instead."""
    return pause_s


def jittered(pause_s: float) -> float:
    """Return between half of `pause_s` and all of it, so that callers who failed together try again apart."""
    return pause_s * random.uniform(0.5, 1.0)


class Retry:
    """Pauses with jitter between the attempts at one thing, by this machine's clock. Arguments as of `Backoff`."""

    __slots__ = ("_backoff",)

    def __init__(self, first_s: float, max_s: float, give_up_s: float = math.inf) -> None:
        self._backoff = Backoff(first_s, max_s, give_up_s, time.monotonic())

    def restart(self) -> None:
        """Begin anew: something went well."""
        self._backoff.restart(time.monotonic())

    def pause_s(self, error: BaseException | None = None) -> float:
        """Return the pause before the next attempt. Raises `error`, of the last one, when it is time to give up."""
        pause_s = self._backoff.next_in_time_s(time.monotonic())
        if pause_s is None:
            raise error or TimeoutError("the time for further attempts is over")
        return jittered(pause_s)
