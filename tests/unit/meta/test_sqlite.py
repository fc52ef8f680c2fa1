"""What only the sqlite driver has: one file that several processes share, and its older formats."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fastbk
import fastbk.sync
from fastbk.errors import ClientClosed, ConfigError, MetadataConflict, MetadataUnavailable
from fastbk.meta import open_store
from fastbk.meta.api import Subject
from fastbk.meta.records import Change
from fastbk.meta.sqlite.store import SqliteFile, SqliteStore, Watcher, service_text
from tests.fixtures.metadata import metadata, service
from tests.fixtures.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def _draw(path: str, count: int, out: multiprocessing.SimpleQueue[list[int]]) -> None:
    store = SqliteStore(path)
    out.put([store.next_ledger_id() for _ in range(count)])
    store.close()


@pytest.mark.slow
def test_several_processes_open_one_new_file_at_once_and_share_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    out: multiprocessing.SimpleQueue[list[int]] = context.SimpleQueue()
    path = f"{tmp_path}/meta.db"
    processes = [context.Process(target=_draw, args=(path, 20, out)) for _ in range(3)]
    for process in processes:
        process.start()
    drawn = [ledger_id for _ in processes for ledger_id in out.get()]
    for process in processes:
        process.join()
    assert sorted(drawn) == list(range(60))


def test_a_file_of_the_first_format_learns_to_remember(tmp_path: Path) -> None:
    path = f"{tmp_path}/meta.db"
    store = SqliteStore(path)
    store.create_ledger(1, metadata())
    instance_id = store.instance_id()
    store.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE deleted_ledgers")
        db.execute("PRAGMA user_version=1")
    store = SqliteStore(path)
    assert (store.instance_id(), store.list_ledgers()) == (instance_id, [1])
    store.delete_ledger(1)
    with pytest.raises(MetadataConflict, match="was deleted"):
        store.create_ledger(1, metadata())
    store.close()


def test_a_missing_directory_is_unavailable_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(MetadataUnavailable, match="nowhere"):
        open_store(f"sqlite:{tmp_path}/nowhere/meta.db")


def test_a_commit_that_fails_leaves_no_transaction_behind(tmp_path: Path) -> None:
    file = SqliteFile(str(tmp_path / "m.sqlite"), 1.0)
    with file.transaction() as db:
        db.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
        db.execute(
            "CREATE TABLE children (id INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)"
        )
    with file.reading() as db:
        db.execute("PRAGMA foreign_keys=ON")
    # A deferred constraint is looked at by the commit itself.
    with pytest.raises(MetadataUnavailable), file.transaction() as db:
        db.execute("INSERT INTO children VALUES (7)")
    with file.transaction() as db:
        assert db.execute("SELECT count(*) FROM children").fetchone() == (0,)
    file.close()


def test_a_mistyped_path_is_no_new_cluster(tmp_path: Path) -> None:
    """Whoever only wants to use a cluster would find an empty one, and a file more."""
    there, empty, other = (tmp_path / name for name in ("m.sqlite", "empty", "other"))
    with pytest.raises(
        ConfigError, match=rf"no cluster at sqlite:{there}: no such file.*fastbk dev"
    ):
        open_store(f"sqlite:{there}", may_make=False)
    empty.touch()
    other.write_text("root:x:0:0:root:/root:/bin/sh\n" * 100)
    for path in (empty, other):
        before = path.read_bytes()
        with pytest.raises(ConfigError, match=r"(holds|is) something else"):
            open_store(f"sqlite:{path}", may_make=False)
        assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [empty, other]
    open_store(f"sqlite:{there}").close()
    open_store(f"sqlite:{there}", may_make=False).close()


async def test_clients_make_no_file(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/m.sqlite"
    with pytest.raises(ConfigError, match="no cluster at"):
        await fastbk.connect(uri).list_ledgers().__anext__()
    with pytest.raises(ConfigError, match="no cluster at"), fastbk.sync.connect(uri) as client:
        list(client.list_ledgers())
    assert list(tmp_path.iterdir()) == []


def test_version_01_reads_the_registration_of_a_bookie_without_tls() -> None:
    """It makes an endpoint of what it finds, and raises for a field that it does not know."""
    (endpoint,) = json.loads(service_text(service()))["endpoints"]
    assert endpoint.keys() == {"host", "port", "protocol", "name"}


# Many changes with one commit, one sync of the disk: each keeps its own outcome, and all are lost
# or kept together.


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


# Watches of stores that cannot push.


class FakeStore:
    def __init__(self) -> None:
        self.states: dict[Subject, int] = {}
        self.is_closed = False

    def look(self, subject: Subject) -> int:
        if self.is_closed:
            raise ClientClosed("closed")
        return self.states.get(subject, 0)


def _threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "fastbk-watch"]


def test_a_watch_that_begins_while_the_store_is_closed_leaves_no_thread() -> None:
    store = FakeStore()
    watcher = Watcher(store.look, 0.01)
    watcher.add(1, lambda: None)
    store.is_closed = True
    wait_until(lambda: not _threads(), "the thread ends")


def test_callbacks_end_and_begin_watches_and_an_end_counts_once() -> None:
    store, told = FakeStore(), list[str]()
    watcher = Watcher(store.look, 0.01)
    other = watcher.add(1, lambda: told.append("other"))

    def changed() -> None:
        first.close()
        first.close()
        watcher.add(1, lambda: told.append("second"))

    first = watcher.add(1, changed)
    store.states[1] = 1
    wait_until(lambda: told == ["other"], "the first change is told")
    wait_until(
        lambda: (
            len(watcher._subscriptions.all()) == 2 and first not in watcher._subscriptions.all()
        ),
        "it began",
    )
    store.states[1] = 2
    wait_until(lambda: told == ["other", "other", "second"], "the second change is told")
    other.close()
    watcher.close()
    wait_until(lambda: not _threads(), "the thread ends")


def test_nothing_is_looked_at_while_the_mark_of_the_store_stays_the_same() -> None:
    store, told = FakeStore(), list[str]()
    looked, marks, failures = list[Subject](), [0], list[Exception]()

    def look_all(subjects: Sequence[Subject]) -> list[object]:
        if failures:
            raise failures.pop()
        looked.extend(subjects)
        return [store.look(one) for one in subjects]

    def passes(count: int) -> None:
        """Wait until the bookies, who have leases, were looked at so often."""
        before = looked.count(None)
        wait_until(lambda: looked.count(None) >= before + count, "passes")

    watcher = Watcher(store.look, 0.002, look_all, lambda: marks[0])
    watcher.add(7, lambda: told.append("ledger"))
    watcher.add(None, lambda: told.append("bookies"))
    passes(5)
    assert looked.count(7) <= 1, "only before there was a mark"
    store.states[7] = store.states[None] = 1
    wait_until(lambda: told == ["bookies"], "a lease ran out, without a change of the store")
    marks[0] = 1
    wait_until(lambda: told == ["bookies", "ledger"], "it is looked at")
    # A look that failed is made again, though the mark is known by then.
    store.states[7] = 2
    failures.append(MetadataUnavailable("away"))
    marks[0] = 2
    wait_until(lambda: told == ["bookies", "ledger", "ledger"], "what changed meanwhile is told")
    before = looked.count(7)
    passes(5)
    assert looked.count(7) == before
    watcher.close()


def test_a_file_tells_of_changes_by_itself_and_by_others(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/metadata.db"
    store, other, told = open_store(uri), open_store(uri), list[str]()
    store.records.watch("a/b", lambda: told.append("record"))
    store.records.watch_children("a", lambda: told.append("names"))
    (version,) = store.records.change([Change("a/b", b"1", None)])
    wait_until(lambda: sorted(told) == ["names", "record"], "its own change")
    other.records.change([Change("a/b", b"2", version)])
    wait_until(lambda: sorted(told) == ["names", "record", "record"], "a change by another")
    other.records.change([Change("a/c", b"1", None)])
    wait_until(lambda: sorted(told) == ["names", "names", "record", "record"], "a name")
    store.close()
    other.close()
