"""What a policy asks of every write set of an ensemble: so many different domains, at two levels.

A location has an upper domain (region, zone) and a whole one (region and rack, zone and upgrade domain). A rule
counts the different domains of one level in a write set. The cost of an arrangement is what its write sets lack,
each rule in a weight class of its own, so that no number of small faults outweighs a large one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from fastbk.model.quorum import ENSEMBLE_SIZE_MAX, write_sets
from fastbk.placement.values import DEFAULT_LOCATION, BookieView, PlacementConfig, Policy

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
    """Of each domain that a write set lacks."""
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

    def rule(level: Literal["upper", "whole"], wanted: int, cost: int, noun: str) -> Rule:
        is_enforced = config.enforce and cost == MINIMUM
        return Rule(level, min(wanted, write_quorum), cost, is_enforced, noun)

    racks, regions = config.min_racks_per_write_quorum, config.min_regions_per_write_quorum
    zones, desired_zones = config.min_zones_per_write_quorum, config.desired_zones_per_write_quorum
    if config.policy == "rack":
        return Rules((rule("whole", racks, MINIMUM, "rack"),))
    if config.policy == "region":
        required = (
            rule("upper", regions, MINIMUM, "region"),
            rule("whole", racks, MINIMUM, "rack"),
        )
        return Rules(required, has_even_shares=True)
    if config.policy == "zone":
        return Rules(
            (
                rule("upper", zones, MINIMUM, "zone"),
                rule("upper", desired_zones, WANTED, "zone"),
                rule("whole", write_quorum, PREFERENCE, "upgrade domain"),
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
