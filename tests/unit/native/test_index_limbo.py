"""Ledgers in limbo: what the index answers about them, and how they get into it and out of it (INV-X4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastbk.native.ffi import CorruptDataError, NativeFullError
from tests.fixtures.index_harness import (
    CANNOT_TELL,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    PIGGYBACK,
    RECOVERY,
    IndexHarness,
)

NOTICES = 4096


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    made = IndexHarness()
    made.index.put_in_limbo([1, 2**63 - 1])
    yield made
    made.close()


def test_nothing_is_denied(harness: IndexHarness) -> None:
    for ledger_id in (1, 2**63 - 1):
        asked = [
            harness.read(ledger_id, 0),
            harness.read(ledger_id, -1),
            harness.read_batch(ledger_id, 0),
            harness.list_entries(ledger_id),
            harness.write_lac(ledger_id, 5),
            harness.read_lac(ledger_id),
            harness.read_lac(ledger_id, -1, 60_000, PIGGYBACK),
        ]
        harness.settle()
        answers = harness.answers()
        assert {each.request_id for each in answers} == {put.request_id for put in asked}
        assert {each.status for each in answers} == {CANNOT_TELL}
    assert harness.ask_one(harness.read(7, 0)).status == NO_LEDGER, "of others it can tell"


def test_what_a_repair_brought_is_read_and_the_rest_is_not_denied(harness: IndexHarness) -> None:
    harness.add(1, 0, b"zero", flags=RECOVERY)
    harness.add(1, 2, b"two", flags=RECOVERY)
    harness.publish()
    assert harness.ask_one(harness.read(1, 2)).status == OK
    assert harness.ask_one(harness.read(1, 1)).status == CANNOT_TELL
    assert harness.ask_one(harness.read(1, 3)).status == CANNOT_TELL
    assert harness.ask_one(harness.read(1, -1)).status == CANNOT_TELL, (
        "which was the last one can't be told"
    )
    batch = harness.ask_one(harness.read_batch(1, 0))
    assert (batch.status, len(batch.entries), batch.next_entry_id) == (OK, 1, 1)
    assert harness.ask_one(harness.read_batch(1, 1)).status == CANNOT_TELL
    assert harness.ask_one(harness.list_entries(1)).status == CANNOT_TELL
    assert harness.ask_one(harness.read_lac(1)).status == CANNOT_TELL


def test_a_fence_is_answered_and_says_nothing_either(harness: IndexHarness) -> None:
    harness.fence(1)
    harness.publish()
    harness.settle()
    (answer,) = harness.answers()
    assert answer.status == CANNOT_TELL


def test_limbo_ends_where_metadata_says_so(harness: IndexHarness) -> None:
    assert harness.index.list_limbo(0)[0] != []
    assert harness.index.limbo_over([1, 5], fenced=False) == (1, 2)
    assert harness.index.list_limbo(0)[0] == [2**63 - 1]
    assert harness.ask_one(harness.read(1, 0)).status == NO_ENTRY
    lac = harness.ask_one(harness.read_lac(1))
    assert (lac.status, lac.fenced) == (OK, False)
    assert harness.index.limbo_over([2**63 - 1], fenced=True) == (1, 1)
    assert harness.ask_one(harness.read_lac(2**63 - 1)).fenced
    assert harness.index.limbo_over([1], fenced=True)[0] == 1, "a fence that may have been is one"
    assert harness.index.limbo_over([1], fenced=True)[0] == 0, "said once more"


def test_a_deleted_ledger_leaves_limbo(harness: IndexHarness) -> None:
    assert harness.index.delete_ledgers([1], 1000) == (1, 1)
    assert harness.ask_one(harness.read(1, 0)).status == NO_LEDGER
    assert harness.ask_one(harness.read_lac(1)).status == NO_LEDGER
    assert harness.index.list_limbo(0)[0] == [2**63 - 1]


def test_long_polls_do_not_wait_for_what_went_into_limbo(harness: IndexHarness) -> None:
    harness.read_lac(5, -1, 60_000)
    harness.settle()
    assert harness.answers() == []
    harness.index.put_in_limbo([5])
    harness.settle()
    assert [answer.status for answer in harness.answers()] == [CANNOT_TELL]


def test_notices_are_bounded_by_what_the_journal_takes(harness: IndexHarness) -> None:
    """INV-B1, INV-R1: the journal of this harness takes none."""
    for first in range(0, NOTICES + 10, 200):
        for n in range(first, min(first + 200, NOTICES + 10)):
            harness.add(100 + n, 0, b"")
        harness.publish()
        harness.settle()
    everything = range(100, 100 + NOTICES + 10)
    count, taken = harness.index.delete_ledgers(everything, 1000)
    assert (count, taken) == (NOTICES, NOTICES)
    assert harness.index.delete_ledgers(everything, 1000) == (0, NOTICES), (
        "those that are gone need no notice"
    )
    assert harness.ask_one(harness.read(100 + NOTICES, 0)).status == OK
    assert harness.ask_one(harness.read(100 + NOTICES - 1, 0)).status == NO_LEDGER


def test_what_cannot_be_put_in_limbo() -> None:
    harness = IndexHarness(ledgers_max=2)
    try:
        with pytest.raises(CorruptDataError):
            harness.index.put_in_limbo([-1])
        with pytest.raises(NativeFullError):
            harness.index.put_in_limbo([1, 2, 3])
    finally:
        harness.close()
