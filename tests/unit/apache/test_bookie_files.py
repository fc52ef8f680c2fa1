"""Journals and entry logs of Apache's bookies: real ones, and such as crashes and bad disks leave."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastbk.apache.importer import bookie_files as directories
from fastbk.apache.importer.bookie_files import (
    EXPLICIT_LAC,
    FENCE,
    MASTER_KEY,
    Record,
    read_entry_log,
    read_journal,
)
from fastbk.errors import StorageError
from fastbk.inspect.items import FileReader
from fastbk.model.entry import master_key
from fastbk.units import KIB, MIB
from tests.fixtures import apache_disk
from tests.fixtures.apache_disk import WHOLE, Crc32c, Reports, entry, padding, record, special
from tests.fixtures.fork import exit_code_of_fork

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Records = list[tuple[int, int, bytes, int]]


def read_log(path: Path, content: bytes | None = None) -> tuple[Records, Reports]:
    """Read an entry log, written first if `content` is given."""
    if content is not None:
        path.write_bytes(content)
    reports = Reports()
    with FileReader(path) as source:
        return list(read_entry_log(source, WHOLE, reports)), reports


def read_txn(
    path: Path, content: bytes | None = None, from_bytes: int = 0
) -> tuple[Records, Reports]:
    """Read a journal, written first if `content` is given."""
    if content is not None:
        path.write_bytes(content)
    reports = Reports()
    with FileReader(path) as source:
        return list(read_journal(source, from_bytes, WHOLE, reports)), reports


@pytest.mark.parametrize("storage", apache_disk.STORAGES)
def test_what_real_bookies_left_behind_holds_every_acknowledged_entry(storage: str) -> None:
    bookie = apache_disk.recorded(storage)
    found = directories.find_directories(
        [str(bookie.folder / "journal")], [str(bookie.folder / "ledgers")]
    )
    records: Records = []
    for path in found.entry_logs():
        some, reports = read_log(path)
        records += some
        assert not reports
    in_logs = len(records)
    for part in found.journal_parts(Reports()):
        some, reports = read_txn(part.path, from_bytes=part.from_bytes)
        records += some
        assert not reports
    assert 0 < in_logs < len(records)
    counts = dict.fromkeys(bookie.entries, 0)
    for ledger_id, entry_id, raw, _ in records:
        if entry_id == MASTER_KEY:
            assert raw[16:] == record(master_key(bookie.ledgers[ledger_id].password or b""))
        elif entry_id >= 0 and ledger_id != apache_disk.DELETED:
            assert bookie.data(ledger_id, raw) == apache_disk.payload(ledger_id, entry_id)
            counts[ledger_id] = max(counts[ledger_id], entry_id + 1)
    assert counts == bookie.entries
    assert (6, FENCE) in {one[:2] for one in records}
    assert apache_disk.DELETED in {one[0] for one in records}


def test_a_journal_gives_entries_keys_fences_and_lacs_and_passes_over_padding(
    tmp_path: Path,
) -> None:
    written = [
        special(7, MASTER_KEY, bytes(20)),
        record(entry(7, 0)),
        padding(100),
        special(7, EXPLICIT_LAC, b"body"),
        padding(0),
        special(7, FENCE),
        record(entry(7, 1)),
    ]
    found, reports = read_txn(tmp_path / "1.txn", apache_disk.journal(*written) + bytes(5000))
    assert [one[1] for one in found] == [MASTER_KEY, 0, EXPLICIT_LAC, FENCE, 1]
    assert found[1][2] == entry(7, 0)
    assert not reports


def test_replay_begins_at_the_mark(tmp_path: Path) -> None:
    content = apache_disk.journal(record(entry(7, 0)), record(entry(7, 1)))
    found, reports = read_txn(tmp_path / "1.txn", content, 512 + len(record(entry(7, 0))))
    assert [one[1] for one in found] == [1]
    assert not reports


@pytest.mark.parametrize("cut_bytes", [1, 20, 37, 39])
@pytest.mark.parametrize(
    ("read", "around"), [(read_log, apache_disk.entry_log), (read_txn, apache_disk.journal)]
)
def test_a_write_that_was_cut_off_ends_the_file(
    tmp_path: Path,
    read: Callable[[Path, bytes], tuple[Records, Reports]],
    around: Callable[..., bytes],
    cut_bytes: int,
) -> None:
    content = around(record(entry(7, 0)), record(entry(7, 1, b"long enough to be cut")))
    found, reports = read(tmp_path / "file", content[:-cut_bytes])
    assert [one[1] for one in found] == [0]
    assert [one.is_tail for one in reports] == [True]


@pytest.mark.parametrize(
    "damaged",
    [b"\x7f\xff\xff\xff", b"\x00\x00\x01\x20", b"\x00\x00\x00\x11", b"\0" * 4, b"\x80\0\0\0"],
)
@pytest.mark.parametrize(
    ("read", "around"), [(read_log, apache_disk.entry_log), (read_txn, apache_disk.journal)]
)
def test_a_damaged_length_costs_its_own_entry_alone(
    tmp_path: Path,
    read: Callable[[Path, bytes], tuple[Records, Reports]],
    around: Callable[..., bytes],
    damaged: bytes,
) -> None:
    content = around(*(record(entry(7, number)) for number in range(6)))
    at = content.index(record(entry(7, 2)))
    found, reports = read(tmp_path / "file", content[:at] + damaged + content[at + 4 :])
    whole = [entry_id for _, entry_id, raw, _ in found if apache_disk.is_whole(7, raw)]
    assert whole == [0, 1, 3, 4, 5]
    assert len(reports) == 1
    assert not reports[0].is_tail


def test_filler_and_space_that_was_never_written_are_no_damage(tmp_path: Path) -> None:
    first = apache_disk.entry_log(record(entry(7, 0)))
    content = first.ljust(4096, b"\xf0") + record(entry(7, 1)) + bytes(10_000)
    found, reports = read_log(tmp_path / "0.log", content)
    assert [one[1] for one in found] == [0, 1]
    assert not reports


def test_the_map_of_ledgers_is_no_entry(tmp_path: Path) -> None:
    ledgers_map = record(struct.pack(">qqiqq", -1, -2, 1, 7, 100))
    found, reports = read_log(
        tmp_path / "0.log", apache_disk.entry_log(record(entry(7, 0)), ledgers_map)
    )
    assert [one[1] for one in found] == [0]
    assert not reports


@pytest.mark.parametrize(
    ("read", "around", "header_bytes"),
    [(read_log, apache_disk.entry_log, 1024), (read_txn, apache_disk.journal, 512)],
)
def test_a_file_whose_header_is_gone_is_read_all_the_same(
    tmp_path: Path,
    read: Callable[[Path, bytes], tuple[Records, Reports]],
    around: Callable[..., bytes],
    header_bytes: int,
) -> None:
    content = b"\xff" * header_bytes + around(record(entry(7, 0)))[header_bytes:]
    found, reports = read(tmp_path / "file", content)
    assert [one[1] for one in found] == [0]
    assert "no header" in reports[0].reason


@pytest.mark.parametrize("hole_bytes", [1, 2, 3, 4, 5, 4096, (1 << 20) - 3, 3 << 20])
@pytest.mark.parametrize("size_bytes", [30, 300])
def test_entries_behind_a_hole_are_found(tmp_path: Path, hole_bytes: int, size_bytes: int) -> None:
    """Their lengths begin with zeros, too."""
    last = record(entry(7, 1, bytes(size_bytes)))
    content = apache_disk.entry_log(record(entry(7, 0))) + b"\x7f" + bytes(hole_bytes) + last
    found, reports = read_log(tmp_path / "0.log", content)
    assert [one[1] for one in found] == [0, 1]
    assert [one.size_bytes for one in reports] == [hole_bytes + 1]


def test_formats_that_are_not_known_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"1\.txn is a journal of format 7"):
        read_txn(tmp_path / "1.txn", apache_disk.journal(version=7))
    with pytest.raises(StorageError, match=r"0\.log is an entry log of version 2"):
        read_log(tmp_path / "0.log", apache_disk.entry_log(version=2))


def test_a_journal_that_was_made_and_not_written_to_is_empty(tmp_path: Path) -> None:
    assert read_txn(tmp_path / "1.txn", b"") == ([], [])
    assert read_txn(tmp_path / "1.txn", bytes(4096)) == ([], [])


def bookie(folder: Path, ledgers: int) -> directories.ApacheDirectories:
    """Make the folders of a bookie with one journal that has the files 1, a and 1f."""
    names = [f"ledgers.{number}" for number in range(ledgers)]
    for name in ("journal", *names):
        (folder / name / "current").mkdir(parents=True)
    for file in ("1f.txn", "a.txn", "1.txn", "lastId"):
        (folder / "journal/current" / file).write_bytes(bytes(8192))
    return directories.find_directories(
        [str(folder / "journal")], [str(folder / name) for name in names]
    )


def test_replay_begins_where_the_directory_that_is_furthest_behind_needs_it(tmp_path: Path) -> None:
    found = bookie(tmp_path, 2)
    for number, mark in enumerate([(0x1F, 5000), (0xA, 600)]):
        (tmp_path / f"ledgers.{number}/current/lastMark").write_bytes(struct.pack(">qq", *mark))
    parts = [
        (one.path.name, one.from_bytes, one.is_newest) for one in found.journal_parts(Reports())
    ]
    assert parts == [("a.txn", 600, False), ("1f.txn", 0, True)]


@pytest.mark.parametrize("mark", [(1 << 62, 0), (0x20, 5), (0x1F, 8193), (0x1F, (1 << 63) - 1)])
def test_a_mark_behind_all_that_is_there_is_told_and_counts_for_nothing(
    tmp_path: Path, mark: tuple[int, int]
) -> None:
    """All of the journal would be passed over in silence."""
    found = bookie(tmp_path, 1)
    (tmp_path / "ledgers.0/current/lastMark").write_bytes(struct.pack(">qq", *mark))
    reports = Reports()
    parts = [(one.path.name, one.from_bytes) for one in found.journal_parts(reports)]
    assert parts == [("1.txn", 0), ("a.txn", 0), ("1f.txn", 0)]
    assert "lastMark" in str(reports[0])


def test_a_mark_behind_the_end_of_its_file_that_is_gone_is_that_of_the_next_ones(
    tmp_path: Path,
) -> None:
    found = bookie(tmp_path, 1)
    (tmp_path / "ledgers.0/current/lastMark").write_bytes(struct.pack(">qq", 0xB, 9000))
    reports = Reports()
    parts = [(one.path.name, one.from_bytes) for one in found.journal_parts(reports)]
    assert (parts, reports) == ([("1f.txn", 0)], [])


def test_without_a_mark_all_of_the_journal_is_read(tmp_path: Path) -> None:
    parts = [
        (one.path.name, one.from_bytes) for one in bookie(tmp_path, 1).journal_parts(Reports())
    ]
    assert parts == [("1.txn", 0), ("a.txn", 0), ("1f.txn", 0)]


def test_entry_logs_come_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    found = bookie(tmp_path, 2)
    for name in (
        "0/current/a.log",
        "0/current/10.log",
        "1/current/9.log",
        "1/current/b.log.compacted",
    ):
        (tmp_path / f"ledgers.{name}").touch()
    assert [path.name for path in found.entry_logs()] == ["9.log", "a.log", "10.log"]


def test_a_bookie_that_runs_is_noticed_by_the_lock_of_its_database(tmp_path: Path) -> None:
    found = bookie(tmp_path, 1)
    lock = tmp_path / "ledgers.0/current/locations/LOCK"
    lock.parent.mkdir()
    with lock.open("wb") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)

        def look() -> int:
            with pytest.raises(StorageError, match=f"process {os.getppid()} holds .*LOCK"):
                found.check_is_stopped()
            return 0

        assert exit_code_of_fork(look) == 0
    found.check_is_stopped()


def test_a_directory_that_is_no_bookies_is_refused_by_name(tmp_path: Path) -> None:
    bookie(tmp_path, 1)
    with pytest.raises(StorageError, match="elsewhere is no ledger directory"):
        directories.find_directories([str(tmp_path / "journal")], [str(tmp_path / "elsewhere")])


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
@pytest.mark.parametrize(
    ("read", "around"), [(read_log, apache_disk.entry_log), (read_txn, apache_disk.journal)]
)
def test_any_one_damaged_byte_costs_one_entry_at_most(
    tmp_path: Path,
    read: Callable[[Path, bytes], tuple[Records, Reports]],
    around: Callable[..., bytes],
    flip: int,
) -> None:
    content = around(*(record(entry(7, number, b"some data")) for number in range(4)))
    start = len(around())
    for at in range(start, len(content)):
        damaged = bytearray(content)
        damaged[at] ^= flip
        found, _ = read(tmp_path / "file", bytes(damaged))
        whole = {one[1] for one in found if apache_disk.is_whole(7, one[2])}
        assert whole >= {0, 1, 2, 3} - {(at - start) * 4 // (len(content) - start)}, at


# How much is read behind damage: in proportion to the file, whatever clients have put into
# entries.


READERS = {
    "log": (apache_disk.entry_log, lambda source, check, to: read_entry_log(source, check, to)),
    "journal": (apache_disk.journal, lambda source, check, to: read_journal(source, 0, check, to)),
}


class Counted(FileReader):
    """Counts the bytes that are asked of it."""

    asked_bytes = 0

    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        found = super().read(offset_bytes, size_bytes)
        self.asked_bytes += len(found)
        return found


def work_of(
    path: Path, kind: str, records: list[bytes], check: Crc32c = WHOLE
) -> tuple[float, int]:
    """Return how many bytes were asked for a byte of the file, and how many records were found."""
    wrap, read = READERS[kind]
    path.write_bytes(wrap(*records))
    with Counted(path) as source:
        found: list[Record] = list(read(source, check, Reports()))
        return source.asked_bytes / source.size_bytes, len(found)


def forged(size_bytes: int) -> bytes:
    """Return what looks like the beginning of a record of ledger 7."""
    return struct.pack(">iqqqq", size_bytes, 7, 3, 2, 100)


@pytest.fixture
def small_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that does not grow with the file would hide a small file's growth."""
    monkeypatch.setattr("fastbk.apache.importer.bookie_files._ALLOWANCE_BYTES", 16 * KIB)


@pytest.mark.usefixtures("small_allowance")
@pytest.mark.parametrize("kind", READERS)
def test_candidates_with_long_lengths_are_not_all_read_to_their_ends(
    kind: str, tmp_path: Path
) -> None:
    for size in (32 * KIB, 128 * KIB):
        lures = b"\xff" * 8 + b"".join(forged(size // 2) for _ in range(size // 36))
        work, _ = work_of(tmp_path / "file", kind, [record(entry(7, 0, b"good")), lures])
        assert work < 16


@pytest.mark.usefixtures("small_allowance")
@pytest.mark.parametrize("kind", READERS)
def test_records_of_false_lengths_are_not_all_taken_back(kind: str, tmp_path: Path) -> None:
    for size in (32 * KIB, 128 * KIB):
        pair = record(entry(7, 1, b"good")) + forged(size // 4)
        work, _ = work_of(
            tmp_path / "file",
            kind,
            [b"\xff" * 8, pair * (size // len(pair)), b"\xff" * (size // 2)],
        )
        assert work < 40


@pytest.mark.usefixtures("small_allowance")
@pytest.mark.parametrize("kind", READERS)
def test_many_small_damages_cost_little_each(kind: str, tmp_path: Path) -> None:
    good = record(entry(7, 1, b"good"))
    for size in (32 * KIB, 128 * KIB):
        for bad in (b"\xff" * 7, bytes(7)):
            work, found = work_of(tmp_path / "file", kind, [good + bad] * (size // 64))
            assert found == size // 64
            assert work < 60


@pytest.mark.usefixtures("small_allowance")
@pytest.mark.parametrize("kind", READERS)
def test_nothing_is_read_for_ledgers_that_nobody_knows(kind: str, tmp_path: Path) -> None:
    class Nothing:
        def is_provable(self, _: int) -> bool:
            return False

        def is_whole(self, _: int, __: bytes) -> bool:
            raise AssertionError("it was read")

    noise = os.urandom(1 * MIB)
    work, _ = work_of(tmp_path / "file", kind, [b"\xff" * 8, noise], Nothing())
    assert work < 3
