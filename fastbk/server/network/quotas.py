"""Quotas of principals, in one worker: its share of what the bookie gives each of them.

C holds adds back (`worker/quota.c`). Here is counted how many connections a principal has, and which number its quota
has in C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.native.worker import QUOTAS_MAX
from fastbk.observe import logs
from fastbk.server.configuration.quotas import Quota, has_quotas, quota_of, rules_of

if TYPE_CHECKING:
    from fastbk.native.worker import Worker
    from fastbk.server.configuration.quotas import QuotaSettings

KEPT_S = 30.0
"""Without a connection that waits for its quota, and all keep theirs again."""


class Quotas:
    """Who has how many connections; without any quota configured it does nothing."""

    def __init__(self, settings: QuotaSettings, workers: int, worker: Worker) -> None:
        self._worker = worker
        self.are_on = has_quotas(settings)
        self._rules = [(pattern, quota.share(workers)) for pattern, quota in rules_of(settings)]
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        """Of principals that have connections, and of those that had: who comes again finds its debt."""
        self._counts: dict[str, int] = {}
        self._gone: dict[str, None] = {}
        """Principals without connections, the longest gone first."""
        self._free = list(range(QUOTAS_MAX, 0, -1))

    def refusal(self, name: str) -> str:
        """Return why a principal gets no further connection; "": it does."""
        if not self.are_on:
            return ""
        most, count = quota_of(self._rules, name).connections_max, self._counts.get(name, 0)
        if most and count >= most:
            return f"{name} has all {most} connections to this worker that it may have ([quotas] connections_max)"
        if name not in self._numbers and not self._free and not self._gone:
            return f"more than {QUOTAS_MAX} principals have connections to this worker ([quotas])"
        return ""

    def enter(self, slot: int, name: str) -> None:
        """A connection is a principal's from now on."""
        if not self.are_on or self._names.get(slot) == name:
            return
        self.leave(slot)
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._next_number()
            quota: Quota = quota_of(self._rules, name)
            self._worker.set_quota(number, quota.adds_rate, quota.data_rate, quota.ledgers_rate)
        self._gone.pop(name, None)
        self._names[slot] = name
        self._counts[name] = self._counts.get(name, 0) + 1
        self._worker.use_quota(slot, number)

    def leave(self, slot: int) -> None:
        """A connection is gone, or another's."""
        name = self._names.pop(slot, None)
        if name is None:
            return
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]
            self._gone[name] = None

    def _next_number(self) -> int:
        if self._free:
            return self._free.pop()
        longest_gone = next(iter(self._gone))
        del self._gone[longest_gone]
        return self._numbers.pop(longest_gone)


class QuotaWaits:
    """Logs when clients of one worker begin to wait for their quotas, and when they do not any more."""

    def __init__(self) -> None:
        self._waits = 0
        self._began_s: float | None = None
        self._last_s = 0.0

    def poll(self, waits: int, connections: int, now_s: float) -> None:
        """Take in how often connections have waited so far, and how many do now; once a second."""
        is_reached, self._waits = waits > self._waits or connections > 0, waits
        if is_reached:
            self._last_s = now_s
            if self._began_s is None:
                self._began_s = now_s
                reason = "clients have added more than their quotas ([quotas]), and wait"
                logs.warning("quota.reached", reason=reason, connections=connections)
        elif self._began_s is not None and now_s - self._last_s >= KEPT_S:
            logs.info("quota.kept_again", reached_s=round(self._last_s - self._began_s, 1))
            self._began_s = None
