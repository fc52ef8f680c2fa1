"""What lies where in ZooKeeper, how ids are drawn, and what becomes of clusters: on a real server."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from fastbk.client.placement_judge import read_judge
from fastbk.errors import ConfigError, MetadataConflict, MetadataUnavailable, NoSuchLedger
from fastbk.meta import open_store
from fastbk.meta.api import BookieIdentity, DirectoryIdentity
from fastbk.meta.placement_record import read_rules
from fastbk.meta.records import (
    READ_BYTES_MAX,
    VALUE_BYTES_MAX,
    Change,
    collected_bad_records,
    each_record,
)
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.meta.zookeeper import store as zookeeper_store
from fastbk.meta.zookeeper.bookies import cookie_bytes, service_bytes
from fastbk.meta.zookeeper.paths import Layout
from fastbk.meta.zookeeper.session import Call
from fastbk.model.ledger import LedgerMetadata
from fastbk.placement.rules import ClusterPlaces, ClusterRules
from tests.fixtures.metadata import metadata, service
from tests.fixtures.placed import register
from tests.fixtures.zookeeper import ZooKeeperPlace

EMPTY_CLUSTER = {"LAYOUT", "INSTANCEID", "available", "cookies", "ID-fastbk"}


# --- nodes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "paths"),
    [
        (Layout.HIERARCHICAL, {7: "00/0000/L0007", 2**31: "000/0000/0021/4748/L3648"}),
        (
            Layout.LONG_HIERARCHICAL,
            {7: "000/0000/0000/0000/L0007", 2**31: "000/0000/0021/4748/L3648"},
        ),
        (Layout.FLAT, {7: "L0000000007", 2**31: "L2147483648"}),
        (Layout.LEGACY_HIERARCHICAL, {7: "00/0000/L0007"}),
    ],
)
def test_a_ledger_is_a_node_whose_empty_parents_go_with_it(
    zookeeper: ZooKeeperPlace, peek: KazooClient, layout: Layout, paths: dict[int, str]
) -> None:
    with closing(open_store(zookeeper.uri(layout=layout))) as store:
        for ledger_id, path in paths.items():
            store.create_ledger(ledger_id, metadata(token=5))
            data, stat = peek.get(zookeeper.path(path))
            assert (data, stat.version) == (metadata(token=5).to_bytes(), 0)
        assert store.list_ledgers() == sorted(paths)
        for ledger_id in paths:
            store.delete_ledger(ledger_id)
    assert set(peek.get_children(zookeeper.path())) == EMPTY_CLUSTER


def test_a_ledger_of_more_than_31_bits_has_no_place_in_the_legacy_layout(
    zookeeper: ZooKeeperPlace,
) -> None:
    with (
        closing(open_store(zookeeper.uri(layout=Layout.LEGACY_HIERARCHICAL))) as store,
        pytest.raises(ConfigError, match="31 bits"),
    ):
        store.create_ledger(2**31, metadata())


@pytest.mark.parametrize(
    ("count", "trips"), [(READ_BYTES_MAX // VALUE_BYTES_MAX, 1), (500, 2), (1000, 4)]
)
def test_records_are_read_in_few_round_trips(
    zookeeper: ZooKeeperPlace, monkeypatch: pytest.MonkeyPatch, count: int, trips: int
) -> None:
    """It was one for each 18 of them, which is as many as have room where each is as large as one may be."""
    taken: list[int] = []
    read = Call._read

    def counted(call: Call, submit: Callable[[Any], list[Any]]) -> list[Any]:
        taken.append(1)
        return read(call, submit)

    with closing(open_store(zookeeper.uri())) as store:
        paths = [f"many/{number:04}" for number in range(count)]
        for at in range(0, count, 100):
            store.records.change([Change(path, path.encode()) for path in paths[at : at + 100]])
        monkeypatch.setattr(Call, "_read", counted)
        found = list(each_record(store.records, paths))
    assert [one and one.value for one in found] == [path.encode() for path in paths]
    assert len(taken) == trips


def test_metadata_that_zookeeper_would_not_take_is_refused_at_once(
    zookeeper: ZooKeeperPlace,
) -> None:
    with closing(open_store(zookeeper.uri())) as store:
        large = replace(metadata(), custom={"k": bytes(999_000)})
        store.create_ledger(1, large)
        assert store.read_ledger(1).metadata == large
        larger = replace(metadata(), custom={"k": bytes(1_100_000)})
        with pytest.raises(ConfigError, match="custom metadata"):
            store.update_ledger(1, larger, 0)
        with pytest.raises(ConfigError, match="custom metadata"):
            store.create_ledger(2, larger)


def test_apache_ledgers_of_every_version_are_read(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    with closing(open_store(zookeeper.uri())) as store:
        for ledger_id, raw in enumerate(
            (
                b"BookieMetadataFormatVersion\t1\n1\n2\n0\n0\ta:1\tb:2",
                b"BookieMetadataFormatVersion\t2\nquorumSize: 1 ensembleSize: 2 length: 0 state: OPEN"
                b' segment { ensembleMember: "a:1" ensembleMember: "b:2" firstEntryId: 0 }',
                metadata().to_bytes(),
            )
        ):
            peek.create(zookeeper.path(f"00/0000/L000{ledger_id}"), raw, makepath=True)
            found = store.read_ledger(ledger_id)
            assert (found.metadata.fragments, found.version) == (metadata().fragments, 0)
        assert store.list_ledgers() == [0, 1, 2]
        version = store.update_ledger(0, metadata(last=3), 0)
        assert LedgerMetadata.from_bytes(peek.get(zookeeper.path("00/0000/L0000"))[0]) == metadata(
            last=3
        )
        assert version == 1


def test_listings_pass_by_what_is_no_ledger(zookeeper: ZooKeeperPlace, peek: KazooClient) -> None:
    uri = zookeeper.uri()
    for name in (
        "idgen/ID-0000000003",
        "idgen-long/HOB-0000000001",
        "underreplication/ledgers/0000/0000/0000/0000/urL0000000001",
        "disableHealthCheck",
        "0/0000/L0001",
        "0000/0000/L0001",
        "xx/0000/L0001",
        "00/0000/M0001",
        "00/000/L0001",
        "01/0000/L00001",
        "L0000000004",
    ):
        peek.create(zookeeper.path(name), makepath=True)
    with closing(open_store(uri)) as store:
        store.create_ledger(5, metadata())
        store.create_ledger(2**40, metadata())
        assert store.list_ledgers() == [5, 2**40]
        assert store.list_ledgers(5) == [2**40]
        assert store.list_ledgers(-1, 1) == [5]
        assert store.list_ledgers(2**63 - 1) == []


@pytest.mark.parametrize("layout", list(Layout))
def test_pages_of_ids_that_lie_apart_take_few_round_trips(
    zookeeper: ZooKeeperPlace, layout: Layout, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    ids = {rng.randrange(10**7) for _ in range(60)} | {40_000 + one for one in range(20)}
    if layout in (Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL):
        ids |= {rng.randrange(2**63) for _ in range(40)}
    rounds: list[int] = []

    def counted(call: Call, paths: Iterable[str]) -> list[list[str] | None]:
        listed = list(paths)
        rounds.append(len(listed))
        return children_all(call, listed)

    children_all = Call.children_all
    monkeypatch.setattr(Call, "children_all", counted)
    with closing(open_store(zookeeper.uri(layout=layout))) as store:
        for ledger_id in ids:
            store.create_ledger(ledger_id, metadata())
        for count_max in (1, 7, 1000):
            found: list[int] = []
            while page := store.list_ledgers(found[-1] if found else -1, count_max):
                assert len(page) <= count_max
                found += page
            assert found == sorted(ids)
        rounds.clear()
        assert store.list_ledgers() == sorted(ids)
        # One by one it would be as many as there are nodes above ledgers.
        assert sum(rounds) >= 4 * len(rounds), rounds
        rounds.clear()
        assert len(store.list_ledgers(-1, 1)) == 1
        assert sum(rounds) <= 4, "a short page reads no more than it needs"


def test_a_creator_whose_answer_got_lost_knows_its_ledger_by_the_token(
    zookeeper: ZooKeeperPlace,
) -> None:
    with closing(open_store(zookeeper.uri())) as store:
        store.create_ledger(1, metadata(token=77))
        assert store.create_ledger(1, metadata(token=77)) == 0
        for token in (0, 78):
            with pytest.raises(MetadataConflict, match="exists already"):
                store.create_ledger(1, metadata(token=token))


def test_bookies_are_where_apache_looks_for_them(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    with closing(open_store(zookeeper.uri())) as store:
        lease = store.register_bookie(service(), writable=True)
        writable, readonly = (
            zookeeper.path(f"available/{part}b1:3181") for part in ("", "readonly/")
        )
        data, stat = peek.get(writable)
        assert data == service_bytes(service())
        assert stat.ephemeralOwner != 0
        lease.set_writable(False)
        assert peek.exists(writable) is None
        data, stat = peek.get(readonly)
        assert data == service_bytes(service())
        assert stat.ephemeralOwner != 0
        lease.set_writable(True)
        assert (peek.exists(readonly), bool(peek.exists(writable))) == (None, True)


def test_apache_bookies_are_listed_and_left_alone(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    with closing(open_store(zookeeper.uri())) as store:
        peek.create(zookeeper.path("available/h:3181"), ephemeral=True)
        peek.create(zookeeper.path("available/damaged"), b"\xff\xff", ephemeral=True)
        # On its way to read-only a bookie is in both lists.
        peek.create(zookeeper.path("available/readonly/h:3181"), ephemeral=True)
        found = {one.service.bookie_id: one for one in store.list_bookies()}
        assert found.keys() == {"h:3181", "damaged"}
        assert not found["h:3181"].writable
        assert found["damaged"].service.endpoints == ()
        with pytest.raises(MetadataConflict, match="other data"):
            store.register_bookie(service("h:3181"), writable=True)


def test_an_identity_has_a_cookie_beside_it(zookeeper: ZooKeeperPlace, peek: KazooClient) -> None:
    identity = BookieIdentity("b1", 7, (DirectoryIdentity("ab", "journal"),))
    with closing(open_store(zookeeper.uri())) as store:
        version = store.write_identity(identity, None)
        cookie = zookeeper.path("cookies/b1")
        assert peek.get(cookie)[0] == cookie_bytes(identity, store.instance_id())
        reborn = BookieIdentity("b1", 8, (DirectoryIdentity("cd", "journal"),))
        version = store.write_identity(reborn, version)
        assert peek.get(cookie)[0] == cookie_bytes(reborn, store.instance_id())
        store.delete_identity("b1", version)
        assert peek.exists(cookie) is None
        # A cookie that an Apache bookie wrote is that bookie's name for good.
        peek.create(cookie, b"5\n")
        with pytest.raises(MetadataConflict, match="another system's bookie"):
            store.write_identity(identity, None)


def test_a_cookie_of_apaches_gives_way_to_who_names_its_bytes(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    identity = BookieIdentity("b1", 7, (DirectoryIdentity("ab", "journal"),))
    with closing(open_store(zookeeper.uri())) as store:
        assert store.foreign_cookie("b1") is None
        store.instance_id()
        cookie = zookeeper.path("cookies/b1")
        peek.create(cookie, b"5\n", makepath=True)
        assert store.foreign_cookie("b1") == b"5\n"
        with pytest.raises(MetadataConflict, match="another system's bookie"):
            store.write_identity(identity, None, replaced_cookie=b"4\n")
        version = store.write_identity(identity, None, replaced_cookie=b"5\n")
        assert peek.get(cookie)[0] == cookie_bytes(identity, store.instance_id())
        assert store.foreign_cookie("b1") is None
        read = store.read_identity("b1")
        assert read is not None
        assert (read.identity, read.version) == (identity, version)


def test_a_bookie_whose_cookie_apache_deleted_is_unknown(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    identity = BookieIdentity("b1", 7, (DirectoryIdentity("ab", "journal"),))
    with closing(open_store(zookeeper.uri())) as store:
        version = store.write_identity(identity, None)
        peek.delete(zookeeper.path("cookies/b1"))
        assert (store.read_identity("b1"), store.list_identities()) == (None, [])
        with pytest.raises(MetadataConflict):
            store.write_identity(identity, version)
        with pytest.raises(MetadataConflict):
            store.delete_identity("b1", version)
        store.write_identity(BookieIdentity("b1", 8, ()), None)
        assert [one.incarnation for one in store.list_identities()] == [8]


# --- ids ---------------------------------------------------------------------------------------------------------


def test_ids_come_from_the_nodes_that_apache_uses(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    with closing(open_store(zookeeper.uri())) as store:
        drawn = [store.next_ledger_id() for _ in range(3)]
        theirs = peek.create(
            zookeeper.path("idgen/ID-"), ephemeral=True, sequence=True, makepath=True
        )
        assert int(theirs[-10:]) not in drawn
        assert store.next_ledger_id() > int(theirs[-10:])


def test_a_number_that_somebody_chose_before_is_passed_by(zookeeper: ZooKeeperPlace) -> None:
    with closing(open_store(zookeeper.uri())) as store:
        for ledger_id in (0, 1, 3):
            store.create_ledger(ledger_id, metadata())
        store.delete_ledger(1)
        assert [store.next_ledger_id() for _ in range(2)] == [2, 4]


def test_a_creation_checks_what_was_read_when_its_id_was_drawn(zookeeper: ZooKeeperPlace) -> None:
    """The deleted ids are read once for both; what is deleted in between is seen all the same."""
    with (
        closing(open_store(zookeeper.uri())) as store,
        closing(open_store(zookeeper.uri())) as other,
    ):
        other.create_ledger(store.next_ledger_id(), metadata())  # the deleted ids have their place
        drawn = store.next_ledger_id()
        other.create_ledger(drawn + 5, metadata())
        other.delete_ledger(drawn + 5)
        store.create_ledger(drawn, metadata())
        taken = store.next_ledger_id()
        other.create_ledger(taken, metadata())
        other.delete_ledger(taken)
        with pytest.raises(MetadataConflict):
            store.create_ledger(taken, metadata())
        assert drawn in store.list_ledgers()
        assert taken not in store.list_ledgers()


def test_long_ids_follow_when_the_short_ones_are_used_up(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    with closing(open_store(zookeeper.uri())) as store:
        store.next_ledger_id()
        # Once this node is there it is used, whoever made it.
        peek.create(zookeeper.path("idgen-long"))
        assert [store.next_ledger_id() for _ in range(2)] == [1 << 32, 1 << 32 | 1]
        for high in range(2, 6):
            peek.create(zookeeper.path(f"idgen-long/HOB-{high:010d}"))
        assert store.next_ledger_id() == 5 << 32
        assert store.next_ledger_id() == 5 << 32 | 1
        assert sorted(peek.get_children(zookeeper.path("idgen-long"))) == [
            f"HOB-{high:010d}" for high in (3, 4, 5)
        ]


def test_flat_ids_come_from_beside_the_ledgers(zookeeper: ZooKeeperPlace) -> None:
    with closing(open_store(zookeeper.uri(layout=Layout.FLAT))) as store:
        first = store.next_ledger_id()
        store.create_ledger(first, metadata())
        assert store.next_ledger_id() > first
        assert store.list_ledgers() == [first]


# --- clusters ----------------------------------------------------------------------------------------------------


def test_init_makes_what_apache_expects(zookeeper: ZooKeeperPlace, peek: KazooClient) -> None:
    location = zookeeper.location("/deep/ledgers", layout=None)
    instance_id = zookeeper_admin.init(location)
    root = "/deep/ledgers"
    assert set(peek.get_children(zookeeper.path(root=root))) == EMPTY_CLUSTER
    assert peek.get(zookeeper.path("INSTANCEID", root))[0] == instance_id.encode()
    assert peek.get(zookeeper.path("LAYOUT", root))[0] == (
        b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    )
    assert peek.get_children(zookeeper.path("available", root)) == ["readonly"]
    with pytest.raises(MetadataConflict, match="already"):
        zookeeper_admin.init(location)
    facts = zookeeper_admin.show(location)
    assert (facts.instance_id, facts.layout) == (instance_id, "hierarchical")


def test_format_leaves_an_empty_cluster_of_the_same_layout(zookeeper: ZooKeeperPlace) -> None:
    uri = zookeeper.uri(layout=Layout.LONG_HIERARCHICAL)
    with closing(open_store(uri)) as store:
        before = store.instance_id()
        store.create_ledger(1, metadata())
        store.create_ledger(2, metadata())
        store.delete_ledger(2)
        lease = store.register_bookie(service(), writable=False)
        location = zookeeper.location(layout=None)
        with pytest.raises(MetadataConflict, match="b1:3181"):
            zookeeper_admin.format_cluster(location)
        lease.close()
        instance_id = zookeeper_admin.format_cluster(location)
        assert store.instance_id() == instance_id != before
        assert store.list_ledgers() == []
        store.create_ledger(2, metadata())
    assert zookeeper_admin.show(location).layout == "longhierarchical"


def test_a_place_without_a_cluster_says_so(zookeeper: ZooKeeperPlace, peek: KazooClient) -> None:
    with pytest.raises(ConfigError, match="fastbk metadata init"):
        open_store(zookeeper.location("/nothing").uri)
    uri = zookeeper.uri()
    with pytest.raises(ConfigError, match=r"write zk\+hierarchical"):
        open_store(zookeeper.location(layout=Layout.FLAT).uri)
    peek.set(zookeeper.path("LAYOUT"), b"2\nx.Other:1")
    with pytest.raises(ConfigError, match="not known"):
        open_store(uri)


def test_a_cluster_of_apaches_without_an_id_is_served(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    uri = zookeeper.uri()
    for name in ("INSTANCEID", "cookies", "ID-fastbk"):
        peek.delete(zookeeper.path(name), recursive=True)
    peek.delete(zookeeper.path("available/readonly"))
    with closing(open_store(uri)) as store:
        assert store.instance_id() == ""
        store.create_ledger(1, metadata())
        store.delete_ledger(1)
        with pytest.raises(NoSuchLedger):
            store.read_ledger(1)
        store.write_identity(BookieIdentity("b1", 7, ()), None)
        store.register_bookie(service(), writable=False)
        assert [one.writable for one in store.list_bookies()] == [False]


def test_a_cluster_that_pulsar_made_is_served_and_gets_its_layout_with_the_first_bookie(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    zookeeper.make_by_pulsar(peek)
    location = zookeeper.location(layout=None)
    with pytest.raises(MetadataConflict, match="start bookies with this URI") as refused:
        zookeeper_admin.init(location)
    assert "format" not in str(refused.value)
    with closing(open_store(location.uri)) as store:
        store.create_ledger(7, metadata())
        assert peek.exists(zookeeper.path("00/0000/L0007"))
        assert peek.exists(zookeeper.path("LAYOUT")) is None, "a reader changes nothing"
        store.write_identity(BookieIdentity("b1:3181", 7, ()), None)
        store.register_bookie(service(), writable=True)
        assert peek.get(zookeeper.path("LAYOUT"))[0] == (
            b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
        )
        assert store.list_ledgers() == [7]
        assert [str(one.service.bookie_id) for one in store.list_bookies()] == ["b1:3181"]


def test_the_layout_that_the_uri_names_is_written(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    zookeeper.make_by_pulsar(peek)
    with closing(open_store(zookeeper.location(layout=Layout.LONG_HIERARCHICAL).uri)) as store:
        store.register_bookie(service(), writable=True)
    assert zookeeper_admin.show(zookeeper.location(layout=None)).layout == "longhierarchical"


def test_of_two_first_bookies_with_two_layouts_one_is_refused(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    zookeeper.make_by_pulsar(peek)
    with (
        closing(open_store(zookeeper.location(layout=None).uri)) as store,
        closing(open_store(zookeeper.location(layout=Layout.FLAT).uri)) as other,
    ):
        other.register_bookie(service(), writable=True)
        with pytest.raises(ConfigError, match="start again"):
            store.register_bookie(service(), writable=True)


def test_without_layout_and_id_no_cluster_is_taken_for_granted(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    zookeeper.make_by_pulsar(peek)
    peek.delete(zookeeper.path("INSTANCEID"))
    location = zookeeper.location(layout=None)
    with pytest.raises(ConfigError, match="lost metadata"):
        open_store(location.uri)
    with pytest.raises(MetadataConflict, match="restore its metadata first") as refused:
        zookeeper_admin.init(location)
    assert "metadata format" not in str(refused.value)


def test_flat_ledgers_without_a_layout_are_not_hidden_by_the_hierarchical_one(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    zookeeper.make_by_pulsar(peek)
    peek.create(zookeeper.path("L0000000001"), metadata().to_bytes())
    with closing(open_store(zookeeper.location(layout=None).uri)) as store:
        assert store.list_ledgers() == [1]
    with pytest.raises(ConfigError, match=r"write zk\+flat"):
        open_store(zookeeper.location(layout=Layout.HIERARCHICAL).uri)


@pytest.mark.slow
def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(MetadataUnavailable, match="is it running"):
        open_store("zk://127.0.0.1:1/ledgers", timeout_s=0.3)


# --- what Pulsar's operators say of bookies ----------------------------------------------------------------------


def test_pulsars_node_beside_the_root_is_read_and_nothing_else_of_it(
    zookeeper: ZooKeeperPlace, peek: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    node = zookeeper.path(root="/bookies")
    with closing(open_store(zookeeper.uri())) as store:
        assert read_rules(store) == ClusterRules()
        peek.create(node)
        assert store.pulsar_racks() is None, "empty: Pulsar's brokers make it so"
        # As Pulsar's MetadataCache stores it, by Jackson.
        peek.set(node, b'{"ssd":{"10.1.0.2:3181":{"rack":"/eu/r2","hostname":"host-2"}}}')
        peek.ensure_path(zookeeper.path("cookies/10.1.0.2:3181"))
        register(store, "other", location="/eu/r1")
        store.write_identity(BookieIdentity("away:3181", 1, ()), None)
        rules = read_rules(store)
        places = ClusterPlaces(rules)
        assert places.location_of("10.1.0.2:3181") == "/eu/r2"
        assert places.groups_of("10.1.0.2:3181") == {"ssd"}
        found = read_judge(store).places
        assert (found["other"].source, found["away:3181"].source) == ("bookie", "unknown")
        peek.set(node, b'{"ssd":{"away:3181":{"rack":"/eu/r3"},"other":{"rack":"/eu/r4"}}}')
        found = read_judge(store).places
        assert (found["other"].source, found["other"].location) == ("pulsar", "/eu/r4")
        assert (found["away:3181"].source, found["away:3181"].location) == ("pulsar", "/eu/r3")
        assert found["other"].view.labels == {"ssd"}


@pytest.mark.parametrize("what", ["size", "rights", "JSON"])
def test_a_node_that_cannot_be_pulsars_is_named_and_passed_over(
    zookeeper: ZooKeeperPlace, peek: KazooClient, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = zookeeper.path(root="/bookies")
    peek.create(node, b"somebody else's", makepath=True)
    with closing(open_store(zookeeper.uri())) as store, collected_bad_records() as bad:
        if what == "size":
            monkeypatch.setattr(zookeeper_store, "RACKS_BYTES_MAX", 3)
        elif what == "rights":
            peek.set_acls(node, [make_acl("world", "anyone", admin=True)])
        assert ClusterPlaces(read_rules(store)).location_of("b1") is None
        reasons = {"size": "of 3 that are read", "rights": "does not allow it", "JSON": "no JSON"}
        assert reasons[what] in bad[0].reason
        assert "bookies" in bad[0].path
