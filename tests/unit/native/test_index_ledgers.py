"""The index forgets a deleted ledger where the journal says it did, and nothing of it is left."""

from __future__ import annotations

import struct
from array import array
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from fastbk.model.entry import master_key
from fastbk.native.ffi import CorruptDataError, NativeFullError
from fastbk.native.index import SETTLED_END
from fastbk.native.ledger_state import Listed
from tests.fixtures import upkeep_at_once
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import (
    CANNOT_TELL,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    ORDERED,
    PIGGYBACK,
    RECOVERY,
    IndexHarness,
)
from tests.fixtures.journal_harness import EXCEPTION, EXCEPTIONS, JOURNAL_EXCEPTIONS
from tests.fixtures.storage_harness import Book, Life, formatted_disk

if TYPE_CHECKING:
    from collections.abc import Iterator

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


# Copies that nobody counts on: which ledgers are settled, and what an add meets while they are
# dropped (INV-G2).


fake = formatted_disk


@pytest.fixture
def life(fake: FakeDisk) -> Iterator[Life]:
    made = Life(fake, Book())
    for ledger_id in (1, 2):
        for entry_id in range(3):
            made.add(ledger_id, entry_id, bytes(300))
    made.settle()
    made.flush()
    yield made
    made.close()


def settled(life: Life) -> dict[int, int]:
    ids, changed, cursor = life.index.list_settled(0)
    assert cursor == SETTLED_END
    return dict(zip(ids, changed, strict=True))


def begin(life: Life, *ledger_ids: int) -> tuple[list[int], list[int]]:
    marks = settled(life)
    return life.index.begin_drop(ledger_ids, [marks[each] for each in ledger_ids])


def drop(life: Life, ledger_id: int) -> None:
    ids, marks = begin(life, ledger_id)
    change = upkeep_at_once.merge_all(life.checkpoint, life.store, dropped=ids)
    assert change is not None
    change.install(life.store)
    life.index.end_drop(ids, marks, is_dropped=True)


def is_acked(life: Life, ledger_id: int, entry_id: int) -> bool:
    """Write a copy as a repair does; return whether the bookie vouches for it."""
    life.book.acked.pop((ledger_id, entry_id), None)
    life.recovery_add(ledger_id, entry_id, bytes(300))
    life.settle()
    return (ledger_id, entry_id) in life.book.acked


def test_only_what_is_flushed_is_settled(life: Life) -> None:
    assert settled(life).keys() == {1, 2}
    life.add(1, 3, b"more")
    life.fence(3)
    life.settle()
    assert settled(life).keys() == {2}
    life.flush()
    assert settled(life).keys() == {1, 2}, "a fence alone holds nothing"
    life.index.put_in_limbo([1])
    life.flusher.delete_ledgers([2], "test")
    life.flush()
    assert settled(life) == {}


def test_a_copy_that_stores_nothing_changes_the_mark_all_the_same(life: Life) -> None:
    """A repair may be told "here already" of all that it brings: it counts on that from then on."""
    before = settled(life)
    assert is_acked(life, 1, 2)
    life.flush()
    after = settled(life)
    assert after[1] > before[1]
    assert after[2] == before[2]
    assert life.index.begin_drop([1, 2], [before[1], before[2]])[0] == [2]


def test_nothing_that_goes_is_vouched_for(life: Life) -> None:
    begin(life, 1)
    assert not is_acked(life, 1, 0), "about to go"
    assert is_acked(life, 2, 0)
    assert life.ask(life.harness.read(1, 0)).status == OK, "still there"
    assert settled(life).keys() == set()


def test_dropped_copies_are_gone_and_may_come_back(life: Life, fake: FakeDisk) -> None:
    life.fence(1)
    life.settle()
    life.flush()
    drop(life, 1)
    assert life.ask(life.harness.read(1, 0)).status == NO_ENTRY
    assert life.store.ledger_bytes(1) == {}
    assert life.ask(life.harness.read(2, 0)).status == OK
    life.flush()
    assert settled(life).keys() == {2}, "not dropped twice"
    life.stop()
    with closing(Life(fake, Book())) as again:
        assert settled(again).keys() == {2}, "nor after a restart"
        assert not is_acked_normal(again, 1, 7), "its fence stays"
        assert is_acked(again, 1, 0)
        assert again.ask(again.harness.read(1, 0)).status == OK
        again.flush()
        assert settled(again).keys() == {1, 2}


def is_acked_normal(life: Life, ledger_id: int, entry_id: int) -> bool:
    life.add(ledger_id, entry_id, b"normal")
    life.settle()
    return (ledger_id, entry_id) in life.book.acked


def test_what_comes_behind_the_end_meanwhile_stays(life: Life) -> None:
    """An id above all others needs no look: it is acknowledged while the rest goes, and lies behind what is dropped."""
    ids, marks = begin(life, 1)
    assert is_acked(life, 1, 3)
    change = upkeep_at_once.merge_all(life.checkpoint, life.store, dropped=ids)
    assert change is not None
    change.install(life.store)
    life.index.end_drop(ids, marks, is_dropped=True)
    assert life.ask(life.harness.read(1, 0)).status == NO_ENTRY
    life.flush()
    assert life.ask(life.harness.read(1, 3)).status == OK
    assert 1 in settled(life)


def test_a_flushed_cache_vouches_for_nothing_that_went(life: Life) -> None:
    drop(life, 1)
    assert is_acked(life, 1, 2), "written anew"
    life.flush()
    assert life.store.ledger_bytes(1) != {}


def test_no_drop_begins_while_a_flush_is_under_way(life: Life) -> None:
    marks = settled(life)
    life.index.seal()
    assert life.index.begin_drop([1], [marks[1]]) == ([], [])


def test_a_drop_that_is_given_up_leaves_all(life: Life) -> None:
    ids, marks = begin(life, 1, 2)
    life.index.end_drop(ids, marks, is_dropped=False)
    assert settled(life).keys() == {1, 2}
    assert is_acked(life, 1, 0)


def test_no_drop_begins_while_an_add_is_compared(life: Life) -> None:
    for entry_id in range(2):  # else the caches that were flushed answer at once
        life.add(2, 10 + entry_id, b"x")
        life.settle()
        life.flush()
    mark = settled(life)[1]
    life.harness.add(1, 0, bytes(300), flags=RECOVERY)
    while not life.journal.status.in_flight and life.journal.status.waiting_bytes:
        life.journal.step(5)
    while life.journal.status.in_flight:
        life.journal.step(5)
    while not life.index.status.checks:
        life.index.step(0)
    assert life.index.begin_drop([1], [mark])[0] == []
    life.settle()
    life.flush()
    assert life.index.begin_drop([1], [mark])[0] == [], "and it has changed the mark"


# Ledgers in limbo: what the index answers about them, and how they get into it and out of it
# (INV-X4).


NOTICES = 4096


@pytest.fixture
def limbo_harness() -> Iterator[IndexHarness]:
    made = IndexHarness()
    made.index.put_in_limbo([1, 2**63 - 1])
    yield made
    made.close()


def test_nothing_is_denied(limbo_harness: IndexHarness) -> None:
    for ledger_id in (1, 2**63 - 1):
        asked = [
            limbo_harness.read(ledger_id, 0),
            limbo_harness.read(ledger_id, -1),
            limbo_harness.read_batch(ledger_id, 0),
            limbo_harness.list_entries(ledger_id),
            limbo_harness.write_lac(ledger_id, 5),
            limbo_harness.read_lac(ledger_id),
            limbo_harness.read_lac(ledger_id, -1, 60_000, PIGGYBACK),
        ]
        limbo_harness.settle()
        answers = limbo_harness.answers()
        assert {each.request_id for each in answers} == {put.request_id for put in asked}
        assert {each.status for each in answers} == {CANNOT_TELL}
    assert limbo_harness.ask_one(limbo_harness.read(7, 0)).status == NO_LEDGER, (
        "of others it can tell"
    )


def test_what_a_repair_brought_is_read_and_the_rest_is_not_denied(
    limbo_harness: IndexHarness,
) -> None:
    limbo_harness.add(1, 0, b"zero", flags=RECOVERY)
    limbo_harness.add(1, 2, b"two", flags=RECOVERY)
    limbo_harness.publish()
    assert limbo_harness.ask_one(limbo_harness.read(1, 2)).status == OK
    assert limbo_harness.ask_one(limbo_harness.read(1, 1)).status == CANNOT_TELL
    assert limbo_harness.ask_one(limbo_harness.read(1, 3)).status == CANNOT_TELL
    assert limbo_harness.ask_one(limbo_harness.read(1, -1)).status == CANNOT_TELL, (
        "which was the last one can't be told"
    )
    batch = limbo_harness.ask_one(limbo_harness.read_batch(1, 0))
    assert (batch.status, len(batch.entries), batch.next_entry_id) == (OK, 1, 1)
    assert limbo_harness.ask_one(limbo_harness.read_batch(1, 1)).status == CANNOT_TELL
    assert limbo_harness.ask_one(limbo_harness.list_entries(1)).status == CANNOT_TELL
    assert limbo_harness.ask_one(limbo_harness.read_lac(1)).status == CANNOT_TELL


def test_a_fence_is_answered_and_says_nothing_either(limbo_harness: IndexHarness) -> None:
    limbo_harness.fence(1)
    limbo_harness.publish()
    limbo_harness.settle()
    (answer,) = limbo_harness.answers()
    assert answer.status == CANNOT_TELL


def test_limbo_ends_where_metadata_says_so(limbo_harness: IndexHarness) -> None:
    assert limbo_harness.index.list_limbo(0)[0] != []
    assert limbo_harness.index.limbo_over([1, 5], fenced=False) == (1, 2)
    assert limbo_harness.index.list_limbo(0)[0] == [2**63 - 1]
    assert limbo_harness.ask_one(limbo_harness.read(1, 0)).status == NO_ENTRY
    lac = limbo_harness.ask_one(limbo_harness.read_lac(1))
    assert (lac.status, lac.fenced) == (OK, False)
    assert limbo_harness.index.limbo_over([2**63 - 1], fenced=True) == (1, 1)
    assert limbo_harness.ask_one(limbo_harness.read_lac(2**63 - 1)).fenced
    assert limbo_harness.index.limbo_over([1], fenced=True)[0] == 1, (
        "a fence that may have been is one"
    )
    assert limbo_harness.index.limbo_over([1], fenced=True)[0] == 0, "said once more"


def test_a_deleted_ledger_leaves_limbo(limbo_harness: IndexHarness) -> None:
    assert limbo_harness.index.delete_ledgers([1], 1000) == (1, 1)
    assert limbo_harness.ask_one(limbo_harness.read(1, 0)).status == NO_LEDGER
    assert limbo_harness.ask_one(limbo_harness.read_lac(1)).status == NO_LEDGER
    assert limbo_harness.index.list_limbo(0)[0] == [2**63 - 1]


def test_long_polls_do_not_wait_for_what_went_into_limbo(limbo_harness: IndexHarness) -> None:
    limbo_harness.read_lac(5, -1, 60_000)
    limbo_harness.settle()
    assert limbo_harness.answers() == []
    limbo_harness.index.put_in_limbo([5])
    limbo_harness.settle()
    assert [answer.status for answer in limbo_harness.answers()] == [CANNOT_TELL]


def test_notices_are_bounded_by_what_the_journal_takes(limbo_harness: IndexHarness) -> None:
    """INV-B1, INV-R1: the journal of this harness takes none."""
    for first in range(0, NOTICES + 10, 200):
        for n in range(first, min(first + 200, NOTICES + 10)):
            limbo_harness.add(100 + n, 0, b"")
        limbo_harness.publish()
        limbo_harness.settle()
    everything = range(100, 100 + NOTICES + 10)
    count, taken = limbo_harness.index.delete_ledgers(everything, 1000)
    assert (count, taken) == (NOTICES, NOTICES)
    assert limbo_harness.index.delete_ledgers(everything, 1000) == (0, NOTICES), (
        "those that are gone need no notice"
    )
    assert limbo_harness.ask_one(limbo_harness.read(100 + NOTICES, 0)).status == OK
    assert limbo_harness.ask_one(limbo_harness.read(100 + NOTICES - 1, 0)).status == NO_LEDGER


def test_what_cannot_be_put_in_limbo() -> None:
    with closing(IndexHarness(ledgers_max=2)) as limbo_harness:
        with pytest.raises(CorruptDataError):
            limbo_harness.index.put_in_limbo([-1])
        with pytest.raises(NativeFullError):
            limbo_harness.index.put_in_limbo([1, 2, 3])


# Ledgers that metadata was never seen to list: what the index makes of what gc says of them
# (INV-G4, INV-G5).


@pytest.fixture
def three_ledgers() -> Iterator[IndexHarness]:
    made = IndexHarness()
    for ledger_id in (1, 2, 3):
        made.add(ledger_id, 0, b"x")
    made.publish()
    made.settle()
    made.answers()
    yield made
    made.close()


def expiring(three_ledgers: IndexHarness) -> dict[int, int]:
    ids, marks, _ = three_ledgers.index.list_unconfirmed(0)
    return dict(zip(ids, marks, strict=True))


def test_a_ledger_is_unconfirmed_until_metadata_lists_it_with_its_key(
    three_ledgers: IndexHarness,
) -> None:
    assert expiring(three_ledgers) == {1: 0, 2: 0, 3: 0}
    assert three_ledgers.index.list_ledgers(0)[0] == []
    listed = [Listed(1), Listed(2, 7, master_key(b"another")), Listed(3, 7, None), Listed(99)]
    assert three_ledgers.index.confirm(listed) == [2]
    assert expiring(three_ledgers) == {2: 0}
    assert sorted(three_ledgers.index.list_ledgers(0)[0]) == [1, 3]


def test_an_expiry_counts_once_the_journal_knows_of_it(three_ledgers: IndexHarness) -> None:
    assert three_ledgers.index.confirm([Listed(1)]) == []
    assert three_ledgers.index.begin_expiry([1, 2, 99]) == 1, "not the confirmed one"
    assert three_ledgers.index.expire([1, 3])[0] == 0, "only what takes nothing any more"
    assert expiring(three_ledgers) == {2: 0, 3: 0}, "the journal may still take something to it"
    three_ledgers.journal.put(NOTICES_CONSUMED, 2)
    assert expiring(three_ledgers) == {2: 1, 3: 0}
    assert three_ledgers.index.expire([2])[0] == 1
    assert three_ledgers.ask_one(three_ledgers.read(2, 0)).status == NO_LEDGER
    assert three_ledgers.ask_one(three_ledgers.read(3, 0)).status == OK
    assert list(three_ledgers.index.deleted_ledgers()) == [2]


def test_an_expiry_ends_when_metadata_lists_the_ledger(three_ledgers: IndexHarness) -> None:
    assert three_ledgers.index.begin_expiry([1]) == 1
    three_ledgers.journal.put(NOTICES_CONSUMED, 1)
    assert three_ledgers.index.confirm([Listed(1)]) == []
    assert three_ledgers.index.expire([1])[0] == 0
    assert 1 in three_ledgers.index.list_ledgers(0)[0]


def test_a_ledger_that_was_let_in_is_confirmed_from_its_first_entry_on(
    three_ledgers: IndexHarness,
) -> None:
    assert three_ledgers.index.admit([1, 50]) == 1, "the first one is here"
    three_ledgers.add(50, 0, b"x")
    three_ledgers.publish()
    three_ledgers.settle()
    assert three_ledgers.ask_one(three_ledgers.read(50, 0)).status == OK
    assert 50 in three_ledgers.index.list_ledgers(0)[0]
    assert 50 not in expiring(three_ledgers)


# Explicit LACs out of the index's table and back into another one.


def body(ledger_id: int, lac: int) -> bytes:
    return struct.pack(">qq", ledger_id, lac) + b"dig!"


def test_the_table_gives_what_writers_signed(harness: IndexHarness) -> None:
    for ledger_id in (1, 2):
        harness.add(ledger_id, 0, b"data")
    harness.publish()
    assert harness.index.explicit_lacs() == []
    before = harness.index.explicit_lacs_kept()
    for ledger_id in (1, 2):
        assert harness.ask_one(harness.write_lac(ledger_id, 7)).status == OK
    assert sorted(harness.index.explicit_lacs()) == [body(1, 7), body(2, 7)]
    assert harness.index.explicit_lacs_kept() == before + 2


def test_what_is_put_back_is_answered_again(harness: IndexHarness) -> None:
    for entry_id in (0, 1):
        harness.add(1, entry_id, b"data")
    harness.publish()
    assert harness.ask_one(harness.read_lac(1)).body == b""
    assert harness.index.put_explicit_lacs([body(1, 1)]) == 1
    answer = harness.ask_one(harness.read_lac(1))
    assert (answer.lac, answer.body) == (1, body(1, 1))


@pytest.mark.parametrize(
    "found",
    [body(2, 1), body(1, -1), body(-1, 1), b"", body(1, 1)[:15], body(1, 1) + bytes(100)],
    ids=["not here", "no LAC", "no ledger", "empty", "short", "long"],
)
def test_what_makes_no_sense_is_not_put_back(harness: IndexHarness, found: bytes) -> None:
    harness.add(1, 0, b"data")
    harness.publish()
    harness.settle()
    assert harness.index.put_explicit_lacs([found]) == 0
    assert harness.index.explicit_lacs() == []


def test_limbo_takes_none_back(harness: IndexHarness) -> None:
    """INV-X4: a LAC below one that was lost would be taken for the whole truth."""
    harness.add(1, 0, b"data")
    harness.publish()
    harness.settle()
    harness.index.put_in_limbo([1])
    assert harness.index.put_explicit_lacs([body(1, 1)]) == 0
