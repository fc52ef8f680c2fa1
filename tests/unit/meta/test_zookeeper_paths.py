"""Apache's names and bytes in ZooKeeper, letter for letter, without a server."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.meta import open_store
from fastbk.meta.api import BookieIdentity, BookieService, DirectoryIdentity, Endpoint
from fastbk.meta.uri import ZooKeeperLocation, check_uri, is_zookeeper, parse_zookeeper
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.meta.zookeeper import bookies, ledgers, paths
from fastbk.meta.zookeeper.bookies import parse_service
from fastbk.meta.zookeeper.paths import OWN_NAME, OWN_NAME_OLD, Layout
from fastbk.model.entry import DigestType
from fastbk.model.ledger import LedgerMetadata, LedgerState
from tests.fixtures.metadata import metadata
from tests.style.tree import ROOT

if TYPE_CHECKING:
    from kazoo.client import KazooClient

    from tests.fixtures.zookeeper import ZooKeeperPlace

# --- URIs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "servers", "root", "layout"),
    [
        (
            "zk+hierarchical://h1:2181;h2:2182/ledgers",
            ("h1:2181", "h2:2182"),
            "/ledgers",
            Layout.HIERARCHICAL,
        ),
        ("zk+longhierarchical://h1/a/b", ("h1:2181",), "/a/b", Layout.LONG_HIERARCHICAL),
        ("zk+flat://h1,h2:1", ("h1:2181", "h2:1"), "/ledgers", Layout.FLAT),
        ("zk://10.0.0.1:2181/", ("10.0.0.1:2181",), "/ledgers", None),
        ("zk+null://[::1]:2181/ledgers/", ("[::1]:2181",), "/ledgers", None),
    ],
)
def test_every_form_of_a_uri(
    uri: str, servers: tuple[str, ...], root: str, layout: Layout | None
) -> None:
    location = parse_zookeeper(uri)
    assert location == ZooKeeperLocation(servers, root, layout)
    assert parse_zookeeper(location.uri) == location


@pytest.mark.parametrize(
    ("uri", "servers", "root"),
    [
        ("metadata-store:zk:h1:2181", ("h1:2181",), "/ledgers"),
        ("metadata-store:zk:h1:2181,h2;h3:2182", ("h1:2181", "h2:2181", "h3:2182"), "/ledgers"),
        ("metadata-store:h1:2181/", ("h1:2181",), "/ledgers"),
        ("metadata-store:zk:h1:2181/pulsar/a", ("h1:2181",), "/pulsar/a/ledgers"),
        ("metadata-store:zk:h1:2181/ledgers", ("h1:2181",), "/ledgers/ledgers"),
    ],
)
def test_pulsars_uris_take_a_path_for_a_chroot(
    uri: str, servers: tuple[str, ...], root: str
) -> None:
    assert is_zookeeper(uri)
    assert parse_zookeeper(uri) == ZooKeeperLocation(servers, root)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("metadata-store:etcd:http://h1:2379", "only ZooKeeper is known here, not etcd"),
        ("metadata-store:rocksdb:/data", "not rocksdb"),
        ("metadata-store:zk:h 1", "is not a server"),
        ("metadata-store:", "'' is not a server"),
        ("zk:h1:2181/ledgers", "write zk"),
        ("zk+tree://h1/ledgers", "unknown layout 'tree'"),
        ("zk:///ledgers", "'' is not a server"),
        ("zk://h1;/ledgers", "'' is not a server"),
        ("zk://h1:0/ledgers", "'h1:0' is not a server"),
        ("zk://h1:70000/ledgers", "is not a server"),
        ("zk://h 1/ledgers", "is not a server"),
        ("zk://h1//ledgers", "cannot be the path"),
        ("zk://h1/../ledgers", "cannot be the path"),
        ("zk://h1/zookeeper/ledgers", "ZooKeeper's own"),
    ],
)
def test_a_uri_that_is_wrong_says_what_is(uri: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_store(uri)
    with pytest.raises(ConfigError, match=says):
        check_uri(uri)


# --- layouts and paths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout.HIERARCHICAL, b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"),
        (
            Layout.LONG_HIERARCHICAL,
            b"2\norg.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1",
        ),
        (Layout.FLAT, b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1"),
        (
            Layout.LEGACY_HIERARCHICAL,
            b"2\norg.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory:1",
        ),
    ],
)
def test_layout_nodes(layout: Layout, text: bytes) -> None:
    assert paths.layout_text(layout) == text
    assert paths.parse_layout(text) is layout


@pytest.mark.parametrize("raw", [b"", b"1\nflat:1", b"2\nx.Other:1", b"2\norg", b"\xff"])
def test_an_unknown_layout_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"|."):
        paths.parse_layout(raw)


@pytest.mark.parametrize(
    ("layout", "ledger_id", "path"),
    [
        (Layout.HIERARCHICAL, 0, "/ledgers/00/0000/L0000"),
        (Layout.HIERARCHICAL, 1234567890, "/ledgers/12/3456/L7890"),
        (Layout.HIERARCHICAL, 2**31 - 2, "/ledgers/21/4748/L3646"),
        (Layout.HIERARCHICAL, 2**31 - 1, "/ledgers/000/0000/0021/4748/L3647"),
        (Layout.HIERARCHICAL, 2**63 - 1, "/ledgers/922/3372/0368/5477/L5807"),
        (Layout.LEGACY_HIERARCHICAL, 1, "/ledgers/00/0000/L0001"),
        (Layout.LONG_HIERARCHICAL, 1, "/ledgers/000/0000/0000/0000/L0001"),
        (Layout.FLAT, 1, "/ledgers/L0000000001"),
        (Layout.FLAT, 2**63 - 1, "/ledgers/L9223372036854775807"),
    ],
)
def test_ledger_paths(layout: Layout, ledger_id: int, path: str) -> None:
    assert paths.ledger_path("/ledgers", layout, ledger_id) == path


@pytest.mark.parametrize(
    "name",
    [
        "ID-0000000001",
        "L1",
        "L00000000001",
        "LAYOUT",
        "L99999999999999999999",
        "available",
        "L000000000x",
    ],
)
def test_what_is_no_ledger_beside_flat_ones(name: str) -> None:
    assert paths.flat_ledger_id(name) is None


@given(st.integers(0, 2**63 - 1))
def test_flat_names_read_back(ledger_id: int) -> None:
    name = paths.ledger_path("", Layout.FLAT, ledger_id)[1:]
    assert paths.flat_ledger_id(name) == ledger_id


def test_deleted_ids_share_a_node_with_their_neighbours() -> None:
    found = paths.Paths("/ledgers")
    assert found.deleted_bucket(0) == "/ledgers/ID-fastbk/deleted/00000000000/000"
    assert found.deleted_bucket(4095) == found.deleted_bucket(0)
    assert found.deleted_bucket(4096) == "/ledgers/ID-fastbk/deleted/00000000000/001"
    assert found.deleted_bucket(2**63 - 1) == "/ledgers/ID-fastbk/deleted/3ffffffffff/1ff"


# --- nodes -------------------------------------------------------------------------------------------------------

# By hand: field 6 (endpoint) {1 "bookie", 2 3181, 3 "h", 4 "fastbk"}, field 7 (property) twice.
INCARNATION = b"\x3a\x17\x0a\x12fastbk.incarnation\x12\x017"
SERVICE = (
    b"\x32\x16\x0a\x06bookie\x10\xed\x18\x1a\x01h\x22\x06fastbk"
    b"\x3a\x06\x0a\x01k\x12\x01v" + INCARNATION
)
SERVICE_VALUE = BookieService("b1", 7, (Endpoint("h", 3181),), {"k": "v"})

# What an Apache bookie with an HTTP server publishes: with TLS, without our property.
APACHE_SERVICE = (
    b"\x32\x1f\x0a\x06bookie\x10\xed\x18\x1a\x01h\x22\x0abookie-rpc\x32\x03tls"
    b"\x32\x19\x0a\x0ahttpserver\x10\x90\x3f\x1a\x01h\x22\x05https"
)


def test_registrations() -> None:
    assert bookies.service_bytes(SERVICE_VALUE) == SERVICE
    assert bookies.parse_service("b1", SERVICE) == SERVICE_VALUE


def test_registrations_of_apache_bookies() -> None:
    found = bookies.parse_service("b1", APACHE_SERVICE)
    bookie = Endpoint("h", 3181, "bookie-rpc", "bookie", ("tls",))
    assert found == BookieService("b1", 0, (bookie, Endpoint("h", 8080, "https", "httpserver")))
    assert bookies.service_bytes(replace(found, incarnation=7)) == APACHE_SERVICE + INCARNATION
    assert found.endpoint() is None
    empty = bookies.parse_service("10.0.0.1:3181", b"")
    assert empty.endpoint("bookie-rpc") == Endpoint("10.0.0.1", 3181, "bookie-rpc")
    assert bookies.parse_service("a-name", b"").endpoints == ()


@pytest.mark.parametrize("raw", [b"\x32\x05ab", b"\x32\x02\x0a\x09", b"\x3a\x04\x0a\x02\xff\xff"])
def test_a_damaged_registration_is_refused(raw: bytes) -> None:
    with pytest.raises(StorageError, match="b1"):
        bookies.parse_service("b1", raw)


IDENTITY = BookieIdentity(
    "b1:3181",
    2**64 - 1,
    (DirectoryIdentity("ab12", "journal"), DirectoryIdentity("cd34", "ledger", 1)),
    starts=7,
)


def test_cookies() -> None:
    assert bookies.cookie_bytes(IDENTITY, "0b1e-id") == (
        b"5\n"
        b'bookieHost: "b1:3181"\n'
        b'journalDir: "ab12"\n'
        b'ledgerDirs: "1\\tcd34"\n'
        b'instanceId: "0b1e-id"\n'
        b'indexDirs: "1\\tcd34"\n'
    )
    assert b"instanceId" not in bookies.cookie_bytes(IDENTITY, "")


def test_identities_read_back() -> None:
    assert bookies.parse_identity(IDENTITY.bookie_id, bookies.identity_bytes(IDENTITY)) == IDENTITY
    from_before = b'{"bookie_id": "b", "incarnation": "7", "directories": [{"directory_id": "a", "role": "journal"}]}'
    assert bookies.parse_identity("b", from_before).starts == 0
    for damaged in (
        b"",
        b"{}",
        b"[]",
        bookies.identity_bytes(IDENTITY)[:-2],
        from_before,
        b"[" * 100_000,
    ):
        with pytest.raises(StorageError):
            bookies.parse_identity(IDENTITY.bookie_id, damaged)


def test_deleted_ids_as_text() -> None:
    raw = b""
    for offset in (5, 7, 0, 6, 4095, 5, 1):
        raw = ledgers.with_offset(raw, offset)
    assert raw == b"0-1,5-7,4095"
    for damaged in (b"1,x", b"5-", b"-5", b"7-5", b"0-5000", "\u00b2".encode(), b"9" * 5000):
        assert not ledgers.is_bucket(damaged)
        assert ledgers.has_offset(damaged, 1) and ledgers.has_offset(damaged, 4095)
        assert ledgers.with_offset(damaged, 7) == b"0-4095"


@given(st.lists(st.integers(0, 63)))
def test_deleted_ids_agree_with_a_set(offsets: list[int]) -> None:
    raw = b""
    for offset in offsets:
        raw = ledgers.with_offset(raw, offset)
    assert [n for n in range(64) if ledgers.has_offset(raw, n)] == sorted(set(offsets))


# The node that only fastbk knows of: called so that Apache's tools pass it by, or by the name
# that it had before.


OWN_IDENTITY = BookieIdentity("b1", 7, (DirectoryIdentity("ab", "journal"),))


def rename(peek: KazooClient, zookeeper: ZooKeeperPlace) -> None:
    """Give the node the name that it had in clusters of before, with all that is in it."""
    moved = [("", b"")]
    for path, _ in moved:
        below = zookeeper.path(OWN_NAME + path)
        moved += [
            (f"{path}/{name}", peek.get(f"{below}/{name}")[0]) for name in peek.get_children(below)
        ]
    for path, data in moved:
        peek.create(zookeeper.path(OWN_NAME_OLD + path), data)
    peek.delete(zookeeper.path(OWN_NAME), recursive=True)


def test_apaches_tools_take_its_name_for_a_remainder_of_drawn_ids() -> None:
    """AbstractZkLedgerManager.isSpecialZnode of 4.17: nukeexistingcluster refuses what is neither that nor a ledger."""
    assert OWN_NAME.startswith("ID-")


def test_a_cluster_of_before_keeps_the_old_name(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    uri = zookeeper.uri()
    with closing(open_store(uri)) as store:
        version = store.write_identity(OWN_IDENTITY, None)
        store.create_ledger(1, metadata())
        store.delete_ledger(1)
    rename(peek, zookeeper)
    with closing(open_store(uri)) as store:
        assert [one.incarnation for one in store.list_identities()] == [7]
        with pytest.raises(MetadataConflict, match="deleted"):
            store.create_ledger(1, metadata())
        store.create_ledger(2, metadata())
        store.delete_ledger(2)
        reborn = BookieIdentity("b1", 8, ())
        store.write_identity(reborn, version)
    names = peek.get_children(zookeeper.path())
    assert OWN_NAME_OLD in names
    assert OWN_NAME not in names
    bucket = peek.get(zookeeper.path(f"{OWN_NAME_OLD}/deleted/00000000000/000"))[0]
    assert bucket == b"1-2"


def test_what_an_older_version_begins_beside_the_new_name_changes_nothing(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    uri = zookeeper.uri()
    with closing(open_store(uri)) as store:
        store.write_identity(OWN_IDENTITY, None)
    peek.create(zookeeper.path(f"{OWN_NAME_OLD}/deleted"), makepath=True)
    with closing(open_store(uri)) as store:
        assert [one.incarnation for one in store.list_identities()] == [7]


def test_a_cluster_that_apache_made_gets_the_new_name(
    zookeeper: ZooKeeperPlace, peek: KazooClient
) -> None:
    uri = zookeeper.uri()
    peek.delete(zookeeper.path(OWN_NAME), recursive=True)
    with closing(open_store(uri)) as store:
        assert OWN_NAME not in peek.get_children(zookeeper.path())
        store.write_identity(OWN_IDENTITY, None)
    assert peek.get_children(zookeeper.path(f"{OWN_NAME}/identities")) == ["b1"]
    assert OWN_NAME_OLD not in peek.get_children(zookeeper.path())


@pytest.mark.parametrize("name", [OWN_NAME, OWN_NAME_OLD])
def test_a_cluster_with_either_name_is_removed_and_formatted(
    zookeeper: ZooKeeperPlace, peek: KazooClient, name: str
) -> None:
    location = zookeeper.location()
    zookeeper.uri()
    if name == OWN_NAME_OLD:
        rename(peek, zookeeper)
    zookeeper_admin.format_cluster(location)
    names = peek.get_children(zookeeper.path())
    assert OWN_NAME in names
    assert OWN_NAME_OLD not in names
    if name == OWN_NAME_OLD:
        rename(peek, zookeeper)
    assert zookeeper_admin.nuke(location, None)
    assert peek.exists(zookeeper.path()) is None


# What Apache BookKeeper 4.17.2 itself wrote into ZooKeeper, recorded: read as meant, and written
# back byte for byte.
#
# `ledger_v<version>_<state>`: a ledger of its shell's `simpletest` with that
# `ledgerMetadataVersion`, 200 entries on three bookies, while it was open and when it was closed;
# Apache's client drops the creator's token then. `registration`: the node of a bookie.


NODES = ROOT / "tests/golden/apache_nodes"


def recorded(name: str) -> bytes:
    return (NODES / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_ledgers_of_every_version_are_read_as_they_were_meant(version: int) -> None:
    before = LedgerMetadata.from_bytes(recorded(f"ledger_v{version}_open"))
    after = LedgerMetadata.from_bytes(recorded(f"ledger_v{version}_closed"))
    assert (before.ensemble_size, before.write_quorum, before.ack_quorum) == (3, 2, 2)
    assert (before.state, before.last_entry_id, before.length) == (LedgerState.OPEN, -1, 0)
    assert (after.state, after.last_entry_id, after.length) == (LedgerState.CLOSED, 199, 20_000)
    assert before.fragments == after.fragments
    ((first, ensemble),) = [(one.first_entry_id, one.ensemble) for one in before.fragments]
    assert first == 0
    assert len(set(ensemble)) == 3
    assert all(one.startswith("127.0.0.1:") for one in ensemble)
    if version == 1:
        assert (before.digest_type, before.created_ms, before.custom) == (None, None, {})
    else:
        assert before.digest_type is DigestType.CRC32C
        assert before.created_ms is not None
        assert before.custom == {"Bookie": b"simpletest"}
    assert bool(before.creation_token) == (version == 3)
    assert after.creation_token == 0


@pytest.mark.parametrize("state", ["open", "closed"])
def test_a_ledger_is_written_back_byte_for_byte(state: str) -> None:
    raw = recorded(f"ledger_v3_{state}")
    assert LedgerMetadata.from_bytes(raw).to_bytes() == raw


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_close_by_us_says_what_apaches_says(version: int) -> None:
    """Older versions become 3, with all they had."""
    before = LedgerMetadata.from_bytes(recorded(f"ledger_v{version}_open"))
    closed = LedgerMetadata.from_bytes(before.closed(199, 20_000).to_bytes())
    theirs = LedgerMetadata.from_bytes(recorded(f"ledger_v{version}_closed"))
    assert replace(closed, creation_token=0) == theirs


def test_a_bookie_is_found_where_it_registered() -> None:
    found = parse_service("127.0.0.1:35783", recorded("registration"))
    assert found.incarnation == 0
    assert found.client_endpoint() == Endpoint("127.0.0.1", 35783, "bookie-rpc", "bookie")
