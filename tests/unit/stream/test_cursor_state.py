"""What is done, against a set of numbers: cumulative and single acknowledgements, gaps, resets (INV-S10)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError, StorageError
from fastbk.stream.cursor.state import (
    NONE,
    RANGES_MAX,
    AckRanges,
    CursorAcks,
    CursorRecord,
    CursorState,
    behind,
    check_data,
    get_record,
    get_state,
    put_record,
    put_state,
)
from fastbk.stream.positions import DLSN

PER_ENTRY = 3


def place(seq: int) -> DLSN:
    """Return where the model's record is: entries of three, segments of four entries."""
    entry, slot = divmod(seq, PER_ENTRY)
    return DLSN(1 + entry // 4, entry % 4, slot)


spans = st.tuples(st.integers(0, 60), st.integers(1, 8))


@given(st.lists(spans, max_size=30), spans)
def test_ranges_are_a_set_of_numbers(added: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    ranges, model = AckRanges(), set[int]()
    for first, count in added:
        touches = ranges.touches(first, first + count)
        before = len(ranges)
        ranges.add(first, first + count, behind(place(first + count - 1)))
        model |= set(range(first, first + count))
        assert touches == (len(ranges) <= before)
    assert {seq for seq in range(80) if seq in ranges} == model
    assert ranges.records == len(model)
    for (_, end, position), after in zip(
        list(ranges)[:-1], [first for first, _, _ in list(ranges)[1:]], strict=True
    ):
        assert end < after, "ranges that touch are one"
        assert place(end - 1) < position <= place(end)
    first, end = asked[0], asked[0] + asked[1]
    missing = [seq for low, high in ranges.missing(first, end) for seq in range(low, high)]
    assert missing == [seq for seq in range(first, end) if seq not in model]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), st.integers(0, 50)),
        st.tuples(st.just("one"), st.integers(0, 50)),
        st.tuples(st.just("gap"), spans),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("reset"), st.integers(0, 50)),
    ),
    max_size=40,
)


@given(steps, st.integers(0, 5))
def test_acknowledgements_are_a_set_of_numbers(steps: list[tuple[str, object]], first: int) -> None:
    """INV-S10: what is done is what was acknowledged, or is gone; and the mark is the first that is not."""
    acks = CursorAcks(CursorState(mark=place(first)))
    acks.first_is(first)
    done = set(range(first))
    for what, value in steps:
        changes, before = acks.changes, set(done)
        if what == "ack":
            assert isinstance(value, int)
            done |= set(range(value + 1))
            assert acks.ack(value, place(value)) == (value >= acks_mark(before))
        elif what == "one":
            assert isinstance(value, int)
            done.add(value)
            assert acks.ack_one(value, place(value)) == (value not in before)
        elif what == "gap":
            assert isinstance(value, tuple)
            low, count = value
            gone = set(range(low, low + count)) - done
            done |= gone
            assert acks.pass_gap(low, low + count, place(low + count)) == len(gone)
        elif what == "restart":
            acks = CursorAcks(get_state(put_state(acks.state(1, 1, 1))))
            changes = acks.changes
        else:
            assert isinstance(value, int)
            acks.reset(place(value))
            assert acks.mark_seq == NONE
            acks.first_is(value)
            done = set(range(value))
            assert acks.changes > changes
            continue
        assert (acks.changes > changes) == (done != before)
        mark = acks_mark(done)
        assert acks.mark_seq == mark
        assert mark == 0 or place(mark - 1) < acks.mark <= place(mark)
        assert {seq for seq in range(80) if acks.is_done(seq)} == done
        left = [seq for low, high in acks.not_done(0, 80) for seq in range(low, high)]
        assert left == [seq for seq in range(80) if seq not in done]


def acks_mark(done: set[int]) -> int:
    """Return the first number that is not in the set."""
    return next(seq for seq in range(200) if seq not in done)


def test_the_number_of_the_mark_comes_with_the_first_record() -> None:
    acks = CursorAcks(CursorState(mark=DLSN(4, 7, 0)))
    assert acks.ack_one(12, DLSN(4, 7, 2))
    assert not acks.is_done(10)
    acks.first_is(10)
    assert (acks.mark_seq, acks.mark) == (10, DLSN(4, 7, 0))
    assert acks.ack(11, DLSN(4, 7, 1))
    assert (acks.mark_seq, acks.mark, len(acks.ranges)) == (13, DLSN(4, 7, 3), 0)


def test_ten_thousand_ranges_fit_into_a_record_and_one_more_has_to_wait() -> None:
    acks = CursorAcks(CursorState(mark_seq=0))
    far = 1 << 60
    for at in range(RANGES_MAX):
        assert acks.has_room(far + 2 * at)
        assert acks.ack_one(far + 2 * at, DLSN(far, far + at, 1 << 30))
    assert len(acks.ranges) == RANGES_MAX
    assert not acks.has_room(far + 2 * RANGES_MAX)
    assert acks.has_room(far + 1), "it makes two ranges one"
    assert acks.has_room(0), "it moves the mark"
    raw = put_record(CursorRecord(acks.state(1, 1, 1), holder="h" * 80, doomed=tuple(range(20))))
    assert len(raw) < 800_000, "what a record of metadata takes, with room for the user's map"
    assert CursorAcks(get_record(raw).state).ranges.records == RANGES_MAX


@given(st.binary(max_size=40), st.integers(0, 10**6))
def test_damaged_states_are_refused(junk: bytes, at: int) -> None:
    with pytest.raises(StorageError):
        get_state(junk)
    good = bytearray(put_state(CursorState(5, 2, DLSN(1, 2, 3), 9, (11,), (12,), (DLSN(1, 3, 0),))))
    good[at % len(good)] ^= 1 << at % 8
    with pytest.raises(StorageError):
        get_state(bytes(good))
    with pytest.raises(StorageError):
        get_record(put_state(CursorState()))


@pytest.mark.parametrize(
    "data",
    [
        {"k": True}, {"k": 1.5}, {"k": None}, {1: "v"}, {"k": b"v"}, {"k": 1 << 63}, {"k": "\udcff"}, {"\udcff": 1},
        {str(at): 1 for at in range(5000)}, {"k": "v" * 40_000}, [("k", 1)], "k",
    ],
)  # fmt: skip
def test_a_map_that_could_not_be_read_again_is_refused(data: Any) -> None:
    """A cursor with `True` in its map was unusable for good."""
    with pytest.raises(ConfigError):
        check_data(data)


def test_a_map_with_true_in_it_that_an_earlier_version_kept_can_be_read() -> None:
    state = CursorState(data={"k": True, "n": 5})
    assert get_record(put_record(CursorRecord(state=state))).state == state
