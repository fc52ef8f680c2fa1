"""Memory that large answers are received into: it comes uncleared, and is used again once nobody looks at it.

Fresh memory of a megabyte costs a page fault for every 4 KiB of it, and a pass that clears it, before the socket's
bytes overwrite it all: together a sixth of what a reader of batches takes of the processor. What is given out here
comes back by itself, with the last view of it, whoever held that and in whichever thread.
"""

from __future__ import annotations

from fastbk.native._client import ffi
from fastbk.native.cdata import CData

SIZE_BYTES_MIN = 256 * 1024
SIZE_BYTES_MAX = 8 * 1024 * 1024
IDLE_BYTES_MAX = 16 * 1024 * 1024
"""What is kept for the next answers, of all sizes together; about, since several threads may give back at once."""

_fresh = ffi.new_allocator(should_clear_after_alloc=False)
# By size, the one that came back last on top: a processor's cache may still have it. Lists alone, and no lock: what is
# given back in the midst of a collection of garbage, in a thread that just takes, would wait for itself.
_idle: dict[int, list[CData]] = {}


def _take(size_bytes: int) -> CData:
    try:
        return _idle[size_bytes].pop()
    except (KeyError, IndexError):
        taken: CData = _fresh("uint8_t[]", size_bytes)
        return taken


def _give_back(memory: CData) -> None:
    if idle_bytes() + len(memory) <= IDLE_BYTES_MAX:
        _idle.setdefault(len(memory), []).append(memory)


_shared = ffi.new_allocator(_take, _give_back, should_clear_after_alloc=False)


def idle_bytes() -> int:
    """Return how much is kept for later."""
    return sum(size * len(kept) for size, kept in list(_idle.items()))


def memory_of(size_bytes: int) -> tuple[CData, memoryview]:
    """Return memory of that size for C and for Python; its bytes are anything. Both keep it, and so does any view."""
    if SIZE_BYTES_MIN <= size_bytes <= SIZE_BYTES_MAX:
        # Answers differ a little: powers of two serve them all. Pages that nobody touches are not there.
        memory = _shared("uint8_t[]", 1 << (size_bytes - 1).bit_length())
    else:
        memory = _fresh("uint8_t[]", size_bytes)
    return memory, memoryview(ffi.buffer(memory, size_bytes))
