"""What indexes add to an import: which copy counts, what is missing, fences and keys; and what they must not stop."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fastbk.apache.importer import bookie_files, import_bookie
from fastbk.apache.importer.index import IndexUse
from fastbk.errors import StorageError
from fastbk.model.entry import DigestType, make_lac_body, master_key
from fastbk.native.ledger_state import FENCED, HAS_KEY
from tests.fixtures import apache_disk
from tests.fixtures.apache_disk import entry, record
from tests.fixtures.apache_imports import BOOKIE_ID, Import, closed
from tests.fixtures.apache_indexes import (
    index_file,
    ledger_data,
    location,
    put_databases,
    put_index_file,
)
from tests.fixtures.entries import make_entry

KEY = master_key(b"")
OLD, NEW = (make_entry(7, 0, lac, 5, b"data", DigestType.CRC32C) for lac in (-1, 0))
FIRST = 1024
KINDS = ("db", "files")


def put_index(
    made: Import,
    kind: str,
    places: dict[int, int],
    *,
    ledger_id: int = 7,
    is_fenced: bool = False,
    key: bytes = KEY,
    lac: bytes = b"",
) -> None:
    """Give the bookie an index with one ledger."""
    folder = made.folder / "apache" / "ledgers"
    if kind == "db":
        data = ledger_data(is_fenced=is_fenced, key=key, lac=lac)
        locations = {(ledger_id, entry_id): at for entry_id, at in places.items()}
        put_databases(folder, {ledger_id: data}, locations)
    else:
        content = index_file(places, is_fenced=is_fenced, key=key, lac=lac)
        put_index_file(folder, ledger_id, content)


def run(made: Import, use: IndexUse = IndexUse.USE) -> import_bookie.Imported:
    return import_bookie.run(
        made.config, made.store, replace(made.plan, index_use=use), lambda _: None
    )


@pytest.fixture
def bookie(tmp_path: Path) -> Import:
    """A bookie with ledger 7, closed, whose entry 0 lies in two logs in two versions."""
    made = Import(tmp_path)
    made.store.create_ledger(7, closed(0))
    made.put("ledgers/0.log", apache_disk.entry_log(record(OLD)))
    made.put("ledgers/1.log", apache_disk.entry_log(record(NEW)))
    return made


@pytest.mark.parametrize(("log", "expected"), [(0, OLD), (1, NEW)])
@pytest.mark.parametrize("kind", KINDS)
def test_of_several_copies_in_logs_the_one_that_the_index_names_counts(
    bookie: Import, kind: str, log: int, expected: bytes
) -> None:
    put_index(bookie, kind, {0: location(log, FIRST)})
    done = run(bookie)
    assert bookie.content()[0] == {7: {0: expected}}
    index = done.counts.index
    assert (index.in_place, index.elsewhere, index.missing_entries) == (1, 1, 0)
    assert (done.counts.is_damaged, done.in_limbo) == (False, 0)


def test_without_its_index_the_last_copy_counts(bookie: Import) -> None:
    put_index(bookie, "files", {0: location(0, FIRST)})
    done = run(bookie, IndexUse.IGNORE)
    assert bookie.content()[0] == {7: {0: NEW}}
    assert (done.counts.index.read, done.counts.index.not_checked) == ([], 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("log", [0, 1])
def test_a_whole_copy_elsewhere_counts_for_a_damaged_one_that_the_index_names(
    bookie: Import, log: int, kind: str
) -> None:
    bookie.put(f"ledgers/{log}.log", apache_disk.entry_log(record(OLD[:-1] + b"x")))
    put_index(bookie, kind, {0: location(log, FIRST)})
    done = run(bookie)
    assert bookie.content()[0] == {7: {0: NEW if log == 0 else OLD}}
    assert (done.counts.damaged_entries, done.counts.index.missing_entries) == (1, 0)


def test_what_the_journal_has_counts_for_more_than_the_index(bookie: Import) -> None:
    newest = make_entry(7, 0, -1, 5, b"newest", DigestType.CRC32C)
    bookie.put("journal/1.txn", apache_disk.journal(record(newest)))
    put_index(bookie, "files", {0: location(0, FIRST)})
    assert run(bookie).counts.journal_entries == 1
    assert bookie.content()[0] == {7: {0: newest}}


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_index_names_and_no_file_holds_is_told_and_in_limbo(
    bookie: Import, kind: str
) -> None:
    """Metadata alone would miss nothing: entries 1, 2 and 5 lie behind the end of the ledger."""
    places = {0: location(1, FIRST)} | {one: location(2, 5000 + one) for one in (1, 2, 5)}
    put_index(bookie, kind, places)
    found = import_bookie.survey(bookie.plan, bookie.store, lambda _: None)
    done = run(bookie)
    assert bookie.in_limbo() == [7]
    for counts in (found.counts, done.counts):
        assert counts.is_damaged
        assert (counts.index.entries, counts.index.missing_entries) == (4, 3)
        assert ["entries 1 to 2 of ledger 7" in one for one in counts.index.told] == [True, False]
        assert "entry 5 of ledger 7 should be here" in counts.index.told[1]


def test_what_the_index_names_and_only_the_journal_holds_is_not_missing(bookie: Import) -> None:
    bookie.put("journal/1.txn", apache_disk.journal(record(entry(7, 1))))
    put_index(bookie, "files", {0: location(1, FIRST), 1: location(2, FIRST)})
    assert run(bookie).counts.index.missing_entries == 0


@pytest.mark.parametrize("kind", KINDS)
def test_fence_lac_and_limbo_come_from_the_index(bookie: Import, kind: str) -> None:
    body = make_lac_body(7, 5, DigestType.CRC32C, b"")
    put_index(bookie, kind, {0: location(1, FIRST)}, is_fenced=True, lac=body)
    run(bookie)
    assert bookie.content()[1][7] & FENCED
    assert bookie.lacs() == {7: 5}
    other = Import(bookie.folder / "other")
    other.store.create_ledger(7, closed(-1, "somebody"))
    put_databases(other.folder / "apache/ledgers", {7: ledger_data(is_in_limbo=True)}, {})
    run(other)
    assert other.in_limbo() == [7]


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_compared_and_taken_where_metadata_has_none(tmp_path: Path, kind: str) -> None:
    for number, password in enumerate((b"secret", None)):
        made = Import(tmp_path / str(number))
        made.store.create_ledger(7, replace(closed(0), password=password))
        made.put("ledgers/0.log", apache_disk.entry_log(record(OLD)))
        put_index(made, kind, {0: location(0, FIRST)}, key=bytes(range(20)))
        counts = run(made).counts
        assert made.content()[1][7] == HAS_KEY
        right = bytes(range(20)) if password is None else master_key(password)
        assert made.keys() == {7: right}
        assert counts.index.other_keys == len(counts.index.told) == (password is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_ledger_that_metadata_does_not_list_stays_deleted(bookie: Import, kind: str) -> None:
    bookie.put("ledgers/2.log", apache_disk.entry_log(record(entry(8, 0)), record(entry(9, 0))))
    put_index(bookie, kind, {0: location(2, FIRST), 1: 5000}, ledger_id=8)
    done = run(bookie)
    assert set(bookie.content()[0]) == {7}
    assert done.counts.left_out_ledgers == {8, 9}
    index = done.counts.index
    assert (index.ledgers, index.unlisted_ledgers, index.missing_entries) == (1, 1, 0)
    assert bookie.in_limbo() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_index_is_told_and_stops_an_import_only_if_it_is_required(
    bookie: Import, kind: str
) -> None:
    put_index(bookie, kind, {0: location(1, FIRST), 1: 17})
    with pytest.raises(StorageError, match=r"damaged in 1 places.*--index use"):
        run(bookie, IndexUse.REQUIRE)
    done = run(bookie)
    assert bookie.content()[0] == {7: {0: NEW}}
    assert (done.counts.is_damaged, done.counts.index.damaged_places) == (True, 1)


def test_databases_that_cannot_be_opened_are_told(bookie: Import) -> None:
    put_index(bookie, "db", {0: location(1, FIRST)})
    (bookie.folder / "apache/ledgers/current/ledgers/CURRENT").write_bytes(b"nothing\n")
    with pytest.raises(StorageError, match="an index is to be read and cannot be: RocksDB in"):
        run(bookie, IndexUse.REQUIRE)
    done = run(bookie)
    assert bookie.content()[0] == {7: {0: NEW}}
    assert (done.counts.index.damaged_places, len(done.counts.index.not_read)) == (1, 1)


def test_without_the_package_an_import_goes_on_and_says_so(
    bookie: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_index(bookie, "db", {0: location(1, FIRST)})
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(StorageError, match="pip install"):
        run(bookie, IndexUse.REQUIRE)
    done = run(bookie)
    assert "pip install" in done.counts.index.not_read[0]
    assert not done.counts.is_damaged


def test_a_bookie_without_any_index_is_told_of_unless_one_is_required(bookie: Import) -> None:
    with pytest.raises(StorageError, match="indexDirectories"):
        run(bookie, IndexUse.REQUIRE)
    assert "indexDirectories" in run(bookie).counts.index.not_read[0]


def test_a_bookie_that_has_flushed_nothing_needs_no_index(bookie: Import) -> None:
    """Its entry log was made, and not written to, or only its header was."""
    bookie.put("ledgers/0.log", b"")
    bookie.put("ledgers/1.log", apache_disk.entry_log())
    bookie.put("journal/1.txn", apache_disk.journal(record(NEW)))
    done = run(bookie, IndexUse.REQUIRE)
    assert bookie.content()[0] == {7: {0: NEW}}
    assert done.counts.index.not_read == []


def test_each_ledger_directory_has_a_database_for_its_own_logs(tmp_path: Path) -> None:
    """Both have a log 0, and what an index says of it holds for its own directory only."""
    made = Import(tmp_path)
    names = []
    for ledger_id, folder in ((7, "a"), (8, "b")):
        made.store.create_ledger(ledger_id, closed(0))
        current = tmp_path / "apache" / folder / "current"
        current.mkdir(parents=True)
        (tmp_path / "apache" / f"{folder}-index" / "current").mkdir(parents=True)
        (current / "0.log").write_bytes(apache_disk.entry_log(record(entry(ledger_id, 0))))
        put_databases(
            tmp_path / "apache" / f"{folder}-index",
            {ledger_id: ledger_data(key=KEY)},
            {(ledger_id, 0): location(0, FIRST)},
        )
        names.append(str(tmp_path / "apache" / folder))
    journal = str(tmp_path / "apache/journal")
    found = bookie_files.find_directories([journal], names, [f"{name}-index" for name in names])
    plan = import_bookie.ImportPlan(BOOKIE_ID, found)
    counts = import_bookie.run(made.config, made.store, plan, lambda _: None).counts
    assert (counts.index.in_place, counts.index.not_named, len(counts.index.read)) == (2, 0, 2)
