"""Makes the plan of a failing world as small as it can: what stays is what the failure needs.

Faults and pieces of work are taken away, many at a time, then one by one, while the same invariant still breaks. The
luck of what remains does not change by that, since every link, bookie and client has a generator of its own.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

from tests.simulation.plan import Item, Plan
from tests.simulation.world import Result, run_plan


def shrink(plan: Plan, violation: str, seconds_max: float) -> tuple[Plan, Result]:
    """Return the smallest plan found that breaks the same invariant, and its result. `plan` is left as it is."""
    end_s = time.monotonic() + seconds_max
    best = copy.deepcopy(plan)
    result = run_plan(copy.deepcopy(best))

    def fails(candidate: Plan) -> bool:
        nonlocal result
        # A world changes its plan's settings while it lives.
        tried = run_plan(copy.deepcopy(candidate))
        if tried.violation != violation:
            return False
        result = tried
        return True

    is_smaller = True
    while is_smaller and time.monotonic() < end_s:
        is_smaller = False
        for name in ("faults", "work"):
            items = getattr(best, name)
            kept = _fewest(best, name, items, fails, end_s)
            if len(kept) < len(items):
                setattr(best, name, kept)
                is_smaller = True
    return best, result


def _fewest(
    plan: Plan, name: str, items: list[Item], fails: Callable[[Plan], bool], end_s: float
) -> list[Item]:
    size = max(1, len(items) // 2)
    while size >= 1 and time.monotonic() < end_s:
        at = 0
        while at < len(items) and time.monotonic() < end_s:
            fewer = items[:at] + items[at + size :]
            candidate = copy.copy(plan)
            setattr(candidate, name, fewer)
            if fails(candidate):
                items = fewer
            else:
                at += size
        size //= 2
    return items
