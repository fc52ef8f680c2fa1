"""INV-P2: a choice looks at a bounded number of placements, whatever the topology."""

from __future__ import annotations

import random

import pytest

from fastbk.errors import NotEnoughBookies
from fastbk.placement.api import BookieView, PlacementConfig, choose_ensemble
from fastbk.placement.candidates import gather
from fastbk.placement.rules import rules_of
from fastbk.placement.search import Ring, best_arrangement


def hard_topology() -> list[BookieView]:
    """Return a topology on which counting shows nothing and depth-first search goes on for ever.

    Racks of different sizes, with just enough room: twelve positions, every three of them on three racks.
    """
    sizes = [1, 1, 1, 1, 2, 2, 2, 3]
    return [
        BookieView(f"r{rack}b{number}:1", location=f"/region/rack{rack}")
        for rack, size in enumerate(sizes)
        for number in range(size)
    ]


def test_a_search_ends_after_its_steps_and_says_that_it_is_not_certain() -> None:
    config = PlacementConfig(policy="zone", search_steps_max=64)
    bookies = [
        BookieView(f"b{number}:1", location=f"/zone{number % 3}/domain{number % 30}")
        for number in range(300)
    ]
    pool = gather(bookies, config, {}, random.Random(1)).ranked
    found = best_arrangement(pool, Ring(64, 32), rules_of(config, 32), "zone", 64)
    assert found.chosen is not None
    assert len(set(found.chosen.values())) == 64
    assert not found.is_certain  # INV-P2


def test_an_enforced_search_that_runs_out_of_steps_says_so() -> None:
    config = PlacementConfig(
        policy="rack", enforce=True, min_racks_per_write_quorum=3, search_steps_max=64
    )
    outcomes = set()
    for seed in range(200):
        try:
            choose_ensemble(hard_topology(), 13, 3, 2, config, random.Random(seed))
            outcomes.add("found")
        except NotEnoughBookies as error:
            outcomes.add("steps" if "64 steps" in str(error) else "none")
    assert "none" not in outcomes


@pytest.mark.parametrize("policy", ["spread", "rack", "region", "zone"])
def test_a_thousand_bookies_are_no_trouble(policy: str) -> None:
    config = PlacementConfig(policy=policy, enforce=True, weighted=True)  # type: ignore[arg-type]
    bookies = [
        BookieView(
            f"b{number}:1", location=f"/r{number % 7}/k{number}", free_bytes=number * 1_000_000
        )
        for number in range(1000)
    ]
    for ensemble, write_quorum in ((3, 3), (7, 3), (64, 5)):
        chosen = choose_ensemble(bookies, ensemble, write_quorum, 2, config, random.Random(3))
        assert len(set(chosen)) == ensemble
