"""The list of a ledger's entries as Apache's bookies and clients know it."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ProtocolError
from fastbk.native._client import ffi, lib


def put_list(ranges: Sequence[tuple[int, int]]) -> bytes:
    """Return the list of a ledger's entries of ranges (first id, last id), which ascend and do not touch."""
    flat = ffi.new("int64_t[]", [number for each in ranges for number in each])
    size_bytes = int(lib.fbk_apache_put_list(ffi.NULL, 0, flat, len(ranges)))
    out = bytearray(size_bytes)
    lib.fbk_apache_put_list(ffi.from_buffer("uint8_t[]", out), size_bytes, flat, len(ranges))
    return bytes(out)


def read_list(blob: bytes, range_count_max: int) -> tuple[int, list[tuple[int, int]]]:
    """Return how many ranges a list of entries has and the first of them, at most `range_count_max`.

    Raises ProtocolError for what is no such list.
    """
    ranges = ffi.new("int64_t[]", 2 * range_count_max)
    count = int(lib.fbk_apache_read_list(blob, len(blob), ranges, range_count_max))
    if count < 0:
        raise ProtocolError("not a list of a ledger's entries")
    found = [
        (int(ranges[2 * i]), int(ranges[2 * i + 1])) for i in range(min(count, range_count_max))
    ]
    return count, found


Group = tuple[int, int, int, int]
INT32_MAX = 2**31 - 1


def list_of(*groups: Group) -> bytes:
    """Return the list of groups: first sequence's start, last sequence's, size, period."""
    packed = b"".join(struct.pack(">qqii", *group) for group in groups)
    return struct.pack(">ii56x", 0, len(groups)) + packed


def groups_of(blob: bytes) -> list[Group]:
    version, count = struct.unpack_from(">ii56x", blob)
    assert (version, len(blob)) == (0, 64 + 24 * count)
    return list(struct.iter_unpack(">qqii", blob[64:]))


@pytest.mark.parametrize(
    ("ranges", "groups"),
    [
        ([], []),
        ([(7, 7)], [(7, 7, 1, 0)]),
        ([(0, 9), (20, 29)], [(0, 0, 10, 0), (20, 20, 10, 0)]),
        (
            [(0, 1), (5, 6), (10, 11), (15, 16)],
            [(0, 0, 2, 0), (5, 5, 2, 0), (10, 10, 2, 0), (15, 15, 2, 0)],
        ),
    ],
)
def test_lists_of_apaches_own_bookies_are_read(
    ranges: list[tuple[int, int]], groups: list[Group]
) -> None:
    """Recorded: its class of 4.17.2 has the means to group sequences, but makes each a group of its own."""
    assert read_list(list_of(*groups), 10) == (len(ranges), ranges)


def test_sequences_of_one_size_and_spacing_are_one_group() -> None:
    ranges = [(5 * i, 5 * i + 1) for i in range(1000)]
    assert groups_of(put_list(ranges)) == [(0, 4995, 2, 5)]
    assert read_list(put_list(ranges), 1000) == (1000, ranges)


def test_a_gap_of_more_than_one_id_between_groups_is_an_empty_group() -> None:
    """Apache's reader takes the list for finished at the second id of a gap, and all that follows for missing."""
    assert groups_of(put_list([(0, 9), (11, 12), (20, 29)])) == [
        (0, 0, 10, 0),
        (11, 11, 2, 0),
        (13, 19, 0, 1),
        (20, 20, 10, 0),
    ]


def test_sizes_and_spacings_of_more_than_31_bits() -> None:
    long = [(3, 3 + 2 * INT32_MAX)]
    assert [group[2] for group in groups_of(put_list(long))] == [INT32_MAX, INT32_MAX, 1]
    far = [(0, 0), (2**31, 2**31), (2**32, 2**32), (2**62, 2**62)]
    for ranges in (long, far):
        assert read_list(put_list(ranges), 10) == (len(ranges), ranges)


def test_only_as_many_ranges_as_there_is_room_for() -> None:
    blob = list_of(
        (0, 10 * (2**60 // 10), 1, 10), (2**61, 2**61, 4, 0), (2**61 + 4, 2**61 + 4, 4, 0)
    )
    count = 2**60 // 10 + 2
    assert read_list(blob, 0) == (count, [])
    assert read_list(blob, 3) == (count, [(0, 0), (10, 10), (20, 20)])


def test_sequences_that_touch_are_one_range() -> None:
    assert read_list(list_of((0, 8, 4, 4), (12, 12, 3, 0)), 5) == (1, [(0, 14)])
    assert read_list(list_of((0, 4, 1, 4), (5, 5, 3, 0)), 2) == (2, [(0, 0), (4, 7)])


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        bytes(63),
        struct.pack(">ii56x", 1, 0),
        struct.pack(">ii56x", -1, 0),
        struct.pack(">ii56x", 0, -1),
        list_of((0, 0, 1, 0))[:-1],
        list_of((-1, 5, 1, 1)),
        list_of((0, -1, 1, 1)),
        list_of((5, -(2**63), 1, 1)),
        list_of((0, 0, -1, 0)),
        list_of((0, 10, 2, 0)),
        list_of((0, 10, 2, -5)),
        list_of((0, 10, 2, 1)),
        list_of((0, 10, 2, 3)),
        list_of((0, 10, 4, 4)),
        list_of((2**63 - 1, 2**63 - 1, 1, 0)),
        list_of((10, 10, 1, 0), (10, 10, 1, 0)),
        list_of((10, 10, 5, 0), (14, 14, 1, 0)),
        list_of((10, 10, 5, 0), (1, 1, 1, 0)),
    ],
)
def test_what_is_no_list_is_refused(blob: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_list(blob, 10)


@st.composite
def ranges_of(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Ranges that ascend and do not touch, many of them of one size and evenly spaced."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 2, 2, 3]), max_size=20))
    gaps = draw(
        st.lists(st.sampled_from([1, 3, 3, 3, 4]), min_size=len(sizes), max_size=len(sizes))
    )
    ends = accumulate(size + gap for size, gap in zip(sizes, gaps, strict=True))
    return [(end - size, end - 1) for size, end in zip(sizes, ends, strict=True)]


def missing_to_apache(groups: list[Group], first: int, last: int) -> list[int]:
    """What its client misses of all ids first..last: it goes along, and stops where it believes the list to end."""
    starts = [group[0] for group in groups]
    missing, current, is_finished = [], None, False
    for entry_id in range(first, last + 1):
        if not is_finished and (current is None or entry_id > current[1] + current[2]):
            at = bisect_right(starts, entry_id) - 1
            current = groups[at] if at >= 0 else None
            is_finished = (
                entry_id > current[1] + current[2]
                if current
                else entry_id > max(starts, default=-1)
            )
        if is_finished or current is None:
            missing.append(entry_id)
            continue
        start, _, size, period = current
        if not ((entry_id - start) % period if period else entry_id - start) < size:
            missing.append(entry_id)
    return missing


@given(ranges_of(), st.integers(0, 30))
def test_apaches_client_misses_what_is_not_there_and_nothing_else(
    ranges: list[tuple[int, int]], first: int
) -> None:
    blob = put_list(ranges)
    assert read_list(blob, 100) == (len(ranges), ranges)
    there = {entry_id for start, end in ranges for entry_id in range(start, end + 1)}
    last = max(there, default=0) + 5
    expected = [entry_id for entry_id in range(first, last + 1) if entry_id not in there]
    assert missing_to_apache(groups_of(blob), first, last) == expected


def test_the_model_of_apaches_client_has_its_fault() -> None:
    """Recorded of 4.17.2's class: its own list of 0..9 and 20..29, asked for 0..31."""
    own = [(0, 0, 10, 0), (20, 20, 10, 0)]
    assert missing_to_apache(own, 0, 31) == list(range(10, 32))
