"""Ledgers that are made in a namespace: they have its label, and what its policy says of quorums and placement."""

from __future__ import annotations

import pytest

import fastbk
import fastbk.sync
from fastbk.errors import ConfigError, NotEnoughBookies, StreamNotFound
from fastbk.meta.placement_record import change_rules
from fastbk.model.entry import DigestType
from fastbk.model.ledger import NAMESPACE_KEY
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import PLACEMENT_KEY, ClusterRules, decode_rule
from fastbk.stream.policy import PolicyPatch
from tests.unit.client.fake_cluster import fake_cluster

PLACES = {"b0": "/r1/a", "b1": "/r1/b", "b2": "/r1/c", "b3": "/r2/d"}
REGIONS = PolicyPatch(
    placement="region",
    placement_enforced=True,
    ensemble=2,
    write_quorum=2,
    ack_quorum=2,
    digest="crc32",
)


async def test_a_ledger_of_a_namespace_is_as_its_policy_says() -> None:
    """INV-P3: the namespace's rule narrows the cluster's, a call's wish narrows both."""
    async with fake_cluster(4, topology=PLACES) as (client, _, _):
        shop = client.namespace("shop")
        await shop.create(REGIONS)
        for wish in (None, PlacementConfig(), PlacementConfig(policy="rack")):
            async with await shop.create_ledger(placement=wish, metadata={"a": b"b"}) as writer:
                found = writer.metadata
                assert (found.ensemble_size, found.write_quorum, found.ack_quorum) == (2, 2, 2)
                assert found.digest_type is DigestType.CRC32
                assert (found.namespace, found.custom["a"]) == ("shop", b"b")
                rule = decode_rule(found.custom[PLACEMENT_KEY])
                assert (rule.policy, rule.enforce) == ("region", True)
                assert "b3" in writer.stats().ensemble
        async with await shop.create_ledger(3, 3) as writer:
            assert writer.metadata.ack_quorum == 2, "a majority of what the call says"
        with pytest.raises(ConfigError, match="enforced"):
            await shop.create_ledger(placement=PlacementConfig(policy="zone"))
        with pytest.raises(StreamNotFound):
            await client.namespace("nowhere").create_ledger()
        async with await client.namespace().create_ledger() as writer:
            assert NAMESPACE_KEY not in writer.metadata.custom, "the root has no name"


async def test_a_ledger_that_only_names_its_namespace_keeps_to_its_rule() -> None:
    """As those of `connect(namespace=...)`. A namespace that is not there wants nothing: tokens know it by its name."""
    async with fake_cluster(4, topology=PLACES, namespace="shop") as (client, _, store):
        async with await client.create_ledger(2, 2) as writer:
            assert PLACEMENT_KEY not in writer.metadata.custom
        async with fastbk.connect(store, topology=PLACES, namespace="shop") as other:
            await other.namespace("shop").create(REGIONS)
            for metadata in (None, {NAMESPACE_KEY: b"shop"}):
                async with await other.create_ledger(2, 2, metadata=metadata) as writer:
                    assert decode_rule(writer.metadata.custom[PLACEMENT_KEY]).policy == "region"
                    assert "b3" in writer.stats().ensemble
            async with await other.create_ledger(2, 2, metadata={NAMESPACE_KEY: b"a//b"}):
                pass  # no path: none is there
            await other.check_bookies(2, 2, 2)
            await other.namespace("shop").set_policy(PolicyPatch(regions_min=2))
        async with fastbk.connect(store, topology={"b*": "/r1/a"}, namespace="shop") as near:
            with pytest.raises(NotEnoughBookies):
                await near.create_ledger(2, 2)
            with pytest.raises(NotEnoughBookies):
                await near.check_bookies(2, 2, 2)


async def test_a_ledgers_rule_is_stored_where_the_clusters_is_another_one() -> None:
    """INV-P4: `rack` is the default of a cluster that says nothing, and here the cluster says `spread`."""
    async with fake_cluster(3) as (client, _, store):
        change_rules(store, lambda _: ClusterRules(PlacementConfig()))
        shop = client.namespace("shop")
        await shop.create(PolicyPatch(placement="rack"))
        async with await shop.create_ledger() as writer:
            assert decode_rule(writer.metadata.custom[PLACEMENT_KEY]).policy == "rack"


def test_the_client_without_await_makes_such_ledgers_too(tmp_path: object) -> None:
    with fastbk.sync.connect(f"memory:{tmp_path}") as client:
        shop = client.namespace("shop")
        shop.create(PolicyPatch(allow_missing_bookies=False))
        with pytest.raises(NotEnoughBookies, match="1 bookie is needed"):
            shop.create_ledger(1, 1, 1)
