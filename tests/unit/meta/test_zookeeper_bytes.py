"""Apache's names and bytes in ZooKeeper, letter for letter, without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError, StorageError
from fastbk.meta.api import BookieIdentity, BookieService, DirectoryIdentity, Endpoint
from fastbk.meta.uri import ZooKeeperLocation, check_uri, is_zookeeper, open_store, parse_zookeeper
from fastbk.meta.zookeeper import bookies, ledgers, paths
from fastbk.meta.zookeeper.paths import Layout

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
