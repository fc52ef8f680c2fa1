"""What retention deletes, against a plain model (INV-S9), with rows in pages and without."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fastbk.stream import chain as chains
from fastbk.stream import retention
from fastbk.stream.chain import Chain, Contents, Segment
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN

NOW_US = 1_000_000_000
segments = st.lists(
    st.tuples(st.integers(0, 900_000_000), st.integers(1, 1000)), min_size=1, max_size=12
)
limits = st.tuples(
    st.sampled_from([0.0, 100.0, 500.0, 999.0]),
    st.sampled_from([0, 1, 700, 3000]),
    st.sampled_from([0.0, 500.0, 1000.0]),
    st.sampled_from([0, 3000, 6000]),
    st.booleans(),
)


def chain_of(some: list[tuple[int, int]], *, is_open: bool) -> Chain:
    chain, time_us = chains.open_for_append(Chain("a"), "w"), 0
    for at, (step_us, size) in enumerate(some):
        number = at + 1
        time_us = min(time_us + step_us // len(some), NOW_US)
        chain = chains.add_segment(chains.reserve(chain, 1, number), 1, number, 0)
        held = Contents(5, at, at, time_us, time_us, DLSN(number, 4, 0), -1, size)
        chain = chains.close_segment(chain, number, held)
    if is_open:
        chain = chains.add_segment(chains.reserve(chain, 1, 99), 1, 99, 0)
    return chain


def policy_of(values: tuple[float, int, float, int, bool]) -> StreamPolicy:
    age, size, hard_age, hard_size, holds = values
    return StreamPolicy(
        retention_age_s=age,
        retention_bytes=size,
        hard_age_s=max(hard_age, age) if hard_age else 0.0,
        hard_bytes=max(hard_size, size) if hard_size else 0,
        hold_for_cursors=holds,
    )


def is_beyond(rows: list[Segment], at: int, age_s: float, size_bytes: int) -> bool:
    """Whether no record of this segment is within the limits."""
    if not age_s and not size_bytes:
        return False
    is_old = bool(age_s) and rows[at].last_time_us < NOW_US - age_s * 1e6
    behind = sum(row.size_bytes for row in rows[at + 1 :])
    return is_old or (bool(size_bytes) and behind >= size_bytes)


def expected_below(chain: Chain, policy: StreamPolicy, marks: list[DLSN]) -> int:
    """The model: segment by segment from the oldest, by the words of the README."""
    rows = [row for row in chain.rows if not row.is_open]
    below = 1
    for at, row in enumerate(rows[:-1]):
        soft = is_beyond(rows, at, policy.retention_age_s, policy.retention_bytes)
        hard = is_beyond(rows, at, policy.hard_age_s, policy.hard_bytes)
        end = DLSN(row.number, row.last_entry_id + 1, 0)
        held = policy.hold_for_cursors and any(mark < end for mark in marks)
        if not (end <= chain.trim or hard or (soft and not held)):
            break
        below = row.number + 1
    return below


def below_of(
    chain: Chain, items: list[retention.Item], policy: StreamPolicy, marks: list[DLSN]
) -> int:
    target = retention.points(chain, items, policy, marks, NOW_US).target
    newest = chain.next_number - 1 - len(chain.open_rows)
    return min(retention.deletable_below(target, chain.row(target.segment)), newest)


@given(
    segments,
    limits,
    st.lists(st.tuples(st.integers(1, 14), st.integers(0, 6)), max_size=3),
    st.tuples(st.integers(1, 13), st.integers(0, 6)),
    st.booleans(),
)
def test_what_goes_is_what_the_words_say(
    some: list[tuple[int, int]],
    values: tuple[float, int, float, int, bool],
    places: list[tuple[int, int]],
    trim: tuple[int, int],
    is_open: bool,
) -> None:
    chain, policy = chain_of(some, is_open=is_open), policy_of(values)
    newest = len(some)
    chain = replace(chain, trim=min(DLSN(*trim, 0), DLSN(newest, 5, 0)))
    marks = [DLSN(*place, 0) for place in places]
    below = below_of(chain, retention.items_of(chain), policy, marks)
    assert below <= newest, "INV-S9: the newest closed segment stays"
    assert below == expected_below(chain, policy, marks)


@given(segments, limits, st.integers(1, 11), st.integers(0, 400_000_000))
def test_time_and_data_only_move_it_forward(
    some: list[tuple[int, int]],
    values: tuple[float, int, float, int, bool],
    first: int,
    later_us: int,
) -> None:
    policy = policy_of(values)
    one, other = chain_of(some[:first], is_open=False), chain_of(some, is_open=False)
    if one.rows != other.rows[: len(one.rows)]:
        one = other
    early = retention.points(one, retention.items_of(one), policy, (), NOW_US).target
    late = retention.points(other, retention.items_of(other), policy, (), NOW_US + later_us).target
    assert early <= late


def paged(chain: Chain, rng: random.Random) -> tuple[Chain, dict[int, tuple[Segment, ...]]]:
    pages: dict[int, tuple[Segment, ...]] = {}
    while chain.rows and not chain.rows[0].is_open and rng.random() < 0.8:
        closed = sum(not row.is_open for row in chain.rows)
        chain, page, rows = chains.spill(chain, rng.randint(1, closed), rng.getrandbits(60))
        pages[page.token] = rows
    return chain, pages


@given(segments, limits, st.integers(0, 2**32), st.integers(1, 12))
def test_pages_give_what_rows_give(
    some: list[tuple[int, int]],
    values: tuple[float, int, float, int, bool],
    seed: int,
    deleting: int,
) -> None:
    whole, policy = chain_of(some, is_open=True), policy_of(values)
    whole = chains.mark_deleting(whole, deleting)
    chain, pages = paged(whole, random.Random(seed))
    items, read = retention.items_of(chain), 0
    while page := retention.page_needed(items, policy, NOW_US):
        items = retention.opened(items, page, pages[page.token], chain.deleting)
        read += 1
    assert read <= 2, "one page for each kind of limit"
    plain = retention.items_of(whole)
    # Deleted segments at a page's begin change nothing: only what lies behind a segment counts.
    by_pages = retention.points(chain, items, policy, (), NOW_US)
    assert by_pages.target == retention.points(whole, plain, policy, (), NOW_US).target


@given(st.integers(1, 12), st.integers(0, 11), st.booleans())
def test_one_clock_that_is_ahead_does_not_keep_a_stream_for_ever(
    count: int, wrong_from: int, is_open: bool
) -> None:
    """Times never fall, so all records behind one of the year 2100 had that time, and nothing was deleted by age."""
    future_us, step_us = 4_102_444_800_000_000, 10_000_000
    chain = chains.open_for_append(Chain("a"), "w")
    for at in range(count):
        number = at + 1
        # Each segment is made while the one before it is written.
        created_us = max(0, (at - 1) * step_us + step_us // 2)
        chain = chains.add_segment(chains.reserve(chain, 1, number), 1, number, created_us)
        time_us = future_us if at >= wrong_from else at * step_us + step_us - 1
        held = Contents(5, at, at, time_us, time_us, DLSN(number, 4, 0), -1, 100)
        chain = chains.close_segment(chain, number, held)
    if is_open:
        chain = chains.add_segment(chains.reserve(chain, 1, 99), 1, 99, count * step_us)
    policy = StreamPolicy(retention_age_s=15.0)
    now_us = count * step_us
    items = retention.items_of(chain)
    below = retention.points(chain, items, policy, [], now_us).policy
    old = [row.number for row in chain.rows if row.number * step_us - 1 < now_us - 15_000_000]
    # Nothing goes too early, and what cannot be told keeps three segments at most.
    assert below <= max(old, default=0) + 1
    assert below >= max(old, default=0) - 2
