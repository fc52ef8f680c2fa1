"""Choosing an ensemble: who may be taken, what each policy keeps, what a refusal says, how long a search may take."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fastbk.errors import ConfigError, NotEnoughBookies
from fastbk.model.quorum import write_sets
from fastbk.placement.choose_ensemble import (
    ChosenEnsemble,
    Ring,
    Steps,
    best_arrangement,
    choose_ensemble,
    choose_partial_ensemble,
    choose_replacements,
    domains_of,
    gather,
    placement_faults,
    rules_of,
    sorted_faults,
)
from fastbk.placement.config import BookieView, PlacementConfig

SPREAD = PlacementConfig()


def at(location: str, *names: str, **known: object) -> list[BookieView]:
    """Return views of bookies `names`, all at `location`."""
    return [BookieView(name, location=location, **known) for name in names]  # type: ignore[arg-type]


def many(bookies: list[BookieView], ensemble: int, write_quorum: int, config: PlacementConfig):
    """Yield the choices of 100 seeds."""
    for seed in range(100):
        yield choose_ensemble(bookies, ensemble, write_quorum, 1, config, random.Random(seed))


def spans(
    bookies: list[BookieView], chosen: tuple[str, ...], write_quorum: int, upper: bool = False
):
    """Return how many racks (or regions) each write set has."""
    where = {view.bookie_id: domains_of(view.location, "region") for view in bookies}
    return [
        len(
            {
                where[chosen[index]].upper if upper else where[chosen[index]].whole
                for index in window
            }
        )
        for window in write_sets(len(chosen), write_quorum)
    ]


@pytest.mark.slow
def test_spread_takes_distinct_bookies_evenly() -> None:
    bookies = at("/a/b", *"abcdef")
    taken = Counter(name for chosen in many(bookies, 3, 2, SPREAD) for name in chosen)
    assert sum(taken.values()) == 300
    assert all(30 <= taken[name] <= 70 for name in "abcdef")
    assert all(len(set(chosen)) == 3 for chosen in many(bookies, 3, 2, SPREAD))


@pytest.mark.slow
def test_the_same_seed_chooses_the_same() -> None:
    bookies = at("/a/b", *"abcdefgh")
    assert list(many(bookies, 4, 2, SPREAD)) == list(many(bookies, 4, 2, SPREAD))


def test_read_only_and_excluded_bookies_are_never_taken_and_the_error_says_so() -> None:
    """INV-P1."""
    bookies = [*at("/a/b", "a", "b"), *at("/a/b", "c", writable=False), *at("/a/b", "d")]
    with pytest.raises(
        NotEnoughBookies, match=r"3 bookies are needed, but only 2 can be used \(4 are known\)"
    ) as info:
        choose_ensemble(bookies, 3, 2, 2, SPREAD, random.Random(1), exclude={"d"})
    assert info.value.replicas["c"] == "read-only"
    assert info.value.replicas["d"] == "excluded by the caller"
    assert set(info.value.replicas) == set("abcd")


def test_racks_that_cannot_span_are_refused_or_done_without() -> None:
    bookies = [*at("/r/1", "a"), *at("/r/2", "b", "c", "d")]
    for chosen in many(bookies, 4, 2, PlacementConfig(policy="rack")):
        assert sorted(spans(bookies, chosen, 2)) == [1, 1, 2, 2]
    with pytest.raises(
        NotEnoughBookies,
        match=r"no choice of the \d+ that can be used has 2 racks in every write set",
    ):
        choose_ensemble(
            bookies, 4, 2, 2, PlacementConfig(policy="rack", enforce=True), random.Random(1)
        )


def test_regions_have_even_shares_and_racks_differ_inside() -> None:
    bookies = [
        view
        for region in "xyz"
        for rack in range(3)
        for view in at(f"/{region}/{rack}", f"{region}{rack}a", f"{region}{rack}b")
    ]
    for chosen in many(bookies, 6, 3, PlacementConfig(policy="region")):
        assert Counter(name[0] for name in chosen) == {"x": 2, "y": 2, "z": 2}
        assert min(spans(bookies, chosen, 3, upper=True)) >= 2
        assert min(spans(bookies, chosen, 3)) == 3


def test_zones_span_and_upgrade_domains_differ_within_a_zone() -> None:
    bookies = [
        view
        for zone in "xy"
        for domain in range(2)
        for view in at(f"/{zone}/{domain}", f"{zone}{domain}a", f"{zone}{domain}b")
    ]
    for chosen in many(bookies, 4, 4, PlacementConfig(policy="zone")):
        assert {name[:2] for name in chosen} == {"x0", "x1", "y0", "y1"}


def test_the_local_bookie_comes_first_when_it_is_writable() -> None:
    config = PlacementConfig(local_first=True)
    others = at("/a/1", *"bcdef")
    assert all(
        chosen[0] == "a"
        for chosen in many([*others, *at("/a/1", "a", is_local=True)], 3, 2, config)
    )
    for away in ({"writable": False}, {"quarantined": True}):
        bookies = [*others, *at("/a/1", "a", is_local=True, **away)]
        assert all("a" not in chosen for chosen in many(bookies, 3, 2, config))


def test_a_hard_group_is_never_left_and_a_soft_one_only_when_too_small() -> None:
    bookies = [*at("/a/1", "g", "h", labels=frozenset({"gold"})), *at("/a/1", "s", "t")]
    soft = PlacementConfig(group="gold")
    assert all(set(chosen) == set("gh") for chosen in many(bookies, 2, 2, soft))
    assert all(set("gh") < set(chosen) for chosen in many(bookies, 3, 2, soft))
    hard = PlacementConfig(group="gold", group_is_hard=True)
    assert all(set(chosen) == set("gh") for chosen in many(bookies, 2, 2, hard))
    with pytest.raises(NotEnoughBookies) as info:
        choose_ensemble(bookies, 3, 2, 2, hard, random.Random(1))
    assert info.value.replicas["s"] == "not in the group 'gold'"


def test_weights_follow_free_space_up_to_the_multiple() -> None:
    bookies = [
        *at("/a/1", *"bcdefgh", free_bytes=100),
        *at("/a/1", "huge", free_bytes=100_000),
        *at("/a/1", "full", free_bytes=0),
        *at("/a/1", "unknown"),
    ]
    rng = random.Random(7)
    config = PlacementConfig(weighted=True, weight_multiple_max=3.0)
    taken = Counter(choose_ensemble(bookies, 1, 1, 1, config, rng)[0] for _ in range(4000))
    usual = sum(taken[name] for name in "bcdefgh") / 7
    assert 2.5 <= taken["huge"] / usual <= 3.5
    assert 0.8 <= taken["unknown"] / usual <= 1.2
    assert taken["full"] / usual < 0.05


def test_without_weights_free_space_does_not_matter() -> None:
    bookies = [*at("/a/1", "a", free_bytes=1), *at("/a/1", "b", free_bytes=1 << 40)]
    rng = random.Random(7)
    taken = Counter(choose_ensemble(bookies, 1, 1, 1, SPREAD, rng)[0] for _ in range(1000))
    assert 400 <= taken["a"] <= 600


@pytest.mark.parametrize("quorums", [(0, 0, 0), (3, 4, 2), (3, 2, 3), (65, 3, 2)])
def test_quorums_are_checked(quorums: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError):
        choose_ensemble(at("/a/1", *"abcd"), *quorums, SPREAD, random.Random(1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "near"},
        {"min_racks_per_write_quorum": 0},
        {"min_zones_per_write_quorum": 4},
        {"min_racks_per_ack_quorum": 0},
        {"min_racks_per_ack_quorum": 2},
        {"min_racks_per_ack_quorum": 3, "policy": "rack", "enforce": True},
        {"min_regions_per_ack_quorum": 2, "policy": "rack"},
        {"min_zones_per_ack_quorum": 3, "policy": "zone"},
        {"weight_multiple_max": 0.5},
        {"search_steps_max": 1},
        {"group": "a,b"},
        {"group_is_hard": True},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PlacementConfig(**wrong)  # type: ignore[arg-type]


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


# Ensembles of new ledgers where too few bookies take adds: smaller ones, then some that name
# missing bookies.


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


def test_what_acks_span_is_kept_though_nothing_is_enforced() -> None:
    """No append would ever be acknowledged otherwise (INV-Q5)."""
    config = PlacementConfig(
        policy="rack", min_racks_per_write_quorum=3, min_racks_per_ack_quorum=2
    )
    bookies = [*at("/r/1", "a", "e"), *at("/r/2", "b", "c", "d")]
    for chosen in many(bookies, 3, 3, config):
        assert spans(bookies, chosen, 3) == [2, 2, 2]
    with pytest.raises(NotEnoughBookies, match="has 2 racks in every write set"):
        choose_ensemble(bookies[2:], 3, 3, 2, config, random.Random(1))
    faults = sorted_faults(bookies, ["b", "c", "d"], 3, config)
    assert [fault.is_enforced for fault in faults] == [False, True]
    assert replaced(bookies, ["a", "b", "c"], {0}, config) == {0: "e"}
    assert replaced(bookies[:1] + bookies[2:], ["a", "b", "c"], {0}, config) == {}


def replaced(
    bookies: list[BookieView], ensemble: list[str], bad: set[int], config: PlacementConfig
) -> dict[int, str]:
    """Return who takes the place of bad members, as far as there is anybody."""
    return choose_replacements(bookies, ensemble, bad, 3, 2, config, random.Random(1), partial=True)


def test_a_ledger_that_begins_with_too_few_bookies_spans_what_its_acks_do() -> None:
    config = PlacementConfig(policy="rack", min_racks_per_ack_quorum=2)
    up = [BookieView("a", location="/r/1"), BookieView("b", location="/r/2")]
    away = [BookieView("x"), BookieView("y", location="/r/1")]
    found = choose_partial_ensemble(up, away, 3, 3, 2, config, random.Random(1))
    assert found.away == {"x"}
    assert found.locations == {"a": "/r/1", "b": "/r/2"}, "nobody says where x is"
    beside = [BookieView("a", location="/r/1"), BookieView("c", location="/r/1")]
    with pytest.raises(NotEnoughBookies):
        choose_partial_ensemble(beside, away, 3, 3, 2, config, random.Random(1))


# Replacing bad bookies: who comes, what stays, what a partial answer holds, and what is wrong
# with an ensemble.


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
