"""The index's steps as typed Python: taking batches in, answering, handing caches to the flush thread.

One `Index` a process, used by its main thread; only `sealed` may be called by the flush thread meanwhile.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import msgspec

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import CorruptDataError, NativeObject, check, create, fill_struct, ints_of
from fastbk.native.segment import NO_HEADER_KEY, put_header_key
from fastbk.native.store import FlushContents
from fastbk.observe.names import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fastbk.native.ffi import CData
    from fastbk.native.journal import JournalScan
    from fastbk.native.ledger_state import Listed
    from fastbk.native.store import Store


WATCHED = lib.FBK_INDEX_WATCHED
FLUSH = lib.FBK_INDEX_FLUSH
FULL = lib.FBK_INDEX_FULL
IDLE = lib.FBK_INDEX_IDLE

WATCHED_FDS_MAX = 4
PAGE_IDS = 4096
"""Ledger ids fetched by one call."""
SETTLED_END = 2**64 - 1
"""The cursor behind the last settled ledger."""


class IndexOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `Index` needs; descriptors stay the caller's. Sizes in bytes.

    Attributes:
        worker_segment_fds, worker_bell_fds: by worker. bell_fd, reader_fd: eventfds, non-blocking.
        watched_fds: up to four others whose being readable ends a step.
        cache_bytes: of each of the two write caches, a multiple of 4096.
        cache_reserve_bytes: not given to normal adds, so that recovery adds have room.
        flush_...: a flush is due when the cache holds so much, or so much journal lies behind the mark.
        parked_bytes_max: copies that wait for a look at the disk.
        requests_max: requests that wait for a disk.
        header_key: random, as the journal has it and no worker.
        seed: random; ids come from outside, and hash tables must not be at their mercy.
        settings: [limits] and [ledgers], or others with their names: C takes the rest out of them.
    """

    epoch: int
    segment_fd: int
    journal_segment_fd: int
    worker_segment_fds: Sequence[int]
    bell_fd: int
    journal_bell_fd: int
    worker_bell_fds: Sequence[int]
    reader_fd: int
    cache_bytes: int
    cache_reserve_bytes: int
    flush_used_bytes: int
    flush_journal_bytes: int
    parked_bytes_max: int
    requests_max: int
    seed: int
    settings: Sequence[object]
    watched_fds: Sequence[int] = ()
    header_key: bytes = NO_HEADER_KEY


class IndexStatus(msgspec.Struct, frozen=True):
    """A look at the index between two steps; see `struct fbk_index_status`."""

    taken_sequence: int
    taken_order: int
    mark_sequence: int
    journal_bytes_behind: int
    cache_bytes: int
    cache_items: int
    sealed_items: int
    dirty_states: int
    ledgers: int
    waiters: int
    requests: int
    checks: int
    parked_bytes: int
    flushing: int
    limbo: int


class SealedCache(msgspec.Struct, frozen=True):
    """What a flush has to write, sorted; its memory is valid until `Index.flushed`.

    Attributes:
        mark_sequence: the last batch contained completely: the mark once this is flushed (INV-A1).
        file_id: a journal file that the mark has reached: it has passed all before; 0 = none since the start.
        batch_offset_bytes: of the mark's batch, which is in that file; 0 = unknown.
    """

    contents: FlushContents
    mark_sequence: int
    file_id: int
    batch_offset_bytes: int = 0


def _unpacked(numbers: CData, count: int) -> list[int]:
    found: list[int] = ffi.unpack(numbers, count) if count else []
    return found


def ids_without(ledger_ids: array[int], gone: array[int]) -> array[int]:
    """Return the ids that are not in `gone`; all ascending. What is given stays as it is: others look at it."""
    left = array("q", ledger_ids)
    if not left or not gone:
        return left
    # Given back at once, or it could not be shortened.
    with ffi.from_buffer("int64_t[]", left) as raw:
        raw_gone = ffi.from_buffer("int64_t[]", gone)
        count = int(lib.fbk_index_ids_without(raw, len(left), raw_gone, len(gone)))
    del left[count:]
    return left


class Index(NativeObject):
    """Takes batches in and answers everything about stored entries."""

    _gone = "this index was destroyed"

    def __init__(self, options: IndexOptions, store: Store | None) -> None:
        """Map all segments. Without a store nothing is on disk.

        Raises OSError, LayoutError (a segment of another build or epoch).
        """
        worker_count = len(options.worker_segment_fds)
        if (
            len(options.worker_bell_fds) != worker_count
            or len(options.watched_fds) > WATCHED_FDS_MAX
        ):
            raise ValueError(
                "one bell for each worker's segment, and at most four watched descriptors"
            )
        self.cache_bytes = options.cache_bytes
        """The size of each of the two write caches."""
        raw = ffi.new("struct fbk_index_options *")
        arrays = ("worker_segment_fds", "worker_bell_fds", "watched_fds", "header_key")
        by_hand = (*arrays, "worker_count", "settings")
        fill_struct(raw, options, *by_hand, settings=options.settings)
        put_header_key(raw, options.header_key)
        raw.worker_count = worker_count
        for worker, fd in enumerate(options.worker_segment_fds):
            raw.worker_segment_fds[worker] = fd
            raw.worker_bell_fds[worker] = options.worker_bell_fds[worker]
        for n in range(WATCHED_FDS_MAX):
            raw.watched_fds[n] = options.watched_fds[n] if n < len(options.watched_fds) else -1
        store_handle = store.handle if store else ffi.NULL
        super().__init__(
            create(lambda error: lib.fbk_index_create(raw, store_handle, error), "start the index")
        )
        self._store = store  # C keeps its handle

    def step(self, timeout_ms: int) -> int:
        """Take in, answer, publish, sleep; return reasons, or-ed of WATCHED, FLUSH, FULL, IDLE.

        Returns early for WATCHED and FLUSH. Raises CorruptDataError or ProtocolError for a ring or
        descriptor that can't be: exit, replay has the truth.
        """
        return check(lib.fbk_index_step(self.handle, timeout_ms), "index")

    @property
    def status(self) -> IndexStatus:
        """How things stand."""
        raw = ffi.new("struct fbk_index_status *")
        lib.fbk_index_get_status(self.handle, raw)
        return IndexStatus(**ints_of(raw, IndexStatus))

    def seal(self) -> None:
        """Set the active cache and the changed states aside for a flush, and go on in the other cache.

        Raises BlockingIOError-like OSError (EBUSY) while the last sealed cache is not flushed.
        """
        check(lib.fbk_index_seal(self.handle), "seal the write cache")

    def sealed(self) -> SealedCache:
        """Return what was sealed, sorting it at the first call; for the flush thread, as often as it likes."""
        contents = ffi.new("struct fbk_flush_contents *")
        mark_sequence, place = ffi.new("uint64_t *"), ffi.new("struct fbk_mark_place *")
        result = lib.fbk_index_sealed(self.handle, contents, mark_sequence, place)
        check(result, "lay out the write cache")
        return SealedCache(
            FlushContents(contents, self),
            int(mark_sequence[0]),
            int(place.file_id),
            int(place.batch_offset_bytes),
        )

    def flushed(self) -> None:
        """Say that the manifest names what was sealed: the mark moves, credit is given."""
        lib.fbk_index_flushed(self.handle)

    def hold_mark(self) -> None:
        """Tell the journal of no mark from now on, for tests: it keeps all its files."""
        lib.fbk_index_hold_mark(self.handle)

    def set_mark(self, mark_sequence: int, *, is_damaged: bool) -> None:
        """Set what the manifest says at start. With damage on record "no" is never said (INV-X1)."""
        lib.fbk_index_set_mark(self.handle, mark_sequence, int(is_damaged))

    def load_states(self, locations_file_id: int) -> None:
        """Take the ledger states of a locations file in; files oldest first. Raises CorruptDataError."""
        check(lib.fbk_index_load_states(self.handle, locations_file_id), "load ledger states")

    def replay(
        self, scan: JournalScan, full: Callable[[], None], pauses: Iterator[int] | None = None
    ) -> None:
        """Take all batches of a journal file in.

        Args:
            scan: opened; used up.
            full: called whenever the cache is full; has to seal it. A batch that is only partly in comes with the next.
            pauses: call `full` earlier, when the cache has so many bytes; the next one counts from there on. Without a
                next one, and for 0, only a full cache counts.

        Raises CorruptDataError, NativeFullError (more ledgers than may be), MemoryError, and what `full` does.
        """
        at = ffi.new("struct fbk_index_replay *")
        sizes = iter(()) if pauses is None else pauses
        at.pause_bytes = next(sizes, 0)
        while (
            check(lib.fbk_index_replay(self.handle, scan.handle, at), "replay a journal file")
            == lib.FBK_REPLAY_FULL
        ):
            full()
            at.pause_bytes = next(sizes, 0)

    def replay_done(self, sequence: int) -> None:
        """Note that all up to batch `sequence` is in."""
        lib.fbk_index_replay_done(self.handle, sequence)

    def damage(self) -> None:
        """Fence every known ledger and put it in limbo: acknowledged data of any of them may be lost."""
        check(lib.fbk_index_damage(self.handle), "mark ledgers damaged")

    def write_states(self, states_fd: int) -> int:
        """Write all ledger states into a memory file; return their count."""
        return check(int(lib.fbk_index_write_states(self.handle, states_fd)), "write ledger states")

    def list_settled(
        self, cursor: int, count_max: int = PAGE_IDS
    ) -> tuple[list[int], list[int], int]:
        """Return ids of some ledgers that hold something, all of it flushed, and their change marks; and the cursor.

        Neither deleted ones, nor those in limbo, nor those whose copies were dropped. The cursor is 0 at first and
        SETTLED_END at the end; a page may be empty before that.
        """
        at = ffi.new("uint64_t *", cursor)
        ids = ffi.new("int64_t[]", count_max)
        changed = ffi.new("uint64_t[]", count_max)
        count = lib.fbk_index_list_settled(self.handle, at, ids, changed, count_max)
        return _unpacked(ids, count), _unpacked(changed, count), int(at[0])

    def begin_drop(
        self, ledger_ids: Sequence[int], changed: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Begin to drop the copies of those ledgers that are as their change marks say; return these (INV-G2).

        Adds that need a look at what is stored of them are refused for now, until `end_drop`. None while a flush is
        under way.
        """
        ids = ffi.new("int64_t[]", ledger_ids)
        marks = ffi.new("uint64_t[]", changed)
        count = lib.fbk_index_begin_drop(self.handle, ids, marks, len(ledger_ids))
        return _unpacked(ids, count), _unpacked(marks, count)

    def end_drop(
        self, ledger_ids: Sequence[int], changed: Sequence[int], *, is_dropped: bool
    ) -> None:
        """Say whether what `begin_drop` returned is gone: nothing that was stored then is found any more."""
        ids = ffi.new("int64_t[]", ledger_ids)
        marks = ffi.new("uint64_t[]", changed)
        lib.fbk_index_end_drop(self.handle, ids, marks, len(ledger_ids), int(is_dropped))

    def put_in_limbo(self, ledger_ids: Sequence[int]) -> None:
        """Take it that data of these ledgers was lost here: of none of them "no" is said any more (INV-X4).

        Before the journal is started. Raises CorruptDataError (an id below 0), NativeFullError (ledgers_max).
        """
        try:
            ids = array("q", ledger_ids)
        except OverflowError:
            raise CorruptDataError(
                "put ledgers in limbo: an id is no signed 64-bit number"
            ) from None
        raw = ffi.from_buffer("int64_t[]", ids)
        check(lib.fbk_index_put_in_limbo(self.handle, raw, len(ids)), "put ledgers in limbo")

    def deleted_ledgers(self) -> array[int]:
        """Return the ids of all deleted ledgers that are still known, ascending: eight bytes each."""
        none = ffi.new("int64_t[]", 1)
        count = lib.fbk_index_list_deleted(self.handle, none, 0)
        ids = ffi.new("int64_t[]", max(count, 1))
        lib.fbk_index_list_deleted(self.handle, ids, count)
        return array("q", ffi.buffer(ids, count * 8)[:])

    @property
    def flushed_seal(self) -> int:
        """The last seal whose flush has ended: what it holds is in files that the manifest names."""
        return int(lib.fbk_index_flushed_seal(self.handle))

    def begin_forget(
        self, ledger_ids: array[int], deleted_before_s: int, through_seal: int
    ) -> None:
        """Begin to remove deleted ledgers that no file knows any more, here and in the journal; steps go on with it.

        Args:
            ledger_ids: ascending; nothing of them may be found under any set of files that is still looked under.
            deleted_before_s: those deleted later stay (wall clock).
            through_seal: those changed since that seal stay; see `flushed_seal`.

        Raises OSError: EBUSY while the last ones were not fetched, ENOMEM.
        """
        ids = ffi.from_buffer("int64_t[]", ledger_ids) if ledger_ids else ffi.NULL
        result = lib.fbk_index_begin_forget(
            self.handle, ids, len(ledger_ids), deleted_before_s, through_seal
        )
        check(result, "forget deleted ledgers")

    def forgotten(self) -> array[int] | None:
        """Return the ids that were removed since `begin_forget`, ascending, once; None while it goes on."""
        count = int(lib.fbk_index_end_forget(self.handle, ffi.NULL))
        if count < 0:
            return None
        ids = ffi.new("int64_t[]", max(count, 1))
        lib.fbk_index_end_forget(self.handle, ids)
        return array("q", ffi.buffer(ids, count * 8)[:])

    def set_reads_only(self, refused: int) -> None:
        """Make workers and journal refuse nothing (0), normal adds (1) or whatever would have to be written (2)."""
        lib.fbk_index_set_reads_only(self.handle, int(refused))

    def count(self, name: str, amount: int = 1) -> None:
        """Add to one of the index's counters, by its name (`FBK_C_INDEX_...`)."""
        lib.fbk_index_count(self.handle, SLOTS[name], amount)

    def gauge(self, name: str, value: int) -> None:
        """Say what a gauge is now (`fastbk.observe.names`)."""
        lib.fbk_index_gauge(self.handle, SLOTS[name], value)

    def took(self, name: str, took_s: float, *, is_ok: bool) -> None:
        """Count something that has ended, and how long it took: FBK_C_INDEX_<name>_DONE or _FAILED, and _US."""
        slot_name = f"FBK_C_INDEX_{name}_{'DONE' if is_ok else 'FAILED'}"
        self.count(slot_name)
        self.count(f"{slot_name}_US", round(took_s * 1e6))

    def observe(self, name: str, value: int) -> None:
        """Add a value to one of the index's histograms (`FBK_H_INDEX_...`)."""
        lib.fbk_index_observe(self.handle, SLOTS[name], value)

    def beat(self, word: int) -> None:
        """Beat a heartbeat word of the index's process; each word has one thread."""
        lib.fbk_index_beat(self.handle, word)

    def destroy(self) -> None:
        """Unmap everything. The flush thread and readers must be gone."""
        self._end(lib.fbk_index_destroy)

    # --- which ledgers there are, and what metadata says of them; the journal takes note, too --------------------

    def list_ledgers(self, cursor: int, count_max: int = PAGE_IDS) -> tuple[list[int], int]:
        """Return ids of some ledgers that are not deleted, and the cursor to go on with; no ids: the end.

        Args:
            cursor: 0 at first. A ledger that comes in between two calls may hide others: a listing is
                complete for nobody, which is all that gc needs (INV-G1).
            count_max: most ids returned.
        """
        return self._page(lib.fbk_index_list_ledgers, cursor, count_max)

    def list_limbo(self, cursor: int, count_max: int = PAGE_IDS) -> tuple[list[int], int]:
        """Return ids of some ledgers that are in limbo and not deleted, like `list_ledgers`."""
        return self._page(lib.fbk_index_list_limbo, cursor, count_max)

    def _page(
        self, list_some: Callable[..., int], cursor: int, count_max: int
    ) -> tuple[list[int], int]:
        at = ffi.new("uint64_t *", cursor)
        ids = ffi.new("int64_t[]", count_max)
        count = list_some(self.handle, at, ids, count_max)
        found: list[int] = ffi.unpack(ids, count) if count else []
        return found, int(at[0])

    def delete_ledgers(self, ledger_ids: Iterable[int], now_s: int) -> tuple[int, int]:
        """Mark ledgers deleted, here and in the journal, which takes no adds to them from then on.

        Returns how many were known and not deleted before, and how many of the ids were handled: not all while the
        journal has yet to take note of earlier ones.
        """
        ids = ffi.new("int64_t[]", list(ledger_ids))
        taken = ffi.new("int32_t *")
        count = int(lib.fbk_index_delete_ledgers(self.handle, ids, len(ids), now_s, taken))
        return count, int(taken[0])

    def list_unconfirmed(
        self, cursor: int, count_max: int = PAGE_IDS
    ) -> tuple[list[int], list[int], int]:
        """Return ids of some unconfirmed ledgers, for each whether the journal takes nothing to it, and the cursor.

        Neither deleted ones nor those in limbo. Like `list_ledgers`.
        """
        at = ffi.new("uint64_t *", cursor)
        ids = ffi.new("int64_t[]", count_max)
        expiring = ffi.new("uint32_t[]", count_max)
        count = lib.fbk_index_list_unconfirmed(self.handle, at, ids, expiring, count_max)
        if not count:
            return [], [], int(at[0])
        return ffi.unpack(ids, count), ffi.unpack(expiring, count), int(at[0])

    def confirm(self, listed: Sequence[Listed]) -> list[int]:
        """Confirm ledgers that metadata lists; return those that have another key or creation here."""
        rows = ffi.new("struct fbk_listed[]", len(listed))
        for row, one in zip(rows, listed, strict=True):
            row.ledger_id, row.creation_mark = one.ledger_id, one.creation_mark
            row.has_key = one.master_key is not None
            if one.master_key is not None:
                ffi.memmove(row.master_key, one.master_key, len(row.master_key))
        foreign = ffi.new("int64_t[]", max(1, len(listed)))
        count = lib.fbk_index_confirm(self.handle, rows, len(listed), foreign)
        return ffi.unpack(foreign, count) if count else []

    def admit(self, ledger_ids: Sequence[int]) -> int:
        """Make room for ledgers that metadata lists and that are not here yet; return for how many."""
        return self._notice(lib.fbk_index_admit, ledger_ids)[0]

    def begin_expiry(self, ledger_ids: Sequence[int]) -> int:
        """Have the journal take nothing to unconfirmed ledgers from now on; return to how many more."""
        return self._notice(lib.fbk_index_begin_expiry, ledger_ids)[0]

    def expire(self, ledger_ids: Sequence[int], fenced_deleted_s: int = 0) -> tuple[int, int]:
        """Delete ledgers whose expiry has begun; return how many were, and how many of the ids were handled.

        `fenced_deleted_s`: not 0 where metadata is proven to have deleted them: the time of deletion of those that were
        fenced, which are kept as a deleted ledger is (INV-G8). The others are forgotten by the next merge of
        everything.
        """
        ids = ffi.new("int64_t[]", ledger_ids)
        taken = ffi.new("int32_t *")
        count = int(lib.fbk_index_expire(self.handle, ids, len(ids), fenced_deleted_s, taken))
        return count, int(taken[0])

    def _notice(self, give: Callable[..., int], ledger_ids: Sequence[int]) -> tuple[int, int]:
        ids = ffi.new("int64_t[]", ledger_ids)
        taken = ffi.new("int32_t *")
        count = int(give(self.handle, ids, len(ids), taken))
        return count, int(taken[0])

    def limbo_over(self, ledger_ids: Sequence[int], *, fenced: bool) -> tuple[int, int]:
        """Take ledgers out of limbo: whatever this bookie held of them lies elsewhere, and metadata says so.

        `fenced`: somebody may have fenced them, so normal adds stay refused. Returns like `delete_ledgers`.
        """
        ids = ffi.new("int64_t[]", ledger_ids)
        taken = ffi.new("int32_t *")
        count = lib.fbk_index_limbo_over(self.handle, ids, len(ids), int(fenced), taken)
        return int(count), int(taken[0])

    # --- explicit LACs, as their writers signed them ----------------------------------------------------------

    def explicit_lacs_kept(self) -> int:
        """Return how many were kept since the start, those that took another's place included."""
        return int(lib.fbk_index_lacs_kept(self.handle))

    def explicit_lacs(self) -> list[bytes]:
        """Return all that the table holds, in no order."""
        out = ffi.new("uint8_t[]", lib.fbk_index_lacs_bytes_max())
        size_bytes = lib.fbk_index_lacs(self.handle, out)
        raw = bytes(ffi.buffer(out, size_bytes))
        bodies, start = [], 0
        while start < len(raw):
            end = start + 1 + raw[start]
            bodies.append(raw[start + 1 : end])
            start = end
        return bodies

    def put_explicit_lacs(self, bodies: Iterable[bytes]) -> int:
        """Put them back; return how many were taken. Not those of ledgers that are not here or in limbo (INV-X4)."""
        return sum(int(lib.fbk_index_put_lac(self.handle, body, len(body))) for body in bodies)
