"""What Python decides between two steps of the journal: the next file, the limit, the end."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from fastbk.formats import LEVEL_MAX
from fastbk.native.disk import Disk
from fastbk.native.journal import LIMIT_NO_ADDS, LIMIT_NO_WRITES, LIMIT_OPEN, JournalScan
from fastbk.observe.names import ADOPT_REASONS
from fastbk.server.journal.process import (
    LEVEL_OF_ADOPTION,
    STEP_TIMEOUT_MS,
    Adoption,
    JournalLoop,
    depth_of,
    obstacle_of,
    record_bytes_max,
)
from fastbk.storage.disk_health import Takes
from fastbk.storage.journal_files import find_files, name_of
from fastbk.storage.journal_pool import JournalPool
from fastbk.units import KIB, MIB
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.journal_harness import (
    INCARNATION,
    ORDERED,
    READ_ONLY,
    RECOVERY,
    JournalHarness,
    Put,
)
from tests.fixtures.wait import DEADLINE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastbk.native.journal import Journal
    from fastbk.server.configuration.bookie_config import JournalConfig

FILE_BYTES = 96 * KIB
LIMIT_BYTES = 4 * FILE_BYTES


def journal_on(
    disk: Disk, directory: str, *, in_background: bool = True
) -> tuple[JournalHarness, JournalPool]:
    """Return a journal of small batches, and the pool of its files."""
    harness = JournalHarness(
        disk, ring_bytes=256 * KIB, batch_size_bytes_max=32 * KIB, record_bytes_max=40 * KIB
    )
    pool = JournalPool(
        disk,
        directory,
        next_file_id=1,
        file_size_bytes=FILE_BYTES,
        first_file_size_bytes=FILE_BYTES,
        limit_bytes=LIMIT_BYTES,
        in_background=in_background,
    )
    return harness, pool


class Service:
    def __init__(self, fake: FakeDisk) -> None:
        self.fake = fake
        disk = fake.disk()
        disk.make_directory("/j")
        self.disk = disk
        self.harness, self.pool = journal_on(disk, "/j", in_background=False)
        assert self.harness.journal is not None
        self.loop = JournalLoop(self.harness.journal, self.pool, LIMIT_BYTES)
        self.loop.roll()
        self.entry_id = 0

    def add(self, flags: int = 0) -> int | None:
        put = self.harness.add(1, self.entry_id, bytes(8 * KIB), flags=flags)
        self.entry_id += 1
        return self.verdict(put)

    def verdict(self, put: Put) -> int | None:
        """Step until there is one; a step waits some ms, and the disk has a thread of its own."""
        end_s = time.monotonic() + DEADLINE_S
        while self.harness.verdict(put) is None and time.monotonic() < end_s:
            self.loop.step()
            self.harness.look()
        return self.harness.verdict(put)

    def add_until(self, verdict: int, flags: int = 0) -> int:
        """Add until that verdict comes; returns how many were written before."""
        for count in range(200):
            got = self.add(flags)
            if got == verdict:
                return count
            assert got == 0
        raise AssertionError(f"never {verdict}")


@pytest.fixture
def service() -> Iterator[Service]:
    with FakeDisk() as fake:
        service = Service(fake)
        yield service
        service.harness.close()
        service.pool.close()


def test_beyond_the_limit_adds_are_refused_and_fences_have_room(service: Service) -> None:
    """A13: read-only but for fences and recovery adds; then for everything; open again when the mark moves."""
    written = service.add_until(READ_ONLY)
    assert service.loop.limit == LIMIT_NO_ADDS
    assert 20 < written < 48
    assert service.pool.behind_bytes <= LIMIT_BYTES + FILE_BYTES
    assert service.verdict(service.harness.fence(5)) == 0
    recovered = service.add_until(READ_ONLY, flags=RECOVERY)
    assert service.loop.limit == LIMIT_NO_WRITES
    assert recovered >= 3
    assert service.pool.behind_bytes <= LIMIT_BYTES + FILE_BYTES
    assert service.verdict(service.harness.fence(6)) == READ_ONLY
    assert service.verdict(service.harness.fence(5)) == ORDERED, (
        "nothing has to be written for this one"
    )
    on_disk = len(service.disk.list("/j")) * FILE_BYTES
    assert on_disk <= LIMIT_BYTES + 2 * FILE_BYTES
    assert service.harness.journal is not None
    service.harness.set_mark(service.harness.journal.status.published_sequence)
    service.loop.poll_files()
    assert service.loop.limit == LIMIT_OPEN
    for _ in range(30):
        assert service.add() == 0
        service.harness.set_mark(service.harness.journal.status.published_sequence)
    assert service.pool.recycled > 2


def test_what_an_operator_refuses_is_normal_adds_only(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.add() == 0
    service.loop.refuse_adds(True)
    assert service.loop.limit == LIMIT_NO_ADDS
    assert service.add() == READ_ONLY
    assert service.add(RECOVERY) == 0
    service.loop.poll_files()
    assert service.loop.limit == LIMIT_NO_ADDS, "room in the files does not end it"
    waited_ms: list[int] = []
    monkeypatch.setattr(service.loop.journal, "step", lambda ms: waited_ms.append(ms) or 0)
    service.loop.step()
    assert waited_ms == [STEP_TIMEOUT_MS], (
        "a bookie that is read-only for days sleeps as well as others"
    )
    monkeypatch.undo()
    service.loop.refuse_adds(False)
    assert service.add() == 0


@pytest.mark.slow
def test_a_full_disk_keeps_room_for_repairs_then_refuses_all_and_recovers(service: Service) -> None:
    """A13: the last quarter of the last file is for fences and recovery adds."""
    service.loop.poll_files()
    service.fake.set_capacity(service.fake.used_bytes)
    service.add_until(READ_ONLY)
    assert service.loop.limit == LIMIT_NO_ADDS
    assert "No space left" in service.pool.no_room
    assert service.verdict(service.harness.fence(4)) == 0
    repair = service.harness.add(1, service.entry_id, b"repaired", flags=RECOVERY)
    assert service.verdict(repair) == 0
    service.add_until(READ_ONLY, flags=RECOVERY)
    assert service.loop.limit == LIMIT_NO_WRITES
    assert service.verdict(service.harness.fence(5)) == READ_ONLY
    service.fake.set_capacity(0)

    def is_open() -> bool:
        service.loop.poll_files()
        return service.loop.limit == LIMIT_OPEN

    wait_until(is_open, "a file was made when there was room again")
    assert service.add() == 0
    assert service.pool.no_room == ""


class SaidDisk:
    """A journal directory's disk, as it is said to be."""

    def __init__(self) -> None:
        self.takes = Takes.ALL
        self.watch = SimpleNamespace(is_gone=False)

    def may_make_files(self) -> bool:
        return not self.watch.is_gone

    def poll(self, pool: JournalPool) -> None:
        pass


def test_what_the_disk_takes_is_taken_and_nothing_is_made_where_it_is_gone(
    service: Service,
) -> None:
    """INV-D2."""
    disk = SaidDisk()
    loop = service.loop = JournalLoop(service.loop.journal, service.pool, LIMIT_BYTES, disk)  # type: ignore[arg-type]
    assert service.add() == 0
    loop.poll_files()
    said = "free; the current one cannot become an entry log: off"
    assert disk.watch.journal_files.endswith(said)
    for takes, adds, recovers in (
        (Takes.REPAIRS, READ_ONLY, 0),
        (Takes.NOTHING, READ_ONLY, READ_ONLY),
        (Takes.ALL, 0, 0),
    ):
        disk.takes = takes
        loop.poll_files()
        assert service.add() == adds
        assert service.add(RECOVERY) == recovers
    disk.watch.is_gone, disk.takes = True, Takes.NOTHING
    names = service.disk.list("/j")
    loop.poll_files()
    loop.roll()
    assert loop.limit == LIMIT_NO_WRITES
    assert service.disk.list("/j") == names
    disk.watch.is_gone, disk.takes = False, Takes.ALL
    for _ in range(5):
        loop.poll_files()
    loop.roll()
    loop.poll_files()
    assert service.add() == 0


def test_a_file_that_is_still_being_made_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that hangs the loop goes on hearing what it is asked; nothing is refused meanwhile."""
    with Disk(tmp_path, "plain") as disk:
        harness, pool = journal_on(disk, str(tmp_path))
        assert harness.journal is not None
        loop = JournalLoop(harness.journal, pool, LIMIT_BYTES)
        loop.roll()
        first = harness.journal.status.file_id
        finish = pool._finish_prewrite
        monkeypatch.setattr(pool, "_finish_prewrite", lambda: None)
        pool._ready.clear()
        loop.roll()
        assert pool.is_making
        assert (harness.journal.status.file_id, loop.limit) == (first, LIMIT_OPEN)
        monkeypatch.setattr(pool, "_finish_prewrite", finish)

        def has_rolled() -> bool:
            loop.roll()
            return harness.journal is not None and harness.journal.status.file_id > first

        wait_until(has_rolled, "the next file")
        harness.close()
        pool.close()


def test_after_a_burst_small_batches_go_into_a_file_full_of_zeros(tmp_path: Path) -> None:
    """INV-J5: the journal leaves a file without zeros, though nothing asks it to, and loses nothing by that."""
    entry = bytes(200 * KIB)
    with Disk(tmp_path, "plain") as disk:
        harness = JournalHarness(
            disk, ring_bytes=1 << 20, batch_size_bytes_max=256 * KIB, record_bytes_max=300 * KIB
        )
        assert harness.journal is not None
        pool = JournalPool(
            disk,
            str(tmp_path),
            next_file_id=1,
            file_size_bytes=2 << 20,
            first_file_size_bytes=1 << 20,
            limit_bytes=1 << 30,
        )
        loop = JournalLoop(harness.journal, pool, 1 << 30)
        loop.roll()
        entry_id = 0

        def add(data: bytes) -> None:
            nonlocal entry_id
            put = harness.add(1, entry_id, data)
            entry_id += 1

            def is_answered() -> bool:
                loop.step()
                loop._batches._due_ns = 0
                loop.poll_files()
                harness.look()
                return harness.verdict(put) is not None

            wait_until(is_answered, "the verdict")
            assert harness.verdict(put) == 0

        while pool.allocated == 0 or pool._current is None or pool._current.is_written:
            assert entry_id < 400, "large batches do not end in a file that was only allocated"
            add(entry)
        burst_file = harness.journal.status.file_id
        burst_entries = entry_id

        def has_left() -> bool:
            add(b"small")
            return harness.journal is not None and harness.journal.status.file_id > burst_file

        wait_until(has_left, "another file")
        assert entry_id - burst_entries < 400, "the file was left because it was full"
        current = pool._current
        assert current is not None and current.is_written
        loop.drain()
        harness.look()
        harness.close()
        pool.close()
        records = 0
        for file in find_files(disk, str(tmp_path)):
            if file.is_used:
                with JournalScan(disk, file.path, file.file_id, INCARNATION) as scan:
                    records += sum(batch.record_count for batch in scan)
        assert records == entry_id


@pytest.mark.parametrize(
    ("offset_mib", "tenth_mib", "expected"),
    [
        (10, 1, ["leaves"]),
        (100, 1, ["leaves"]),
        (0, 1, []),
        (10, 20, ["hurries"]),
        (120, 1, ["hurries"]),
    ],
)
def test_a_file_without_zeros_is_left_unless_it_is_soon_full(
    offset_mib: int, tenth_mib: int, expected: list[str]
) -> None:
    """INV-J5: one that is full within a second is not worth another one's zeros. These are due then, too."""
    done: list[str] = []
    journal = SimpleNamespace(
        status=SimpleNamespace(
            offset_bytes=offset_mib << 20, file_size_bytes=128 << 20, taken_bytes=0, adopts=0
        ),
        mark_sequence=0,
        request_roll=lambda: done.append("leaves"),
        take_late=lambda: ([], 0),
        note_files=lambda *_: None,
        note_ready=lambda *_: None,
        note_adoption=lambda *_: None,
    )
    pool = SimpleNamespace(
        unwritten_from_bytes=4 << 20,
        next_size_bytes=128 << 20,
        file_size_bytes=128 << 20,
        behind_bytes=128 << 20,
        has_ready=True,
        recycled=0,
        made=0,
        allocated=0,
        ready_count=0,
        ready_s=0.0,
        no_room="",
        failure="",
        free_bytes=0,
        kept_bytes=0,
        fill=lambda: None,
        update=lambda _mark, *, is_burst: None,
        hurry=lambda: done.append("hurries"),
    )
    loop = JournalLoop(journal, pool, 1 << 30)  # type: ignore[arg-type]
    loop._batches.tenth_bytes = tenth_mib << 20
    loop._batches._due_ns = 1 << 63
    loop.poll_files()
    assert done == expected


class Taken:
    """A journal, as far as it says what it took."""

    def __init__(self) -> None:
        self.status = SimpleNamespace(
            taken_bytes=0, grouped_bytes=0, loose_bytes=0, offset_bytes=0, adopts=0, file_id=1
        )

    def take(self, size_mib: int, *, grouped: bool) -> None:
        self.status.taken_bytes += size_mib * MIB
        self.status.grouped_bytes += size_mib * MIB if grouped else 0


def adoption_of(taken: Taken, level: int = LEVEL_MAX, **more: str) -> Adoption:
    return Adoption(cast("Journal", taken), obstacle=more.get("obstacle", ""), level=level)


def test_a_file_adopts_when_three_quarters_of_the_last_64_mib_came_in_groups() -> None:
    taken = Taken()
    adoption = adoption_of(taken)

    def take(size_mib: int, *, grouped: bool) -> str:
        for _ in range(size_mib):
            taken.take(1, grouped=grouped)
            adoption.measure()
        return adoption.reason

    assert take(63, grouped=True) == "small batches", "not enough is known yet"
    assert take(1, grouped=True) == ""
    assert take(12, grouped=False) == ""
    assert take(10, grouped=False) == "small batches"
    assert take(200, grouped=False) == "small batches"
    assert take(40, grouped=True) == "small batches"
    assert take(16, grouped=True) == ""
    assert len(adoption._samples) < 20


@pytest.mark.parametrize(
    ("obstacle", "level", "reason"),
    [
        ("off", 4, "off"),
        ("other disk", 4, "other disk"),
        ("unsynced", 4, "unsynced"),
        ("", 3, "level"),
        ("", 4, ""),
    ],
)
def test_why_no_file_adopts(obstacle: str, level: int, reason: str) -> None:
    """INV-U1: in a cluster of level 3 none does, however large the batches are."""
    taken = Taken()
    adoption = adoption_of(taken, level, obstacle=obstacle)
    taken.take(100, grouped=True)
    adoption.measure()
    assert adoption.reason == reason
    assert reason in ADOPT_REASONS
    adoption.level = 4  # the supervisor's message
    assert adoption.reason == (obstacle or "")


@pytest.mark.parametrize(
    ("adopt", "is_on_ledger_disk", "sync", "sync_mode", "obstacle"),
    [
        ("never", True, "always", "O_DIRECT+RWF_DSYNC", "off"),
        ("auto", False, "always", "O_DIRECT+RWF_DSYNC", "other disk"),
        ("auto", True, "never", "O_DIRECT+RWF_DSYNC", "unsynced"),
        ("auto", True, "always", "write+fdatasync", "buffered"),
        ("auto", True, "always", "O_DIRECT+RWF_DSYNC", ""),
    ],
)
def test_what_forbids_adoption_for_good(
    adopt: str, is_on_ledger_disk: bool, sync: str, sync_mode: str, obstacle: str
) -> None:
    config = SimpleNamespace(
        adopt=adopt, is_on_ledger_disk=is_on_ledger_disk, settings=SimpleNamespace(sync=sync)
    )
    assert obstacle_of(cast("JournalConfig", config), sync_mode) == obstacle


@pytest.mark.parametrize(
    ("adopts", "offset_mib", "loose_mib", "leaves"),
    [
        (1, 100, 26, True),
        (1, 100, 24, False),
        (1, 20, 16, False),
        (1, 20, 17, True),
        (0, 100, 90, False),
    ],
)
def test_a_file_that_adopts_is_left_early_when_too_much_in_it_is_loose(
    adopts: int, offset_mib: int, loose_mib: int, leaves: bool
) -> None:
    taken = Taken()
    taken.status.adopts, taken.status.offset_bytes = adopts, offset_mib * MIB
    taken.status.loose_bytes = loose_mib * MIB
    assert adoption_of(taken).has_too_much_loose() == leaves


def test_no_file_adopts_behind_one_in_which_too_much_was_loose() -> None:
    """Else a slow index, in whose time all is loose, made it go from one such file to the next, for ever."""
    taken = Taken()
    adoption = adoption_of(taken)
    taken.take(100, grouped=True)
    adoption.measure()
    status = taken.status
    status.adopts, status.offset_bytes, status.loose_bytes = 1, 100 * MIB, 26 * MIB
    assert adoption.reason == "loose", "it became full before it could be left"
    assert adoption.reason in ADOPT_REASONS
    status.offset_bytes = 120 * MIB
    assert adoption.reason == ""
    adoption.left_early()
    assert adoption.reason == "loose", "whatever came before the step that left it"
    status.adopts, status.file_id, status.offset_bytes = 0, 2, 90 * MIB
    assert adoption.reason == ""


def test_tests_have_a_file_adopt_from_the_first_byte_on_where_it_may() -> None:
    """FASTBK_ADOPT_FROM: without the window, but not without the level, nor over an obstacle."""
    journal = cast("Journal", Taken())
    for obstacle, level, reason in (
        ("", LEVEL_MAX, ""),
        ("", LEVEL_OF_ADOPTION - 1, "level"),
        ("other disk", LEVEL_MAX, "other disk"),
    ):
        assert Adoption(journal, obstacle=obstacle, level=level, window_bytes=0).reason == reason


def rolled_versions(service: Service, level: int) -> set[int]:
    """Return the versions of the headers that are on the disk after some rolls in a cluster of that level."""
    journal = service.loop.journal
    service.loop.adoption = Adoption(journal, obstacle="", level=level)
    service.loop.adoption._samples[0] = (-100 * MIB, -100 * MIB)
    for _ in range(3):
        service.loop.roll()
        assert service.add() == 0
    return {
        int.from_bytes(service.disk.read_file(f"/j/{name}")[8:12], "little")
        for name in service.disk.list("/j")
    } - {0}


@pytest.mark.parametrize(("level", "newest"), [(1, 2), (3, 2), (4, 3)])
def test_a_journal_writes_its_new_version_from_level_4_on(
    service: Service, level: int, newest: int
) -> None:
    """INV-U1: in a cluster of level 3 no byte of version 3 is written, however large the batches are."""
    assert max(rolled_versions(service, level)) == newest
    assert bool(service.loop.journal.status.adopts) == (newest == 3)


def test_a_file_is_cut_behind_its_last_batch_when_it_is_left_early(tmp_path: Path) -> None:
    """Nothing that it holds is lost by that, not even where its successor's header is."""
    with Disk(tmp_path) as disk:
        harness, pool = journal_on(disk, str(tmp_path))
        assert harness.journal is not None
        adoption = Adoption(harness.journal, obstacle="", level=LEVEL_MAX)
        adoption._samples[0] = (-100 * MIB, -100 * MIB)
        loop = JournalLoop(harness.journal, pool, LIMIT_BYTES, adoption=adoption)
        loop.roll()
        assert harness.journal.status.adopts
        put = harness.add(1, 0, bytes(8 * KIB))

        def is_written() -> bool:
            loop.step()
            harness.look()
            return harness.verdict(put) == 0

        wait_until(is_written, "the add")
        used_bytes = harness.journal.status.offset_bytes
        path = tmp_path / name_of(1)

        def is_left() -> bool:
            loop.roll()
            return harness.journal is not None and harness.journal.status.file_id > 1

        wait_until(is_left, "the next file")
        wait_until(lambda: path.stat().st_size < FILE_BYTES, "the cut")
        with JournalScan(disk, str(path), 1, INCARNATION) as scan:
            records = [record for batch in scan for record in batch.records()]
            assert scan.end.kind == "closing"
            assert scan.end.end_bytes == path.stat().st_size == used_bytes + 4096
        assert [record.ledger_id for record in records] == [1]
        harness.close()
        pool.close()


def test_a_file_that_adopted_is_kept_by_the_pool(service: Service) -> None:
    """INV-J3."""
    rolled_versions(service, 4)
    service.harness.set_mark(service.loop.journal.status.published_sequence)
    service.loop.poll_files()
    files = [f"/j/{name}" for name in service.disk.list("/j")]
    sizes = [len(service.disk.read_file(path)) for path in files]
    cut = [size_bytes for size_bytes in sizes if size_bytes < FILE_BYTES]
    assert len(cut) == 2, "it left them early"
    assert service.pool.kept_bytes == sum(cut)
    assert service.pool.behind_bytes == FILE_BYTES
    service.pool.release(range(9))
    assert service.pool.kept_bytes == 0


def test_draining_takes_what_waits_and_closes(service: Service) -> None:
    puts = [service.harness.add(2, entry_id, b"last") for entry_id in range(50)]
    service.loop.drain()
    service.harness.look()
    assert {service.harness.verdict(put) for put in puts} == {0}
    last = service.harness.published.descriptors[-1]
    assert last.record_count == 0
    assert last.file_id > 0, "the closing batch is published: the index's mark can pass it"
    service.pool.close()
    (file,) = [file for file in find_files(service.disk, "/j") if file.is_used]
    with JournalScan(service.disk, file.path, file.file_id, INCARNATION) as scan:
        assert sum(batch.record_count for batch in scan) == 50
        assert scan.end.kind == "closing"
        assert scan.end.last_sequence == last.batch_sequence


@pytest.mark.slow
def test_a_lagging_consumer_delays_a_roll(service: Service) -> None:
    """Descriptors never overwrite what somebody has not seen, the closing batch's included."""
    harness = service.harness
    assert harness.journal is not None
    for _ in range(1024):
        harness.fence(9)
        while harness.journal.status.waiting_bytes or harness.journal.status.in_flight:
            harness.journal.step(1)  # nobody looks
    before = harness.journal.status.file_id
    service.loop.roll()
    assert harness.journal.status.file_id == before
    harness.look()
    service.loop.roll()
    assert harness.journal.status.file_id == before + 1


def test_a_record_holds_the_largest_frame() -> None:
    assert record_bytes_max(5 << 20) >= (5 << 20) + 96
    assert record_bytes_max(1001) % 8 == 0


@pytest.mark.parametrize(
    ("sync_mode", "depth"),
    [
        ("O_DIRECT+RWF_DSYNC", 2),
        ("O_DIRECT+linked fsync", 2),
        ("write+linked fsync", 1),
        ("write+fdatasync", 1),
    ],
)
def test_one_batch_at_a_time_through_the_page_cache(sync_mode: str, depth: int) -> None:
    """INV-J1: of two syncs under way only one is told that a page could not be written."""
    disk = SimpleNamespace(sync_mode=sync_mode, depth_max=4)
    assert depth_of(disk) == depth  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_ledger_that_begins_behind_entry_0_is_logged_once(
    service: Service, capfd: pytest.CaptureFixture[str]
) -> None:
    harness = service.harness
    service.loop._late_s = float("inf")  # else a slow machine's step logs them, and they are taken
    puts = [harness.add(2, 0, b"x"), harness.add(3, 7, b"x"), harness.add(3, 8, b"x")]
    puts += [harness.add(4, 5, b"x", flags=RECOVERY)]
    assert [service.verdict(put) for put in puts] == [0, 0, 0, 0]
    late, others = harness.journal.take_late()  # type: ignore[union-attr]
    assert [(one.ledger_id, one.entry_id, one.is_recovery) for one in late] == [
        (3, 7, False),
        (4, 5, True),
    ]
    assert others == 0
    for ledger_id in range(10, 30):
        service.verdict(harness.add(ledger_id, 1, b"x"))
    service.loop._late_s = 0.0
    service.loop.poll_files()
    lines = [
        json.loads(line)
        for line in capfd.readouterr().err.splitlines()
        if "journal.ledger_begins_late" in line
    ]
    assert [one["ledger_id"] for one in lines] == [*range(10, 26)]
    assert lines[-1]["others"] == 4
    assert harness.journal.take_late() == ([], 0)  # type: ignore[union-attr]
