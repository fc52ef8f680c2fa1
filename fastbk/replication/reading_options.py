"""How readers go about it: options of ranges and polls, and the order in which replicas are preferred."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fastbk.model.ids import BookieId
from fastbk.replication.replicas import Pacing

Order: TypeAlias = Callable[[Sequence[BookieId]], Sequence[BookieId]]
"""Puts bookies that hold the same into the order to prefer: healthy, near and quick ones first. A permutation."""


def as_they_are(bookies: Sequence[BookieId]) -> Sequence[BookieId]:
    """Prefer none."""
    return bookies


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a range is read.

    Attributes:
        batch_entries, batch_bytes: limits of one answer.
        size_bytes_max: no more is asked for while so much data is found and not taken; one answer is always allowed.
        speculative_s: ask the next replica as well after so long without an answer, doubled each time; None: never.
        parallel: ask all replicas at once.
        is_unconfirmed: end before the first entry that is missing instead of failing.
        pacing: `give_up_s` is the limit of one step over all replicas; no single one gets more than its share of it.
    """

    batch_entries: int = 2_000
    batch_bytes: int = 1024 * 1024
    size_bytes_max: int = 4 * 1024 * 1024
    speculative_s: float | None = None
    parallel: bool = False
    is_unconfirmed: bool = False
    pacing: Pacing = field(default_factory=Pacing)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollOptions:
    """How a poll waits. Seconds, above 0.

    Attributes:
        wait_s: the whole poll, and each wait at a bookie; at most 60.
        grace_s: how long the bookie that is to bring the entry waits alone; and, when others prove later that the LAC
            is at the position, how long the entry itself may still take to come.
        pacing: of the requests beyond their wait, and of asking again those that fail.
    """

    wait_s: float = 1.0
    grace_s: float = 0.005
    pacing: Pacing = field(default_factory=Pacing)
