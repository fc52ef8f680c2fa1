"""What the index answers: reads, batches, lists; from caches and disk; and when there is no room."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from fastbk.errors import ProtocolError
from fastbk.native.ffi import CorruptDataError
from fastbk.native.index import WATCHED
from fastbk.native.journal import ROLL
from fastbk.native.ledger_state import Listed
from fastbk.native.segment import Segment, Stats
from fastbk.observe.names import SLOTS
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import (
    BAD_REQUEST,
    CANCEL,
    CANNOT_TELL,
    INDEX_REPLY_WRITTEN,
    INDEX_WANTS_WAKE,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    PIGGYBACK,
    READ,
    TOO_MANY_REQUESTS,
    UNAUTHORIZED,
    WORKER_REPLY_CONSUMED,
    Answer,
    IndexHarness,
)
from tests.fixtures.journal_harness import entry
from tests.fixtures.storage_harness import Book, Life, first_life, format_disk, formatted_disk

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

LAST = 2**63 - 1


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    made = IndexHarness()
    yield made
    made.close()


fake = formatted_disk
life = first_life


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
    with closing(IndexHarness(frame_size_bytes_max=4096, ring_bytes=1 << 18)) as harness:
        filled(harness, 1, list(range(10)), 1000)
        answer = harness.ask_one(harness.read_batch(1, 0))
        assert ids_of(answer) == [0, 1, 2]
        assert answer.next_entry_id == 3


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
    with closing(Life(fake, Book())) as life:
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
    with closing(IndexHarness(reply_bytes=1 << 18)) as harness:
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


def fill(fake: FakeDisk, entry_ids: range) -> None:
    """Store entries of ledger 1, and flush them, in a life that ends."""
    life = Life(fake, Book())
    for n in entry_ids:
        life.add(1, n, bytes(500))
    life.settle()
    life.flush()
    life.close()


def test_requests_beyond_the_jobs_wait_in_their_ring(fake: FakeDisk) -> None:
    fill(fake, range(60))
    with closing(Life(fake, Book(), requests_max=4)) as life:
        puts = [life.harness.read(1, n) for n in range(60)]
        life.harness.run()
        assert life.index.status.requests == 4
        got: list[Answer] = []
        for _ in range(200):
            life.index_step()
            got += life.harness.answers()
        assert {each.request_id for each in got} == {put.request_id for put in puts}
        assert {each.status for each in got} == {OK}


def test_lists_beyond_their_bound_wait_for_their_turn(fake: FakeDisk) -> None:
    """INV-B1: each holds room for all ranges of a reply while it is on the disk."""
    fill(fake, range(0, 60, 2))
    with closing(Life(fake, Book(), requests_max=256)) as life:
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


def test_checks_beyond_the_bound_wait_in_their_ring(fake: FakeDisk) -> None:
    """Parked copies are bounded (INV-B1): the batches behind wait, and every add gets its answer."""
    fill(fake, range(40))
    with closing(Life(fake, Book(), parked_bytes_max=1)) as life:
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


def test_damaged_runs_cannot_be_told_about(fake: FakeDisk) -> None:
    life = Life(fake, Book())
    for n in range(10):
        life.add(1, n, bytes(100))
    life.add(2, 0, b"whole")
    life.settle()
    life.flush()
    life.close()
    fake.corrupt("/ledgers/logs/0000000000000001.log", 4096 + 700, 64)
    with closing(Life(fake, Book())) as life:
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


# The LAC as the index answers it, and long polls: woken, timed out, bounded, cancelled.


def test_the_explicit_lac(harness: IndexHarness) -> None:
    filled(harness, 1, [0, 1])
    assert harness.ask_one(harness.read_lac(1)).lac == 0
    assert harness.ask_one(harness.write_lac(1, 1)).status == OK
    answer = harness.ask_one(harness.read_lac(1))
    assert (answer.lac, answer.body) == (1, struct.pack(">qq", 1, 1) + b"dig!")
    assert answer.entry == entry(1, 1, bytes([1]) * 20)
    assert harness.ask_one(harness.write_lac(1, 0, b"old!")).status == OK
    assert harness.ask_one(harness.read_lac(1)).body[16:] == b"dig!", "an older one changes nothing"
    assert harness.ask_one(harness.write_lac(1, 5, key=b"wrong")).status == UNAUTHORIZED
    assert harness.ask_one(harness.write_lac(2, 5)).status == NO_LEDGER
    assert harness.ask_one(harness.write_lac(1, 6, bytes(200))).status == BAD_REQUEST
    assert harness.ask_one(harness.read_lac(1)).lac == 1


def test_the_largest_entry_and_the_explicit_lac_fit_no_frame_together(
    harness: IndexHarness,
) -> None:
    """A reply above the limit ends a client's connection: what proves less stays behind."""
    largest = 65536 - 116  # what an Add adds to its entry
    harness.add(1, 0, raw=struct.pack(">qqqq", 1, 0, -1, 0))
    harness.add(1, 1, raw=struct.pack(">qqqq", 1, 1, 0, 0) + bytes(largest - 32))
    harness.publish()
    answer = harness.ask_one(harness.read_lac(1))
    assert (answer.entry_id, len(answer.entry or b"")) == (1, largest)
    assert harness.ask_one(harness.write_lac(1, 1)).status == OK
    answer = harness.ask_one(harness.read_lac(1))
    assert (answer.status, answer.lac, answer.entry_id, answer.entry) == (OK, 1, -1, b"")
    assert answer.body is not None
    assert answer.body[:16] == struct.pack(">qq", 1, 1)
    # An entry that proves more than the LAC that was written before it goes in its place.
    harness.add(1, 3, raw=struct.pack(">qqqq", 1, 3, 2, 0) + bytes(largest - 32))
    harness.publish()
    answer = harness.ask_one(harness.read_lac(1))
    assert (answer.lac, answer.entry_id, len(answer.entry or b""), answer.body) == (
        2,
        3,
        largest,
        b"",
    )


def test_a_long_poll_is_woken_by_an_entry(harness: IndexHarness) -> None:
    filled(harness, 1, [0])
    harness.settle()
    put = harness.read_lac(1, 1, 60_000, PIGGYBACK)
    harness.settle()
    assert harness.answers() == []
    assert harness.memory.get(INDEX_WANTS_WAKE) == 1, "the journal must ring for it"
    filled(harness, 1, [1, 2])
    harness.settle()
    assert harness.answers() == [], "its LAC is 1: not above"
    filled(harness, 1, [3])
    harness.settle()
    (answer,) = harness.answers()
    assert (answer.request_id, answer.lac, answer.entry_id) == (put.request_id, 2, 2)
    assert answer.entry == entry(1, 2, bytes([2]) * 20)
    assert harness.memory.get(INDEX_WANTS_WAKE) == 0


def test_a_long_poll_is_woken_by_a_fence_an_explicit_lac_and_time(harness: IndexHarness) -> None:
    filled(harness, 1, [0])
    harness.settle()
    put = harness.read_lac(1, 5, 60_000)
    harness.settle()
    harness.write_lac(1, 9)
    harness.settle()
    assert [each.request_id for each in harness.answers()][-1] == put.request_id
    put = harness.read_lac(1, 20, 60_000)
    harness.settle()
    harness.fence(1)
    harness.publish()
    harness.settle()
    fenced = next(each for each in harness.answers() if each.request_id == put.request_id)
    assert fenced.fenced
    assert harness.ask_one(harness.read_lac(1, 20, 60_000)).fenced, (
        "a fenced ledger grows no more: at once"
    )
    put = harness.read_lac(99, -1, 30)
    begun = time.monotonic()
    while not (answers := harness.answers()):
        harness.run(100)
        assert time.monotonic() - begun < 5
    assert 0.029 < time.monotonic() - begun < 1
    assert [(each.request_id, each.status) for each in answers] == [(put.request_id, NO_LEDGER)]


def test_a_poll_of_a_ledger_that_does_not_exist_yet(harness: IndexHarness) -> None:
    put = harness.read_lac(5, -1, 60_000)
    harness.settle()
    filled(harness, 5, [0, 1])
    harness.settle()
    (answer,) = harness.answers()
    assert (answer.request_id, answer.lac) == (put.request_id, 0)


def test_waiters_are_bounded_and_go_with_their_connection(harness: IndexHarness) -> None:
    for n in range(64):
        harness.read_lac(n, 0, 60_000, connection_id=1 + n % 2)
    harness.settle()
    assert harness.index.status.waiters == 64
    assert harness.ask_one(harness.read_lac(100, 0, 60_000)).status == TOO_MANY_REQUESTS
    harness.ask(CANCEL, 0, connection_id=1)
    harness.settle()
    assert harness.index.status.waiters == 32
    assert harness.answers() == []
    for n in range(32):
        harness.read_lac(n, 0, 1, connection_id=3)
    harness.settle()
    begun = time.monotonic()
    answers: list[Answer] = []
    while len(answers) < 32:
        harness.run(5)
        answers += harness.answers()
        assert time.monotonic() - begun < 5
    assert {each.connection_id for each in answers} == {3}
    assert harness.index.status.waiters == 32


# Readers that go on and on: what is read ahead for them, and that nobody else waits for them.


ENTRIES = 2000
ENTRY_BYTES = 1000
LEDGERS = (1, 2)
TURN_BYTES = 1 << 20
BACKLOG_BYTES = 2 << 20
REPLY_BYTES = 8 << 20
CEILING_BYTES = 4096 << 20


@pytest.fixture
def filled_disk() -> Iterator[FakeDisk]:
    """A disk with two ledgers of ENTRIES entries, all of them flushed."""
    with FakeDisk() as made:
        format_disk(made)
        # A flush is far too small for chunks in a cache of this size: it makes one run of each ledger.
        streaming_life = Life(made, Book(), cache_bytes=16 << 20)
        for n in range(ENTRIES):
            for ledger_id in LEDGERS:
                streaming_life.add(ledger_id, n, bytes([n % 251]) * ENTRY_BYTES)
            if n % 20 == 19:
                streaming_life.settle()
        streaming_life.stop()
        yield made


@pytest.fixture
def streaming_life(filled_disk: FakeDisk) -> Iterator[Life]:
    made = Life(
        filled_disk, Book(), requests_max=256, reply_bytes=REPLY_BYTES, cache_bytes=16 << 20
    )
    yield made
    made.close()


def counter(streaming_life: Life, name: str) -> int:
    segment = Segment(streaming_life.harness.memory.fd, "index")
    value = Stats(segment).counters()[SLOTS[name]]
    segment.close()
    return value


def reply_bytes_waiting(streaming_life: Life) -> int:
    return streaming_life.harness.memory.get(INDEX_REPLY_WRITTEN) - streaming_life.harness.workers[
        0
    ].get(WORKER_REPLY_CONSUMED)


def ask(
    streaming_life: Life, ledger_id: int, first: int, count: int, connection_id: int = 77
) -> int:
    put = streaming_life.harness.read_batch(
        ledger_id, first, first + count - 1, connection_id=connection_id
    )
    return put.request_id


def answers(streaming_life: Life, steps: int = 60) -> list[Answer]:
    got: list[Answer] = []
    for _ in range(steps):
        streaming_life.index_step()
        got += streaming_life.harness.answers()
    return got


def is_right(answer: Answer, ledger_id: int, first: int, count: int) -> bool:
    wanted = [
        entry(ledger_id, n, bytes([n % 251]) * ENTRY_BYTES) for n in range(first, first + count)
    ]
    return answer.status == OK and [raw[32:] for raw in answer.entries] == [
        raw[32:] for raw in wanted
    ]


def test_a_reader_that_goes_on_asks_the_disk_hardly_ever(streaming_life: Life) -> None:
    """One read after the other: the first asks the disk itself, what follows is in memory when it comes."""
    for first in range(0, ENTRIES, 20):
        ask(streaming_life, 1, first, 20)
        (answer,) = answers(streaming_life, 6)
        assert is_right(answer, 1, first, 20)
    assert counter(streaming_life, "FBK_C_INDEX_DISK_JOBS") <= 4
    assert 1 <= counter(streaming_life, "FBK_C_INDEX_AHEAD_JOBS") <= ENTRIES // 100
    runs_bytes = sum(streaming_life.store.ledger_bytes(1).values())
    assert streaming_life.store.counts()["run_read_bytes"] == runs_bytes, "every run is read once"


def test_a_window_of_reads_waits_for_the_read_ahead(streaming_life: Life) -> None:
    """Many in flight at once: those whose run is on its way wait for that job, and all are answered rightly."""
    wanted = {ask(streaming_life, 1, first, 20): first for first in range(0, ENTRIES, 20)}
    for answer in answers(streaming_life):
        assert is_right(answer, 1, wanted.pop(answer.request_id), 20)
    assert wanted == {}
    assert counter(streaming_life, "FBK_C_INDEX_DISK_JOBS") < ENTRIES // 40


def test_single_reads_in_order_are_read_ahead_for(streaming_life: Life) -> None:
    for n in range(ENTRIES):
        streaming_life.harness.read(2, n)
        (answer,) = answers(streaming_life, 4)
        assert answer.entry is not None
        assert answer.entry[8:16] == n.to_bytes(8, "big")
    assert counter(streaming_life, "FBK_C_INDEX_DISK_JOBS") <= 4
    assert counter(streaming_life, "FBK_C_INDEX_AHEAD_JOBS") >= 1


def test_reads_here_and_there_are_not_read_ahead_for(streaming_life: Life) -> None:
    for n in range(0, ENTRIES, 100):
        streaming_life.harness.read(2, (n * 7919) % ENTRIES)
        assert [answer.status for answer in answers(streaming_life, 4)] == [OK]
    assert counter(streaming_life, "FBK_C_INDEX_AHEAD_JOBS") <= 2


def test_reads_here_and_there_wait_for_no_reader_where_memory_has_it(streaming_life: Life) -> None:
    """The index reads itself what needs no disk: of this disk every other block."""
    at = [n * 617 % ENTRIES for n in range(60)]
    for n in at:
        streaming_life.harness.read(2, n)
        (answer,) = answers(streaming_life, 4)
        assert answer.entry is not None
        assert answer.entry[32:] == entry(2, n, bytes([n % 251]) * ENTRY_BYTES)[32:]
    assert 0 < streaming_life.store.counts()["lookups"] < len(at) - 10
    assert counter(streaming_life, "FBK_C_INDEX_DISK_JOBS") <= len(at)


def test_a_reader_that_jumps_begins_anew(streaming_life: Life) -> None:
    for first in (0, 20, 40, 1000, 1020, 1040, 300, 320, 340):
        ask(streaming_life, 1, first, 20)
        (answer,) = answers(streaming_life, 6)
        assert is_right(answer, 1, first, 20)


def test_what_is_read_ahead_while_the_end_is_reached(streaming_life: Life) -> None:
    """Behind the last entry there is nothing to read ahead; what comes later is found all the same."""
    for first in range(ENTRIES - 100, ENTRIES, 20):
        ask(streaming_life, 1, first, 20)
        assert is_right(answers(streaming_life, 6)[0], 1, first, 20)
    for n in range(ENTRIES, ENTRIES + 40):
        streaming_life.add(1, n, bytes([n % 251]) * ENTRY_BYTES)
    streaming_life.settle()
    streaming_life.flush()
    streaming_life.flush()
    ask(streaming_life, 1, ENTRIES, 40)
    assert is_right(answers(streaming_life, 6)[0], 1, ENTRIES, 40)


def test_a_lone_read_passes_a_hundred_batch_reads(streaming_life: Life) -> None:
    """A connection that reads history has its turn; another one's single read waits for none of it."""
    ledger, tail = 1, 2
    batches = [ask(streaming_life, ledger, first, 60) for first in range(0, 60 * 30, 60)]
    lone = streaming_life.harness.read(tail, 5, connection_id=99).request_id
    order = [answer.request_id for answer in answers(streaming_life)]
    assert sorted(order) == sorted([*batches, lone])
    assert order.index(lone) <= 3


def test_connections_take_turns(streaming_life: Life) -> None:
    """One connection with many large reads outstanding does not hold up the few of another one."""
    many = [ask(streaming_life, 1, first, 60, connection_id=5) for first in range(0, 60 * 30, 60)]
    few = [ask(streaming_life, 2, first, 60, connection_id=6) for first in range(0, 60 * 3, 60)]
    order = [answer.request_id for answer in answers(streaming_life)]
    assert sorted(order) == sorted(many + few)
    assert max(order.index(one) for one in few) < len(order) * 2 // 3


def test_a_step_encodes_no_more_than_its_turn(streaming_life: Life) -> None:
    """INV-B1: however many large answers are due, adds and small reads have their turn in between."""
    for first in range(0, 60 * 30, 60):
        ask(streaming_life, 1, first, 60)
    answers(streaming_life)  # all of it is in memory now
    for _ in range(3):
        for first in range(0, 60 * 30, 60):
            ask(streaming_life, 1, first, 60)
    streaming_life.index.step(0)
    assert TURN_BYTES <= reply_bytes_waiting(streaming_life) <= BACKLOG_BYTES + TURN_BYTES
    waiting = reply_bytes_waiting(streaming_life)
    streaming_life.harness.read(2, 7, connection_id=99)
    for _ in range(5):
        streaming_life.index.step(0)  # the worker reads nothing meanwhile
    assert reply_bytes_waiting(streaming_life) <= max(waiting, BACKLOG_BYTES) + TURN_BYTES + 4096
    assert len(answers(streaming_life)) == 3 * 30 + 1


def test_history_is_held_back_while_adds_come(filled_disk: FakeDisk) -> None:
    """A reader of history and a writer meet: the reader gets on, but not as fast as it could."""
    with closing(
        Life(filled_disk, Book(), requests_max=256, reply_bytes=REPLY_BYTES)
    ) as streaming_life:
        deadline_s = time.monotonic() + 30.0
        added = 0
        while counter(streaming_life, "FBK_C_INDEX_BULK_RATE") >= CEILING_BYTES:
            assert time.monotonic() < deadline_s
            streaming_life.add(3, added, b"x" * 100)
            added += 1
            streaming_life.settle()
            ask(streaming_life, 1, added % ENTRIES, 1)
            answers(streaming_life, 2)
        wanted = {ask(streaming_life, 1, first, 20): first for first in range(0, ENTRIES, 20)}
        while wanted:
            assert time.monotonic() < deadline_s
            for answer in answers(streaming_life, 2):
                assert is_right(answer, 1, wanted.pop(answer.request_id), 20)
        # Single reads in order are history, too; with nobody adding any more they are all answered.
        puts = [streaming_life.harness.read(2, n).request_id for n in range(200)]
        got: list[int] = []
        while len(got) < len(puts):
            assert time.monotonic() < deadline_s
            got += [answer.request_id for answer in answers(streaming_life, 2)]
        assert sorted(got) == puts


def test_who_reads_the_newest_entries_in_batches_is_never_held_back(filled_disk: FakeDisk) -> None:
    """The pauses in which history stands still are for readers of tails; they stood still themselves, 70 ms each."""
    with closing(
        Life(filled_disk, Book(), requests_max=256, reply_bytes=REPLY_BYTES)
    ) as streaming_life:
        added, behind, held = 0, 0, 0
        history: set[int] = set()
        for _ in range(300):
            for _ in range(3):
                streaming_life.add(3, added, b"x" * 100)
                added += 1
            while (
                streaming_life.journal.status.waiting_bytes
                or streaming_life.journal.status.in_flight
            ):
                if streaming_life.journal.step(5) & ROLL:
                    streaming_life.loop.roll()
                streaming_life.look()
            while len(history) < 40:
                history.add(ask(streaming_life, 1, behind % (ENTRIES - 300), 300))
                behind += 300
            streaming_life.index_step()
            history -= {each.request_id for each in streaming_life.harness.answers()}
            tail = ask(streaming_life, 3, added - 3, 3, connection_id=99)
            early, strange = ask(streaming_life, 3, added, 3, 99), ask(streaming_life, 9, 0, 3, 99)
            streaming_life.index_step()
            got = {each.request_id: each for each in streaming_life.harness.answers()}
            assert got[tail].next_entry_id == added
            assert got[early].entries == [] and got[strange].status == NO_LEDGER
            held += history.isdisjoint(got)
            history -= set(got)
        assert held > 0, "history waits"
