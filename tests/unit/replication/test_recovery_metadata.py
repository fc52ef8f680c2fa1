"""Recovery and metadata that others change too (INV-M1): P4, P17, P18, P27."""

from __future__ import annotations

import pytest

from fastbk.errors import (
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
)
from fastbk.model.ledger import Fragment, LedgerState
from fastbk.replication.actions import (
    AddEntry,
    UpdateMetadata,
)
from tests.fixtures.fake_quorum import (
    FakeQuorum,
    is_closed_at,
    metadata_of,
)
from tests.fixtures.recovering import (
    closed_at,
    recover,
    recoverer,
    three,
)


def test_p17_who_closes_first_is_adopted() -> None:
    """r1 closes at 4 while r2 has written entry 5 again: r2 takes 4 and adds no fragment of its own."""
    harness = three(5, spare=1)
    slow, second = recoverer(harness)
    harness.write(5, ["b2"], lac=3)
    slow.run(
        until=lambda: (
            any(isinstance(one, UpdateMetadata) for one in slow.pending.values())
            and harness.metadata.state is LedgerState.IN_RECOVERY
        )
    )
    harness.edit(**closed_at(harness, 4))
    slow.run()
    assert second.value() == harness.current
    assert second.stats.is_adopted
    assert is_closed_at(harness, 4)
    assert len(harness.history) == 3


def test_p18_a_recoverer_that_died_half_way_is_followed_by_another() -> None:
    harness = three(2)
    for entry_id in range(2, 8):
        harness.write(entry_id, ["b0", "b1"], lac=1)
    client, _ = recoverer(harness, entries_max=2)
    client.run(until=lambda: 4 in harness.bookies["b2"].entries)
    del client
    recover(harness)
    assert is_closed_at(harness, 7)


def test_p27_the_writers_own_close_wins_over_a_recovery_that_has_begun() -> None:
    harness = three(6)  # entry 5 was not acknowledged when the writer closed
    client, procedure = recoverer(harness)
    client.run(until=lambda: harness.metadata.state is LedgerState.IN_RECOVERY)
    harness.edit(**closed_at(harness, 4))
    client.run()
    assert procedure.value() == harness.current
    assert is_closed_at(harness, 4)
    assert procedure.stats.is_adopted


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_p4_a_change_whose_answer_was_lost_is_found_done(lost: int) -> None:
    harness = three(5)
    harness.lose_update_answers = lost
    procedure = recover(harness)
    assert is_closed_at(harness, 4)
    assert len(harness.history) == 3  # never twice
    assert not procedure.stats.is_adopted


def test_p4_changes_of_others_survive_the_close() -> None:
    harness = FakeQuorum.of(metadata_of(3, 3, 2, 3), spare=1)
    for entry_id in range(6):
        harness.write(entry_id)
    client, procedure = recoverer(harness, harness.current)
    client.run(until=lambda: bool(client.asks(AddEntry)))
    repaired = Fragment(0, ("s0", "b1", "b2"))
    harness.edit(custom={"owner": b"x"}, fragments=(repaired, harness.metadata.fragments[1]))
    client.run()
    assert procedure.error is None
    assert is_closed_at(harness, 5)
    assert harness.metadata.custom == {"owner": b"x"}
    assert harness.metadata.fragments[0] == repaired
    assert procedure.stats.rounds == 1


def test_recovery_begins_anew_when_the_last_fragment_changed_under_it() -> None:
    harness = three(6, spare=1)
    client, procedure = recoverer(harness)
    client.run(until=lambda: bool(client.asks(AddEntry)))
    harness.bookies["s0"].entries = dict(harness.bookies["b0"].entries)
    harness.edit(fragments=(Fragment(0, ("s0", "b1", "b2")),))
    client.run()
    assert procedure.error is None
    assert is_closed_at(harness, 5)
    assert harness.metadata.fragments == (Fragment(0, ("s0", "b1", "b2")),)
    assert procedure.stats.rounds == 2
    assert harness.bookies["s0"].fenced


def test_a_ledger_that_never_holds_still_is_given_up() -> None:
    harness = three(3, spare=1)
    client, procedure = recoverer(harness, rounds_max=3)
    turns = [("s0", "b1", "b2"), ("b0", "b1", "b2")]
    while not procedure.is_finished:
        rounds = procedure.stats.rounds
        client.run(until=lambda: bool(client.asks(AddEntry)))
        for bookie in harness.bookies.values():
            bookie.entries = dict(harness.bookies["b1"].entries)
        harness.edit(fragments=(Fragment(0, turns[(rounds - 1) % 2]),))
        client.run(until=lambda rounds=rounds: procedure.stats.rounds > rounds)  # type: ignore[misc]
    with pytest.raises(MetadataConflict, match="again and again"):
        procedure.value()
    assert procedure.stats.rounds == 3


def test_a_deleted_ledger_and_a_store_that_is_away_are_said_so() -> None:
    harness = three(3)
    client, procedure = recoverer(harness)
    client.run(until=lambda: bool(client.asks(AddEntry)))
    harness.current = None
    client.run()
    with pytest.raises(NoSuchLedger):
        procedure.value()
    harness = three(3)
    client, procedure = recoverer(harness, harness.current, metadata_timeout_s=1)
    harness.store_away = True
    client.run()
    with pytest.raises(MetadataUnavailable):
        procedure.value()


def test_a_ledger_with_a_stale_copy_of_its_metadata_is_recovered_by_the_new_one() -> None:
    """The writer changed its ensemble after the metadata was read: b9 is not asked, s0 is."""
    harness = three(3, spare=1)
    stale = harness.current
    harness.edit(fragments=(harness.metadata.fragments[0], Fragment(3, ("b0", "s0", "b2"))))
    harness.write(3)
    client, procedure = recoverer(harness, stale)
    client.run()
    assert procedure.error is None
    assert is_closed_at(harness, 3)
    assert len(harness.metadata.fragments) == 2
    assert harness.bookies["s0"].fenced
