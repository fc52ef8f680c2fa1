"""A collected file is believed whole or not at all, and files that do not belong together are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbk.admin.metadata_rebuild import (
    CollectedLedger,
    Collection,
    encode,
    instance_of,
    read_collection,
    rebuild,
)
from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.meta.rollback import read_hold
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.storage.metadata_mark import MetadataMark
from tests.fixtures.metadata import metadata, service


def collection(bookie_id: str, instance_id: str = "", *ledgers: CollectedLedger) -> Collection:
    return Collection(
        bookie_id=bookie_id,
        incarnation=7,
        instance_id=instance_id,
        starts=3,
        directories=[("j", "journal", 0), ("l", "ledger", 0)],
        mark=MetadataMark(age=4, highest_id=9),
        ledgers=list(ledgers),
        deleted=[(5, 6)],
        damage=[],
    )


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    wanted = collection("a", "x", CollectedLedger(1, seen=metadata(3).to_bytes()))
    raw = encode(wanted)
    path.write_bytes(raw)
    assert read_collection(path) == wanted
    path.write_bytes(raw[:-1])
    with pytest.raises(StorageError, match="collect again"):
        read_collection(path)


def test_bookies_of_two_clusters_and_one_bookie_twice_are_refused() -> None:
    assert instance_of([collection("a", "x"), collection("b")]) == "x"
    with pytest.raises(ConfigError, match="several clusters"):
        instance_of([collection("a", "x"), collection("b", "y")])
    with pytest.raises(ConfigError, match="twice"):
        instance_of([collection("a", "x"), collection("a", "x")])


def test_a_ledger_that_one_bookie_saw_deleted_stays_away_and_metadata_is_held() -> None:
    """INV-M9, INV-M10."""
    store = MemoryStore("rebuild")
    seen = metadata(3).to_bytes()
    ledgers = [CollectedLedger(one, seen=seen, is_here=True) for one in (4, 5)]
    done = rebuild(store, [collection("a:1"), collection("b:2", "", *ledgers)])
    assert (done.created, done.kept_deleted) == (1, 1)
    assert store.list_ledgers() == [4]
    assert read_hold(store) is not None
    assert store.next_ledger_id() > 9
    assert [one.bookie_id for one in store.list_identities()] == ["a:1", "b:2"]


def test_nothing_is_written_while_a_bookie_runs() -> None:
    store = MemoryStore("rebuild while one runs")
    lease = store.register_bookie(service(), writable=True)
    with pytest.raises(MetadataConflict, match="Stop all"):
        rebuild(store, [collection("a")])
    assert read_hold(store) is None
    lease.close()
