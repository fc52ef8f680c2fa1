"""Plans of moves over random clusters, judged by the product's judge and by what is counted here.

Every plan ends, keeps every rule at every step, puts no two copies on one bookie, moves no copy twice, and no more
bytes than it has to.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbk.client.placement_judge import BookiePlace, PlacementJudge, unregistered_place
from fastbk.client.placement_moves import (
    TOLERANCE,
    Disk,
    LedgerMoves,
    Mender,
    MovePlanner,
    Ranking,
)
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.placement.config import BookieView, PlacementConfig
from fastbk.placement.rules import ClusterPlaces, ClusterRules
from fastbk.replication.copy_check import member_bytes
from fastbk.replication.re_replication import Move

DISK = Disk(1 << 40, 1 << 39)
LENGTH = 1_000_000


def judge_of(
    locations: dict[str, str], rule: PlacementConfig, down: frozenset[str] = frozenset()
) -> PlacementJudge:
    """Bookies by id, and where they are; `down`: those that are not registered, which the table knows."""
    places = {
        BookieId(name): BookiePlace(
            BookieView(BookieId(name), writable=name not in down, location=location),
            "table",
            "down" if name in down else "up",
        )
        for name, location in locations.items()
    }
    return PlacementJudge(ClusterRules(rule), places)


def ledger(
    *ensembles: tuple[str, ...], write_quorum: int, length: int = LENGTH, entries: int = 100
) -> LedgerMetadata:
    """A closed ledger whose fragments have as many entries each."""
    return LedgerMetadata(
        ensemble_size=len(ensembles[0]),
        write_quorum=write_quorum,
        ack_quorum=1,
        fragments=tuple(
            Fragment(entries * at, tuple(map(BookieId, ensemble)))
            for at, ensemble in enumerate(ensembles)
        ),
    ).closed(entries * len(ensembles) - 1, length)


def moved(metadata: LedgerMetadata, planned: LedgerMoves) -> LedgerMetadata:
    """Make the moves; each stands on the ensemble that those before it left."""
    for move in planned.moves:
        fragments = list(metadata.fragments)
        (at,) = (n for n, one in enumerate(fragments) if one.first_entry_id == move.first_entry_id)
        assert fragments[at].ensemble == move.ensemble
        assert move.target not in move.ensemble and move.source in move.ensemble
        fragments[at] = Fragment(move.first_entry_id, move.moved_ensemble)
        metadata = replace(metadata, fragments=tuple(fragments))
    return metadata


def plan_all(
    planner: MovePlanner, ledgers: list[LedgerMetadata]
) -> tuple[list[LedgerMoves], list[LedgerMetadata]]:
    """Plan until the goals are final; return the plan and the ledgers as it leaves them."""
    for metadata in ledgers:
        planner.count(metadata)
    for _ in range(10):
        planner.begin()
        plan = [planner.plan(metadata) for metadata in ledgers]
        if not planner.end():
            return plan, [moved(*pair) for pair in zip(ledgers, plan, strict=True)]
    raise AssertionError("the goals change again and again")


def held(ledgers: list[LedgerMetadata]) -> Counter[str]:
    return Counter({member: total for member, total in _totals(ledgers).items()})


def _totals(ledgers: list[LedgerMetadata]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for metadata in ledgers:
        for at, fragment in enumerate(metadata.fragments):
            for member in fragment.ensemble:
                totals[member] += member_bytes(metadata, at)
    return totals


def bytes_of(plan: list[LedgerMoves]) -> int:
    return sum(sum(each.size_bytes) for each in plan)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[PlacementJudge, list[LedgerMetadata]]:
    count = draw(st.integers(4, 9))
    names = [f"b{number}" for number in range(count)]
    racks = draw(
        st.lists(
            st.sampled_from(["/x/1", "/x/2", "/y/1", "/y/2", "/z/1"]),
            min_size=count,
            max_size=count,
        )
    )
    rule = PlacementConfig(
        policy=draw(st.sampled_from(["spread", "rack", "region", "zone"])),
        enforce=draw(st.booleans()),
        min_racks_per_write_quorum=draw(st.integers(1, 3)),
    )
    down = frozenset(draw(st.lists(st.sampled_from(names), max_size=1)))
    judge = judge_of(dict(zip(names, racks, strict=True)), rule, down)
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    old = names[: draw(st.integers(3, count))]  # others were added later
    ledgers = []
    for _ in range(draw(st.integers(1, 40))):
        size = rng.randint(2, min(5, len(old)))
        ensembles = [tuple(rng.sample(old, size)) for _ in range(rng.choice([1, 1, 2]))]
        ledgers.append(
            ledger(
                *ensembles, write_quorum=rng.randint(1, size), length=rng.choice([0, 10**4, 10**6])
            )
        )
    return judge, ledgers


@given(worlds(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_step_of_a_plan_makes_anything_worse(
    world: tuple[PlacementJudge, list[LedgerMetadata]], faults_only: bool
) -> None:
    judge, ledgers = world
    up = [name for name, place in judge.places.items() if place.state == "up"]
    planner = MovePlanner(judge, dict.fromkeys(up, DISK), faults_only=faults_only)
    plan, after = plan_all(planner, ledgers)
    ranking, rule = Ranking(judge), judge.rules.rule
    for metadata, planned in zip(ledgers, plan, strict=True):
        for move in planned.moves:
            assert judge.place(move.source).state == judge.place(move.target).state == "up"
            before = ranking.rank(move.ensemble, metadata.write_quorum, rule)
            behind = ranking.rank(move.moved_ensemble, metadata.write_quorum, rule)
            assert behind.faults <= before.faults
            assert len(set(move.moved_ensemble)) == len(move.ensemble)
    for metadata, left in zip(ledgers, after, strict=True):
        was, now = judge.judge_ledger(LedgerId(1), metadata), judge.judge_ledger(LedgerId(1), left)
        assert (len(now.enforced), len(now.soft)) <= (len(was.enforced), len(was.soft))
    # It ends: what a plan leaves needs no further plan.
    again, _ = plan_all(MovePlanner(judge, dict.fromkeys(up, DISK), faults_only=faults_only), after)
    assert not any(each.mended for each in again)
    if not faults_only:
        assert bytes_of(again) <= max(1, bytes_of(plan)) or bytes_of(again) < LENGTH * 5


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_the_same_ledgers_give_the_same_plan(
    world: tuple[PlacementJudge, list[LedgerMetadata]],
) -> None:
    judge, ledgers = world
    disks = dict.fromkeys(judge.places, DISK)
    first, _ = plan_all(MovePlanner(judge, disks, seed=7), ledgers)
    second, _ = plan_all(MovePlanner(judge, disks, seed=7), ledgers)
    assert [each.moves for each in first] == [each.moves for each in second]


@pytest.mark.parametrize(("old", "new"), [(3, 3), (5, 1), (6, 3)])
@pytest.mark.parametrize("policy", ["spread", "rack"])
def test_added_bookies_fill_with_the_fewest_bytes(policy: str, old: int, new: int) -> None:
    rng = random.Random(old)
    names = [f"b{number}" for number in range(old + new)]
    judge = judge_of(
        {name: f"/r{number % 3}" for number, name in enumerate(names)},
        PlacementConfig(policy=policy, enforce=True),  # type: ignore[arg-type]
    )
    ledgers = []
    while len(ledgers) < 600:
        ensemble = tuple(rng.sample(names[:old], 3))
        if not judge.judge(ensemble, 3, judge.rules.rule).enforced:  # type: ignore[arg-type]
            ledgers.append(ledger(ensemble, write_quorum=3, length=rng.randrange(10**6)))
    planner = MovePlanner(judge, dict.fromkeys(map(BookieId, names), DISK))
    plan, after = plan_all(planner, ledgers)
    totals = _totals(after)
    mean = sum(totals.values()) / len(names)
    assert max(totals.values()) < (1 + TOLERANCE) * mean
    assert min(totals[name] for name in names) > (1 - TOLERANCE) * mean
    assert bytes_of(plan) <= 1.02 * planner.least_bytes
    assert planner.planned_bytes == totals
    # Not all of the first ledgers, and none of the last: the new bookies get a part of every age.
    first, last = (sum(len(each.moves) for each in part) for part in (plan[:300], plan[300:]))
    assert 0.7 < first / last < 1.4
    again, _ = plan_all(MovePlanner(judge, dict.fromkeys(map(BookieId, names), DISK)), after)
    assert not any(each.moves for each in again)


def test_larger_disks_get_more() -> None:
    names = ["b0", "b1", "b2", "b3"]
    judge = judge_of(dict.fromkeys(names, "/r"), PlacementConfig())
    rng = random.Random(1)
    ledgers = [ledger(tuple(rng.sample(names[:3], 2)), write_quorum=2) for _ in range(400)]
    disks = dict.fromkeys(map(BookieId, names), DISK)
    disks[BookieId("b3")] = Disk(2 << 40, 2 << 40)
    _, after = plan_all(MovePlanner(judge, disks), ledgers)
    totals = _totals(after)
    assert 1.8 < totals["b3"] / totals["b0"] < 2.2


def test_a_rack_that_has_to_hold_more_does_not_keep_the_others_uneven() -> None:
    """Two racks of one bookie hold a copy of everything; the third one has a new bookie, which is to fill."""
    locations = {"b0": "/r0", "b1": "/r1", **{f"b{number}": "/r2" for number in range(2, 6)}}
    judge = judge_of(
        locations, PlacementConfig(policy="rack", enforce=True, min_racks_per_write_quorum=3)
    )
    rng = random.Random(1)
    ledgers = [
        ledger(("b0", "b1", rng.choice(["b2", "b3", "b4"])), write_quorum=3) for _ in range(900)
    ]
    plan, after = plan_all(
        MovePlanner(judge, dict.fromkeys(map(BookieId, locations), DISK)), ledgers
    )
    totals = _totals(after)
    assert totals["b0"] == totals["b1"] == 900 * LENGTH
    for name in ("b2", "b3", "b4", "b5"):
        assert abs(totals[name] / LENGTH - 225) < 15
    assert bytes_of(plan) < 240 * LENGTH


def test_bookies_that_leave_give_all_away_and_get_nothing() -> None:
    names = [f"b{number}" for number in range(6)]
    judge = judge_of(
        {name: f"/r{number % 3}" for number, name in enumerate(names)},
        PlacementConfig(policy="rack", enforce=True),
    )
    rng = random.Random(1)
    ledgers = [ledger(tuple(rng.sample(names, 3)), write_quorum=2) for _ in range(200)]
    leaving = {BookieId("b0"), BookieId("b4")}
    planner = MovePlanner(judge, dict.fromkeys(map(BookieId, names), DISK), leaving=leaving)
    plan, after = plan_all(planner, ledgers)
    totals = _totals(after)
    assert not totals["b0"] and not totals["b4"]
    assert not any(move.target in leaving for each in plan for move in each.moves)


def test_a_bookie_that_takes_no_adds_gives_and_gets_nothing() -> None:
    names = ["b0", "b1", "b2", "b3"]
    judge = judge_of(dict.fromkeys(names, "/r"), PlacementConfig())
    full = judge.places[BookieId("b0")]
    judge.places[BookieId("b0")] = BookiePlace(
        BookieView(BookieId("b0"), writable=False, location="/r"), full.source, "read-only"
    )
    rng = random.Random(1)
    ledgers = [ledger(("b0", rng.choice(["b1", "b2"])), write_quorum=2) for _ in range(200)]
    _, after = plan_all(MovePlanner(judge, dict.fromkeys(map(BookieId, names), DISK)), ledgers)
    assert all(90 < total / LENGTH < 110 for total in _totals(after).values())


# --- faults -------------------------------------------------------------------------------------------------------


def ring(judge: PlacementJudge, ensemble: str, write_quorum: int) -> list[str]:
    """Mend one fragment; return its ensembles, step by step."""
    planner = MovePlanner(judge, dict.fromkeys(judge.places, DISK), faults_only=True)
    metadata = ledger(tuple(ensemble.split()), write_quorum=write_quorum)
    planner.count(metadata)
    planner.begin()
    return [" ".join(move.moved_ensemble) for move in planner.plan(metadata).moves]


RACKS = {"a1": "/a", "a2": "/a", "a3": "/a", "b1": "/b", "b2": "/b", "c1": "/c"}
ENFORCED = PlacementConfig(policy="rack", enforce=True)


def test_the_fewest_copies_move() -> None:
    judge = judge_of(RACKS, ENFORCED)
    assert len(ring(judge, "a1 a2", 2)) == 1
    assert ring(judge, "a1 b1", 2) == []
    assert ring(judge, "a1 a2 b1 c1", 4) == []


def test_copies_change_places_by_way_of_a_third_bookie() -> None:
    """Four places, write sets of two, and two racks only: each place's neighbours are in the other rack."""
    judge = judge_of({name: RACKS[name] for name in ("a1", "a2", "a3", "b1", "b2")}, ENFORCED)
    steps = ring(judge, "a1 a2 b1 b2", 2)
    assert steps
    for before, after in zip(["a1 a2 b1 b2", *steps], steps, strict=False):
        differs = sum(old != new for old, new in zip(before.split(), after.split(), strict=True))
        assert differs == 1
    last = tuple(map(BookieId, steps[-1].split()))
    assert not judge.judge(last, 2, ENFORCED).enforced


def test_what_cannot_be_mended_is_said_and_left() -> None:
    judge = judge_of({"a1": "/a", "a2": "/a", "a3": "/a"}, ENFORCED)
    planner = MovePlanner(judge, dict.fromkeys(judge.places, DISK), faults_only=True)
    metadata = ledger(("a1", "a2"), write_quorum=2)
    planner.count(metadata)
    planner.begin()
    planned = planner.plan(metadata)
    assert (planned.moves, planned.mended, planned.unmended) == ([], 0, 1)


def test_another_copy_makes_room_for_a_lost_one() -> None:
    """Its neighbours in the ring are in both racks that have bookies: no replacement keeps the rule."""
    places = {"a1": "/a", "a2": "/a", "b1": "/b", "b2": "/b", "c1": "/c", "c2": "/c"}
    judge = judge_of(places, ENFORCED, frozenset({"c1"}))
    ensemble = tuple(map(BookieId, ("a1", "c1", "b1", "c2")))
    metadata = ledger(ensemble, write_quorum=2)
    mender = Mender(Ranking(judge), {})
    gone = {BookieId("c1")}
    moves = mender.make_room(metadata.fragments[0], metadata, ENFORCED, gone, random.Random(1))
    (move,) = moves
    assert move.source != "c1" and move.target in ("a2", "b2")
    assert not judge.judge(move.moved_ensemble, 2, ENFORCED).enforced
    room = metadata.fragments[0]
    again = mender.make_room(
        Fragment(room.first_entry_id, move.moved_ensemble),
        metadata,
        ENFORCED,
        gone,
        random.Random(1),
    )
    assert again == [], "now it can be replaced"
    alone = judge_of({"a1": "/a", "b1": "/b", "c1": "/c"}, ENFORCED, frozenset({"c1"}))
    metadata = ledger(tuple(map(BookieId, ("a1", "b1", "c1"))), write_quorum=2)
    mender = Mender(Ranking(alone), {})
    fragment = metadata.fragments[0]
    assert mender.make_room(fragment, metadata, ENFORCED, gone, random.Random(1)) == []


@pytest.mark.parametrize("faults_only", [False, True])
def test_nothing_moves_beside_a_bookie_of_which_nobody_knows_where_it_is(
    faults_only: bool,
) -> None:
    """It counted as being in a rack of its own, and a move to its real one broke an enforced rule."""
    rule = PlacementConfig(policy="rack", min_racks_per_write_quorum=3, enforce=True)
    places = {"a1": "/a", "a2": "/a", "b1": "/b", "c1": "/c", "d1": "/d", "c9": "/c"}
    known = judge_of(places, rule, frozenset({"c9"}))
    absent = BookieId("c9")
    nowhere = unregistered_place(absent, ClusterPlaces(known.rules))
    unknown = PlacementJudge(known.rules, {**known.places, absent: nowhere})
    names = ("a1", "a2", "c9") if faults_only else ("a1", "b1", "c9")
    metadata = ledger(names, write_quorum=3)

    def moves_by(judge: PlacementJudge) -> list[Move]:
        disks = dict.fromkeys(judge.places.keys() - {absent}, DISK)
        planner = MovePlanner(judge, disks, faults_only=faults_only)
        for _ in range(20):
            planner.count(metadata)
        planner.begin()
        return [move for _ in range(20) for move in planner.plan(metadata).moves]

    assert moves_by(known)
    assert moves_by(unknown) == []
    came = BookieId("e1")
    places_by_now = {**known.places, came: judge_of({"e1": "/e"}, rule).places[came]}
    planner = MovePlanner(
        unknown, dict.fromkeys(known.places.keys() - {absent}, DISK), faults_only=faults_only
    )
    for _ in range(20):
        planner.count(metadata)
    planner.begin()
    assert planner.plan(metadata).moves == []
    planner.judge_by(PlacementJudge(known.rules, places_by_now))
    later = [move for _ in range(19) for move in planner.plan(metadata).moves]
    assert later and came not in {move.target for move in later}


def test_the_copy_of_a_bookie_that_is_down_stays_where_it_is() -> None:
    """Healing has its own delay for it; the other copy goes."""
    judge = judge_of(RACKS, ENFORCED, frozenset({"a1"}))
    (step,) = ring(judge, "a1 a2", 2)
    assert step.startswith("a1 ") and step != "a1 a3"
