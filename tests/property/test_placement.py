"""Placement over random topologies, judged by trying every arrangement.

The judge below knows nothing of cells, tickets or bounds: it scores an arrangement by the rules as README.md has
them, and tries all. What is enforced holds, or nothing exists (INV-P1); what is not is as good as can be.
Sizes stay small enough for the judge: at most 7 bookies, ensembles of at most 5. There the shipped bound of steps is
never the reason for a refusal or for less than the best; beyond, what is returned holds, but may not be the best.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbk.errors import NotEnoughBookies
from fastbk.placement.choose_ensemble import (
    BookieView,
    PlacementConfig,
    choose_ensemble,
    choose_replacements,
    placement_faults,
)
from tests.simulation.healing.mutations import MUTATIONS
from tests.simulation.planting import Mutation, fault, planted

LOCATIONS = ["/x/1", "/x/2", "/y/1", "/y/2", "/z/1", "/x/1", "/1", ""]
T = TypeVar("T")
Score = tuple[int, ...]


@st.composite
def clusters(draw: st.DrawFn) -> list[BookieView]:
    # Half of them are only about places: with few bookies and many flags hardly anything is left to arrange.
    is_plain = draw(st.booleans())
    rare = st.just(False) if is_plain else st.sampled_from([False, False, False, True])
    return [
        BookieView(
            f"b{number}:1",
            writable=not draw(rare),
            quarantined=draw(rare),
            free_bytes=draw(st.sampled_from([None, 0, 1, 1000, 10**15])),
            location=draw(st.sampled_from(LOCATIONS)),
            labels=frozenset() if draw(rare) else frozenset({"gold"}),
            is_local=draw(rare),
        )
        for number in range(draw(st.integers(4 if is_plain else 0, 7)))
    ]


@st.composite
def configs(draw: st.DrawFn) -> PlacementConfig:
    group = draw(st.sampled_from([None, None, "gold"]))
    zones = draw(st.integers(1, 3))
    return PlacementConfig(
        policy=draw(st.sampled_from(["spread", "rack", "region", "zone"])),
        enforce=draw(st.booleans()),
        min_racks_per_write_quorum=draw(st.integers(1, 4)),
        min_regions_per_write_quorum=draw(st.integers(1, 3)),
        min_zones_per_write_quorum=zones,
        desired_zones_per_write_quorum=draw(st.integers(zones, 4)),
        weighted=draw(st.booleans()),
        local_first=draw(st.booleans()),
        group=group,
        group_is_hard=group is not None and draw(st.booleans()),
    )


sizes = st.sampled_from([(e, q) for e in (1, 2, 3, 4, 4, 5, 5, 5) for q in range(1, e + 1)])


def places(view: BookieView | None, policy: str) -> tuple[str, str]:
    """Return (region or zone, all of it) of a bookie."""
    names = [name for name in (view.location if view else "").split("/") if name]
    if not names:
        return "default-region", "default-region/default"
    if len(names) == 1:
        return (
            (names[0], f"{names[0]}/default")
            if policy == "zone"
            else ("default-region", f"default-region/{names[0]}")
        )
    return names[0], "/".join(names)


class Judge:
    """Scores arrangements: smaller is better, None is against an enforced rule."""

    def __init__(
        self, bookies: Sequence[BookieView], write_quorum: int, config: PlacementConfig
    ) -> None:
        self.views = {view.bookie_id: view for view in bookies}
        self.write_quorum = write_quorum
        self.config = config
        self.kinds = {
            name: (places(view, config.policy), self.tier(name))
            for name, view in self.views.items()
        }

    def tier(self, name: str) -> int:
        view, group = self.views[name], self.config.group
        return 2 * view.quarantined + (group is not None and group not in view.labels)

    def may_be_taken(self, exclude: Collection[str]) -> list[str]:
        hard = self.config.group if self.config.group_is_hard else None
        return [
            name
            for name, view in self.views.items()
            if view.writable and name not in exclude and (hard is None or hard in view.labels)
        ]

    def score(self, ensemble: Sequence[str], new: Collection[int]) -> Score | None:
        """Return the score of `ensemble`, of which the indexes `new` were chosen."""
        config, write_quorum = self.config, self.write_quorum
        at = [places(self.views.get(name), config.policy) for name in ensemble]
        tiers = Counter(self.tier(ensemble[index]) for index in new)
        lacks = desired = alike = 0
        windows = {
            tuple(sorted((first + step) % len(ensemble) for step in range(write_quorum)))
            for first in range(len(ensemble))
        }
        for window in windows:
            if not set(window) & set(new):
                continue
            uppers = len({at[index][0] for index in window})
            wholes = len({at[index][1] for index in window})
            if config.policy in ("rack", "region"):
                lacks += max(0, min(config.min_racks_per_write_quorum, write_quorum) - wholes)
            if config.policy == "region":
                lacks += max(0, min(config.min_regions_per_write_quorum, write_quorum) - uppers)
            if config.policy == "zone":
                lacks += max(0, min(config.min_zones_per_write_quorum, write_quorum) - uppers)
                desired += max(0, min(config.desired_zones_per_write_quorum, write_quorum) - uppers)
                alike += write_quorum - wholes
        if config.enforce and lacks:
            return None
        uneven = 0
        if config.policy == "region":
            uneven = sum(count**2 for count in Counter(upper for upper, _ in at).values())
        return (tiers[3], tiers[2], tiers[1], lacks, desired, alike + uneven)

    def scores(
        self, ensemble: Sequence[str | None], new: Sequence[int], exclude: Collection[str]
    ) -> list[Score]:
        """Return the scores of all ways to fill the indexes `new`, once for each that differ by names only.

        Only the ways with a local bookie at index 0, where there are such ways and they come first.
        """
        everyone = self.may_be_taken(exclude)
        local = [n for n in everyone if self.views[n].is_local and self.tier(n) == 0]

        def judged(ways: Iterable[Sequence[str]]) -> list[Score]:
            found = []
            seen = set()
            for way in ways:
                alike = tuple(self.kinds[name] for name in way)
                if alike in seen:
                    continue
                seen.add(alike)
                filled = list(ensemble)
                for index, name in zip(new, way, strict=True):
                    filled[index] = name
                score = self.score([name for name in filled if name is not None], new)
                if score is not None:
                    found.append(score)
            return found

        if self.config.local_first and new and new[0] == 0 and local:
            ways = itertools.permutations(everyone, len(new))
            first = judged(way for way in ways if way[0] in local)
            if first:
                return first
        return judged(itertools.permutations(everyone, len(new)))


def outcome(call: Callable[..., T], *arguments: object, **options: object) -> T | NotEnoughBookies:
    """Return what `call` returns, or its refusal."""
    try:
        return call(*arguments, **options)
    except NotEnoughBookies as error:
        return error


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(clusters(), sizes, configs(), st.integers(0, 99), st.booleans())
def test_an_ensemble_is_the_best_there_is(
    bookies: list[BookieView],
    size: tuple[int, int],
    config: PlacementConfig,
    seed: int,
    excludes: bool,
) -> None:
    """INV-P1."""
    ensemble, write_quorum = size
    exclude = {"b1:1"} if excludes else set()
    judge = Judge(bookies, write_quorum, config)
    scores = judge.scores([None] * ensemble, range(ensemble), exclude)
    rng = random.Random(seed)
    chosen = outcome(
        choose_ensemble, bookies, ensemble, write_quorum, 1, config, rng, exclude=exclude
    )
    if isinstance(chosen, NotEnoughBookies):
        assert not scores, "refused although it can be done"
        assert set(chosen.replicas) == set(judge.views)
        return
    assert len(chosen) == ensemble == len(set(chosen))
    assert set(chosen) <= set(judge.may_be_taken(exclude))
    score = judge.score(chosen, range(ensemble))
    # The local bookie may be any of several; the best is among those of the one that was taken.
    assert score in scores
    if not (config.local_first and sum(view.is_local for view in bookies) > 1):
        assert score == min(scores)
    if config.enforce:
        faults = placement_faults(bookies, chosen, write_quorum, 1, config)
        assert [one for one in faults if "write set" in one] == []


@settings(max_examples=150, deadline=None)
@given(clusters(), sizes, configs(), st.data())
def test_replacements_are_the_best_there_are_and_touch_nothing_else(
    bookies: list[BookieView], size: tuple[int, int], config: PlacementConfig, data: st.DataObject
) -> None:
    """INV-P1."""
    count, write_quorum = size
    # Members may be unknown by now, read-only, of another group: what matters is who comes.
    known = [view.bookie_id for view in bookies]
    members = data.draw(st.permutations([*known, *(f"gone{n}:1" for n in range(count))]))[:count]
    bad = data.draw(st.sets(st.integers(0, count - 1)))
    rng = random.Random(data.draw(st.integers(0, 99)))
    judge = Judge(bookies, write_quorum, config)
    new = sorted(bad)
    scores = judge.scores(members, new, members)

    question = (bookies, members, bad, write_quorum, 1, config, rng)
    some = choose_replacements(*question, partial=True)
    assert set(some) <= bad
    replaced = outcome(choose_replacements, *question)
    if isinstance(replaced, NotEnoughBookies):
        assert not scores, "refused although it can be done"
        assert set(replaced.replicas) >= set(known)
        candidates = len(judge.may_be_taken(members))
        assert len(some) < len(bad)
        if not config.enforce:
            assert len(some) == candidates
        return
    assert set(replaced) == set(some) == bad
    for chosen in (replaced, some):
        assert len(set(chosen.values())) == len(bad)
        assert set(chosen.values()) <= set(judge.may_be_taken(members))
        after = [chosen.get(index, name) for index, name in enumerate(members)]
        score = judge.score(after, new)
        assert score in scores
        if not (config.local_first and sum(view.is_local for view in bookies) > 1):
            assert score == min(scores)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=12),
    st.integers(1, 24).flatmap(lambda e: st.tuples(st.just(e), st.integers(1, e))),
    st.integers(1, 6),
    st.integers(0, 99),
)
def test_large_rings_keep_what_is_enforced_whatever_the_search_finds(
    rack_sizes: list[int], size: tuple[int, int], racks: int, seed: int
) -> None:
    """INV-P1, INV-P2: beyond the judge's sizes what is returned holds, and a refusal comes soon."""
    ensemble, write_quorum = size
    bookies = [
        BookieView(f"r{rack}b{number}:1", location=f"/x/{rack}")
        for rack, count in enumerate(rack_sizes)
        for number in range(count)
    ]
    config = PlacementConfig(
        policy="rack", enforce=True, min_racks_per_write_quorum=racks, search_steps_max=2000
    )
    try:
        chosen = choose_ensemble(bookies, ensemble, write_quorum, 1, config, random.Random(seed))
    except NotEnoughBookies:
        return
    assert len(set(chosen)) == ensemble
    assert placement_faults(bookies, chosen, write_quorum, 1, config) == []


# Faults that are planted into the choice: the judge finds each within a few clusters. The first two show in few of the
# simulator's worlds, which find the others, too (`tests/simulation/healing/mutations.py`).


_CHOOSE = "fastbk.placement.choose_ensemble:"
PLANTED = [
    fault(
        "enforced_is_soft",
        "what a rule enforces is kept as far as possible",
        (_CHOOSE + "rules_of", "is_enforced = config.enforce or 1 <", "is_enforced = 1 <"),
    ),
    fault(
        "racks_of_the_ensemble_are_counted",
        "the ensemble has enough racks, and a write set does not",
        (
            _CHOOSE + "windows_of",
            "every[:1] if write_quorum == ensemble else every",
            "(tuple(range(ensemble)),)",
        ),
    ),
    *(one for one in MUTATIONS if all(edit.where.startswith(_CHOOSE) for edit in one.edits)),
]
CLUSTERS = 400


def is_misjudged(seed: int) -> bool:
    """Return whether the choice of a cluster that a seed draws is wrong, by the judge."""
    rng = random.Random(seed)
    bookies = [
        BookieView(
            f"b{number}:1",
            location=rng.choice(["/x/1", "/x/2", "/y/1"]),
            labels=frozenset({"gold"} if rng.random() < 0.6 else ()),
        )
        for number in range(rng.randint(4, 6))
    ]
    group = rng.choice([None, "gold"])
    config = PlacementConfig(
        policy=rng.choice(["rack", "region"]),
        enforce=rng.random() < 0.5,
        group=group,
        group_is_hard=group is not None and rng.random() < 0.5,
    )
    size = rng.randint(2, 4)
    write_quorum = rng.randint(2, size)
    judge = Judge(bookies, write_quorum, config)
    scores = judge.scores([None] * size, range(size), ())
    chosen = outcome(choose_ensemble, bookies, size, write_quorum, 1, config, rng)
    if isinstance(chosen, NotEnoughBookies):
        return bool(scores)
    if not set(chosen) <= set(judge.may_be_taken(())):
        return True
    score = judge.score(chosen, range(size))
    return score is None or score > min(scores)


@pytest.mark.parametrize("mutation", PLANTED, ids=lambda one: one.name)
def test_a_planted_fault_is_found(mutation: Mutation) -> None:
    """INV-P1."""
    with planted(mutation):
        seed = next((seed for seed in range(CLUSTERS) if is_misjudged(seed)), None)
    assert seed is not None, f"{CLUSTERS} clusters do not find {mutation.name}"
    assert not is_misjudged(seed), "without the fault there is nothing to find"


def test_there_are_faults_to_plant() -> None:
    assert len(PLANTED) >= 5
