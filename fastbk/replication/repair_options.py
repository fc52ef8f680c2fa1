"""Bounds of repairs and checks of copies, and what they share: the rate, and the bookies' back-pressure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fastbk.model.ids import BookieId
from fastbk.replication.actions import Outcome, Reply
from fastbk.replication.back_pressure import BackPressure
from fastbk.replication.copy_rate import CopyRate
from fastbk.replication.options import Noted, ReadOptions
from fastbk.replication.replicas import Pacing
from fastbk.wire.statuses import Status

Took: TypeAlias = Callable[[float, bool], None]
"""Is told how many seconds a request took, and whether its answer was OK."""


def uncounted(took_s: float, is_ok: bool) -> None:
    """Take no note of it."""


def uncounted_copies(entries: int, size_bytes: int) -> None:
    """Take no note of them."""


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Bounds of a repair. Repairs that have the same `rate` and `pressure` share them."""

    entries_in_flight_max: int = 1024
    bytes_in_flight_max: int = 8 * 1024 * 1024
    read_entries_max: int = 1000
    read_bytes_max: int = 1024 * 1024
    batch_entries_max: int = 128
    """Copies that go to a bookie of ours in one request."""
    batch_bytes_max: int = 256 * 1024
    """So that a writer's add waits for the journal behind one of them no longer than behind its own batch."""
    rate: CopyRate = field(default_factory=CopyRate)
    pressure: BackPressure = field(default_factory=BackPressure)
    read_took: Took = uncounted
    write_took: Took = uncounted
    """Are told of each request for copies."""
    copied: Callable[[int, int], None] = uncounted_copies
    """Is told of entries and bytes that a bookie took."""
    request_timeout_s: float = 10.0
    metadata_timeout_s: float = 30.0
    patience_s: float = 20.0
    """How long a ledger waits for holders that do not answer, once; then it is parked (`ShareCopied.unread`)."""
    patience_after_s: float = 1.0
    """The same from then on, for the ledger's other fragments."""
    recheck_after_s: float = 3600.0
    """A target that was given nothing for so long before it is named gets its share again: what nobody counts on may
    have been dropped there meanwhile. Must be far shorter than any bookie's [gc] over_replicated_age.
    """
    backoff_min_s: float = 0.02
    backoff_max_s: float = 1.0

    def pacing(self, give_up_s: float) -> Pacing:
        """Return the pacing of requests that are given up after so long."""
        return Pacing(
            request_timeout_s=self.request_timeout_s,
            give_up_s=give_up_s,
            pause_min_s=self.backoff_min_s,
            pause_max_s=self.backoff_max_s,
        )

    def reads(self, patience_s: float, noted: Noted) -> ReadOptions:
        """Return how the copies are read: one answer ahead. `noted` sees each answer."""
        return ReadOptions(
            batch_entries=self.read_entries_max,
            batch_bytes=self.read_bytes_max,
            size_bytes_max=1,
            pacing=self.pacing(patience_s),
            noted=noted,
        )

    def note(self, bookie_id: BookieId, outcome: Outcome, now_s: float) -> None:
        """Take the back-pressure that came with an answer."""
        if isinstance(outcome, Reply) and outcome.status == Status.OK:
            self.pressure.note(bookie_id, outcome.add_wait_s, now_s)

    def note_read(
        self, bookie_id: BookieId, outcome: Outcome, asked_s: float, now_s: float
    ) -> None:
        """Take an answer to a read for a copy."""
        self.read_took(now_s - asked_s, isinstance(outcome, Reply) and outcome.status == Status.OK)
        self.note(bookie_id, outcome, now_s)

    def note_write(
        self, bookie_id: BookieId, outcome: Outcome, asked_s: float, now_s: float
    ) -> None:
        """Take an answer to the write of copies."""
        self.write_took(now_s - asked_s, isinstance(outcome, Reply) and outcome.status == Status.OK)
        self.note(bookie_id, outcome, now_s)

    def wait_s(self, bookies: Collection[BookieId], worked_s: float, now_s: float) -> float:
        """Return how long rate and back-pressure have the next read wait, after work with `bookies` for so long."""
        return max(self.rate.wait_s(now_s), self.pressure.rest_s(bookies, worked_s))

    def limited(self, bytes_per_s: float) -> RepairOptions:
        """Return the options with a rate of their own; 0: there is no limit beside the one that they have."""
        return replace(self, rate=CopyRate(bytes_per_s)) if bytes_per_s > 0 else self

    def less_patient(self) -> RepairOptions:
        """Return the options for what is left of a ledger of which something had to be parked."""
        return replace(self, patience_s=min(self.patience_s, self.patience_after_s))
