"""A worker that was drained reads no answer any more: the index waits for it no more, and gets to its own drain."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastbk.native.index import IDLE
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import CHECK, WORKER_REPLY_CONSUMED, IndexHarness, Put
from tests.fixtures.storage_harness import Book, Life, format_disk

CONSUMER_GONE = 2**64 - 1
ENTRY_BYTES = 60_000
ENTRIES = 4
ASKED = 40
"""Ten times what the ring holds, and less than there are slots for."""
CHECKS = 400
"""Whose answers are short: more than the ring holds behind those of one read of each entry."""


def leave(harness: IndexHarness, worker: int = 0) -> None:
    harness.workers[worker].put(WORKER_REPLY_CONSUMED, CONSUMER_GONE)


def filled(**options: int) -> IndexHarness:
    harness = IndexHarness(reply_bytes=1 << 18, **options)
    for entry_id in range(ENTRIES):
        harness.add(1, entry_id, bytes([entry_id]) * ENTRY_BYTES)
    harness.publish()
    harness.settle()
    return harness


def checks(harness: IndexHarness) -> None:
    for entry_id in range(ENTRIES):
        harness.read(1, entry_id)
    for n in range(CHECKS):
        put = harness.add(1, n % ENTRIES, b"another")
        harness.publish({put: CHECK})
        harness.run()


ASKS: dict[str, Callable[[IndexHarness], object]] = {
    "reads": lambda harness: [harness.read(1, n % ENTRIES) for n in range(ASKED)],
    "batch reads": lambda harness: [harness.read_batch(1, 0) for _ in range(ASKED)],
    "lists": lambda harness: [(harness.read(1, 0), harness.list_entries(1)) for _ in range(ASKED)],
    "LACs": lambda harness: [harness.read_lac(1) for _ in range(ASKED)],
    "fences": lambda harness: [
        (harness.fence(1, n % ENTRIES), harness.publish()) for n in range(ASKED)
    ],
    "checks": checks,
}


@pytest.mark.parametrize("kind", ASKS)
def test_what_waits_for_room_in_its_ring_is_let_go(kind: str) -> None:
    harness = filled()
    try:
        ASKS[kind](harness)
        harness.run(steps=50)
        assert not harness.run() & IDLE, "the ring was never full"
        leave(harness)
        harness.settle()
        assert harness.index.status.requests == 0
    finally:
        harness.close()


def test_the_other_workers_get_their_answers() -> None:
    harness = filled(worker_count=2)
    try:
        for n in range(ASKED):
            harness.read(1, n % ENTRIES)
        harness.run(steps=10)
        leave(harness)
        wanted: list[Put] = [harness.read(1, n % ENTRIES, worker=1) for n in range(ASKED)]
        found: list[int] = []
        while len(found) < ASKED:
            harness.run(1)
            found += [answer.request_id for answer in harness.answers(1)]
        assert found == [put.request_id for put in wanted]
    finally:
        harness.close()


def test_polls_that_come_due_later_are_let_go() -> None:
    harness = filled()
    try:
        for _ in range(ASKED):
            harness.read_lac(1, ENTRIES - 2, 60_000)
        harness.settle()
        assert harness.answers() == []
        leave(harness)
        harness.add(1, ENTRIES, bytes(ENTRY_BYTES))
        harness.publish()
        harness.settle()
    finally:
        harness.close()


def test_disks_are_not_read_for_it() -> None:
    """Three hundred batch reads of a megabyte each would keep a drain for as long as the disk needs for them."""
    with FakeDisk() as fake:
        format_disk(fake)
        life = Life(fake, Book())
        for n in range(60):
            life.add(1, n, bytes(500))
        life.settle()
        life.flush()
        life.close()
        life = Life(fake, Book())
        try:
            for n in range(40):
                life.harness.read_batch(1, n)
            leave(life.harness)
            life.harness.settle()
            assert life.store.counts()["jobs"] == 0
        finally:
            life.close()
