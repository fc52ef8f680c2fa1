"""The newest event of a bookie, from its pages."""

from __future__ import annotations

import time
from typing import Any

from fastbk.overview.values import LastEvent


def last_event_of(info: dict[str, Any]) -> LastEvent | None:
    """Return the newest of what `/info` has: its last slow commit or answer, else its change of state."""
    slow = (info.get("slow") or {}).get("last")
    if slow is not None:  # its time is the bookie's monotonic clock, of no use elsewhere
        return LastEvent(
            None, f"{slow.get('event')} {slow.get('took_ms')} ms: {slow.get('verdict')}"
        )
    seconds = info.get("state_seconds")
    if seconds is None:
        return None
    return LastEvent(time.time() - float(seconds), str(info.get("state", "")))
