"""Events: which log lines are changes of state, one event, and a query for events. No I/O.

    query = Query.of({"since": "03:00", "until": "03:20", "kind": "disk,stall"}, time.time())
    found = [event for event in events if query.admits(event)]

An event is not a second call beside the log line: `EventLog` gets every line of the process, and keeps those that stand
in `KIND_OF`. docs/events.md has the same table for people.

Decision 125.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from fastbk.errors import ConfigError
from fastbk.observe.logs import message
from fastbk.printable_text import printable_json

VALUES_BYTES_MAX = 4096

KINDS = {
    "start": "a process began to serve, or how it found what the one before left",
    "stop": "a process was stopped, or ended by itself",
    "child": "one of a bookie's processes died, froze or was started again",
    "limit": "a limit was reached: clients were refused, delayed or closed",
    "disk": "a disk is full, failing, slow or gone, or is well again; damage was found",
    "stall": "commits of a journal are slow, or are quick again",
    "read_only": "a bookie refuses normal adds, or takes them again",
    "ensemble": "a writer or a repair replaced a bookie of a ledger",
    "fence": "a client fenced a ledger",
    "recovery": "lost copies were found, and made again",
    "placement": "copies lie otherwise than a rule wants it, or no longer do",
    "session": "the metadata store was lost or found again",
    "hold": "deleting, compaction or healing is held, or goes on",
    "certificate": "a certificate ends soon, was renewed, or cannot be read",
    "maintenance": "an operator requested something",
}
"""Each kind, and what it is about."""

KIND_OF = {
    "bookie.born": "start",
    "bookie.started": "start",
    "bookie.unclean_stop": "start",
    "journal.replayed": "start",
    "janitor.started": "start",
    "autorecovery.started": "start",
    "autorecovery.elected": "start",
    "bookie.asked_to_stop": "stop",
    "bookie.draining": "stop",
    "bookie.failed": "stop",
    "bookie.killed": "stop",
    "bookie.start_cut_off": "stop",
    "bookie.stopped": "stop",
    "drain.failed": "stop",
    "drain.timed_out": "stop",
    "janitor.ended": "stop",
    "autorecovery.ended": "stop",
    "autorecovery.auditor_ended": "stop",
    "bookie.broke_down": "child",
    "bookie.broke_down_with_a_disk": "child",
    "bookie.reads_only": "child",
    "bookie.down": "child",
    "bookie.tries_again": "child",
    "process.failed": "child",
    "process.frozen": "child",
    "process.resumed": "child",
    "autorecovery.auditor_failed": "child",
    "connection.unauthorized": "limit",
    "http.limit_reached": "limit",
    "index.adds_refused": "limit",
    "index.adds_taken": "limit",
    "journal.limit": "limit",
    "ledgers.full": "limit",
    "ledgers.room": "limit",
    "quota.kept_again": "limit",
    "quota.reached": "limit",
    "worker.connections_limited": "limit",
    "worker.limit_reached": "limit",
    "worker.slow_room": "limit",
    "bookie.disk_is_back": "disk",
    "bookie.reads_only_for_disk": "disk",
    "bookie.waits_for_disk": "disk",
    "compaction.damage": "disk",
    "damage.in_limbo": "disk",
    "disk.changed": "disk",
    "disk.quick_again": "disk",
    "disk.reserve_is_short": "disk",
    "disk.slow": "disk",
    "index.locations_damaged": "disk",
    "journal.damaged": "disk",
    "read.damaged": "disk",
    "scrub.damaged": "disk",
    "scrub.healed": "disk",
    "scrub.more_damaged": "disk",
    "journal.quick_again": "stall",
    "journal.slow": "stall",
    "bookie.became_read_only": "read_only",
    "bookie.became_writable": "read_only",
    "ledger.bookie_replaced": "ensemble",
    "ledger.fenced": "fence",
    "ledger.recovery_began": "recovery",
    "autorecovery.bookie_due": "recovery",
    "autorecovery.bookie_lost": "recovery",
    "autorecovery.bookie_returned": "recovery",
    "autorecovery.ledger_parked": "recovery",
    "autorecovery.marking_ended": "recovery",
    "autorecovery.marking_started": "recovery",
    "index.ledgers_in_limbo": "recovery",
    "autorecovery.copies_moved": "placement",
    "autorecovery.ledgers_misplaced": "placement",
    "autorecovery.move_failed": "placement",
    "autorecovery.placement_mended": "placement",
    "ledger.placed_short": "placement",
    "autorecovery.session_lost": "session",
    "gc.metadata_unavailable": "session",
    "metadata.connected": "session",
    "metadata.session_begun_anew": "session",
    "metadata.session_expired": "session",
    "metadata.session_refused": "session",
    "metadata.session_suspended": "session",
    "registration.left_behind": "session",
    "registration.lost": "session",
    "registration.recovered": "session",
    "autorecovery.hold_began": "hold",
    "autorecovery.hold_ended": "hold",
    "autorecovery.paused": "hold",
    "autorecovery.resumed": "hold",
    "gc.resumed": "hold",
    "gc.suspended": "hold",
    "metadata.hold_confirmed": "hold",
    "metadata.hold_placed_again": "hold",
    "metadata.on_hold": "hold",
    "metadata.rolled_back": "hold",
    "certificate.ended": "certificate",
    "certificate.ends_soon": "certificate",
    "certificate.renewed": "certificate",
    "certificate.unreadable": "certificate",
    "tls.files_not_taken": "certificate",
    "autorecovery.maintenance_began": "maintenance",
    "autorecovery.maintenance_ended": "maintenance",
    "autorecovery.recovery_ended": "maintenance",
    "autorecovery.recovery_failed": "maintenance",
    "autorecovery.recovery_requested": "maintenance",
    "bookie.read_only_asked": "maintenance",
    "formats.level_rose": "maintenance",
    "gc.run_asked": "maintenance",
    "log.level_changed": "maintenance",
}
"""The kind of each event. A line of the log that is not named here is no event."""


def bounded(values: Mapping[str, object]) -> dict[str, Any]:
    """Return a line's values as JSON has them; of more than VALUES_BYTES_MAX the reason and the beginning."""
    text = printable_json(dict(values))
    if len(text) > VALUES_BYTES_MAX:
        reason = str(values.get("reason", ""))[: VALUES_BYTES_MAX // 4]
        start = text[: VALUES_BYTES_MAX // 4].decode("utf-8", "replace")
        return {"reason": reason, "cut_bytes": len(text), "start": start}
    found: dict[str, Any] = msgspec.json.decode(text)
    return found


LIMIT_MAX = 1000
"""Events of one answer."""
LIMIT_DEFAULT = 200
LATEST = "9999"
"""Sorts behind every moment: moments compare as text."""

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
