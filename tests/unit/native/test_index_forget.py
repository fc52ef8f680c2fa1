"""The index forgets a deleted ledger where the journal says it did, and nothing of it is left."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator

import pytest

from tests.fixtures.index_harness import NO_ENTRY, NO_LEDGER, OK, ORDERED, IndexRig
from tests.fixtures.journal_harness import EXCEPTION, EXCEPTIONS, JOURNAL_EXCEPTIONS

NOTICES_CONSUMED = (JOURNAL_EXCEPTIONS + EXCEPTIONS * EXCEPTION.size + 63) // 64 * 64
NOTICE_ANSWERS = NOTICES_CONSUMED + 64
KEPT = 2**64 - 1
NOW_S, LATER_S = 1000, 2000


@pytest.fixture
def rig() -> Iterator[IndexRig]:
    made = IndexRig()
    yield made
    made.close()


def flush(rig: IndexRig) -> None:
    rig.index.seal()
    rig.index.sealed()
    rig.index.flushed()


def make_deleted(rig: IndexRig, ledger_id: int) -> None:
    """Two entries, flushed together with the deletion: the flushed cache is still readable."""
    rig.add(ledger_id, 0, b"old")
    rig.add(ledger_id, 1, b"old")
    rig.publish()
    rig.settle()
    assert rig.index.delete_ledgers([ledger_id], NOW_S)[0] == 1
    flush(rig)


def answer(rig: IndexRig, notice: int, order: int) -> None:
    """What the journal does when it has looked at this notice."""
    struct.pack_into("<Q", rig.journal.map, NOTICE_ANSWERS + 8 * notice, order)
    rig.journal.put(NOTICES_CONSUMED, notice + 1)


def test_it_goes_at_the_journal_s_place_in_the_order(rig: IndexRig) -> None:
    make_deleted(rig, 5)
    rig.index.begin_forget(array("q", [5]), LATER_S, rig.index.flushed_seal)
    rig.settle()
    assert rig.index.forgotten() is None
    answer(rig, 1, rig.order + 1)
    rig.settle()
    assert rig.index.status.ledgers == 1, "one batch was decided with it, and has not come"
    fence = rig.fence(5)
    rig.publish({fence: ORDERED})
    rig.add(5, 0, b"new")
    rig.add(5, 2, b"new")
    rig.publish()
    rig.settle()
    assert rig.index.forgotten() == array("q", [5])
    assert rig.index.forgotten() == array("q"), "once"
    rig.answers()
    found = rig.ask_one(rig.read(5, 0))
    assert found.status == OK
    assert found.entry is not None
    assert found.entry.endswith(b"new")
    assert rig.ask_one(rig.read(5, 1)).status == NO_ENTRY, "what the caches held of the old one"
    assert not rig.ask_one(rig.read_lac(5)).fenced


def test_what_the_journal_keeps_stays_here_too(rig: IndexRig) -> None:
    make_deleted(rig, 5)
    make_deleted(rig, 6)
    rig.index.begin_forget(array("q", [5, 6]), LATER_S, rig.index.flushed_seal)
    with pytest.raises(OSError, match="forget"):
        rig.index.begin_forget(array("q"), LATER_S, 0)
    rig.settle()
    answer(rig, 2, KEPT)
    rig.settle()
    assert rig.index.forgotten() is None
    answer(rig, 3, rig.order)
    rig.settle()
    assert rig.index.forgotten() == array("q", [6])
    assert rig.index.status.ledgers == 1
    assert rig.ask_one(rig.read(5, 0)).status == NO_LEDGER


def test_who_is_not_asked_about(rig: IndexRig) -> None:
    make_deleted(rig, 5)
    rig.add(7, 0, b"alive")
    rig.publish()
    rig.settle()
    flush(rig)
    for ids, before_s, seal in (
        ([5], NOW_S, rig.index.flushed_seal),  # deleted later
        ([5], LATER_S, 0),  # changed since
        ([7], LATER_S, rig.index.flushed_seal),  # alive
        ([99], LATER_S, rig.index.flushed_seal),  # not here
        ([], LATER_S, rig.index.flushed_seal),
    ):
        rig.index.begin_forget(array("q", ids), before_s, seal)
        rig.settle()
        assert rig.index.forgotten() == array("q")
    rig.index.seal()
    assert rig.index.flushed_seal == 2, "a flush that is under way has not ended"
    rig.index.sealed()
    rig.index.flushed()
    assert rig.index.flushed_seal == 3


def test_many_go_in_slices(rig: IndexRig) -> None:
    count = 600
    for first in range(0, count, 100):
        for ledger_id in range(first, first + 100):
            rig.add(ledger_id, 0, b"")
        rig.publish()
        rig.settle()
    assert rig.index.delete_ledgers(range(count), NOW_S) == (count, count)
    flush(rig)
    rig.index.begin_forget(array("q", range(count)), LATER_S, rig.index.flushed_seal)
    rig.settle()
    known = [count]
    asked = count  # the deletions' notices
    while rig.index.forgotten() is None:
        asked = min(asked + 256, 2 * count)
        for notice in range(asked - 256, asked):
            answer(rig, notice, rig.order)
        rig.settle()
        known.append(rig.index.status.ledgers)
    assert known == [600, 344, 88, 0]
