"""Which entry logs count: locations in logs that the manifest does not list are void (INV-X5)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastbk.storage.checkpoint import CheckpointSettings
from fastbk.storage.directories import log_path
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import CANNOT_TELL, DIRECTORY, NO_ENTRY, OK, Life, StoreHarness

LAST = 2**63 - 1


@pytest.fixture
def harness() -> Iterator[StoreHarness]:
    """Three flushes of ledger 1, each into a log of its own."""
    with FakeDisk() as fake:
        made = StoreHarness(fake, CheckpointSettings(attempts_max=1, entry_log_size_bytes=1))
        made.birth()
        made.start()
        made.flush([(1, i) for i in range(10)])
        made.flush([(1, i) for i in range(10, 20)])
        made.flush([(1, i) for i in range(20, 30)])
        yield made
        made.end()


@pytest.fixture
def life(harness: StoreHarness) -> Life:
    assert harness.life is not None
    return harness.life


def test_what_lies_in_a_log_that_is_not_listed_is_not_there(life: Life) -> None:
    life.store.set_logs([1, 3])
    assert [life.store.read(1, i, i).status for i in (9, 10, 19, 20)] == [
        OK,
        NO_ENTRY,
        NO_ENTRY,
        OK,
    ]
    assert life.store.read(1, 10, LAST).entry_id == 20
    assert life.store.list(1).ranges == ((0, 9), (20, 29))
    assert sorted(life.store.ledger_bytes(1)) == [1, 3]
    life.store.set_logs([2])
    assert life.store.read(1, 0, LAST).entry_id == 10
    assert life.store.read(1, 20, LAST).status == NO_ENTRY
    life.store.set_logs([])
    assert life.store.read(1, 0, LAST).status == NO_ENTRY
    assert life.store.list(1).ranges == ()


def test_a_listed_log_that_is_gone_is_cannot_tell(life: Life) -> None:
    """An empty folder is no proof: only the manifest can say that a log is not needed."""
    life.disk.unlink(log_path(DIRECTORY, 2))
    assert life.store.read(1, 12, 12).status == CANNOT_TELL
    assert life.store.read(1, 10, LAST).status == CANNOT_TELL
    life.store.set_logs([1, 3])
    assert life.store.read(1, 12, 12).status == NO_ENTRY


def test_void_locations_do_not_make_a_read_shorter(harness: StoreHarness, life: Life) -> None:
    """A run that is moved leaves a void location of the same ids behind; batch reads go on from the new one alone."""
    again = [(1, i) for i in range(20, 30)]
    harness.pending = []
    harness.flush(again)  # the same entries in a second log
    life.store.set_logs([1, 2, 4])
    result = life.store.read(1, 20, LAST)
    assert (result.status, result.entry_id, result.alone_through) == (OK, 20, 29)
    life.store.set_logs([1, 2, 3, 4])
    assert life.store.read(1, 20, LAST).alone_through < 29


def test_a_merge_keeps_what_is_void_or_not_as_it_was(harness: StoreHarness, life: Life) -> None:
    harness.merge_all()
    life.store.set_logs([1, 3])
    assert life.store.list(1).ranges == ((0, 9), (20, 29))


def test_logs_come_in_order(life: Life) -> None:
    life.store.set_logs([3, 1, 2])
    assert life.store.list(1).ranges == ((0, 29),)
