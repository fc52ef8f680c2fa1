"""Write sets and coverage against their definitions. INV-Q1."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError
from fastbk.model.quorum import (
    check_quorums,
    majority,
    meets_every_ack_quorum,
    missing_proof,
    write_set,
    write_sets,
)


def test_write_sets_stay_right_beyond_31_bits() -> None:
    # Apache's client writes entry 2^32 to (0, 1) and reads it from (1, 2).
    assert write_set(2**31 - 1, 3, 2) == (1, 2)
    assert write_set(2**32, 3, 2) == (1, 2)
    assert write_set(2**63 - 1, 3, 2) == (1, 2)


@given(st.integers(0, 2**63 - 1), st.integers(1, 9), st.data())
def test_a_write_set_is_qw_bookies_in_a_row(
    entry_id: int, ensemble: int, data: st.DataObject
) -> None:
    quorum = data.draw(st.integers(1, ensemble))
    found = write_set(entry_id, ensemble, quorum)
    assert len(set(found)) == quorum
    assert all((b - a) % ensemble == 1 % ensemble for a, b in pairwise(found))
    assert found[0] == entry_id % ensemble
    assert found == write_sets(ensemble, quorum)[entry_id % ensemble]


@pytest.mark.parametrize("quorums", [(3, 2, 0), (2, 3, 1), (3, 2, 3), (0, 0, 0), (65, 3, 2)])
def test_impossible_quorums_are_refused(quorums: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="ensemble >= write_quorum >= ack_quorum"):
        check_quorums(*quorums)


def test_a_majority_is_more_than_half() -> None:
    assert [majority(size) for size in range(1, 6)] == [1, 2, 2, 3, 3]


@given(st.integers(1, 5), st.data())
def test_coverage_means_no_ack_quorum_can_hide_among_the_silent(
    ensemble: int, data: st.DataObject
) -> None:
    write_quorum = data.draw(st.integers(1, ensemble))
    ack_quorum = data.draw(st.integers(1, write_quorum))
    answered = data.draw(st.sets(st.integers(0, ensemble - 1)))
    hidden = any(
        not answered & set(holders)
        for members in write_sets(ensemble, write_quorum)
        for holders in combinations(members, ack_quorum)
    )
    assert meets_every_ack_quorum(answered, ensemble, write_quorum, ack_quorum) == (not hidden)
    assert missing_proof(write_quorum, ack_quorum) + ack_quorum == write_quorum + 1
