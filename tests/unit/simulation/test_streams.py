"""Streams in simulation: fresh seeds find nothing, and each planted fault is found by its seed.

Writers alone: INV-S1, INV-S2, INV-S3, INV-S5, INV-S6, INV-S8. Names: INV-S12. Patterns: INV-S10, INV-S20.
Readers, cursors, truncation and janitors: INV-S1 to INV-S4, INV-S7 to INV-S11.
`./dev sim STREAMS=1000` runs many more seeds.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.simulation.finding import is_found
from tests.simulation.planting import Mutation
from tests.simulation.streams.loop import Clock, Stuck, run_simulated
from tests.simulation.streams.running import KINDS, MUTATIONS_OF

FRESH_SEEDS = {"writers": 60, "whole": 8, "names": 8, "patterns": 4, "producers": 200}
WORLDS_MAX = {"writers": 100, "whole": 100, "names": 300, "patterns": 100, "producers": 100}
FOUND = {
    "writers": (400433623918,),
    "whole": (828373148677,),
    "patterns": (621820438517,),
}
"""Seeds that once found something: a wait of less than a clock's resolution was begun for ever; the judge took a time
that had not come yet, after a clock was set back, for a segment's age; a cursor whose mark lay behind the last record
of a segment that was deleted told of a gap."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_seed_breaks_anything(kind: str, rng: random.Random) -> None:
    """Neither fresh seeds nor, without their faults, those of the faults."""
    fresh = [rng.getrandbits(40) for _ in range(FRESH_SEEDS[kind])]
    of_faults = sorted({one.seed for one in MUTATIONS_OF[kind]})
    for seed in (*FOUND.get(kind, ()), *fresh, *of_faults):
        try:
            KINDS[kind](seed)
        except BaseException:
            print(f"./dev sim STREAMS=1 REPLAY={seed} WORLDS={kind}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mutation"),
    [(kind, one) for kind, table in MUTATIONS_OF.items() for one in table],
    ids=lambda value: value.name if isinstance(value, Mutation) else value,
)
def test_a_planted_fault_is_found(kind: str, mutation: Mutation) -> None:
    """By its seed; or by another one, since any change of the product makes other worlds of the same seeds.

    `./dev sim STREAMS=1 MUTATIONS=1 SEED=0 WORLDS=kind ONLY=name` names the seed of a quick world.
    """
    seeds = (mutation.seed, *range(WORLDS_MAX[kind]))
    is_seen = any(is_found(mutation, KINDS[kind], seed) for seed in seeds)
    assert is_seen, f"{WORLDS_MAX[kind]} worlds do not find {mutation.name}"


def test_what_waits_for_ever_is_said() -> None:
    async def main(clock: Clock) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        run_simulated(main)
