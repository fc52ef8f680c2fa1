"""How the auditor divides the cluster's copy rate among the workers. Pure.

A worker announces itself with a counter every few seconds. The auditor answers the counter with a lease: so many bytes
a second. The worker counts the lease's time from the moment at which it sent that counter, and the auditor from the
moment at which it grants. So a worker stops using a lease before the auditor counts it as free.

INV-H5: the leases that workers may use at any moment add up to the limit at most; a lower limit holds after one
lease time.

Apache's replication workers take no leases: they copy outside the limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

LEASE_S = 10.0
ANNOUNCE_INTERVAL_S = 2.0
BYTES_PER_S_DEFAULT = 64 * 1024 * 1024
"""Rate of the whole cluster, verification included."""
BUSY_WEIGHT = 8
"""A worker that copies gets so many times what an idle one gets."""


class Announcement(Protocol):
    """What a worker stores about itself. `counter` grows with each; `is_busy`: it copies."""

    @property
    def counter(self) -> int: ...  # noqa: D102
    @property
    def is_busy(self) -> bool: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Lease:
    """The auditor's answer to one announcement. `bytes_per_s` None: there is no limit."""

    counter: int
    bytes_per_s: float | None


@dataclass(slots=True)
class _Granted:
    bytes_per_s: float
    end_s: float


class RateLeases:
    """The auditor's side. Times are seconds of one monotonic clock."""

    def __init__(self, now_s: float) -> None:
        """Begin. What an auditor before this one has granted may be in use for one lease time."""
        self._begin_s = now_s + LEASE_S
        self._granted: dict[str, list[_Granted]] = {}

    def grant(
        self, workers: Mapping[str, Announcement], limit: float, now_s: float
    ) -> dict[str, Lease]:
        """Return a lease for each worker. `limit`: bytes a second, 0: none."""
        if limit <= 0:
            self._granted.clear()
            self._begin_s = now_s + LEASE_S
            return {name: Lease(worker.counter, None) for name, worker in workers.items()}
        self._end_leases(now_s)
        if now_s < self._begin_s:
            return {}
        weights = {name: BUSY_WEIGHT if worker.is_busy else 1 for name, worker in workers.items()}
        leases = {}
        for name, weight in weights.items():
            fair = limit * weight / sum(weights.values())
            others = sum(self._in_use(one) for one in self._granted if one != name)
            bytes_per_s = max(0.0, min(fair, limit - others))
            self._granted.setdefault(name, []).append(_Granted(bytes_per_s, now_s + LEASE_S))
            leases[name] = Lease(workers[name].counter, bytes_per_s)
        return leases

    def _in_use(self, name: str) -> float:
        """Return the highest rate that a worker may use now: it may not have seen its last lease yet."""
        return max((one.bytes_per_s for one in self._granted[name]), default=0.0)

    def _end_leases(self, now_s: float) -> None:
        for name, granted in list(self._granted.items()):
            granted[:] = [one for one in granted if one.end_s > now_s]
            if not granted:
                del self._granted[name]


class HeldLease:
    """A worker's side: the rate that it may use.

    Attributes:
        end_s: until when.
    """

    def __init__(self) -> None:
        self._sent_s: dict[int, float] = {}
        self._lease: Lease | None = None
        self.end_s = -math.inf

    def announced(self, counter: int, now_s: float) -> None:
        """Note that this counter is about to be sent."""
        self._sent_s[counter] = now_s
        for old in [one for one, sent_s in self._sent_s.items() if sent_s + LEASE_S <= now_s]:
            del self._sent_s[old]

    def received(self, lease: Lease) -> None:
        """Take the auditor's answer. One to a counter that was not sent by this process counts for nothing."""
        sent_s = self._sent_s.get(lease.counter)
        if sent_s is not None and (self._lease is None or lease.counter >= self._lease.counter):
            self._lease = lease
            self.end_s = sent_s + LEASE_S

    def bytes_per_s(self, now_s: float) -> float:
        """Return the rate that may be used now, 0 without a lease."""
        if self._lease is None or now_s >= self.end_s:
            return 0.0
        return math.inf if self._lease.bytes_per_s is None else self._lease.bytes_per_s
