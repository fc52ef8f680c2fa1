"""Replacing bad bookies: who comes, what stays, what a partial answer holds, and what is wrong with an ensemble."""

from __future__ import annotations

import random

import pytest

from fastbk.errors import ConfigError, NotEnoughBookies
from fastbk.placement.choose_ensemble import (
    BookieView,
    PlacementConfig,
    choose_replacements,
    placement_faults,
)

SPREAD = PlacementConfig()
RACK = PlacementConfig(policy="rack")
RACK_ENFORCED = PlacementConfig(policy="rack", enforce=True)
SEEDS = range(50)


def racks(**names: str) -> list[BookieView]:
    """Return one bookie for each letter of each rack."""
    return [
        BookieView(name, location=f"/r/{rack}")
        for rack, letters in names.items()
        for name in letters
    ]


def test_nothing_bad_needs_nothing() -> None:
    assert choose_replacements([], ["a", "b"], (), 2, 2, SPREAD, random.Random(1)) == {}


def test_replacements_are_new_and_distinct() -> None:
    for seed in SEEDS:
        found = choose_replacements(
            racks(x="abcdefg"),
            ["a", "b", "c"],
            [0, 2],
            2,
            2,
            SPREAD,
            random.Random(seed),
            exclude={"g"},
        )
        assert set(found) == {0, 2}
        assert len(set(found.values())) == 2
        assert set(found.values()) <= set("def")


def test_a_soft_minimum_gives_way_and_an_enforced_one_refuses() -> None:
    bookies = racks(x="aceg", y="bd")
    question = (bookies, ["a", "b", "c", "d"], [1], 2, 2)
    assert choose_replacements(*question, RACK, random.Random(1))[1] in "eg"
    with pytest.raises(NotEnoughBookies, match="2 racks in every write set") as info:
        choose_replacements(*question, RACK_ENFORCED, random.Random(1))
    assert info.value.replicas["d"] == "already in the ensemble"
    assert "it is at /r/x" in info.value.replicas["e"]
    assert choose_replacements(*question, RACK_ENFORCED, random.Random(1), partial=True) == {}


def test_a_write_set_that_is_broken_elsewhere_does_not_stop_a_replacement() -> None:
    bookies = racks(x="abz", y="cde")
    found = choose_replacements(
        bookies, ["a", "b", "c", "d"], [2], 2, 2, RACK, random.Random(1), exclude={"z"}
    )
    assert found == {2: "e"}
    # d's write sets are c-d and d-a; a-b, broken as it is, holds no replaced index.
    found = choose_replacements(
        racks(x="abz", y="ce", w="d"), ["a", "b", "c", "d"], [3], 2, 2, RACK_ENFORCED, random.Random(1),
        exclude={"e"}, partial=True,
    )  # fmt: skip
    assert found == {}
    found = choose_replacements(
        racks(x="abz", y="ce", w="dv"),
        ["a", "b", "c", "d"],
        [3],
        2,
        2,
        RACK_ENFORCED,
        random.Random(1),
    )
    assert found == {3: "v"}


def test_a_partial_answer_serves_the_neediest_write_set_first() -> None:
    ensemble = ["a", "b", "c", "d", "e"]
    for seed in SEEDS:
        found = choose_replacements(
            racks(x="abcdez"), ensemble, [0, 2, 3], 2, 1, SPREAD, random.Random(seed), partial=True
        )
        assert found == {2: "z"}  # 2-3 is all bad, 4-0 is not
    with pytest.raises(NotEnoughBookies, match="3 bookies are needed, but only 1 can be used"):
        choose_replacements(racks(x="abcdez"), ensemble, [0, 2, 3], 2, 1, SPREAD, random.Random(1))


@pytest.mark.parametrize("bad", [[-1], [3]])
def test_indexes_that_are_none_are_refused(bad: list[int]) -> None:
    with pytest.raises(ConfigError, match="indexes of the 3"):
        choose_replacements(racks(x="abcd"), ["a", "b", "c"], bad, 2, 2, SPREAD, random.Random(1))


def test_faults_name_the_write_set_and_what_it_lacks() -> None:
    bookies = racks(x="ab", y="cd")
    assert placement_faults(bookies, ["a", "c", "b", "d"], 2, 2, RACK) == []
    assert placement_faults(bookies, ["a", "b", "c", "d"], 2, 2, SPREAD) == []
    first, second = placement_faults(bookies, ["a", "b", "c", "d"], 2, 2, RACK)
    assert first == "the write set a, b spans 1 rack (/r/x), the minimum is 2"
    assert second.startswith("the write set c, d spans 1")


def test_faults_count_repeats_groups_and_bookies_nobody_knows() -> None:
    config = PlacementConfig(policy="rack", group="gold")
    bookies = [
        BookieView("a", location="/r/x", labels=frozenset({"gold"})),
        BookieView("b", location="/r/y"),
    ]
    assert placement_faults(bookies, ["a", "a", "b"], 3, 2, config) == [
        "a is 2 times in the ensemble",
        "b is not in the group 'gold'",
    ]
    (fault,) = placement_faults(bookies, ["gone", "lost"], 2, 2, config)
    assert "1 rack (/default-region/default-rack)" in fault


def test_regions_and_zones_are_faults_by_their_minimums_only() -> None:
    bookies = [
        BookieView("a", location="/x/1"),
        BookieView("b", location="/x/2"),
        BookieView("c", location="/y/1"),
    ]
    (fault,) = placement_faults(bookies, ["a", "b"], 2, 2, PlacementConfig(policy="region"))
    assert "1 region (/x)" in fault
    assert placement_faults(bookies, ["a", "b", "c"], 3, 2, PlacementConfig(policy="zone")) == []
