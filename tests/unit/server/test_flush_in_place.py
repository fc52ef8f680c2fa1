"""What a flush writes from where it lies in the write cache (INV-A6) reads back as what a flush copies."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from fastbk.inspect.index_files import read_entry_log
from fastbk.inspect.items import FileReader, Item
from fastbk.native.scrub import LogScan
from fastbk.native.segment import Segment, Stats
from fastbk.observe.names import SLOTS
from fastbk.storage.checkpoint import CheckpointFailed
from fastbk.storage.directories import log_path
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import OK
from tests.fixtures.storage_harness import INCARNATION, LEDGERS, Book, Life, format_disk

KIB = 1024
ROUNDS = 3


def data_of(ledger_id: int, entry_id: int) -> bytes:
    size = 200 + (entry_id * 37 + ledger_id) % 1500
    return random.Random(ledger_id << 32 | entry_id).randbytes(size)


def life_of(fake: FakeDisk) -> Life:
    options = {
        "cache_bytes": KIB * KIB,
        "cache_reserve_bytes": 64 * KIB,
        "flush_used_bytes": 1 << 30,
    }
    return Life(fake, Book(), **options)


def add_some(life: Life, first: int, count: int) -> list[tuple[int, int]]:
    """Add to three ledgers in turn, of which one has gaps and one late entries, and to many with one entry each."""
    added = []
    for n in range(first, first + count):
        several = [(1, n), (2, 3 * n), (3, n ^ 1), (100 + n, 0)]
        for ledger_id, entry_id in several:
            life.add(ledger_id, entry_id, data_of(ledger_id, entry_id))
        added += several
        if n % 8 == 0:
            life.settle()
    life.settle()
    return added


def check_all(life: Life, added: list[tuple[int, int]]) -> None:
    for ledger_id, entry_id in added:
        answer = life.ask(life.harness.read(ledger_id, entry_id))
        assert (answer.status, ledger_id, entry_id) == (OK, ledger_id, entry_id)
        assert answer.entry.endswith(data_of(ledger_id, entry_id))


def flushed_bytes(life: Life) -> tuple[int, int]:
    """Return what flushes wrote in place, and what they copied."""
    counters = Stats(Segment(life.harness.memory.fd, "index")).counters()
    names = ("FBK_C_INDEX_ENTRY_BYTES", "FBK_C_INDEX_FLUSH_COPIED_BYTES")
    taken_in, copied = (counters[SLOTS[name]] for name in names)
    return taken_in - copied, copied


def damage_in(raw: bytes, durable_bytes: int, path: Path) -> list[Item]:
    """Return the damage that `fastbk inspect` finds in a log of these bytes."""
    path.write_bytes(raw)
    return [item for item in read_entry_log(FileReader(path), durable_bytes) if item.is_damage]


def check_logs(life: Life, entry_count: int, folder: Path) -> None:
    """Every entry is found in whole runs by the logs alone, and nothing but zeros lies between them.

    `fastbk inspect` says so, too, and finds the largest run when zeros take its place.
    """
    found = 0
    for log in life.checkpoint.manifest.logs:
        path = log_path(LEDGERS, log.log_id)
        with LogScan(
            life.disks[0], path, log.log_id, INCARNATION, salt=log.salt, end_bytes=log.durable_bytes
        ) as scan:
            runs = list(scan)
            assert scan.status.skipped_bytes == 0
        assert not any(run.damaged for run in runs)
        found += sum(run.entry_count for run in runs)
        raw = life.disks[0].read_file(path)
        assert damage_in(raw, log.durable_bytes, folder / "log") == []
        largest = max(runs, key=lambda run: run.size_bytes)
        end = largest.offset_bytes + largest.size_bytes
        zeroed = raw[: largest.offset_bytes] + bytes(largest.size_bytes) + raw[end:]
        assert damage_in(zeroed, log.durable_bytes, folder / "log") != []
    assert found == entry_count


def test_entries_written_in_place_and_copied_ones_read_back_alike(tmp_path: Path) -> None:
    with FakeDisk(seed=3) as fake:
        format_disk(fake)
        life = life_of(fake)
        added = []
        for number in range(ROUNDS):
            added += add_some(life, 100 * number, 100)
            life.flush()
        in_place, copied = flushed_bytes(life)
        assert in_place > copied / 2 > 0
        check_logs(life, len(added), tmp_path)
        life.close()
        again = life_of(fake)
        check_all(again, added)
        again.close()


@pytest.mark.parametrize("what", ["write", "sync"])
def test_a_flush_that_failed_is_laid_out_for_its_next_place(what: str, tmp_path: Path) -> None:
    """The runs' headers name the place that they lie at: another attempt has other ones."""
    with FakeDisk(seed=4) as fake:
        format_disk(fake)
        life = life_of(fake)
        added = add_some(life, 0, 100)
        fake.fault("fail", what, times=1 << 40, errno=errno.EIO)
        with pytest.raises(CheckpointFailed):
            life.flusher.flush_now()
        fake.clear_faults()
        life.flusher.wait()
        in_place, _ = flushed_bytes(life)
        assert in_place > 0
        check_logs(life, len(added), tmp_path)
        life.close()
        again = life_of(fake)
        check_all(again, added)
        again.close()
