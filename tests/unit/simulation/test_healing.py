"""AutoRecovery in simulation: fresh seeds find nothing, and each planted fault is found by its seed.

INV-H1, INV-H2, INV-H3, INV-H5. `./dev sim HEALING=1000` runs many more seeds.
"""

from __future__ import annotations

import random

import pytest

from tests.simulation.finding import is_found
from tests.simulation.healing.mutations import MUTATIONS
from tests.simulation.healing.world import live_world
from tests.simulation.planting import Mutation

FRESH_SEEDS = 4
WORLDS_MAX = 30


@pytest.mark.slow
def test_no_seed_breaks_anything(rng: random.Random) -> None:
    """Neither fresh seeds nor, without their faults, those of the faults."""
    fresh = [rng.getrandbits(40) for _ in range(FRESH_SEEDS)]
    for seed in (*fresh, *sorted({one.seed for one in MUTATIONS})):
        try:
            live_world(seed)
        except BaseException:
            print(f"./dev sim HEALING=1 REPLAY={seed}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda value: value.name)
def test_a_planted_fault_is_found(mutation: Mutation) -> None:
    """By its seed; or by another one, since any change of the product makes other worlds of the same seeds.

    `./dev sim HEALING=1 MUTATIONS=1 SEED=0 ONLY=name` names the seed of a quick world.
    """
    seeds = (mutation.seed, *range(WORLDS_MAX))
    is_seen = any(is_found(mutation, live_world, seed) for seed in seeds)
    assert is_seen, f"{WORLDS_MAX} worlds do not find {mutation.name}"


def test_a_seed_is_one_world() -> None:
    first, second = live_world(5), live_world(5)
    assert (first.events, first.copies) == (second.events, second.copies)
