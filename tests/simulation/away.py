"""Worlds that begin with too few bookies: the ledger names some that are away or read-only, and marks what they owe.

INV-E4.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from fastbk.model.ids import BookieId
from fastbk.placement.choose_ensemble import choose_partial_ensemble
from fastbk.placement.config import BookieView, PlacementConfig

if TYPE_CHECKING:
    from tests.simulation.plan import Plan
    from tests.simulation.world import World

SHARE = 0.3
"""Of the worlds whose quorums allow it."""
READ_ONLY_SHARE = 0.4
"""Of the bookies that take no adds when the ledger is created: they are read-only, the others are down."""


def draw_away(plan: Plan) -> int:
    """Return how many of the ledger's bookies are away when it is created; other draws of the seed stay as they are."""
    rng = random.Random(f"away {plan.seed}")
    most = plan.write_quorum - plan.ack_quorum
    if plan.ensemble != plan.write_quorum or not most or rng.random() >= SHARE:
        return 0
    return rng.randint(1, most)


def send_away(world: World) -> list[BookieView]:
    """End all bookies but Qw - `away`, or make them read-only; each comes back some time. Return those that are up."""
    plan = world.plan
    rng = random.Random(f"who is away {plan.seed}")
    how = random.Random(f"who is read-only {plan.seed}")
    left = frozenset(rng.sample(plan.bookies, plan.write_quorum - plan.away))
    up = [BookieView(name) for name in plan.bookies if name in left]
    for name in plan.bookies:
        if name not in left:
            bookie = world.bookies[name]
            back_s = rng.choice((0.05, 0.5, 2.0)) * rng.random() * plan.duration_s
            if how.random() < READ_ONLY_SHARE:
                bookie.set_writable(False)
                up.append(BookieView(name, writable=False))
                world.kernel.after(0.02 + back_s, bookie, bookie.set_writable, True)
            else:
                bookie.crash(1.0, False)
                world.kernel.after(0.02 + back_s, bookie, bookie.start)
    return up


def ensemble_without(
    world: World, up: list[BookieView]
) -> tuple[list[BookieId], frozenset[BookieId]]:
    """Return an ensemble by the product's placement, and which of it take no adds; `up`: what `send_away` left."""
    plan = world.plan
    known = {view.bookie_id for view in up}
    away = [BookieView(name) for name in plan.bookies if name not in known]
    quorums = (plan.ensemble, plan.write_quorum, plan.ack_quorum)
    rng = random.Random(f"ensemble {plan.seed}")
    chosen = choose_partial_ensemble(up, away, *quorums, PlacementConfig(), rng)
    return list(chosen.bookies), chosen.away
