"""Ranges of missing copies: merged, cut, and stored."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbk.model.missing_replica import (
    RANGES_MAX,
    MissingReplica,
    from_json,
    merged,
    to_json,
    without,
)

END = 30


@st.composite
def replicas(draw: st.DrawFn) -> list[MissingReplica]:
    found = []
    for _ in range(draw(st.integers(0, 6))):
        first = draw(st.integers(0, 20))
        last = draw(st.none() | st.integers(first, 25))
        found.append(MissingReplica(draw(st.sampled_from("ab")), first, last))
    return found


def entries(replicas: list[MissingReplica] | tuple[MissingReplica, ...]) -> set[tuple[str, int]]:
    return {
        (one.bookie_id, entry_id)
        for one in replicas
        for entry_id in range(
            one.first_entry_id, END if one.last_entry_id is None else one.last_entry_id + 1
        )
    }


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(replicas(), replicas())
def test_a_mark_says_just_what_was_added_and_not_removed(
    added: list[MissingReplica], removed: list[MissingReplica]
) -> None:
    assert entries(merged(added)) == entries(added)
    assert entries(without(added, removed)) == entries(added) - entries(removed)
    left = without(added, removed)
    for one, next_one in itertools.pairwise(left):
        assert one.bookie_id < next_one.bookie_id or one.end < next_one.first_entry_id
    assert from_json(to_json(left)) == left


def test_a_mark_keeps_a_bounded_number_of_ranges() -> None:
    many = [MissingReplica("a", 3 * one, 3 * one) for one in range(RANGES_MAX + 1)]
    other = MissingReplica("b", 1, 1)
    assert merged([*many, other]) == (other, MissingReplica("a", 0, 3 * RANGES_MAX))
    assert len(merged(many[:-1])) == RANGES_MAX


def test_the_oldest_reason_and_time_stay() -> None:
    old, new = MissingReplica("a", 0, 9, "old", 1), MissingReplica("a", 5, 20, "new", 2)
    assert merged([new, old]) == (MissingReplica("a", 0, 20, "old", 1),)


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"version":2,"missing":[]}', b'{"version":1}', b"[" * 100_000,
    b'{"version":1,"missing":[{"bookie":"b","first":-1,"last":null}]}',
    b'{"version":1,"missing":[{"bookie":"b","first":0,"last":1e999}]}'])  # fmt: skip
def test_damaged_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"truncated|missing|not known|Expected|recursion|range"):
        from_json(raw)
