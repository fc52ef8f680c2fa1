"""The ledgers with the most adds, read from the segment of an index: `native/src/index/hot_ledgers.h` counts them."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import check

if TYPE_CHECKING:
    from fastbk.native.segment import Segment

LEDGERS_MAX = lib.FBK_HOT_LEDGERS


@dataclass(frozen=True, slots=True)
class HotLedger:
    """One ledger of a window. `adds`: entries, at most `adds_over` too high, beside the error of the sample."""

    ledger_id: int
    adds: int
    adds_over: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HotWindow:
    """A window that is over, by the monotonic clock. `ledgers`: at most LEDGERS_MAX, in no order."""

    began_ns: int
    ended_ns: int
    ledgers: tuple[HotLedger, ...]


def hot_window(segment: Segment) -> HotWindow | None:
    """Return the newest window of an index; None before the first ends. Raises OSError."""
    copy = ffi.new("struct fbk_hot_window *")
    result = lib.fbk_python_hot_window(segment.pointer, copy)
    # The index writes a window in seconds: it was stopped while it did, or is just writing the next.
    if result == -errno.EAGAIN or check(result, "read the hot ledgers") == 0:
        return None
    found = (copy.ledgers[n] for n in range(copy.count))
    return HotWindow(
        copy.began_ns,
        copy.ended_ns,
        tuple(HotLedger(one.ledger_id, one.adds, one.adds_over, one.size_bytes) for one in found),
    )
