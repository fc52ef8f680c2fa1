"""How many of something clients have, all together and each one, so that one leaves some for others (INV-B1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

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
