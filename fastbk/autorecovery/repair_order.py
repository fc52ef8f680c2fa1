"""In which order a worker repairs marked ledgers: those with the fewest live copies first. Pure.

A ledger that cannot be repaired now waits apart, and never blocks another one:

- it *backs off* after an error that may pass, each time twice as long;
- it is *parked* where only a change of the cluster helps: no source left, no bookie to copy to, write quorum 1. It is
  tried again when a bookie comes, and seldom besides.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.model.quorum import write_set
from fastbk.retry import Backoff

LEDGERS_MAX = 100_000
"""Ledgers that one worker keeps in memory; the others stay marked, and are found when some of these are done."""
BACKOFF_MIN_S = 5.0
BACKOFF_MAX_S = 600.0
PARKED_RETRY_S = 600.0


def live_copies(
    metadata: LedgerMetadata, missing: Collection[MissingReplica], present: Collection[BookieId]
) -> int:
    """Return how many copies the entries with the fewest have, on bookies that are up and not marked.

    A mark of part of a fragment counts for all of it. An empty ledger has as many as its write quorum.
    """
    fewest = metadata.write_quorum
    ends: list[float] = [one.first_entry_id for one in metadata.fragments[1:]]
    ends.append(metadata.last_entry_id + 1 if metadata.is_closed else float("inf"))
    for fragment, end in zip(metadata.fragments, ends, strict=True):
        if end <= fragment.first_entry_id:
            continue
        marked = {
            one.bookie_id
            for one in missing
            if one.first_entry_id < end and one.end > fragment.first_entry_id
        }
        is_live = [
            bookie_id in present and bookie_id not in marked for bookie_id in fragment.ensemble
        ]
        for first in range(
            min(metadata.ensemble_size, int(min(end, 2**62)) - fragment.first_entry_id)
        ):
            indexes = write_set(
                fragment.first_entry_id + first, metadata.ensemble_size, metadata.write_quorum
            )
            fewest = min(fewest, sum(is_live[index] for index in indexes))
    return fewest


@dataclass(slots=True)
class Waiting:
    """A ledger that waits apart. `reason`: why; `since_s`: from when on; `is_parked`: see the module's text."""

    reason: str
    due_s: float
    since_s: float
    backoff: Backoff | None = None
    is_parked: bool = False


class RepairOrder:
    """One worker's ledgers. Times are seconds of one monotonic clock.

    Attributes:
        waiting: ledgers that back off or are parked.
        is_cut: ledgers were left out, since there are more than `LEDGERS_MAX`.
    """

    def __init__(self, seed: int = 0) -> None:
        """`seed`: workers with different ones take equally urgent ledgers in different orders."""
        self.waiting: dict[LedgerId, Waiting] = {}
        self.is_cut = False
        self._seed = seed
        self._ready: list[tuple[int, int, LedgerId]] = []
        self._active: set[LedgerId] = set()

    def __len__(self) -> int:
        """Return how many ledgers are ready or being repaired."""
        return len(self._ready) + len(self._active)

    def replace(self, marked: Iterable[tuple[LedgerId, int]], now_s: float) -> None:
        """Take all marked ledgers with their live copies, in place of those that were known before."""
        ready: list[tuple[int, int, LedgerId]] = []
        names: set[LedgerId] = set()
        self.is_cut = False
        for ledger_id, copies in marked:
            if len(names) == LEDGERS_MAX:
                self.is_cut = True
                break
            names.add(ledger_id)
            waits = self.waiting.get(ledger_id)
            if ledger_id not in self._active and (waits is None or waits.due_s <= now_s):
                ready.append((copies, self._turn(ledger_id), ledger_id))
        heapq.heapify(ready)
        self._ready = ready
        if not self.is_cut:
            self.waiting = {one: waits for one, waits in self.waiting.items() if one in names}

    def take(self) -> LedgerId | None:
        """Return the most urgent ledger, None if there is none. It is active until `done`, `failed` or `park`."""
        if not self._ready:
            return None
        *_, ledger_id = heapq.heappop(self._ready)
        self._active.add(ledger_id)
        return ledger_id

    def leave(self, ledger_id: LedgerId) -> None:
        """An attempt has ended, also one that was cancelled: the next `replace` may offer the ledger again."""
        self._active.discard(ledger_id)

    def done(self, ledger_id: LedgerId) -> None:
        """Nothing of it is left to do, or another worker has it."""
        self._active.discard(ledger_id)
        self.waiting.pop(ledger_id, None)

    def wait_until(self, ledger_id: LedgerId, due_s: float, reason: str, now_s: float) -> None:
        """Try it again at `due_s`: a grace period or a delay is not over."""
        self._wait(ledger_id, Waiting(reason, due_s, now_s))

    def failed(self, ledger_id: LedgerId, reason: str, now_s: float) -> float:
        """Try it again after a pause, which is returned."""
        before = self.waiting.get(ledger_id)
        backoff = before.backoff if before is not None else None
        backoff = backoff or Backoff(BACKOFF_MIN_S, BACKOFF_MAX_S)
        pause_s = backoff.next_s()
        self._wait(ledger_id, Waiting(reason, now_s + pause_s, now_s, backoff))
        return pause_s

    def park(self, ledger_id: LedgerId, reason: str, now_s: float) -> bool:
        """Leave it until a bookie comes. Return whether that is new, or has a new reason."""
        before = self.waiting.get(ledger_id)
        is_new = before is None or not before.is_parked or before.reason != reason
        self._wait(ledger_id, Waiting(reason, now_s + PARKED_RETRY_S, now_s, is_parked=True))
        return is_new

    def bookies_came(self, now_s: float) -> None:
        """Let all that wait be tried again at the next `replace`: a source or a target may be back."""
        for one in self.waiting.values():
            one.due_s = min(one.due_s, now_s)

    @property
    def parked(self) -> dict[LedgerId, Waiting]:
        """Return the parked ledgers."""
        return {one: waits for one, waits in self.waiting.items() if waits.is_parked}

    def _wait(self, ledger_id: LedgerId, waits: Waiting) -> None:
        self._active.discard(ledger_id)
        before = self.waiting.get(ledger_id)
        if before is not None:
            waits.since_s = before.since_s
        self.waiting[ledger_id] = waits

    def _turn(self, ledger_id: LedgerId) -> int:
        return (ledger_id * 0x9E3779B1 ^ self._seed * 0x85EBCA6B) & 0xFFFFFFFF
