"""Streams in simulation: fresh seeds find nothing, and each planted fault is found by its seed.

Writers alone: INV-S1, INV-S2, INV-S3, INV-S5, INV-S6, INV-S8. Names: INV-S12.
Readers, cursors, truncation and janitors: INV-S1 to INV-S4, INV-S7 to INV-S11.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from fastbk.invariant import InvariantError
from tests.simulation.planting import Mutation, first_to_find
from tests.simulation.streams import mutations, mutations_names, mutations_whole
from tests.simulation.streams.facts import Broken
from tests.simulation.streams.loop import Clock, Stuck, run_simulated
from tests.simulation.streams.running import KINDS

FRESH_SEEDS = {"writers": 250, "whole": 30, "names": 25}
FOUND = {"writers": (400433623918,)}
"""Seeds that once found something: a wait of less than a clock's resolution was begun for ever."""

WORLDS_MAX = {"writers": 100, "whole": 100, "names": 300}
MUTATIONS = {
    "writers": mutations.MUTATIONS,
    "whole": mutations_whole.MUTATIONS,
    "names": mutations_names.MUTATIONS,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_seed_breaks_anything(kind: str, rng: random.Random) -> None:
    """Neither fresh seeds nor, without their faults, those of the faults."""
    fresh = [rng.getrandbits(40) for _ in range(FRESH_SEEDS[kind])]
    for seed in (*FOUND.get(kind, ()), *fresh, *{one.seed for one in MUTATIONS[kind]}):
        try:
            KINDS[kind](seed)
        except BaseException:
            print(f"./dev sim STREAMS=1 SEED={seed} WORLDS={kind}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mutation"),
    [(kind, one) for kind, table in MUTATIONS.items() for one in table],
    ids=lambda value: value.name if isinstance(value, Mutation) else value,
)
def test_a_planted_fault_is_found(kind: str, mutation: Mutation) -> None:
    """By its seed; or by another one, since any change of the product makes other worlds of the same seeds."""
    seeds = (mutation.seed, *range(WORLDS_MAX[kind]))
    found = first_to_find(mutation, KINDS[kind], seeds, (Broken, InvariantError, Stuck))
    assert found is not None, f"{WORLDS_MAX[kind]} worlds do not find {mutation.name}"


def test_what_waits_for_ever_is_said() -> None:
    async def main(clock: Clock) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        run_simulated(main)
