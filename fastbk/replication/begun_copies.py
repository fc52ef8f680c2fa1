"""Going on with a share that an earlier attempt began to copy: to the same bookie, and what that does not list. Pure.

An attempt ends early when holders of an entry do not answer. The next one would choose any bookie, and copy all of the
share again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from fastbk.errors import Error
from fastbk.model.ids import BookieId, EntryId
from fastbk.replication.actions import ListEntries, Outcome, Reply
from fastbk.replication.procedure import Procedure
from fastbk.replication.replicas import ABSENT_STATUSES
from fastbk.wire.statuses import Status

Run: TypeAlias = tuple[EntryId, EntryId]
RANGES_A_CALL = 4096
RANGES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class BegunCopy:
    """`target` took the last entry of a share at `taken_s`, by the driver's clock."""

    target: BookieId
    taken_s: float


BegunCopies: TypeAlias = dict[tuple[BookieId, EntryId], BegunCopy]
"""By the lost bookie and the first entry of the fragment."""


@dataclass(slots=True)
class HeldEntries:
    """Ranges of ids that a bookie lists, ascending. `error`: why it gave no list; then nothing counts as held."""

    ranges: list[Run] = field(default_factory=list)
    error: str = ""

    def without(self, runs: Iterator[Run]) -> Iterator[Run]:
        """Yield what of `runs` is not held, and always the last id: who takes it again shows that it is there."""
        at, last = 0, -1
        for first, last in runs:
            position = first
            while at < len(self.ranges) and self.ranges[at][0] <= last:
                held_first, held_last = self.ranges[at]
                if held_first > position:
                    yield position, held_first - 1
                position = max(position, held_last + 1)
                if held_last > last:
                    break
                at += 1
            if position <= last:
                yield position, last
        if last >= 0 and self.holds(last):
            yield last, last

    def holds(self, entry_id: EntryId) -> bool:
        """Return whether an entry is in a range."""
        return any(first <= entry_id <= last for first, last in reversed(self.ranges))


class ListHeld(Procedure[HeldEntries]):
    """Asks one bookie which entries it holds from `first` to `last`. Never fails."""

    def __init__(
        self, bookie_id: BookieId, first: EntryId, last: EntryId, timeout_s: float
    ) -> None:
        super().__init__()
        self._bookie_id = bookie_id
        self._first = first
        self._last = last
        self._timeout_s = timeout_s
        self._held = HeldEntries()

    def begin(self, now_s: float) -> None:
        """Ask for the first ranges."""
        self._ask(
            self._bookie_id, ListEntries(self._first, RANGES_A_CALL), self._timeout_s, self._listed
        )

    def _listed(self, outcome: Outcome, now_s: float) -> None:
        held = self._held
        if isinstance(outcome, Reply) and outcome.status in ABSENT_STATUSES:
            self._finish(held, now_s)
        elif isinstance(outcome, Reply) and outcome.status == Status.OK:
            held.ranges += [one for one in outcome.ranges if one[0] <= self._last]
            is_more = self._first < outcome.next_entry_id <= self._last
            if is_more and len(held.ranges) < RANGES_MAX:
                self._first = outcome.next_entry_id
                self.begin(now_s)
            else:
                self._finish(held, now_s)
        else:
            assert isinstance(outcome, Reply | Error)
            self._finish(HeldEntries(error=str(outcome)), now_s)
