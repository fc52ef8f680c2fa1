"""When the journal takes a file again that is a log, or could have been (INV-J3)."""

from __future__ import annotations

import errno
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from fastbk.native._bookie import ffi, lib
from fastbk.native.journal import JournalHeader, JournalScan, read_header
from fastbk.native.store import FlushContents, LedgerState, Store, StoreOptions
from fastbk.printable_text import printable_json
from fastbk.server.child import MESSAGE_BYTES_MAX
from fastbk.server.index.background import DirectJobs
from fastbk.server.index.flush import FREE_FILES_A_MESSAGE, Flusher, FreeJournalFiles
from fastbk.server.index.replay import Replayed
from fastbk.storage import journal_files
from fastbk.storage.directories import JOURNAL_LOG
from fastbk.storage.journal_files import OldFile, ReplayEnd, find_files, name_of
from fastbk.storage.manifest import ManifestSlots
from tests.fixtures import upkeep_at_once
from tests.fixtures.adopted_runs import Run, with_runs
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.storage_harness import JOURNAL, Book, formatted_disk
from tests.fixtures.storage_harness import Life as Bookie
from tests.fixtures.store_harness import (
    DIRECTORY,
    Life,
    entry_bytes,
    life_of_harness,
    started_store,
)
from tests.fixtures.wait import wait_until

if TYPE_CHECKING:
    from fastbk.native.disk import Disk
    from fastbk.native.index import Index
    from fastbk.storage.manifest import LogEntry

KIB = 1024


class Told:
    """Stands for the way to the journal."""

    def __init__(self) -> None:
        self.messages: list[list[int]] = []
        self.takes = True

    def __call__(self, file_ids: list[int]) -> bool:
        if self.takes:
            self.messages.append(file_ids)
        return self.takes


class Sets:
    """A store, as far as it says how many old sets there are."""

    def __init__(self) -> None:
        self.old_sets = 0


@pytest.fixture
def sets() -> Sets:
    return Sets()


def files_on(sets: Sets, told: Told, compacted: tuple[int, ...] = ()) -> FreeJournalFiles:
    free = FreeJournalFiles(cast("Store", sets), lambda file_id: file_id in compacted)
    free.begin(10, told)
    return free


def test_what_the_mark_has_passed_and_no_manifest_lists_is_told_once(sets: Sets) -> None:
    told = Told()
    free = files_on(sets, told)
    free.passed(10, frozenset())
    free.poll()
    assert told.messages == [], "the journal still writes to it"
    free.passed(14, frozenset({11, 12}))
    free.poll()
    free.poll()
    assert told.messages == [[10, 13]]
    free.given_up([12, 3])
    free.poll()
    free.passed(14, frozenset({11}))
    free.passed(0, frozenset())
    free.poll()
    assert told.messages == [[10, 13], [3, 12]]


def test_not_while_anybody_reads_under_an_older_list(sets: Sets) -> None:
    told = Told()
    free = files_on(sets, told)
    sets.old_sets = 1
    free.passed(11, frozenset())
    free.given_up([3])
    free.poll()
    assert told.messages == []
    sets.old_sets = 0
    free.poll()
    assert told.messages == [[3, 10]]


def test_not_while_a_compaction_reads_it(sets: Sets) -> None:
    """It may have been given up meanwhile: a recount found that nothing lives in it."""
    told = Told()
    free = files_on(sets, told, compacted=(3,))
    free.given_up([3, 4])
    free.poll()
    assert told.messages == [[4]]


def test_what_the_socket_has_no_room_for_is_told_later(sets: Sets) -> None:
    told = Told()
    free = files_on(sets, told)
    told.takes = False
    free.given_up([3])
    free.poll()
    told.takes = True
    free.poll()
    assert told.messages == [[3]]


def test_a_message_has_a_bound(sets: Sets) -> None:
    told = Told()
    free = files_on(sets, told)
    free.given_up(range(1, FREE_FILES_A_MESSAGE + 4))
    free.poll()
    assert [len(ids) for ids in told.messages] == [FREE_FILES_A_MESSAGE, 3]


def test_thousands_of_free_files_at_start_are_told_in_bounded_messages(sets: Sets) -> None:
    """A bookie whose ledgers were deleted was killed before their files were removed."""
    unused = [OldFile(6001, "", 0, 1 << 27)]
    used = [OldFile(file_id, "", 1 << 62 | file_id, 1 << 27) for file_id in range(1001, 6001)]
    kept = [OldFile(file_id, "", 5, 1 << 27, kept=True) for file_id in range(1, 1001)]
    end = ReplayEnd(6002, 6000, 1 << 62 | 6000, 1, 9, [*kept, *used, *unused], [])
    found = Replayed(end, 1, 2, 3, is_damaged=False, lost_states=False)
    message = found.message(states=4)
    data = printable_json(message)
    assert len(data) <= MESSAGE_BYTES_MAX // 2, "`configure` of the journal has it again"
    first = [file["file_id"] for file in cast("list[dict[str, int]]", message["old_files"])]
    assert 6000 in first, "the journal holds it until the next header is durable"
    told = Told()
    free = FreeJournalFiles(cast("Store", sets), lambda _: False)
    free.begin(end.next_file_id, told, end.files_named_later)
    free.poll()
    assert all(len(ids) <= FREE_FILES_A_MESSAGE for ids in told.messages)
    later = [file_id for ids in told.messages for file_id in ids]
    assert sorted([*first, *later]) == list(range(1001, 6002))


def test_nothing_is_told_before_there_is_a_journal(sets: Sets) -> None:
    """Of what replay's flushes pass the next start's listing says whether it is kept."""
    free = FreeJournalFiles(cast("Store", sets), lambda _: False)
    free.passed(9, frozenset())
    free.poll()
    told = Told()
    free.begin(10, told)
    free.poll()
    assert told.messages == []


# ---- with a store, and a reader under the old set


def read_pinned(store: Store, ledger_id: int) -> object:
    """Read an entry as a reader thread does, and keep its run in the cache."""
    assert lib.fbk_store_submit(store.handle, 0, ledger_id, 0, 0, lib.FBK_LANE_URGENT, 0) == 0
    lib.fbk_store_reader_step(store.handle)
    result = ffi.new("struct fbk_store_result *")
    assert lib.fbk_store_collect(store.handle, result, 1) == 1
    return result.run


harness = started_store
life = life_of_harness


def test_a_file_is_not_told_while_a_job_looks_under_the_old_set(life: Life) -> None:
    """INV-J3: what it finds there may be the file's, long after the change was installed."""
    life.store.destroy()
    options = StoreOptions(incarnation=7, read_cache_size_bytes=300 * KIB, room_timeout_ms=60_000)
    life.store = Store(DIRECTORY, life.disk, life.reader_disk, options)
    told = Told()
    flusher = Flusher(
        cast("Index", SimpleNamespace(count=lambda *_: None, gauge=lambda *_: None)),
        life.store, life.checkpoint, DirectJobs(), life.disk, DIRECTORY,
    )  # fmt: skip
    flusher.free_files.begin(10, told)
    states = [LedgerState(ledger_id, 9, flags=1) for ledger_id in (1, 2, 3, 4)]
    entries = [
        (ledger_id, 0, entry_bytes(ledger_id, 0)[:32] + bytes(200 * KIB)) for ledger_id in (3, 4)
    ]
    contents = with_runs(FlushContents.from_entries(entries, states), Run(5, 1, 0), Run(6, 2, 0))
    first = life.checkpoint.run(life.store, contents, 7, passed_file_id=7)
    flusher._install(first)
    flusher._take_results()
    pinned = read_pinned(life.store, 3)
    reader = threading.Thread(
        target=lambda: lib.fbk_store_release(life.store.handle, read_pinned(life.store, 4))
    )
    reader.start()

    def waits_under_an_old_set() -> bool:
        """It has its set, and no room in the cache: whatever is installed now, it goes on under that one."""
        life.store.set_logs(log.log_id for log in first.manifest.logs)
        return life.store.old_sets > 0

    wait_until(waits_under_an_old_set, "the reader")
    change = upkeep_at_once.recount(life.checkpoint, life.store, [1])
    assert change is not None
    flusher._install(change)
    flusher._take_results()
    flusher.free_files.poll()
    assert life.store.old_sets == 1
    assert told.messages == []
    lib.fbk_store_release(life.store.handle, pinned)
    reader.join(10)
    assert life.store.old_sets == 0
    flusher.free_files.poll()
    assert told.messages == [[5]]
    assert [log.log_id for log in life.checkpoint.manifest.logs] == [1, JOURNAL_LOG | 6]


# ---- a whole bookie on the fake disk


class AdoptingBookie(Bookie):
    adopts = True
    batch_bytes_max = 80 * KIB


fake = formatted_disk


def fill(bookie: Bookie, ledger_id: int, first: int, count: int = 12) -> None:
    """Add what comes to one run: all of it is in the ring before the journal looks."""
    for entry_id in range(first, first + count):
        bookie.add(ledger_id, entry_id, bytes([ledger_id]) * 5000)
    bookie.settle()


def journal_logs(bookie: Bookie) -> list[LogEntry]:
    return [log for log in bookie.checkpoint.manifest.logs if log.is_journal_file]


def listed(bookie: Bookie) -> list[int]:
    return [log.log_id ^ JOURNAL_LOG for log in journal_logs(bookie)]


def names_in(fake: FakeDisk) -> set[str]:
    return {file.path.rpartition("/")[2] for file in find_files(fake.disk(), JOURNAL, lock=False)}


def test_a_file_that_is_a_log_stays_until_its_ledgers_are_deleted(fake: FakeDisk) -> None:
    bookie = AdoptingBookie(fake, Book())
    for n in range(8):
        fill(bookie, 1, 12 * n)
        bookie.flush()
    of_ledger_1 = listed(bookie)
    assert len(of_ledger_1) >= 2, "several files are full of runs"
    assert [log.sealed for log in journal_logs(bookie)] == [True] * (len(of_ledger_1) - 1) + [False]
    recycled = bookie.pool.recycled
    for n in range(8):
        fill(bookie, 2, 12 * n)
        bookie.flush()
    assert bookie.pool.recycled == recycled, "each file is a log"
    assert {name_of(file_id) for file_id in of_ledger_1} <= names_in(fake)
    bookie.delete(1)
    for _ in range(4):
        bookie.flusher.poll()
    bookie.flush()
    left = listed(bookie)
    gone = set(of_ledger_1) - set(left)
    assert gone, "nothing lives in those that had ledger 1 alone"
    for n in range(8, 16):
        fill(bookie, 2, 12 * n)
        bookie.flush()
    assert bookie.pool.recycled > recycled
    assert not {name_of(file_id) for file_id in gone} & names_in(fake), "taken again"
    bookie.stop()


def test_a_restart_keeps_what_is_listed_and_frees_the_rest(fake: FakeDisk) -> None:
    bookie = AdoptingBookie(fake, Book())
    for n in range(6):
        fill(bookie, 1, 12 * n)
        bookie.flush()
    before = listed(bookie)
    bookie.close()
    again = AdoptingBookie(fake, Book())
    kept = {file.file_id for file in again.replayed.end.old_files if file.kept}
    assert kept == set(listed(again))
    assert set(before) <= kept
    assert all(log.sealed for log in journal_logs(again)), "another file is written now"
    for n in range(6, 20):
        fill(again, 1, 12 * n)
        again.flush()
    assert {name_of(file_id) for file_id in kept} <= names_in(fake)
    again.delete(1)
    for n in range(16):
        fill(again, 2, 12 * n)
        again.flush()
    assert not kept & set(listed(again))
    assert not {name_of(file_id) for file_id in kept} & names_in(fake), (
        "files of an earlier start are taken again, too"
    )
    again.stop()


def test_a_start_reads_no_header_of_what_the_mark_has_passed(
    fake: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be tens of thousands. But the newest says where the journal ended, if nothing came behind it."""
    bookie = AdoptingBookie(fake, Book())
    for n in range(16):
        fill(bookie, 1, 12 * n)
        bookie.flush()
    logs = listed(bookie)
    assert len(logs) > 3
    bookie.close()
    read_paths: list[str] = []

    def read(disk: Disk, path: str, *, lock: bool = False) -> JournalHeader:
        read_paths.append(path)
        return read_header(disk, path, lock=lock)

    monkeypatch.setattr(journal_files, "read_header", read)
    for sealed in (logs[:-2], logs[:-1]):
        again = AdoptingBookie(fake, Book())
        assert not again.replayed.is_damaged
        assert {file.file_id for file in again.replayed.end.old_files if file.kept} >= set(logs)
        assert not set(read_paths) & {f"{JOURNAL}/{name_of(file_id)}" for file_id in sealed}
        assert f"{JOURNAL}/{name_of(logs[-1])}" in read_paths
        read_paths.clear()
        again.close()
    last = AdoptingBookie(fake, Book())
    fill(last, 2, 0)
    last.flush()
    last.stop()


def test_a_message_that_is_lost_with_a_process_is_no_leak(
    fake: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start computes what is free."""
    bookie = AdoptingBookie(fake, Book())
    for ledger_id in (1, 2):
        for n in range(6):
            fill(bookie, ledger_id, 12 * n)
            bookie.flush()
    of_ledger_1 = set(listed(bookie))
    monkeypatch.setattr(bookie.pool, "release", lambda file_ids: None)
    bookie.delete(1)
    gone = of_ledger_1 - set(listed(bookie))
    assert gone and {name_of(file_id) for file_id in gone} <= names_in(fake)
    bookie.close()
    again = AdoptingBookie(fake, Book())
    for n in range(6, 12):
        fill(again, 2, 12 * n)
        again.flush()
    assert not {name_of(file_id) for file_id in gone} & names_in(fake)
    again.stop()


def test_replay_syncs_a_file_before_a_manifest_lists_it(fake: FakeDisk) -> None:
    """INV-X2: a process that died may have left writes in a cache, and replay publishes where their runs lie."""
    bookie = AdoptingBookie(fake, Book())
    fill(bookie, 1, 0)
    bookie.close()
    before = ManifestSlots(fake.disk(), DIRECTORY).load()
    fake.fault("fail", kind="sync", errno=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        AdoptingBookie(fake, Book())
    fake.clear_faults()
    assert ManifestSlots(fake.disk(), DIRECTORY).load() == before, "the first sync is the file's"
    again = AdoptingBookie(fake, Book())
    assert listed(again) == [1]
    again.stop()


def test_replay_begins_at_the_mark(fake: FakeDisk) -> None:
    """What lies before it in its file is not read: neither in a file that adopts nor because of one behind it."""
    bookie = AdoptingBookie(fake, Book())
    fill(bookie, 1, 0)
    fill(bookie, 1, 12)
    bookie.flush()
    manifest = ManifestSlots(fake.disk(), DIRECTORY).load()
    assert manifest.mark_file_id == 1
    assert manifest.mark_offset_bytes > 8192
    fill(bookie, 1, 24)
    bookie.close()
    disk = fake.disk()
    file = disk.open(f"{JOURNAL}/{name_of(1)}", direct=True)
    disk.write_all(file, bytes(4096), 8192)
    disk.close(file)
    with JournalScan(
        disk,
        f"{JOURNAL}/{name_of(1)}",
        1,
        AdoptingBookie.incarnation,
        mark_sequence=manifest.mark,
        mark_offset_bytes=manifest.mark_offset_bytes,
    ) as scan:
        assert [batch.sequence for batch in scan][:1] == [manifest.mark + 1]
        assert scan.end.passed_damage == 0
    again = AdoptingBookie(fake, Book())
    assert again.replayed.batches > 0
    assert not again.replayed.is_damaged
    again.stop()


@pytest.mark.parametrize("wrong", ["before", "behind", "within", "odd"])
def test_a_mark_that_is_elsewhere_is_looked_for(fake: FakeDisk, wrong: str) -> None:
    bookie = AdoptingBookie(fake, Book())
    fill(bookie, 1, 0)
    bookie.flush()
    manifest = ManifestSlots(fake.disk(), DIRECTORY).load()
    fill(bookie, 1, 12)
    bookie.close()
    mark_at = manifest.mark_offset_bytes
    offset = {"before": 8192, "behind": mark_at + (1 << 20), "within": 4096, "odd": mark_at + 8}[
        wrong
    ]
    with JournalScan(
        fake.disk(),
        f"{JOURNAL}/{name_of(1)}",
        1,
        AdoptingBookie.incarnation,
        mark_sequence=manifest.mark,
        mark_offset_bytes=offset,
    ) as scan:
        assert [batch.sequence for batch in scan][:1] == [manifest.mark + 1]


def test_the_message_of_replay_leaves_out_what_is_kept(fake: FakeDisk) -> None:
    """There may be tens of thousands of such files, and a message has its bound."""
    bookie = AdoptingBookie(fake, Book())
    for n in range(6):
        fill(bookie, 1, 12 * n)
        bookie.flush()
    bookie.close()
    again = AdoptingBookie(fake, Book())
    end = again.replayed.end
    said = cast("list[dict[str, int]]", end.message()["old_files"])
    assert {file["file_id"] for file in said} == {file.file_id for file in end.old_files} - set(
        listed(again)
    )
    assert {"file_id", "last_sequence", "size_bytes"} == set(said[0])
    again.stop()


def test_a_file_that_adopts_and_never_was_a_log_is_taken_again(fake: FakeDisk) -> None:
    """Only small records came: each was flushed into an entry log."""
    bookie = AdoptingBookie(fake, Book())
    for n in range(400):
        bookie.add(1 + n % 40, n // 40, bytes(3000))
        if n % 10 == 9:
            bookie.settle()
        if n % 40 == 39:
            bookie.flush()
    assert listed(bookie) == []
    assert bookie.pool.recycled > 0
    bookie.stop()


@pytest.mark.parametrize("slot", [0, 1])
def test_the_loss_of_either_slot_brings_no_list_back_of_files_taken_again(
    fake: FakeDisk, slot: int
) -> None:
    bookie = AdoptingBookie(fake, Book())
    for ledger_id in (1, 2):
        for n in range(6):
            fill(bookie, ledger_id, 12 * n)
            bookie.flush()
    bookie.delete(1)
    for n in range(6, 14):
        fill(bookie, 2, 12 * n)
        bookie.flush()
    assert bookie.pool.recycled > 0
    bookie.close()
    fake.corrupt(f"{DIRECTORY}/manifest.{slot}", 0, 4096)
    again = AdoptingBookie(fake, Book())
    assert {name_of(file_id) for file_id in listed(again)} <= names_in(fake)
    again.stop()
