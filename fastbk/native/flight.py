"""The flight recorder of a segment, read: stages of commits and batches that took over 10 ms.

`native/src/base/flight.h` writes it; `fastbk.server.supervision.slow_reports` judges it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import check, ints_of

if TYPE_CHECKING:
    from fastbk.native.segment import Segment

RECORDS_MAX = lib.FBK_FLIGHT_RECORDS
COMMIT = lib.FBK_FLIGHT_COMMIT
ANSWER = lib.FBK_FLIGHT_ANSWER
WAIT = lib.FBK_FLIGHT_WAIT
INTAKE = lib.FBK_FLIGHT_INTAKE
PAUSE = lib.FBK_FLIGHT_PAUSE
NO_DELAY = lib.FBK_FLIGHT_NO_DELAY
STALLED = lib.FBK_FLIGHT_STALLED
ROLLED = lib.FBK_FLIGHT_ROLLED
CREDIT = lib.FBK_FLIGHT_CREDIT
FULL = lib.FBK_FLIGHT_FULL
TIMED_OUT = lib.FBK_FLIGHT_TIMED_OUT


class SlowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record; see `struct fbk_flight_record` in `boundary/base.h`. Times of the monotonic clock, 0 for none."""

    kind: int
    flags: int = 0
    received_ns: int
    free_ns: int = 0
    submitted_ns: int = 0
    completed_ns: int = 0
    published_ns: int = 0
    ended_ns: int
    away_ns: int = 0
    sampled_ns: int = 0
    processor_ns: int = 0
    delayed_ns: int = 0
    continued_ns: int = 0
    voluntary: int = 0
    involuntary: int = 0
    record_count: int = 0
    size_bytes: int = 0

    @property
    def took_ns(self) -> int:
        """How long it took in all."""
        return self.ended_ns - self.received_ns


class FlightReader:
    """Reads one mapped segment; each record once."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._records = ffi.new(f"struct fbk_flight_record[{RECORDS_MAX}]")
        self._next = ffi.new("uint64_t *")

    def fresh(self) -> tuple[list[SlowRecord], int]:
        """Return the records since the last call, oldest first, and how many of them were lost."""
        before = int(self._next[0])
        count = check(
            lib.fbk_python_flight(
                self._segment.pointer,
                self._segment.role_number,
                before,
                self._records,
                RECORDS_MAX,
                self._next,
            ),
            "read the flight recorder",
        )
        found = [SlowRecord(**ints_of(self._records[n], SlowRecord)) for n in range(count)]
        return found, max(0, int(self._next[0]) - before - count)
