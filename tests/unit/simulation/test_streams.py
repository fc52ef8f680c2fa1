"""Streams in simulation: fresh seeds find nothing, and each planted fault is found by its seed.

INV-S1, INV-S2, INV-S3, INV-S5, INV-S6, INV-S8.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from fastbk.invariant import InvariantError
from tests.simulation.planting import Mutation, first_to_find
from tests.simulation.streams.facts import Broken
from tests.simulation.streams.loop import Clock, Stuck, run_simulated
from tests.simulation.streams.mutations import MUTATIONS
from tests.simulation.streams.world import run_seed

FRESH_SEEDS = 250
WORLDS_MAX = 100


def test_no_fresh_seed_breaks_anything(rng: random.Random) -> None:
    for _ in range(FRESH_SEEDS):
        seed = rng.getrandbits(40)
        try:
            run_seed(seed)
        except BaseException:
            print(f"./dev sim STREAMS=1 SEED={seed}")
            raise


@pytest.mark.parametrize(
    ("mutation", "seed"), [pytest.param(*one, id=one[0].name) for one in MUTATIONS]
)
def test_a_planted_fault_is_found(mutation: Mutation, seed: int) -> None:
    """By its seed; or by another one, since any change of the product makes other worlds of the same seeds."""
    run_seed(seed)
    found = first_to_find(
        mutation, run_seed, (seed, *range(WORLDS_MAX)), (Broken, InvariantError, Stuck)
    )
    assert found is not None, f"{WORLDS_MAX} worlds do not find {mutation.name}"


def test_what_waits_for_ever_is_said() -> None:
    async def main(clock: Clock) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        run_simulated(main)
