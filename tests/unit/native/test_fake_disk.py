"""The fake disk does to its user what it promises: the tests of everything stored stand on it."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from fastbk.native._bookie import ffi
from fastbk.native.disk import Disk
from tests.fixtures.fake_disk import FOREVER, FakeDisk, Snapshot
from tests.fixtures.os_errors import fails_with

SECTOR = 512
OLD, NEW = b"o" * (8 * SECTOR), b"n" * (8 * SECTOR)


@pytest.fixture
def fake() -> Iterator[FakeDisk]:
    with FakeDisk(seed=1) as made:
        yield made


def durable_file(disk: Disk, path: str, data: bytes) -> int:
    file = disk.open(path, create=True)
    disk.write_all(file, data, durable=True)
    disk.sync_directory("/")
    return file


def sectors(data: bytes) -> list[bytes]:
    return [data[i : i + SECTOR] for i in range(0, len(data), SECTOR)]


def contents_after(fake: FakeDisk, path: str, mode: str, seed: int = 0) -> bytes | None:
    """Return the file as a restart finds it; the fake disk itself stays as it is."""
    with fake.copy() as copy:
        copy.restart(mode, seed)
        try:
            return copy.disk().read_file(path)
        except FileNotFoundError:
            return None


def test_a_synced_write_survives_everything(fake: FakeDisk) -> None:
    disk = fake.disk()
    durable_file(disk, "x", OLD)
    fake.cut()
    for seed in range(20):
        assert contents_after(fake, "x", "random", seed) == OLD
    assert contents_after(fake, "x", "lose") == OLD


def test_an_unsynced_write_is_torn_by_sector(fake: FakeDisk) -> None:
    disk = fake.disk()
    file = durable_file(disk, "x", OLD)
    disk.write_all(file, NEW)
    assert disk.read(file, len(NEW)) == NEW
    assert contents_after(fake, "x", "lose") == OLD
    assert contents_after(fake, "x", "keep") == NEW
    seen = {contents_after(fake, "x", "random", seed) for seed in range(40)}
    assert len(seen) > 20
    for found in seen:
        assert found is not None
        assert set(sectors(found)) <= {OLD[:SECTOR], NEW[:SECTOR]}
    again = contents_after(fake, "x", "random", 7)
    assert again == contents_after(fake, "x", "random", 7)


def test_a_cut_comes_back_unless_it_was_synced(fake: FakeDisk) -> None:
    disk = fake.disk()
    file = durable_file(disk, "x", OLD)
    short = OLD[: 3 * SECTOR]
    fake.fault("fail", "truncate", errno=errno.EIO)
    with fails_with(errno.EIO):
        disk.cut("x", len(short))
    assert disk.size(file) == len(OLD)
    assert disk.cut("x", len(short)) == len(short)
    assert disk.read_file("x") == short
    assert contents_after(fake, "x", "lose") == OLD
    assert contents_after(fake, "x", "keep") == short
    assert {contents_after(fake, "x", "random", seed) for seed in range(20)} == {OLD, short}
    disk.sync(file)
    assert contents_after(fake, "x", "lose") == short
    disk.preallocate(file, len(short), len(OLD))
    assert contents_after(fake, "x", "lose") == short + bytes(len(OLD) - len(short))


def test_the_power_goes_with_a_cut(fake: FakeDisk) -> None:
    disk = fake.disk()
    durable_file(disk, "x", OLD)
    fake.fault("cut", "truncate")
    with fails_with(errno.ESHUTDOWN):
        disk.cut("x", SECTOR)
    assert contents_after(fake, "x", "lose") == OLD
    assert contents_after(fake, "x", "keep") == OLD[:SECTOR]


def test_a_name_needs_its_directory(fake: FakeDisk) -> None:
    disk = fake.disk()
    disk.write_all(disk.open("x", create=True), OLD, durable=True)
    assert contents_after(fake, "x", "lose") is None
    assert {contents_after(fake, "x", "random", seed) for seed in range(20)} == {None, OLD}
    disk.sync_directory("/")
    assert contents_after(fake, "x", "lose") == OLD
    disk.unlink("x")
    assert contents_after(fake, "x", "lose") == OLD
    disk.sync_directory("/")
    assert contents_after(fake, "x", "keep") is None


def test_rename_is_all_or_nothing(fake: FakeDisk) -> None:
    disk = fake.disk()
    durable_file(disk, "x", OLD)
    disk.write_all(disk.open("y", create=True), NEW, durable=True)
    disk.rename("y", "x")
    seen = set()
    for seed in range(40):
        found = contents_after(fake, "x", "random", seed)
        assert found in (OLD, NEW)
        assert contents_after(fake, "y", "random", seed) in (None, NEW)
        seen.add(found)
    assert seen == {OLD, NEW}


def test_a_file_in_a_directory_that_was_lost_is_lost(fake: FakeDisk) -> None:
    disk = fake.disk()
    disk.make_directory("d")
    disk.write_all(disk.open("d/x", create=True), OLD, durable=True)
    disk.sync_directory("d")
    assert contents_after(fake, "d/x", "lose") is None
    disk.sync_directory("/")
    assert contents_after(fake, "d/x", "lose") == OLD


@pytest.mark.parametrize("nth", range(1, 6))
def test_power_goes_at_any_operation(fake: FakeDisk, nth: int) -> None:
    disk = fake.disk()
    durable_file(disk, "x", OLD)
    fake.fault("cut", nth=nth)  # create, write, rename, sync of the directory; before: the unlink
    with fails_with(errno.ESHUTDOWN):
        disk.replace_file("x", NEW)
    assert fake.is_off
    with fails_with(errno.ESHUTDOWN):
        disk.read_file("x")
    for seed in range(20):
        assert contents_after(fake, "x", "random", seed) in (OLD, NEW)


def test_files_are_closed_by_a_restart(fake: FakeDisk) -> None:
    disk = fake.disk()
    file = durable_file(disk, "x", OLD)
    fake.restart("keep")
    with fails_with(errno.EBADF):
        disk.read(file, 1)
    assert disk.read_file("x") == OLD


def test_a_failed_write_has_done_anything(fake: FakeDisk) -> None:
    seen = set()
    for _ in range(20):
        disk = fake.disk()
        try:
            disk.unlink("x")
        except FileNotFoundError:
            pass
        file = durable_file(disk, "x", OLD)
        fake.fault("fail", "write", errno=errno.EIO)
        with fails_with(errno.EIO):
            disk.write_all(file, NEW, durable=True)
        seen.add(disk.read(file, len(NEW)))
    assert len(seen) > 5


def test_a_failed_sync_loses_for_good_what_a_second_one_claims(fake: FakeDisk) -> None:
    """INV-J2: the second sync says 0, the reads look fine, and the data is gone all the same."""
    disk = fake.disk()
    file = durable_file(disk, "x", OLD)
    disk.write_all(file, NEW)
    fake.fault("fail", "sync", errno=errno.EIO)
    with fails_with(errno.EIO):
        disk.sync(file)
    disk.sync(file)
    assert disk.read(file, len(NEW)) == NEW
    found = contents_after(fake, "x", "keep")
    assert found is not None
    assert found != NEW


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_lie_is_found_only_by_a_restart(fake: FakeDisk, kind: str) -> None:
    disk = fake.disk()
    file = durable_file(disk, "x", OLD)
    fake.fault("lie", kind)
    disk.write_all(file, NEW, durable=kind == "write")
    if kind == "sync":
        disk.sync(file)
    assert disk.read(file, len(NEW)) == NEW
    assert contents_after(fake, "x", "lose") == OLD


def test_short_reads_and_writes(fake: FakeDisk) -> None:
    disk = fake.disk()
    file = durable_file(disk, "x", OLD)
    fake.fault("short", "read")
    assert disk.read(file, len(OLD)) != OLD
    fake.fault("short", "write")
    with fails_with(errno.EIO):
        disk.write_all(file, NEW, durable=True)
    assert disk.read(file, len(OLD)) == NEW[: 4 * SECTOR] + OLD[4 * SECTOR :]


def test_faults_are_counted_by_kind_and_can_last(fake: FakeDisk) -> None:
    disk = fake.disk()
    file = durable_file(disk, "x", OLD)
    fake.fault("fail", "write", nth=3, times=2, errno=errno.ENOSPC)
    results = []
    for _ in range(6):
        disk.read(file, 1)  # other kinds do not count
        try:
            disk.write_all(file, b"y")
            results.append(0)
        except OSError as error:
            results.append(error.errno)
    assert results == [0, 0, errno.ENOSPC, errno.ENOSPC, 0, 0]
    fake.fault("fail", times=FOREVER, errno=errno.EIO)
    for _ in range(5):
        with fails_with(errno.EIO):
            disk.read(file, 1)
    fake.clear_faults()
    disk.read(file, 1)
    with pytest.raises(OSError, match="Invalid"):
        fake.fault("fail")  # without saying how


def test_capacity(fake: FakeDisk) -> None:
    fake.set_capacity(64 * 1024)
    disk = fake.disk()
    file = disk.open("x", create=True)
    disk.write_all(file, bytes(48 * 1024))
    for attempt in (
        lambda: disk.write_all(file, bytes(4096), 61 * 1024),
        lambda: disk.preallocate(file, 0, 65 * 1024),
    ):
        with fails_with(errno.ENOSPC):
            attempt()
    assert fake.used_bytes == 48 * 1024
    disk.write_all(file, bytes(4096), 0)  # no more room is needed for that
    disk.unlink("x")
    disk.write_all(disk.open("y", create=True), bytes(64 * 1024))


def test_locks_end_with_their_process(fake: FakeDisk) -> None:
    first, second = fake.disk(), fake.disk()
    first.open("x", create=True, lock=True)
    second.set_lock_timeout(10)
    with pytest.raises(TimeoutError):
        second.open("x", lock=True)
    first.destroy()
    second.open("x", lock=True)


def test_direct_files_want_whole_blocks(fake: FakeDisk) -> None:
    disk = fake.disk()
    file = disk.open("x", create=True, direct=True)
    disk.write_all(file, bytes(4096), 4096)
    for size, offset in ((4095, 0), (4096, 512)):
        with fails_with(errno.EINVAL):
            disk.write_all(file, bytes(size), offset)


def test_damage_at_rest(fake: FakeDisk) -> None:
    disk = fake.disk()
    file = durable_file(disk, "x", OLD)
    fake.corrupt("x", 10, 2, mask=1)
    assert disk.read(file, len(OLD)) == OLD[:10] + b"nn" + OLD[12:]
    assert contents_after(fake, "x", "lose") == OLD[:10] + b"nn" + OLD[12:]
    disk.write_all(file, OLD, len(OLD))
    fake.make_unreadable("x", 5000, 5001)
    assert disk.read(file, 4, 8) == b"oonn"
    with fails_with(errno.EIO):
        disk.read(file, 100, 4090)
    fake.make_unreadable("x", 0, 0)
    disk.read(file, 100, 4090)
    with pytest.raises(FileNotFoundError):
        fake.corrupt("nowhere", 0)


def test_log(fake: FakeDisk) -> None:
    disk = fake.disk()
    file = durable_file(disk, "x", OLD)
    fake.fault("fail", "sync", errno=errno.EIO)
    with fails_with(errno.EIO):
        disk.sync(file)
    events = fake.log()
    assert [event.kind for event in events] == ["create", "write", "sync_directory", "sync"]
    assert [event.number for event in events] == [1, 2, 3, 4]
    assert events[1].size_bytes == events[1].result == len(OLD)
    assert events[3].result == -errno.EIO
    assert events[1].file == events[3].file != 0
    assert fake.operations() == 4
    assert fake.operations("sync") == 1
    assert fake.log(3) == events[3:]


def test_several_disks_see_the_same_files(fake: FakeDisk) -> None:
    durable_file(fake.disk(), "x", OLD)
    assert fake.disk().read_file("./x") == OLD
    with fake.copy() as other:
        other.disk().unlink("x")
    assert fake.disk().read_file("/x") == OLD


# ---- copies and snapshots


def test_copies_are_independent_however_they_are_changed(fake: FakeDisk) -> None:
    disk = fake.disk()
    file = durable_file(disk, "x", OLD)
    with fake.copy() as first, fake.copy() as second, first.copy() as third:
        disk.write_all(file, NEW, 0)
        disk.write_all(file, NEW, 10 * SECTOR)
        first.corrupt("x", 0)
        third_disk = third.disk()
        third_disk.write_all(third_disk.open("x"), b"3", durable=True)
        assert disk.read_file("x")[: len(NEW)] == NEW
        assert first.disk().read_file("x") == bytes([OLD[0] ^ 0xFF]) + OLD[1:]
        assert second.disk().read_file("x") == OLD
        assert third_disk.read_file("x") == b"3" + OLD[1:]
        for copy in (first, second, third):
            copy.cut()
            copy.restart("lose")
        assert second.disk().read_file("x") == OLD
        assert third.disk().read_file("x") == b"3" + OLD[1:]
    assert disk.read_file("x")[: len(NEW)] == NEW
    fake.cut()
    fake.restart("lose")
    assert fake.disk().read_file("x") == OLD


def test_snapshots_show_each_moment_and_a_write_in_doubt() -> None:
    with FakeDisk(seed=4) as fake:
        disk = fake.disk()
        file = disk.open("x", create=True)
        disk.preallocate(file, 0, 4096)
        disk.sync_directory("/")
        word = ffi.new("uint64_t *", 5)
        fake.take_snapshots(1, 1, word)
        disk.write_all(file, b"a" * 4096, 0, durable=True)
        word[0] = 6
        disk.read(file, 10, 0)  # changes nothing: no moment
        disk.write_all(file, b"b" * 4096, 0, durable=True)
        fake.take_snapshots(1, 0)
        disk.write_all(file, b"c" * 4096, 0, durable=True)
        before, in_doubt, between, in_doubt_again = fake.snapshots()
        assert [one.watched for one in (before, in_doubt, between, in_doubt_again)] == [5, 5, 6, 6]
        assert before.moment + 3 == in_doubt_again.moment
        assert fake.moments == in_doubt_again.moment + 2
        assert resolved(before.disk) == {0}
        assert resolved(in_doubt.disk) == {0, ord("a")}
        assert resolved(between.disk) == {ord("a")}
        assert resolved(in_doubt_again.disk) == {ord("a"), ord("b")}
        assert not list(fake.snapshots())


def resolved(copy: FakeDisk) -> set[int]:
    """What the sectors of `x` hold after a crash; the copy is used up."""
    with copy:
        copy.restart("random", 9)
        disk = copy.disk()
        file = disk.open("x", read_only=True)
        return {disk.read(file, 1, at)[0] for at in range(0, 4096, 512)}


def test_snapshots_that_nobody_fetches_go_with_the_disk_and_are_bounded() -> None:
    with FakeDisk() as fake:
        disk = fake.disk()
        fake.take_snapshots(3, 2)
        for _ in range(3000):
            disk.sync_directory("/")
        moments = [one.moment for one in take_some(fake, 2)]
        assert moments == [3, 5]
        rest = list(fake.snapshots())
        assert len(rest) == 1024 - 2
        for one in rest:
            one.disk.destroy()


def take_some(fake: FakeDisk, count: int) -> list[Snapshot]:
    taken = []
    for snapshot in fake.snapshots():
        snapshot.disk.destroy()
        taken.append(snapshot)
        if len(taken) == count:
            break
    return taken
