"""Shared-memory segments: made by the supervisor, mapped by the process that owns one and by its readers.

A segment has one writer (INV-R1). The supervisor makes it, gives its owner the descriptor and everybody else a
read-only one (`reopen_read_only`). The owner maps it and seals it (`seal_segment`).
What lies in it is in `src/base/layout.h`; C reads and writes it.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import msgspec

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import check, error_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.native.ffi import CData


ROLES = {
    "supervisor": lib.FBK_ROLE_SUPERVISOR,
    "worker": lib.FBK_ROLE_WORKER,
    "journal": lib.FBK_ROLE_JOURNAL,
    "index": lib.FBK_ROLE_INDEX,
    "gc": lib.FBK_ROLE_GC,
}


def create_segment(
    role: str,
    role_index: int,
    epoch: int,
    ring_sizes: Sequence[int] = (),
    ring_repeat: int = 1,
    *,
    pair: int = 0,
) -> int:
    """Return the descriptor of a new sealed segment, close-on-exec; the caller closes it.

    Args:
        role: one of ROLES.
        role_index: the worker's number, or the pair's of a journal or index; 0 for the others.
        epoch: of this start of the bookie; never used twice.
        ring_sizes: bytes of each ring behind the control part: powers of two from 4096 on. A worker has
            two (adds, requests); the index one, repeated for each worker.
        ring_repeat: how many rings of the first size, where there is only one size.
        pair: of a journal, an index, or the part of a worker that these two see.

    Raises OSError (EINVAL for sizes or a role that cannot be).
    """
    sizes = ffi.new("uint64_t[]", list(ring_sizes) or 1)
    return check(
        lib.fbk_segment_create(
            ROLES.get(role, 0), role_index, pair, epoch, sizes, len(ring_sizes), ring_repeat
        ),
        f"create a segment for {role}",
    )


def seal_segment(fd: int) -> bool:
    """Refuse all further writable mappings of a segment: called by its owner, which has mapped it by now.

    Return False where the kernel cannot (before Linux 5.1). Raises OSError for a descriptor that is read-only.
    """
    return check(lib.fbk_segment_seal(fd), "seal a segment") == 1


def is_sealed(fd: int) -> bool:
    """Return whether nobody can map a segment for writing any more. Raises OSError."""
    return check(lib.fbk_segment_is_sealed(fd), "look at a segment's seals") == 1


def can_seal() -> bool:
    """Return whether this machine's kernel refuses writable mappings of a sealed segment. Raises OSError."""
    fd = create_segment("gc", 0, 1)
    try:
        return seal_segment(fd)
    finally:
        os.close(fd)


def reopen_read_only(fd: int) -> int:
    """Return a new descriptor (close-on-exec) of the same memory that cannot write.

    Through /proc it could be opened for writing again: that is what `seal_segment` is for.
    """
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


class SegmentFacts(msgspec.Struct, frozen=True):
    """What a segment's header says about it."""

    role: str
    role_index: int
    epoch: int
    size_bytes: int
    pair: int


class Segment:
    """A mapped control part. Closing it is the owner's business; nothing may use it afterwards."""

    def __init__(self, fd: int, role: str, *, is_writable: bool = False) -> None:
        """Map the segment behind `fd`, which stays the caller's. Raises LayoutError or OSError."""
        error = ffi.new("int32_t *")
        pointer = lib.fbk_segment_map(fd, ROLES[role], is_writable, error)
        if pointer == ffi.NULL:
            raise error_of(error[0], f"map the segment of {role}")
        self.role = role
        self.is_writable = is_writable
        self._pointer: CData | None = pointer

    @property
    def pointer(self) -> CData:
        """The mapped memory, for sibling modules in `fastbk.native` only."""
        if self._pointer is None:
            raise ValueError("this segment was closed")
        return self._pointer

    @property
    def role_number(self) -> int:
        """The role as C knows it."""
        return ROLES[self.role]

    @property
    def facts(self) -> SegmentFacts:
        """What the header says now."""
        facts = ffi.new("struct fbk_segment_facts *")
        lib.fbk_python_segment_facts(self.pointer, facts)
        name = next((n for n, number in ROLES.items() if number == facts.role), str(facts.role))
        return SegmentFacts(name, facts.role_index, facts.epoch, facts.size_bytes, facts.pair)

    def close(self) -> None:
        """Unmap; a second time does nothing."""
        if self._pointer is not None:
            lib.fbk_segment_unmap(self._pointer, self.role_number)
            self._pointer = None

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ring_bell(event_fd: int) -> None:
    """Wake whoever waits on this eventfd."""
    lib.fbk_bell_ring(event_fd)


def now_ns() -> int:
    """Return the monotonic clock as C sees it, in nanoseconds."""
    return lib.fbk_now_ns()


# --- counters and histograms -------------------------------------------------------------------------------------
#
# Counters and histograms in a segment: read by the supervisor at any time, written by the segment's owner.
#
# `fastbk/observe/names.py` lists the slots.


COUNTERS_MAX = lib.FBK_COUNTERS_MAX
HISTOGRAMS_MAX = lib.FBK_HISTOGRAMS_MAX
BUCKET_COUNT = lib.FBK_HISTOGRAM_BUCKETS

HEARTBEATS_MAX = lib.FBK_HEARTBEATS_MAX
BEAT_LOOP = lib.FBK_BEAT_LOOP
BEAT_FLUSH = lib.FBK_BEAT_FLUSH
BEAT_BACKGROUND = lib.FBK_BEAT_BACKGROUND


def bucket_from(bucket: int) -> int:
    """Return the lowest value that falls into `bucket`; one bucket is at most 12.5 % wide."""
    return lib.fbk_python_bucket_from(bucket)


class Histogram(msgspec.Struct, frozen=True):
    """A copy of one histogram. Its parts were not read at one instant: `count` may be one off the buckets."""

    count: int
    sum: int
    max: int
    buckets: list[int]

    def percentile(self, percent: float) -> int:
        """Return a value that `percent` of all values do not exceed (at most 12.5 % too high); 0 if empty."""
        total = sum(self.buckets)
        if total == 0:
            return 0
        wanted = total * percent / 100.0
        seen = 0
        for bucket, times in enumerate(self.buckets):
            seen += times
            if times and seen >= wanted:
                return min(bucket_from(bucket + 1) - 1, self.max)
        return self.max

    def minus(self, earlier: Histogram) -> Histogram:
        """Return what was added since `earlier`; `max` stays that of the whole life."""
        return Histogram(
            self.count - earlier.count,
            self.sum - earlier.sum,
            self.max,
            [now - then for now, then in zip(self.buckets, earlier.buckets, strict=True)],
        )


class Stats:
    """The statistics of one mapped segment."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._counters = ffi.new("uint64_t[]", COUNTERS_MAX)
        self._histogram = ffi.new("struct fbk_histogram_copy *")
        self._beats = ffi.new("uint64_t[]", HEARTBEATS_MAX)

    def counters(self) -> list[int]:
        """Return all counters and gauges, by slot."""
        result = lib.fbk_python_counters(
            self.segment.pointer, self.segment.role_number, self._counters, COUNTERS_MAX
        )
        check(result, "read counters")
        counters: list[int] = ffi.unpack(self._counters, COUNTERS_MAX)
        return counters

    def histogram(self, slot: int) -> Histogram:
        """Return a copy of the histogram in `slot`."""
        copy = self._histogram
        result = lib.fbk_python_histogram(
            self.segment.pointer, self.segment.role_number, slot, copy
        )
        check(result, f"read histogram {slot}")
        return Histogram(copy.count, copy.sum, copy.max, ffi.unpack(copy.buckets, BUCKET_COUNT))

    def heartbeats(self) -> list[int]:
        """Return the heartbeat words, by BEAT_LOOP and so on."""
        result = lib.fbk_python_heartbeats(
            self.segment.pointer, self.segment.role_number, self._beats
        )
        check(result, "read heartbeats")
        beats: list[int] = ffi.unpack(self._beats, HEARTBEATS_MAX)
        return beats

    def beat(self, word: int = BEAT_LOOP) -> None:
        """Beat a heartbeat word. For the segment's owner only, and one thread a word."""
        check(lib.fbk_python_beat(*self._owned(), word), "beat")

    def count(self, slot: int, amount: int = 1) -> None:
        """Add to a counter. For the segment's owner only."""
        check(lib.fbk_python_count(*self._owned(), slot, amount), "count")

    def gauge(self, slot: int, value: int) -> None:
        """Set a gauge. For the segment's owner only."""
        check(lib.fbk_python_gauge(*self._owned(), slot, value), "gauge")

    def observe(self, slot: int, value: int) -> None:
        """Add a value to a histogram. For the segment's owner only."""
        check(lib.fbk_python_observe(*self._owned(), slot, value), "observe")

    def _owned(self) -> tuple[CData, int]:
        # Writing through a read-only mapping would be a fault that nothing could catch.
        if not self.segment.is_writable:
            raise PermissionError(f"the segment of {self.segment.role} belongs to another process")
        return self.segment.pointer, self.segment.role_number


# --- hot ledgers -------------------------------------------------------------------------------------------------
#
# The ledgers with the most adds, read from the segment of an index: `native/src/index/hot_ledgers.h` counts them.


LEDGERS_MAX = lib.FBK_HOT_LEDGERS


class HotLedger(msgspec.Struct, frozen=True):
    """One ledger of a window. `adds`: entries, at most `adds_over` too high, beside the error of the sample."""

    ledger_id: int
    adds: int
    adds_over: int
    size_bytes: int


class HotWindow(msgspec.Struct, frozen=True):
    """A window that is over, by the monotonic clock. `ledgers`: at most LEDGERS_MAX, in no order."""

    began_ns: int
    ended_ns: int
    ledgers: tuple[HotLedger, ...]


def hot_window(segment: Segment) -> HotWindow | None:
    """Return the newest window of an index; None before the first ends. Raises OSError."""
    copy = ffi.new("struct fbk_hot_window *")
    result = lib.fbk_python_hot_window(segment.pointer, copy)
    # The index writes a window in seconds: it was stopped while it did, or is just writing the next.
    if result == -errno.EAGAIN or check(result, "read the hot ledgers") == 0:
        return None
    found = (copy.ledgers[n] for n in range(copy.count))
    return HotWindow(
        copy.began_ns,
        copy.ended_ns,
        tuple(HotLedger(one.ledger_id, one.adds, one.adds_over, one.size_bytes) for one in found),
    )


# --- header keys -------------------------------------------------------------------------------------------------
#
# The key of the hashes by which an index notices that a worker has rewritten a record
# (`base/header_hash.h`, INV-R4).
#
# The supervisor draws one for each pair and boot, and gives it to the pair's journal and index alone.


HEADER_KEY_BYTES: int = lib.FBK_HEADER_KEY_BYTES
NO_HEADER_KEY = bytes(HEADER_KEY_BYTES)
"""Where nobody attacks: in tests."""


def new_header_key() -> bytes:
    """Return a random key."""
    return os.urandom(HEADER_KEY_BYTES)  # `secrets` returns the same, and imports hashlib


def put_header_key(options: CData, key: bytes) -> None:
    """Put a key into the options of a journal or an index. Raises ValueError for another length."""
    if len(key) != HEADER_KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes: {HEADER_KEY_BYTES} are needed")
    ffi.memmove(options.header_key, key, HEADER_KEY_BYTES)


# --- shards ------------------------------------------------------------------------------------------------------


SHARD_COUNT: int = lib.FBK_SHARD_COUNT
PAIRS_MAX: int = lib.FBK_PAIRS_MAX
"""Journal/index pairs of one bookie."""


def shard_of(ledger_id: int) -> int:
    """Return the shard, 0..63, that a ledger falls into. Part of the disk format: it never changes."""
    return lib.fbk_python_shard_of(ledger_id)
