"""What Pulsar's operators say of where bookies are: what `pulsar-admin bookies` stores, and what is none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.placement.config import PlacementConfig
from fastbk.placement.pulsar_racks import (
    GROUP_KEY,
    RACKS_BYTES_MAX,
    PulsarBookie,
    decode_racks,
    pulsar_group,
)
from fastbk.placement.rules import ClusterPlaces, ClusterRules, rule_of

# As Jackson writes it: no spaces, groups and bookies sorted, a null left out.
STORED = (
    b'{"default":{"bookie-1:3181":{"rack":"/eu/r1","hostname":"bookie-1"}},'
    b'"ssd":{"10.1.0.2:3181":{"rack":"r2"},"b3":{"rack":"/","hostname":"host-3"}}}'
)
ISOLATED = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"


def test_racks_and_groups_are_read_as_pulsar_reads_them() -> None:
    racks = decode_racks(STORED)
    assert racks.faults == ()
    assert racks.of("bookie-1:3181", "") == PulsarBookie("/eu/r1", frozenset({"default"}))
    assert racks.of("10.1.0.2:3181", "") == PulsarBookie("/r2", frozenset({"ssd"}))
    assert racks.of("b3", "host-3") == PulsarBookie("", frozenset({"ssd"})), "/ is no rack"
    assert racks.of("another-id", "10.1.0.2").location == "/r2", "by the host, as Pulsar does"
    assert racks.of("nobody", "nowhere") == PulsarBookie()


def test_of_a_bookie_in_two_groups_the_last_rack_counts_and_both_groups() -> None:
    racks = decode_racks(b'{"z":{"b1":{"rack":"/r9"}},"a":{"b1":{"rack":"/r1"}}}')
    assert racks.of("b1", "") == PulsarBookie("/r9", frozenset({"a", "z"}))


def test_the_clusters_table_goes_before_pulsars_node() -> None:
    places = ClusterPlaces(
        ClusterRules(locations={"bookie-1:3181": "/us/r7"}, pulsar=decode_racks(STORED))
    )
    assert places.location_of("bookie-1:3181") == "/us/r7"
    assert places.is_in_table("bookie-1:3181") and not places.is_in_table("10.1.0.2:3181")
    assert places.location_of("10.1.0.2:3181") == "/r2"
    assert places.location_of("b3") is None
    assert places.groups_of("bookie-1:3181") == {"default"}


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"bookies of somebody else", "no JSON of groups"),
        (b'{"default":["b1"]}', "no JSON of groups"),
        (b"[" * 100_000, "no JSON of groups"),
        (b" " * RACKS_BYTES_MAX + b"{}", "is read up to 1,048,576"),
    ],
)
def test_what_is_no_such_node_is_named_and_says_nothing(raw: bytes, fault: str) -> None:
    racks = decode_racks(raw)
    assert fault in racks.faults[0]
    assert racks.bookies == {}


def test_one_bad_rack_does_not_hide_the_others() -> None:
    listed = {"default": {f"b{number}": {"rack": f"r {number}"} for number in range(9)}}
    listed["default"]["good"] = {"rack": "/r1"}
    listed["a group, of two"] = {"last": {"rack": "/r2", "some": "day"}}  # type: ignore[dict-item]
    racks = decode_racks(json.dumps(listed).encode())
    assert racks.of("good", "").location == "/r1"
    assert racks.of("last", "").location == "/r2"
    assert racks.of("b1", "") == PulsarBookie("", frozenset({"default"}))
    assert len(racks.faults) == 4 and racks.faults[-1] == "and 7 more"


LEAVES = st.none() | st.booleans() | st.text() | st.integers()


@given(st.recursive(LEAVES, lambda each: st.lists(each) | st.dictionaries(st.text(), each)))
def test_no_json_raises(value: object) -> None:
    decode_racks(json.dumps(value).encode())
    pulsar_group({GROUP_KEY: json.dumps(value).encode()})


def policy(**properties: object) -> dict[str, bytes]:
    return {GROUP_KEY: json.dumps({"policyClass": ISOLATED, "properties": properties}).encode()}


@pytest.mark.parametrize(
    ("custom", "found"),
    [
        (policy(isolationBookieGroups="ssd"), ("ssd", True)),
        (policy(isolationBookieGroups="ssd", secondaryIsolationBookieGroups=""), ("ssd", True)),
        (policy(isolationBookieGroups="ssd", secondaryIsolationBookieGroups="b"), ("ssd", False)),
        (policy(isolationBookieGroups=["ssd"]), ("ssd", True)),
        (policy(isolationBookieGroups="ssd,hdd"), None),
        (policy(), None),
        ({GROUP_KEY: b'{"policyClass":"org.example.Mine","properties":{}}'}, None),
        ({GROUP_KEY: b"no JSON"}, None),
        ({}, None),
    ],
)
def test_a_ledger_of_an_isolated_namespace_stays_in_its_group(
    custom: dict[str, bytes], found: tuple[str, bool] | None
) -> None:
    """INV-P4: also for ledgers that Pulsar's broker has made."""
    assert pulsar_group(custom) == found
    racks = PlacementConfig(policy="rack", enforce=True)
    rule = rule_of(custom, racks)
    assert (rule.policy, rule.enforce) == ("rack", True)
    assert (rule.group, rule.group_is_hard) == (found or (None, False))
