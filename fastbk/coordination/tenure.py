"""The rules of a lease: when a waiter takes it, and for how long its holder may believe that it has it. Pure.

A holder raises the record's beat each `RENEW_SHARE` of the duration, by compare-and-set. Whoever waits judges by its
own monotonic clock alone how long the beat stands still. Times of different machines are never compared.

INV-K2: a waiter takes a lease whose holder did not release it only if the beat stood still for the lease's duration by
the waiter's clock, from when its first read was answered, and names the version of that beat. So no renewal happened in
between, whatever stood still meanwhile.
INV-K3: a holder believes to have a lease for `HELD_SHARE` of the duration, by its clock, from before it asked for the
grant or the last renewal. So two hold it at once only if a clock ran more than a fifth slower than the other, or the
holder was paused between its check of the clock and its act. Then the later one has the higher token (INV-K1), and
whatever checks tokens obeys it alone.

Decision 176.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from fastbk.coordination.records import LeaseRecord

HELD_SHARE: Final = 0.8
RENEW_SHARE: Final = 0.2
READ_SHARE: Final = 0.2
"""Of the duration: a waiter reads the record that often, whether it was told of a change or not."""


# --- changes of the record ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """What a candidate writes into the record. `key`: drawn for this granting."""

    key: str
    holder: str
    duration_ms: int
    data: bytes = b""


def granted(record: LeaseRecord | None, claim: Claim, floor: int = 0) -> LeaseRecord:
    """Return the record with the lease granted; `floor`: for one that is new (INV-K1)."""
    number = (floor if record is None else record.number) + 1
    return LeaseRecord(number, 0, claim.key, claim.duration_ms, claim.holder, claim.data)


def renewed(record: LeaseRecord) -> LeaseRecord:
    """Return the record with its next beat."""
    return replace(record, beat=record.beat + 1)


def released(record: LeaseRecord) -> LeaseRecord:
    """Return the record of a lease that nobody holds; the token stays, and the next one is higher."""
    return replace(record, key="", holder="", data=b"")


# --- who waits ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stillness:
    """For how long one observer saw a beat stand still (INV-K2)."""

    _mark: tuple[int, str, int] | None = None
    _since_s: float = 0.0

    def update(self, record: LeaseRecord, sent_s: float, answered_s: float) -> float:
        """Take in a read; return for how long the beat has stood still. Times: a monotonic clock's, of the read.

        From an answer to a question: what a read takes may lie before the beat, or behind it.
        """
        mark = record.number, record.key, record.beat
        if mark != self._mark:
            self._mark, self._since_s = mark, answered_s
        return max(sent_s - self._since_s, 0.0)


def may_take(record: LeaseRecord | None, still_s: float) -> bool:
    """Return whether a waiter may take the lease: it is free, or its holder's beat stood still (INV-K2)."""
    return record is None or not record.key or still_s >= record.duration_ms / 1000


# --- who holds ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tenure:
    """For how long a holder may believe that it has the lease (INV-K3). Times: its monotonic clock's."""

    duration_s: float
    until_s: float = float("-inf")

    def extend(self, sent_s: float) -> None:
        """The grant or a renewal happened that was asked for no earlier than this."""
        self.until_s = max(self.until_s, sent_s + HELD_SHARE * self.duration_s)

    def is_held(self, now_s: float) -> bool:
        """Return whether no other can have it yet, unless a clock is wrong."""
        return now_s < self.until_s
