"""What only the sqlite driver has: one file that several processes share, and its older formats."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import fastbk
import fastbk.sync
from fastbk.errors import ConfigError, MetadataConflict, MetadataUnavailable
from fastbk.meta import open_store
from fastbk.meta.sqlite.store import SqliteFile, SqliteStore, service_text
from tests.fixtures.metadata import metadata, service


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
