"""The index process: a loop of one C call, and around it when to flush, what gc asks, and when to stop.

C takes in, answers and sleeps (`fastbk.native.index`); disks are read by threads that live in C, and written by the
flush thread alone (`fastbk.server.index.flush`). At start everything behind the mark is replayed and flushed before
the journal may begin (`fastbk.server.index.replay`).
"""

from __future__ import annotations

import gc
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from fastbk.errors import Error
from fastbk.native.disk import Disk
from fastbk.native.index import FLUSH, IDLE, WATCHED, Index, IndexOptions
from fastbk.native.journal import read_header
from fastbk.native.process import disk_written_bytes, kill_point
from fastbk.native.scrub import take_damage
from fastbk.native.segment import BEAT_BACKGROUND, BEAT_FLUSH, NO_HEADER_KEY, seal_segment
from fastbk.native.store import Store, StoreOptions
from fastbk.observe import logs
from fastbk.server.child import Child, run
from fastbk.server.configuration.bookie_config import IndexConfig
from fastbk.server.disks.disk_watch import DirectoryProbe, DiskWatch, require_mounted
from fastbk.server.faults import FAULTS, FAULTS_TAKEN
from fastbk.server.gc_messages import Space
from fastbk.server.index.background import Background, FlushThread
from fastbk.server.index.flush import Flusher
from fastbk.server.index.gc_port import GcPort, HeldCheck
from fastbk.server.index.replay import Replayed, replay
from fastbk.server.index.scrub import DigestTypes, Scrubber
from fastbk.server.process_table import write_cache_sizes
from fastbk.storage.checkpoint import Checkpoint, CheckpointSettings, random_bits
from fastbk.storage.commits import journal_files_of
from fastbk.storage.disk_health import Takes
from fastbk.storage.identity import pair_of
from fastbk.storage.journal_files import id_of
from fastbk.storage.limbo import read_limbo, remove_limbo
from fastbk.storage.maintenance import CompactionSettings
from fastbk.storage.manifest import ManifestSlots
from fastbk.storage.small_files import read_explicit_lacs, write_explicit_lacs
from fastbk.storage.unclean import mark_lost
from fastbk.units import KIB, MIB, format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.server.index.background import DirectJobs
    from fastbk.storage.commits import Commits, JournalLogs
    from fastbk.storage.manifest import Manifest


STEP_TIMEOUT_MS = 100
DRAIN_STEP_TIMEOUT_MS = 5
LOOK_INTERVAL_S = 0.5
"""Pause between two checks whether a failed flush is to be tried again."""
FILES_KNOWN_MAX = 100_000
REQUESTS_A_JOB = 4
"""Requests that wait in the index, for each that may be at the disk: batch reads wait there for their turn."""
EXIT_DRAIN_ROUNDS = 2
"""Idle steps in a row before a drain believes that nothing more comes."""


def cache_options(config: IndexConfig) -> dict[str, Any]:
    """Return the sizes of caches and thresholds, and the key of headers' hashes."""
    cache_bytes, reserve_bytes = write_cache_sizes(
        config.settings.write_cache_size_bytes, config.limits, config.worker_count
    )
    return {
        "cache_bytes": cache_bytes,
        "cache_reserve_bytes": reserve_bytes,
        "flush_used_bytes": cache_bytes // 2,
        "flush_journal_bytes": config.journal_limit_bytes // 4,
        "parked_bytes_max": max(8 * MIB, config.limits.frame_size_bytes_max),
        "requests_max": REQUESTS_A_JOB * config.settings.read_jobs_max,
        "header_key": bytes.fromhex(config.header_key) or NO_HEADER_KEY,
    }


class AdoptedFiles:
    """Tells the journal files that are ledgers' data from those that their journal has to itself (`DirectoryProbe`).

    Of this index's own journal the manifest says it. Of others' only headers can be read here: each file that adopts
    counts as data, although the journal may take it again. So a bit too much room is kept for those.
    """

    def __init__(self, directory: str, manifest: Callable[[], Manifest], disk: Disk) -> None:
        """`directory`: this pair's journal directory. `disk`: for reading, by any thread."""
        self._directory = directory
        self._manifest = manifest
        self._disk = disk
        self._known: tuple[Manifest, frozenset[int]] | None = None
        self._others: dict[tuple[str, int], bool] = {}

    def __call__(self, directory: str, name: str) -> bool:
        """Return whether this file is ledgers' data. Any thread, one at a time."""
        file_id = id_of(name)
        if file_id is None:
            return False
        if directory == self._directory:
            manifest, known = self._manifest(), self._known
            if known is None or known[0] is not manifest:
                known = self._known = manifest, journal_files_of(manifest)
            return file_id in known[1]
        key = directory, file_id
        if key not in self._others:
            try:
                header = read_header(self._disk, f"{directory}/{name}")
            except (OSError, Error):  # renamed just now, or damaged
                return False
            if header.state != "valid" or header.file_id != file_id:
                return False  # it has yet to be written to under this name
            if len(self._others) >= FILES_KNOWN_MAX:
                self._others.clear()  # most of them are gone
            self._others[key] = header.adopts
        return self._others[key]


def disk_watch(child: Child, config: IndexConfig, adopted: AdoptedFiles) -> DiskWatch:
    """Return the watch over the ledger directory's disk."""
    place = DirectoryProbe(
        config.settings.directory,
        child.fds["lock"],
        neighbours=config.journal_neighbours,
        neighbour_bytes_max=config.journal_bytes_max,
        is_data=adopted,
    )
    return DiskWatch(
        place,
        config.thresholds,
        role="ledger",
        pair=config.pair,
        interval_s=config.disk.check_interval_ms / 1e3,
        near_interval_s=config.disk.near_check_interval_ms / 1e3,
        tell=lambda report: child.send(msgspec.to_builtins(report)),
    )


class Parts:
    """What one index process is made of; made once, in this order."""

    def __init__(self, child: Child, config: IndexConfig) -> None:
        settings = config.settings
        self.config = config
        # Plain system calls: the flush thread may wait, and io_uring hands writes into new extents to kernel threads
        # (p99 of adds at window 1,000 was a fifth lower without; five paired runs, rates the same or better).
        self.disk = Disk(settings.directory, "plain")
        # Readers share one disk; only plain system calls may be used by several threads.
        self.reader_disk = self.disk.another(settings.directory, only_reads=True)
        self.background_disk = self.disk.another(settings.directory)
        self.journal_disk = Disk(config.journal_directory, "plain", only_reads=True)
        self.slots = ManifestSlots(self.disk, settings.directory)
        self.manifest = self.slots.load()
        self.store = Store(
            settings.directory,
            self.disk,
            self.reader_disk,
            StoreOptions(
                incarnation=config.incarnation,
                read_cache_size_bytes=settings.read_cache_size_bytes,
                block_cache_size_bytes=settings.block_cache_size_bytes,
                read_jobs_max=settings.read_jobs_max,
                pair=config.pair,
                journal_directory=config.journal_directory,
            ),
            self.background_disk,
        )
        self.checkpoint = Checkpoint(
            self.disk,
            settings.directory,
            self.slots,
            self.manifest,
            CheckpointSettings(
                entry_log_size_bytes=settings.entry_log_size_bytes,
                compaction=CompactionSettings(log_size_bytes=settings.entry_log_size_bytes),
            ),
            journal_directory=config.journal_directory,
        )
        adopted = AdoptedFiles(
            config.journal_directory, lambda: self.checkpoint.manifest, self.reader_disk
        )
        self.disk_watch = disk_watch(child, config, adopted)
        self.reader_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.jobs = FlushThread(lambda: self.index.beat(BEAT_FLUSH))
        self.index = self._new_index(child)
        self.explicit_lacs = ExplicitLacs(self.index, self.disk, settings.directory)
        beat = partial(self.index.beat, BEAT_BACKGROUND)
        self.background = Background(self.store, self.jobs.post, beat)
        self.digests = DigestTypes(child.offer)
        self.scrubber = self._new_scrubber()
        self.flusher = Flusher(
            self.index,
            self.store,
            self.checkpoint,
            self.jobs,
            self.disk,
            settings.directory,
            background=self.background,
            merge_bytes_per_s=settings.merge_rate_bytes,
            room_bytes=self.disk_watch.room_bytes,
            on_damage=partial(self.scrubber.quarantine, reason="found damaged by a compaction"),
            log=logs.warning,
        )

    def _new_index(self, child: Child) -> Index:
        config = self.config
        workers = range(config.worker_count)
        return Index(
            IndexOptions(
                epoch=child.epoch,
                segment_fd=child.fds["segment"],
                journal_segment_fd=child.fds["journal_segment"],
                worker_segment_fds=[child.fds[f"worker_segment.{w}"] for w in workers],
                bell_fd=child.fds["bell"],
                journal_bell_fd=child.fds["journal_bell"],
                worker_bell_fds=[child.fds[f"worker_bell.{w}"] for w in workers],
                reader_fd=self.reader_fd,
                watched_fds=(child.control.fileno(), child.fds["gc"], self.jobs.fd),
                seed=random_bits(63),
                settings=(config.limits, config.settings),
                **cache_options(config),
            ),
            self.store,
        )

    def _new_scrubber(self) -> Scrubber:
        """Return what looks for damage; all that it does with disks is done by the background thread."""
        return Scrubber(
            self.index,
            self.checkpoint,
            self.background,
            self.config.scrub,
            self.background_disk,
            self.config.settings.directory,
            self.journal_disk,
            self.config.journal_directory,
            self.config.incarnation,
            log=logs.warning,
            digests=self.digests,
            take_damage=lambda: take_damage(self.store),
        )

    def start_readers(self) -> None:
        """Start the threads that read disks; they spend their lives in C."""
        for n in range(self.config.settings.readers):
            threading.Thread(
                target=self.store.reader_run,
                args=(self.reader_fd,),
                name=f"reader.{n}",
                daemon=True,
            ).start()


class IndexLoop:
    """Steps, and what Python does between them."""

    def __init__(self, child: Child, parts: Parts, disk: IndexDisk) -> None:
        self.child = child
        self.disk = disk
        self.index = parts.index
        self.flusher = parts.flusher
        self.checkpoint = parts.checkpoint
        self.jobs = parts.jobs
        self.explicit_lacs = parts.explicit_lacs
        self.digests = parts.digests
        self.scrubber = parts.scrubber
        self.port = GcPort(
            child.fds["gc"],
            parts.index,
            parts.flusher,
            parts.checkpoint,
            self.space,
            HeldCheck(parts.store),
        )
        self.is_draining = False
        self._next_look_s = 0.0
        self._disk_written_bytes = 0

    def step(self, timeout_ms: int) -> int:
        """One step and what follows from it. Returns the step's reasons."""
        reasons = self.index.step(timeout_ms)
        if reasons & WATCHED:
            self.flusher.poll()
            self.receive()
        if reasons & WATCHED or self.port.has_unsent:
            self.port.poll()
        wants_flush = reasons & FLUSH or self.flusher.wants_flush or self.scrubber.wants_flush
        if wants_flush and self.disk.may_flush and not self.flusher.is_busy:
            self.scrubber.wants_flush = False
            self.flusher.begin()
            self.explicit_lacs.write(self.jobs)
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + LOOK_INTERVAL_S
            self._count_disk_writes()
            self.flusher.poll()  # a failed flush is tried again after a while
            self.scrubber.poll()
        self.disk.poll_if_due(now_s)
        return reasons

    def _count_disk_writes(self) -> None:
        now_bytes = disk_written_bytes()
        self.index.count("FBK_C_INDEX_DISK_WRITTEN_BYTES", now_bytes - self._disk_written_bytes)
        self._disk_written_bytes = now_bytes

    def space(self) -> Space:
        """Return what gc has to know of the disk: compaction must never use up the room of replay's flush."""
        report = self.disk.watch.report()
        return Space(
            free_bytes=report.free_bytes,
            total_bytes=report.free_bytes + report.used_bytes,
            floor_bytes=self.disk.watch.health.thresholds.reserve_bytes,
            is_full=self.disk.watch.takes is not Takes.ALL,
        )

    def receive(self) -> None:
        """Take the supervisor's messages. Raises SupervisorGone."""
        while (message := self.child.receive()) is not None:
            if message.get("type") == "drain":
                self.is_draining = True
            elif message.get("type") == "digests_known":
                self.digests.put_answers(message["digests"])
            elif message.get("type") == FAULTS:
                self.disk.watch.pretend_full(bool(message["is_full"]))
                self.disk.poll()
                self.child.send({"type": FAULTS_TAKEN})

    def drain(self) -> None:
        """Take all in (workers and journal are gone), then leave nothing to replay."""
        idle = 0
        while idle < EXIT_DRAIN_ROUNDS:
            reasons = self.step(DRAIN_STEP_TIMEOUT_MS)
            idle = idle + 1 if reasons & IDLE else 0
        self.explicit_lacs.write(self.jobs)  # done before the flush is: jobs keep their order
        self.flusher.flush_now(clean=True)


def wait_for_start(child: Child) -> bool:
    """Return whether the supervisor said `start`; False: it said `drain`. Raises SupervisorGone."""
    while True:
        message = child.receive(None)
        if message is not None and message.get("type") in ("start", "drain"):
            return bool(message["type"] == "start")


def confirm_damage(parts: Parts) -> None:
    """Before damage of the journal is put on record: it is this bookie's, and its successor will heed it.

    Fences of ledgers that are unknown here may be lost: the next boot asks metadata which ledgers those are (INV-F2).
    """
    config = parts.config
    require_mounted(config.journal_directory)
    mark_lost(parts.disk, config.settings.directory, config.incarnation)


def load_locations(parts: Parts) -> None:
    """Open the files that the manifest names; log which are damaged."""
    damaged = parts.checkpoint.load(parts.store)
    if damaged:
        parts.index.count("FBK_C_INDEX_DAMAGE_FOUND", len(damaged))
        logs.error("index.locations_damaged", file_ids=sorted(damaged))


def log_damage(found: Replayed, ledgers_in_limbo: int) -> None:
    """Log what replay has found damaged, and what is on record no more."""
    for damage in found.end.damage:
        logs.error("journal.damaged", **damage.message())
    if found.ended:
        logs.warning(
            "damage.in_limbo",
            damage=[one.what for one in found.ended],
            ledgers_in_limbo=ledgers_in_limbo,
            next="`fastbk bookie repair` copies back what was lost of them",
        )


def begin_maintenance(child: Child, parts: Parts, found: Replayed) -> None:
    """Begin what waits for the end of replay: the journal has its files from now on."""
    hold_mark_if_set(parts.index, parts.checkpoint.commits, log=logs.warning)
    parts.flusher.free_files.begin(
        found.end.next_file_id, partial(offer_free_files, child), found.end.files_named_later
    )
    parts.flusher.resume_leftovers()


def offer_free_files(child: Child, file_ids: list[int]) -> bool:
    """Have the supervisor tell the journal which files are free (INV-J3); return whether it does."""
    return child.offer({"type": "journal_files_free", "file_ids": file_ids})


def flushed_bytes(manifest: Manifest) -> int:
    """Return the bytes of all logs that flushes write; those of journal files are the journal's."""
    return sum(log.durable_bytes for log in manifest.logs if not log.is_journal_file)


def open_parts(child: Child, config: IndexConfig) -> Parts:
    """Return the parts, with the index's segment sealed: it has mapped all that it writes."""
    parts = Parts(child, config)
    seal_segment(child.fds["segment"])
    return parts


def main(child: Child) -> None:
    """The index's life after `configure`."""
    config = msgspec.convert(child.config, IndexConfig)
    parts = open_parts(child, config)
    load_locations(parts)
    parts.start_readers()
    limbo = [
        ledger_id
        for ledger_id in read_limbo(parts.disk, config.settings.directory, config.incarnation)
        if pair_of(ledger_id, config.shards) == config.pair
    ]
    if limbo:
        logs.warning("index.ledgers_in_limbo", ledgers=len(limbo))
    short_bytes = config.thresholds.reserve_bytes - parts.disk_watch.health.sample.free_bytes
    if short_bytes > 0:
        logs.warning(
            "disk.reserve_is_short",
            missing_bytes=short_bytes,
            next="free space: replay may not have room",
        )
    started_s = time.monotonic()
    found = replay(
        parts.index,
        parts.flusher,
        parts.manifest,
        parts.journal_disk,
        config.journal_directory,
        config.incarnation,
        limbo,
        confirm=lambda: confirm_damage(parts),
        is_listed=config.is_limbo_listed,
    )
    remove_limbo(parts.disk, config.settings.directory)
    parts.explicit_lacs.load()
    kill_point("index.replay_before_states")
    states = parts.index.write_states(child.fds["states"])
    logs.info(
        "journal.replayed",
        batches=found.batches,
        records=found.records,
        size_kib=found.bytes // KIB,
        took_ms=int((time.monotonic() - started_s) * 1e3),
        ledgers=states,
    )
    log_damage(found, len(limbo))
    kill_point("index.replay_after_states")
    child.send(found.message(states))
    if not wait_for_start(child):
        return
    begin_maintenance(child, parts, found)
    disk = IndexDisk(
        parts.index,
        parts.flusher,
        parts.disk_watch,
        slow_flush_bytes_per_s=config.disk.slow_flush_bytes,
        flushed_bytes=lambda: sum(
            log.durable_bytes for log in parts.checkpoint.manifest.logs if not log.is_journal_file
        ),
        loses_states=found.lost_states,
    )
    parts.disk_watch.start()
    loop = IndexLoop(child, parts, disk)
    gc.collect()
    gc.freeze()
    kill_point("index.before_ready")
    child.ready(damaged=found.is_damaged)
    while not loop.is_draining:
        loop.step(STEP_TIMEOUT_MS)
    loop.drain()
    child.send({"type": "drained", "mark": parts.index.status.mark_sequence})


FLUSH_NAME = "the flush"
HANG_INTERVAL_S = 0.05
FLUSH_BYTES_MIN = 8 * MIB
"""The time of a smaller flush is that of its syncs."""
FLUSH_HANGS_S = 15.0
"""A full cache at the slowest rate that is not called slow takes twelve seconds."""


class IndexDisk:
    """Keeps the index's word to workers and journal in step with the disk."""

    def __init__(
        self,
        index: Index,
        flusher: Flusher,
        watch: DiskWatch,
        *,
        slow_flush_bytes_per_s: int,
        flushed_bytes: Callable[[], int],
        loses_states: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with what `watch` has seen.

        Args:
            slow_flush_bytes_per_s: fewer in a flush is a slow disk.
            flushed_bytes: of all logs that flushes write, by the newest manifest.
            loses_states: fences may have been forgotten: normal adds are refused for good.
        """
        self.watch = watch
        self._index = index
        self._flusher = flusher
        self._slow_flush_bytes_per_s = slow_flush_bytes_per_s
        self._flushed_bytes = flushed_bytes
        self._loses_states = loses_states
        self._failure = ""
        self._clock_s = clock_s
        self._flushing_since_s = clock_s()
        self._flushes = flusher.flushes
        self._was_flushed_bytes = flushed_bytes()
        self._refused = 0
        self._next_look_s = 0.0
        self.poll()

    @property
    def may_flush(self) -> bool:
        """Whether a flush may begin: not where the path leads to somebody else's disk (INV-D2)."""
        return not self.watch.is_gone

    def poll_if_due(self, now_s: float) -> None:
        """Look, but not at every step: a failure is shown for longer than the pause between two looks."""
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + HANG_INTERVAL_S
            self.poll()

    def poll(self) -> None:
        """Take in what happened since the last look."""
        flusher = self._flusher
        self.watch.journal_files = text_of_logs(flusher.journal_logs)
        if flusher.failure and flusher.failure is not self._failure:
            self.watch.failed(FLUSH_NAME, flusher.failure)
        self._failure = flusher.failure
        now_s = self._clock_s()
        if flusher.flushes != self._flushes or not flusher.is_busy:
            self._flushing_since_s = now_s
        if flusher.flushes != self._flushes:
            self._flushes = flusher.flushes
            self._flushed()
        elif now_s - self._flushing_since_s > FLUSH_HANGS_S and not flusher.failure:
            self.watch.set_slow(f"a flush has been under way for {FLUSH_HANGS_S:.0f} s and more")
        self.watch.poll()
        self._refuse(max(self.watch.takes, Takes.REPAIRS if self._loses_states else Takes.ALL))

    def _flushed(self) -> None:
        self.watch.worked(FLUSH_NAME)
        # Between two flushes at most a cache is written: a floor is never passed by more than that unseen.
        self.watch.wake()
        bytes_now = self._flushed_bytes()
        said = slow_flush(
            bytes_now - self._was_flushed_bytes,
            self._flusher.flush_took_s,
            self._slow_flush_bytes_per_s,
        )
        self._was_flushed_bytes = bytes_now
        if said is not None or self.watch.health.slow.startswith("a flush has"):
            self.watch.set_slow(said or "")

    def _refuse(self, takes: Takes) -> None:
        if takes == self._refused:
            return
        self._refused = int(takes)
        self._index.set_reads_only(self._refused)
        logs.warning(
            "index.adds_refused" if takes else "index.adds_taken",
            takes=takes.name.lower(),
            reason=self.watch.health.reason or ("ledger states are lost" if takes else ""),
        )


def text_of_logs(logs: JournalLogs) -> str:
    """Return what journal files that are entry logs hold, for people; empty: there are none."""
    if not logs.count:
        return ""
    sizes = f"{format_size(logs.durable_bytes)}, of which {format_size(logs.live_bytes)} live"
    return f"{format_count(logs.count, 'entry log')} in the journal directory: {sizes}"


def slow_flush(size_bytes: int, took_s: float, bytes_per_s_min: int) -> str | None:
    """Return why a flush shows a slow disk, empty if it shows a quick one, None if it shows nothing."""
    if size_bytes < FLUSH_BYTES_MIN or took_s <= 0:
        return None
    rate = size_bytes / took_s
    if rate >= bytes_per_s_min:
        return ""
    return (
        f"the last flush wrote {rate / MIB:.1f} MiB/s ({size_bytes // MIB} MiB in {took_s:.1f} s)"
    )


EXPLICIT_LACS_JOB = "explicit_lacs"


class ExplicitLacs:
    """Explicit LACs of one index. They are the main thread's, but for the write, which is a job of the flush thread."""

    def __init__(self, index: Index, disk: Disk, directory: str) -> None:
        """`disk`: the flush thread's."""
        self._index = index
        self._disk = disk
        self._directory = directory
        self._written = 0

    def load(self) -> int:
        """Take back what the last life kept, behind replay. Returns how many. Raises FormatTooNewError, OSError."""
        taken = self._index.put_explicit_lacs(read_explicit_lacs(self._disk, self._directory))
        self._written = self._index.explicit_lacs_kept()
        return taken

    def write(self, jobs: FlushThread | DirectJobs) -> None:
        """Have them written if there are new ones; one that fails is written with the next."""
        kept = self._index.explicit_lacs_kept()
        if kept == self._written:
            return
        bodies = self._index.explicit_lacs()

        def job() -> None:
            write_explicit_lacs(self._disk, self._directory, bodies)
            self._written = kept

        jobs.submit(EXPLICIT_LACS_JOB, job)


VARIABLE = "FASTBK_HOLD_MARK"


def hold_mark_if_set(index: Index, commits: Commits, *, log: Callable[..., None]) -> None:
    """Hold the mark from now on if the environment says so, and say it aloud. After replay, in the main loop."""
    if os.environ.get(VARIABLE, "0") in ("", "0"):
        return
    commits.is_held = True
    index.hold_mark()
    log(
        "index.mark_is_held",
        variable=VARIABLE,
        mark=commits.manifest.mark,
        next="for tests only: the journal grows to its limit, and each start replays all of it",
    )


def start() -> NoReturn:
    """Begin this process's life; it does not return."""
    run("index", main)
