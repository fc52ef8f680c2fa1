"""Every operation of a few workloads meets a fault; then the disk is looked at as a restart finds it.

The workloads flush, merge, delete and restart. Whatever fails or is cut: everything that the manifest's mark promises
is there byte by byte, nothing else is served, and the next checkpoint works and leaves no file behind that is not
named (INV-X2, INV-X3).
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Iterator

import pytest

from fastbk.storage import maintenance
from fastbk.storage.checkpoint import CheckpointSettings
from fastbk.storage.manifest import ManifestLost
from tests.fixtures.fake_disk import FakeDisk, operations_to_fault
from tests.fixtures.store_harness import DIRECTORY, StoreHarness

pytestmark = pytest.mark.no_service

FAULTS = {
    "cut": {"action": "cut"},
    "eio": {"action": "fail", "errno": errno.EIO},
    "enospc": {"action": "fail", "errno": errno.ENOSPC},
    "eio_often": {"action": "fail", "errno": errno.EIO, "times": 4},
    "short": {"action": "short"},
}
STRIDE = 7
"""Of the operations that are faulted; ALL=1 faults all. The rig `disk` draws thousands more."""
NEVER = [(1, 99), (50, 0), (2, 2**63 - 1)]


@pytest.fixture(autouse=True)
def small_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges after three files."""
    monkeypatch.setattr(maintenance, "MERGE_FILES_MIN", 3)


def flush_and_merge(world: StoreHarness) -> Iterator[Callable[[], None]]:
    yield lambda: world.flush([(1, 0), (1, 1), (2, 5)])
    yield lambda: world.flush([(1, 2), (3, 0), (3, 1)])
    yield lambda: world.flush([(1, 4), (2, 6)])
    yield world.merge
    yield lambda: world.flush([(1, 3), (9, 2**62)])


def rolls_of_the_log(world: StoreHarness) -> Iterator[Callable[[], None]]:
    yield lambda: world.flush([(4, i) for i in range(150)])
    yield lambda: world.flush([(4, i) for i in range(150, 300)])
    yield lambda: world.flush([(5, 0)])


def restarts(world: StoreHarness) -> Iterator[Callable[[], None]]:
    yield lambda: world.flush([(1, 0), (2, 0)])
    yield world.restart
    yield lambda: world.flush([(1, 1), (2, 1)])
    yield world.restart
    yield lambda: world.flush([(1, 2)])


def deletions(world: StoreHarness) -> Iterator[Callable[[], None]]:
    yield lambda: world.flush([(1, 0), (2, 0)])
    yield world.restart
    yield lambda: world.flush([(2, 1), (3, 0)])
    yield lambda: world.delete(1)
    yield lambda: world.delete(2, 77)
    yield lambda: world.flush([(3, 1)])


def compactions(world: StoreHarness) -> Iterator[Callable[[], None]]:
    yield lambda: world.flush([(1, 0), (2, 0), (3, 0)])
    yield world.restart
    yield lambda: world.flush([(1, 1), (2, 1), (4, 0)])
    yield world.restart
    yield lambda: world.flush([(1, 2), (5, 5)])
    yield lambda: world.delete(2)
    yield world.compact
    yield lambda: world.flush([(1, 3)])
    yield world.merge_all
    yield world.restart
    yield world.compact


WORKLOADS = {
    workload.__name__: workload
    for workload in (flush_and_merge, rolls_of_the_log, restarts, deletions, compactions)
}


def play(workload: str, fault: str | None, nth: int, attempts_max: int = 1) -> StoreHarness:
    """Run the workload with the fault at its nth operation; it ends early when the power is cut."""
    world = StoreHarness(
        FakeDisk(seed=nth),
        CheckpointSettings(attempts_max=attempts_max, entry_log_size_bytes=40_000),
    )
    world.birth()
    world.start()
    if fault is not None:
        world.fake.fault(nth=nth, **FAULTS[fault])  # type: ignore[arg-type]
    for step in WORKLOADS[workload](world):
        try:
            if world.life is None:
                world.restart()  # the start of the step before failed: again
            step()
        except (OSError, ManifestLost):
            assert world.life is None or world.fake.is_off  # only a start may fail like this
        if world.fake.is_off:
            break
    world.fake.clear_faults()
    return world


@functools.cache
def operations_of(workload: str) -> int:
    world = StoreHarness(FakeDisk())
    world.birth()
    world.start()
    before = world.fake.operations()
    for step in WORKLOADS[workload](world):
        step()
    after = world.fake.operations()
    world.check(NEVER)
    world.check_files()
    world.end()
    world.fake.destroy()
    return after - before


def look_after(world: StoreHarness, mode: str, seed: int) -> None:
    """The state after a restart is right, and work goes on from it."""
    world.end()
    world.fake.restart(mode, seed)
    world.start()
    world.check(NEVER)
    world.replay()
    world.flush([(60, 0)])
    assert world.committed == world.attempted
    world.check(NEVER)
    world.check_files()
    world.restart()
    world.check(NEVER)
    world.end()
    world.fake.destroy()


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_operation(workload: str, fault: str, seed: int) -> None:
    """P29 among them: the mark is in the manifest, whose two slots are cut and torn at every write."""
    for nth in operations_to_fault(operations_of(workload), STRIDE, seed):
        # Only a cut leaves much to chance; else a kill follows a while later.
        for mode in ("lose", "keep", "random") if fault == "cut" else ("random",):
            look_after(play(workload, fault, nth), mode, seed=nth)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_failed_flush_is_tried_again(workload: str, seed: int) -> None:
    for nth in operations_to_fault(operations_of(workload), STRIDE, seed):
        world = play(workload, "eio", nth, attempts_max=3)
        assert world.pending == [] or workload in ("restarts", "deletions", "compactions")
        look_after(world, "random", seed=nth)


def test_a_full_disk_loses_nothing_and_recovers() -> None:
    world = StoreHarness(FakeDisk())
    world.birth()
    world.start()
    world.flush([(1, i) for i in range(50)])
    used = world.fake.used_bytes
    for room in range(0, 80_000, 4096):
        world.fake.set_capacity(used + room)
        world.flush([(2, room), (3, room)])
        if world.committed == world.attempted:
            used = world.fake.used_bytes
    world.fake.set_capacity(0)
    world.flush([])
    assert world.committed == world.attempted
    world.check()
    world.check_files()
    look_after(world, "lose", 0)


def test_locations_never_point_behind_what_is_synced() -> None:
    """The same, seen from the order of operations: log synced, locations synced, folder synced, then the manifest."""
    world = StoreHarness(FakeDisk())
    world.birth()
    life = world.start()
    before = world.fake.operations()
    world.flush([(1, 0)])
    kinds = [
        event.kind
        for event in world.fake.log(before)
        if event.kind in ("sync", "sync_directory", "write")
    ]
    # log, logs/; locations, its header, locations/; the slot that was believed; first slot; second slot
    assert kinds == [
        "write", "sync", "sync_directory",
        "write", "write", "sync", "sync_directory",
        "write", "sync", "sync_directory",
        "write", "sync", "write", "sync",
    ]  # fmt: skip
    assert life.disk.list(f"{DIRECTORY}/locations") == ["0000000000000001.loc"]
    world.end()
