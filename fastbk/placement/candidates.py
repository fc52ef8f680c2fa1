"""Who may be taken, why others may not, and in which random order.

Every candidate draws one ticket: an exponential variable divided by its weight. Taking the smallest tickets first
is a weighted choice without repetition, and it stays one within any group of bookies, so that the search for an
arrangement only follows tickets and draws nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from fastbk.model.ids import BookieId
from fastbk.placement.values import BookieView, Chance, PlacementConfig

# The first tier is taken first, a later one only when there are too few before it.
WANTED_TIER = 0
OUTSIDE_GROUP_TIER = 1
QUARANTINED_TIER = 2
QUARANTINED_OUTSIDE_GROUP_TIER = 3
TIER_COUNT = 4

# A bookie that says it is full, but writable, is still drawn now and then.
_WEIGHT_FLOOR = 1e-3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A bookie that may be taken; smaller tickets are taken first."""

    view: BookieView
    tier: int
    ticket: float


@dataclass(frozen=True, slots=True)
class Candidates:
    """All that may be taken, by ticket, and why the others may not."""

    ranked: list[Candidate]
    left_out: dict[BookieId, str] = field(default_factory=dict)

    def pools(self, needed: int) -> list[list[Candidate]]:
        """Return growing sets to choose `needed` from: each has one tier more; none if all are too few.

        A later one serves only when an enforced rule cannot be kept with those before it.
        """
        tiers = sorted({one.tier for one in self.ranked})
        pools = [[one for one in self.ranked if one.tier <= tier] for tier in tiers]
        return [pool for pool in pools if len(pool) >= needed]


def gather(
    bookies: Sequence[BookieView],
    config: PlacementConfig,
    left_out: Mapping[BookieId, str],
    rng: Chance,
) -> Candidates:
    """Sort `bookies` into candidates and those left out, `left_out` among them. Draws one number a candidate."""
    reasons: dict[BookieId, str] = {}
    eligible: dict[BookieId, tuple[BookieView, int]] = {}
    for view in bookies:
        tier = _tier(view, config)
        if view.bookie_id in left_out:
            reasons[view.bookie_id] = left_out[view.bookie_id]
        elif not view.writable:
            why = f": {view.reads_only_reason}" if view.reads_only_reason else ""
            reasons[view.bookie_id] = f"read-only{why}"
        elif tier is None:
            reasons[view.bookie_id] = f"not in the group {config.group!r}"
        else:
            eligible.setdefault(view.bookie_id, (view, tier))
    weights = _weights([view for view, _ in eligible.values()], config)
    ranked = [
        Candidate(view, tier, -math.log(1.0 - rng.random()) / weight)
        for (view, tier), weight in zip(eligible.values(), weights, strict=True)
    ]
    ranked.sort(key=lambda one: one.ticket)
    return Candidates(ranked, reasons)


def _tier(view: BookieView, config: PlacementConfig) -> int | None:
    """Return the tier of a bookie, None if its group may never be served by it."""
    is_inside = config.group is None or config.group in view.labels
    if not is_inside and config.group_is_hard:
        return None
    if view.quarantined:
        return QUARANTINED_TIER if is_inside else QUARANTINED_OUTSIDE_GROUP_TIER
    return WANTED_TIER if is_inside else OUTSIDE_GROUP_TIER


def _weights(views: Sequence[BookieView], config: PlacementConfig) -> list[float]:
    """Return a weight above 0 for each bookie: its free space in medians, 1 where that is not known."""
    known = [view.free_bytes for view in views if view.free_bytes is not None]
    middle = median(known) if known else 0
    if not config.weighted or middle <= 0:
        return [1.0] * len(views)
    return [
        1.0
        if view.free_bytes is None
        else min(max(view.free_bytes / middle, _WEIGHT_FLOOR), config.weight_multiple_max)
        for view in views
    ]
