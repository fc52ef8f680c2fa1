"""The node that only fastbk knows of: called so that Apache's tools pass it by, or by the name that it had before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from kazoo.client import KazooClient

from fastbk.errors import MetadataConflict
from fastbk.meta import open_store
from fastbk.meta.api import BookieIdentity, DirectoryIdentity
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.meta.zookeeper.paths import OWN_NAME, OWN_NAME_OLD
from tests.fixtures.metadata import metadata
from tests.fixtures.zookeeper import ZooKeeperPlace

IDENTITY = BookieIdentity("b1", 7, (DirectoryIdentity("ab", "journal"),))


@pytest.fixture
def peek(zookeeper: ZooKeeperPlace) -> Iterator[KazooClient]:
    """A plain client, to see what is really there."""
    client = zookeeper.client()
    yield client
    client.stop()
    client.close()


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
        version = store.write_identity(IDENTITY, None)
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
        store.write_identity(IDENTITY, None)
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
        store.write_identity(IDENTITY, None)
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
