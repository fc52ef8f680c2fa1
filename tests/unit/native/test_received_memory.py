"""Memory for large answers is used again once nobody looks at it, never before, and only so much is kept."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.native._client import ffi
from fastbk.native.client_codec import (
    IDLE_BYTES_MAX,
    SIZE_BYTES_MAX,
    SIZE_BYTES_MIN,
    idle_bytes,
    memory_of,
)
from fastbk.native.ffi import CData

MIB = 1 << 20


def place_of(memory: CData) -> int:
    """Return where it lies."""
    return int(ffi.cast("intptr_t", memory))


def test_what_somebody_looks_at_is_not_given_to_anybody_else() -> None:
    memory, view = memory_of(MIB)
    place, part = place_of(memory), view[5:10].toreadonly()
    view[5:10] = b"bytes"
    del memory, view
    other, other_view = memory_of(MIB)
    assert place_of(other) != place
    other_view[:] = bytes(MIB)
    assert bytes(part) == b"bytes"
    del part
    again, view_again = memory_of(MIB - 1000)
    assert place_of(again) == place
    assert len(view_again) == MIB - 1000
    assert bytes(view_again[5:10]) == b"bytes", "nobody clears it"


@pytest.mark.parametrize("size", [0, 1, SIZE_BYTES_MIN - 1, SIZE_BYTES_MAX + 1])
def test_small_and_huge_ones_are_not_kept(size: int) -> None:
    before = idle_bytes()
    memory, view = memory_of(size)
    assert len(memory) == len(view) == size
    view[:] = b"x" * size
    del memory, view
    assert idle_bytes() == before


def test_no_more_is_kept_than_the_bound() -> None:
    held = [memory_of(SIZE_BYTES_MAX) for _ in range(IDLE_BYTES_MAX // SIZE_BYTES_MAX + 3)]
    held += [memory_of(SIZE_BYTES_MIN) for _ in range(3)]
    held.clear()
    assert IDLE_BYTES_MAX - SIZE_BYTES_MAX < idle_bytes() <= IDLE_BYTES_MAX


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2 * SIZE_BYTES_MIN)), max_size=40))
def test_each_holder_has_bytes_of_its_own(steps: list[tuple[int, int]]) -> None:
    held: dict[int, tuple[memoryview, bytes]] = {}
    for number, (slot, size) in enumerate(steps):
        if slot in held:
            view, mark = held.pop(slot)
            assert view[:1] == view[-1:] == mark
            del view
        if size > 0:
            view, mark = memory_of(size)[1], bytes([number])
            view[:1] = view[-1:] = mark
            held[slot] = view, mark
    assert all(view[:1] == view[-1:] == mark for view, mark in held.values())


def test_threads_take_and_give_back_side_by_side() -> None:
    wrong: list[int] = []

    def take_turns(mark: int) -> None:
        for turn in range(300):
            views = [memory_of(SIZE_BYTES_MIN + turn)[1] for _ in range(3)]
            for view in views:
                view[:16] = bytes([mark]) * 16
            wrong.extend(mark for view in views if view[:16] != bytes([mark]) * 16)

    threads = [threading.Thread(target=take_turns, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
