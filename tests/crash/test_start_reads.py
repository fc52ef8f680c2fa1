"""A disk that does not give a locations file's bytes at start: nothing is taken for lost that may come back (A17)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastbk.errors import StorageError
from fastbk.storage.directories import locations_path
from fastbk.storage.manifest import Manifest, ManifestSlots
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.storage_harness import LEDGERS, Book, Life, format_disk

pytestmark = pytest.mark.fast

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
