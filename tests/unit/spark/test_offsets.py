"""Offsets: what is written is read, what options say is understood, limits are shared fairly."""

from __future__ import annotations

import json
import os
import random
import string
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError
from fastbk.spark.offsets import (
    EXAMPLE,
    Bounds,
    Offsets,
    Range,
    SizeEstimate,
    StreamOffset,
    advanced,
    amount,
    parse,
    parse_wanted,
    part_bytes_of,
    plan_entries,
    plan_stream,
    renamed,
    shares,
)
from fastbk.stream.positions import DLSN
from fastbk.stream.reader.search import SegmentInfo

ROOT = Path(__file__).resolve().parents[3]
numbers = st.integers(0, 2**61)
positions = st.builds(DLSN, numbers, numbers, st.integers(0, 2**31 - 1))
ids = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=64)


@st.composite
def places(draw: st.DrawFn) -> StreamOffset:
    dlsn, began = draw(positions), draw(st.none() | positions)
    return StreamOffset(dlsn, draw(numbers), draw(ids), None if began is None else min(began, dlsn))


ats = places()


parts = st.text("abcxyz_09Ä ☃", min_size=1, max_size=6)
names = st.builds(
    "{}/{}".format,
    st.text("abcxyz", min_size=1, max_size=6),
    st.lists(parts, min_size=1, max_size=3).map("/".join),
)


@given(st.dictionaries(names, ats), st.dictionaries(numbers, numbers))
def test_what_is_written_is_read(streams: dict[str, StreamOffset], ledgers: dict[int, int]) -> None:
    for offsets in (Offsets(streams, {}), Offsets({}, ledgers)):
        text = json.dumps(offsets.to_json())
        assert parse(json.loads(text)) == offsets
        assert json.dumps(parse(json.loads(text)).to_json()) == text


@pytest.mark.parametrize(
    "found",
    [
        {"streams": {"a/b": {"segment": "1"}}},
        {"streams": {"a/b": 5}},
        {"streams": {"a/b": {"id": "x", "segment": "-1", "seq": "0"}}},
        {"ledgers": {"7": True}},
        {"ledgers": ["7"]},
    ],
)
def test_offsets_of_others_are_refused(found: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        parse(found)


GOOD = {"id": "5f", "segment": "3", "entry": "120", "slot": 0, "seq": "7021"}
DEEP: object = 0
for _ in range(900):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"streams": {}, "ledgers": {}},
        {"version": 2, "streams": {"a/b": GOOD}},
        {"streams": {"a/b": {**GOOD, "shard": 1}}},
        {"streams": {"a/b": {**GOOD, "id": "../../../ledgers"}}},
        {"streams": {"a/b": {**GOOD, "id": "x" * 65}}},
        {"streams": {"a/b": {**GOOD, "began": "4.0.0"}}},  # all before it would count as read
        {"streams": {"a/b": {**GOOD, "began": "9" * 19 + ".0.0"}}},
        {"streams": {"a/b": {**GOOD, "seq": float("nan")}}},
        {"streams": {"a/b": {**GOOD, "seq": 10**4000}}},
        {"streams": {"a/b": {**GOOD, "entry": "9" * 1_000_000}}},
        {"streams": {"a/b": {**GOOD, "slot": -1}}},
        {"streams": {"a/b": DEEP}},
        {"streams": DEEP},
        {"streams": {"": GOOD}},
        {"streams": {"../../x": GOOD}},
        {"streams": {"a/\x1b[2J": GOOD}},
        {"ledgers": {"7": DEEP}},
        {"ledgers": {"-7": "1"}},
        {"ledgers": {"7": "\ud800\x1b]0;x\x07"}},
        {"streams\x1b[2J" * 100_000: {}},
    ],
)
def test_hostile_checkpoints_get_one_short_line(found: dict[str, object]) -> None:
    """What another version wrote, what was never there, and what would be shown whole or end a terminal's state."""
    with pytest.raises(ConfigError) as caught:
        parse(found)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("seed", range(3))
def test_changed_checkpoints_are_read_or_refused(seed: int) -> None:
    """FUZZ=1000000 makes it a long run."""
    dice = random.Random(seed)
    odd: tuple[object, ...] = (
        DEEP,
        None,
        True,
        -1,
        1 << 63,
        10**30,
        float("nan"),
        float("inf"),
        [],
        {},
    )
    odd += ("", "\ud800", "1e5", "٣", "x" * 5000)
    for _ in range(int(os.environ.get("FUZZ", "2000"))):
        place = {**GOOD, "began": "1.0.0"}
        found: dict[str, object] = {"streams": {"a/b": place, "a/c": dict(GOOD)}}
        if dice.random() < 0.3:
            found = {"ledgers": {"7": "1000", "8": "0"}}
        for _ in range(dice.choice((1, 1, 2))):
            inner = dice.choice([found, *found.values(), place])
            if isinstance(inner, dict):
                name = dice.choice([*inner, "id", "x", "\x1b[2J", "7", ""])
                inner[name] = dice.choice(odd)
                if dice.random() < 0.2:
                    del inner[name]
        refused = ""
        try:
            offsets = parse(found)
            assert parse(offsets.to_json()) == offsets
        except ConfigError as error:
            refused = str(error)
        assert len(refused) < 1000
        assert refused.isprintable()


def test_places_are_said_in_many_ways() -> None:
    said = {
        "a/1": {"segment": 3, "entry": 120, "slot": 4},
        "a/2": {"segment": "3"},
        "a/3": "3.120.4",
        "a/4": {"seq": 70},
        "a/5": "earliest",
        "a/6": {"id": "x", "segment": "3", "entry": "1", "slot": 0, "seq": "9"},
    }
    wanted = {
        "a/1": DLSN(3, 120, 4),
        "a/2": DLSN(3, 0, 0),
        "a/3": DLSN(3, 120, 4),
        "a/4": 70,
        "a/5": "earliest",
        "a/6": DLSN(3, 1, 0),
    }
    assert parse_wanted(said, ledgers=False).streams == wanted
    assert parse_wanted({"streams": said}, ledgers=False).streams == wanted
    assert parse_wanted({"7": 5, "8": "latest"}, ledgers=True).ledgers == {7: 5, 8: "latest"}

    assert parse_wanted({"streams": said, "batch": {}, "behind": {}}, ledgers=False).ids == {
        "a/6": "x"
    }


@pytest.mark.parametrize(
    "said",
    [
        "soon",
        5,
        {"entry": "1"},
        {"segment": -1},
        None,
        {"segment": 1, "entri": 5},
        {},
        {"id": "x"},
        {"seq": "9" * 5000},
        {"seq": 1.5},
        f"1.{'9' * 5000}.0",
    ],
)
def test_what_is_no_place_is_refused(said: object) -> None:
    with pytest.raises(ConfigError):
        parse_wanted({"a/b": said}, ledgers=False)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"0": 23}, 'a stream has one partition; .*{"shop/orders": {"seq": 23}}'),
        ({"offset": 1}, 'no field "offset"; write {"shop/orders": {"segment"'),
        (5, '5 is not an offset; write {"shop/orders"'),
    ],
)
def test_an_error_shows_the_form_that_the_documents_show(said: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_wanted({"a/b": said}, ledgers=False)
    written = EXAMPLE.partition(", for ledgers ")
    assert parse_wanted(json.loads(written[0]), ledgers=False).streams
    assert parse_wanted(json.loads(written[2]), ledgers=True).ledgers
    assert written[0].removesuffix("}") in (ROOT / "docs/spark.md").read_text()


def test_nothing_goes_back() -> None:
    far, near = StreamOffset(DLSN(2, 0, 0), 20, "x"), StreamOffset(DLSN(1, 0, 0), 10, "x")
    other = StreamOffset(DLSN(1, 0, 0), 10, "y")
    assert advanced(Offsets({"a": far}, {7: 9}), Offsets({"a": near}, {7: 3})) == Offsets(
        {"a": far}, {7: 9}
    )
    assert advanced(Offsets({"a": far}, {}), Offsets({"a": other}, {})).streams["a"] == other


def test_ledgers_that_are_read_no_longer_keep_their_place() -> None:
    assert advanced(Offsets({}, {7: 9, 8: 1}), Offsets({}, {8: 5})).ledgers == {7: 9, 8: 5}


def test_a_stream_is_its_id_whatever_its_name() -> None:
    x, y, z = (StreamOffset(DLSN(1, 0, 0), 10, name) for name in "xyz")

    def names(
        start: dict[str, StreamOffset], end: dict[str, StreamOffset]
    ) -> dict[str, StreamOffset]:
        return dict(renamed(Offsets(start, {}), Offsets(end, {})).streams)

    assert names({"a": x}, {"b": x}) == {"b": x}
    assert names({"a": x, "b": y}, {"a": y, "b": x}) == {"a": y, "b": x}
    assert names({"a": x, "b": y}, {"b": x}) == {"b": x}
    assert names({"a": x, "b": y}, {"a": z}) == {"a": x, "b": y}


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 10**9), max_size=20), st.integers(1, 10**9)
)
def test_a_limit_is_shared_by_backlog(backlogs: dict[str, int], limit: int) -> None:
    found = shares(backlogs, limit)
    assert all(0 <= found[name] <= backlog for name, backlog in backlogs.items())
    assert all(found[name] for name, backlog in backlogs.items() if backlog)
    assert sum(found.values()) <= limit + len(backlogs)


# Parts cover exactly what is to be read, in order, and are about as large as they are asked to
# be.


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


# How much lies between two offsets, for reports.


def at(seq: int, stream_id: str = "a") -> StreamOffset:
    return StreamOffset(DLSN(1, seq, 0), seq, stream_id)


def test_streams_that_are_known_new_and_made_anew() -> None:
    start = Offsets({"same": at(10), "idle": at(5), "anew": at(70, "old")}, {})
    end = Offsets({"same": at(30), "idle": at(5), "anew": at(8), "new": at(9), "odd": at(3)}, {})
    known = {
        "same": SizeEstimate(2, 100.0),
        "anew": SizeEstimate(3, 10.0),
        "new": SizeEstimate(4, 1000.0),
    }
    found = amount(start, end, known)
    assert found.by_name == {"same": 20, "anew": 5, "new": 5}
    assert found.to_json() == {"records": 30, "bytes": 20 * 100 + 5 * 10 + 5 * 1000}


def test_ledgers_and_nothing() -> None:
    found = amount(Offsets({}, {7: 10}), Offsets({}, {7: 15, 8: 2}), {"7": SizeEstimate(0, 50.0)})
    assert found.by_name == {"7": 5, "8": 2}
    assert found.size_bytes == 5 * 50 + 2 * 1024
    assert amount(Offsets({}, {}), Offsets({}, {}), {}).to_json() == {"records": 0, "bytes": 0}
