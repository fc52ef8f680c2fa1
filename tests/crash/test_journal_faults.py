"""Every operation of a journal's life, failed, torn or cut: what was published is there after a restart.

The workload rolls through files, recycles them behind a mark, and has two batches in flight that complete in any
order. Its records carry what they are, so a restart can tell which came back.
"""

from __future__ import annotations

import errno
import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fastbk.errors import Error
from fastbk.native.journal import JournalScan
from fastbk.server.journal.process import JournalLoop
from fastbk.storage.journal_files import ReplayEnd, conclude_replay, find_files, plan_replay
from fastbk.storage.journal_pool import JournalPool
from tests.fixtures.fake_disk import FakeDisk, operations_to_fault
from tests.fixtures.journal_harness import (
    CHECK,
    INCARNATION,
    KIND_ADD,
    KIND_ADD_BATCH,
    KIND_FENCE,
    RECOVERY,
    DirectJournal,
    JournalHarness,
    Put,
)

DIRECTORY = "/journal"
FILE_BYTES = 96 * 1024
WORKLOAD_SEED = 5
STRIDE = 9
"""Of the operations that are faulted; ALL=1 faults all."""
KIB = 1024

pytestmark = pytest.mark.no_service


@dataclass
class Life:
    """One start of the journal process, until it ends or fails."""

    harness: JournalHarness
    pool: JournalPool
    loop: JournalLoop
    failed: BaseException | None = None
    mark: int = 0


def begin(disk_of: FakeDisk, replayed: ReplayEnd | None = None) -> Life:
    disk = disk_of.disk()
    predecessor = {}
    if replayed is not None:
        predecessor = {
            "predecessor_file_id": replayed.predecessor_file_id,
            "predecessor_sequence": replayed.predecessor_sequence,
            "predecessor_crc": replayed.predecessor_crc,
            "next_record_sequence": replayed.next_record_sequence,
        }
    harness = JournalHarness(
        disk,
        worker_count=2,
        ring_bytes=256 * KIB,
        batch_size_bytes_max=32 * KIB,
        record_bytes_max=40 * KIB,
        journal_type=DirectJournal,
        second_batch_bytes_min=4 * KIB,
        quantum_bytes=8 * KIB,
        **predecessor,
    )
    assert harness.journal is not None
    pool = JournalPool(
        disk,
        DIRECTORY,
        next_file_id=replayed.next_file_id if replayed is not None else 1,
        file_size_bytes=FILE_BYTES,
        first_file_size_bytes=FILE_BYTES,
        limit_bytes=16 * FILE_BYTES,
        old_files=replayed.old_files if replayed is not None else (),
        in_background=False,
        retry_s=0.0,
    )
    return Life(harness, pool, JournalLoop(harness.journal, pool, 16 * FILE_BYTES))


def workload(life: Life, seed: int, first_entry: int = 0) -> None:
    """Adds, batches, recovery adds and fences of two workers; moves the mark; closes. Raises what the disk does."""
    rng = random.Random(seed)
    harness, loop = life.harness, life.loop
    assert harness.journal is not None
    harness.set_mark(life.mark)
    loop.roll()
    entry_id = first_entry
    for round_number in range(10):
        for _ in range(rng.randrange(4, 14)):
            worker = rng.randrange(2)
            what = rng.random()
            data = rng.randbytes(rng.choice([0, 7, 100, 1000, 9000]))
            if what < 0.7:
                harness.add(worker, entry_id, data, worker=worker)
            elif what < 0.85:
                harness.add_batch(worker, entry_id, [data, b"", data], worker=worker)
            elif what < 0.95:
                harness.add(worker, max(entry_id - 24, 0), data, worker=worker, flags=RECOVERY)
            else:
                harness.fence(1000 + entry_id, worker=worker)
            entry_id += 4
            if rng.random() < 0.5:
                step(life)
        while harness.journal.status.waiting_bytes or harness.journal.status.in_flight:
            step(life)
        if round_number % 3 == 2:
            # The index has flushed all but a little: what lies behind the mark is durable elsewhere.
            life.mark = max(life.mark, harness.journal.status.published_sequence - 3)
            harness.set_mark(life.mark)
            loop.poll_files()
    loop.drain()
    harness.look()


def step(life: Life) -> None:
    life.loop.step()
    life.harness.look()


def run(life: Life, seed: int, first_entry: int = 0) -> None:
    try:
        workload(life, seed, first_entry)
        life.pool.close()
    except (OSError, Error) as error:
        life.failed = error
    finally:
        life.harness.look()


def end(life: Life) -> None:
    life.harness.close()


def key_of(
    kind: int, ledger_id: int, entry_id: int, flags: int, payload: bytes
) -> tuple[int, int, int, int, bytes]:
    return kind, ledger_id, entry_id, flags, payload


def batch_of(life: Life, put: Put) -> int:
    """The batch in which a durable record lies."""
    for descriptor in life.harness.published.descriptors:
        if descriptor.ring_end[put.worker] > put.position:
            return descriptor.batch_sequence
    raise AssertionError("not published")


def replay(fake: FakeDisk, mark: int) -> tuple[ReplayEnd, list[tuple[int, int, int, int, bytes]]]:
    disk = fake.disk()
    plan = plan_replay(find_files(disk, DIRECTORY), mark, INCARNATION)
    ends, records, sequence = [], [], None
    for file in plan.files:
        with JournalScan(
            disk,
            file.path,
            file.file_id,
            INCARNATION,
            mark_sequence=mark,
            end_sequence=file.end_sequence,
            lock=True,
        ) as scan:
            for batch in scan:
                assert sequence is None or batch.sequence == sequence + 1, "dense over all files"
                sequence = batch.sequence
                records += [
                    key_of(each.kind, each.ledger_id, each.entry_id, each.flags, each.payload)
                    for each in batch.records()
                ]
            ends.append(scan.end)
    return conclude_replay(plan, ends), records


def check_restart(fake: FakeDisk, life: Life, note: str) -> ReplayEnd:
    """Everything published above the mark comes back, once and unchanged, and nothing that nobody wrote."""
    replayed, records = replay(fake, life.mark)
    assert not replayed.damage, f"{note}: {replayed.damage}"
    written = {
        key_of(put.kind, put.ledger_id, put.entry_id, put.flags, put.payload)
        for put in life.harness.puts
    }
    found = set(records)
    assert found <= written, f"{note}: records that nobody wrote"
    for put in life.harness.durable():
        if batch_of(life, put) <= life.mark:
            continue
        key = key_of(put.kind, put.ledger_id, put.entry_id, put.flags, put.payload)
        assert key in found, f"{note}: a published record is lost: {put.ledger_id}:{put.entry_id}"
    assert replayed.predecessor_sequence >= max(life.mark, last_published(life)), note
    return replayed


def last_published(life: Life) -> int:
    descriptors = life.harness.published.descriptors
    return descriptors[-1].batch_sequence if descriptors else 0


def fresh_disk(seed: int) -> FakeDisk:
    fake = FakeDisk(seed=seed)
    disk = fake.disk()
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    return fake


def faults() -> Iterator[tuple[str, dict[str, object], str]]:
    yield "fail", {"errno": errno.EIO}, "random"
    yield "fail", {"errno": errno.ENOSPC}, "keep"
    yield "short", {}, "random"
    yield "cut", {}, "lose"
    yield "cut", {}, "keep"
    yield "cut", {}, "random"


@functools.cache
def operations_of(delivery: str, seed: int) -> int:
    with fresh_disk(seed) as fake:
        before = fake.operations()
        fake.deliver(delivery)
        life = begin(fake)
        run(life, seed)
        assert life.failed is None
        # The workload is worth its name.
        assert life.pool.recycled >= 1
        assert life.pool.made >= 2
        verdicts = {life.harness.verdict(put) for put in life.harness.puts}
        assert verdicts >= {0, CHECK}
        kinds = {put.kind for put in life.harness.puts}
        assert kinds >= {KIND_ADD, KIND_ADD_BATCH, KIND_FENCE}
        check_restart(fake, life, "no fault")
        end(life)
        return fake.operations() - before


@pytest.mark.parametrize("delivery", ["at_once", "newest_first", "shuffled"])
@pytest.mark.parametrize(("action", "how", "restart"), list(faults()))
def test_every_operation(
    action: str, how: dict[str, int], restart: str, delivery: str, seed: int
) -> None:
    """P28 among them: a batch of the new file is written, the older one of the file before fails or is cut."""
    count = operations_of(delivery, WORKLOAD_SEED)
    assert count > 60
    for nth in operations_to_fault(count, STRIDE, seed):
        note = f"{action} {how} at operation {nth} of {count}, {delivery}, restart {restart}"
        with fresh_disk(WORKLOAD_SEED) as fake:
            fake.deliver(delivery)
            life = begin(fake)
            fake.fault(action, nth=nth, **how)
            run(life, WORKLOAD_SEED)
            fake.clear_faults()
            if not fake.is_off:
                fake.cut()
            fake.restart(restart, seed=nth)
            replayed = check_restart(fake, life, note)
            end(life)
            # A second life on what is left, and its clean end: dense, no damage, nothing taken twice.
            second = begin(fake, replayed)
            second.mark = replayed.predecessor_sequence
            run(second, WORKLOAD_SEED + 1, first_entry=10_000)
            assert second.failed is None, note
            check_restart(fake, second, f"{note}, second life")
            end(second)
