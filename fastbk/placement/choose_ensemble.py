"""Which bookies hold a new fragment, and which take the place of bad ones: the calls that clients and tools use.

Pure: what is known of the bookies, the wishes and the chance all come as arguments. How a choice is made stands
in README.md; the parts are `candidates` (who may be taken, in which order), `rules` (what each write set needs)
and `search` (the best arrangement around the ring).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from fastbk.errors import ConfigError, NotEnoughBookies
from fastbk.invariant import check
from fastbk.model.ids import BookieId
from fastbk.model.quorum import check_quorums
from fastbk.placement.candidates import WANTED_TIER, Candidate, Candidates, gather
from fastbk.placement.rules import (
    MINIMUM,
    Domains,
    domains_of,
    domains_of_view,
    rules_of,
    windows_of,
)
from fastbk.placement.search import Ring, Steps, best_arrangement
from fastbk.placement.values import DEFAULT_LOCATION, BookieView, Chance, PlacementConfig, Policy
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
    check(len(set(chosen)) == ensemble, f"INV-P1: a bookie twice in {chosen}")
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
    views = {view.bookie_id: view for view in bookies}
    members = [views.get(bookie_id) for bookie_id in ensemble]
    faults = [
        f"{bookie_id} is {count} times in the ensemble"
        for bookie_id, count in {one: ensemble.count(one) for one in ensemble}.items()
        if count > 1
    ]
    if config.group is not None:
        faults += [
            f"{view.bookie_id} is not in the group {config.group!r}"
            for view in members
            if view is not None and config.group not in view.labels
        ]
    places = [
        domains_of(DEFAULT_LOCATION if view is None else view.location, config.policy)
        for view in members
    ]
    for rule in rules_of(config, write_quorum).required:
        if rule.cost < MINIMUM:
            continue
        for window in windows_of(len(ensemble), write_quorum):
            names = sorted({getattr(places[index], rule.level) for index in window})
            if len(names) < rule.target:
                members_named = ", ".join(ensemble[index] for index in window)
                plural = "" if len(names) == 1 else "s"
                faults.append(
                    f"the write set {members_named} spans {len(names)} {rule.noun}{plural}"
                    f" ({', '.join(names)}), the minimum is {rule.target}"
                )
    return faults
