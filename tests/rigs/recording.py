"""Recordings: a bookie lives on a real file system, on a device that logs every write and flush.

The bookie is the storage rig's, in one process (`record`), or a real one with all its processes (`power_bookie.py`).
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fastbk.native.disk import Disk
from fastbk.native.journal import Journal
from fastbk.storage.checkpoint import CheckpointSettings
from fastbk.storage.directories import make_ledger_directory
from tests.fixtures.storage_harness import INCARNATION, KIB, Disks
from tests.rigs import mounts
from tests.rigs.block_log import FLUSH, BlockLog, copy_sparse
from tests.rigs.children import in_child
from tests.rigs.doing import do
from tests.rigs.judge import Known
from tests.rigs.report import Plan
from tests.rigs.script import Script
from tests.rigs.timed import TimedBook, TimedLife

SIZES_BYTES = {"ext4": 160 << 20, "xfs": 64 << 20}
"""ext4 has a second superblock only behind 128 MiB."""
OPERATIONS = 80
LIVES = 2
RUN_BYTES_MIN = 2 * KIB
SETTLES_A_ROLL = 3
"""Files that adopt are left early, and cut then."""
MEMORY = Path("/dev/shm")


class RealLife(TimedLife):
    """A life on a real folder: the journal by io_uring where it works, the rest by plain system calls."""

    folder: Path
    journal_type = Journal  # its disk takes its time

    def _open_disks(self, fake: Disks) -> list[Disk]:
        return [Disk(self.folder, backend) for backend in ("plain", "plain", "auto")]


def place_at(
    folder: Path, *, unsynced: bool = False, incarnation: int = INCARNATION, adopts: bool = False
) -> type[RealLife]:
    """Return the lives of a bookie in this folder; `adopts`: its journal's files do, with small runs."""
    return type(
        "PlacedLife",
        (RealLife,),
        {
            "folder": folder,
            "unsynced": unsynced,
            "adopts": adopts,
            "run_bytes_min": RUN_BYTES_MIN,
            "settles_a_roll": SETTLES_A_ROLL if adopts else 0,
            "incarnation": incarnation,
            "journal_directory": str(folder / "journal"),
            "ledger_directory": str(folder / "ledgers"),
            "settings": CheckpointSettings(
                entry_log_size_bytes=256 * KIB, step_bytes=64 * KIB, attempts_max=2
            ),
        },
    )


@dataclass
class Folder:
    """Disks in a real folder; the time is the length of the device's log."""

    path: Path
    clock: Callable[[], int] = lambda: 0

    @property
    def moments(self) -> int:
        """See `TimedDisks`."""
        return self.clock()

    def disk(self) -> Disk:
        """See `Disks`."""
        return Disk(self.path, "plain")


def format_folder(folder: Path) -> None:
    """What the supervisor does before a bookie's first start."""
    disk = Disk(folder, "plain")
    for name in ("journal", "ledgers"):
        disk.make_directory(str(folder / name))
    disk.sync_directory(str(folder))
    make_ledger_directory(disk, str(folder / "ledgers"))
    disk.destroy()


@dataclass
class Recording:
    """What a device saw, and what clients knew when.

    Attributes:
        base: the device before the log's first event.
        first_cut: from there on there is a bookie.
        incarnation: the bookie's.
        last_start: from there on the directories know of every start that the metadata store counts.
        data_at: where the data that clients know begins in a stored entry.
        adopts: whether its journal files were to stay as logs. adopted: how many did, or how many runs in them.
    """

    base: Path
    log: BlockLog
    book: TimedBook
    first_cut: int
    incarnation: int = INCARNATION
    data_at: int = 0
    last_start: int = 0
    adopts: bool = False
    adopted: int = 0

    def known(self, cut: int) -> Known:
        """What clients knew when `cut` events were done."""
        return self.book.known_at(self.log.events[cut - 1].end + 1)

    def cuts(self, rng: random.Random, count: int) -> list[int]:
        """Draw moments, rising: anywhere, just before a flush (most is in doubt), just after an acknowledgement."""
        events = self.log.events
        flushes = [at for at in range(self.first_cut, len(events)) if events[at].kind == FLUSH]
        acks = [
            max(self.log.index_of(told.moment), self.first_cut) for told in self.book.told.values()
        ]
        anywhere = range(self.first_cut, len(events) + 1)
        return sorted(rng.choice(rng.choice((anywhere, flushes, acks))) for _ in range(count))


def record(
    kind: str, seed: int, folder: Path, *, unsynced: bool = False, adopts: bool = False
) -> Recording:
    """Let a bookie live on a fresh file system of a kind, twice; the first life ends as by a kill."""
    base, written = folder / "base", folder / "written"
    mounts.make_file_system(base, kind, SIZES_BYTES[kind])
    with mounts.mounted(base, folder / "mount", kind) as mount_point:
        format_folder(mount_point)
    copy_sparse(base, written)
    recorder = mounts.Recorder(written, folder / "recorder")
    book = TimedBook()
    try:
        mounts.mount(recorder.device, folder / "mount", kind)
        first = recorder.position()
        try:
            place = place_at(folder / "mount", unsynced=unsynced, adopts=adopts)
            for number in range(LIVES):
                book = in_child(lambda n=number, b=book: live(place, recorder, b, seed + n, n))
        finally:
            mounts.unmount(folder / "mount")
    finally:
        recorder.close()
    log = BlockLog(recorder.log)
    return Recording(
        base, log, book, log.index_of(first) + 1, adopts=adopts, adopted=book.adopted_runs
    )


def live(
    place: type[RealLife], recorder: mounts.Recorder, book: TimedBook, seed: int, number: int
) -> TimedBook:
    """One life, which ends without a word; returns what clients know."""
    where = Folder(place.folder, recorder.position)
    life = place(
        where, book, flush_used_bytes=48 * KIB, cache_bytes=128 * KIB, cache_reserve_bytes=32 * KIB
    )
    do(life, Script(seed, 1 + 1000 * number).operations(OPERATIONS))
    book.adopted_runs += life.checkpoint.adopted_runs
    return book


@contextlib.contextmanager
def work_folder(plan: Plan) -> Iterator[Path]:
    """A folder in memory, removed at the end."""
    parent = MEMORY if MEMORY.is_dir() else plan.folder
    folder = Path(tempfile.mkdtemp(prefix="fastbk-rig-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
