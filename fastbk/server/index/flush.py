"""Flushes, merges and deletions, beside the index's loop.

`FlushThread` is a thread that does one job after the other; nearly all of its time is spent in C or waiting for a
disk. `Flusher` is the main loop's side: it says what is to be done next and installs what came out of it. The order of
each job's steps is in `fastbk.storage.checkpoint`.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from typing import TYPE_CHECKING

from fastbk.invariant import check
from fastbk.native.kill_points import kill_point
from fastbk.storage.audit import AuditLog
from fastbk.storage.checkpoint import Change, Checkpoint, CheckpointFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastbk.native.disk import Disk
    from fastbk.native.index import Index
    from fastbk.native.store import Store
    from fastbk.storage.manifest import Damage

RETRY_DELAY_S = 1.0
"""After a flush has failed as often as a checkpoint tries."""
DELETED_KEPT_S = 7 * 24 * 3600
"""How long a deleted ledger's state is remembered (F7)."""


class FlushThread:
    """Runs jobs in order, in one thread: the only one that ever writes to the ledger disk."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when a result waits."""
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], object]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        self._thread.start()

    def submit(self, name: str, job: Callable[[], object]) -> None:
        """Queue a job."""
        self._jobs.put((name, job))

    def results(self) -> list[tuple[str, object]]:
        """Return names and results of jobs that are done; an exception is a result."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return []
        found = []
        while not self._results.empty():
            found.append(self._results.get())
        return found

    def stop(self) -> None:
        """End after the jobs that are queued."""
        self._jobs.put(None)
        self._thread.join()
        os.close(self.fd)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            name, job = item
            result: object
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - handed to the main loop, which decides
                result = error
            self._results.put((name, result))
            os.eventfd_write(self.fd, 1)


class DirectJobs:
    """Does each job at once, in the caller's thread: for tests that want one order of everything."""

    fd = -1

    def __init__(self) -> None:
        self._results: list[tuple[str, object]] = []

    def submit(self, name: str, job: Callable[[], object]) -> None:
        """Do it."""
        try:
            self._results.append((name, job()))
        except Exception as error:  # noqa: BLE001 - as in FlushThread
            self._results.append((name, error))

    def results(self) -> list[tuple[str, object]]:
        """Return what was done since the last call."""
        found, self._results = self._results, []
        return found

    def stop(self) -> None:
        """Do nothing."""


class Flusher:
    """Decides what the flush thread does next, and installs its results. Used by the index's main thread."""

    def __init__(
        self,
        index: Index,
        store: Store,
        checkpoint: Checkpoint,
        jobs: FlushThread | DirectJobs,
        disk: Disk,
        directory: str,
        *,
        log: Callable[..., None] = lambda event, **values: None,
        clock_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing to do.

        Args:
            disk: the one that `checkpoint` writes with. log: called with an event and its values.
        """
        self.failure = ""
        """Why the last flush failed; empty when it did not."""
        self.flushes = 0
        self.flush_took_s = 0.0
        """How long the newest one took."""
        self._index = index
        self._store = store
        self._checkpoint = checkpoint
        self._jobs = jobs
        self._audit = AuditLog(disk, directory)
        self._log = log
        self._clock_s = clock_s
        self._monotonic_s = monotonic_s
        self._is_flushing = False
        self._is_merging = False
        self._timer_s = time.monotonic
        self._begun_s = 0.0
        self._retry_at_s = 0.0
        self._damage: tuple[Damage, ...] = ()
        self._clean = False
        # Ids whose deletion is marked in states not yet sealed; sealed; flushed: their locations may go.
        self._marked: list[dict[str, object]] = []
        self._sealed: list[dict[str, object]] = []
        self._flushed: list[dict[str, object]] = []
        self._unfinished: list[dict[str, object]] = []

    @property
    def is_busy(self) -> bool:
        """Whether a flush is under way or waits for its next attempt."""
        return self._is_flushing

    @property
    def wants_flush(self) -> bool:
        """Whether a flush should begin though no cache asks for one: deletions wait for it."""
        return bool(self._marked) and not self._is_flushing

    def begin(self, *, damage: Sequence[Damage] = (), clean: bool = False) -> None:
        """Seal the cache and have it flushed.

        Args:
            damage: found by replay, to be remembered for good.
            clean: nothing is in the journal behind what is sealed, and nothing will come.
        """
        check(not self._is_flushing, "one flush at a time")
        self._index.seal()
        self._sealed, self._marked = [*self._sealed, *self._marked], []
        self._is_flushing = True
        self._begun_s = self._timer_s()
        self._damage = tuple(damage)
        self._clean = clean
        self._submit_flush()

    def flush_now(self, *, damage: Sequence[Damage] = (), clean: bool = False) -> None:
        """Flush what there is, and wait for it. Raises CheckpointFailed: then the index still holds it."""
        self.wait()
        self.begin(damage=damage, clean=clean)
        self.wait()

    def wait(self) -> None:
        """Wait for the flush that is under way, if one is. Raises CheckpointFailed."""
        while self._is_flushing:
            self._wait_readable()
            self._take_results()
            if self.failure:
                raise CheckpointFailed(self.failure)

    def delete_ledgers(self, ledger_ids: Sequence[int], reason: str) -> int:
        """Mark ledgers deleted; their data goes after the next flush. Returns how many were there.

        Some may be left while the journal has yet to hear of earlier ones: they are to be asked for again.
        """
        now_s = int(self._clock_s())
        count, taken = self._index.delete_ledgers(ledger_ids, now_s)
        if count:
            kill_point("index.delete_marked")
            event = {"ledgers": list(ledger_ids[:taken]), "reason": reason, "time_s": now_s}
            self._marked.append(event)
        return count

    def look_for_leftovers(self) -> None:
        """Have it found out whether a stop cut a deletion off; if so it is gone on with after the next flush."""
        deleted = self._index.deleted_ledgers()
        self._jobs.submit("leftovers", lambda: any(map(self._store.ledger_bytes, deleted)))

    def look(self) -> None:
        """Take results and go on with what follows from them."""
        self._take_results()
        if self._is_flushing and self.failure and self._monotonic_s() >= self._retry_at_s:
            self.failure = ""
            self._submit_flush()
        if not self._is_merging and not self._is_flushing and self._flushed:
            self._submit_deletion()

    # ---- results

    def _take_results(self) -> None:
        for name, result in self._jobs.results():
            if isinstance(result, Exception):
                self._failed(name, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                self._done(name, result)

    def _done(self, name: str, result: object) -> None:
        if name == "flush":
            check(isinstance(result, Change), "a flush gives a change")
            kill_point("index.flush_before_install")
            self._install(result)  # type: ignore[arg-type]
            kill_point("index.flush_before_mark")
            self._index.flushed()
            kill_point("index.flush_after_mark")
            self.flush_took_s = self._timer_s() - self._begun_s
            self._index.observe("FBK_H_INDEX_FLUSH_NS", int(self.flush_took_s * 1e9))
            self._is_flushing = False
            self.flushes += 1
            self._flushed, self._sealed = [*self._flushed, *self._sealed, *self._unfinished], []
            self._unfinished = []
            if not self._is_merging:
                self._is_merging = True
                self._jobs.submit("merge", lambda: self._checkpoint.merge_if_due(self._store))
        elif name in ("merge", "delete"):
            self._is_merging = False
            if isinstance(result, Change):
                kill_point("index.merge_before_install")
                self._index.count("FBK_C_INDEX_MERGES")
                self._install(result)
        elif name == "clean_up" and result:
            self._log("flush.files_left_behind", complaints=result)
        elif name == "leftovers" and result:
            self._unfinished.append(self._event("deletion that a stop cut off"))

    def _failed(self, name: str, error: Exception) -> None:
        self._log(f"{name}.failed", reason=str(error))
        if name == "flush":
            if not isinstance(error, CheckpointFailed):
                raise error
            self._index.count("FBK_C_INDEX_FLUSH_FAILURES")
            self.failure = str(error)
            self._retry_at_s = self._monotonic_s() + RETRY_DELAY_S
        elif name in ("merge", "delete"):
            if not isinstance(error, CheckpointFailed | OSError):
                raise error
            self._is_merging = False
            if name == "delete":  # after the next flush once more; a merge is due then by itself
                self._unfinished.append(self._event("deletion that failed"))

    def _install(self, change: Change) -> None:
        """Main loop: memory only. What no manifest names any more goes in the flush thread."""
        Checkpoint.install(self._store, change)
        if not change.is_mirrored:
            self._log("manifest.second_slot_not_written", generation=change.manifest.generation)
        self._jobs.submit("clean_up", lambda: self._checkpoint.clean_up(self._store, change))

    def _event(self, reason: str) -> dict[str, object]:
        return {"ledgers": [], "reason": reason, "time_s": int(self._clock_s())}

    # ---- jobs

    def _submit_flush(self) -> None:
        self._jobs.submit("flush", self._flush)

    def _flush(self) -> Change:
        sealed = self._index.sealed()
        return self._checkpoint.run(
            self._store,
            sealed.items,
            sealed.mark_sequence,
            damage=self._damage,
            clean=self._clean,
        )

    def _submit_deletion(self) -> None:
        events, self._flushed = self._flushed, []
        deleted = self._index.deleted_ledgers()
        forget_before_s = max(0, int(self._clock_s()) - DELETED_KEPT_S)
        self._is_merging = True

        def delete() -> Change | None:
            kill_point("index.delete_before_audit")
            self._audit.append(*events)
            kill_point("index.delete_after_audit")
            return self._checkpoint.delete_ledgers(
                self._store, deleted, forget_deleted_before_s=forget_before_s
            )

        self._jobs.submit("delete", delete)

    def _wait_readable(self) -> None:
        if isinstance(self._jobs, DirectJobs):
            return
        poll = select.poll()
        poll.register(self._jobs.fd, select.POLLIN)
        poll.poll(None)
