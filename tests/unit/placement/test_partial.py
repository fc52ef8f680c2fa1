"""Ensembles of new ledgers where too few bookies take adds: smaller ones, then some that name missing bookies."""

from __future__ import annotations

import random

import pytest

from fastbk.errors import NotEnoughBookies
from fastbk.placement.choose_ensemble import ChosenEnsemble, choose_partial_ensemble
from fastbk.placement.config import BookieView, PlacementConfig

SPREAD = PlacementConfig()


def choose(
    up: str, away: str, quorums: tuple[int, int, int], config: PlacementConfig = SPREAD
) -> ChosenEnsemble:
    views, absent = ([BookieView(name) for name in names] for names in (up, away))
    return choose_partial_ensemble(views, absent, *quorums, config, random.Random(1))


@pytest.mark.parametrize("up", ["abcde", "abcd", "abc"])
def test_the_ensemble_shrinks_to_what_is_up_down_to_the_write_quorum(up: str) -> None:
    found = choose(up, "xyz", (5, 3, 2))
    assert (sorted(found.bookies), found.away) == (sorted(up), frozenset())


def test_below_the_write_quorum_the_missing_places_name_away_bookies() -> None:
    """INV-E4: at least Qa members are up."""
    found = choose("ab", "xy", (5, 3, 2))
    assert (len(found.bookies), sorted(found.up), found.away) == (3, ["a", "b"], {"x"})
    found = choose("abc", "xyz", (5, 5, 3))
    assert (sorted(found.up), found.away) == (["a", "b", "c"], {"x", "y"})


@pytest.mark.parametrize(
    ("up", "away", "quorums"),
    [
        ("a", "xyz", (3, 3, 2)),  # fewer than the ack quorum
        ("", "xyz", (1, 1, 1)),
        ("ab", "xyz", (3, 3, 3)),  # every copy is needed
        ("ab", "", (3, 3, 2)),  # no other bookie ever was there
        ("ab", "ab", (3, 3, 2)),
    ],
)
def test_what_cannot_begin_is_refused(up: str, away: str, quorums: tuple[int, int, int]) -> None:
    with pytest.raises(NotEnoughBookies):
        choose(up, away, quorums)


@pytest.mark.parametrize(
    ("up", "read_only", "away", "quorums", "named"),
    [
        ("ab", "r", "", (3, 3, 2), "r"),
        # before those that are away: it answers fences and reads
        (
            "ab",
            "r",
            "xy",
            (3, 3, 2),
            "r",
        ),
        ("abc", "r", "xy", (5, 5, 3), "rx"),
        ("abcd", "r", "x", (5, 3, 2), ""),  # a smaller ensemble owes nothing
    ],
)
def test_read_only_bookies_are_named_before_away_ones(
    up: str, read_only: str, away: str, quorums: tuple[int, int, int], named: str
) -> None:
    views = [BookieView(name, writable=name in up) for name in read_only + up]
    absent = [BookieView(name) for name in away]
    found = choose_partial_ensemble(views, absent, *quorums, SPREAD, random.Random(1))
    assert (sorted(found.up), found.away) == (sorted(up), set(named))


@pytest.mark.parametrize(("up", "quorums"), [("a", (3, 3, 2)), ("ab", (3, 3, 3))])
def test_a_read_only_bookie_never_counts_for_the_ack_quorum(
    up: str, quorums: tuple[int, int, int]
) -> None:
    views = [BookieView(name, writable=name in up) for name in "abrs"]
    with pytest.raises(NotEnoughBookies) as refused:
        choose_partial_ensemble(views, [], *quorums, SPREAD, random.Random(1))
    assert refused.value.replicas["r"] == "read-only"


def test_enforced_minimums_and_hard_groups_hold_for_away_bookies() -> None:
    racks = PlacementConfig(policy="rack", enforce=True)
    up = [BookieView("a", location="/r/1"), BookieView("b", location="/r/1")]
    away = [BookieView("x", location="/r/1"), BookieView("y", location="/r/2")]
    found = choose_partial_ensemble(up, away, 3, 3, 2, racks, random.Random(1))
    assert found.away == {"y"}
    with pytest.raises(NotEnoughBookies):
        choose_partial_ensemble(up, away[:1], 3, 3, 2, racks, random.Random(1))
    group = PlacementConfig(group="ssd", group_is_hard=True)
    up = [BookieView(name, labels=frozenset({"ssd"})) for name in "ab"]
    with pytest.raises(NotEnoughBookies):
        choose_partial_ensemble(up, [BookieView("x")], 3, 3, 2, group, random.Random(1))
