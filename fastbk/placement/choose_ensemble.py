"""Which bookies hold a new fragment, and which take the place of bad ones: the calls that clients and tools use.

Pure: what is known of the bookies, the wishes and the chance all come as arguments. How a choice is made stands
in README.md. Below the calls stand the rules (what each write set needs), the candidates (who may be taken, in
which order) and the search (the best arrangement around the ring).

Decision 36.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace
from itertools import combinations, islice
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from fastbk.errors import ConfigError, NotEnoughBookies, check_invariant
from fastbk.model.ids import BookieId
from fastbk.model.quorum import ENSEMBLE_SIZE_MAX, check_quorums, write_sets
from fastbk.placement.config import DEFAULT_LOCATION, BookieView, Chance, PlacementConfig, Policy
from fastbk.units import format_count

__all__ = [
    "DEFAULT_LOCATION",
    "BookieView",
    "Chance",
    "PlacementConfig",
    "Policy",
    "choose_ensemble",
    "choose_replacements",
    "placement_faults",
]


def choose_ensemble(
    bookies: Sequence[BookieView],
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    config: PlacementConfig,
    rng: Chance,
    *,
    exclude: Collection[BookieId] = (),
) -> tuple[BookieId, ...]:
    """Return `ensemble` different writable bookies of `bookies`, in the order of the ring, as `config` wants them.

    `exclude` is never taken. Raises NotEnoughBookies when there are too few, or when no arrangement keeps an
    enforced minimum in every write set (INV-P1): its `replicas` say of each bookie why it was left out.
    ConfigError unless 64 >= ensemble >= write_quorum >= ack_quorum >= 1.
    """
    check_quorums(ensemble, write_quorum, ack_quorum)
    left_out = dict.fromkeys(exclude, "excluded by the caller")
    candidates = gather(bookies, config, left_out, rng)
    steps = Steps(config.search_steps_max)
    filled = _fill(candidates, range(ensemble), {}, ensemble, write_quorum, config, steps)
    if isinstance(filled, str):
        raise _not_enough(filled, ensemble, candidates)
    chosen = tuple(filled[index] for index in range(ensemble))
    check_invariant(len(set(chosen)) == ensemble, f"INV-P1: a bookie twice in {chosen}")
    return chosen


def choose_replacements(
    bookies: Sequence[BookieView],
    ensemble: Sequence[BookieId],
    bad: Collection[int],
    write_quorum: int,
    ack_quorum: int,
    config: PlacementConfig,
    rng: Chance,
    *,
    exclude: Collection[BookieId] = (),
    partial: bool = False,
) -> dict[int, BookieId]:
    """Return a bookie for each index of `bad`, none of them in `ensemble` or `exclude`; all others stay.

    Minimums count for the write sets that hold a replaced index: one that was broken elsewhere stays broken.
    Raises NotEnoughBookies, `replicas` naming why each candidate was left out. With `partial` it returns what can
    be replaced instead, first where a write set has the fewest good members: as many as there are candidates if
    nothing is enforced, else as many as one after the other gives; perhaps none.
    """
    check_quorums(len(ensemble), write_quorum, ack_quorum)
    wrong = [index for index in bad if not 0 <= index < len(ensemble)]
    if wrong:
        raise ConfigError(f"bad={sorted(wrong)}: must be indexes of the {len(ensemble)} bookies")
    left_out = dict.fromkeys(exclude, "excluded by the caller")
    left_out |= dict.fromkeys(ensemble, "already in the ensemble")
    candidates = gather(bookies, config, left_out, rng)
    locations = {view.bookie_id: view.location for view in bookies}
    at = {
        index: domains_of(locations.get(bookie_id, DEFAULT_LOCATION), config.policy)
        for index, bookie_id in enumerate(ensemble)
    }

    def fill(indexes: Collection[int], steps: Steps) -> dict[int, BookieId] | str:
        fixed = {index: where for index, where in at.items() if index not in indexes}
        return _fill(candidates, indexes, fixed, len(ensemble), write_quorum, config, steps)

    steps = Steps(config.search_steps_max)
    filled = fill(set(bad), steps)
    if not isinstance(filled, str):
        return filled
    if not partial:
        raise _not_enough(filled, len(set(bad)), candidates)
    ordered = _most_needed_first(set(bad), len(ensemble), write_quorum)
    steps = Steps(config.search_steps_max)
    if len(candidates.ranked) < len(ordered):
        filled = fill(ordered[: len(candidates.ranked)], steps)
        if not isinstance(filled, str):
            return filled
    best: dict[int, BookieId] = {}
    for index in ordered:
        more = fill([*best, index], steps)
        best = best if isinstance(more, str) else more
    return best


def _fill(
    candidates: Candidates,
    indexes: Collection[int],
    fixed: Mapping[int, Domains],
    ensemble: int,
    write_quorum: int,
    config: PlacementConfig,
    steps: Steps,
) -> dict[int, BookieId] | str:
    """Return candidates for `indexes`, or the reason why that cannot be."""
    if not indexes:
        return {}
    if len(candidates.ranked) < len(indexes):
        return f"only {len(candidates.ranked)} can be used"
    rules = rules_of(config, write_quorum)
    watched = None if len(indexes) == ensemble else frozenset(indexes)
    is_certain = True
    for pool in candidates.pools(len(indexes)):
        for local in _local_choices(pool, indexes, config):
            ring, rest, filled = Ring(ensemble, write_quorum, fixed), pool, {}
            if local is not None:
                where = domains_of_view(local.view, config.policy)
                ring = Ring(ensemble, write_quorum, {**fixed, 0: where})
                rest = [one for one in pool if one is not local]
                filled = {0: local.view.bookie_id}
            found = best_arrangement(rest, ring, rules, config.policy, steps, watched)
            if found.chosen is not None:
                return filled | found.chosen
            is_certain = is_certain and found.is_certain
    wanted = " and ".join(
        f"{rule.target} {rule.noun}s" for rule in rules.required if rule.is_enforced
    )
    how = (
        "no choice"
        if is_certain
        else f"no choice that was tried in {config.search_steps_max} steps"
    )
    return f"{how} of the {len(candidates.ranked)} that can be used has {wanted} in every write set"


def _local_choices(
    pool: Sequence[Candidate], indexes: Collection[int], config: PlacementConfig
) -> Iterator[Candidate | None]:
    """Yield who may be tried for index 0 because it is on this host, at last None: whoever comes."""
    if config.local_first and 0 in indexes:
        tried: set[str] = set()  # those of one place are alike for the rules
        for one in pool:
            if one.view.is_local and one.tier == WANTED_TIER and one.view.location not in tried:
                tried.add(one.view.location)
                yield one
    yield None


def _most_needed_first(bad: Collection[int], ensemble: int, write_quorum: int) -> list[int]:
    """Return `bad` with those first that are in a write set with the fewest good members."""
    fewest = dict.fromkeys(bad, write_quorum)
    for window in windows_of(ensemble, write_quorum):
        good = sum(index not in fewest for index in window)
        for index in window:
            if index in fewest:
                fewest[index] = min(fewest[index], good)
    return sorted(bad, key=lambda index: (fewest[index], index))


def _not_enough(why: str, needed: int, candidates: Candidates) -> NotEnoughBookies:
    reasons = dict(candidates.left_out)
    for one in candidates.ranked:
        state = "quarantined, " if one.view.quarantined else ""
        reasons[one.view.bookie_id] = f"{state}can be used; it is at {one.view.location}"
    total = len(reasons)
    return NotEnoughBookies(
        f"{format_count(needed, 'bookie')} {'is' if needed == 1 else 'are'} needed, but {why}"
        f" ({total} are known): start more bookies, or choose a smaller ensemble",
        replicas=reasons,
    )


class PlacementFault(NamedTuple):
    """What an ensemble breaks of a rule, as a sentence."""

    reason: str
    is_enforced: bool
    """Whether a choice by the same rule would be refused for it."""


def placement_faults(
    bookies: Sequence[BookieView],
    ensemble: Sequence[BookieId],
    write_quorum: int,
    ack_quorum: int,
    config: PlacementConfig,
) -> list[str]:
    """Return a sentence for each minimum that a write set breaks and each member that repeats or is of no group.

    Minimums count here even when they are not enforced, and even when no choice could keep them. A bookie that is
    not in `bookies` counts as being at the default location; whether members are alive is not looked at.
    """
    del ack_quorum  # no policy looks at it; taken so that all calls are alike
    return [fault.reason for fault in sorted_faults(bookies, ensemble, write_quorum, config)]


def sorted_faults(
    bookies: Sequence[BookieView],
    ensemble: Sequence[BookieId],
    write_quorum: int,
    config: PlacementConfig,
    among: frozenset[int] | None = None,
) -> list[PlacementFault]:
    """Return what `placement_faults` does, each with whether it is against something enforced.

    `among`: indexes of the ensemble; only faults of these members and of write sets with one of them count.
    """
    views = {view.bookie_id: view for view in bookies}
    members = [views.get(bookie_id) for bookie_id in ensemble]
    faults = [
        PlacementFault(f"{bookie_id} is {count} times in the ensemble", is_enforced=True)
        for bookie_id, count in {one: ensemble.count(one) for one in ensemble}.items()
        if count > 1
    ]
    if config.group is not None:
        faults += [
            PlacementFault(
                f"{view.bookie_id} is not in the group {config.group!r}", config.group_is_hard
            )
            for index, view in enumerate(members)
            if view is not None and config.group not in view.labels
            if among is None or index in among
        ]
    places = [
        domains_of(DEFAULT_LOCATION if view is None else view.location, config.policy)
        for view in members
    ]
    for rule in rules_of(config, write_quorum).required:
        if rule.cost < MINIMUM:
            continue
        for window in windows_of(len(ensemble), write_quorum):
            if among is not None and among.isdisjoint(window):
                continue
            names = sorted({getattr(places[index], rule.level) for index in window})
            if len(names) < rule.target:
                members_named = ", ".join(ensemble[index] for index in window)
                plural = "" if len(names) == 1 else "s"
                reason = (
                    f"the write set {members_named} spans {len(names)} {rule.noun}{plural}"
                    f" ({', '.join(names)}), the minimum is {rule.target}"
                )
                faults.append(PlacementFault(reason, rule.is_enforced))
    return faults


def attainable(bookies: Iterable[BookieView], config: PlacementConfig) -> PlacementConfig:
    """Return a rule with minimums that these bookies could keep, whether they take adds or not; enforced ones stay.

    Where nobody said where bookies are, all are in one rack, and no minimum above 1 is wanted, but for what an ack set
    spans: no choice breaks that.
    """
    if config.enforce or config.policy == "spread":
        return config
    places = [
        domains_of_view(view, config.policy)
        for view in bookies
        if not config.group_is_hard or config.group in view.labels
    ]
    racks, uppers = len({one.whole for one in places}), len({one.upper for one in places})
    counted = (
        ("racks", config.min_racks_per_write_quorum, config.min_racks_per_ack_quorum, racks),
        ("regions", config.min_regions_per_write_quorum, config.min_regions_per_ack_quorum, uppers),
        ("zones", config.min_zones_per_write_quorum, config.min_zones_per_ack_quorum, uppers),
    )
    minimums = {
        f"min_{domains}_per_write_quorum": max(acked, min(wanted, count))
        for domains, wanted, acked, count in counted
    }
    return replace(config, **minimums)  # type: ignore[arg-type]


# --- ensembles with fewer bookies --------------------------------------------------------------------------------
#
# New ensembles where too few bookies take adds: smaller ones, or ones that name bookies which are missing.
#
# A ledger that needs only its ack quorum can begin then. Its ensemble shrinks at most to Qw. Below
# that the quorums stay as they are, and the places that nobody can take name bookies that are
# read-only or away: their copies are *owed*. At least Qa members of the one write set take adds
# (INV-E4), so entries are acknowledged, and a recovery can close the ledger.
#
# A read-only bookie is named before one that is away. It answers fences and reads, so a recovery still succeeds when
# one of the members that took adds is away.


COMBINATIONS_MAX = 64
"""So many sets of missing bookies are tried where minimums are enforced."""


@dataclass(frozen=True, slots=True)
class ChosenEnsemble:
    """The bookies of a new ledger in the order of the ring.

    Attributes:
        away: those that take no adds now, because they are away or read-only. They owe their copies.
        locations: where the choice took them to be; without those of which that is a guess.
    """

    bookies: tuple[BookieId, ...]
    away: frozenset[BookieId] = frozenset()
    locations: Mapping[BookieId, str] = field(default_factory=dict)

    @property
    def up(self) -> tuple[BookieId, ...]:
        """Those that are up and take adds."""
        return tuple(one for one in self.bookies if one not in self.away)


def choose_partial_ensemble(
    bookies: Sequence[BookieView],
    away: Sequence[BookieView],
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    config: PlacementConfig,
    rng: Chance,
    *,
    exclude: Collection[BookieId] = (),
) -> ChosenEnsemble:
    """Return an ensemble of `bookies`, as large as possible down to Qw, else one that also names missing bookies.

    Args:
        bookies: that are up. Those that are not writable may only be named as missing, before those of `away`.
        away: that were registered once and are not up, the likeliest to return first.
        ensemble, write_quorum, ack_quorum: of the ledger.
        config: what is wanted of the ensemble; enforced minimums hold for missing bookies, too.
        rng: chance.
        exclude: never taken.

    Raises the NotEnoughBookies of the full size when fewer than `ack_quorum` bookies may be taken, when too few are
    known to be missing, or when an enforced minimum cannot be kept.
    """
    refusal: NotEnoughBookies | None = None
    for size in range(ensemble, write_quorum - 1, -1):
        try:
            taken = choose_ensemble(
                bookies, size, write_quorum, ack_quorum, config, rng, exclude=exclude
            )
        except NotEnoughBookies as error:
            refusal = refusal or error
        else:
            return ChosenEnsemble(taken, locations=_locations_of(taken, bookies))
    assert refusal is not None
    left_out = dict.fromkeys(exclude, "excluded by the caller")
    able = [one.view for one in gather(bookies, config, left_out, rng).ranked]
    owed = write_quorum - len(able)
    if not 0 < owed <= write_quorum - ack_quorum:
        raise refusal
    taken_ids = {view.bookie_id for view in able}
    read_only = [view for view in bookies if not view.writable]
    missing = [msgspec.structs.replace(view, writable=True) for view in (*read_only, *away)]
    ranked = gather(missing, config, left_out, rng).ranked
    allowed = {one.view.bookie_id for one in ranked} - taken_ids
    spare = [view for view in missing if view.bookie_id in allowed]
    for some in islice(combinations(spare, owed), COMBINATIONS_MAX):
        views = [*able, *some]
        try:
            taken = choose_ensemble(views, write_quorum, write_quorum, ack_quorum, config, rng)
        except NotEnoughBookies:
            continue
        # Nobody says where one is that is away and at the default location: it may say so itself when it is back.
        known = [view for view in some if view.location != DEFAULT_LOCATION]
        locations = _locations_of(taken, [*able, *known])
        away_ids = frozenset(view.bookie_id for view in some)
        chosen = ChosenEnsemble(taken, away_ids, locations)
        check_invariant(
            len(chosen.up) >= ack_quorum, f"INV-E4: too few bookies take adds in {chosen}"
        )
        if _spans_enough(able, config):
            return chosen
    raise refusal


def _locations_of(
    bookie_ids: Collection[BookieId], views: Sequence[BookieView]
) -> dict[BookieId, str]:
    return {view.bookie_id: view.location for view in views if view.bookie_id in bookie_ids}


def _spans_enough(able: Sequence[BookieView], config: PlacementConfig) -> bool:
    """Return whether appends are acknowledged while only these take adds."""
    places = [domains_of_view(view, config.policy) for view in able]
    wanted = {
        "whole": config.min_racks_per_ack_quorum,
        "upper": max(config.min_regions_per_ack_quorum, config.min_zones_per_ack_quorum),
    }
    return all(
        len({getattr(place, level) for place in places}) >= count for level, count in wanted.items()
    )


# --- rules -------------------------------------------------------------------------------------------------------
#
# What a policy asks of every write set of an ensemble: so many different domains, at two levels.
#
# A location has an upper domain (region, zone) and a whole one (region and rack, zone and upgrade domain). A rule
# counts the different domains of one level in a write set. The cost of an arrangement is what its write sets lack,
# each rule in a weight class of its own, so that no number of small faults outweighs a large one.


DEFAULT_UPPER = "default-region"
DEFAULT_UPGRADE_DOMAIN = "default-upgrade-domain"

# One class outweighs all that the classes below can add up to: at most 64 write sets lack 63 domains each, and
# even shares cost at most 64 squared.
_CLASS = ENSEMBLE_SIZE_MAX**3
PREFERENCE = 1
WANTED = _CLASS
MINIMUM = _CLASS**2
# Taking a bookie of the last resort is worse than any fault of the spread, and one of a worse tier worse than
# a whole ensemble of the better.
TIER_COSTS = (0, *(_CLASS**3 * (ENSEMBLE_SIZE_MAX + 1) ** tier for tier in range(3)))


class Domains(NamedTuple):
    """Where a bookie is, at both levels; a level that a policy does not look at is empty."""

    upper: str
    whole: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Every write set has at least `target` different domains of `level`."""

    level: Literal["upper", "whole"]
    target: int
    cost: int
    """Cost of each domain that a write set lacks."""
    is_enforced: bool
    noun: str
    """How people call the domain: rack, region, zone."""


@dataclass(frozen=True, slots=True)
class Rules:
    """All that a policy asks for. Whole domains repeat in a write set only when nothing else is to be had."""

    required: tuple[Rule, ...] = ()
    has_even_shares: bool = False
    """Upper domains have shares of the ensemble that differ by one at most."""


def rules_of(config: PlacementConfig, write_quorum: int) -> Rules:
    """Return the rules for write sets of `write_quorum`; a minimum above it means all different."""

    def minimum(level: Literal["upper", "whole"], wanted: int, acked: int, noun: str) -> list[Rule]:
        target = min(wanted, write_quorum)
        # Where a write set spans fewer than an ack set has to, no append is ever acknowledged.
        is_enforced = config.enforce or 1 < acked == wanted
        rules = [Rule(level, target, MINIMUM, is_enforced, noun)]
        if acked > 1 and not is_enforced:
            rules.append(Rule(level, min(acked, write_quorum), MINIMUM, True, noun))
        return rules

    racks, acked_racks = config.min_racks_per_write_quorum, config.min_racks_per_ack_quorum
    if config.policy == "rack":
        return Rules(tuple(minimum("whole", racks, acked_racks, "rack")))
    if config.policy == "region":
        regions = config.min_regions_per_write_quorum, config.min_regions_per_ack_quorum
        required = (
            *minimum("upper", *regions, "region"),
            *minimum("whole", racks, acked_racks, "rack"),
        )
        return Rules(required, has_even_shares=True)
    if config.policy == "zone":
        zones = config.min_zones_per_write_quorum, config.min_zones_per_ack_quorum
        desired_zones = min(config.desired_zones_per_write_quorum, write_quorum)
        return Rules(
            (
                *minimum("upper", *zones, "zone"),
                Rule("upper", desired_zones, WANTED, False, "zone"),
                Rule("whole", write_quorum, PREFERENCE, False, "upgrade domain"),
            )
        )
    return Rules()


def domains_of(location: str, policy: Policy) -> Domains:
    """Return the domains of `location` that `policy` tells apart. A single name is a rack, or a zone."""
    if policy == "spread":
        return Domains("", "")
    names = [name for name in location.split("/") if name] or DEFAULT_LOCATION.split("/")[1:]
    if len(names) == 1:
        names = [*names, DEFAULT_UPGRADE_DOMAIN] if policy == "zone" else [DEFAULT_UPPER, *names]
    whole = "/" + "/".join(names)
    return Domains("" if policy == "rack" else f"/{names[0]}", whole)


def domains_of_view(view: BookieView, policy: Policy) -> Domains:
    """Return the domains of a bookie."""
    return domains_of(view.location, policy)


def windows_of(ensemble: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """Return the different write sets of a ring of `ensemble` bookies (INV-Q1): one only when all hold all."""
    every = write_sets(ensemble, write_quorum)
    return every[:1] if write_quorum == ensemble else every


# --- candidates --------------------------------------------------------------------------------------------------
#
# Who may be taken, why others may not, and in which random order.
#
# Every candidate draws one ticket: an exponential variable divided by its weight. Taking the smallest tickets first
# is a weighted choice without repetition, and it stays one within any group of bookies, so that the search for an
# arrangement only follows tickets and draws nothing more.


# The first tier is taken first, a later one only when there are too few before it.
WANTED_TIER = 0
OUTSIDE_GROUP_TIER = 1
QUARANTINED_TIER = 2
QUARANTINED_OUTSIDE_GROUP_TIER = 3
TIER_COUNT = 4

# A bookie that says it is full, but writable, is still drawn now and then.
_WEIGHT_FLOOR = 1e-3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A bookie that may be taken; smaller tickets are taken first."""

    view: BookieView
    tier: int
    ticket: float


@dataclass(frozen=True, slots=True)
class Candidates:
    """All that may be taken, by ticket, and why the others may not."""

    ranked: list[Candidate]
    left_out: dict[BookieId, str] = field(default_factory=dict)

    def pools(self, needed: int) -> list[list[Candidate]]:
        """Return growing sets to choose `needed` from: each has one tier more; none if all are too few.

        A later one serves only when an enforced rule cannot be kept with those before it.
        """
        tiers = sorted({one.tier for one in self.ranked})
        pools = [[one for one in self.ranked if one.tier <= tier] for tier in tiers]
        return [pool for pool in pools if len(pool) >= needed]


def gather(
    bookies: Sequence[BookieView],
    config: PlacementConfig,
    left_out: Mapping[BookieId, str],
    rng: Chance,
) -> Candidates:
    """Sort `bookies` into candidates and those left out, `left_out` among them. Draws one number a candidate."""
    reasons: dict[BookieId, str] = {}
    eligible: dict[BookieId, tuple[BookieView, int]] = {}
    for view in bookies:
        tier = _tier(view, config)
        if view.bookie_id in left_out:
            reasons[view.bookie_id] = left_out[view.bookie_id]
        elif not view.writable:
            why = f": {view.reads_only_reason}" if view.reads_only_reason else ""
            reasons[view.bookie_id] = f"read-only{why}"
        elif tier is None:
            reasons[view.bookie_id] = f"not in the group {config.group!r}"
        else:
            eligible.setdefault(view.bookie_id, (view, tier))
    weights = _weights([view for view, _ in eligible.values()], config)
    ranked = [
        Candidate(view, tier, -math.log(1.0 - rng.random()) / weight)
        for (view, tier), weight in zip(eligible.values(), weights, strict=True)
    ]
    ranked.sort(key=lambda one: one.ticket)
    return Candidates(ranked, reasons)


def _tier(view: BookieView, config: PlacementConfig) -> int | None:
    """Return the tier of a bookie, None if its group may never be served by it."""
    is_inside = config.group is None or config.group in view.labels
    if not is_inside and config.group_is_hard:
        return None
    if view.quarantined:
        return QUARANTINED_TIER if is_inside else QUARANTINED_OUTSIDE_GROUP_TIER
    return WANTED_TIER if is_inside else OUTSIDE_GROUP_TIER


def _weights(views: Sequence[BookieView], config: PlacementConfig) -> list[float]:
    """Return a weight above 0 for each bookie: its free space in medians, 1 where that is not known."""
    known = [view.free_bytes for view in views if view.free_bytes is not None]
    middle = median(known) if known else 0
    if not config.weighted or middle <= 0:
        return [1.0] * len(views)
    return [
        1.0
        if view.free_bytes is None
        else min(max(view.free_bytes / middle, _WEIGHT_FLOOR), config.weight_multiple_max)
        for view in views
    ]


# --- search ------------------------------------------------------------------------------------------------------
#
# The best arrangement of candidates around the ring: depth first, the cheapest and luckiest branch first, bounded.
#
# Positions are filled in the ring's order. Bookies of one place and tier are alike, so the search
# chooses places ("cells") and takes their bookies by ticket; places that nobody uses yet and that
# have the same sizes are alike too, and one of each kind is tried. What a write set must lack,
# given what is in it and how many positions are open, is counted at once, not when it is full:
# branches that break an enforced rule are never entered, and a branch ends when it is no better
# than what was found. The first way down is the greedy answer; the search goes on only while that
# may be improved, for so many placements as it was given (INV-P2).


# Comparing what the write sets around a position hold costs about their number times their size; a step is about
# the time of this many comparisons, so that steps are a measure of time.
_WINDOW_CELLS_A_STEP = 64


@dataclass(frozen=True, slots=True)
class Ring:
    """The positions of an ensemble: those in `fixed` have a bookie already, the others are to be filled."""

    ensemble: int
    write_quorum: int
    fixed: Mapping[int, Domains] = field(default_factory=dict)

    def open_positions(self) -> list[int]:
        """Return the positions to fill, ascending."""
        return [index for index in range(self.ensemble) if index not in self.fixed]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The outcome of a search: nothing was found if `chosen` is None."""

    chosen: dict[int, BookieId] | None
    is_certain: bool
    """Whether it is the best there is (or there is none); False when the steps ran out."""


@dataclass(slots=True)
class Steps:
    """How many more placements may be looked at, over all searches of one choice (INV-P2).

    The first way down costs nothing; beyond it a placement with large write sets costs more than one.
    """

    left: int


@dataclass(slots=True)
class _Cell:
    """Candidates of one place and tier, by ticket; the first `taken` are in use."""

    domains: Domains
    tier: int
    ranked: list[Candidate]
    taken: int = 0

    @property
    def is_used_up(self) -> bool:
        return self.taken == len(self.ranked)


_Option = tuple[int, int, float, int, _Cell]  # cost, repeats, ticket, tie-break, cell


def best_arrangement(
    pool: Sequence[Candidate],
    ring: Ring,
    rules: Rules,
    policy: Policy,
    steps: Steps,
    watched: frozenset[int] | None = None,
) -> Arrangement:
    """Return the cheapest way to fill the open positions of `ring` from `pool`, and whether that is certain.

    Only write sets with a position of `watched` count (None: all): a replacement answers for what it touches.
    """
    search = _Search(pool, ring, rules, policy, steps, watched)
    if search.cannot_succeed():
        return Arrangement(None, is_certain=True)
    search.descend(0, search.cost_at_start)
    return Arrangement(search.best, is_certain=not search.is_exhausted)


class _Search:
    def __init__(
        self,
        pool: Sequence[Candidate],
        ring: Ring,
        rules: Rules,
        policy: Policy,
        steps: Steps,
        watched: frozenset[int] | None,
    ) -> None:
        self.ring = ring
        self.open = ring.open_positions()
        self.cells = _cells(pool, policy, len(self.open))
        self.rules = Rules(
            tuple(self._within_reach(rule) for rule in rules.required), rules.has_even_shares
        )
        self.windows = [
            window
            for window in windows_of(ring.ensemble, ring.write_quorum)
            if watched is None or not watched.isdisjoint(window)
        ]
        self.at: list[Domains | None] = [ring.fixed.get(index) for index in range(ring.ensemble)]
        fixed = ring.fixed.values()
        self.whole_used = Counter(domains.whole for domains in fixed)
        self.upper_used = Counter(domains.upper for domains in fixed)
        self.is_whole_ring = watched is None
        self.steps = steps
        self.price = 1 + ring.write_quorum**2 // _WINDOW_CELLS_A_STEP
        self.deepest = 0
        """Each position costs nothing the first time it is filled: the first way down is always made."""
        self.is_exhausted = False
        self.best: dict[int, BookieId] | None = None
        self.best_cost: int | None = None
        self.filled: dict[int, BookieId] = {}
        self.left_of_tier = [0] * TIER_COUNT
        for cell in self.cells:
            self.left_of_tier[cell.tier] += len(cell.ranked)
        self.cost_at_start = self._lacking_at_start()
        self.goal = self.cost_at_start + self._tier_floor(0) + self._shares_floor()
        self._sort_into_kinds()

    # What can be said before anything is placed

    def _within_reach(self, rule: Rule) -> Rule:
        """Return a rule that is not enforced with a target that the places there are can reach."""
        if rule.is_enforced:
            return rule
        places = {getattr(cell.domains, rule.level) for cell in self.cells}
        places |= {getattr(domains, rule.level) for domains in self.ring.fixed.values()}
        return Rule(rule.level, min(rule.target, len(places)), rule.cost, False, rule.noun)

    def cannot_succeed(self) -> bool:
        """Return whether counting alone shows that there is no arrangement."""
        if sum(len(cell.ranked) for cell in self.cells) < len(self.open):
            return True
        return any(
            rule.is_enforced and self._has_too_few_places(rule) for rule in self.rules.required
        )

    def _has_too_few_places(self, rule: Rule) -> bool:
        """Return whether the places cannot carry the ring under an enforced rule.

        A write set of Qw with R places has one place at most Qw - R + 1 times; every position is in Qw of the E
        write sets, so one place holds at most E * (Qw - R + 1) / Qw positions.
        """
        if any(self._must_lack(rule, window) for window in self.windows):
            return True
        if not self.is_whole_ring:
            return False
        size: Counter[str] = Counter()
        for cell in self.cells:
            size[getattr(cell.domains, rule.level)] += len(cell.ranked)
        for domains in self.ring.fixed.values():
            size[getattr(domains, rule.level)] += 1
        write_quorum = self.ring.write_quorum
        share_max = self.ring.ensemble * (write_quorum - rule.target + 1) // write_quorum
        if len(size) < rule.target:
            return True
        return sum(min(share_max, count) for count in size.values()) < self.ring.ensemble

    def _must_lack(self, rule: Rule, window: Sequence[int]) -> int:
        """Return how many domains `window` will lack at least, whatever its open positions get."""
        there = {
            getattr(one, rule.level) for index in window if (one := self.at[index]) is not None
        }
        still_open = sum(self.at[index] is None for index in window)
        return max(0, rule.target - len(there) - still_open)

    def _lacking_at_start(self) -> int:
        return sum(
            rule.cost * self._must_lack(rule, window)
            for rule in self.rules.required
            for window in self.windows
        )

    def _tier_floor(self, depth: int) -> int:
        """Return what the tiers of the bookies for the positions from `depth` on cost at least."""
        needed, floor = len(self.open) - depth, 0
        for tier, count in enumerate(self.left_of_tier):
            taken = min(needed, count)
            floor += taken * TIER_COSTS[tier]
            needed -= taken
        return floor

    def _shares_floor(self) -> int:
        """Return what the most even shares cost, if only sizes mattered: fill the emptiest place each time."""
        if not self.rules.has_even_shares:
            return 0
        size: Counter[str] = Counter()
        for cell in self.cells:
            size[cell.domains.upper] += len(cell.ranked)
        levels = [(self.upper_used[upper], count, upper) for upper, count in size.items()]
        heapify(levels)
        floor = 0
        for _ in self.open:
            used, count, upper = levels[0]
            floor += 2 * used + 1
            # A place that is used up goes behind all that are not.
            heapreplace(levels, (used + 1 if count > 1 else 1 << 30, count - 1, upper))
        return floor

    def _sort_into_kinds(self) -> None:
        """Group the cells that are alike as long as nobody uses their place: same tier, same sizes around."""
        by_whole: dict[str, list[_Cell]] = defaultdict(list)
        for cell in self.cells:
            by_whole[cell.domains.whole].append(cell)
        shape = _numbered(
            {
                whole: tuple(sorted((cell.tier, len(cell.ranked)) for cell in cells))
                for whole, cells in by_whole.items()
            }
        )
        wholes: dict[str, list[str]] = defaultdict(list)
        for whole, cells in by_whole.items():
            wholes[cells[0].domains.upper].append(whole)
        upper_shape = _numbered(
            {
                upper: tuple(sorted(shape[whole] for whole in inside))
                for upper, inside in wholes.items()
            }
        )
        self.cells_of_whole = by_whole
        self.kinds_of_upper: dict[str, dict[object, list[_Cell]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.kinds: dict[object, list[_Cell]] = defaultdict(list)
        for cell in self.cells:  # by ticket, so that the first of a kind is the luckiest
            upper, whole = cell.domains
            kind = (cell.tier, shape[whole])
            self.kinds_of_upper[upper][kind].append(cell)
            self.kinds[*kind, upper_shape[upper]].append(cell)

    # The way down

    def descend(self, depth: int, cost: int) -> None:
        """Fill the positions from `depth` on in every way that may still be the best."""
        if depth == len(self.open):
            self.best, self.best_cost = dict(self.filled), cost  # better than what was: see below
            return
        position = self.open[depth]
        for option_cost, _, _, _, cell in self._options(position):
            if self.is_exhausted or self.best_cost == self.goal:
                return
            if depth < self.deepest:
                if self.steps.left <= 0:
                    self.is_exhausted = True
                    return
                self.steps.left -= self.price
            self.deepest = max(self.deepest, depth + 1)
            new_cost = cost + option_cost
            self._place(position, cell)
            if self.best_cost is None or new_cost + self._tier_floor(depth + 1) < self.best_cost:
                self.descend(depth + 1, new_cost)
            self._undo(position, cell)

    def _place(self, position: int, cell: _Cell) -> None:
        self.filled[position] = cell.ranked[cell.taken].view.bookie_id
        cell.taken += 1
        self.left_of_tier[cell.tier] -= 1
        self.at[position] = cell.domains
        self.upper_used[cell.domains.upper] += 1
        self.whole_used[cell.domains.whole] += 1

    def _undo(self, position: int, cell: _Cell) -> None:
        del self.filled[position]
        cell.taken -= 1
        self.left_of_tier[cell.tier] += 1
        self.at[position] = None
        self.upper_used[cell.domains.upper] -= 1
        self.whole_used[cell.domains.whole] -= 1

    def _options(self, position: int) -> list[_Option]:
        """Return the cells that `position` may get, cheapest first, then fewest repeats, then by ticket."""
        costs, forbidden, repeats = self._repeat_costs(position)
        options: list[_Option] = []
        for cell in self._different_cells():
            upper, whole = cell.domains
            if ("upper", upper) in forbidden or ("whole", whole) in forbidden:
                continue
            cost = TIER_COSTS[cell.tier] + costs["upper", upper] + costs["whole", whole]
            if self.rules.has_even_shares:
                cost += 2 * self.upper_used[upper] + 1
            ticket = cell.ranked[cell.taken].ticket
            options.append((cost, repeats[whole], ticket, len(options), cell))
        options.sort()
        return options

    def _repeat_costs(
        self, position: int
    ) -> tuple[Counter[tuple[str, str]], set[tuple[str, str]], Counter[str]]:
        """Return what using a domain again at `position` costs, which ones may not be, how often each repeats."""
        costs: Counter[tuple[str, str]] = Counter()
        forbidden: set[tuple[str, str]] = set()
        repeats: Counter[str] = Counter()
        for window in self.windows:
            if position not in window:
                continue
            there = [one for index in window if (one := self.at[index]) is not None]
            repeats.update({one.whole for one in there})
            still_open = len(window) - len(there) - 1
            for rule in self.rules.required:
                used = {getattr(one, rule.level) for one in there}
                if len(used) + still_open >= rule.target:
                    continue  # repeating one is made good by the positions still open
                for name in used:
                    costs[rule.level, name] += rule.cost
                if rule.is_enforced:
                    forbidden |= {(rule.level, name) for name in used}
        return costs, forbidden, repeats

    def _different_cells(self) -> list[_Cell]:
        """Return every cell that differs for the search from those before it, and still has a bookie."""
        found: list[_Cell] = []
        for whole, count in self.whole_used.items():
            if count and whole in self.cells_of_whole:
                found += [cell for cell in self.cells_of_whole[whole] if not cell.is_used_up]
        for upper, count in self.upper_used.items():
            if count and upper in self.kinds_of_upper:
                for kind in self.kinds_of_upper[upper].values():
                    found += _first(
                        cell for cell in kind if not self.whole_used[cell.domains.whole]
                    )
        for kind in self.kinds.values():
            found += _first(cell for cell in kind if not self.upper_used[cell.domains.upper])
        return found


def _numbered(shapes: Mapping[str, Hashable]) -> dict[str, int]:
    """Return a small number for each shape: a shape may be long, and is compared often."""
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(shape, len(numbers)) for name, shape in shapes.items()}


def _first(cells: Iterable[_Cell]) -> list[_Cell]:
    """Return the first of `cells` in a list, an empty one if there is none."""
    return next(([cell] for cell in cells), [])


def _cells(pool: Sequence[Candidate], policy: Policy, needed: int) -> list[_Cell]:
    """Return the cells of `pool` in the order of their best tickets, each with `needed` candidates at most."""
    cells: dict[tuple[Domains, int], _Cell] = {}
    for candidate in pool:
        domains = domains_of_view(candidate.view, policy)
        cell = cells.setdefault((domains, candidate.tier), _Cell(domains, candidate.tier, []))
        if len(cell.ranked) < needed:
            cell.ranked.append(candidate)
    return list(cells.values())
