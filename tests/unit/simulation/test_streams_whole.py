"""Readers, cursors, truncation and janitors in simulation: fresh seeds find nothing, planted faults are found.

INV-S1 to INV-S4, INV-S7 to INV-S11.
"""

from __future__ import annotations

import random

import pytest

from fastbk.invariant import InvariantError
from tests.simulation.planting import Mutation, first_to_find
from tests.simulation.streams.facts import Broken
from tests.simulation.streams.loop import Stuck
from tests.simulation.streams.mutations_whole import MUTATIONS
from tests.simulation.streams.whole import run_whole

FRESH_SEEDS = 30
WORLDS_MAX = 100


def test_no_fresh_seed_breaks_anything(rng: random.Random) -> None:
    for _ in range(FRESH_SEEDS):
        seed = rng.getrandbits(40)
        try:
            run_whole(seed)
        except BaseException:
            print(f"./dev sim STREAMS=1 SEED={seed} WORLDS=whole")
            raise


@pytest.mark.parametrize(
    ("mutation", "seed"), [pytest.param(*one, id=one[0].name) for one in MUTATIONS]
)
def test_a_planted_fault_is_found(mutation: Mutation, seed: int) -> None:
    """By its seed; or by another one, since any change of the product makes other worlds of the same seeds."""
    found = first_to_find(
        mutation, run_whole, (seed, *range(WORLDS_MAX)), (Broken, InvariantError, Stuck)
    )
    assert found is not None, f"{WORLDS_MAX} worlds do not find {mutation.name}"
