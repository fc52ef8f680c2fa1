"""The newest event of a bookie, of its page `/events`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from fastbk.observe.event_record import EventPage
from fastbk.overview.values import LastEvent


def last_event_of(page: dict[str, Any]) -> LastEvent | None:
    """Return the newest event of an answer; None without one, and where the answer is not understood."""
    try:
        events = msgspec.convert(page, EventPage).events if page else []
        if not events:
            return None
        newest = events[-1]
        return LastEvent(
            datetime.fromisoformat(newest.time).timestamp(), newest.text(), newest.kind
        )
    except (msgspec.ValidationError, ValueError):
        return None
