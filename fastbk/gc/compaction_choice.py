"""Which entry logs to compact, given how full they are and how much room there is. Pure.

Compaction copies what lives in a log and then deletes the log: it costs its live bytes, in room and in writing, and
wins back the rest. So the logs with the smallest live share go first, and never more than fits above the floor, since a
disk that compaction has filled can't be compacted any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fastbk.server.gc_messages import LogUsage, Space

URGENT_RATIO_MAX = 0.95
"""On a full disk a log is rewritten that has at most this share of live bytes."""


class Choice(msgspec.Struct, frozen=True):
    """Logs to be compacted in one go, in this order, what lives in them, and what they take now."""

    log_ids: tuple[int, ...] = ()
    live_bytes: int = 0
    durable_bytes: int = 0

    @property
    def freed_bytes(self) -> int:
        """What is won back when all of it is done."""
        return self.durable_bytes - self.live_bytes

    def __bool__(self) -> bool:
        return bool(self.log_ids)


def live_ratio(log: LogUsage) -> float:
    """Return which share of a log lives, 0 to 1; an empty log lives not at all."""
    return min(1.0, log.live_bytes / log.durable_bytes) if log.durable_bytes > 0 else 0.0


def dead_logs(logs: Iterable[LogUsage]) -> list[int]:
    """Return the ids of logs that nothing lives in: they go without being compacted."""
    return [log.log_id for log in logs if log.sealed and log.live_bytes <= 0]


def room_bytes(space: Space) -> int:
    """Return how much compaction may write before it has deleted anything."""
    return max(0, space.free_bytes - space.floor_bytes)


def choose(
    logs: Sequence[LogUsage], ratio_max: float, room: int, live_bytes_max: int, logs_max: int
) -> Choice:
    """Return what to compact next, the logs with the smallest live share first; nothing when none is below the ratio.

    Args:
        logs: all there are.
        ratio_max: only logs of which a smaller share lives, 0 to 1.
        room: bytes that may be written before anything is deleted.
        live_bytes_max: most to be moved in one go; a single log may have more.
        logs_max: most logs in one go.
    """
    below = [
        log for log in logs if log.sealed and log.live_bytes > 0 and live_ratio(log) < ratio_max
    ]
    below.sort(key=lambda log: (live_ratio(log), log.live_bytes, log.log_id))
    return _as_many_as_fit(below, room, live_bytes_max, logs_max)


def choose_urgently(logs: Sequence[LogUsage], room: int, logs_max: int) -> Choice:
    """Return the logs that are the cheapest to compact, for a full disk: what little room there is must do.

    They take half of it at most, but for a single log that needs more: whatever is written meanwhile needs some, too.
    """
    worth_it = [
        log
        for log in logs
        if log.sealed and log.live_bytes > 0 and live_ratio(log) <= URGENT_RATIO_MAX
    ]
    worth_it.sort(key=lambda log: (log.live_bytes, live_ratio(log), log.log_id))
    return _as_many_as_fit(worth_it, room, room // 2, logs_max)


def _as_many_as_fit(
    logs: Sequence[LogUsage], room: int, live_bytes_max: int, logs_max: int
) -> Choice:
    """Return the first logs that fit; one that is too large is passed over, not waited for."""
    chosen: list[int] = []
    live_bytes = durable_bytes = 0
    for log in logs:
        after_bytes = live_bytes + log.live_bytes
        if len(chosen) == logs_max:
            break
        if after_bytes > room or (chosen and after_bytes > live_bytes_max):
            continue
        chosen.append(log.log_id)
        live_bytes = after_bytes
        durable_bytes += log.durable_bytes
    return Choice(tuple(chosen), live_bytes, durable_bytes)
