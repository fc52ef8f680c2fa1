"""Readers that go on and on: what is read ahead for them, and that nobody else waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fastbk.native.journal import ROLL
from fastbk.native.segment import Segment, Stats
from fastbk.observe.names import SLOTS
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import (
    INDEX_REPLY_WRITTEN,
    NO_LEDGER,
    OK,
    WORKER_REPLY_CONSUMED,
    Answer,
)
from tests.fixtures.journal_harness import entry
from tests.fixtures.storage_harness import Book, Life, format_disk

ENTRIES = 2000
ENTRY_BYTES = 1000
LEDGERS = (1, 2)
TURN_BYTES = 1 << 20
BACKLOG_BYTES = 2 << 20
REPLY_BYTES = 8 << 20
CEILING_BYTES = 4096 << 20


@pytest.fixture
def fake() -> Iterator[FakeDisk]:
    """A disk with two ledgers of ENTRIES entries, all of them flushed."""
    with FakeDisk() as made:
        format_disk(made)
        # A flush is far too small for chunks in a cache of this size: it makes one run of each ledger.
        life = Life(made, Book(), cache_bytes=16 << 20)
        for n in range(ENTRIES):
            for ledger_id in LEDGERS:
                life.add(ledger_id, n, bytes([n % 251]) * ENTRY_BYTES)
            if n % 20 == 19:
                life.settle()
        life.stop()
        yield made


@pytest.fixture
def life(fake: FakeDisk) -> Iterator[Life]:
    made = Life(fake, Book(), requests_max=256, reply_bytes=REPLY_BYTES, cache_bytes=16 << 20)
    yield made
    made.close()


def counter(life: Life, name: str) -> int:
    segment = Segment(life.harness.memory.fd, "index")
    value = Stats(segment).counters()[SLOTS[name]]
    segment.close()
    return value


def reply_bytes_waiting(life: Life) -> int:
    return life.harness.memory.get(INDEX_REPLY_WRITTEN) - life.harness.workers[0].get(
        WORKER_REPLY_CONSUMED
    )


def ask(life: Life, ledger_id: int, first: int, count: int, connection_id: int = 77) -> int:
    put = life.harness.read_batch(ledger_id, first, first + count - 1, connection_id=connection_id)
    return put.request_id


def answers(life: Life, steps: int = 60) -> list[Answer]:
    got: list[Answer] = []
    for _ in range(steps):
        life.index_step()
        got += life.harness.answers()
    return got


def is_right(answer: Answer, ledger_id: int, first: int, count: int) -> bool:
    wanted = [
        entry(ledger_id, n, bytes([n % 251]) * ENTRY_BYTES) for n in range(first, first + count)
    ]
    return answer.status == OK and [raw[32:] for raw in answer.entries] == [
        raw[32:] for raw in wanted
    ]


def test_a_reader_that_goes_on_asks_the_disk_hardly_ever(life: Life) -> None:
    """One read after the other: the first asks the disk itself, what follows is in memory when it comes."""
    for first in range(0, ENTRIES, 20):
        ask(life, 1, first, 20)
        (answer,) = answers(life, 6)
        assert is_right(answer, 1, first, 20)
    assert counter(life, "FBK_C_INDEX_DISK_JOBS") <= 4
    assert 1 <= counter(life, "FBK_C_INDEX_AHEAD_JOBS") <= ENTRIES // 100
    runs_bytes = sum(life.store.ledger_bytes(1).values())
    assert life.store.counts()["run_read_bytes"] == runs_bytes, "every run is read once"


def test_a_window_of_reads_waits_for_the_read_ahead(life: Life) -> None:
    """Many in flight at once: those whose run is on its way wait for that job, and all are answered rightly."""
    wanted = {ask(life, 1, first, 20): first for first in range(0, ENTRIES, 20)}
    for answer in answers(life):
        assert is_right(answer, 1, wanted.pop(answer.request_id), 20)
    assert wanted == {}
    assert counter(life, "FBK_C_INDEX_DISK_JOBS") < ENTRIES // 40


def test_single_reads_in_order_are_read_ahead_for(life: Life) -> None:
    for n in range(ENTRIES):
        life.harness.read(2, n)
        (answer,) = answers(life, 4)
        assert answer.entry is not None
        assert answer.entry[8:16] == n.to_bytes(8, "big")
    assert counter(life, "FBK_C_INDEX_DISK_JOBS") <= 4
    assert counter(life, "FBK_C_INDEX_AHEAD_JOBS") >= 1


def test_reads_here_and_there_are_not_read_ahead_for(life: Life) -> None:
    for n in range(0, ENTRIES, 100):
        life.harness.read(2, (n * 7919) % ENTRIES)
        assert [answer.status for answer in answers(life, 4)] == [OK]
    assert counter(life, "FBK_C_INDEX_AHEAD_JOBS") <= 2


def test_reads_here_and_there_wait_for_no_reader_where_memory_has_it(life: Life) -> None:
    """The index reads itself what needs no disk: of this disk every other block."""
    at = [n * 617 % ENTRIES for n in range(60)]
    for n in at:
        life.harness.read(2, n)
        (answer,) = answers(life, 4)
        assert answer.entry is not None
        assert answer.entry[32:] == entry(2, n, bytes([n % 251]) * ENTRY_BYTES)[32:]
    assert 0 < life.store.counts()["lookups"] < len(at) - 10
    assert counter(life, "FBK_C_INDEX_DISK_JOBS") <= len(at)


def test_a_reader_that_jumps_begins_anew(life: Life) -> None:
    for first in (0, 20, 40, 1000, 1020, 1040, 300, 320, 340):
        ask(life, 1, first, 20)
        (answer,) = answers(life, 6)
        assert is_right(answer, 1, first, 20)


def test_what_is_read_ahead_while_the_end_is_reached(life: Life) -> None:
    """Behind the last entry there is nothing to read ahead; what comes later is found all the same."""
    for first in range(ENTRIES - 100, ENTRIES, 20):
        ask(life, 1, first, 20)
        assert is_right(answers(life, 6)[0], 1, first, 20)
    for n in range(ENTRIES, ENTRIES + 40):
        life.add(1, n, bytes([n % 251]) * ENTRY_BYTES)
    life.settle()
    life.flush()
    life.flush()
    ask(life, 1, ENTRIES, 40)
    assert is_right(answers(life, 6)[0], 1, ENTRIES, 40)


def test_a_lone_read_passes_a_hundred_batch_reads(life: Life) -> None:
    """A connection that reads history has its turn; another one's single read waits for none of it."""
    ledger, tail = 1, 2
    batches = [ask(life, ledger, first, 60) for first in range(0, 60 * 30, 60)]
    lone = life.harness.read(tail, 5, connection_id=99).request_id
    order = [answer.request_id for answer in answers(life)]
    assert sorted(order) == sorted([*batches, lone])
    assert order.index(lone) <= 3


def test_connections_take_turns(life: Life) -> None:
    """One connection with many large reads outstanding does not hold up the few of another one."""
    many = [ask(life, 1, first, 60, connection_id=5) for first in range(0, 60 * 30, 60)]
    few = [ask(life, 2, first, 60, connection_id=6) for first in range(0, 60 * 3, 60)]
    order = [answer.request_id for answer in answers(life)]
    assert sorted(order) == sorted(many + few)
    assert max(order.index(one) for one in few) < len(order) * 2 // 3


def test_a_step_encodes_no_more_than_its_turn(life: Life) -> None:
    """INV-B1: however many large answers are due, adds and small reads have their turn in between."""
    for first in range(0, 60 * 30, 60):
        ask(life, 1, first, 60)
    answers(life)  # all of it is in memory now
    for _ in range(3):
        for first in range(0, 60 * 30, 60):
            ask(life, 1, first, 60)
    life.index.step(0)
    assert TURN_BYTES <= reply_bytes_waiting(life) <= BACKLOG_BYTES + TURN_BYTES
    waiting = reply_bytes_waiting(life)
    life.harness.read(2, 7, connection_id=99)
    for _ in range(5):
        life.index.step(0)  # the worker reads nothing meanwhile
    assert reply_bytes_waiting(life) <= max(waiting, BACKLOG_BYTES) + TURN_BYTES + 4096
    assert len(answers(life)) == 3 * 30 + 1


def test_history_is_held_back_while_adds_come(fake: FakeDisk) -> None:
    """A reader of history and a writer meet: the reader gets on, but not as fast as it could."""
    life = Life(fake, Book(), requests_max=256, reply_bytes=REPLY_BYTES)
    try:
        deadline_s = time.monotonic() + 30.0
        added = 0
        while counter(life, "FBK_C_INDEX_BULK_RATE") >= CEILING_BYTES:
            assert time.monotonic() < deadline_s
            life.add(3, added, b"x" * 100)
            added += 1
            life.settle()
            ask(life, 1, added % ENTRIES, 1)
            answers(life, 2)
        wanted = {ask(life, 1, first, 20): first for first in range(0, ENTRIES, 20)}
        while wanted:
            assert time.monotonic() < deadline_s
            for answer in answers(life, 2):
                assert is_right(answer, 1, wanted.pop(answer.request_id), 20)
        # Single reads in order are history, too; with nobody adding any more they are all answered.
        puts = [life.harness.read(2, n).request_id for n in range(200)]
        got: list[int] = []
        while len(got) < len(puts):
            assert time.monotonic() < deadline_s
            got += [answer.request_id for answer in answers(life, 2)]
        assert sorted(got) == puts
    finally:
        life.close()


def test_who_reads_the_newest_entries_in_batches_is_never_held_back(fake: FakeDisk) -> None:
    """The pauses in which history stands still are for readers of tails; they stood still themselves, 70 ms each."""
    life = Life(fake, Book(), requests_max=256, reply_bytes=REPLY_BYTES)
    try:
        added, behind, held = 0, 0, 0
        history: set[int] = set()
        for _ in range(300):
            for _ in range(3):
                life.add(3, added, b"x" * 100)
                added += 1
            while life.journal.status.waiting_bytes or life.journal.status.in_flight:
                if life.journal.step(5) & ROLL:
                    life.loop.roll()
                life.look()
            while len(history) < 40:
                history.add(ask(life, 1, behind % (ENTRIES - 300), 300))
                behind += 300
            life.index_step()
            history -= {each.request_id for each in life.harness.answers()}
            tail = ask(life, 3, added - 3, 3, connection_id=99)
            early, strange = ask(life, 3, added, 3, 99), ask(life, 9, 0, 3, 99)
            life.index_step()
            got = {each.request_id: each for each in life.harness.answers()}
            assert got[tail].next_entry_id == added
            assert got[early].entries == [] and got[strange].status == NO_LEDGER
            held += history.isdisjoint(got)
            history -= set(got)
        assert held > 0, "history waits"
    finally:
        life.close()
