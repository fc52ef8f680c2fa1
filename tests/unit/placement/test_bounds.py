"""INV-P2: a choice looks at a bounded number of placements, whatever the topology."""

from __future__ import annotations

import random

import pytest

from fastbk.errors import NotEnoughBookies
from fastbk.placement.candidates import gather
from fastbk.placement.choose_ensemble import BookieView, PlacementConfig, choose_ensemble
from fastbk.placement.rules import rules_of
from fastbk.placement.search import Ring, Steps, best_arrangement


def racks_of(*sizes: int) -> list[BookieView]:
    """Return bookies in racks of these sizes."""
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
    found = best_arrangement(pool, Ring(64, 32), rules_of(config, 32), "zone", Steps(64))
    assert found.chosen is not None
    assert len(set(found.chosen.values())) == 64
    assert not found.is_certain  # INV-P2


@pytest.mark.parametrize(
    ("sizes", "quorums", "racks", "exists"),
    [((1, 1, 1, 2, 3, 4), (12, 9, 5), 5, True), ((1, 2, 3), (6, 4, 3), 3, False)],
)
def test_an_enforced_search_says_whether_it_knows(
    sizes: tuple[int, ...], quorums: tuple[int, int, int], racks: int, exists: bool
) -> None:
    """INV-P2: too few steps are not a proof, and the message does not say so."""

    def choose(steps: int) -> tuple[str, ...]:
        config = PlacementConfig(
            policy="rack", enforce=True, min_racks_per_write_quorum=racks, search_steps_max=steps
        )
        return choose_ensemble(racks_of(*sizes), *quorums, config, random.Random(1))

    with pytest.raises(NotEnoughBookies, match="no choice that was tried in 64 steps"):
        choose(64)
    if exists:
        assert len(choose(4000)) == quorums[0]
    else:
        with pytest.raises(NotEnoughBookies, match="no choice of the"):
            choose(4000)


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
