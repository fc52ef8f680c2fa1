"""Worlds that begin with too few bookies: the ledger names some that are away, and marks what they owe (INV-E4)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from fastbk.model.ids import BookieId
from fastbk.placement.partial import choose_partial_ensemble
from fastbk.placement.values import BookieView
from tests.simulation.client import PLACEMENT

if TYPE_CHECKING:
    from tests.simulation.plan import Plan
    from tests.simulation.world import World

SHARE = 0.3
"""Of the worlds whose quorums allow it."""


def draw_away(plan: Plan) -> int:
    """Return how many of the ledger's bookies are away when it is created; other draws of the seed stay as they are."""
    rng = random.Random(f"away {plan.seed}")
    most = plan.write_quorum - plan.ack_quorum
    if plan.ensemble != plan.write_quorum or not most or rng.random() >= SHARE:
        return 0
    return rng.randint(1, most)


def send_away(world: World) -> frozenset[BookieId]:
    """End all bookies but Qw - `away`; each comes back some time. Return those that are left."""
    plan = world.plan
    rng = random.Random(f"who is away {plan.seed}")
    left = frozenset(rng.sample(plan.bookies, plan.write_quorum - plan.away))
    for name in plan.bookies:
        if name not in left:
            bookie = world.bookies[name]
            bookie.crash(1.0, False)
            back_s = rng.choice((0.05, 0.5, 2.0)) * rng.random() * plan.duration_s
            world.kernel.after(0.02 + back_s, bookie, bookie.start)
    return left


def ensemble_without(
    world: World, left: frozenset[BookieId]
) -> tuple[list[BookieId], frozenset[BookieId]]:
    """Return an ensemble by the product's placement, and which of it are away."""
    plan = world.plan
    up, away = (
        [BookieView(name) for name in plan.bookies if (name in left) is is_up]
        for is_up in (True, False)
    )
    quorums = (plan.ensemble, plan.write_quorum, plan.ack_quorum)
    rng = random.Random(f"ensemble {plan.seed}")
    chosen = choose_partial_ensemble(up, away, *quorums, PLACEMENT, rng)
    return list(chosen.bookies), chosen.away
