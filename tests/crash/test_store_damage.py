"""Images with one changed byte, a cut-off end, an unreadable block: wrong bytes are never served, and "no such entry"
is never said of what may lie in the damaged part (INV-X1, A17)."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator

import pytest

from fastbk.errors import StorageError
from fastbk.native.ffi import CorruptDataError
from fastbk.native.hashes import crc32c
from fastbk.storage import maintenance
from fastbk.storage.checkpoint import CheckpointFailed
from fastbk.storage.manifest import ManifestSlots
from tests.fixtures import upkeep_at_once
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import (
    CANNOT_TELL,
    DIRECTORY,
    NO_ENTRY,
    OK,
    StoreHarness,
    entry_bytes,
)

pytestmark = pytest.mark.no_service

IDS = [(1, i) for i in range(0, 40, 2)] + [(2, 7), (2, 70_000), (5, 2**63 - 1)]
LATER = [(1, i) for i in range(1, 40, 2)] + [(3, 3)]
ABSENT = [(1, 40), (2, 8), (4, 0), (5, 0)]


def build(merged: bool) -> FakeDisk:
    world = StoreHarness(FakeDisk(seed=3))
    world.birth()
    world.start()
    world.flush(IDS)
    world.flush(LATER)
    if merged:
        world.flush([(9, 9)])
        assert world.life is not None
        world.merge()
        assert len(world.life.checkpoint.manifest.locations) == 1
    world.end()
    return world.fake


def files_of(fake: FakeDisk) -> list[tuple[str, int]]:
    disk = fake.disk()
    found = [f"{DIRECTORY}/manifest.0", f"{DIRECTORY}/manifest.1"]
    for folder in ("logs", "locations"):
        found += [f"{DIRECTORY}/{folder}/{name}" for name in disk.list(f"{DIRECTORY}/{folder}")]
    return [(path, len(disk.read_file(path))) for path in sorted(found)]


def judge(fake: FakeDisk) -> int:
    """Start on the image and read everything; return how many answers were "cannot tell"."""
    world = StoreHarness(fake)
    life = world.start()
    doubts = 0
    merged_too = [(9, 9)] if life.checkpoint.manifest.mark >= 3 else []
    for ledger_id, entry_id in IDS + LATER + merged_too:
        result = life.store.read(ledger_id, entry_id, entry_id)
        assert result.status in (OK, CANNOT_TELL), (ledger_id, entry_id, result)
        assert result.status != OK or result.entry == entry_bytes(ledger_id, entry_id)
        doubts += result.status == CANNOT_TELL
        ahead = life.store.read(ledger_id, entry_id, 2**63 - 1)
        assert ahead.status in (OK, CANNOT_TELL)
        assert ahead.status != OK or ahead.entry_id == entry_id, "an entry was passed over"
    for ledger_id, entry_id in ABSENT:
        assert life.store.read(ledger_id, entry_id, entry_id).status in (NO_ENTRY, CANNOT_TELL)
    for ledger_id in (1, 2, 3, 5):
        listed = life.store.list(ledger_id)
        assert listed.status in (OK, CANNOT_TELL)
        if listed.status == OK:
            ids = {i for low, high in listed.ranges for i in range(low, high + 1)}
            assert ids == {entry for ledger, entry in IDS + LATER if ledger == ledger_id}
    for entry in life.checkpoint.manifest.locations:
        try:
            states = life.store.states(entry.file_id)
            assert all(state.flags == 1 for state in states), "a fence was lost"
        except (CorruptDataError, OSError):
            doubts += 1
    world.end()
    return doubts


@pytest.fixture(autouse=True)
def small_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "MERGE_FILES_MIN", 3)


@pytest.fixture(params=[False, True], ids=["two_files", "merged"])
def image(request: pytest.FixtureRequest) -> Iterator[FakeDisk]:
    with build(request.param) as fake:
        yield fake


def with_each(image: FakeDisk, harm: Callable[[FakeDisk], None]) -> int:
    with image.copy() as copy:
        harm(copy)
        return judge(copy)


def test_the_whole_image_is_whole(image: FakeDisk) -> None:
    assert judge(image) == 0


def test_one_changed_byte(image: FakeDisk, rng: random.Random) -> None:
    doubts = {"manifest": 0, "logs": 0, "locations": 0}
    for path, size in files_of(image):
        kind = path.removeprefix(f"{DIRECTORY}/").split("/")[0].split(".")[0]
        for at in range(rng.randrange(61), size, 61):
            mask = rng.randrange(1, 256)
            doubts[kind] += with_each(image, lambda fake: fake.corrupt(path, at, 1, mask))  # noqa: B023
    assert doubts["manifest"] == 0, "either slot is enough"
    assert doubts["logs"] > 0
    assert doubts["locations"] > 0


def test_an_unreadable_block(image: FakeDisk) -> None:
    for path, size in files_of(image):
        for at in range(0, size, 4096):
            doubts = with_each(image, lambda fake: fake.make_unreadable(path, at, at + 4096))  # noqa: B023
            is_header = at == 0 and "/logs/" in path
            assert (doubts > 0) == ("manifest" not in path and not is_header), (path, at)


def test_a_missing_file(image: FakeDisk) -> None:
    for path, _ in files_of(image):
        doubts = with_each(image, lambda fake: fake.disk().unlink(path))  # noqa: B023
        assert (doubts > 0) == ("manifest" not in path)


def test_a_file_that_breaks_while_it_is_served(image: FakeDisk) -> None:
    """The file was whole at start: a block that can't be read later is "cannot tell", not "no"."""
    path = next(path for path, _ in files_of(image) if "/locations/" in path)
    world = StoreHarness(image)
    life = world.start()
    image.make_unreadable(path, 0, 1 << 30)
    statuses = {life.store.read(ledger, entry, entry).status for ledger, entry in IDS + LATER}
    assert CANNOT_TELL in statuses
    assert statuses <= {OK, CANNOT_TELL}
    image.make_unreadable(path, 0, 0)
    for ledger_id, entry_id in IDS + LATER:
        assert life.store.read(ledger_id, entry_id, entry_id).status == OK
    world.end()


def test_a_read_that_fails_once_is_tried_again(image: FakeDisk) -> None:
    world = StoreHarness(image)
    life = world.start()
    life.store.read(1, 0, 0)  # the log is open and its locations are cached
    for ledger_id, entry_id in [(2, 7), (3, 3)]:
        image.fault("fail", "read", errno=errno.EIO)
        assert life.store.read(ledger_id, entry_id, entry_id).status == OK
    world.end()


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("times", [2, 4])
def test_a_disk_that_does_not_read_for_a_moment_has_lost_nothing(
    image: FakeDisk, nth: int, times: int
) -> None:
    """Of a header, and of a block: at start what is damaged is remembered for good, so this is waited for."""
    world = StoreHarness(image)
    image.fault("fail", "read", errno=errno.EIO, nth=manifest_reads(image) + nth, times=times)
    life = world.start()
    assert life.damaged == set()
    for ledger_id, entry_id in IDS:
        assert life.store.read(ledger_id, entry_id, entry_id).status == OK
    world.end()


def manifest_reads(image: FakeDisk) -> int:
    """How many reads a start does before those of locations."""
    before = image.operations("read")
    ManifestSlots(image.disk(), DIRECTORY).load()
    return image.operations("read") - before


def test_files_of_another_bookie_are_not_served(image: FakeDisk) -> None:
    """Right names and checksums, another incarnation: nothing of it counts."""
    world = StoreHarness(image, incarnation=8)
    life = world.start()
    for ledger_id, entry_id in IDS:
        assert life.store.read(ledger_id, entry_id, entry_id).status == CANNOT_TELL
    world.end()


def test_damaged_files_are_not_merged_away(image: FakeDisk) -> None:
    path = next(path for path, _ in files_of(image) if "/locations/" in path)
    image.corrupt(path, 4096)
    world = StoreHarness(image)
    life = world.start()
    before = life.checkpoint.manifest
    assert upkeep_at_once.merge_all(life.checkpoint, life.store, [2]) is None
    with pytest.raises(CheckpointFailed, match="damaged"):
        upkeep_at_once.recount(life.checkpoint, life.store, [2])
    assert life.checkpoint.manifest == before
    assert ManifestSlots(image.disk(), DIRECTORY).load() == before
    world.attempted = world.committed = before.mark
    for i in range(4):
        world.flush([(8, i)])
        world.merge()
    assert world.committed == world.attempted
    assert life.checkpoint.manifest.locations[0].file_id in life.damaged
    assert life.store.read(8, 3, 3).status == OK
    assert life.store.read(99, 3, 3).status == CANNOT_TELL
    world.end()


def test_a_newer_version_is_refused(image: FakeDisk) -> None:
    disk = image.disk()
    for path, _ in files_of(image):
        if "/locations/" not in path:
            continue
        file = disk.open(path)
        header = bytearray(disk.read(file, 96))
        header[8] = 4
        header[92:96] = crc32c(bytes(header[:92])).to_bytes(4, "little")
        disk.write_all(file, bytes(header))
    with pytest.raises(StorageError, match="newer version"):
        StoreHarness(image).start()
