"""Parts cover exactly what is to be read, in order, and are about as large as they are asked to be."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fastbk.spark.offsets import Bounds, Range, part_bytes_of, plan_entries, plan_stream
from fastbk.stream.positions import DLSN
from fastbk.stream.reader.search import SegmentInfo


def closed(number: int, entries: int, size_bytes: int, first_seq: int = 0) -> SegmentInfo:
    """A closed segment of one record an entry, whose times are its number's thousands."""
    times = (1000 * number, 1000 * number + 999)
    return SegmentInfo(number, number, False, first_seq, entries, entries - 1, size_bytes, *times)


def opened(number: int) -> SegmentInfo:
    """An open segment."""
    return SegmentInfo(number, number, True, -1, 0, -1, 0, -1, -1)


def entries_in(parts: list[Range], segments: dict[int, int]) -> list[tuple[int, int]]:
    """Return (segment, entry) of all that the parts hold, where `segments` have so many entries."""
    return [
        (number, entry)
        for part in parts
        for number, count in segments.items()
        for entry in range(count)
        if part.first <= DLSN(number, entry, 0) < part.end
    ]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5000)), min_size=1, max_size=8),
    st.integers(0, 2),
    st.integers(1, 20_000),
    st.data(),
)
def test_parts_are_the_range_once_and_in_order(
    sizes: list[tuple[int, int]], open_count: int, part_bytes: int, data: st.DataObject
) -> None:
    segments = [closed(at + 1, count, size) for at, (count, size) in enumerate(sizes)]
    counts = {one.number: one.records for one in segments}
    for _ in range(open_count):
        number = len(counts) + 1
        segments.append(opened(number))
        counts[number] = data.draw(st.integers(1, 30))
    places = [DLSN(number, entry, 0) for number, count in counts.items() for entry in range(count)]
    low = data.draw(st.integers(0, len(places)))
    high = data.draw(st.integers(low, len(places)))
    behind = DLSN(places[-1].segment, places[-1].entry + 1, 0)
    first, end = ([*places, behind][at] for at in (low, high))
    inside = [one for one in segments if first.segment <= one.number <= end.segment]
    parts = plan_stream(inside, first, end, high - low, part_bytes)
    assert entries_in(parts, counts) == [(one.segment, one.entry) for one in places[low:high]]
    assert all(one.first < one.end <= next_one.first for one, next_one in pairwise(parts))
    # What a reader of a part reaches for is there: never the beginning of a segment that may not come.
    assert all(one.end == end or one.end.entry > 0 or one.end.slot > 0 for one in parts)


def test_an_end_at_the_beginning_of_the_second_open_segment_takes_the_first_one_whole() -> None:
    """Its records were left out in silence: it had been put off to go with the next piece, and there was none."""
    segments = [closed(1, 10, 1000), opened(2), opened(3)]
    found = plan_stream(segments, DLSN(1, 5, 0), DLSN(3, 0, 0), 12, 1)
    assert (found[-1].first, found[-1].end) == (DLSN(2, 0, 0), DLSN(3, 0, 0))
    assert sum(one.records for one in found) == 12
    (alone,) = plan_stream(segments[1:], DLSN(2, 3, 1), DLSN(3, 0, 0), 4, 100)
    assert (alone.first, alone.end, alone.records) == (DLSN(2, 3, 1), DLSN(3, 0, 0), 4)


def test_a_large_segment_is_cut_and_small_ones_share_a_part() -> None:
    large = plan_stream([closed(1, 100, 1000)], DLSN(1, 0, 0), DLSN(1, 100, 0), 100, 250)
    assert [(one.first.entry, one.end.entry) for one in large] == [
        (0, 25),
        (25, 50),
        (50, 75),
        (75, 100),
    ]
    assert [one.size_bytes for one in large] == [250] * 4
    small = [closed(number, 10, 100) for number in range(1, 11)]
    found = plan_stream(small, DLSN(1, 0, 0), DLSN(10, 10, 0), 100, 500)
    assert [(one.first.segment, one.end.segment) for one in found] == [(1, 5), (6, 10)]


def test_what_is_hardly_above_so_many_parts_makes_no_further_one() -> None:
    """A segment ends at the entry that fills it, so it is a little larger than the size at which it rolls."""
    rolled = [closed(number, 100, 1000 + number) for number in range(1, 5)]
    found = plan_stream(rolled, DLSN(1, 0, 0), DLSN(4, 100, 0), 400, 1000)
    assert [one.records for one in found] == [100] * 4
    (_, last) = plan_stream([closed(1, 1000, 2101)], DLSN(1, 0, 0), DLSN(1, 1000, 0), 1000, 1001)
    assert last.size_bytes == 1050
    assert (
        len(plan_stream([closed(1, 1000, 2101)], DLSN(1, 0, 0), DLSN(1, 1000, 0), 1000, 1000)) == 3
    )
    assert [size for _, _, size in plan_entries(0, 100, 1099, 1000)] == [1099]
    assert len(plan_entries(0, 100, 1101, 1000)) == 2


@given(st.integers(1, 100), st.integers(200_000, 10**12))
def test_as_many_parts_are_made_as_are_asked_for_of_what_can_be_cut(count: int, size: int) -> None:
    part = part_bytes_of(size, count, 1 << 40)
    found = plan_stream([closed(1, 10**6, size)], DLSN(1, 0, 0), DLSN(1, 10**6, 0), 10**6, part)
    assert len(found) == count
    assert len(plan_entries(0, 10**6, size, part)) == count


def test_slots_of_the_first_and_last_entry_are_kept() -> None:
    (part,) = plan_stream([closed(1, 10, 100)], DLSN(1, 2, 7), DLSN(1, 9, 3), 50, 1000)
    assert (part.first, part.end) == (DLSN(1, 2, 7), DLSN(1, 9, 3))


def test_segments_out_of_the_time_asked_for_are_left_out() -> None:
    segments = [closed(number, 10, 100) for number in range(1, 6)] + [opened(6)]
    found = plan_stream(
        segments, DLSN(1, 0, 0), DLSN(6, 5, 0), 55, 10_000, Bounds(time_low=2500, time_high=3999)
    )
    assert [(one.first, one.end) for one in found] == [
        (DLSN(2, 0, 0), DLSN(3, 10, 0)),
        (DLSN(6, 0, 0), DLSN(6, 5, 0)),  # what an open segment holds is not known
    ]


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 10_000), st.integers(1, 500))
def test_entries_of_a_ledger_are_cut_evenly(first: int, count: int, size: int, part: int) -> None:
    found = plan_entries(first, first + count, size, part)
    assert [one for low, high, _ in found for one in range(low, high)] == list(
        range(first, first + count)
    )
    assert all(low < high for low, high, _ in found)


def test_more_parts_are_made_where_more_are_asked_for() -> None:
    assert part_bytes_of(1000, 1, 64) == 64
    assert part_bytes_of(1000, 100, 64) == 10
    assert part_bytes_of(0, 5, 64) == 1
