"""Ledgers that metadata was never seen to list: what the index makes of what gc says of them (INV-G4, INV-G5)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastbk.model.entry import master_key
from fastbk.native.ledger_state import Listed
from tests.fixtures.index_harness import NO_LEDGER, OK, IndexHarness
from tests.unit.native.test_index_forget import NOTICES_CONSUMED


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    made = IndexHarness()
    for ledger_id in (1, 2, 3):
        made.add(ledger_id, 0, b"x")
    made.publish()
    made.settle()
    made.answers()
    yield made
    made.close()


def expiring(harness: IndexHarness) -> dict[int, int]:
    ids, marks, _ = harness.index.list_unconfirmed(0)
    return dict(zip(ids, marks, strict=True))


def test_a_ledger_is_unconfirmed_until_metadata_lists_it_with_its_key(
    harness: IndexHarness,
) -> None:
    assert expiring(harness) == {1: 0, 2: 0, 3: 0}
    assert harness.index.list_ledgers(0)[0] == []
    listed = [Listed(1), Listed(2, 7, master_key(b"another")), Listed(3, 7, None), Listed(99)]
    assert harness.index.confirm(listed) == [2]
    assert expiring(harness) == {2: 0}
    assert sorted(harness.index.list_ledgers(0)[0]) == [1, 3]


def test_an_expiry_counts_once_the_journal_knows_of_it(harness: IndexHarness) -> None:
    assert harness.index.confirm([Listed(1)]) == []
    assert harness.index.begin_expiry([1, 2, 99]) == 1, "not the confirmed one"
    assert harness.index.expire([1, 3])[0] == 0, "only what takes nothing any more"
    assert expiring(harness) == {2: 0, 3: 0}, "the journal may still take something to it"
    harness.journal.put(NOTICES_CONSUMED, 2)
    assert expiring(harness) == {2: 1, 3: 0}
    assert harness.index.expire([2])[0] == 1
    assert harness.ask_one(harness.read(2, 0)).status == NO_LEDGER
    assert harness.ask_one(harness.read(3, 0)).status == OK
    assert list(harness.index.deleted_ledgers()) == [2]


def test_an_expiry_ends_when_metadata_lists_the_ledger(harness: IndexHarness) -> None:
    assert harness.index.begin_expiry([1]) == 1
    harness.journal.put(NOTICES_CONSUMED, 1)
    assert harness.index.confirm([Listed(1)]) == []
    assert harness.index.expire([1])[0] == 0
    assert 1 in harness.index.list_ledgers(0)[0]


def test_a_ledger_that_was_let_in_is_confirmed_from_its_first_entry_on(
    harness: IndexHarness,
) -> None:
    assert harness.index.admit([1, 50]) == 1, "the first one is here"
    harness.add(50, 0, b"x")
    harness.publish()
    harness.settle()
    assert harness.ask_one(harness.read(50, 0)).status == OK
    assert 50 in harness.index.list_ledgers(0)[0]
    assert 50 not in expiring(harness)
