"""Rig `power`: a bookie writes to a real file system on a device that logs every write and flush; then the power goes.

The device is a loop device whose file is served by `fuse_file.py`. From its log images are built at random moments,
each un-flushed sector of 512 bytes kept or not (`block_log.py`); the kernel mounts each image, as after a power cut,
and what is on it is compared with what had been acknowledged by that moment.
"""

from __future__ import annotations

import errno
import random
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from fastbk.storage import maintenance
from tests.rigs import mounts, power_bookie
from tests.rigs.block_log import MODELS, Images
from tests.rigs.children import ChildFailed, in_child
from tests.rigs.judge import Known, judge
from tests.rigs.opening import look, open_whole
from tests.rigs.recording import SIZES_BYTES, Folder, Recording, place_at, record, work_folder
from tests.rigs.report import Plan, Report

KINDS = tuple(SIZES_BYTES)
CUTS_A_RECORDING = 60
CUTS_OF_A_REAL_ONE = 24
REAL_EVERY = 3
"""Every third pair of recordings is of a real bookie, the others of the storage rig's."""
BULKY_EVERY = 2
"""Every second real one has so much load of large entries that the journal changes its files."""
ADOPTING_SHARE = 0.5
"""Of the recordings: of bookies whose journal files stay as logs."""
ADOPTING_WITHOUT_MAX = 10
"""So many of these may draw no batch with a run."""
WHOLE_EVERY = 10
FSCK_SHARE = 20
"""At most one of so many images may need the file system's own repair."""


def cut_all(
    plan: Plan,
    report: Report,
    recording: Recording,
    kind: str,
    folder: Path,
    seed: int,
    *,
    honours_flushes: bool,
) -> None:
    """Build, mount and judge images at random moments of one recording."""
    rng = random.Random(seed)
    images = Images(recording.base, recording.log, folder, honours_flushes=honours_flushes)
    last = len(recording.log.events)
    most = CUTS_OF_A_REAL_ONE if recording.data_at else CUTS_A_RECORDING
    cuts = recording.cuts(rng, min(most, plan.cases - report.cases) if plan.cases else most)
    startable = [cut for cut in cuts if cut > recording.last_start and recording.data_at]
    to_start = rng.choice(startable) if startable else -1
    for cut in cuts:
        if not plan.goes_on(report.cases):
            break
        model = rng.choice(MODELS)
        image = images.image(cut, model, rng)
        report.counts["un-flushed"] += images.pending
        case = f"seed {seed} {kind}{' real' if recording.data_at else ''} event {cut} of {last} {model}"
        known = recording.known(cut)
        report.lose(look_at(report, recording, known, image, kind, folder / "check"), case)
        if cut == to_start:
            to_start = -1
            # The metadata store is not cut: it knows of every deletion.
            alive = replace(known, deleted=set(recording.book.deleted_at))
            report.counts["started"] += 1
            report.lose(power_bookie.start_on(image, kind, folder, alive), f"{case} started")
        report.counts[kind] += 1
        image.unlink()
    images.close()


def look_at(
    report: Report, recording: Recording, known: Known, image: Path, kind: str, folder: Path
) -> list[str]:
    """Mount an image and compare, in a child."""
    report.cases += 1
    is_whole = report.cases % WHOLE_EVERY == 0 and not recording.data_at
    report.counts["whole"] += is_whole
    try:
        with mounts.mounted(image, folder, kind):
            return in_child(lambda: compare(recording, known, folder, is_whole))
    except ChildFailed as error:
        return [f"does not start: {error}"]
    except OSError as error:
        if error.errno != errno.EBADMSG or report.counts["fsck"] > report.cases // FSCK_SHARE:
            return [f"can't be mounted: {error}"]
    report.counts["fsck"] += 1
    try:
        mounts.repair(image, kind)
        with mounts.mounted(image, folder, kind):
            return in_child(lambda: compare(recording, known, folder, is_whole))
    except (OSError, subprocess.CalledProcessError, ChildFailed) as error:
        return [f"does not start after fsck: {error}"]


def compare(recording: Recording, known: Known, folder: Path, is_whole: bool) -> list[str]:
    """Open the bookie in this folder, and compare."""
    place = place_at(folder, incarnation=recording.incarnation, adopts=recording.adopts)
    if is_whole:
        return judge(known, open_whole(Folder(folder), known, place))
    found = look(Folder(folder), known.keys(), place)
    found.entries = {key: raw[recording.data_at :] for key, raw in found.entries.items()}
    return judge(known, found)


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
    usual = maintenance.MERGE_FILES_MIN
    maintenance.MERGE_FILES_MIN = 3
    try:
        seed = plan.seed
        while plan.goes_on(report.cases):
            kind = KINDS[seed % len(KINDS)]
            with work_folder(plan) as folder:
                turn, rest = divmod(seed // len(KINDS), REAL_EVERY)
                is_real = rest == 0 and not unsynced
                adopts = random.Random(seed).random() < ADOPTING_SHARE
                if is_real:
                    recording = power_bookie.record_bookie(
                        kind, seed, folder, is_bulky=turn % BULKY_EVERY == 0, adopts=adopts
                    )
                else:
                    recording = record(kind, seed, folder, unsynced=unsynced, adopts=adopts)
                report.counts["recordings"] += 1
                what = "files" if is_real else "runs"
                report.counts[f"adopting_{what}"] += adopts
                report.counts[f"adopted_{what}"] += recording.adopted
                cut_all(
                    plan, report, recording, kind, folder, seed, honours_flushes=honours_flushes
                )
            seed += 1
    finally:
        maintenance.MERGE_FILES_MIN = usual
    for what in ("files", "runs"):
        is_many = report.counts[f"adopting_{what}"] > ADOPTING_WITHOUT_MAX
        if is_many and not report.counts[f"adopted_{what}"]:
            report.lose([f"no {what} of the journal stayed as logs"], "the rig itself")
    report.seconds = time.monotonic() - began_s
    return report
