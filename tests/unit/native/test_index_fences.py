"""A fence's answer, and the adds before it that are still being looked at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import ADD, ADD_BATCH, OK, RECOVERY, IndexHarness
from tests.fixtures.storage_harness import Book, Life, format_disk


@pytest.fixture
def life() -> Iterator[Life]:
    with FakeDisk() as fake:
        format_disk(fake)
        made = Life(fake, Book())
        # Entry 0 on disk, 9 in the cache: what lies between has to be looked for on the disk.
        made.add(1, 0, b"first")
        made.settle()
        made.flush()
        made.add(1, 9, b"ninth")
        made.settle()
        yield made
        made.close()


def commit(life: Life) -> None:
    """The journal takes all, and the index takes that in; no reader does its job."""
    while life.journal.status.waiting_bytes or life.journal.status.in_flight:
        life.journal.step(5)
        life.look()
    life.harness.run(steps=3)


@pytest.mark.parametrize("kind", [ADD, ADD_BATCH])
def test_a_fence_waits_for_normal_adds_before_it_that_are_looked_at(life: Life, kind: int) -> None:
    """INV-F1: else the add would be acknowledged after whoever fenced had been told that it is not there."""
    if kind == ADD:
        life.add(1, 5, b"late")
    else:
        life.add_batch(1, 4, [b"late", b"later"])
    commit(life)
    assert life.harness.index.status.checks == 1
    fences = [life.harness.fence(1, entry_id).request_id for entry_id in (9, -1, 5)]
    other = life.harness.fence(2).request_id
    commit(life)
    assert [each.request_id for each in life.harness.answers()] == [other], (
        "only that one is free to go"
    )
    for _ in range(20):
        life.index_step()
    answers = life.harness.answers()
    assert [each.kind for each in answers[:1]] == [kind]
    found = {each.request_id: each for each in answers if each.request_id in fences}
    assert [found[one].status for one in fences] == [OK, OK, OK]
    assert found[fences[2]].entry is not None
    assert b"late" in found[fences[2]].entry


def test_a_fence_does_not_wait_for_recovery_adds(life: Life) -> None:
    life.add(1, 5, b"late", flags=RECOVERY)
    commit(life)
    assert life.harness.index.status.checks == 1
    fence = life.harness.fence(1, 9).request_id
    commit(life)
    assert [each.request_id for each in life.harness.answers()] == [fence]


def test_a_ring_that_fences_have_filled_is_forgotten_once_it_is_read() -> None:
    """Nobody asks anything more: the index sleeps, and a drain believes that it is done."""
    harness = IndexHarness()
    try:
        harness.add(1, 0, bytes(60_000))
        harness.publish()
        for _ in range(20):
            harness.fence(1, 0)
        harness.publish()
        found = 0
        while found < 20:
            harness.run(1)
            found += len(harness.answers())
        harness.settle()
    finally:
        harness.close()
