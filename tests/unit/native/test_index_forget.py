"""The index forgets a deleted ledger where the journal says it did, and nothing of it is left."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator

import pytest

from tests.fixtures.index_harness import NO_ENTRY, NO_LEDGER, OK, ORDERED, IndexHarness
from tests.fixtures.journal_harness import EXCEPTION, EXCEPTIONS, JOURNAL_EXCEPTIONS

NOTICES_CONSUMED = (JOURNAL_EXCEPTIONS + EXCEPTIONS * EXCEPTION.size + 63) // 64 * 64
NOTICE_ANSWERS = NOTICES_CONSUMED + 64
KEPT = 2**64 - 1
NOW_S, LATER_S = 1000, 2000


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    made = IndexHarness()
    yield made
    made.close()


def flush(harness: IndexHarness) -> None:
    harness.index.seal()
    harness.index.sealed()
    harness.index.flushed()


def make_deleted(harness: IndexHarness, ledger_id: int) -> None:
    """Two entries, flushed together with the deletion: the flushed cache is still readable."""
    harness.add(ledger_id, 0, b"old")
    harness.add(ledger_id, 1, b"old")
    harness.publish()
    harness.settle()
    assert harness.index.delete_ledgers([ledger_id], NOW_S)[0] == 1
    flush(harness)


def answer(harness: IndexHarness, notice: int, order: int) -> None:
    """What the journal does when it has looked at this notice."""
    struct.pack_into("<Q", harness.journal.map, NOTICE_ANSWERS + 8 * notice, order)
    harness.journal.put(NOTICES_CONSUMED, notice + 1)


def test_it_goes_at_the_journal_s_place_in_the_order(harness: IndexHarness) -> None:
    make_deleted(harness, 5)
    harness.index.begin_forget(array("q", [5]), LATER_S, harness.index.flushed_seal)
    harness.settle()
    assert harness.index.forgotten() is None
    answer(harness, 1, harness.order + 1)
    harness.settle()
    assert harness.index.status.ledgers == 1, "one batch was decided with it, and has not come"
    fence = harness.fence(5)
    harness.publish({fence: ORDERED})
    harness.add(5, 0, b"new")
    harness.add(5, 2, b"new")
    harness.publish()
    harness.settle()
    assert harness.index.forgotten() == array("q", [5])
    assert harness.index.forgotten() == array("q"), "once"
    harness.answers()
    found = harness.ask_one(harness.read(5, 0))
    assert found.status == OK
    assert found.entry is not None
    assert found.entry.endswith(b"new")
    assert harness.ask_one(harness.read(5, 1)).status == NO_ENTRY, (
        "what the caches held of the old one"
    )
    assert not harness.ask_one(harness.read_lac(5)).fenced


def test_what_the_journal_keeps_stays_here_too(harness: IndexHarness) -> None:
    make_deleted(harness, 5)
    make_deleted(harness, 6)
    harness.index.begin_forget(array("q", [5, 6]), LATER_S, harness.index.flushed_seal)
    with pytest.raises(OSError, match="forget"):
        harness.index.begin_forget(array("q"), LATER_S, 0)
    harness.settle()
    answer(harness, 2, KEPT)
    harness.settle()
    assert harness.index.forgotten() is None
    answer(harness, 3, harness.order)
    harness.settle()
    assert harness.index.forgotten() == array("q", [6])
    assert harness.index.status.ledgers == 1
    assert harness.ask_one(harness.read(5, 0)).status == NO_LEDGER


def test_who_is_not_asked_about(harness: IndexHarness) -> None:
    make_deleted(harness, 5)
    harness.add(7, 0, b"alive")
    harness.publish()
    harness.settle()
    flush(harness)
    for ids, before_s, seal in (
        ([5], NOW_S, harness.index.flushed_seal),  # deleted later
        ([5], LATER_S, 0),  # changed since
        ([7], LATER_S, harness.index.flushed_seal),  # alive
        ([99], LATER_S, harness.index.flushed_seal),  # not here
        ([], LATER_S, harness.index.flushed_seal),
    ):
        harness.index.begin_forget(array("q", ids), before_s, seal)
        harness.settle()
        assert harness.index.forgotten() == array("q")
    harness.index.seal()
    assert harness.index.flushed_seal == 2, "a flush that is under way has not ended"
    harness.index.sealed()
    harness.index.flushed()
    assert harness.index.flushed_seal == 3


def test_many_go_in_slices(harness: IndexHarness) -> None:
    count = 600
    for first in range(0, count, 100):
        for ledger_id in range(first, first + 100):
            harness.add(ledger_id, 0, b"")
        harness.publish()
        harness.settle()
    assert harness.index.delete_ledgers(range(count), NOW_S) == (count, count)
    flush(harness)
    harness.index.begin_forget(array("q", range(count)), LATER_S, harness.index.flushed_seal)
    harness.settle()
    known = [count]
    asked = count  # the deletions' notices
    while harness.index.forgotten() is None:
        asked = min(asked + 256, 2 * count)
        for notice in range(asked - 256, asked):
            answer(harness, notice, harness.order)
        harness.settle()
        known.append(harness.index.status.ledgers)
    assert known == [600, 344, 88, 0]
