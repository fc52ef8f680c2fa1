"""Namespaces and names of streams in simulation: fresh seeds find nothing, planted faults are found. INV-S12."""

from __future__ import annotations

import random

import pytest

from fastbk.invariant import InvariantError
from tests.simulation.planting import Mutation, planted
from tests.simulation.streams.facts import Broken
from tests.simulation.streams.loop import Stuck
from tests.simulation.streams.mutations_names import MUTATIONS
from tests.simulation.streams.naming import run_names

FRESH_SEEDS = 25
WORLDS_MAX = 300


def test_no_fresh_seed_breaks_anything(rng: random.Random) -> None:
    for _ in range(FRESH_SEEDS):
        seed = rng.getrandbits(40)
        try:
            run_names(seed)
        except BaseException:
            print(f"./dev sim STREAMS=1 SEED={seed} WORLDS=names")
            raise


@pytest.mark.parametrize(
    ("mutation", "seed"), [pytest.param(*one, id=one[0].name) for one in MUTATIONS]
)
def test_a_planted_fault_is_found(mutation: Mutation, seed: int) -> None:
    """By its seed; or by another one, since any change of the product makes other worlds of the same seeds."""
    with planted(mutation):
        for one in (seed, *range(WORLDS_MAX)):
            try:
                run_names(one)
            except (Broken, InvariantError, Stuck):
                return
    pytest.fail(f"{WORLDS_MAX} worlds do not find {mutation.name}")
