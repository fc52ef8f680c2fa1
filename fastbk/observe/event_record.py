"""One event, a query for events, and the moments that people write in queries. No I/O.

query = Query.of({"since": "03:00", "until": "03:20", "kind": "disk,stall"}, time.time())
found = [event for event in events if query.admits(event)]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from fastbk.errors import ConfigError
from fastbk.observe.event_kinds import KIND_OF, KINDS
from fastbk.observe.logs import message

LIMIT_MAX = 1000
"""Events of one answer."""
LIMIT_DEFAULT = 200
LATEST = "9999"
"""Behind every moment: moments compare as text."""

_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_AGO = re.compile(r"-?(\d{1,9})(s|m|min|h|d)")
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_FORMS = "03:00 (UTC), 2026-11-28T03:00, -20m, -2h or now"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A change of state of one process.

    Attributes:
        number: a cursor: higher than that of each earlier event of the same file, also over restarts.
        time: in UTC, as in `2026-11-28T03:12:00.250000Z`.
        kind: one of KINDS. event: the name of the log line, as in `disk.slow`. level: as in the log.
        source: whose it is: a bookie's id, or the name of a janitor or healer.
        process: `supervisor`, `journal`, `worker.0`, ...; `janitor` or `autorecovery` for those.
        values: the fields of the log line.
        dropped: events of the same name that were too many since the one before, and are not recorded.
    """

    number: int
    time: str
    kind: str
    event: str
    level: str
    source: str
    process: str
    values: dict[str, Any] = msgspec.field(default_factory=dict)
    dropped: int = 0

    def line(self) -> bytes:
        """Return it as a line of a file."""
        return msgspec.json.encode(self) + b"\n"

    def text(self) -> str:
        """Return what happened, without when and where: the event, its reason first, its other fields."""
        values = dict(self.values)
        reason = values.pop("reason", "")
        if self.dropped:
            values["more_dropped"] = self.dropped
        return message(f"{self.event}: {reason}" if reason else self.event, values)


def event_of(line: bytes) -> Event | None:
    """Return the event of a line; None: it is none, or was cut short."""
    try:
        return msgspec.json.decode(line, type=Event)
    except (ValueError, RecursionError):
        return None


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are wanted.

    Attributes:
        since, until: moments as in `Event.time`: from the first on, before the second.
        kinds: kinds and names of events; none: all.
        limit: so many at most, 1 to LIMIT_MAX.
        after: only events with a higher number; a number that `EventPage.next` has given.
        is_newest: of more than `limit` the newest, and not the oldest.
    """

    since: str = ""
    until: str = LATEST
    kinds: frozenset[str] = frozenset()
    limit: int = LIMIT_DEFAULT
    after: int = 0
    is_newest: bool = False

    def admits(self, event: Event) -> bool:
        """Return whether an event is wanted, by its number, time and kind."""
        return (
            event.number > self.after
            and self.since <= event.time < self.until
            and (not self.kinds or event.kind in self.kinds or event.event in self.kinds)
        )

    @staticmethod
    def of(parameters: Mapping[str, str], now_s: float) -> Query:
        """Return the query that HTTP parameters say. Raises ConfigError."""
        unknown = sorted(set(parameters) - {"since", "until", "kind", "limit", "after", "newest"})
        if unknown:
            raise ConfigError(f"{unknown[0]}: known are since, until, kind, limit, after, newest")
        since, until = moments(parameters.get("since", ""), parameters.get("until", ""), now_s)
        return Query(
            since=since,
            until=until,
            kinds=kinds_of(parameters.get("kind", "").split(",")),
            limit=_whole(parameters, "limit", LIMIT_DEFAULT, 1, LIMIT_MAX),
            after=_whole(parameters, "after", 0, 0, 2**63 - 1),
            is_newest=bool(_whole(parameters, "newest", 0, 0, 1)),
        )

    def parameters(self) -> dict[str, str]:
        """Return what `of` makes the same query of."""
        return {
            "since": self.since,
            "until": "" if self.until == LATEST else self.until,
            "kind": ",".join(sorted(self.kinds)),
            "limit": str(self.limit),
            "after": str(self.after),
            "newest": str(int(self.is_newest)),
        }


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to a query.

    Attributes:
        source: whose events they are.
        events: in their order.
        next: the `after` of the next query, which goes on behind these.
        is_complete: nothing more is there at the moment.
        dropped: events that were not recorded since the process started: too many at once.
        unwritten: events that are only in memory since the process started: their file cannot be written.
    """

    source: str
    events: list[Event]
    next: int
    is_complete: bool
    dropped: int = 0
    unwritten: int = 0


def kinds_of(names: list[str]) -> frozenset[str]:
    """Return kinds and events by their names, empty ones left out. Raises ConfigError."""
    found = {name.strip() for name in names} - {""}
    unknown = sorted(found - set(KINDS) - set(KIND_OF))
    if unknown:
        raise ConfigError(
            f"kind {unknown[0]}: give {', '.join(KINDS)}, or the name of an event as disk.slow"
        )
    return frozenset(found)


def moments(since: str, until: str, now_s: float) -> tuple[str, str]:
    """Return both ends of a time as `Event.time`; of "" the earliest and the latest.

    A time of day is the last one before now. As an end it is the first one after the beginning.
    Raises ConfigError.
    """
    began = _moment(since, now_s) if since else None
    ended = _moment(until, now_s) if until else None
    if began is not None and ended is not None and _CLOCK.fullmatch(until):
        ended = began + (ended - began) % timedelta(days=1)
    if began is not None and ended is not None and ended <= began:
        raise ConfigError(f"until {until} is not after since {since}")
    return "" if began is None else _text(began), LATEST if ended is None else _text(ended)


def _moment(text: str, now_s: float) -> datetime:
    now = datetime.fromtimestamp(now_s, UTC)
    if text == "now":
        return now
    if (ago := _AGO.fullmatch(text)) is not None:
        try:
            return now - timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])
        except OverflowError:
            raise ConfigError(f"{text}: longer ago than there are years") from None
    if (clock := _CLOCK.fullmatch(text)) is not None:
        hour, minute, second = (int(part or 0) for part in clock.groups())
        today = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return today if today <= now else today - timedelta(days=1)
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(f"{text}: no moment; give {_FORMS}") from None


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")[:26] + "Z"


def _whole(parameters: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = parameters.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise ConfigError(f"{name} {text[:40]}: must be {least} to {most}")
    return int(text)
