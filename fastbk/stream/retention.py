"""What of a stream is still needed: pure (INV-S9).

T = max(trim, hard point, min(policy point, cursor point)). A policy point is the first segment of which something is
within both the age and the size that are kept; so at least that much is kept, and up to a segment more. Only explicit
truncation is exact to the record. A time that lies ahead of this machine's clock keeps nothing for ever: `_ended_us`.

Rows in pages are looked at by pages first: all of a page goes, or none, or its rows have to be read (`page_needed`).

Decisions 140 and 149.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from fastbk.stream.chain import Chain, PageRef, Segment, made_behind_us
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN

Item = PageRef | Segment
"""A closed segment, or a page of them."""


class Limits(msgspec.Struct, frozen=True):
    """What is kept at least. 0: no such limit."""

    age_s: float
    size_bytes: int


class Points(msgspec.Struct, frozen=True):
    """Numbers of the first segments that are kept, and what comes of them."""

    policy: int
    hard: int
    target: DLSN
    """T: what lies before it is not needed."""


def limits_of(policy: StreamPolicy) -> tuple[Limits, Limits]:
    """Return the limits that cursors may hold up, and those that nothing holds up."""
    soft = Limits(policy.retention_age_s, policy.retention_bytes)
    return soft, Limits(policy.hard_age_s, policy.hard_bytes)


def items_of(chain: Chain) -> list[Item]:
    """Return the closed segments that are not being deleted, in pages as far as they are."""
    pages: list[Item] = [page for page in chain.pages if page.last >= chain.deleting]
    return pages + [row for row in chain.rows if not row.is_open and row.number >= chain.deleting]


def without_sizes(policy: StreamPolicy) -> StreamPolicy:
    """Return a policy that deletes by age only."""
    return msgspec.structs.replace(policy, retention_bytes=0, hard_bytes=0)


def first_number(item: Item) -> int:
    """Return the number of an item's first segment."""
    return item.number if isinstance(item, Segment) else item.first


def last_number(item: Item) -> int:
    """Return the number of an item's last segment."""
    return item.number if isinstance(item, Segment) else item.last


def first_kept(items: Sequence[Item], limits: Limits, now_us: int, otherwise: int) -> int:
    """Return the place of the first item that has something within the limits; `otherwise` where nothing limits."""
    if not limits.age_s and not limits.size_bytes:
        return otherwise
    oldest_us = now_us - int(limits.age_s * 1e6)
    behind_bytes = sum(item.size_bytes for item in items)
    ended_us = 0
    for place, item in enumerate(items):
        behind_bytes -= item.size_bytes
        # A clock that was behind makes no segment older than those before it.
        ended_us = max(ended_us, _ended_us(items, place, now_us))
        is_old = limits.age_s > 0 and ended_us < oldest_us
        is_beyond = 0 < limits.size_bytes <= behind_bytes
        if not (is_old or is_beyond):
            return place
    return len(items)


def _ended_us(items: Sequence[Item], place: int, now_us: int) -> int:
    """Return when an item's last record was appended, as far as that can be believed (INV-S22).

    A time that has not come yet is no age. Then it counts when a segment was made that was made behind the end of this
    one, else the last time of the one behind it. Where neither is known, now counts.
    """
    last_us = items[place].last_time_us
    if last_us <= now_us:
        return last_us
    made_us = made_behind_us(items, place)
    if made_us is None and place + 1 < len(items):
        made_us = items[place + 1].last_time_us
    return now_us if made_us is None else min(made_us, now_us)


def points(
    chain: Chain, items: Sequence[Item], policy: StreamPolicy, marks: Iterable[DLSN], now_us: int
) -> Points:
    """Return the points of a stream. `marks`: of the cursors that hold. `items`: of `items_of`, pages opened or not."""

    def number(limits: Limits) -> int:
        place = first_kept(items, limits, now_us, 0)
        return first_number(items[place]) if place < len(items) else behind

    behind = last_number(items[-1]) + 1 if items else chain.deleting
    by_policy, by_hard = map(number, limits_of(policy))
    point = DLSN(by_policy, 0, 0)
    if policy.hold_for_cursors:
        point = min([point, *marks])
    return Points(by_policy, by_hard, max(chain.trim, DLSN(by_hard, 0, 0), point))


def page_needed(items: Sequence[Item], policy: StreamPolicy, now_us: int) -> PageRef | None:
    """Return a page that has to be opened before the points are exact: a limit runs through it."""
    for limits in limits_of(policy):
        place = first_kept(items, limits, now_us, len(items))
        if place < len(items):
            item = items[place]
            if isinstance(item, PageRef):
                return item
            pages = [one for one in items[place + 1 : place + 3] if isinstance(one, PageRef)]
            if pages and item.last_time_us > now_us:
                return pages[0]  # `_ended_us` asks when its segments were created
    return None


def opened(items: Sequence[Item], page: PageRef, rows: Sequence[Item], deleting: int) -> list[Item]:
    """Return the items with that page's rows in its place."""
    index = items.index(page)
    kept = [row for row in rows if first_number(row) >= deleting]
    return [*items[:index], *kept, *items[index + 1 :]]


def deletable_below(target: DLSN, row: Segment | None) -> int:
    """Return the number below which all segments end before `target`; `row`: of the target's own segment."""
    is_behind = row is not None and not row.is_open and row.last_entry_id < target.entry
    return target.segment + 1 if is_behind else target.segment
