"""Rig `disk`: journal, index and store on the fake disk; the power goes at every moment, any write fails.

One run of a script gives many cases: the disk copies itself at moments on the way, and each copy is a crash, resolved
several times: nothing kept of what was not synced, all, or any of its sectors and names. Besides, operations fail with
EIO or ENOSPC, come short, or end the life with the power off; then the bookie starts again and goes on with the next
script on the same disk. Most cases are looked at by reading the formats, every few by starting a whole bookie.
"""

from __future__ import annotations

import errno
import random
import time
from dataclasses import dataclass, field
from typing import Any

from fastbk.errors import Error
from fastbk.storage import maintenance
from fastbk.storage.checkpoint import CheckpointSettings
from fastbk.storage.manifest import COMPACTION
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.storage_harness import FILE_BYTES, KIB, SMALL_FILE_BYTES, format_disk
from tests.rigs.doing import do
from tests.rigs.judge import Known, judge
from tests.rigs.opening import look, open_whole
from tests.rigs.report import Plan, Report
from tests.rigs.script import Script
from tests.rigs.timed import TimedBook, TimedLife

OPERATIONS = (40, 120, 300)
LIVES_MAX = 3
STRIDES = (3, 7, 19)
RESOLUTIONS = ("lose", "keep", "random", "random")
WHOLE_EVERY = 25
ADOPTING_SHARE = 0.6
SEEDS_WITHOUT_RUNS_MAX = 10
"""So many may draw no bookie that adopts."""
RUN_BYTES_MINS = (1, 2 * KIB, 8 * KIB)
"""Of bookies whose journal files adopt: batches have 16 KiB."""
SETTLES_A_ROLL = (0, 0, 3, 8)
"""How often a journal leaves its file early: one that adopts is cut then."""
LEDGERS_BETWEEN_LIVES = 1000
FAULTS = (
    {"action": "fail", "errno": errno.EIO},
    {"action": "fail", "errno": errno.ENOSPC},
    {"action": "fail", "errno": errno.EIO, "times": 5},
    {"action": "short"},
    {"action": "cut"},
)


@dataclass
class Run:
    """One seed: one disk, up to three lives."""

    seed: int
    report: Report
    plan: Plan
    book: TimedBook = field(default_factory=TimedBook)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.fake = FakeDisk(seed=self.seed)
        format_disk(self.fake)
        rng = self.random
        self.place = type(
            "DrawnLife",
            (TimedLife,),
            {
                "settings": CheckpointSettings(
                    entry_log_size_bytes=rng.choice((12, 24, 64, 256)) * KIB,
                    step_bytes=rng.choice((4, 16)) * KIB,
                    attempts_max=rng.choice((1, 2)),
                ),
                **drawn_adoption(rng),
            },
        )
        self.options = rng.choice(
            (
                {
                    "cache_bytes": 128 * KIB,
                    "cache_reserve_bytes": 32 * KIB,
                    "flush_used_bytes": 64 * KIB,
                },
                {
                    "cache_bytes": 128 * KIB,
                    "cache_reserve_bytes": 32 * KIB,
                    "flush_used_bytes": 8 * KIB,
                },
                {
                    "cache_bytes": 2048 * KIB,
                    "cache_reserve_bytes": 64 * KIB,
                    "flush_used_bytes": 1 << 30,
                },
            )
        )

    def lives(self) -> None:
        """Live up to three times; look at every crash on the way."""
        for number in range(self.random.randint(1, LIVES_MAX)):
            if not self.plan.goes_on(self.report.cases):
                return
            self.live(number)
            self.look_at_snapshots(number)
            self.end(number)

    def live(self, number: int) -> None:
        """One life, which ends cleanly, by a kill or by what the disk does."""
        rng, fake = self.random, self.fake
        script = Script(rng.randrange(1 << 30), 1 + LEDGERS_BETWEEN_LIVES * number)
        operations = list(script.operations(rng.choice(OPERATIONS)))
        fake.deliver(rng.choice(("at_once", "newest_first", "shuffled")))
        if rng.random() < 0.5:
            fault: dict[str, Any] = dict(rng.choice(FAULTS))
            fake.fault(**fault, nth=rng.randint(1, 6 * len(operations)))
            self.report.counts["faults"] += 1
        life = None
        stride = rng.choice(STRIDES)
        try:
            life = self.place(fake, self.book, stride=stride, **self.options)
            do(life, operations)
            self.report.counts["compactions"] += sum(
                log.kind == COMPACTION for log in life.checkpoint.manifest.logs
            )
            if rng.random() < 0.3:
                life.stop()
        except (OSError, Error):
            self.report.counts["ended_by_disk"] += 1
        except AssertionError as error:
            self.report.lose([str(error)], f"seed {self.seed} life {number}")
        finally:
            if life is not None:
                self.report.counts["recycled"] += life.pool.recycled
            if life is not None and life.harness is not None:
                life.look_at_the_end()
                life.close()
            if life is not None:
                self.report.counts["adopted_runs"] += life.checkpoint.adopted_runs
        fake.clear_faults()
        fake.deliver("at_once")
        self.report.counts["lives"] += 1

    def look_at_snapshots(self, number: int) -> None:
        """Each snapshot, resolved several times."""
        for snapshot in self.fake.snapshots():
            with snapshot.disk as disk:
                if not self.plan.goes_on(self.report.cases):
                    continue
                self.report.counts["moments"] += 1
                known = self.book.known_at(snapshot.moment, snapshot.watched)
                for turn, mode in enumerate(RESOLUTIONS):
                    with disk.copy() as copy:
                        self.look_at(
                            copy,
                            mode,
                            known,
                            f"life {number} moment {snapshot.moment} {mode} {turn}",
                        )

    def end(self, number: int) -> None:
        """The power goes at the life's end too, in most cases; the next life starts on what is left."""
        if self.fake.is_off or self.random.random() < 0.7:
            if not self.fake.is_off:
                self.fake.cut()
            self.fake.restart("random", self.random.randrange(1 << 30))
        with self.fake.copy() as copy:
            self.judge(copy, self.book.known(), f"the end of life {number}", is_whole=True)

    def look_at(self, copy: FakeDisk, mode: str, known: Known, case: str) -> None:
        """Resolve one copy, and judge it."""
        copy.restart(mode, self.random.randrange(1 << 30))
        self.judge(copy, known, case, is_whole=self.report.cases % WHOLE_EVERY == 0)

    def judge(self, disk: FakeDisk, known: Known, case: str, *, is_whole: bool) -> None:
        """Open the disk and compare."""
        self.report.cases += 1
        name = f"seed {self.seed} {case}{' whole' if is_whole else ''}"
        try:
            if is_whole:
                self.report.counts["whole"] += 1
                found = open_whole(disk, known, self.place)
            else:
                found = look(disk, known.keys(), self.place)
        except (OSError, Error, AssertionError) as error:
            self.report.lose([f"does not start: {type(error).__name__}: {error}"], name)
            return
        self.report.lose(judge(known, found), name)


def drawn_adoption(rng: random.Random) -> dict[str, Any]:
    """Draw whether journal files adopt, with what runs, and when they are left early: attributes of a life."""
    return {
        "adopts": rng.random() < ADOPTING_SHARE,
        "run_bytes_min": rng.choice(RUN_BYTES_MINS),
        "settles_a_roll": rng.choice(SETTLES_A_ROLL),
        "first_file_bytes": rng.choice((SMALL_FILE_BYTES, FILE_BYTES)),
    }


def run(plan: Plan) -> Report:
    """Run seeds from `plan.seed` on until there are enough cases."""
    report = Report("disk")
    began_s = time.monotonic()
    usual = maintenance.MERGE_FILES_MIN
    maintenance.MERGE_FILES_MIN = 3
    seed = plan.seed
    try:
        while plan.goes_on(report.cases):
            one = Run(seed, report, plan)
            with one.fake:
                one.lives()
                report.counts["cuts"] += one.fake.operations("truncate")
            report.counts["seeds"] += 1
            seed += 1
    finally:
        maintenance.MERGE_FILES_MIN = usual
    if report.counts["seeds"] > SEEDS_WITHOUT_RUNS_MAX and not report.counts["adopted_runs"]:
        report.lose(["no journal file stayed as a log"], "the rig itself")
    if report.counts["seeds"] > SEEDS_WITHOUT_RUNS_MAX and not report.counts["cuts"]:
        report.lose(["no journal file was cut"], "the rig itself")
    report.seconds = time.monotonic() - began_s
    return report
