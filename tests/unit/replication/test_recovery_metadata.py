"""Recovery and metadata that others change too (INV-M1). P17, P18 and P27 are scripts of the simulator."""

from __future__ import annotations

import pytest

from fastbk.errors import (
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
)
from fastbk.model.ledger import Fragment
from fastbk.replication.actions import (
    AddEntry,
)
from tests.fixtures.fake_quorum import (
    FakeQuorum,
    is_closed_at,
    metadata_of,
)
from tests.fixtures.recovering import (
    recoverer,
    three,
)


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
