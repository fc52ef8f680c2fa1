"""Options of a writer, of the change of its ensemble, and of reads and polls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fastbk.errors import ConfigError
from fastbk.model.ids import BookieId
from fastbk.replication.procedure import Outcome
from fastbk.replication.replicas import Pacing
from fastbk.retry import exact


@dataclass(frozen=True, slots=True)
class ChangePolicy:
    """Which absences a writer bears, and for how long. All times are seconds above 0.

    Without `delayed` a bookie is replaced at once when it says that it cannot store (READ_ONLY, IO_ERROR, NO_LEDGER,
    CANNOT_TELL), when it is gone for good, when it leaves an add unanswered for `bookie_timeout_s`, and when it is away
    and an entry in flight cannot be completed without it. While the ack quorum goes on without it, the writer waits
    until it was away for `replace_after_s`, or until the entries held for it take three quarters of the room. With
    `delayed` only if besides more than Qw - Qa members of some write set have failed, or it is read-only or gone.
    """

    replace_after_s: float = 10.0
    """Longer than a restart takes: the bookie gets the entries that were held for it, and no copy is missing."""
    delayed: bool = False
    changes_max: int | None = None
    """Successful changes of one writer; after them it goes on as if there were no other bookies. None: any number."""
    bookie_timeout_s: float = 5.0
    """Longest time that a connected bookie may leave an add unanswered, or go on refusing it as too busy; also the time
    that the first connection to it may take."""
    jitter: Callable[[float], float] = exact
    """Jitter of the pauses between attempts. The client's driver gives `fastbk.retry.jittered`."""

    def __post_init__(self) -> None:
        for name in ("replace_after_s", "bookie_timeout_s"):
            if not 0 < getattr(self, name) <= 1e9:
                raise ConfigError(f"{name}={getattr(self, name)!r}: must be above 0 and finite")
        if self.changes_max is not None and self.changes_max < 0:
            raise ConfigError(f"changes_max={self.changes_max}: must be 0 or more, or None")


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How one ledger is written."""

    held_bytes_max: int = 32 * 1024 * 1024
    """Acknowledged entries that a missing bookie still lacks are held for it up to this."""
    append_timeout_s: float = 10.0
    """An add that waits longer for its quorum ends the writer."""
    change: ChangePolicy = field(default_factory=ChangePolicy)
    is_deferred: bool = False
    """Acknowledged entries are only readable, and kept by a close, once a force has covered them. Such a ledger keeps
    its bookies: one that would have to be replaced ends the writer."""
    away: frozenset[BookieId] = frozenset()
    """Members that were away or read-only when the ledger was created; `owed_by` marks their copies."""


Order: TypeAlias = Callable[[Sequence[BookieId]], Sequence[BookieId]]
"""Puts bookies that hold the same into the order to prefer: healthy, near and quick ones first. A permutation."""


def unordered(bookies: Sequence[BookieId]) -> Sequence[BookieId]:
    """Prefer none."""
    return bookies


Noted: TypeAlias = Callable[[BookieId, Outcome, float, float], None]


def unnoted(bookie_id: BookieId, outcome: Outcome, asked_s: float, now_s: float) -> None:
    """Take no note of an answer."""


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
        noted: is shown what each bookie answered, when it was asked, and the time of now.
    """

    batch_entries: int = 2_000
    batch_bytes: int = 1024 * 1024
    size_bytes_max: int = 4 * 1024 * 1024
    speculative_s: float | None = None
    parallel: bool = False
    is_unconfirmed: bool = False
    pacing: Pacing = field(default_factory=Pacing)
    noted: Noted = unnoted


@dataclass(frozen=True, slots=True, kw_only=True)
class PollOptions:
    """How a poll waits. Seconds, above 0.

    Attributes:
        wait_s: the whole poll, and each wait at a bookie; at most 60.
        grace_s: how long the bookie that is to bring the entry waits alone; and, when others prove later that the LAC
            is at the position, how long the entry itself may still take to come.
        is_quiet: the poll before had no news, so news is not near: all members are asked at once.
        pacing: of the requests beyond their wait, and of asking again those that fail.
    """

    wait_s: float = 30.0
    grace_s: float = 0.005
    is_quiet: bool = False
    pacing: Pacing = field(default_factory=Pacing)
