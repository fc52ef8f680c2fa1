"""Which rule counts for a ledger: the cluster's, narrowed by what a call wants, and stored with the ledger.

An example: the cluster's rule is `rack`, two racks, enforced. `create_ledger(placement=PlacementConfig(group="ssd"))`
narrows it to bookies with that label, and the ledger keeps both. A year later AutoRecovery, which knows nothing of that
call, copies what a lost bookie held: into two racks, and to bookies with that label.

INV-P3: what a call wants narrows the rule of its namespace and cluster, and never loosens it.
INV-P4: whoever chooses a bookie for a ledger that exists keeps to the rule that is stored with it, and to the cluster's
where none is.

Decision 168.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from fastbk.errors import ConfigError
from fastbk.placement.config import PlacementConfig, Policy, Topology

PLACEMENT_KEY = "fastbk.placement"
"""A ledger's custom metadata have its rule under this key."""
GROUP_KEY = "fastbk.group"
"""And its group under this one, `hard:NAME` or `soft:NAME`: versions before 0.4 know no more of a rule."""
RULE_BYTES_MAX = 1024
LOCATIONS_BYTES_MAX = 512 * 1024
"""Of the cluster's table as it is stored: ZooKeeper takes records of 1 MiB."""

RACKS, REGIONS, ZONES, DESIRED_ZONES = COUNTS = (
    "min_racks_per_write_quorum",
    "min_regions_per_write_quorum",
    "min_zones_per_write_quorum",
    "desired_zones_per_write_quorum",
)
FIELDS: Final = ("policy", "enforce", *COUNTS, "group", "group_is_hard")
"""Fields of `PlacementConfig` that are a rule's. The others are preferences of whoever chooses."""
COUNTED: Final[Mapping[Policy, tuple[str, ...]]] = {
    "spread": (),
    "rack": (RACKS,),
    "region": (RACKS, REGIONS),
    "zone": (ZONES, DESIRED_ZONES),
}
"""Which counts each policy has; the others do nothing there."""
_STRICTER: Final[tuple[Policy, ...]] = ("spread", "rack", "region")
"""Each of these keeps what those before it keep; `zone` counts other domains."""

DEFAULT_RULE = PlacementConfig(policy="rack")
"""Of a cluster that has set none. Where no bookie says where it is, all are in one rack, and it does nothing."""


class ClusterRules(msgspec.Struct, frozen=True):
    """What a cluster says of placement: its rule, and where bookies are (`Topology.of` says how rows are read)."""

    rule: PlacementConfig = DEFAULT_RULE
    locations: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        Topology.of(self.locations)
        size_bytes = len(msgspec.json.encode(dict(self.locations)))
        if size_bytes > LOCATIONS_BYTES_MAX:
            raise ConfigError(
                f"{len(self.locations):,} locations of {size_bytes:,} bytes: {LOCATIONS_BYTES_MAX:,} fit into the"
                " record; name whole networks (`10.1.*`), or let bookies say where they are (`[bookie] location`)"
            )


def encode_rule(rule: PlacementConfig) -> bytes:
    """Return a rule as it is stored: JSON with the policy and what differs from the defaults."""
    plain = PlacementConfig()
    fields = {
        name: value
        for name in FIELDS
        if (value := getattr(rule, name)) != getattr(plain, name) or name == "policy"
    }
    return msgspec.json.encode(fields)


def decode_rule(stored: bytes) -> PlacementConfig:
    """Return a stored rule. Fields of later versions are passed over. Raises ConfigError: nobody can read it."""
    if len(stored) > RULE_BYTES_MAX:
        raise ConfigError(
            f"a stored placement rule of {len(stored):,} bytes: it has {RULE_BYTES_MAX:,} at most"
        )
    try:
        fields = msgspec.json.decode(stored, type=dict[str, Any])
        known = {name: fields[name] for name in FIELDS if name in fields}
        return msgspec.convert(known, PlacementConfig)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"a stored placement rule that nobody can read: {error}") from error


def encode_cluster(rules: ClusterRules) -> bytes:
    """Return the cluster's record: `{"rule": ..., "locations": ...}`."""
    return msgspec.json.encode(
        {"rule": msgspec.Raw(encode_rule(rules.rule)), "locations": dict(rules.locations)}
    )


def decode_cluster(stored: bytes) -> ClusterRules:
    """Return what the cluster's record says. Raises ConfigError: nobody can read it."""
    try:
        fields = msgspec.json.decode(stored, type=dict[str, msgspec.Raw])
        locations = msgspec.json.decode(fields.get("locations", b"{}"), type=dict[str, str])
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is no record of placement: {error}") from error
    rule = decode_rule(bytes(fields["rule"])) if "rule" in fields else DEFAULT_RULE
    return ClusterRules(rule, locations)


def narrowed(rule: PlacementConfig, wish: PlacementConfig) -> PlacementConfig:
    """Return what keeps to both (INV-P3), with the preferences of `wish`.

    Of two groups of which none is hard the wish's counts. So does its policy where neither includes the other, unless
    the rule's is enforced. Raises ConfigError where nothing can keep to both.
    """
    if wish.policy == rule.policy or rule.policy == "spread":
        policy = wish.policy
    elif wish.policy == "spread":
        policy = rule.policy
    elif "zone" not in (wish.policy, rule.policy):
        policy = max(rule.policy, wish.policy, key=_STRICTER.index)
    elif rule.enforce:
        raise ConfigError(
            f"placement policy {wish.policy!r}: the rule here is {rule.policy!r}, enforced, and counts other domains"
        )
    else:
        policy = wish.policy
    counts = {
        name: max(getattr(one, name) for one in (rule, wish) if name in COUNTED[one.policy])
        for name in COUNTED[policy]
        if name in COUNTED[rule.policy] or name in COUNTED[wish.policy]
    }
    group, is_hard = wish.group or rule.group, wish.group_is_hard
    if rule.group is not None and wish.group in (None, rule.group):
        is_hard = is_hard or rule.group_is_hard
    elif rule.group is not None and rule.group_is_hard:
        raise ConfigError(
            f"placement group {wish.group!r}: the rule here takes only bookies of the group {rule.group!r}"
        )
    return replace(
        wish,
        policy=policy,
        enforce=rule.enforce or wish.enforce,
        group=group,
        group_is_hard=is_hard,
        **counts,
    )


def custom_rule(rule: PlacementConfig) -> dict[str, bytes]:
    """Return what a new ledger's custom metadata have of its rule: nothing of one that a cluster has by default."""
    found = {}
    if encode_rule(rule) != encode_rule(DEFAULT_RULE):
        found[PLACEMENT_KEY] = encode_rule(rule)
    if rule.group is not None:
        kind = "hard" if rule.group_is_hard else "soft"
        found[GROUP_KEY] = f"{kind}:{rule.group}".encode()
    return found


def rule_of(custom: Mapping[str, bytes], cluster: PlacementConfig) -> PlacementConfig:
    """Return the rule of a ledger that exists (INV-P4), from its custom metadata and the cluster's rule.

    One that nobody can read counts as none. Ledgers of versions before 0.4 have a group at most.
    """
    if (stored := custom.get(PLACEMENT_KEY)) is not None:
        try:
            return with_preferences(decode_rule(stored), cluster)
        except ConfigError:
            return cluster
    kind, colon, group = custom.get(GROUP_KEY, b"").decode(errors="replace").partition(":")
    if not colon or kind not in ("soft", "hard"):
        return cluster
    try:
        return replace(cluster, group=group, group_is_hard=kind == "hard")
    except ConfigError:
        return cluster


def with_preferences(rule: PlacementConfig, chooser: PlacementConfig) -> PlacementConfig:
    """Return `rule` with the preferences of whoever chooses."""
    return replace(chooser, **{name: getattr(rule, name) for name in FIELDS})
