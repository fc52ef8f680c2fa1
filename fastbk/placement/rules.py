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
from fastbk.model.ids import BookieId
from fastbk.placement.config import PlacementConfig, Policy, Topology
from fastbk.placement.pulsar_racks import NO_RACKS, PulsarRacks, pulsar_group
from fastbk.units import format_count

PLACEMENT_KEY = "fastbk.placement"
"""A ledger's custom metadata have its rule under this key."""
GROUP_KEY = "fastbk.group"
"""And its group under this one, `hard:NAME` or `soft:NAME`: versions before 0.4 know no more of a rule."""
RULE_BYTES_MAX = 1024
LOCATIONS_BYTES_MAX = 512 * 1024
"""Of the cluster's table as it is stored: ZooKeeper takes records of 1 MiB."""

RACKS, REGIONS, ZONES, DESIRED_ZONES, ACK_RACKS, ACK_REGIONS, ACK_ZONES = COUNTS = (
    "min_racks_per_write_quorum",
    "min_regions_per_write_quorum",
    "min_zones_per_write_quorum",
    "desired_zones_per_write_quorum",
    "min_racks_per_ack_quorum",
    "min_regions_per_ack_quorum",
    "min_zones_per_ack_quorum",
)
ACK_COUNTS: Final = {ACK_RACKS: RACKS, ACK_REGIONS: REGIONS, ACK_ZONES: ZONES}
"""The counts of acknowledgements, and those of write sets that bound them."""
FIELDS: Final = ("policy", "enforce", *COUNTS, "group", "group_is_hard")
"""Fields of `PlacementConfig` that are a rule's. The others are preferences of whoever chooses."""
COUNTED: Final[Mapping[Policy, tuple[str, ...]]] = {
    "spread": (),
    "rack": (RACKS, ACK_RACKS),
    "region": (RACKS, REGIONS, ACK_RACKS, ACK_REGIONS),
    "zone": (ZONES, DESIRED_ZONES, ACK_ZONES),
}
"""Which counts each policy has; the others do nothing there."""
NOUNS: Final[Mapping[str, str]] = {
    RACKS: "rack",
    REGIONS: "region",
    ZONES: "zone",
    DESIRED_ZONES: "zone",
    ACK_RACKS: "rack",
    ACK_REGIONS: "region",
    ACK_ZONES: "zone",
}
_STRICTER: Final[tuple[Policy, ...]] = ("spread", "rack", "region")
"""Each of these keeps what those before it keep; `zone` counts other domains."""

DEFAULT_RULE = PlacementConfig(policy="rack")
"""Of a cluster that has set none. Where no bookie says where it is, all are in one rack, and it does nothing."""


class ClusterRules(msgspec.Struct, frozen=True):
    """What a cluster says of placement: its rule, and where bookies are (`Topology.of` says how rows are read).

    Attributes:
        pulsar: what Pulsar's node says, which is no part of the record.
    """

    rule: PlacementConfig = DEFAULT_RULE
    locations: Mapping[str, str] = msgspec.field(default_factory=dict)
    pulsar: PulsarRacks = NO_RACKS

    def __post_init__(self) -> None:
        Topology.of(self.locations)
        size_bytes = len(msgspec.json.encode(dict(self.locations)))
        if size_bytes > LOCATIONS_BYTES_MAX:
            raise ConfigError(
                f"{len(self.locations):,} locations of {size_bytes:,} bytes: {LOCATIONS_BYTES_MAX:,} fit into the"
                " record; name whole networks (`10.1.*`), or let bookies say where they are (`[bookie] location`)"
            )


class ClusterPlaces:
    """Where bookies are, and their groups, as a cluster's operators say it: in its table, then in Pulsar's node."""

    def __init__(self, rules: ClusterRules | None = None) -> None:
        rules = ClusterRules() if rules is None else rules
        self._table = Topology.of(rules.locations)
        self._pulsar = rules.pulsar

    def location_of(self, bookie_id: BookieId, host: str = "") -> str | None:
        """Return where a bookie is, None if nobody says it."""
        return (
            self._table.location_of(bookie_id, host)
            or self._pulsar.of(bookie_id, host).location
            or None
        )

    def location_of_client(self, host: str) -> str | None:
        """Return where a client's host is, None if the table does not say it."""
        return self._table.location_of_client(host)

    @property
    def is_known(self) -> bool:
        """Whether they say it of any bookie, so perhaps of one that is away."""
        return self._table != Topology() or bool(self._pulsar.bookies)

    def is_in_table(self, bookie_id: BookieId, host: str = "") -> bool:
        """Return whether the table says it."""
        return self._table.location_of(bookie_id, host) is not None

    def groups_of(self, bookie_id: BookieId, host: str = "") -> frozenset[str]:
        """Return the groups of Pulsar's that a bookie is in."""
        return self._pulsar.of(bookie_id, host).groups


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
    elif rule.enforce or any(getattr(rule, name) > 1 for name in ACK_COUNTS):
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


def keeps_to(rule: PlacementConfig, above: PlacementConfig) -> bool:
    """Return whether a rule is no looser than one above it: narrowing that by it changes nothing (INV-P3)."""
    try:
        return encode_rule(narrowed(above, rule)) == encode_rule(rule)
    except ConfigError:
        return False


def rule_text(rule: PlacementConfig) -> str:
    """Return a rule in words."""
    words: list[str] = [rule.policy]
    counts = [name for name in COUNTED[rule.policy] if name not in (DESIRED_ZONES, *ACK_COUNTS)]
    if counts:
        named = [format_count(getattr(rule, name), NOUNS[name]) for name in counts]
        words.append(f"{' and '.join(named)} in each write set")
    desired = rule.desired_zones_per_write_quorum
    if rule.policy == "zone" and desired > rule.min_zones_per_write_quorum:
        words.append(f"{desired} where possible")
    if rule.policy != "spread":
        words.append("enforced" if rule.enforce else "not enforced")
    acked = [
        name for name in COUNTED[rule.policy] if name in ACK_COUNTS and getattr(rule, name) > 1
    ]
    if acked:
        named = [format_count(getattr(rule, name), NOUNS[name]) for name in acked]
        words.append(f"an append waits for copies in {' and '.join(named)}")
    if rule.group is not None:
        how = "only" if rule.group_is_hard else "first"
        words.append(f"{how} bookies of the group {rule.group}")
    return ", ".join(words)


def custom_rule(rule: PlacementConfig, cluster: PlacementConfig = DEFAULT_RULE) -> dict[str, bytes]:
    """Return what a new ledger's custom metadata have of its rule: nothing of the default, in a cluster that has it."""
    found = {}
    default = encode_rule(DEFAULT_RULE)
    if encode_rule(rule) != default or encode_rule(cluster) != default:
        found[PLACEMENT_KEY] = encode_rule(rule)
    if rule.group is not None:
        kind = "hard" if rule.group_is_hard else "soft"
        found[GROUP_KEY] = f"{kind}:{rule.group}".encode()
    return found


def rule_of(custom: Mapping[str, bytes], cluster: PlacementConfig) -> PlacementConfig:
    """Return the rule of a ledger that exists (INV-P4), from its custom metadata and the cluster's rule.

    One that nobody can read counts as none. Ledgers of versions before 0.4 have a group at most, and so have those of
    Pulsar's isolated namespaces.
    """
    if (stored := custom.get(PLACEMENT_KEY)) is not None:
        try:
            return with_preferences(decode_rule(stored), cluster)
        except ConfigError:
            return cluster
    kind, colon, group = custom.get(GROUP_KEY, b"").decode(errors="replace").partition(":")
    if not colon or kind not in ("soft", "hard"):
        of_pulsar = pulsar_group(custom)
        if of_pulsar is None:
            return cluster
        group, kind = of_pulsar[0], "hard" if of_pulsar[1] else "soft"
    try:
        return replace(cluster, group=group, group_is_hard=kind == "hard")
    except ConfigError:
        return cluster


def is_rule_stored(custom: Mapping[str, bytes]) -> bool:
    """Return whether a ledger's custom metadata have a rule that can be read."""
    try:
        return PLACEMENT_KEY in custom and bool(decode_rule(custom[PLACEMENT_KEY]))
    except ConfigError:
        return False


def with_preferences(rule: PlacementConfig, chooser: PlacementConfig) -> PlacementConfig:
    """Return `rule` with the preferences of whoever chooses."""
    return replace(chooser, **{name: getattr(rule, name) for name in FIELDS})
