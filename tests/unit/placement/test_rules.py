"""Rules of placement: how they are stored, and what is left of a cluster's and a call's together (INV-P3, INV-P4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError
from fastbk.placement.choose_ensemble import placement_faults
from fastbk.placement.config import ACK_MINIMUM_POLICIES, BookieView, PlacementConfig
from fastbk.placement.rules import (
    ACK_COUNTS,
    DEFAULT_RULE,
    GROUP_KEY,
    LOCATIONS_BYTES_MAX,
    PLACEMENT_KEY,
    RULE_BYTES_MAX,
    ClusterRules,
    custom_rule,
    decode_cluster,
    decode_rule,
    encode_cluster,
    encode_rule,
    keeps_to,
    narrowed,
    rule_of,
)

POLICIES = ("spread", "rack", "region", "zone")
PREFERENCES = PlacementConfig(weighted=True, local_first=True, search_steps_max=99)


@st.composite
def rules(draw: st.DrawFn) -> PlacementConfig:
    counts = [draw(st.integers(1, 4)) for _ in range(4)]
    group = draw(st.sampled_from((None, "gold", "ssd")))
    policy = draw(st.sampled_from(POLICIES))
    acked = {
        f"min_{domains}_per_ack_quorum": draw(st.integers(1, count))
        for (domains, policies), count in zip(ACK_MINIMUM_POLICIES.items(), counts, strict=False)
        if policy in policies
    }
    return PlacementConfig(
        policy=policy,
        **acked,
        enforce=draw(st.booleans()),
        min_racks_per_write_quorum=counts[0],
        min_regions_per_write_quorum=counts[1],
        min_zones_per_write_quorum=counts[2],
        desired_zones_per_write_quorum=max(counts[2:]),
        group=group,
        group_is_hard=group is not None and draw(st.booleans()),
    )


def counts_acks(rule: PlacementConfig) -> bool:
    """Whether an append waits for several domains."""
    return any(getattr(rule, name) > 1 for name in ACK_COUNTS)


@given(rules())
def test_a_rule_is_stored_and_found_again(rule: PlacementConfig) -> None:
    assert decode_rule(encode_rule(rule)) == rule
    custom = custom_rule(rule)
    kept = rule_of(custom, PREFERENCES)
    if custom:
        assert kept == replace(rule, weighted=True, local_first=True, search_steps_max=99), (
            "the chooser's preferences, the ledger's rule"
        )
    else:
        assert encode_rule(rule) == encode_rule(DEFAULT_RULE) and kept == PREFERENCES
    assert sum(map(len, custom.values())) < RULE_BYTES_MAX


@given(rules(), rules(), st.data())
def test_what_keeps_to_both_breaks_neither(
    rule: PlacementConfig, wish: PlacementConfig, data: st.DataObject
) -> None:
    """INV-P3: an ensemble without a fault under the narrowed rule has none under either."""
    try:
        both = narrowed(rule, wish)
    except ConfigError:
        assert rule.enforce or rule.group_is_hard or counts_acks(rule)
        return
    bookies = [
        BookieView(
            f"b{number}",
            location=data.draw(st.sampled_from(("/r1/a", "/r1/b", "/r2/c", "/r2/d", "/r3/e"))),
            labels=data.draw(st.sampled_from((frozenset({"gold"}), frozenset({"gold", "ssd"})))),
        )
        for number in range(5)
    ]
    size = data.draw(st.integers(1, 5))
    quorum = data.draw(st.integers(1, size))
    ensemble = [bookie.bookie_id for bookie in bookies[:size]]

    def faults(config: PlacementConfig) -> list[str]:
        return placement_faults(bookies, ensemble, quorum, 1, config)

    if faults(both):
        return
    assert not faults(wish)
    may_differ = not rule.enforce and "zone" in {rule.policy, wish.policy}
    is_other_group = wish.group not in (None, rule.group)
    if not may_differ and not is_other_group:
        assert not faults(rule)
    assert both.enforce == (rule.enforce or wish.enforce)
    for name in ACK_COUNTS:
        assert getattr(both, name) >= max(getattr(rule, name), getattr(wish, name))


@given(rules(), rules())
def test_what_is_left_of_two_rules_is_no_looser_than_either(
    rule: PlacementConfig, wish: PlacementConfig
) -> None:
    """INV-P3: whoever judges a client's rule by `keeps_to` refuses none that the client has narrowed."""
    try:
        both = narrowed(rule, wish)
    except ConfigError:
        assert not keeps_to(wish, rule)
    else:
        assert keeps_to(both, rule)
        assert keeps_to(wish, rule) == (encode_rule(both) == encode_rule(wish))


@given(rules())
def test_a_wish_of_nothing_is_the_rule_itself(rule: PlacementConfig) -> None:
    narrow = narrowed(rule, PREFERENCES)
    assert (narrow.policy, narrow.enforce, narrow.group) == (rule.policy, rule.enforce, rule.group)
    assert narrow.weighted and narrow.local_first


@pytest.mark.parametrize(
    ("rule", "wish", "reason"),
    [
        (
            PlacementConfig(policy="rack", enforce=True),
            PlacementConfig(policy="zone"),
            "counts other domains",
        ),
        (
            PlacementConfig(policy="rack", min_racks_per_ack_quorum=2),
            PlacementConfig(policy="zone"),
            "counts other domains",
        ),
        (
            PlacementConfig(group="gold", group_is_hard=True),
            PlacementConfig(group="ssd"),
            "only bookies of the group 'gold'",
        ),
    ],
)
def test_what_nothing_can_keep_to_is_refused(
    rule: PlacementConfig, wish: PlacementConfig, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        narrowed(rule, wish)


BAD_RULES = (
    b"",
    b"[]",
    b"\xff",
    b"[" * 5000,
    b'{"policy":"x"}',
    b'{"policy":"rack","min_racks_per_write_quorum":0}',
    b'{"policy":"rack","min_racks_per_write_quorum":"2"}',
    b'{"policy":"spread","group_is_hard":true}',
    b'{"policy":"spread","more":"' + b"x" * RULE_BYTES_MAX + b'"}',
)


@pytest.mark.parametrize("stored", BAD_RULES)
def test_a_rule_that_nobody_can_read_is_none(stored: bytes) -> None:
    with pytest.raises(ConfigError):
        decode_rule(stored)
    cluster = PlacementConfig(policy="region", enforce=True)
    assert rule_of({PLACEMENT_KEY: stored}, cluster) == cluster
    with pytest.raises(ConfigError):
        decode_cluster(b'{"rule":' + stored + b"}")


def test_what_a_later_version_adds_is_passed_over() -> None:
    assert decode_rule(b'{"policy":"rack","moon":3}') == DEFAULT_RULE
    assert decode_cluster(b'{"moon":[1]}') == ClusterRules()


@pytest.mark.parametrize(
    ("stored", "group", "is_hard"),
    [
        (b"hard:gold", "gold", True),
        (b"soft:gold", "gold", False),
        (b"gold", None, False),
        (b"soft:", None, False),
        (b"hard: ", None, False),
        (b"more:gold", None, False),
        (b"\xff:gold", None, False),
    ],
)
def test_a_ledger_of_an_older_version_has_a_group_at_most(
    stored: bytes, group: str | None, is_hard: bool
) -> None:
    cluster = PlacementConfig(policy="region", enforce=True)
    expected = replace(cluster, group=group, group_is_hard=is_hard)
    assert rule_of({GROUP_KEY: stored}, cluster) == expected


@given(rules(), st.dictionaries(st.sampled_from(("b1", "10.1.*", "h")), st.just("/r/k")))
def test_a_clusters_rules_are_stored_and_found_again(
    rule: PlacementConfig, locations: dict[str, str]
) -> None:
    cluster = ClusterRules(rule, locations)
    assert decode_cluster(encode_cluster(cluster)) == cluster


@pytest.mark.parametrize(
    "locations",
    [
        {"b1": "rack"},
        {"a*b": "/r"},
        {"b" * 400 + str(n): "/r" for n in range(LOCATIONS_BYTES_MAX // 400)},
    ],
)
def test_a_table_that_is_wrong_is_refused(locations: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        ClusterRules(DEFAULT_RULE, locations)
