"""Checkpoints: order, retries, what a failure leaves behind, deletions and their audit."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from fastbk.native.fake_disk import FOREVER, FakeDisk
from fastbk.native.store import FlushItems, LedgerState
from fastbk.storage.audit import AuditLog
from fastbk.storage.checkpoint import Change, Checkpoint, CheckpointFailed, CheckpointSettings
from fastbk.storage.manifest import Damage, ManifestSlots
from tests.fixtures.store_world import DIRECTORY, NO_ENTRY, OK, Life, World, entry_bytes


@pytest.fixture
def world() -> Iterator[World]:
    with FakeDisk() as fake:
        world = World(fake, CheckpointSettings(attempts_max=3, entry_log_size_bytes=1 << 20))
        world.birth()
        world.start()
        yield world
        world.end()


@pytest.fixture
def life(world: World) -> Life:
    assert world.life is not None
    return world.life


def items_of(*ids: tuple[int, int]) -> FlushItems:
    return FlushItems.from_entries([(*an_id, entry_bytes(*an_id)) for an_id in ids])


NOTHING = FlushItems.from_entries([])


def test_what_is_committed_is_not_searched_before_it_is_installed(world: World, life: Life) -> None:
    change = life.checkpoint.run(life.store, items_of((1, 0)), 5)
    assert change.manifest.mark == 5
    assert life.store.read(1, 0, 0).status == NO_ENTRY
    Checkpoint.install(life.store, change)
    assert life.store.read(1, 0, 0).status == OK


def test_installing_reads_no_disk(world: World, life: Life) -> None:
    """The main loop never waits for a disk (A15)."""
    change = life.checkpoint.run(life.store, items_of((1, 0)), 5)
    before = world.fake.operations()
    Checkpoint.install(life.store, change)
    assert world.fake.operations() == before


def test_a_mark_alone_writes_only_the_manifest(world: World, life: Life) -> None:
    change = life.checkpoint.run(life.store, NOTHING, 7, clean=True)
    assert change.add == ()
    manifest = ManifestSlots(life.disk, DIRECTORY).load()
    assert (manifest.mark, manifest.clean, manifest.locations) == (7, True, ())
    assert not life.checkpoint.run(life.store, NOTHING, 8).manifest.clean


def test_states_alone_need_no_log(world: World, life: Life) -> None:
    states = FlushItems.from_entries([], [LedgerState(4, flags=1)])
    world.take(life.checkpoint.run(life.store, states, 1))
    assert life.disk.list(f"{DIRECTORY}/logs") == []
    assert life.store.states(1) == [LedgerState(4, flags=1)]


def test_damage_is_remembered(world: World, life: Life) -> None:
    first, second = (
        Damage(what="journal", file_id=i, first_sequence=1, last_sequence=2, found_s=3)
        for i in (1, 2)
    )
    life.checkpoint.run(life.store, NOTHING, 1, damage=iter([first]))
    life.checkpoint.run(life.store, NOTHING, 2)
    life.checkpoint.run(life.store, NOTHING, 3, damage=[second])
    assert ManifestSlots(life.disk, DIRECTORY).load().damage == (first, second)


def test_a_log_is_appended_to_until_it_is_full(world: World) -> None:
    world.settings = CheckpointSettings(entry_log_size_bytes=20_000)
    life = world.start()
    for i in range(6):
        world.take(life.checkpoint.run(life.store, items_of((1, i)), i + 1))
    logs = life.checkpoint.manifest.logs
    # A header block, then one block a flush: full with the fourth.
    assert [(log.durable_bytes, log.sealed) for log in logs] == [(20480, True), (12288, False)]


def test_a_new_life_begins_a_new_log(world: World, life: Life) -> None:
    world.flush([(1, 0)])
    world.restart()
    world.flush([(1, 1)])
    assert world.life is not None
    assert [log.sealed for log in world.life.checkpoint.manifest.logs] == [True, False]


def test_a_failed_flush_begins_a_new_log(world: World, life: Life) -> None:
    world.flush([(1, 0)])
    world.fake.fault("fail", "sync", errno=errno.EIO)
    world.flush([(1, 1)])
    world.check()
    assert [log.log_id for log in life.checkpoint.manifest.logs] == [1, 2]
    world.check_files()


def test_attempts_are_bounded_and_wait_longer_each_time() -> None:
    waits: list[float] = []
    with FakeDisk() as fake:
        world = World(fake)
        world.birth()
        life = world.start()
        checkpoint = Checkpoint(
            life.disk,
            DIRECTORY,
            life.checkpoint._slots,
            life.checkpoint.manifest,
            CheckpointSettings(attempts_max=4, retry_delay_s=0.5),
            wait=waits.append,
        )
        fake.fault("fail", "create", times=FOREVER, errno=errno.ENOSPC)
        with pytest.raises(CheckpointFailed, match="No space left") as caught:
            checkpoint.run(life.store, items_of((1, 0)), 1)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.retryable
        assert waits == [0.5, 1.0, 2.0]
        fake.clear_faults()
        assert checkpoint.run(life.store, items_of((1, 0)), 1).manifest.mark == 1
        world.end()


def test_whoever_paces_a_flush_may_end_it(world: World, life: Life) -> None:
    class Stop(Exception):
        pass

    def pause(size_bytes: int) -> None:
        raise Stop

    world.settings = CheckpointSettings(step_bytes=4096)
    life = world.start()
    many = items_of(*((1, i) for i in range(400)))
    with pytest.raises(Stop):
        life.checkpoint.run(life.store, many, 1, pause=pause)
    assert life.disk.list(f"{DIRECTORY}/logs") == []
    paced: list[int] = []
    world.take(life.checkpoint.run(life.store, many, 1, pause=paced.append))
    assert paced == [4096]
    assert life.store.list(1).ranges == ((0, 399),)


def test_files_of_a_commit_in_doubt_stay_until_the_next_one(world: World) -> None:
    world.settings = CheckpointSettings(attempts_max=1)
    life = world.start()
    world.flush([(1, 0)])
    # log, locations, then the manifest's first slot
    world.fake.fault("fail", "sync", nth=3, errno=errno.EIO)
    world.flush([(1, 1)])
    assert world.committed == 1
    assert len(life.disk.list(f"{DIRECTORY}/locations")) == 2
    for mode in ("lose", "keep"):
        copy = World(world.fake.copy(), marks=world.marks, committed=1, attempted=2)
        copy.fake.restart(mode)
        copy.start()
        copy.check()
        copy.end()
    world.flush([(1, 2)])
    world.check()
    world.check_files()


def test_a_dead_log_goes_with_a_line_in_the_audit(world: World) -> None:
    world.settings = CheckpointSettings(entry_log_size_bytes=1)
    life = world.start()
    world.flush([(1, 0), (2, 0)])
    world.flush([(1, 1)])
    world.delete(1)
    assert [log.log_id for log in life.checkpoint.manifest.logs] == [1]
    assert life.store.read(2, 0, 0).status == OK
    assert life.store.read(1, 0, 0).status == NO_ENTRY
    (line,) = AuditLog(life.disk, DIRECTORY).read()
    assert line["deleted"] == f"{DIRECTORY}/logs/0000000000000002.log"
    assert line["reason"] == "deleted in metadata"
    world.delete(2)
    world.check_files()
    assert life.disk.list(f"{DIRECTORY}/logs") == []
    assert len(AuditLog(life.disk, DIRECTORY).read()) == 2


def test_nothing_is_deleted_without_its_line(world: World) -> None:
    world.settings = CheckpointSettings(entry_log_size_bytes=1)
    life = world.start()
    world.flush([(1, 0)])
    change = life.checkpoint.delete_ledgers(life.store, [1])
    assert change is not None
    Checkpoint.install(life.store, change)
    world.fake.fault("fail", "create", errno=errno.ENOSPC)
    assert "audit log" in life.checkpoint.clean_up(life.store, change)[0]
    assert life.disk.list(f"{DIRECTORY}/logs") == ["0000000000000001.log"]
    world.restart()
    world.flush([(3, 0)])
    world.check_files()


def test_deleting_no_ledgers_is_nothing(world: World, life: Life) -> None:
    assert life.checkpoint.delete_ledgers(life.store, []) is None


def test_deletion_without_any_file(world: World, life: Life) -> None:
    change = life.checkpoint.delete_ledgers(life.store, [1])
    assert isinstance(change, Change)
    world.take(change)
    world.flush([(1, 0)])
    assert life.store.read(1, 0, 0).status == OK


def test_states_of_deleted_ledgers_are_forgotten_in_time(world: World, life: Life) -> None:
    states = [
        LedgerState(1, flags=4, deleted_s=100),
        LedgerState(2, flags=4, deleted_s=200),
        LedgerState(3),
    ]
    world.take(life.checkpoint.run(life.store, FlushItems.from_entries([], states), 1))
    change = life.checkpoint.delete_ledgers(life.store, [1, 2], forget_deleted_before_s=150)
    assert change is not None
    world.take(change)
    assert life.store.states(change.add[0]) == states[1:]


def test_low_on_space() -> None:
    with FakeDisk() as fake:
        world = World(fake)
        world.birth()
        life = world.start()
        checkpoint = Checkpoint(
            life.disk,
            DIRECTORY,
            life.checkpoint._slots,
            life.checkpoint.manifest,
            CheckpointSettings(),
            free=lambda directory: 1000,
        )
        assert checkpoint.is_low_on_space(1001)
        assert not checkpoint.is_low_on_space(1000)
        world.end()


def test_the_audit_log_survives_a_torn_line() -> None:
    with FakeDisk() as fake:
        audit = AuditLog(fake.disk(), "/")
        assert audit.read() == []
        audit.append({"a": 1}, {"b": "ä"})
        disk = fake.disk()
        file = disk.open("/audit.log")
        disk.write_all(file, b'{"torn', disk.size(file))
        audit.append({"c": 2})
        audit.append()
        assert audit.read() == [{"a": 1}, {"b": "ä"}, {"c": 2}]
        fake.restart("lose")
        assert len(AuditLog(fake.disk(), "/").read()) == 3
