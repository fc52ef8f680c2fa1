"""What metadata says of a bookie's share, and which ids of a share are missing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.admin.cluster import IDS_LISTED_MAX, missing_of
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.replication.copy_check import fragments_naming, last_of_fragment, share_bytes


def metadata(state: LedgerState, last: int, *fragments: tuple[int, str]) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        fragments=tuple(Fragment(first, tuple(names)) for first, names in fragments),
        state=state,
        last_entry_id=last,
        length=300 if last >= 0 else 0,
    )


def test_fragments_and_their_ends() -> None:
    closed = metadata(LedgerState.CLOSED, 9, (0, "abc"), (6, "abd"), (10, "bcd"))
    assert fragments_naming(closed, "a") == [0, 1]
    assert fragments_naming(closed, "x") == []
    assert [last_of_fragment(closed, at) for at in range(3)] == [5, 9, 9]
    still_open = metadata(LedgerState.OPEN, -1, (0, "abc"), (6, "abd"))
    assert [last_of_fragment(still_open, at) for at in range(2)] == [5, None]


@pytest.mark.parametrize(
    ("bookie", "wanted"), [("a", 200), ("c", 120), ("d", 80), ("b", 200), ("x", 0)]
)
def test_a_share_is_estimated_from_length_and_entries(bookie: str, wanted: int) -> None:
    closed = metadata(LedgerState.CLOSED, 9, (0, "abc"), (6, "abd"), (10, "bcd"))
    assert share_bytes(closed, bookie) == wanted
    assert share_bytes(metadata(LedgerState.OPEN, -1, (0, "abc")), bookie) == 0


def ranges_of(ids: set[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for one in sorted(ids):
        if found and found[-1][1] == one - 1:
            found[-1] = (found[-1][0], one)
        else:
            found.append((one, one))
    return found


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_missing_ids_are_those_of_the_sets(wanted: set[int], held: set[int]) -> None:
    count, ids = missing_of(ranges_of(wanted), ranges_of(held))
    assert ids == sorted(wanted - held)
    assert count == len(ids)


def test_many_missing_ids_are_counted_and_the_first_listed(rng: random.Random) -> None:
    hole = rng.randrange(2**40)
    count, ids = missing_of([(0, 2**50)], [(0, hole - 1)])
    assert count == 2**50 - hole + 1
    assert ids == list(range(hole, hole + IDS_LISTED_MAX))
