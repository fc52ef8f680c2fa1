"""Ledgers that metadata was never seen to list: what the index makes of what gc says of them (INV-G4, INV-G5)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastbk.model.entry import master_key
from fastbk.native.ledger_state import Listed
from tests.fixtures.index_harness import NO_LEDGER, OK, IndexRig
from tests.unit.native.test_index_forget import NOTICES_CONSUMED


@pytest.fixture
def rig() -> Iterator[IndexRig]:
    made = IndexRig()
    for ledger_id in (1, 2, 3):
        made.add(ledger_id, 0, b"x")
    made.publish()
    made.settle()
    made.answers()
    yield made
    made.close()


def expiring(rig: IndexRig) -> dict[int, int]:
    ids, marks, _ = rig.index.list_unconfirmed(0)
    return dict(zip(ids, marks, strict=True))


def test_a_ledger_is_unconfirmed_until_metadata_lists_it_with_its_key(rig: IndexRig) -> None:
    assert expiring(rig) == {1: 0, 2: 0, 3: 0}
    assert rig.index.list_ledgers(0)[0] == []
    listed = [Listed(1), Listed(2, 7, master_key(b"another")), Listed(3, 7, None), Listed(99)]
    assert rig.index.confirm(listed) == [2]
    assert expiring(rig) == {2: 0}
    assert sorted(rig.index.list_ledgers(0)[0]) == [1, 3]


def test_an_expiry_counts_once_the_journal_knows_of_it(rig: IndexRig) -> None:
    assert rig.index.confirm([Listed(1)]) == []
    assert rig.index.begin_expiry([1, 2, 99]) == 1, "not the confirmed one"
    assert rig.index.expire([1, 3])[0] == 0, "only what takes nothing any more"
    assert expiring(rig) == {2: 0, 3: 0}, "the journal may still take something to it"
    rig.journal.put(NOTICES_CONSUMED, 2)
    assert expiring(rig) == {2: 1, 3: 0}
    assert rig.index.expire([2])[0] == 1
    assert rig.ask_one(rig.read(2, 0)).status == NO_LEDGER
    assert rig.ask_one(rig.read(3, 0)).status == OK
    assert list(rig.index.deleted_ledgers()) == [2]


def test_an_expiry_ends_when_metadata_lists_the_ledger(rig: IndexRig) -> None:
    assert rig.index.begin_expiry([1]) == 1
    rig.journal.put(NOTICES_CONSUMED, 1)
    assert rig.index.confirm([Listed(1)]) == []
    assert rig.index.expire([1])[0] == 0
    assert 1 in rig.index.list_ledgers(0)[0]


def test_a_ledger_that_was_let_in_is_confirmed_from_its_first_entry_on(rig: IndexRig) -> None:
    assert rig.index.admit([1, 50]) == 1, "the first one is here"
    rig.add(50, 0, b"x")
    rig.publish()
    rig.settle()
    assert rig.ask_one(rig.read(50, 0)).status == OK
    assert 50 in rig.index.list_ledgers(0)[0]
    assert 50 not in expiring(rig)
