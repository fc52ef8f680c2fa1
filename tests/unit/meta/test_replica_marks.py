"""One suite for the marks of under-replicated ledgers in every metadata driver."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from fastbk.meta import MetadataStore, open_store, replica_marks
from fastbk.meta.records import Change
from fastbk.meta.replica_marks import LedgerMark, UnderreplicatedLedger, delete_ledger, path_of
from fastbk.meta.zookeeper.store import ZooKeeperStore
from fastbk.meta.zookeeper.underreplication import UnderreplicatedNodes
from fastbk.model.missing_replica import MissingReplica
from tests.fixtures.zookeeper import ZooKeeperPlace
from tests.unit.meta.test_metadata_store import Open, metadata, open_driver

__all__ = ["open_driver"]

FIRST = MissingReplica("b1", 0, 9, "it was away", 5)
OPEN = MissingReplica("b2", 7, None, "it is away", 6)


def _nodes(store: MetadataStore) -> UnderreplicatedNodes:
    assert isinstance(store, ZooKeeperStore)
    return store.coordination


def test_what_one_handle_marks_another_lists(open_driver: Open) -> None:
    first, second = open_driver().marks, open_driver().marks
    assert list(second.list()) == []
    first.update(7, add=[FIRST])
    first.update(1 << 40, add=[OPEN])
    assert second.read(7) == LedgerMark(7, (FIRST,))
    assert {one.ledger_id: one.missing for one in second.list()} == {7: (FIRST,), 1 << 40: (OPEN,)}


def test_marking_again_changes_nothing_and_a_time_is_added(open_driver: Open) -> None:
    marks = open_driver().marks
    marks.update(7, add=[FIRST])
    marks.update(7, add=[FIRST])
    assert marks.read(7).missing == (FIRST,)
    (found,) = marks.update(8, add=[MissingReplica("b1", 0, 1)]).missing
    assert found.marked_ms > 0


def test_only_what_was_repaired_is_removed(open_driver: Open) -> None:
    marks = open_driver().marks
    marks.update(7, add=[FIRST, OPEN])
    marks.update(7, remove=[MissingReplica("b1", 0, 4)])
    assert marks.read(7).missing == (MissingReplica("b1", 5, 9, FIRST.reason, 5), OPEN)
    marks.update(7, remove=[MissingReplica("b1", 0), MissingReplica("b2", 0)])
    assert list(marks.list()) == []
    marks.update(7, remove=[FIRST])


def test_marks_of_several_clients_at_once_are_all_kept(open_driver: Open) -> None:
    store = open_driver()

    def mark(number: int) -> None:
        store.marks.update(7, add=[MissingReplica(f"b{number}", number, number, "", 1)])

    threads = [threading.Thread(target=mark, args=(one,)) for one in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.bookie_id for one in store.marks.read(7).missing] == ["b0", "b1", "b2", "b3"]


def test_a_deleted_ledger_leaves_no_mark(open_driver: Open) -> None:
    store = open_driver()
    store.create_ledger(7, metadata())
    store.marks.update(7, add=[FIRST])
    delete_ledger(store, 7)
    assert list(store.marks.list()) == []


def test_many_marks_are_listed_whole(open_driver: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_marks, "READ_AT_ONCE", 3)
    marks = open_driver().marks
    # ten in one folder, others in one each
    ids = [*range(0, 10 * 256, 256), *range(1, 30), 1 << 40]
    for ledger_id in ids:
        marks.update(ledger_id, add=[FIRST])
    assert sorted(one.ledger_id for one in marks.list()) == sorted(ids)
    found = list(marks.under_replicated())
    assert sorted(one.ledger_id for one in found) == sorted(ids)
    assert {(one.missing, one.marked_ms) for one in found} == {(("b1",), 5)}


def test_apaches_tools_see_finished_ranges(zookeeper: ZooKeeperPlace) -> None:
    uri = zookeeper.uri()
    with closing(open_store(uri)) as store:
        nodes = _nodes(store)
        marks = store.marks
        marks.update(7, add=[FIRST, OPEN])
        marks.update(8, add=[OPEN])
        assert list(nodes.ledgers()) == [UnderreplicatedLedger(7, ("b1",), 5)], (
            "Apache's worker would fence a ledger whose last fragment it finds wanting"
        )
        marks.update(7, add=[MissingReplica("b2", 0, 3, "", 7)])
        assert [one.missing for one in nodes.ledgers()] == [("b1", "b2")]
        marks.update(7, remove=[FIRST])
        assert [one.missing for one in nodes.ledgers()] == [("b2",)]
        marks.update(7, remove=[MissingReplica("b2", 0)])
        assert list(nodes.ledgers()) == []


def test_marks_of_autorecovery_are_listed_and_removed(zookeeper: ZooKeeperPlace) -> None:
    uri = zookeeper.uri()
    with closing(open_store(uri)) as store:
        nodes = _nodes(store)
        marks = store.marks
        nodes.mark(UnderreplicatedLedger(9, ("b1", "b2"), 5))
        (found,) = marks.list()
        assert [(one.bookie_id, one.first_entry_id) for one in found.missing] == [
            ("b1", 0),
            ("b2", 0),
        ]
        marks.update(9, remove=[MissingReplica("b1", 0)])
        assert [one.missing for one in nodes.ledgers()] == [("b2",)]
        marks.update(9, remove=[MissingReplica("b2", 0)])
        assert list(marks.list()) == []


def test_our_own_mark_stays_when_apaches_worker_deletes_its_node(zookeeper: ZooKeeperPlace) -> None:
    uri = zookeeper.uri()
    with closing(open_store(uri)) as store:
        nodes = _nodes(store)
        store.marks.update(7, add=[FIRST])
        client = zookeeper.client()
        client.delete(f"{zookeeper.location().root}/underreplication/ledgers", recursive=True)
        client.stop()
        client.close()
        assert list(nodes.ledgers()) == []
        assert [one.ledger_id for one in store.marks.list()] == [7]


def test_a_damaged_mark_hides_no_other(open_driver: Open) -> None:
    store = open_driver()
    for ledger_id in (7, 8, 7 + 256):
        store.marks.update(ledger_id, add=[FIRST])
    (found,) = store.records.read([path_of(8)])
    assert found is not None
    store.records.change([Change(path_of(8), b"{", found.version)])
    store.records.change([Change(f"{path_of(8)}x", b"{}"), Change("under_replicated/zz/1", b"{}")])
    assert {one.ledger_id for one in store.marks.list() if FIRST in one.missing} == {7, 7 + 256}
    assert "ledger 8" in store.marks.read(8).fault
    store.marks.update(8, remove=[FIRST])
    assert store.marks.read(8).fault, "nobody knows what it says: a repair leaves it"
    store.marks.update(8, add=[FIRST])
    assert store.marks.read(8).missing[0].bookie_id == FIRST.bookie_id
    (found,) = store.records.read([path_of(8)])
    assert found is not None
    store.records.change([Change(path_of(8), b"[" * 100_000, found.version)])
    store.marks.forget(8)
    assert store.records.read([path_of(8)]) == [None]
