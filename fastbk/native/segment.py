"""Shared-memory segments: made by the supervisor, mapped by the process that owns one and by its readers.

A segment has one writer (INV-R1). The supervisor makes it, gives its owner the descriptor and everybody else a
read-only one (`reopen_read_only`). The owner maps it and seals it (`seal_segment`).
What lies in it is in `src/base/layout.h`; C reads and writes it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import check, error_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.native.cdata import CData

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


@dataclass(frozen=True)
class SegmentFacts:
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
