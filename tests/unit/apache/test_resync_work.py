"""How much is read behind damage: in proportion to the file, whatever clients have put into entries."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from fastbk.apache.importer.bookie_files import Record, read_entry_log, read_journal
from fastbk.inspect.items import FileReader
from fastbk.units import KIB, MIB
from tests.fixtures import apache_disk
from tests.fixtures.apache_disk import WHOLE, Crc32c, Reports, entry, record

READERS = {
    "log": (apache_disk.entry_log, lambda source, check, to: read_entry_log(source, check, to)),
    "journal": (
        apache_disk.journal,
        lambda source, check, to: read_journal(source, 0, check, to),
    ),
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


@pytest.fixture(autouse=True)
def small_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that does not grow with the file would hide a small file's growth."""
    monkeypatch.setattr("fastbk.apache.importer.bookie_files._ALLOWANCE_BYTES", 16 * KIB)


@pytest.mark.parametrize("kind", READERS)
def test_candidates_with_long_lengths_are_not_all_read_to_their_ends(
    kind: str, tmp_path: Path
) -> None:
    for size in (32 * KIB, 128 * KIB):
        lures = b"\xff" * 8 + b"".join(forged(size // 2) for _ in range(size // 36))
        work, _ = work_of(tmp_path / "file", kind, [record(entry(7, 0, b"good")), lures])
        assert work < 16


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


@pytest.mark.parametrize("kind", READERS)
def test_many_small_damages_cost_little_each(kind: str, tmp_path: Path) -> None:
    good = record(entry(7, 1, b"good"))
    for size in (32 * KIB, 128 * KIB):
        for bad in (b"\xff" * 7, bytes(7)):
            work, found = work_of(tmp_path / "file", kind, [good + bad] * (size // 64))
            assert found == size // 64
            assert work < 60


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
