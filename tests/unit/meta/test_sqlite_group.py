"""Many changes with one commit, one sync of the disk: each keeps its own outcome, and all are lost or kept together."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.errors import MetadataConflict, MetadataUnavailable
from fastbk.meta.records import Change
from fastbk.meta.sqlite.store import SqliteStore
from tests.fixtures.metadata import metadata


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(f"{tmp_path}/m.sqlite", 1.0)
    yield store
    store.close()


def statements(store: SqliteStore) -> list[str]:
    """Return the statements that are made from now on."""
    made: list[str] = []
    with store._file.reading() as db:
        db.set_trace_callback(made.append)
    return made


def names(store: SqliteStore, path: str = "r") -> list[str]:
    return store.records.children(path)


def test_changes_of_a_group_have_one_commit_and_outcomes_of_their_own(
    store: SqliteStore, tmp_path: Path
) -> None:
    other, made = SqliteStore(f"{tmp_path}/m.sqlite"), statements(store)
    with store.group():
        (version,) = store.records.change([Change("r/1", b"one")])
        ledger_id = store.next_ledger_id()
        store.create_ledger(ledger_id, metadata())
        with pytest.raises(MetadataConflict):
            # Half of it is done when the other half is refused.
            store.records.change([Change("r/2", b"two"), Change("r/1", b"again")])
        store.records.change([Change("r/1", b"changed", version)])
        store.records.change([Change("r/3", b"three")])
        assert (names(other), other.list_ledgers()) == ([], []), "nothing is there before the end"
    assert sum(one.startswith("COMMIT") for one in made) == 1
    assert names(other) == ["1", "3"]
    assert other.list_ledgers() == [ledger_id] and other.next_ledger_id() == ledger_id + 1
    (found,) = other.records.read(["r/1"])
    assert found is not None and found.value == b"changed"
    other.close()


def test_a_group_that_only_reads_takes_no_lock(store: SqliteStore) -> None:
    made = statements(store)
    with store.group():
        assert names(store) == []
    assert not [one for one in made if one.startswith(("BEGIN", "COMMIT"))]


def test_a_commit_that_fails_takes_all_back_and_nobody_knows(store: SqliteStore) -> None:
    with store._file.transaction() as db:
        db.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
        db.execute(
            "CREATE TABLE children (id INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)"
        )
    with store._file.reading() as db:
        db.execute("PRAGMA foreign_keys=ON")
    with pytest.raises(MetadataUnavailable) as failed, store.group():
        store.records.change([Change("r/1", b"one")])
        with store._file.transaction() as db:  # a deferred constraint is looked at by the commit
            db.execute("INSERT INTO children VALUES (7)")
    assert failed.value.outcome == "unknown"
    assert names(store) == []
    store.records.change([Change("r/2", b"goes on")])
    assert names(store) == ["2"]


def test_what_sqlite_took_back_by_itself_is_not_committed_in_part(store: SqliteStore) -> None:
    with pytest.raises(MetadataUnavailable, match="taken back"), store.group():
        store.records.change([Change("r/1", b"one")])
        with pytest.raises(MetadataUnavailable), store._file.transaction() as db:
            db.execute("ROLLBACK")  # as after an error of the disk
            raise sqlite3.OperationalError("disk I/O error")
        with pytest.raises(MetadataUnavailable, match="taken back"):
            store.records.change([Change("r/2", b"two")])
    assert names(store) == []
    with store.group():
        store.records.change([Change("r/3", b"three")])
    assert names(store) == ["3"]
