"""Merging what bookies saw and hold: nothing that anybody holds is lost, whatever was seen (INV-M8)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fastbk.model.entry import DigestType
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.replication.metadata_merge import Held, Merged, merge_ledger, newest

NAMES = ("a", "b", "c", "d", "e")
OPEN = LedgerMetadata(
    ensemble_size=2, write_quorum=2, ack_quorum=2, fragments=(Fragment(0, ("a", "b")),)
)
CHANGED = replace(OPEN, fragments=(Fragment(0, ("a", "b")), Fragment(10, ("a", "c"))))


def merged(held: dict[str, Held], stored: tuple[LedgerMetadata, int] | None = None) -> Merged:
    found = merge_ledger(held, stored)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_a_ledger_without_metadata_is_on_all_holders_with_ack_quorum_1_and_open() -> None:
    held = {
        one: Held(highest_entry_id=5, digest=DigestType.CRC32C, has_empty_password=True)
        for one in ("c", "a")
    }
    found = merged(held)
    assert found.metadata.fragments == (Fragment(0, ("a", "c")),)
    assert (found.metadata.write_quorum, found.metadata.ack_quorum) == (2, 1)
    assert not found.metadata.is_closed
    assert found.is_guessed
    assert (found.metadata.digest_type, found.metadata.password) == (DigestType.CRC32C, b"")


def test_what_cannot_be_known_is_said() -> None:
    found = merged({"a": Held(highest_entry_id=0, has_empty_password=False)})
    assert found.metadata.password is None
    assert found.metadata.digest_type is None
    assert len(found.notes) == 3


def test_closed_beats_open_and_is_final() -> None:
    closed = OPEN.closed(4, 40)
    held = {
        "a": Held(highest_entry_id=9, seen=(CHANGED, 8)),
        "b": Held(highest_entry_id=4, seen=(closed, 1)),
        "d": Held(highest_entry_id=9),
    }
    assert merged(held) == Merged(closed)


def test_two_other_ends_are_listed_and_the_longer_counts() -> None:
    chosen, notes = newest([(OPEN.closed(4, 40), 9), (OPEN.closed(5, 50), 1)])
    assert chosen.last_entry_id == 5
    assert len(notes) == 1


def test_the_newer_of_the_store_and_the_bookies_counts() -> None:
    assert merged({"a": Held(seen=(CHANGED, 1))}, (OPEN, 0)).metadata == CHANGED
    assert merged({"a": Held(seen=(OPEN, 0))}, (CHANGED, 1)).metadata == CHANGED


def test_an_ensemble_change_that_was_never_seen_names_all_holders() -> None:
    held = {"a": Held(highest_entry_id=20, seen=(OPEN, 0)), "d": Held(highest_entry_id=20)}
    found = merged(held)
    assert found.metadata.fragments == (Fragment(0, ("a", "d")),)
    assert found.metadata.ack_quorum == 1
    assert "b" in found.notes[0]


held_of_one = st.builds(
    Held,
    highest_entry_id=st.integers(-1, 20),
    is_here=st.just(True),
    seen=st.sampled_from([None, (OPEN, 0), (CHANGED, 1), (CHANGED.closed(15, 150), 2)]),
)


@given(st.dictionaries(st.sampled_from(NAMES), held_of_one, min_size=1))
def test_who_holds_more_than_the_last_fragment_is_named(held: dict[str, Held]) -> None:
    found = merged(held)
    if any(one.seen is not None and one.seen[0].is_closed for one in held.values()):
        assert found.metadata == CHANGED.closed(15, 150)
        return
    last = found.metadata.fragments[-1]
    for name, one in held.items():
        assert (
            one.highest_entry_id < last.first_entry_id
            or name in last.ensemble
            or (one.highest_entry_id < 0)
        )


@given(st.dictionaries(st.sampled_from(NAMES), held_of_one, min_size=1))
def test_merging_again_over_what_was_written_changes_nothing(held: dict[str, Held]) -> None:
    first = merged(held).metadata
    assert merged(held, (first, 0)).metadata == first
