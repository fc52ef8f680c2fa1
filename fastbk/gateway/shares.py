"""How many of something clients have, all together and each one, so that one leaves some for others (INV-B1)."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from fastbk.rate_limit import RateLimit

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
        self._rates = {"writes": writes_per_s, "write_bytes": bytes_per_s}
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
