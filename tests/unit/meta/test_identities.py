"""Identities of bookies in every metadata driver, and updates of ledgers that depend on them. INV-M1, INV-E3."""

from __future__ import annotations

import pytest

from fastbk.errors import IdentityChanged, MetadataConflict, NoSuchLedger
from fastbk.meta.api import BookieIdentity, DirectoryIdentity, IdentityVersion
from tests.fixtures.metadata import metadata
from tests.unit.meta.test_metadata_store import Open, open_driver

__all__ = ["open_driver"]


def test_identities_are_kept_by_compare_and_set(open_driver: Open) -> None:
    store, other = open_driver(), open_driver()
    identity = BookieIdentity(
        "b1",
        7,
        (DirectoryIdentity("ab", "journal"), DirectoryIdentity("cd", "ledger", 1)),
        starts=3,
    )
    assert store.read_identity("b1") is None
    version = store.write_identity(identity, None)
    with pytest.raises(MetadataConflict):
        other.write_identity(identity, None)
    found = other.read_identity("b1")
    assert found is not None
    assert found.identity == identity
    assert found.version == version
    reborn = BookieIdentity("b1", 8, identity.directories)
    newer = other.write_identity(reborn, version)
    with pytest.raises(MetadataConflict):
        store.write_identity(identity, version)
    assert store.list_identities() == [reborn]
    with pytest.raises(MetadataConflict):
        store.delete_identity("b1", version)
    store.delete_identity("b1", newer)
    assert other.list_identities() == []


def test_an_update_can_depend_on_a_bookies_identity(open_driver: Open) -> None:
    store, other = open_driver(), open_driver()
    store.create_ledger(1, metadata())
    identity = BookieIdentity("b", 1, ())
    first = IdentityVersion("b", store.write_identity(identity, None))
    assert store.update_ledger(1, metadata(last=1), 0, first) == 1
    with pytest.raises(MetadataConflict) as conflict:
        store.update_ledger(1, metadata(last=2), 0, first)
    assert not isinstance(conflict.value, IdentityChanged), (
        "the ledger was changed, the bookie was not"
    )
    second = IdentityVersion("b", other.write_identity(identity, first.version))
    for gone in (first, IdentityVersion("unknown", 0)):
        with pytest.raises(IdentityChanged):
            store.update_ledger(1, metadata(last=2), 1, gone)
    with pytest.raises(NoSuchLedger):
        store.update_ledger(2, metadata(), 0, second)
    assert store.update_ledger(1, metadata(last=2), 1, second) == 2
    other.delete_identity("b", second.version)
    with pytest.raises(IdentityChanged):
        store.update_ledger(1, metadata(last=3), 2, second)
    assert other.read_ledger(1).metadata == metadata(last=2)
