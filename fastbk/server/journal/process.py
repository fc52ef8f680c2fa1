"""The journal process: a loop of one C call a batch, and the change from file to file.

C takes, decides, commits and publishes (`fastbk.native.journal`); here is decided which file comes next, whether it
may become an entry log (`Adoption`), what is refused when the journal may not grow, and when to stop.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING, NoReturn

import msgspec

from fastbk.formats import LEVEL_FIRST, level_with
from fastbk.native.disk import Disk
from fastbk.native.journal import (
    BELL,
    LIMIT_NO_ADDS,
    LIMIT_NO_WRITES,
    LIMIT_OPEN,
    NEARLY_FULL,
    RECORD_HEADER_BYTES,
    ROLL,
    RUN_BYTES_MIN,
    Journal,
    JournalOptions,
)
from fastbk.native.process import disk_written_bytes, kill_point
from fastbk.native.segment import NO_HEADER_KEY, Segment, Stats, seal_segment
from fastbk.observe import logs
from fastbk.observe.names import ADOPT_REASONS, SLOTS
from fastbk.server.child import Child, keep_to, run
from fastbk.server.configuration.bookie_config import JournalConfig
from fastbk.server.configuration.settings import unconfirmed_ledgers_max
from fastbk.server.disks.disk_watch import DirectoryProbe, DiskWatch
from fastbk.server.disks.space_thresholds import journal_thresholds
from fastbk.server.faults import FAULTS, FAULTS_TAKEN
from fastbk.storage.disk_health import DiskState, Takes
from fastbk.storage.journal_files import OldFile, name_of
from fastbk.storage.journal_pool import JournalPool
from fastbk.storage.unclean import UNSYNCED
from fastbk.units import KIB, MIB, format_size

if TYPE_CHECKING:
    from fastbk.native.segment import Histogram
    from fastbk.server.configuration.bookie_config import Replayed


DEPTH = 2
STEP_TIMEOUT_MS = 100
WAITING_STEP_TIMEOUT_MS = 2
"""While a file is being made, or the limit is reached: nobody rings when that changes."""
LAG_PAUSE_S = 0.001
LOOK_INTERVAL_NS = 10_000_000
"""Pause between two checks of the control socket and the mark, under load."""
BURST_BATCH_BYTES = 128 * KIB
"""From this mean on batches are large: a write into blocks without zeros costs little more then."""
BURST_INTERVAL_NS = 100_000_000
CALM_TENTHS = 3
"""A burst has ended when so many tenths of a second in a row had none."""
ADOPT_WINDOW_BYTES = 64 * MIB
"""So much of what was taken last decides whether the next file adopts."""
ADOPT_SAMPLE_BYTES = 4 * MIB
GROUPED_SHARE_MIN = 0.75
"""Of that window, what came in groups that runs are made of: of less a file would become an entry log with holes."""
LOOSE_SHARE_MAX = 0.25
LOOSE_BYTES_MIN = 16 * MIB
"""A file that adopts is left early once more than this share of it, and more than these bytes, lie outside of runs."""
LEVEL_OF_ADOPTION = level_with("journal file", 3)
ADOPT_VARIABLE = "FASTBK_ADOPT_FROM"
"""For tests, in the environment: every file that may adopt does so, with runs of at least so many bytes."""
LATE_INTERVAL_S = 1.0
"""Pause between two reports of ledgers that begin behind entry 0: some lines each."""


def adopt_from_bytes() -> int:
    """Return the size of runs that tests set, 0 where they set none."""
    return int(os.environ.get(ADOPT_VARIABLE) or 0)


def record_bytes_max(frame_size_bytes_max: int) -> int:
    """Return the largest record that a frame of that size can become."""
    return (frame_size_bytes_max + RECORD_HEADER_BYTES + 7) // 8 * 8


def depth_of(disk: Disk) -> int:
    """Return how many batches may be under way: one where writes go through the page cache.

    An error of writing a page back is told once a file, to whichever sync asks first. With two under way the second's
    could take the first's error, and the first would look durable (INV-J1).
    """
    return 1 if disk.sync_mode.startswith("write+") else min(DEPTH, disk.depth_max)


def journal_options(child: Child, config: JournalConfig, disk: Disk) -> JournalOptions:
    """Return what C needs, from configuration and descriptors."""
    replayed = config.replayed
    workers = range(config.worker_count)
    return JournalOptions(
        epoch=child.epoch,
        segment_fd=child.fds["segment"],
        index_segment_fd=child.fds["index_segment"],
        worker_segment_fds=[child.fds[f"worker_segment.{w}"] for w in workers],
        bell_fd=child.fds["bell"],
        index_bell_fd=child.fds["index_bell"],
        worker_bell_fds=[child.fds[f"worker_bell.{w}"] for w in workers],
        bookie_id=config.bookie_id,
        incarnation=config.incarnation,
        pair=config.pair,
        record_bytes_max=record_bytes_max(config.limits.frame_size_bytes_max),
        predecessor_file_id=replayed.predecessor_file_id,
        predecessor_sequence=replayed.predecessor_sequence,
        predecessor_crc=replayed.predecessor_crc,
        next_record_sequence=replayed.next_record_sequence,
        depth=depth_of(disk),
        block_size_bytes=disk.block_size_bytes,
        settings=(config.bookie, config.limits, config.settings),
        unconfirmed_ledgers_max=unconfirmed_ledgers_max(config.limits),
        unsynced=config.settings.sync == UNSYNCED,
        run_bytes_min=adopt_from_bytes() or RUN_BYTES_MIN,
        header_key=bytes.fromhex(config.header_key) or NO_HEADER_KEY,
    )


def old_files(replayed: Replayed, directory: str) -> list[OldFile]:
    """Return the files of earlier starts that the index found."""
    return [
        OldFile(
            file["file_id"],
            f"{directory}/{name_of(file['file_id'])}",
            file["last_sequence"],
            file["size_bytes"],
        )
        for file in replayed.old_files
    ]


def disk_watch(child: Child, config: JournalConfig) -> DiskWatch:
    """Return the watch over the journal directory's disk."""
    return DiskWatch(
        DirectoryProbe(config.settings.directory, child.fds["lock"]),
        journal_thresholds(config.disk),
        role="journal",
        pair=config.pair,
        interval_s=config.disk.check_interval_ms / 1e3,
        near_interval_s=config.disk.near_check_interval_ms / 1e3,
        tell=lambda report: child.send(msgspec.to_builtins(report)),
    )


class JournalLoop:
    """Steps, and what Python does between them."""

    def __init__(
        self,
        journal: Journal,
        pool: JournalPool,
        limit_bytes: int,
        disk: JournalDisk | None = None,
        adoption: Adoption | None = None,
    ) -> None:
        """`disk`: what the journal's directory takes; None: everything. `adoption`: None: no file adopts."""
        self.journal = journal
        self.pool = pool
        self.limit_bytes = limit_bytes
        self.limit = LIMIT_OPEN
        """What is refused now."""
        self._disk = disk
        self._files_limit = LIMIT_OPEN
        self._asked_limit = LIMIT_OPEN
        self._batches = BatchSizes(journal)
        self.adoption = adoption or Adoption(journal)
        self._adopt_reason = self.adoption.reason
        """Why the current file does not adopt."""
        self._is_first = True
        self._is_nearly_full = False
        self._wants_file = False
        self._needs_file = False
        """The current file takes no more, and the next one is not there yet."""
        self._late_s = 0.0

    def step(self) -> int:
        """One step, and a new file when it asks for one. Returns the step's reasons.

        Raises PoisonedError and OSError: publish nothing more, exit.
        """
        is_waiting = self._wants_file or self.limit != self._asked_limit
        reasons = self.journal.step(WAITING_STEP_TIMEOUT_MS if is_waiting else STEP_TIMEOUT_MS)
        if reasons & ROLL:
            self.roll()
        elif reasons & NEARLY_FULL:
            self._is_nearly_full = True
            self.pool.hurry()
            self._apply_limit()
        return reasons

    def roll(self) -> None:
        """Go on in the next file, if the limit allows one, else refuse.

        The last file within the limit is left by normal adds; one more is the room of fences and recovery
        adds. When that is full too, all that would have to be written is refused.
        """
        self._needs_file = True
        if self._disk is not None and not self._disk.may_make_files():
            self._set_limit(LIMIT_NO_WRITES)
            return
        self.pool.update(self.journal.mark_sequence, is_burst=self._batches.are_large)
        behind_bytes = self.pool.behind_bytes + self.pool.next_size_bytes
        if behind_bytes > self.limit_bytes + self.pool.file_size_bytes:
            self._set_limit(LIMIT_NO_WRITES)
            return
        # The first one is waited for; later a disk that hangs must not keep this loop from what else it is asked.
        file = self.pool.take(wait=self._is_first)
        if file is None and self.pool.is_making:
            time.sleep(LAG_PAUSE_S)  # the next step asks again
            return
        if file is None:
            # the disk is full: reads go on, and fences of fenced ledgers
            self._set_limit(LIMIT_NO_WRITES)
            return
        reason = self.adoption.reason
        adopts = not reason
        # Nothing is in flight when the journal asks for another file: only the closing batch follows, one block.
        end_bytes = self.journal.status.offset_bytes + self.pool.disk.block_size_bytes
        try:
            _, closed_sequence = self.journal.roll(
                file.file, file.file_id, file.salt, file.size_bytes, adopts=adopts
            )
        except BlockingIOError:
            # A consumer of descriptors lags and was rung: the next step asks again.
            self.pool.give_back(file)
            time.sleep(LAG_PAUSE_S)
            return
        kill_point("journal.roll_after_switch")
        self.pool.used(file, closed_sequence, adopts=adopts, end_bytes=end_bytes)
        if reason != self._adopt_reason:
            self._adopt_reason = reason
            logs.info("journal.adoption_changed", adopts=adopts, reason=reason)
        self._is_first = self._is_nearly_full = self._needs_file = False
        self._set_limit(LIMIT_NO_ADDS if behind_bytes > self.limit_bytes else LIMIT_OPEN)
        self.poll_files()

    def poll_files(self) -> None:
        """Recycle behind the mark, have the next file made, open or close the journal to adds; log late ledgers."""
        now_s = time.monotonic()
        if now_s >= self._late_s:
            self._late_s = now_s + LATE_INTERVAL_S
            log_late_ledgers(self.journal)
        if self._disk is not None:
            self._disk.poll(self.pool)
            if self._disk.watch.is_gone:
                self._apply_limit()
                return
        is_burst = self._batches.measure(time.monotonic_ns())
        if not is_burst and not self._needs_file:
            self.pool.fill()
        self.pool.update(self.journal.mark_sequence, is_burst=is_burst)
        self._wants_file = not self.pool.has_ready
        behind_bytes = self.pool.behind_bytes
        if self._files_limit == LIMIT_NO_ADDS and behind_bytes <= self.limit_bytes:
            self._set_limit(LIMIT_OPEN)
        if self._files_limit == LIMIT_NO_WRITES and self.pool.has_ready:
            next_bytes = behind_bytes + self.pool.next_size_bytes
            if next_bytes <= self.limit_bytes:
                self._set_limit(LIMIT_OPEN)
            elif next_bytes <= self.limit_bytes + self.pool.file_size_bytes:
                self._set_limit(LIMIT_NO_ADDS)
        if not is_burst and self._is_soon_full():
            # Zeros that would end with the file would stand in the way of its last batches.
            self.pool.hurry()
        elif not is_burst:
            self._leave_unwritten(behind_bytes)
        self.adoption.measure()
        if self.adoption.has_too_much_loose() and self._may_leave_early(behind_bytes):
            self.adoption.left_early()
            self.journal.request_roll()
        self.journal.note_files(
            behind_bytes,
            self.pool.recycled,
            self.pool.made,
            self.pool.allocated,
            disk_written_bytes(),
        )
        self.journal.note_ready(self.pool.ready_count, self.pool.ready_s)
        if self._disk is not None:
            self._disk.watch.journal_files = self._text_of_files()
        self.journal.note_adoption(
            self.pool.free_bytes, self.pool.kept_bytes, ADOPT_REASONS.index(self._adopt_reason)
        )
        self._apply_limit()

    def _text_of_files(self) -> str:
        """Return whether the current file may become an entry log, for people."""
        reason = self._adopt_reason
        now = f"the current one cannot become an entry log: {reason}" if reason else ""
        return f"{format_size(self.pool.free_bytes)} free; {now or 'the current one may become an entry log'}"

    def _leave_unwritten(self, behind_bytes: int) -> None:
        """Go on in a file full of zeros, if the next batch would go into blocks without them (INV-J5)."""
        from_bytes = self.pool.unwritten_from_bytes
        if from_bytes is None or not self._may_leave_early(behind_bytes):
            return
        if from_bytes < self.journal.status.offset_bytes + BURST_BATCH_BYTES:
            self.journal.request_roll()

    def _may_leave_early(self, behind_bytes: int) -> bool:
        """Return whether a file may be left before it is full: there is another one, and it may count whole.

        One more has to fit then, unless the limit has room for two only.
        """
        if not self.pool.has_ready or self.limit == LIMIT_NO_WRITES:
            return False
        spare_bytes = self.pool.file_size_bytes
        if self.limit_bytes <= 2 * spare_bytes:
            spare_bytes = 0
        return behind_bytes + self.pool.next_size_bytes + spare_bytes <= self.limit_bytes

    def _is_soon_full(self) -> bool:
        """Whether the file is full within a second: then it is not worth another one's zeros, either."""
        status = self.journal.status
        ahead_bytes = max(BURST_BATCH_BYTES, 10 * self._batches.tenth_bytes)
        return status.offset_bytes + ahead_bytes >= status.file_size_bytes

    def refuse_adds(self, on: bool) -> None:
        """Refuse normal adds because an operator wants that, or no longer."""
        self._asked_limit = LIMIT_NO_ADDS if on else LIMIT_OPEN
        self._apply_limit()

    def drain(self) -> None:
        """Take all that is in the rings (nobody writes there any more) and close the journal."""
        while not self.journal.close():
            self.step()

    def _set_limit(self, limit: int) -> None:
        """Note what the files have room for."""
        self._files_limit = limit
        self._apply_limit()

    def _apply_limit(self) -> None:
        """Refuse what the files have no room for, or what the disk does not take."""
        limit = max(self._files_limit, self._asked_limit)
        if (self.pool.no_room or self.pool.failure) and self._is_nearly_full:
            # The last quarter of the last file that there is: room for fences and recovery adds.
            limit = max(limit, LIMIT_NO_ADDS)
        if self._disk is not None:
            limit = max(limit, int(self._disk.takes))
        if limit == self.limit:
            return
        self.limit = limit
        self.journal.set_limit(limit)
        names = {LIMIT_OPEN: "open", LIMIT_NO_ADDS: "no adds", LIMIT_NO_WRITES: "no writes"}
        logs.warning(
            "journal.limit",
            limit=names[limit],
            behind_bytes=self.pool.behind_bytes,
            limit_bytes=self.limit_bytes,
            reason=self.pool.no_room or self.pool.failure,
        )


class Adoption:
    """Whether the next file adopts: whether what one ledger brings in one batch is written as runs that stay there.

    Attributes:
        level: the cluster's format level, as it was told last (INV-U1).
    """

    def __init__(
        self,
        journal: Journal,
        *,
        obstacle: str = "off",
        level: int = LEVEL_FIRST,
        window_bytes: int = ADOPT_WINDOW_BYTES,
    ) -> None:
        """`obstacle`: what will not change in this life, a word of `ADOPT_REASONS`; empty: nothing. `window_bytes`: 0:
        for tests, which do not write so much: the size of groups counts for nothing.
        """
        self.level = level
        self._journal = journal
        self._obstacle = obstacle
        self._window_bytes = window_bytes
        self._samples: deque[tuple[int, int]] = deque([(0, 0)])
        """Bytes taken and grouped since the start, at some moments: the first one is a window ago, if there was one."""
        self._left_file_id = 0
        """The file that was left early last, because too much in it was loose."""

    def measure(self) -> None:
        """Look how large the groups are; at least once in `ADOPT_SAMPLE_BYTES`, give or take a batch."""
        status = self._journal.status
        samples = self._samples
        if status.taken_bytes - samples[-1][0] < ADOPT_SAMPLE_BYTES:
            return
        samples.append((status.taken_bytes, status.grouped_bytes))
        while len(samples) > 2 and status.taken_bytes - samples[1][0] >= self._window_bytes:
            samples.popleft()

    @property
    def reason(self) -> str:
        """Why the next file would not adopt, a word of `ADOPT_REASONS`; empty: it would."""
        if self._obstacle:
            return self._obstacle
        if self.level < LEVEL_OF_ADOPTION:
            return "level"
        if not self._window_bytes:
            return ""
        status = self._journal.status
        taken_bytes = status.taken_bytes - self._samples[0][0]
        grouped_bytes = status.grouped_bytes - self._samples[0][1]
        if taken_bytes < self._window_bytes or grouped_bytes < GROUPED_SHARE_MIN * taken_bytes:
            return "small batches"
        # What could have been runs may be loose all the same, where the index lags: then the next file would be left
        # early, too, and so on.
        is_left = bool(status.adopts) and status.file_id == self._left_file_id
        return "loose" if is_left or self.has_too_much_loose() else ""

    def left_early(self) -> None:
        """Note that the current file is left because too much in it is loose: the next one does not adopt."""
        self._left_file_id = self._journal.status.file_id

    def has_too_much_loose(self) -> bool:
        """Return whether the current file adopts, and would be a log with too much in it that is none of its."""
        status = self._journal.status
        return (
            bool(status.adopts)
            and status.loose_bytes > LOOSE_BYTES_MIN
            and status.loose_bytes > LOOSE_SHARE_MAX * status.offset_bytes
        )


def obstacle_of(config: JournalConfig, sync_mode: str) -> str:
    """Return why no file of this life adopts, a word of `ADOPT_REASONS`; empty: it depends.

    Through the page cache a batch whose sync has failed may be read back whole, and be on no disk.
    """
    if config.adopt == "never":
        return "off"
    if not config.is_on_ledger_disk:
        return "other disk"
    if config.settings.sync == UNSYNCED:
        return "unsynced"
    return "buffered" if sync_mode.startswith("write+") else ""


class BatchSizes:
    """Whether the journal's batches are large: by their mean in a tenth of a second, and until three have been calm.

    A tenth in which something waits for the disk and no batch was begun says nothing.
    """

    def __init__(self, journal: Journal) -> None:
        self.are_large = False
        self.tenth_bytes = 0
        """Bytes of the last tenth of a second."""
        self._journal = journal
        self._bytes = self._sequence = self._due_ns = self._calm_tenths = 0

    def measure(self, now_ns: int) -> bool:
        """Measure again, if it is time to; return `are_large`."""
        if now_ns < self._due_ns:
            return self.are_large
        self._due_ns = now_ns + BURST_INTERVAL_NS
        status = self._journal.status
        batches = status.sequence - self._sequence
        size_bytes = status.journal_bytes - self._bytes
        self._bytes, self._sequence = status.journal_bytes, status.sequence
        self.tenth_bytes = size_bytes
        if batches == 0 and (status.in_flight or status.waiting_bytes):
            return self.are_large
        is_large = batches > 0 and size_bytes >= batches * BURST_BATCH_BYTES
        self._calm_tenths = 0 if is_large else self._calm_tenths + 1
        self.are_large = self._calm_tenths < CALM_TENTHS and (is_large or self.are_large)
        return self.are_large


def log_late_ledgers(journal: Journal) -> None:
    """Log the ledgers whose first add here was not entry 0: their earlier entries are elsewhere, or striped."""
    found, others = journal.take_late()
    for at, one in enumerate(found):
        logs.info(
            "journal.ledger_begins_late",
            ledger_id=one.ledger_id,
            first_entry_id=one.entry_id,
            recovery=one.is_recovery,
            others=others if at == len(found) - 1 else 0,
        )


def serve(child: Child, loop: JournalLoop) -> None:
    """Step until the supervisor asks to drain."""
    next_check_ns = 0
    while True:
        reasons = loop.step()
        now_ns = time.monotonic_ns()
        if now_ns >= next_check_ns:
            next_check_ns = now_ns + LOOK_INTERVAL_NS
            loop.poll_files()
        elif not reasons & BELL:
            continue
        message = child.receive() or {}
        if message.get("type") == "refuse_adds":
            loop.refuse_adds(bool(message.get("on")))
        elif message.get("type") == "journal_files_free":
            loop.pool.release(message["file_ids"])
        elif message.get("type") == "format_level":
            loop.adoption.level = int(message["level"])
        elif message.get("type") == FAULTS:
            loop.journal.delay(int(message["commit_delay_ms"]))
            child.send({"type": FAULTS_TAKEN})
        elif message.get("type") == "drain":
            loop.drain()
            return


def main(child: Child) -> None:
    """The journal's life after `configure`."""
    config = msgspec.convert(child.config, JournalConfig)
    keep_to(config.bookie.processors)
    settings = config.settings
    disk = Disk(settings.directory, settings.backend)
    journal = Journal(disk, journal_options(child, config, disk))
    seal_segment(child.fds["segment"])
    journal.load_states(child.fds["states"], config.replayed.states)
    pool = JournalPool(
        disk,
        settings.directory,
        next_file_id=config.replayed.next_file_id,
        file_size_bytes=settings.file_size_bytes,
        first_file_size_bytes=settings.first_file_size_bytes,
        limit_bytes=settings.limit_bytes,
        old_files=old_files(config.replayed, settings.directory),
    )
    if config.replayed.predecessor_end_bytes:
        pool.cut_earlier(config.replayed.predecessor_file_id, config.replayed.predecessor_end_bytes)
    if disk.fallback_reason:
        logs.warning("journal.io_uring_refused", reason=disk.fallback_reason, backend=disk.name)
    watch = disk_watch(child, config)
    stats = Stats(Segment(child.fds["segment"], "journal"))
    journal_disk = JournalDisk(
        watch,
        journal,
        stats,
        slow_commit_ms=config.disk.slow_commit_ms,
        has_ledgers=config.is_on_ledger_disk,
    )
    adoption = Adoption(
        journal,
        obstacle=obstacle_of(config, disk.sync_mode),
        level=config.format_level,
        window_bytes=0 if adopt_from_bytes() else ADOPT_WINDOW_BYTES,
    )
    if adopt_from_bytes():
        logs.warning("journal.adopts_for_tests", run_bytes_min=adopt_from_bytes())
    loop = JournalLoop(journal, pool, settings.limit_bytes, journal_disk, adoption)
    loop.refuse_adds(config.refuses_adds)
    watch.start()
    loop.roll()
    sync_mode = "none" if settings.sync == UNSYNCED else disk.sync_mode
    logs.info(
        "journal.ready", backend=disk.name, sync_mode=sync_mode, file_id=journal.status.file_id
    )
    kill_point("journal.before_ready")
    child.ready(backend=disk.name, sync_mode=sync_mode)
    serve(child, loop)
    status = journal.status
    child.send(
        {"type": "drained", "sequence": status.published_sequence, "bytes": status.journal_bytes}
    )
    pool.close()


LOOK_INTERVAL_S = 0.25
SPEED_INTERVAL_S = 1.0
NEXT_FILE = "making the next file"


class JournalDisk:
    """The journal directory's disk, as the journal's loop asks about it."""

    def __init__(
        self,
        watch: DiskWatch,
        journal: Journal,
        stats: Stats,
        *,
        slow_commit_ms: int,
        has_ledgers: bool = False,
    ) -> None:
        """`stats`: those of the journal's own segment. `slow_commit_ms`: half of the commits may take that long.
        `has_ledgers`: the ledger directory is on the same disk.
        """
        self.watch = watch
        self._has_ledgers = has_ledgers
        self._journal = journal
        self._stats = stats
        self._speed = CommitSpeed(slow_commit_ms * 1_000_000)
        self._next_check_s = 0.0
        self._next_speed_s = 0.0
        self._failure = ""
        self._published = 0
        self._published_s = time.monotonic()

    @property
    def takes(self) -> Takes:
        """What may be written because of the disk."""
        return self.watch.takes

    def may_make_files(self) -> bool:
        """Return whether the directory is where it was (INV-D2): asked before each change of a file's name."""
        self.watch.poll_now()
        return not self.watch.is_gone

    def poll(self, pool: JournalPool) -> None:
        """Take in what happened since the last look."""
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + LOOK_INTERVAL_S
        self.watch.poll()
        self.watch.no_room(pool.no_room)
        pool.is_disk_nearly_full = self._has_ledgers and self.watch.health.state is not DiskState.OK
        if pool.failure != self._failure:
            self._failure = pool.failure
            if self._failure:
                self.watch.failed(NEXT_FILE, self._failure)
            else:
                self.watch.worked(NEXT_FILE)
        if now_s >= self._next_speed_s:
            self._next_speed_s = now_s + SPEED_INTERVAL_S
            self._look_at_speed(now_s)

    def _look_at_speed(self, now_s: float) -> None:
        status = self._journal.status
        if status.published_sequence != self._published or not status.in_flight:
            self._published, self._published_s = status.published_sequence, now_s
        waits_ns = int((now_s - self._published_s) * 1e9)
        commits = self._stats.histogram(SLOTS["FBK_H_JOURNAL_COMMIT_NS"])
        self.watch.set_slow(self._speed.check(commits, waits_ns))


COMMITS_MIN = 10
"""Fewer commits between two looks prove nothing."""


class CommitSpeed:
    """Compares the commits since the last look with what they may take.

    Slowness refuses nothing: every queue in front of a disk is bounded, so clients just wait. It is reported, so that
    somebody replaces the disk before it fails.
    """

    def __init__(self, slow_ns: int) -> None:
        """`slow_ns`: a disk that takes longer for half of its commits is slow."""
        self._slow_ns = slow_ns
        self._before: Histogram | None = None
        self._is_stuck = False
        self.said = ""
        """Why the disk is slow, empty if it is not."""

    def check(self, commits: Histogram, waits_ns: int) -> str:
        """Return why the disk is slow now; as before, when too few commits came since.

        Args:
            commits: all of them, in nanoseconds. waits_ns: how long one has been under way by now; 0 for none.
        """
        new = commits if self._before is None else commits.minus(self._before)
        if waits_ns > self._slow_ns:
            self._is_stuck = True
            self.said = f"a commit has been under way for {waits_ns / 1e9:.1f} s"
            return self.said
        if self._is_stuck:
            self._is_stuck, self.said = False, ""
        if sum(new.buckets) >= COMMITS_MIN:
            self._before = commits
            half_ns = new.percentile(50)
            self.said = (
                f"half of the commits take {half_ns / 1e6:.0f} ms or more"
                if half_ns > self._slow_ns
                else ""
            )
        return self.said


def start() -> NoReturn:
    """Begin this process's life; it does not return."""
    run("journal", main)
