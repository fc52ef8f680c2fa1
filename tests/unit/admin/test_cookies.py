"""Which bookies a cluster knows, and forgetting one: never one that runs, nor quietly one that ledgers count on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.admin.bookie_identity import forget, known_bookies
from fastbk.cli.__main__ import main
from fastbk.errors import MetadataConflict, MetadataOnHold, StorageError
from fastbk.meta.api import BookieIdentity, BookieService, DirectoryIdentity, Endpoint
from fastbk.meta.rollback import confirm_hold, new_hold, place_hold
from fastbk.meta.sqlite.store import SqliteStore
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata

B1, B2 = BookieId("b1"), BookieId("b2")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(str(tmp_path / "metadata.sqlite"))
    for number, bookie_id in enumerate((B1, B2)):
        directories = (DirectoryIdentity("a1", "journal"), DirectoryIdentity("b2", "ledger", 1))
        made.write_identity(BookieIdentity(bookie_id, 255, directories, starts=number), None)
    yield made
    made.close()


def test_all_that_ever_started(store: SqliteStore) -> None:
    service = BookieService(B2, 255, (Endpoint("127.0.0.1", 1),))
    lease = store.register_bookie(service, writable=True)
    first, second = known_bookies(store)
    lease.close()
    assert (first.bookie_id, first.incarnation, first.starts) == (B1, "00000000000000ff", 0)
    assert first.directories == ("journal 0: a1", "ledger 1: b2")
    assert (first.is_registered, second.is_registered) == (False, True)


def test_one_that_nobody_counts_on_is_forgotten(store: SqliteStore) -> None:
    forget(store, B1)
    assert [one.bookie_id for one in known_bookies(store)] == [B2]
    with pytest.raises(StorageError, match="knows no bookie"):
        forget(store, B1)


def test_one_that_runs_is_not(store: SqliteStore) -> None:
    service = BookieService(B1, 255, (Endpoint("127.0.0.1", 1),))
    lease = store.register_bookie(service, writable=True)
    with pytest.raises(MetadataConflict, match="is running"):
        forget(store, B1, even_if_named=True)
    lease.close()


def test_one_that_ledgers_count_on_only_on_a_person_s_word(store: SqliteStore) -> None:
    metadata = LedgerMetadata(
        ensemble_size=1, write_quorum=1, ack_quorum=1, fragments=(Fragment(0, (B1,)),)
    )
    store.create_ledger(7, metadata)
    with pytest.raises(StorageError, match=r"1 ledgers count on .*\(ledger 7\).*decommission"):
        forget(store, B1)
    forget(store, B1, even_if_named=True)
    assert [one.bookie_id for one in known_bookies(store)] == [B2]


def test_the_command(store: SqliteStore, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cluster", "cookies", "--metadata", store.uri]
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["instance_id"] == store.instance_id()
    assert [one["bookie_id"] for one in answer["bookies"]] == [B1, B2]
    assert main([*words, "--even-if-named"]) == 2
    assert main([*words, "--forget", "b1", "--yes"]) == 0
    capsys.readouterr()
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "b2  incarnation 00000000000000ff, 2 starts, not running" in out
    assert "ledger 1: b2" in out
    assert "b1  " not in out


def test_a_mistyped_id_that_is_freed_is_told(
    store: SqliteStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once more is well, too: whoever was interrupted runs it again."""
    for bookie_id, said in (("b1", ""), ("b1", "knows no b1"), ("b22", "There are b2")):
        assert main(["bookie", "decommission", bookie_id, "--yes", "--metadata", store.uri]) == 0
        assert said in capsys.readouterr().err
    assert [one.bookie_id for one in known_bookies(store)] == [B2]


def test_recovering_an_unknown_id_is_an_error(
    store: SqliteStore, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--metadata", store.uri]
    for more in ([], ["--dry-run"]):
        assert main(["bookie", "recover", "b22", *words, *more]) == 2
        (said,) = capsys.readouterr().err.splitlines()  # no progress: there was nothing to do
        assert "no bookie b22" in said
        assert main(["bookie", "recover", "b2", *words, *more]) == 0
        capsys.readouterr()


def test_none_is_forgotten_by_metadata_on_hold(store: SqliteStore) -> None:
    """Ledgers that it lost may have copies on that bookie only."""
    hold = place_hold(store, new_hold("rolled back"))
    with pytest.raises(MetadataOnHold, match="rolled back"):
        forget(store, B1)
    assert main(["bookie", "decommission", B1, "--metadata", store.uri, "--yes"]) != 0
    assert [one.bookie_id for one in known_bookies(store)] == [B1, B2]
    assert confirm_hold(store, hold.hold_id)
    forget(store, B1)
