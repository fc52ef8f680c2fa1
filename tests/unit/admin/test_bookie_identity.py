"""Which bookies a cluster knows, and forgetting one: never one that runs, nor quietly one that ledgers count on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastbk.admin.bookie_identity import (
    empty_directories,
    forget,
    known_bookies,
    rename_bookie,
    renamed,
    things_in,
)
from fastbk.cli.__main__ import main
from fastbk.errors import MetadataConflict, MetadataOnHold, StorageError
from fastbk.meta.api import BookieIdentity, BookieService, DirectoryIdentity, Endpoint
from fastbk.meta.rollback import confirm_hold, new_hold, place_hold
from fastbk.meta.sqlite.store import MemoryStore, SqliteStore
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

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


# Another bookie id over one in all ledgers' metadata.


def ledger(*ensembles: tuple[str, ...]) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        fragments=tuple(Fragment(10 * at, one) for at, one in enumerate(ensembles)),
    )


def test_all_fragments_change_and_nothing_else() -> None:
    before = replace(ledger(("a", "b"), ("b", "c"), ("c", "d")), custom={"k": b"v"})
    after = renamed(before, "b", "x")
    assert after is not None
    assert [one.ensemble for one in after.fragments] == [("a", "x"), ("x", "c"), ("c", "d")]
    assert replace(after, fragments=before.fragments) == before
    assert renamed(after, "b", "x") is None
    with pytest.raises(MetadataConflict, match="both"):
        renamed(before, "b", "c")


def test_a_run_goes_over_all_ledgers_and_can_be_cut_off() -> None:
    store = MemoryStore("renaming")
    ensembles = [("a", "b"), ("a", "c"), ("b", "c"), ("d", "b"), ("b", "x")]
    for ledger_id, ensemble in enumerate(ensembles):
        store.create_ledger(ledger_id, ledger(ensemble))
    seen = []
    done = rename_bookie(
        store,
        "b",
        "x",
        updates_per_s=1e9,
        updates_max=2,
        on_progress=lambda at: seen.append(at.updated),
    )
    assert (done.updated, seen) == (2, [1, 2])
    done = rename_bookie(store, "b", "x", updates_per_s=1e9)
    assert (done.seen, done.updated, list(done.failed)) == (5, 1, [4])
    found = [store.read_ledger(one).metadata.fragments[0].ensemble for one in range(5)]
    assert found == [("a", "x"), ("a", "c"), ("x", "c"), ("d", "x"), ("b", "x")]


def test_a_writer_that_changes_the_ledger_meanwhile_loses_nothing() -> None:
    class Racing(MemoryStore):
        def update_ledger(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> int:
            if version == 0:
                # Between the reading and the writing of the one who renames.
                grown = replace(
                    self.read_ledger(ledger_id).metadata,
                    fragments=(Fragment(0, ("a", "b")), Fragment(7, ("b", "c"))),
                )
                super().update_ledger(ledger_id, grown, version)
            return super().update_ledger(ledger_id, metadata, version)

    store = Racing("renaming-race")
    store.create_ledger(1, ledger(("a", "b")))
    assert rename_bookie(store, "b", "x", updates_per_s=1e9).updated == 1
    fragments = store.read_ledger(1).metadata.fragments
    assert fragments == (Fragment(0, ("a", "x")), Fragment(7, ("x", "c")))


# Directories of a bookie are emptied; those of others are not.


def filled(directory: Path, *names: str) -> str:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return str(directory)


def test_everything_goes_but_the_lock(tmp_path: Path) -> None:
    journal = filled(tmp_path / "j", "identity.json", "1.journal", "current/VERSION", "lock")
    ledgers = filled(tmp_path / "l", "identity.json", "logs/1.log", "lost+found/x")
    empty_directories([journal, ledgers, str(tmp_path / "missing")])
    assert sorted(path.name for path in Path(journal).iterdir()) == ["lock"]
    assert sorted(path.name for path in Path(ledgers).iterdir()) == ["lost+found"]


def test_a_strange_directory_keeps_all_of_them_whole(tmp_path: Path) -> None:
    journal = filled(tmp_path / "j", "identity.json", "1.journal")
    strange = filled(tmp_path / "l", "current/0.log")
    with pytest.raises(StorageError, match=r"no identity\.json"):
        empty_directories([journal, strange])
    assert things_in(journal) == ["1.journal", "identity.json"]
    assert things_in(strange) == ["current"]


def test_a_journal_in_a_folder_of_the_ledger_directory(tmp_path: Path) -> None:
    ledgers = filled(tmp_path / "l", "identity.json", "logs/1.log")
    journal = filled(tmp_path / "l" / "journal", "identity.json", "1.journal")
    empty_directories([journal, ledgers])
    assert things_in(ledgers) == ["journal"]
    assert things_in(journal) == []
