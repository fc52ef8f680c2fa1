"""The LAC as the index answers it, and long polls: woken, timed out, bounded, cancelled."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest

from tests.fixtures.index_harness import (
    BAD_REQUEST,
    CANCEL,
    INDEX_WANTS_WAKE,
    NO_LEDGER,
    OK,
    PIGGYBACK,
    TOO_MANY_REQUESTS,
    UNAUTHORIZED,
    Answer,
    IndexHarness,
)
from tests.fixtures.journal_harness import entry


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    made = IndexHarness()
    yield made
    made.close()


def filled(harness: IndexHarness, ledger_id: int, ids: list[int], size: int = 20) -> None:
    for entry_id in ids:
        harness.add(ledger_id, entry_id, bytes([entry_id % 256]) * size)
    harness.publish()


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
