"""Where copies lie is not left to clients: a gateway judges rules and ensembles that they name (INV-W9, INV-W10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

import fastbk
from fastbk.cli.cluster_placement import warnings_of
from fastbk.client.placement_judge import read_judge
from fastbk.errors import ConfigError, NotEnoughBookies, Unauthorized
from fastbk.gateway.access import NamespaceTree
from fastbk.gateway.operations import check_changed_placement, check_new_placement
from fastbk.meta import MetadataStore
from fastbk.meta.placement_record import change_rules, read_rules
from fastbk.meta.records import Change
from fastbk.model.ledger import PLACEHOLDER, Fragment, LedgerMetadata, custom_of_stream
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import ACK_RACKS, ClusterRules, custom_rule
from fastbk.security.rights import OPERATIONS
from fastbk.stream.namespace.tree import (
    ROOT_ID,
    NamespaceRecord,
    StreamRecord,
    put,
)
from fastbk.stream.paths import namespace_path, stream_path
from fastbk.stream.policy import PolicyPatch
from tests.fixtures.gateway_store import (
    BANK,
    ORDERS,
    SHOP,
    WRITER,
    behind_gateway,
    of,
    principal,
    two_namespaces,
    version_of,
)
from tests.fixtures.metadata import set_level
from tests.fixtures.placed import TABLE, know, register
from tests.unit.client.fake_cluster import fake_cluster

RACKS = PlacementConfig(policy="rack", enforce=True)
REGIONS = PolicyPatch(placement="region", placement_enforced=True)


@pytest.fixture
def store(tmp_path: object) -> MetadataStore:
    """Four bookies in three racks and two regions, of whom all is known; see `TABLE`."""
    made = two_namespaces(f"placement {tmp_path}")
    set_level(made, 4)
    register(made, "b1", "b2", "b3", "b4")
    change_rules(made, lambda _: ClusterRules(RACKS, TABLE))
    return made


def value(
    *ensemble: str, rule: PlacementConfig | None = RACKS, custom: dict[str, bytes] | None = None
) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=len(ensemble),
        write_quorum=2,
        ack_quorum=2,
        fragments=(Fragment(0, ensemble),),
        creation_token=7,
        custom={**(custom or {}), **({} if rule is None else custom_rule(rule, RACKS))},
    )


def create(store: MetadataStore, made: LedgerMetadata, *operations: str) -> int:
    ledger_id = store.next_ledger_id()
    of(store, *(operations or WRITER)).create_ledger(ledger_id, made)
    return ledger_id


def set_policy(store: MetadataStore, namespace_id: str, name: str, policy: PolicyPatch) -> None:
    path = namespace_path(namespace_id)
    record = NamespaceRecord(ROOT_ID, name, policy)
    store.records.change([Change(path, put(record), version_of(store, path))])


# --- ledgers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (PlacementConfig(), "its rule of placement, spread, is looser than that of the cluster"),
        (replace(RACKS, enforce=False), "looser"),
        (replace(RACKS, min_racks_per_write_quorum=1), "looser"),
        (None, "stores no rule of placement, and the cluster's binds"),
    ],
)
def test_a_ledger_with_a_looser_rule_than_the_clusters_is_refused(
    store: MetadataStore, rule: PlacementConfig | None, says: str
) -> None:
    for operations in (WRITER, OPERATIONS):
        with pytest.raises(Unauthorized, match=says):
            create(store, value("b1", "b3", rule=rule), *operations)
    create(store, value("b1", "b3", rule=replace(RACKS, min_racks_per_write_quorum=2)))
    create(store, value("b1", "b4", rule=PlacementConfig(policy="region", enforce=True)))
    of(store, *WRITER).create_ledger(store.next_ledger_id(), PLACEHOLDER)


def test_bookies_that_break_an_enforced_rule_are_refused(store: MetadataStore) -> None:
    know(store, "away")
    with pytest.raises(Unauthorized, match=r"the write set b1, b2 spans 1 rack \(.*/eu/r1"):
        create(store, value("b1", "b2"))
    create(store, value("b1", "away"))
    create(store, value("b1", "never-seen"))  # where these are nobody says
    grouped = replace(RACKS, group="ssd", group_is_hard=True)
    with pytest.raises(Unauthorized, match="b1 is not in the group 'ssd'"):
        create(store, value("b1", "b3", rule=grouped))


def test_what_is_not_enforced_is_the_clients_choice(store: MetadataStore) -> None:
    soft = replace(RACKS, enforce=False)
    change_rules(store, lambda rules: replace_rule(rules, soft))
    create(store, value("b1", "b2", rule=None))
    change_rules(store, lambda rules: replace_rule(rules, replace(soft, **{ACK_RACKS: 2})))
    with pytest.raises(Unauthorized, match="the cluster's binds"):
        create(store, value("b1", "b2", rule=None))  # its writer would not wait for two racks
    change_rules(store, lambda rules: replace_rule(rules, soft))
    with pytest.raises(Unauthorized, match="spans 1 rack"):
        create(store, value("b1", "b2"))


def replace_rule(rules: ClusterRules, rule: PlacementConfig) -> ClusterRules:
    return ClusterRules(rule, rules.locations)


def test_a_namespaces_and_a_streams_rule_count_too(store: MetadataStore) -> None:
    set_policy(store, SHOP, "shop", REGIONS)
    mine, regions = {"fastbk.namespace": b"shop"}, PlacementConfig(policy="region", enforce=True)
    for custom in (mine, custom_of_stream(ORDERS, "shop")):
        with pytest.raises(Unauthorized, match=r"looser than that of (namespace shop|stream)"):
            create(store, value("b1", "b3", custom=custom))
        with pytest.raises(Unauthorized, match="spans 1 region"):
            create(store, value("b1", "b3", rule=regions, custom=custom))
        create(store, value("b1", "b4", rule=regions, custom=custom))
    # A stream may be looser than its namespace, as somebody with `admin` has said; one of another namespace may not.
    path = stream_path(ORDERS)
    own = StreamRecord(SHOP, "orders", PolicyPatch(placement="spread", placement_enforced=False))
    store.records.change([Change(path, put(own), version_of(store, path))])
    create(store, value("b1", "b3", custom=custom_of_stream(ORDERS, "shop")))
    set_policy(store, BANK, "bank", REGIONS)
    with pytest.raises(Unauthorized, match="looser than that of namespace bank"):
        create(store, value("b1", "b3", custom=custom_of_stream(ORDERS, "bank")))
    for free in ("lab", "a//b", "shop/orders", "x" * 3000):
        create(store, value("b1", "b3", custom={"fastbk.namespace": free.encode()}))


def test_an_ensemble_change_keeps_to_the_rule_that_is_stored(store: MetadataStore) -> None:
    ledger_id = create(store, value("b1", "b3"))
    writer, known = of(store, *WRITER), store.read_ledger(ledger_id)
    bad = replace(known.metadata, fragments=(Fragment(0, ("b1", "b2")),))
    with pytest.raises(Unauthorized, match="which is enforced: the write set b1, b2"):
        writer.update_ledger(ledger_id, bad, known.version)
    # The rule stays what it was, whatever becomes of the cluster's.
    change_rules(store, lambda rules: replace_rule(rules, PlacementConfig()))
    with pytest.raises(Unauthorized, match="which is enforced"):
        writer.update_ledger(ledger_id, bad, known.version)
    looser = replace(known.metadata, custom=custom_rule(PlacementConfig()))
    with pytest.raises(Unauthorized, match=r"may not edit fastbk\.placement"):
        writer.update_ledger(ledger_id, looser, known.version)
    good = replace(known.metadata, fragments=(Fragment(0, ("b1", "b4")),))
    version = writer.update_ledger(ledger_id, good, known.version)
    change_rules(store, lambda rules: ClusterRules(rules.rule, {"b*": "/one"}))
    of(store, *WRITER).update_ledger(ledger_id, good.closed(-1, 0), version)


def test_what_the_gateway_knows_is_read_again_before_it_refuses(store: MetadataStore) -> None:
    """Clients know the rules ten seconds late, and the gateway some: nobody is refused for the other's haste."""
    now_s = 100.0
    tree = NamespaceTree(store.records, clock_s=lambda: now_s)
    check = partial(check_new_placement, store, tree, 1)
    check(value("b1", "b3"))
    reads = count_reads(store)
    for _ in range(9):
        check(value("b1", "b3"))
    assert reads == [], "it is known"
    change_rules(store, lambda rules: ClusterRules(rules.rule, {**rules.locations, "b3": "/eu/r1"}))
    now_s += 20.0
    check(value("b1", "b3"))
    now_s += 31.0
    with pytest.raises(Unauthorized):
        check(value("b1", "b3"))
    change_rules(store, lambda rules: ClusterRules(rules.rule, TABLE))
    now_s += 2.0
    check(value("b1", "b3"))
    old = value("b1", "b3")
    check_changed_placement(store, tree, 1, old, value("b1", "b4"))
    with pytest.raises(Unauthorized):
        check_changed_placement(store, tree, 1, old, value("b1", "b2"))


def count_reads(store: MetadataStore) -> list[str]:
    reads: list[str] = []
    list_bookies: Callable[[], object] = store.list_bookies

    def counted() -> object:
        reads.append("bookies")
        return list_bookies()

    store.list_bookies = counted  # type: ignore[assignment, method-assign]
    return reads


async def test_a_client_that_knows_an_older_rule_is_refused_once_and_chooses_anew() -> None:
    async with fake_cluster(4) as (_, _, store):
        gateway, calls = behind_gateway(store, principal(*OPERATIONS))
        places = {"b0": "/r1", "b1": "/r1", "b2": "/r1", "b3": "/r2"}
        change_rules(store, lambda _: ClusterRules(locations=places))
        async with fastbk.connect(gateway) as client:
            await (await client.create_ledger(2, 2)).close()
            three = PlacementConfig(policy="rack", min_racks_per_write_quorum=2, enforce=True)
            change_rules(store, lambda rules: ClusterRules(three, rules.locations))
            calls.forget()
            async with await client.create_ledger(2, 2) as writer:
                assert "b3" in writer.stats().ensemble
            assert len(calls.refused) == 1
            set_level(store, 4)
            await client.namespace("shop").create()
            await (await client.namespace("shop").create_ledger(2, 2, 2)).close()
            await client.namespace("shop").set_policy(PolicyPatch(racks_min=3, placement="rack"))
            calls.forget()
            with pytest.raises(NotEnoughBookies):
                await client.create_ledger(3, 3, metadata={"fastbk.namespace": b"shop"})


# --- policies -------------------------------------------------------------------------------------------------------


async def test_who_may_only_write_does_not_loosen_a_policys_placement(tmp_path: object) -> None:
    """INV-W10: `add` sets policies; it would otherwise place what an operator has placed."""
    store = two_namespaces(f"policies {tmp_path}")
    set_level(store, 4)
    admin, calls = behind_gateway(store, principal(*OPERATIONS))
    async with fastbk.connect(admin) as boss:
        await boss.namespace("shop").set_policy(REGIONS)
        async with fastbk.connect(of(store, *WRITER)) as client:
            shop, needs = client.namespace("shop"), "needs the operation admin"
            for refused in (
                lambda: shop.set_policy(inherit=["placement"]),
                lambda: shop.set_policy(PolicyPatch(placement_enforced=False)),
                lambda: shop.set_policy(PolicyPatch(regions_min=1)),
                lambda: shop.namespace("free").create(PolicyPatch(placement="rack")),
                lambda: shop.create_stream("free", PolicyPatch(placement_enforced=False)),
                lambda: shop.stream("orders").set_policy(PolicyPatch(placement="spread")),
            ):
                with pytest.raises(Unauthorized, match=needs):
                    await refused()
            await shop.set_policy(PolicyPatch(regions_min=3, bookie_group="ssd", write_quorum=2))
            await shop.namespace("eu").create(PolicyPatch(racks_min=3, placement="region"))
            await shop.create_stream("more", PolicyPatch(bookie_group_is_hard=True))
            await client.namespace("bank").set_policy(PolicyPatch(placement="rack"))
            with pytest.raises(Unauthorized, match=needs):
                await shop.set_policy(PolicyPatch(regions_min=2))
        await boss.namespace("shop").set_policy(PolicyPatch(placement="rack", regions_min=2))
    assert any(event["operation"] == "loosen the placement of" for event in calls.events)


# --- `fastbk cluster placement` by a gateway ------------------------------------------------------------------------


def test_show_and_check_need_the_right_to_read_and_set_needs_admin(store: MetadataStore) -> None:
    know(store, "away")
    reader = of(store, "read")
    judge = read_judge(reader)
    assert {name: place.state for name, place in judge.places.items()} == {
        "away": "down", "b1": "up", "b2": "up", "b3": "up", "b4": "up",
    }  # fmt: skip
    assert judge.rules == read_rules(store) and warnings_of(judge, RACKS) == []
    with pytest.raises(Unauthorized, match="needs the operation"):
        read_judge(of(store, "truncate"))
    for operations in (("read",), WRITER):
        with pytest.raises(Unauthorized):
            change_rules(of(store, *operations), lambda _: ClusterRules())
    change_rules(of(store, *OPERATIONS), lambda _: ClusterRules())
    assert read_rules(store) == ClusterRules()
    with pytest.raises(Unauthorized, match="its token is limited"):
        change_rules(of(store, *OPERATIONS, namespaces=("shop",)), lambda _: ClusterRules(RACKS))


def test_pulsars_node_is_read_by_a_gateway_whatever_the_token_allows(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(store), "pulsar_racks", lambda _: b'{"ssd":{"b9":{"rack":"/r9"}}}')
    limited = of(store, "add", namespaces=("shop",))
    assert read_rules(limited).pulsar.of("b9", "").location == "/r9"


def test_a_gateway_of_a_version_without_these_requests_says_nothing_of_racks(
    store: MetadataStore,
) -> None:
    gateway, calls = behind_gateway(store, principal("read"))

    def older(request: object, kind: object) -> object:
        raise ConfigError("this gateway has no such operation; is the client newer?")

    calls.call = older  # type: ignore[assignment, method-assign]
    assert gateway.pulsar_racks() is None
