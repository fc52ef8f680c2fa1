"""What the index answers: reads, batches, lists; from caches and disk; and when there is no room."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from fastbk.errors import ProtocolError
from fastbk.native.ffi import CorruptDataError
from fastbk.native.index import WATCHED
from fastbk.native.ledger_state import Listed
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import (
    BAD_REQUEST,
    CANNOT_TELL,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    READ,
    Answer,
    IndexHarness,
)
from tests.fixtures.journal_harness import entry
from tests.fixtures.storage_harness import Book, Life, format_disk

LAST = 2**63 - 1


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    made = IndexHarness()
    yield made
    made.close()


@pytest.fixture
def fake() -> Iterator[FakeDisk]:
    with FakeDisk() as made:
        format_disk(made)
        yield made


@pytest.fixture
def life(fake: FakeDisk) -> Iterator[Life]:
    made = Life(fake, Book())
    yield made
    made.close()


def filled(harness: IndexHarness, ledger_id: int, ids: list[int], size: int = 20) -> None:
    for entry_id in ids:
        harness.add(ledger_id, entry_id, bytes([entry_id % 256]) * size)
    harness.publish()


def ids_of(answer: Answer) -> list[int]:
    return [int.from_bytes(each[8:16], "big") for each in answer.entries]


# ---- batches and lists


def test_batches_keep_their_limits(harness: IndexHarness) -> None:
    filled(harness, 1, list(range(20)), 68)
    answer = harness.ask_one(harness.read_batch(1, 5, 11))
    assert (ids_of(answer), answer.next_entry_id) == (list(range(5, 12)), 12)
    answer = harness.ask_one(harness.read_batch(1, 5, 11, 3))
    assert (ids_of(answer), answer.next_entry_id) == ([5, 6, 7], 8)
    answer = harness.ask_one(harness.read_batch(1, 5, 11, 0, 250))
    assert (ids_of(answer), answer.next_entry_id) == ([5, 6], 7)
    answer = harness.ask_one(harness.read_batch(1, 5, 11, 0, 1))
    assert (ids_of(answer), answer.next_entry_id) == ([5], 6), "the first one always"
    answer = harness.ask_one(harness.read_batch(1, 30, 40))
    assert (answer.status, ids_of(answer), answer.next_entry_id) == (OK, [], 41)
    assert harness.ask_one(harness.read_batch(1, 5, 4)).status == BAD_REQUEST
    assert harness.ask_one(harness.read_batch(9, 5, 9)).status == NO_LEDGER


def test_a_reply_is_no_longer_than_a_frame() -> None:
    harness = IndexHarness(frame_size_bytes_max=4096, ring_bytes=1 << 18)
    try:
        filled(harness, 1, list(range(10)), 1000)
        answer = harness.ask_one(harness.read_batch(1, 0))
        assert ids_of(answer) == [0, 1, 2]
        assert answer.next_entry_id == 3
    finally:
        harness.close()


def test_gaps_wide_and_narrow_and_the_largest_ids(harness: IndexHarness) -> None:
    ids = [0, 1, 4, 70, 71, 500, 10_000, 2**40, LAST - 1, LAST]
    filled(harness, 1, ids)
    answer = harness.ask_one(harness.read_batch(1, 0, LAST))
    assert (ids_of(answer), answer.next_entry_id) == (ids, LAST)
    answer = harness.ask_one(harness.read_batch(1, 2, 499))
    assert (ids_of(answer), answer.next_entry_id) == ([4, 70, 71], 500)
    answer = harness.ask_one(harness.list_entries(1))
    assert answer.ranges == [
        (0, 1),
        (4, 4),
        (70, 71),
        (500, 500),
        (10_000, 10_000),
        (2**40, 2**40),
        (LAST - 1, LAST),
    ]
    assert answer.next_entry_id == -1
    answer = harness.ask_one(harness.list_entries(1, 1, 2))
    assert (answer.ranges, answer.next_entry_id) == ([(1, 1), (4, 4)], 70)


def test_ids_that_came_in_any_order(harness: IndexHarness, rng: random.Random) -> None:
    ids = rng.sample(range(300), 120)
    filled(harness, 1, ids)
    answer = harness.ask_one(harness.read_batch(1, 0, 1000))
    assert ids_of(answer) == sorted(ids)


def test_caches_and_disk_are_one(life: Life, rng: random.Random) -> None:
    """A model of ids, with flushes in between: single reads, batches and lists agree with it at every point."""
    held: dict[int, set[int]] = {1: set(), 2: set()}
    for round_number in range(12):
        for _ in range(25):
            ledger_id = rng.choice([1, 2])
            entry_id = max(held[ledger_id], default=-1) + rng.choice([1, 1, 1, 2, 7])
            if rng.random() < 0.2 and held[ledger_id]:
                # somewhere below: the journal has it checked
                entry_id = rng.randrange(max(held[ledger_id]) + 1)
            if entry_id in held[ledger_id]:
                continue
            life.add(ledger_id, entry_id, b"%d" % entry_id)
            held[ledger_id].add(entry_id)
        life.settle()
        if round_number % 2:
            life.flush()
        for ledger_id, ids in held.items():
            first = rng.randrange(max(ids) + 2)
            assert_one(life, ledger_id, ids, first)


def assert_one(life: Life, ledger_id: int, ids: set[int], first: int) -> None:
    listed = life.ask(life.harness.list_entries(ledger_id, first))
    assert {n for a, b in listed.ranges for n in range(a, b + 1)} == {n for n in ids if n >= first}
    found: list[int] = []
    position, last, asked = first, max(ids) + 3, 0
    while position <= last:
        answer = life.ask(life.harness.read_batch(ledger_id, position, last, 40))
        assert answer.status == OK
        assert answer.next_entry_id > position
        found += ids_of(answer)
        position = answer.next_entry_id
        asked += 1
    assert found == sorted(n for n in ids if n >= first)
    answer = life.ask(life.harness.read(ledger_id, first))
    assert answer.status == (OK if first in ids else NO_ENTRY)
    assert answer.status != OK or answer.entry == entry(ledger_id, first, b"%d" % first)
    assert life.ask(life.harness.read(ledger_id, -1)).entry_id == max(ids)


@pytest.mark.parametrize("runs", [1, 4])
def test_a_striped_ledger_on_disk_is_read_in_large_pieces(fake: FakeDisk, runs: int) -> None:
    """Two of three ids are here: a gap after every second one must not end the reply."""
    ids = [n for n in range(300) if n % 3 != 2]
    life = Life(fake, Book(), cache_bytes=1 << 20, flush_used_bytes=1 << 19)
    for at in range(0, len(ids), len(ids) // runs):
        for entry_id in ids[at : at + len(ids) // runs]:
            life.add(1, entry_id, bytes(20))
        life.settle()
        life.flush()
    life.close()
    life = Life(fake, Book())
    try:
        found: list[int] = []
        position, asked = 0, 0
        while position < 300:
            answer = life.ask(life.harness.read_batch(1, position, 299))
            found += ids_of(answer)
            # From an id that is here: what is behind it in its run needs no disk, but the first gap does.
            position = next((one for one in ids if one >= answer.next_entry_id), 300)
            asked += 1
        assert found == ids
        assert asked <= runs + 2, f"{asked} requests for {runs} runs"
    finally:
        life.close()


def test_what_a_cache_held_is_found_after_it_was_emptied(life: Life) -> None:
    """A job is under way while the cache that it was made beside goes to disk and is used again."""
    harness = life.harness
    life.add(1, 0, b"first")
    life.settle()
    life.flush()
    life.add(1, 1, b"second")
    life.add(1, 3, b"fourth")
    life.settle()
    put = harness.read_batch(1, 2, 2)
    harness.run()  # the job is made: nobody does it yet
    assert harness.index.status.requests == 1
    batch = harness.read_batch(1, 0, 10)
    harness.run()
    life.flusher.begin()
    life.flusher.poll()
    life.flusher.begin()
    life.flusher.poll()
    answers = {}
    for _ in range(20):
        life.index_step()
        answers.update({each.request_id: each for each in harness.answers()})
    assert ids_of(answers[put.request_id]) == []
    answer = answers[batch.request_id]
    assert (ids_of(answer), answer.next_entry_id) in (([0, 1], 2), ([0, 1, 3], 11))
    assert ids_of(life.ask(harness.read_batch(1, 2, 10))) == [3]


def test_deleted_ledgers_are_gone(life: Life) -> None:
    life.add(1, 0, b"x")
    life.add(2, 0, b"y")
    life.settle()
    waiting = life.harness.read_lac(1, 5, 60_000)
    life.index_step()
    assert life.index.status.waiters == 1
    life.delete(1)
    assert life.ask(life.harness.read(1, 0)).status == NO_LEDGER
    assert life.index.status.waiters == 0
    assert waiting.request_id
    harness = life.harness
    for ask in (
        harness.read_lac,
        lambda n: harness.read_batch(n, 0),
        harness.list_entries,
        lambda n: harness.write_lac(n, 0),
    ):
        assert life.ask(ask(1)).status == NO_LEDGER
    assert life.ask(life.harness.read(2, 0)).status == OK
    assert list(life.index.deleted_ledgers()) == [1]
    assert life.index.list_ledgers(0)[0] == [], "metadata was not seen to list it"
    assert life.index.confirm([Listed(2)]) == []
    ids, cursor = life.index.list_ledgers(0)
    assert ids == [2]
    assert life.index.list_ledgers(cursor) == ([], cursor)


def test_damage_on_record_never_says_no(harness: IndexHarness) -> None:
    filled(harness, 1, [0, 2])
    harness.settle()
    harness.index.damage()
    assert harness.ask_one(harness.read(1, 0)).status == OK
    for ledger_id, entry_id in ((1, 1), (1, 9), (7, 0)):
        assert harness.ask_one(harness.read(ledger_id, entry_id)).status == CANNOT_TELL
    assert harness.ask_one(harness.read_batch(1, 1)).status == CANNOT_TELL
    assert harness.ask_one(harness.list_entries(1)).status == CANNOT_TELL
    answer = harness.ask_one(harness.read_batch(1, 0))
    assert (ids_of(answer), answer.next_entry_id) == ([0], 1), (
        "it ends before the first id that may be missing"
    )
    assert harness.ask_one(harness.read_lac(1)).status == CANNOT_TELL, (
        "a higher one may have been lost"
    )


# ---- no room


def test_a_full_reply_ring_stops_its_requests_and_loses_none() -> None:
    harness = IndexHarness(reply_bytes=1 << 18)
    try:
        filled(harness, 1, list(range(3)), 60_000)
        wanted = [harness.read(1, n % 3).request_id for n in range(40)]
        fence = harness.fence(1, 0)
        harness.publish()
        checked = harness.add(1, 1, b"no")
        harness.publish({checked: 1000})
        poll = harness.read_lac(1, 0, 10_000)
        got: list[Answer] = []
        for _ in range(200):
            harness.run(1)
            answers = harness.answers()
            assert sum(len(each.entry or b"") for each in answers) < 1 << 18
            got += answers
        by_id = {each.request_id: each for each in got}
        assert len(by_id) == len(got), "each once"
        assert [each.request_id for each in got if each.kind == READ] == wanted
        assert all(each.status == OK for each in got if each.kind == READ)
        assert by_id[fence.request_id].status == OK
        assert by_id[checked.request_id].status == 22
        assert poll.request_id in by_id
    finally:
        harness.close()


def test_requests_beyond_the_jobs_wait_in_their_ring(fake: FakeDisk) -> None:
    life = Life(fake, Book())
    for n in range(60):
        life.add(1, n, bytes(500))
    life.settle()
    life.flush()
    life.close()
    life = Life(fake, Book(), requests_max=4)
    try:
        puts = [life.harness.read(1, n) for n in range(60)]
        life.harness.run()
        assert life.index.status.requests == 4
        got: list[Answer] = []
        for _ in range(200):
            life.index_step()
            got += life.harness.answers()
        assert {each.request_id for each in got} == {put.request_id for put in puts}
        assert {each.status for each in got} == {OK}
    finally:
        life.close()


def test_lists_beyond_their_bound_wait_for_their_turn(fake: FakeDisk) -> None:
    """INV-B1: each holds room for all ranges of a reply while it is on the disk."""
    life = Life(fake, Book())
    for n in range(0, 60, 2):
        life.add(1, n, bytes(500))
    life.settle()
    life.flush()
    life.close()
    life = Life(fake, Book(), requests_max=256)
    try:
        puts = [life.harness.list_entries(1) for _ in range(100)]
        life.harness.run()
        assert life.index.status.requests == 100
        assert life.store.counts()["jobs"] == 32
        got: list[Answer] = []
        for _ in range(200):
            life.index_step()
            got += life.harness.answers()
        assert [each.request_id for each in got] == [put.request_id for put in puts]
        assert {len(each.ranges) for each in got} == {30}
    finally:
        life.close()


def test_checks_beyond_the_bound_wait_in_their_ring(fake: FakeDisk) -> None:
    """Parked copies are bounded (INV-B1): the batches behind wait, and every add gets its answer."""
    life = Life(fake, Book())
    for n in range(40):
        life.add(1, n, bytes(500))
    life.settle()
    life.flush()
    life.close()
    life = Life(fake, Book(), parked_bytes_max=1)
    try:
        for n in range(40):
            life.recovery_add(1, n, bytes(500) if n % 2 else b"other")
            while life.journal.status.waiting_bytes or life.journal.status.in_flight:
                life.journal.step(5)
        life.harness.run()
        assert life.index.status.checks == 1
        assert life.index.status.taken_order < 40
        life.settle()
        assert not life.waiting
        assert set(life.book.acked) == {(1, n) for n in range(40) if n % 2}
    finally:
        life.close()


def test_damaged_runs_cannot_be_told_about(fake: FakeDisk) -> None:
    life = Life(fake, Book())
    for n in range(10):
        life.add(1, n, bytes(100))
    life.add(2, 0, b"whole")
    life.settle()
    life.flush()
    life.close()
    fake.corrupt("/ledgers/logs/0000000000000001.log", 4096 + 700, 64)
    life = Life(fake, Book())
    try:
        statuses = {life.ask(life.harness.read(1, n)).status for n in range(10)}
        assert CANNOT_TELL in statuses
        assert statuses <= {OK, CANNOT_TELL}
        assert life.ask(life.harness.read(1, 10)).status == NO_ENTRY, "above all that was ever here"
        assert life.ask(life.harness.read(2, 0)).status == OK
        # A repair brings the same entries again: they are stored beside the damaged ones.
        for n in range(10):
            life.recovery_add(1, n, bytes(100))
        life.settle()
        assert not life.waiting
        for n in range(10):
            assert life.ask(life.harness.read(1, n)).entry == entry(1, n, bytes(100))
    finally:
        life.close()


def test_requests_that_no_worker_writes(harness: IndexHarness) -> None:
    harness.ask(99, 1)
    with pytest.raises((CorruptDataError, ProtocolError)):
        harness.settle()


def test_watched_descriptors_end_a_step() -> None:
    import os

    fd = os.eventfd(1, os.EFD_CLOEXEC)
    harness = IndexHarness(watched_fds=(fd,))
    try:
        begun = time.monotonic()
        assert harness.run(5000) & WATCHED
        assert time.monotonic() - begun < 2
    finally:
        harness.close()
        os.close(fd)
