"""Both kinds of indexes of Apache's bookies: real ones, and such as crashes and bad disks leave."""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING

import pytest

from fastbk.apache.importer import bookie_files, index
from fastbk.apache.importer.bookie_files import read_entry_log
from fastbk.apache.importer.index import (
    NOWHERE,
    PIECE_ENTRIES,
    UNKNOWN,
    Databases,
    EntryBitmap,
    Index,
    IndexFiles,
    NoReaderError,
)
from fastbk.errors import StorageError
from fastbk.inspect.items import FileReader
from fastbk.model.entry import DigestType, master_key, parse_lac_body
from tests.fixtures import apache_disk
from tests.fixtures.apache_disk import WHOLE, Reports
from tests.fixtures.apache_indexes import index_file, ledger_data, put_databases, put_index_file

if TYPE_CHECKING:
    from pathlib import Path

PLACES = {0: 1028, 2: 1 << 32 | 2000}


def opened(storage: str, folder: Path, reports: Reports) -> Index:
    if storage == "db":
        return Databases(folder, folder, reports)
    return IndexFiles([folder], reports)


def put(storage: str, folder: Path) -> None:
    """Write an index with ledger 7: entries 0 and 2."""
    if storage == "db":
        put_databases(
            folder, {7: ledger_data()}, {(7, entry_id): at for entry_id, at in PLACES.items()}
        )
    else:
        put_index_file(folder, 7, index_file(PLACES))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory of an Apache bookie."""
    (tmp_path / "current").mkdir()
    return tmp_path


@pytest.mark.parametrize("storage", apache_disk.STORAGES)
def test_real_indexes_name_every_entry_where_it_lies(storage: str) -> None:
    bookie = apache_disk.recorded(storage)
    folder, reports = bookie.folder / "ledgers", Reports()
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    found: dict[tuple[int, int], int] = {}
    for path in bookie_files.find_directories([str(folder)], [str(folder)]).entry_logs():
        with FileReader(path) as source:
            for ledger_id, entry_id, _, at in read_entry_log(source, WHOLE, reports):
                found[ledger_id, entry_id] = int(path.stem, 16) << 32 | at
    index = opened(storage, folder, reports)
    listed = {one.ledger_id: one for one in index.ledgers()}
    assert list(listed) == [0, 1, 2]
    assert [one.master_key for one in listed.values()] == [
        master_key(password) for password in (b"", b"secret", b"")
    ]
    assert [one.is_fenced for one in listed.values()] == [True, False, False]
    lac = parse_lac_body(listed[1].explicit_lac, 1, DigestType.CRC32, b"secret")
    assert lac == (None if storage == "interleaved" else 7)  # that one has files of version 0
    assert set(index.entries(lambda _: True)) == set(found)
    assert {key: index.location(*key) for key in found} == found
    assert index.location(0, 12) == index.location(3, 0) == NOWHERE
    index.close()
    assert not reports
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


def test_what_a_killed_bookie_had_in_rocksdbs_own_log_is_read(folder: Path) -> None:
    put_databases(folder, {7: ledger_data(is_fenced=True)}, {(7, 0): 1028}, is_killed=True)
    assert not list(folder.rglob("*.sst"))
    index = Databases(folder, folder, Reports())
    assert [(one.ledger_id, one.is_fenced) for one in index.ledgers()] == [(7, True)]
    assert index.location(7, 0) == 1028
    index.close()


def test_locations_of_a_ledger_that_was_dropped_do_not_count(folder: Path) -> None:
    put_databases(folder, {7: ledger_data(), -0xEEFD: b"\xff"}, {(7, 0): 1028, (8, 0): 1028})
    index = Databases(folder, folder, Reports())
    assert [one.ledger_id for one in index.ledgers()] == [7]
    assert list(index.entries(lambda _: True)) == [(7, 0)]
    assert index.location(8, 0) == NOWHERE
    index.close()


@pytest.mark.parametrize("storage", ["db", "files"])
def test_what_is_no_location_is_reported_and_unknown(folder: Path, storage: str) -> None:
    wrong, reports = {0: 5000, 1: 1027, 2: -1, 3: 1 << 32}, Reports()
    if storage == "db":
        put_databases(folder, {7: ledger_data()}, {(7, one): at for one, at in wrong.items()})
    else:
        put_index_file(folder, 7, index_file(wrong))
    index = opened(storage, folder, reports)
    list(index.ledgers())
    assert [index.location(7, one) for one in range(4)] == [5000, UNKNOWN, UNKNOWN, UNKNOWN]
    assert list(index.entries(lambda _: True)) == [(7, 0)]
    assert len(reports) == 1
    assert reports[0].reason.startswith("3 ")
    index.close()


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"BKLO", "no header"),
        (4, struct.pack(">i", 2), "version 2"),
        (8, struct.pack(">i", -1), "a length of -1"),
        (8, struct.pack(">i", 1013), "a length of 1013"),
        (36, struct.pack(">i", 5), "a LAC of 5 bytes"),
        (36, struct.pack(">i", 985), "a length of 985"),
    ],
)
def test_a_damaged_header_of_an_index_file_hides_the_state_and_no_position(
    folder: Path, at: int, value: bytes, reason: str
) -> None:
    content, reports = bytearray(index_file({5: 2000}, is_fenced=True)), Reports()
    content[at : at + len(value)] = value
    put_index_file(folder, 7, content)
    files = IndexFiles([folder], reports)
    assert [(one.ledger_id, one.is_fenced) for one in files.ledgers()] == [(7, False)]
    assert reason.replace("a LAC", "an explicit LAC") in reports[0].reason
    assert not reports[0].is_tail
    assert list(files.entries(lambda _: True)) == [(7, 5)]


@pytest.mark.parametrize("size_bytes", [0, 3, 20, 39, 1024, 1030, 1040, 1041, 1047, 9215])
def test_an_index_file_that_a_crash_cut_short_says_what_is_there(
    folder: Path, size_bytes: int
) -> None:
    content, reports = index_file({0: 1028, 1: 1100}), Reports()
    put_index_file(folder, 7, content[:size_bytes])
    files = IndexFiles([folder], reports)
    assert [one.ledger_id for one in files.ledgers()] == [7]
    there = [0, 1][: max(0, size_bytes - 1024) // 8]
    assert list(files.entries(lambda _: True)) == [(7, one) for one in there]
    assert [files.location(7, one) != NOWHERE for one in (0, 1)] == [0 in there, 1 in there]
    assert all(one.is_tail for one in reports)
    assert len(reports) == (size_bytes < 40) + (size_bytes > 1024 and size_bytes % 8 != 0)


def test_the_holes_of_an_index_file_are_passed_over(folder: Path) -> None:
    path = put_index_file(folder, 7, index_file({0: 1028}))
    far = 1 << 30
    with path.open("r+b") as file:
        file.seek(1024 + far * 8)
        file.write(struct.pack(">q", 2000))
    files = IndexFiles([folder], Reports())
    assert list(files.entries(lambda _: True)) == [(7, 0), (7, far)]
    assert (files.location(7, far), files.location(7, far - 1)) == (2000, NOWHERE)
    assert files.location(7, 1 << 62) == NOWHERE


def test_a_file_that_was_being_moved_counts_if_there_is_no_other(folder: Path) -> None:
    put_index_file(folder, 7, index_file({0: 1028}), ".idx.rloc")
    put_index_file(folder, 8, index_file({0: 1028}), ".idx.rloc")
    put_index_file(folder, 8, index_file({0: 1028, 1: 1100}))
    files = IndexFiles([folder], Reports())
    assert list(files.entries(lambda _: True)) == [(7, 0), (8, 0), (8, 1)]


def test_an_index_file_in_the_wrong_place_is_reported(folder: Path) -> None:
    reports = Reports()
    put_index_file(folder, 0x12345, index_file({0: 1028}))
    path = put_index_file(folder, 7, index_file({0: 1028}))
    path.rename(path.with_name("8.idx"))
    path.with_name("note.idx").touch()
    files = IndexFiles([folder], reports)
    assert [one.ledger_id for one in files.ledgers()] == [0x12345]
    assert ["8.idx" in one.path for one in reports] == [True]


def test_pages_are_forgotten_and_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "PAGES_KEPT", 2)
    for ledger_id in range(4):
        put_index_file(folder, ledger_id, index_file({0: 1028 + ledger_id}))
    files = IndexFiles([folder], Reports())
    assert [files.location(one, 0) for one in (0, 1, 2, 3, 0, 3)] == [
        1028 + one for one in (0, 1, 2, 3, 0, 3)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("storage", "flip"), [("db", 0xFF), ("files", 0x01), ("files", 0x80)])
def test_no_damaged_byte_of_an_index_ends_a_reader(folder: Path, storage: str, flip: int) -> None:
    put(storage, folder)
    whole = [(7, 0), (7, 2)]
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        step = 1 + len(content) // (2 if storage == "db" else 300)
        for at in range(0, min(len(content), 1100), step):
            path.write_bytes(content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
            reports = Reports()
            try:
                index = opened(storage, folder, reports)
            except StorageError:
                continue
            listed = [one.ledger_id for one in index.ledgers()]
            entries = list(index.entries(lambda _: True))
            for entry_id in range(3):
                index.location(7, entry_id)
            index.close()
            if storage == "files" and at < 1024:
                assert (listed, entries) == ([7], whole), at
            elif storage == "db" and not reports and listed:
                # RocksDB's checksums: what is said is right, or there is less of its own log.
                assert entries in (whole, whole[:1], []), (path, at)
        path.write_bytes(content)


def test_without_the_package_the_reader_says_how_to_have_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("db", folder)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(NoReaderError, match=r"pip install 'fastbk\[import\]'"):
        Databases(folder, folder, Reports())


def test_a_database_whose_files_are_gone_cannot_be_opened(folder: Path) -> None:
    put("db", folder)
    for path in (folder / "current/locations").glob("*.sst"):
        path.unlink()
    try:
        index = Databases(folder, folder, reports := Reports())
    except StorageError:
        return
    list(index.ledgers())
    assert list(index.entries(lambda _: True)) == []
    assert index.location(7, 0) == UNKNOWN
    assert len(reports) == 2
    index.close()


def test_a_set_of_entries_has_what_it_was_given() -> None:
    seen, some = EntryBitmap(), [0, 1, PIECE_ENTRIES - 1, PIECE_ENTRIES, 1 << 62]
    for entry_id in some:
        seen.add(7, entry_id)
    assert all(seen.has(7, entry_id) for entry_id in some)
    assert not any(seen.has(7, entry_id) for entry_id in (2, PIECE_ENTRIES + 1, (1 << 62) + 1))
    assert not seen.has(8, 0)


def test_links_to_rocksdbs_files_are_removed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("db", folder)
    links = tmp_path_factory.mktemp("links")
    monkeypatch.setattr("tempfile.tempdir", str(links))
    index = Databases(folder, folder, Reports())
    assert len(os.listdir(links)) == 2
    index.close()
    assert not os.listdir(links)
