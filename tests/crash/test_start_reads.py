"""Reads that fail while a bookie starts: what may come back is not taken for lost (A17)."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import pytest

from fastbk.errors import Error, StorageError
from fastbk.server.index.replay import EARLY_FLUSHES, early_flushes
from fastbk.storage.directories import locations_path
from fastbk.storage.manifest import Manifest, ManifestSlots
from tests.crash.test_bookie_storage import FAULTS, check_restart, formatted
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.storage_harness import LEDGERS, Book, Life, format_disk

pytestmark = pytest.mark.no_service

PAGE_BYTES = 4096


@pytest.fixture
def stopped() -> Iterator[tuple[FakeDisk, Book]]:
    """The disk of a bookie that stopped cleanly, with one ledger in its files."""
    with FakeDisk() as fake:
        format_disk(fake)
        book = Book()
        life = Life(fake, book)
        life.add(1, 0, b"entry")
        life.settle()
        life.stop()
        yield fake, book


def manifest_of(fake: FakeDisk) -> Manifest:
    return ManifestSlots(fake.disk(), LEDGERS).load()


@pytest.mark.parametrize("page", [0, 2], ids=["header", "states"])
def test_a_start_without_the_states_is_given_up_and_nothing_put_on_record(
    stopped: tuple[FakeDisk, Book], page: int
) -> None:
    fake, book = stopped
    (entry,) = manifest_of(fake).locations
    path = locations_path(LEDGERS, entry.file_id)
    fake.make_unreadable(path, page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
    with pytest.raises(StorageError, match=r"Input/output error.*rebuild-locations"):
        Life(fake, book)
    assert manifest_of(fake).damage == ()
    fake.make_unreadable(path, 0, 0)
    life = Life(fake, book)
    assert not life.replayed.is_damaged
    assert not life.replayed.lost_states
    assert life.ask(life.harness.read(1, 0)).entry is not None
    life.close()


def test_bytes_that_are_wrong_are_damage(stopped: tuple[FakeDisk, Book]) -> None:
    fake, book = stopped
    (entry,) = manifest_of(fake).locations
    fake.corrupt(locations_path(LEDGERS, entry.file_id), 2 * PAGE_BYTES + 10)
    life = Life(fake, book)
    assert life.replayed.lost_states
    assert manifest_of(fake).damage
    life.close()


@pytest.mark.parametrize("fault", ["eio", "short"])
def test_one_failure_in_replay_lets_no_refused_copy_in(fault: str) -> None:
    """INV-A5: a copy that was refused stands in the journal all the same; replay finds out anew."""
    with formatted() as pristine:
        known = Book()
        life = Life(pristine, known)
        for entry_id in range(4):
            life.add(1, entry_id, b"first %d" % entry_id)
        life.settle()
        life.flush()
        life.add(1, 2, b"another")
        life.settle()
        life.close()
        with pristine.copy() as fake:
            before = fake.operations()
            Life(fake, copy.deepcopy(known)).close()
            total = fake.operations() - before
        assert total > 20
        for nth in range(1, total + 1):
            with pristine.copy() as fake:
                fake.fault(nth=nth, **FAULTS[fault])
                # It may refuse to start, and starts the next time.
                with contextlib.suppress(OSError, Error):
                    Life(fake, copy.deepcopy(known)).close()
                fake.clear_faults()
                check_restart(fake, copy.deepcopy(known), f"{fault} at operation {nth} of {total}")


def test_a_replay_flushes_before_the_cache_is_full() -> None:
    """A flush of what was read goes on beside the reading of the rest; the mark moves with each."""
    with formatted() as fake:
        book = Book()
        life = Life(fake, book)
        for entry_id in range(12):
            life.add(1, entry_id, bytes([entry_id]) * 4096)
            life.settle()  # batches are not divided for an early flush
        life.close()
        life = Life(fake, book)
        # Of a cache of 128 KiB 48: never full, but flushed with 21, and with the rest at least.
        assert life.flusher.flushes >= 2
        assert len(manifest_of(fake).locations) >= 2
        for entry_id in range(12):
            assert life.ask(life.harness.read(1, entry_id)).entry is not None
        life.close()
        check_restart(fake, book, "after early flushes")


def test_only_the_first_flushes_of_a_replay_are_early() -> None:
    sizes = list(early_flushes(48 << 20))
    assert sizes == [8 << 20, 16 << 20] + [24 << 20] * (EARLY_FLUSHES - 2)
