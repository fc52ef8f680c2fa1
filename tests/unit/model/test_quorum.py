"""Write sets, ack sets and coverage against their definitions. INV-Q1, INV-Q5."""

from __future__ import annotations

from itertools import chain, combinations, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError
from fastbk.model.quorum import (
    AckSets,
    Span,
    check_quorums,
    majority,
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
    ack_sets = AckSets(ensemble, write_quorum, ack_quorum)
    assert ack_sets.none_without(answered) == (not hidden)
    assert missing_proof(write_quorum, ack_quorum) + ack_quorum == write_quorum + 1


def _subsets(members: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(
        chain.from_iterable(combinations(members, size) for size in range(len(members) + 1))
    )


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("quorums", [(2, 2, 1), (3, 3, 1), (3, 3, 2), (4, 3, 2), (4, 2, 2)])
def test_one_question_serves_both_sides_wherever_bookies_are(
    quorums: tuple[int, int, int], count: int
) -> None:
    """By every way to spread an ensemble over three racks, and one member of which nobody knows the rack."""
    ensemble, write_quorum, ack_quorum = quorums
    for racks in product("abc", repeat=ensemble):
        spans = (Span(count, racks),)
        sets = AckSets(*quorums, spans)
        found = [
            set(some)
            for members in write_sets(ensemble, write_quorum)
            for some in _subsets(members)
            if len(some) >= ack_quorum and len({racks[index] for index in some}) >= count
        ]
        for members in write_sets(ensemble, write_quorum):
            for some in _subsets(members):
                assert sets.contains(some) == any(one <= set(some) for one in found)
                # The plain count waits for more answers, and for nothing less.
                assert AckSets(*quorums).contains(some) or not sets.contains(some)
        for answered in _subsets(tuple(range(ensemble))):
            assert sets.none_without(answered) == all(one & set(answered) for one in found)
        for unknown in range(ensemble):
            adding = AckSets(
                *quorums, (Span(count, (*racks[:unknown], None, *racks[unknown + 1 :])),)
            )
            apart = AckSets(
                *quorums, (Span(count, (*racks[:unknown], unknown, *racks[unknown + 1 :])),)
            )
            for members in write_sets(ensemble, write_quorum):
                for some in _subsets(members):
                    # Whoever acknowledges takes no more than what is so, whoever decides no less.
                    assert not adding.contains(some) or sets.contains(some)
                    assert not sets.contains(some) or apart.contains(some)


def test_a_rack_that_is_away_stops_no_recovery() -> None:
    sets = AckSets(3, 3, 2, (Span(2, ("a", "a", "b")),))
    assert sets.none_without({2})
    assert not AckSets(3, 3, 2).none_without({2})
    assert str(sets) == "2 bookies in 2 racks"
