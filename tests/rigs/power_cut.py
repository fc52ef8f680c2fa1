"""Rig `power`: a bookie writes to a real file system on a device that logs every write and flush; then the power goes.

The device is a loop device whose file is served by `fuse_file.py`. From its log images are built at random moments,
each un-flushed sector of 512 bytes kept or not (`block_log.py`); the kernel mounts each image, as after a power cut,
and what is on it is compared with what had been acknowledged by that moment.
"""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fastbk.native.disk import Disk
from fastbk.storage import locations_files
from fastbk.storage.checkpoint import CheckpointSettings
from fastbk.storage.directories import make_ledger_directory
from tests.fixtures.storage_rig import KIB, Disks
from tests.rigs import mounts
from tests.rigs.block_log import FLUSH, MODELS, BlockLog, Images, copy_sparse
from tests.rigs.children import ChildFailed, in_child
from tests.rigs.doing import do
from tests.rigs.judge import Known, judge
from tests.rigs.opening import look, open_whole
from tests.rigs.report import Plan, Report
from tests.rigs.script import Script
from tests.rigs.timed import TimedBook, TimedLife

SIZES_BYTES = {"ext4": 160 << 20, "xfs": 64 << 20}
"""ext4 has a second superblock only behind 128 MiB."""
KINDS = tuple(SIZES_BYTES)
CUTS_A_RECORDING = 60
OPERATIONS = 80
LIVES = 2
WHOLE_EVERY = 10
FSCK_SHARE = 20
"""At most one of so many images may need the file system's own repair."""
MEMORY = Path("/dev/shm")


class RealLife(TimedLife):
    """A life on a real folder: the journal by io_uring where it works, the rest by plain system calls."""

    folder: Path

    def _open_disks(self, fake: Disks) -> list[Disk]:
        return [Disk(self.folder, backend) for backend in ("plain", "plain", "auto")]


def place_at(folder: Path, *, unsynced: bool = False) -> type[RealLife]:
    """Return the lives of a bookie in this folder."""
    return type(
        "PlacedLife",
        (RealLife,),
        {
            "folder": folder,
            "unsynced": unsynced,
            "journal_directory": str(folder / "journal"),
            "ledger_directory": str(folder / "ledgers"),
            "settings": CheckpointSettings(entry_log_size_bytes=256 * KIB, step_bytes=64 * KIB, attempts_max=2),
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
    """What a device saw, and what clients knew when."""

    base: Path
    log: BlockLog
    book: TimedBook
    first_cut: int

    def known(self, cut: int) -> Known:
        """What clients knew when `cut` events were done."""
        return self.book.known_at(self.log.events[cut - 1].end + 1)

    def cuts(self, rng: random.Random, count: int) -> list[int]:
        """Draw moments, rising: anywhere, just before a flush (most is in doubt), just after an acknowledgement."""
        events = self.log.events
        flushes = [at for at in range(self.first_cut, len(events)) if events[at].kind == FLUSH]
        acks = [max(self.log.index_of(told.moment), self.first_cut) for told in self.book.told.values()]
        anywhere = range(self.first_cut, len(events) + 1)
        return sorted(rng.choice(rng.choice((anywhere, flushes, acks))) for _ in range(count))


def record(kind: str, seed: int, folder: Path, *, unsynced: bool = False) -> Recording:
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
            place = place_at(folder / "mount", unsynced=unsynced)
            for number in range(LIVES):
                book = in_child(lambda n=number, b=book: live(place, recorder, b, seed + n, n))
        finally:
            mounts.unmount(folder / "mount")
    finally:
        recorder.close()
    log = BlockLog(recorder.log)
    return Recording(base, log, book, log.index_of(first) + 1)


def live(place: type[RealLife], recorder: mounts.Recorder, book: TimedBook, seed: int, number: int) -> TimedBook:
    """One life, which ends without a word; returns what clients know."""
    where = Folder(place.folder, recorder.position)
    life = place(where, book, flush_used_bytes=48 * KIB, cache_bytes=128 * KIB, cache_reserve_bytes=32 * KIB)
    do(life, Script(seed, 1 + 1000 * number).operations(OPERATIONS))
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


def cut_all(
    plan: Plan, report: Report, recording: Recording, kind: str, folder: Path, seed: int, *, honours_flushes: bool
) -> None:
    """Build, mount and judge images at random moments of one recording."""
    rng = random.Random(seed)
    images = Images(recording.base, recording.log, folder, honours_flushes=honours_flushes)
    last = len(recording.log.events)
    count = min(CUTS_A_RECORDING, plan.cases - report.cases) if plan.cases else CUTS_A_RECORDING
    for cut in recording.cuts(rng, count):
        if not plan.goes_on(report.cases):
            break
        model = rng.choice(MODELS)
        image = images.image(cut, model, rng)
        report.counts["un-flushed"] += images.pending
        case = f"seed {seed} {kind} event {cut} of {last} {model}"
        report.lose(look_at(report, recording.known(cut), image, kind, folder / "check"), case)
        report.counts[kind] += 1
        image.unlink()
    images.close()


def look_at(report: Report, known: Known, image: Path, kind: str, folder: Path) -> list[str]:
    """Mount an image and compare, in a child."""
    report.cases += 1
    is_whole = report.cases % WHOLE_EVERY == 0
    report.counts["whole"] += is_whole
    try:
        with mounts.mounted(image, folder, kind):
            return in_child(lambda: compare(known, folder, is_whole))
    except ChildFailed as error:
        return [f"does not start: {error}"]
    except OSError as error:
        if error.errno != errno.EBADMSG or report.counts["fsck"] > report.cases // FSCK_SHARE:
            return [f"can't be mounted: {error}"]
    report.counts["fsck"] += 1
    try:
        mounts.repair(image, kind)
        with mounts.mounted(image, folder, kind):
            return in_child(lambda: compare(known, folder, is_whole))
    except (OSError, subprocess.CalledProcessError, ChildFailed) as error:
        return [f"does not start after fsck: {error}"]


def compare(known: Known, folder: Path, is_whole: bool) -> list[str]:
    """Open the bookie in this folder, and compare."""
    place = place_at(folder)
    if is_whole:
        return judge(known, open_whole(Folder(folder), known, place))
    return judge(known, look(Folder(folder), known.keys(), place))


def run(plan: Plan, *, honours_flushes: bool = True, unsynced: bool = False) -> Report:
    """Record and cut until there are enough images.

    Args:
        plan: how many.
        honours_flushes: False: on a device that lies.
        unsynced: with a bookie that acknowledges before it writes. Both have to lose.
    """
    report = Report("power", skipped=mounts.why_not_fuse())
    if report.skipped:
        return report
    began_s = time.monotonic()
    usual = locations_files.MERGE_FILES_MIN
    locations_files.MERGE_FILES_MIN = 3
    try:
        seed = plan.seed
        while plan.goes_on(report.cases):
            kind = KINDS[seed % len(KINDS)]
            with work_folder(plan) as folder:
                recording = record(kind, seed, folder, unsynced=unsynced)
                report.counts["recordings"] += 1
                cut_all(plan, report, recording, kind, folder, seed, honours_flushes=honours_flushes)
            seed += 1
    finally:
        locations_files.MERGE_FILES_MIN = usual
    report.seconds = time.monotonic() - began_s
    return report
