"""Runs that stay in the journal's file: what a flush publishes of them, and what it leaves out."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from fastbk.native._bookie import ffi
from fastbk.native.store import AdoptedFile
from tests.fixtures.index_harness import CHECK, OK, SALT, IndexHarness
from tests.fixtures.journal_harness import JOURNAL_LOG, RunSummary

if TYPE_CHECKING:
    from collections.abc import Iterator

KIB = 1024
LOCATION = struct.Struct("<qqqqQQIIQ")


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    harness = IndexHarness(worker_count=2)
    yield harness
    harness.close()


def run_of(ledger_id: int, first: int, last: int, offset_bytes: int = 8192) -> RunSummary:
    count = last - first + 1
    return RunSummary(
        ledger_id, first, last, last - 1, offset_bytes, 72 + 24 * count + 1064 * count, count
    )


def flushed(
    harness: IndexHarness,
) -> tuple[list[tuple[int, int]], list[AdoptedFile], list[tuple[int, ...]]]:
    """Seal; return the entries that are copied, the files with runs, and where these runs are said to lie."""
    harness.run()
    harness.index.seal()
    contents = harness.index.sealed().contents
    raw = contents.handle
    items = [(int(item.ledger_id), int(item.entry_id)) for item in raw.items[0 : raw.item_count]]
    size = raw.adopted_count * LOCATION.size
    locations = LOCATION.iter_unpack(
        ffi.buffer(ffi.cast("char *", raw.adopted), size)[:] if size else b""
    )
    places = [(*place[:3], *place[4:6]) for place in locations]
    files = contents.adopted
    harness.index.flushed()
    return items, files, places


def test_the_entries_of_a_run_are_read_and_not_copied(harness: IndexHarness) -> None:
    for n in range(40):
        harness.add(9, n, bytes(KIB))
        harness.add(4, n, bytes(KIB), worker=1)
        harness.add(5, n, b"small")
    harness.publish(runs=[run_of(9, 0, 39), run_of(4, 0, 39, 65536)])
    harness.run()
    for ledger_id in (9, 4, 5):
        assert harness.ask_one(harness.read(ledger_id, 7)).status == OK
    items, files, places = flushed(harness)
    assert items == [(5, n) for n in range(40)]
    size = run_of(9, 0, 39).size_bytes
    assert files == [AdoptedFile(1, SALT + 1, 2, 2 * size, 8192 + 4096)]
    assert places == [(4, 0, 39, JOURNAL_LOG | 1, 65536), (9, 0, 39, JOURNAL_LOG | 1, 8192)]
    assert harness.ask_one(harness.read(9, 39)).status == OK, (
        "it stays readable until it is filled again"
    )


def test_each_flush_has_its_own_runs_and_files(harness: IndexHarness) -> None:
    for file_id in (1, 1, 2):
        first = harness.batch_sequence * 40
        for n in range(first, first + 40):
            harness.add(1, n, bytes(KIB))
        harness.publish(runs=[run_of(1, first, first + 39)], file_id=file_id)
    items, files, places = flushed(harness)
    assert (items, [(file.file_id, file.run_count) for file in files]) == ([], [(1, 2), (2, 1)])
    assert [place[1] for place in places] == [0, 40, 80]
    assert flushed(harness) == ([], [], [])
    harness.add(1, 120)
    harness.publish(file_id=3)
    assert flushed(harness) == ([(1, 120)], [], [])
    harness.index.seal()
    assert harness.index.sealed().file_id == 3


def test_what_is_checked_among_a_run_is_no_part_of_it(harness: IndexHarness) -> None:
    """INV-J6: a checked copy of an id that lies between a run's is decided by what is stored."""
    for n in (0, 1, 3, 4):
        harness.add(1, n, bytes([n]) * KIB)
    late = harness.add(1, 2, b"late")
    again = harness.add(1, 3, b"another")
    run = RunSummary(1, 0, 4, 3, 8192, 72 + 4 * (24 + 1064), 4)
    harness.publish({late: CHECK, again: CHECK}, runs=[run])
    harness.run(steps=3)
    assert len(harness.answers()) == 2, "both checks are decided"
    assert harness.ask_one(harness.read(1, 3)).entry[32:] == bytes([3]) * KIB
    items, _, places = flushed(harness)
    assert items == [(1, 2)]
    assert [place[:3] for place in places] == [(1, 0, 4)]


def test_more_summaries_than_there_can_be_end_the_index(harness: IndexHarness) -> None:
    harness.runs = 16385
    harness.publish()
    with pytest.raises(Exception, match="the peer broke the protocol"):
        harness.run()
