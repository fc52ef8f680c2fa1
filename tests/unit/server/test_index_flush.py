"""The flush thread, the flusher's decisions when disks fail, gc's port, and a real directory."""

from __future__ import annotations

import errno
import json
import random
import select
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from fastbk.inspect.index_files import read_entry_log
from fastbk.inspect.items import FileReader, Item
from fastbk.native.scrub import LogScan
from fastbk.native.segment import Segment, Stats
from fastbk.observe.names import SLOTS
from fastbk.server.gc_messages import Space
from fastbk.server.index import maintenance
from fastbk.server.index.background import FlushThread, Task
from fastbk.server.index.flush import Flusher
from fastbk.server.index.gc_port import GcPort, HeldCheck
from fastbk.storage.checkpoint import CheckpointFailed
from fastbk.storage.commits import DeletionLog
from fastbk.storage.directories import LOCATIONS, log_path
from fastbk.storage.maintenance import MERGE_FILES_MIN
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import NO_LEDGER, OK
from tests.fixtures.storage_harness import (
    INCARNATION,
    LEDGERS,
    Book,
    Life,
    first_life,
    format_disk,
    formatted_disk,
)

if TYPE_CHECKING:
    from pathlib import Path


fake = formatted_disk
life = first_life


def wait_readable(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(10_000), "no result within 10 s"


def test_jobs_run_in_order_in_one_thread_and_errors_are_results() -> None:
    beats: list[str] = []
    jobs = FlushThread(lambda: beats.append("beat"))
    names = []

    def fail() -> None:
        raise OSError(errno.EIO, "x")

    jobs.submit("a", threading.get_ident)
    jobs.submit("b", fail)
    jobs.submit("c", threading.get_ident)
    results: list[tuple[str, object]] = []
    while len(results) < 3:
        wait_readable(jobs.fd)
        results += jobs.results()
    names = [name for name, _ in results]
    assert names == ["a", "b", "c"]
    assert results[0][1] == results[2][1] != threading.get_ident()
    assert isinstance(results[1][1], OSError)
    jobs.stop()
    assert len(beats) == 6, "two a job: odd while one is under way, whatever becomes of it"


def test_a_flush_in_a_thread_while_the_index_goes_on(life: Life) -> None:
    jobs = FlushThread()
    flusher = Flusher(life.index, life.store, life.checkpoint, jobs, life.disks[0], LEDGERS)
    for n in range(50):
        life.add(1, n, bytes(300))
    life.settle()
    flusher.begin()
    assert flusher.is_busy
    assert life.ask(life.harness.read(1, 7)).status == OK, "sealed, and still readable"
    life.add(1, 50, b"meanwhile")
    life.settle()
    while flusher.is_busy:
        wait_readable(jobs.fd)
        flusher.poll()
    assert life.harness.mark > 0
    for n in (0, 50):
        assert life.ask(life.harness.read(1, n)).status == OK
    jobs.stop()


def test_a_failed_flush_keeps_everything_and_is_tried_again(fake: FakeDisk, life: Life) -> None:
    for n in range(20):
        life.add(1, n, bytes(300))
    life.settle()
    mark = life.harness.mark
    fake.fault("fail", "sync", times=1 << 40, errno=errno.EIO)
    life.flusher.begin()
    life.flusher._take_results()
    assert "flush" in life.flusher.failure
    assert life.harness.mark == mark
    assert life.ask(life.harness.read(1, 3)).status == OK
    with pytest.raises(CheckpointFailed):
        life.flusher.flush_now()
    fake.clear_faults()
    life.flusher.poll()
    life.flusher.poll()
    assert not life.flusher.is_busy
    assert life.flusher.failure == ""
    assert life.harness.mark > mark


def test_whoever_waits_for_a_failed_flush_has_it_tried_at_once(fake: FakeDisk, life: Life) -> None:
    """A drain does not look again in a while: it would wait for a result that nobody is at work for."""
    jobs = FlushThread()
    flusher = Flusher(life.index, life.store, life.checkpoint, jobs, life.disks[0], LEDGERS)
    life.add(1, 0, bytes(300))
    life.settle()
    fake.fault("fail", "sync", times=1 << 40, errno=errno.EIO)
    flusher.begin()
    while not flusher.failure:
        wait_readable(jobs.fd)
        flusher._take_results()
    fake.clear_faults()
    done = threading.Thread(target=flusher.flush_now, daemon=True)
    done.start()
    done.join(10)
    assert not done.is_alive()
    assert not flusher.is_busy
    assert flusher.flushes == 2
    jobs.stop()


def delete(life: Life, *ledger_ids: int) -> None:
    life.flusher.delete_ledgers(ledger_ids, "gone from metadata")
    life.flush()


def test_deletion_is_written_down_before_it_happens(fake: FakeDisk, life: Life) -> None:
    life.add(1, 0, bytes(300))
    life.add(2, 0, bytes(300))
    life.settle()
    life.flush()
    live_bytes = life.checkpoint.manifest.logs[0].live_bytes
    assert life.flusher.delete_ledgers([1, 77], "gone from metadata") == 1
    assert life.flusher.wants_flush
    life.flush()
    assert life.checkpoint.manifest.logs[0].live_bytes == live_bytes // 2
    assert list(life.flusher.upkeep.deleted) == [1]
    disk = fake.disk()
    events = DeletionLog(disk, LEDGERS).read()
    assert {"ledgers": [1, 77], "reason": "gone from metadata"}.items() <= events[0].items()
    life.close()
    again = Life(fake, Book())
    try:
        assert again.ask(again.harness.read(1, 0)).status == NO_LEDGER
        assert again.ask(again.harness.read(2, 0)).status == OK
    finally:
        again.close()


def test_nothing_goes_without_its_line_in_the_deletion_log(fake: FakeDisk, life: Life) -> None:
    life.add(1, 0, bytes(300))
    life.settle()
    life.flush()
    fake.fault("fail", "create", errno=errno.ENOSPC)  # the deletion log's file
    delete(life, 1)
    assert DeletionLog(fake.disk(), LEDGERS).read() == []
    assert not life.flusher.upkeep.deleted
    assert life.checkpoint.manifest.logs[0].live_bytes
    life.add(2, 0, bytes(300))
    life.settle()
    life.flush()
    assert DeletionLog(fake.disk(), LEDGERS).read()[0]["ledgers"] == [1]
    assert list(life.flusher.upkeep.deleted) == [1]


def test_a_deletion_that_a_stop_cut_off_is_gone_on_with(fake: FakeDisk, life: Life) -> None:
    life.add(1, 0, bytes(300))
    life.add(2, 0, bytes(300))
    life.settle()
    life.flush()
    live_bytes = life.checkpoint.manifest.logs[0].live_bytes
    life.flusher.delete_ledgers([1], "test")
    life.flusher._index.seal()
    life.checkpoint.run(life.store, life.index.sealed().contents, life.harness.mark)
    life.close()
    again = Life(fake, Book())
    assert again.checkpoint.manifest.logs[0].live_bytes == live_bytes
    again.flusher.resume_leftovers()
    again.flush()
    assert again.checkpoint.manifest.logs[0].live_bytes == live_bytes // 2
    again.close()


def test_a_compaction_on_request(fake: FakeDisk, life: Life) -> None:
    for ledger_id in (1, 2):
        life.add(ledger_id, 0, bytes(300))
    life.settle()
    life.flush()
    life.close()
    life = Life(fake, Book())  # the log of the life before is sealed
    life.add(3, 0, bytes(300))
    life.settle()
    life.flush()
    delete(life, 1)
    first = life.checkpoint.manifest.logs[0]
    assert not life.flusher.upkeep.compact([99], 1 << 20, 60.0), "no such log"
    assert life.flusher.upkeep.compact([first.log_id], 1 << 40, 60.0)
    life.flush()
    status = life.flusher.upkeep.compaction
    assert not status.running
    assert not status.error
    assert status.moved_bytes == first.live_bytes // 2 or status.moved_bytes == first.live_bytes
    logs = life.checkpoint.manifest.logs
    assert first.log_id not in [log.log_id for log in logs]
    assert [log.kind for log in logs] == ["flush", "compaction"]
    for ledger_id in (2, 3):
        assert life.ask(life.harness.read(ledger_id, 0)).status == OK
    events = DeletionLog(fake.disk(), LEDGERS).read()
    assert "compacted into" in str(events[-1]["reason"])
    life.close()


def test_a_log_that_could_not_be_read_is_refused_at_once_and_keeps_nobody_busy(
    fake: FakeDisk, life: Life
) -> None:
    life.add(1, 0, bytes(300))
    life.settle()
    life.flush()
    life.close()
    life = Life(fake, Book())  # the log of the life before is sealed
    life.add(2, 0, bytes(300))
    life.settle()
    life.flush()
    upkeep = life.flusher.upkeep
    first = life.checkpoint.manifest.logs[0].log_id
    fake.disk().unlink(log_path(LEDGERS, first))
    assert upkeep.compact([first], 1 << 40, 60.0)
    life.flush()
    assert "none of these" in upkeep.compaction.error
    reads = fake.operations()
    assert upkeep.compact([first], 1 << 40, 60.0), "or it would be asked for again and again"
    assert not upkeep.compaction.running
    assert "left alone" in upkeep.compaction.error
    assert fake.operations() == reads
    life.close()


def test_copies_are_dropped_once_nothing_can_bring_them_back(life: Life) -> None:
    for ledger_id in (1, 2):
        life.add(ledger_id, 0, bytes(300))
    life.settle()
    life.flush()
    live_bytes = life.checkpoint.manifest.logs[0].live_bytes
    ids, changed, _ = life.index.list_settled(0)
    marks = dict(zip(ids, changed, strict=True))
    assert life.flusher.drop_ledgers([1], [marks[1]], "not ours any more") == 1
    life.flush()
    life.flush()
    assert life.checkpoint.manifest.logs[0].live_bytes == live_bytes // 2, (
        "the room can be won back"
    )
    assert life.store.ledger_bytes(1) == {}
    assert life.store.cached(1, 0) is None
    assert life.index.list_settled(0)[0] == [2]
    assert life.ask(life.harness.read(2, 0)).status == OK


def test_what_is_dropped_in_pages_costs_one_merge(life: Life) -> None:
    ledger_ids = range(1, 9)
    for ledger_id in ledger_ids:
        life.add(ledger_id, 0, bytes(300))
    life.settle()
    life.flush()
    ids, changed, _ = life.index.list_settled(0)
    upkeep = life.flusher.upkeep
    for one, mark in zip(ids, changed, strict=True):
        assert upkeep.drop([one], [mark]) == 1
    merges = life.checkpoint.drops
    for _ in range(4):
        life.flush()
    assert life.checkpoint.drops == merges + 1
    assert life.index.list_settled(0)[0] == []
    assert all(life.store.ledger_bytes(ledger_id) == {} for ledger_id in ledger_ids)


def test_no_merge_takes_what_lies_below_the_floor(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A13: that is for what was acknowledged. When no flush could begin any more, merges have to."""
    life.room_bytes = lambda: 1 << 10
    for entry_id in range(2 * MERGE_FILES_MIN):
        life.add(1, entry_id, bytes(300))
        life.settle()
        life.flush()
    assert len(life.checkpoint.manifest.locations) == 2 * MERGE_FILES_MIN
    assert sorted(life.disks[0].list(f"{LEDGERS}/locations")) == [
        LOCATIONS.name(entry.file_id) for entry in life.checkpoint.manifest.locations
    ]
    monkeypatch.setattr(maintenance, "LAG_FILES_MAX", MERGE_FILES_MIN)
    life.flusher.poll()
    life.flusher.poll()
    assert len(life.checkpoint.manifest.locations) == 1
    life.room_bytes = lambda: 1 << 30
    for entry_id in range(100, 100 + 2 * MERGE_FILES_MIN):
        life.add(1, entry_id, bytes(300))
        life.settle()
        life.flush()
    assert len(life.checkpoint.manifest.locations) < MERGE_FILES_MIN


def test_a_compaction_that_keeps_too_many_files_from_being_merged_is_stopped(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry_id in range(2):  # the log of the first is sealed
        life.add(1, entry_id, bytes(300))
        life.settle()
        life.flush()
        life.checkpoint.commits.current_log = None
    held: list[Task] = []
    monkeypatch.setattr(life.flusher.upkeep._background, "submit", held.append)
    assert life.flusher.upkeep.compact([1], 1 << 20, 60.0)
    (compaction,) = held
    monkeypatch.setattr(
        maintenance, "LAG_FILES_MAX", 2 * len(life.checkpoint.manifest.locations) + 2
    )
    life.flusher.poll()
    assert not compaction.is_stopped
    life.add(2, 0, bytes(300))
    life.settle()
    life.flush()
    assert compaction.is_stopped
    life.checkpoint.abandon(life.store, compaction.plan)  # type: ignore[arg-type]


def test_no_flush_begins_while_merges_lag(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not life.flusher.is_busy
    monkeypatch.setattr(maintenance, "LAG_FILES_MAX", 0)
    assert life.flusher.is_busy


def test_gc_s_port(life: Life) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    space = Space(free_bytes=5, total_bytes=9, floor_bytes=1, is_full=False)
    port = GcPort(
        ours.detach(),
        life.index,
        life.flusher,
        life.checkpoint,
        lambda: space,
        HeldCheck(life.store),
    )
    for n in range(5):
        life.add(n, 0, b"x")
    life.settle()

    def ask(**request: object) -> dict:
        theirs.send(json.dumps(request).encode())
        port.poll()
        reply: dict = json.loads(theirs.recv(1 << 20))
        return reply

    assert ask(type="list_ledgers")["ids"] == []
    assert ask(type="list_unconfirmed")["changed"] == [0] * 5
    assert ask(type="confirm_ledgers", listed=[[n, 0, None] for n in range(5)])["ids"] == []
    page = ask(type="list_ledgers", cursor=0)
    assert sorted(page["ids"]) == [0, 1, 2, 3, 4]
    assert ask(type="list_ledgers", cursor=page["cursor"])["ids"] == []
    deleted = ask(type="delete_ledgers", ids=[3, 99], reason="test", number=7)
    assert deleted == {"type": "deleted", "count": 1, "number": 7}
    assert sorted(ask(type="list_ledgers")["ids"]) == [0, 1, 2, 4]
    life.flush()
    usage = ask(type="usage")
    assert usage["logs"][0]["live_bytes"] > 0
    assert ask(type="usage", cursor=usage["cursor"])["logs"] == []
    assert ask(type="space")["space"]["free_bytes"] == 5
    settled = ask(type="list_settled")
    assert sorted(settled["ids"]) == [0, 1, 2, 4]
    assert len(settled["changed"]) == 4
    assert ask(type="what")["type"] == "unknown"
    theirs.close()
    port.poll()
    assert not port.is_open
    port.close()


# What a flush writes from where it lies in the write cache (INV-A6) reads back as what a flush
# copies.


KIB = 1024
ROUNDS = 3


def data_of(ledger_id: int, entry_id: int) -> bytes:
    size = 200 + (entry_id * 37 + ledger_id) % 1500
    return random.Random(ledger_id << 32 | entry_id).randbytes(size)


def life_of(fake: FakeDisk) -> Life:
    options = {
        "cache_bytes": KIB * KIB,
        "cache_reserve_bytes": 64 * KIB,
        "flush_used_bytes": 1 << 30,
    }
    return Life(fake, Book(), **options)


def add_some(life: Life, first: int, count: int) -> list[tuple[int, int]]:
    """Add to three ledgers in turn, of which one has gaps and one late entries, and to many with one entry each."""
    added = []
    for n in range(first, first + count):
        several = [(1, n), (2, 3 * n), (3, n ^ 1), (100 + n, 0)]
        for ledger_id, entry_id in several:
            life.add(ledger_id, entry_id, data_of(ledger_id, entry_id))
        added += several
        if n % 8 == 0:
            life.settle()
    life.settle()
    return added


def check_all(life: Life, added: list[tuple[int, int]]) -> None:
    for ledger_id, entry_id in added:
        answer = life.ask(life.harness.read(ledger_id, entry_id))
        assert (answer.status, ledger_id, entry_id) == (OK, ledger_id, entry_id)
        assert answer.entry.endswith(data_of(ledger_id, entry_id))


def flushed_bytes(life: Life) -> tuple[int, int]:
    """Return what flushes wrote in place, and what they copied."""
    counters = Stats(Segment(life.harness.memory.fd, "index")).counters()
    names = ("FBK_C_INDEX_ENTRY_BYTES", "FBK_C_INDEX_FLUSH_COPIED_BYTES")
    taken_in, copied = (counters[SLOTS[name]] for name in names)
    return taken_in - copied, copied


def damage_in(raw: bytes, durable_bytes: int, path: Path) -> list[Item]:
    """Return the damage that `fastbk inspect` finds in a log of these bytes."""
    path.write_bytes(raw)
    return [item for item in read_entry_log(FileReader(path), durable_bytes) if item.is_damage]


def check_logs(life: Life, entry_count: int, folder: Path) -> None:
    """Every entry is found in whole runs by the logs alone, and nothing but zeros lies between them.

    `fastbk inspect` says so, too, and finds the largest run when zeros take its place.
    """
    found = 0
    for log in life.checkpoint.manifest.logs:
        path = log_path(LEDGERS, log.log_id)
        with LogScan(
            life.disks[0], path, log.log_id, INCARNATION, salt=log.salt, end_bytes=log.durable_bytes
        ) as scan:
            runs = list(scan)
            assert scan.status.skipped_bytes == 0
        assert not any(run.damaged for run in runs)
        found += sum(run.entry_count for run in runs)
        raw = life.disks[0].read_file(path)
        assert damage_in(raw, log.durable_bytes, folder / "log") == []
        largest = max(runs, key=lambda run: run.size_bytes)
        end = largest.offset_bytes + largest.size_bytes
        zeroed = raw[: largest.offset_bytes] + bytes(largest.size_bytes) + raw[end:]
        assert damage_in(zeroed, log.durable_bytes, folder / "log") != []
    assert found == entry_count


def test_entries_written_in_place_and_copied_ones_read_back_alike(tmp_path: Path) -> None:
    with FakeDisk(seed=3) as fake:
        format_disk(fake)
        life = life_of(fake)
        added = []
        for number in range(ROUNDS):
            added += add_some(life, 100 * number, 100)
            life.flush()
        in_place, copied = flushed_bytes(life)
        assert in_place > copied / 2 > 0
        check_logs(life, len(added), tmp_path)
        life.close()
        again = life_of(fake)
        check_all(again, added)
        again.close()


@pytest.mark.parametrize("what", ["write", "sync"])
def test_a_flush_that_failed_is_laid_out_for_its_next_place(what: str, tmp_path: Path) -> None:
    """The runs' headers name the place that they lie at: another attempt has other ones."""
    with FakeDisk(seed=4) as fake:
        format_disk(fake)
        life = life_of(fake)
        added = add_some(life, 0, 100)
        fake.fault("fail", what, times=1 << 40, errno=errno.EIO)
        with pytest.raises(CheckpointFailed):
            life.flusher.flush_now()
        fake.clear_faults()
        life.flusher.wait()
        in_place, _ = flushed_bytes(life)
        assert in_place > 0
        check_logs(life, len(added), tmp_path)
        life.close()
        again = life_of(fake)
        check_all(again, added)
        again.close()
