"""The one workload of all rigs: what clients do to a bookie, drawn from a seed.

Swarm: each seed draws its own mix, sizes and number of ledgers, so that some never flush, some flush all the time, and
some write ids downwards. Operations are plain values; each rig does them in its own way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

LEDGERS_MAX = 12
ENTRIES_BATCH_MAX = 6
SIZES_BYTES = ((0, 20), (100, 300), (900, 1100), (10, 4000), (3000, 6000))


class Kind(StrEnum):
    """What is done."""

    ADD = "add"
    BATCH = "batch"
    RECOVERY = "recovery"
    """As a recovery writes: an id with the payload that was sent for it before, or one that nobody sent."""
    CONFLICT = "conflict"
    """An id that was sent already, with another payload."""
    FENCE = "fence"
    DELETE = "delete"
    SETTLE = "settle"
    """Wait until everything sent so far is answered."""
    FLUSH = "flush"
    COMPACT = "compact"


@dataclass(frozen=True)
class Operation:
    """One step. `data`: a payload for each id from `entry_id` on."""

    kind: Kind
    ledger_id: int = 0
    entry_id: int = -1
    data: tuple[bytes, ...] = ()


USUAL = {
    Kind.ADD: 60.0,
    Kind.BATCH: 8.0,
    Kind.RECOVERY: 5.0,
    Kind.CONFLICT: 3.0,
    Kind.FENCE: 1.0,
    Kind.DELETE: 0.7,
    Kind.SETTLE: 12.0,
    Kind.FLUSH: 4.0,
    Kind.COMPACT: 3.0,
}
FACTORS = (0.0, 0.3, 1.0, 1.0, 3.0)


class Script:
    """The operations of one seed. Ledger ids begin at `first_ledger_id`, so that scripts can follow each other."""

    def __init__(self, seed: int, first_ledger_id: int = 1) -> None:
        self._random = rng = random.Random(seed)
        weights = {kind: usual * rng.choice(FACTORS) for kind, usual in USUAL.items()}
        weights[Kind.ADD] = max(weights[Kind.ADD], 10.0)
        weights[Kind.SETTLE] = max(weights[Kind.SETTLE], 4.0)
        self._kinds, self._weights = list(weights), list(weights.values())
        count = rng.randint(1, LEDGERS_MAX)
        self._ledgers = list(range(first_ledger_id, first_ledger_id + count))
        self._next_ledger_id = first_ledger_id + count
        self._next = dict.fromkeys(self._ledgers, 0)
        self._sent: dict[tuple[int, int], bytes] = {}
        self._gap = rng.choice((1, 1, 1, 2, 5))
        self._smallest_bytes, self._largest_bytes = rng.choice(SIZES_BYTES)

    def operations(self, count: int) -> Iterator[Operation]:
        """Give out about `count` operations, a SETTLE last."""
        for kind in self._random.choices(self._kinds, self._weights, k=count):
            yield self._draw(kind)
        yield Operation(Kind.SETTLE)

    def _draw(self, kind: Kind) -> Operation:
        rng = self._random
        if kind in (Kind.SETTLE, Kind.FLUSH, Kind.COMPACT):
            return Operation(kind)
        ledger_id = rng.choice(self._ledgers)
        if kind == Kind.DELETE:
            self._replace(ledger_id)
            return Operation(kind, ledger_id)
        if kind == Kind.FENCE:
            if rng.random() < 0.3:  # one that the bookie has never heard of
                self._next_ledger_id += 1
                return Operation(kind, self._next_ledger_id - 1)
            self._replace(ledger_id)
            return Operation(kind, ledger_id)
        next_id = self._next[ledger_id]
        if kind == Kind.CONFLICT:
            if next_id == 0:
                return Operation(Kind.SETTLE)
            return Operation(kind, ledger_id, rng.randrange(next_id), (self._payload(),))
        if kind == Kind.RECOVERY:
            entry_id = rng.randrange(next_id + 3)
            self._next[ledger_id] = max(next_id, entry_id + 1)
            # Of an entry that the disk can't read just now a repair is taken unseen: it has to be the same.
            data = self._sent.setdefault((ledger_id, entry_id), self._payload())
            return Operation(kind, ledger_id, entry_id, (data,))
        count = rng.randint(1, ENTRIES_BATCH_MAX) if kind == Kind.BATCH else 1
        self._next[ledger_id] = next_id + count + (self._gap - 1)
        datas = tuple(self._payload() for _ in range(count))
        self._sent.update({(ledger_id, next_id + n): data for n, data in enumerate(datas)})
        return Operation(kind, ledger_id, next_id, datas)

    def _replace(self, ledger_id: int) -> None:
        """The ledger is not written to any more; another takes its place."""
        self._ledgers[self._ledgers.index(ledger_id)] = self._next_ledger_id
        self._next[self._next_ledger_id] = 0
        self._next_ledger_id += 1

    def _payload(self) -> bytes:
        return self._random.randbytes(
            self._random.randint(self._smallest_bytes, self._largest_bytes)
        )
