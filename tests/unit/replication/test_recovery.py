"""Where a recovery ends, how long the ledger is then, and what stays when it is cut off or others change it too.

INV-M1. The known ways to get it wrong, P1 to P27, are scripts of the simulator (tests/simulation/scripts).
"""

from __future__ import annotations

import pytest

from fastbk.errors import (
    MetadataConflict,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
)
from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import Fragment, LedgerState
from fastbk.replication.procedure import AddEntry, ReadEntry, Withdraw
from tests.fixtures.fake_quorum import FakeQuorum, entry_of, is_closed_at, length_at, metadata_of
from tests.fixtures.recovering import entry_asked, is_read_of, recover, recoverer, three


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 3, 3), (5, 3, 2), (4, 2, 1)])
@pytest.mark.parametrize("entries", [0, 1, 2, 40])
def test_a_ledger_is_closed_behind_its_last_entry(
    quorums: tuple[int, int, int], entries: int
) -> None:
    harness = FakeQuorum.of(metadata_of(*quorums))
    for entry_id in range(entries):
        harness.write(entry_id)
    procedure = recover(harness)
    assert is_closed_at(harness, entries - 1)
    assert procedure.value() == harness.current
    assert [one.state for one in harness.history] == [
        LedgerState.OPEN,
        LedgerState.IN_RECOVERY,
        LedgerState.CLOSED,
    ]
    assert procedure.stats.entries_rewritten == min(1, entries)
    assert procedure.stats.copies_missing == procedure.stats.bookies_replaced == 0


def test_a_closed_ledger_is_used_as_it_is() -> None:
    harness = three(3)
    harness.current = VersionedLedger(harness.metadata.closed(2, length_at(2)), 5)
    client, procedure = recoverer(harness, harness.current)
    assert procedure.is_finished
    assert procedure.value() is harness.current
    assert client.log == []
    assert procedure.stats.is_adopted


def test_one_good_copy_decides_that_an_entry_exists_and_it_is_brought_everywhere() -> None:
    harness = three(2)
    harness.write(2, ["b2"])
    client, procedure = recoverer(harness)
    client.run(until=lambda: any(is_read_of(one, 2) for one in client.pending.values()))
    client.deliver(next(one for one in client.asks(ReadEntry, "b2") if entry_asked(one) == 2))
    client.run()
    assert is_closed_at(harness, 2)
    assert all(2 in bookie.entries for bookie in harness.bookies.values())
    assert procedure.stats.entries_rewritten == 2  # b0 and b1 knew of LAC 0 only


def test_the_length_is_not_that_of_an_answer_that_names_the_last_entry_as_its_lac() -> None:
    harness = three(3)  # entries 0..2
    for bookie in harness.bookies.values():
        bookie.entries[2] = entry_of(2, lac=1)
    client, procedure = recoverer(harness)
    client.run(
        until=lambda: bool(client.asks(ReadEntry)) and client.log[-1] in client.pending.values()
    )
    client.run(until=lambda: any(is_read_of(one, 2) for one in client.log))
    # The only copy behind the LAC was lost with its bookies' disks; they know that they lost it.
    for bookie in harness.bookies.values():
        bookie.entries.pop(2, None)
    client.run()
    assert procedure.value().metadata.last_entry_id == 1
    assert procedure.value().metadata.length == length_at(1)


def test_the_length_of_an_empty_last_fragment_is_read_from_the_fragment_before() -> None:
    harness = FakeQuorum.of(metadata_of(2, 2, 2, 5))
    for entry_id in range(5):
        harness.write(entry_id)
    recover(harness)
    assert is_closed_at(harness, 4)
    assert [one.first_entry_id for one in harness.metadata.fragments] == [0, 5]


def test_one_bookie_that_lost_the_last_acknowledged_entry_does_not_hide_its_length() -> None:
    """Found by simulation: with Qw = Qa one "no" proves that an entry was never acknowledged; this one was."""
    harness = FakeQuorum.of(metadata_of(2, 2, 2, 5))
    for entry_id in range(5):
        harness.write(entry_id)
    del harness.bookies["b0"].entries[4]
    del harness.bookies["b1"].entries[4]
    client, procedure = recoverer(harness)
    client.run(until=lambda: any(is_read_of(one, 4) for one in client.pending.values()))
    client.deliver(next(one for one in client.asks(ReadEntry, "b0") if entry_asked(one) == 4))
    assert not procedure.is_finished
    harness.write(4, ["b1"])
    client.run()
    assert procedure.error is None
    assert is_closed_at(harness, 4)


def test_without_its_last_acknowledged_entry_a_ledger_is_not_closed() -> None:
    harness = FakeQuorum.of(metadata_of(2, 2, 2, 5))
    for entry_id in range(5):
        harness.write(entry_id)
    harness.bookies["b0"].away = harness.bookies["b1"].away = True
    client, procedure = recoverer(harness)
    client.run()
    with pytest.raises(NotEnoughBookies) as caught:
        procedure.value()
    assert caught.value.entry_id == 4
    assert harness.metadata.state is LedgerState.IN_RECOVERY
    harness.bookies["b0"].away = harness.bookies["b1"].away = False
    for name in ("b0", "b1"):
        del harness.bookies[name].entries[4]
    client, procedure = recoverer(harness)
    client.run()
    with pytest.raises(NoSuchEntry, match="they lost data"):
        procedure.value()


@pytest.mark.parametrize("step", range(0, 40, 3))
def test_a_cancelled_recovery_asks_for_nothing_more(step: int) -> None:
    harness = three()
    for entry_id in range(10):
        harness.write(entry_id, lac=3)
    client, procedure = recoverer(harness)
    for _ in range(step):
        if client.pending:
            client.deliver(next(iter(client.pending.values())))
    late = dict(client.pending)
    procedure.cancel()
    actions = procedure.take_actions()
    assert dict(actions) == dict.fromkeys(late, Withdraw())
    for tag, action in late.items():
        procedure.completed(tag, harness.outcome(action), client.now_s)
        assert procedure.take_actions() == []
    recover(harness)
    assert is_closed_at(harness, 9)


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
