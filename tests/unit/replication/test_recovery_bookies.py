"""What a recovery takes for an answer (INV-Q2), and how it writes entries again. #...: Apache's reports."""

from __future__ import annotations

import pytest

from fastbk.errors import DigestMismatch, NotEnoughBookies, Unauthorized
from fastbk.model.ledger import Fragment, LedgerState
from fastbk.replication.procedure import AddEntry, Choose, ReadEntry, SendRequest, Sleep
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import Client, FakeQuorum, entry_of, is_closed_at, metadata_of
from tests.fixtures.recovering import PACING, entry_asked, recover, recoverer, three


def test_the_lac_inside_what_is_written_again_stays_where_recovery_began() -> None:
    """A competitor may close lower: a reader must not have been told otherwise."""
    harness = three(5)
    for entry_id in range(5, 12):
        harness.write(entry_id, ["b1", "b2"], lac=4)
    client, _ = recoverer(harness)
    client.run()
    lacs = {
        one.request.lac
        for one in client.log
        if isinstance(one, SendRequest) and isinstance(one.request, AddEntry)
    }
    assert lacs == {4}


def test_a_bookie_that_fails_is_replaced_in_the_same_close() -> None:
    harness = three(spare=1)
    for entry_id in range(10):
        harness.write(entry_id, lac=2)
    harness.bookies["b1"].add_status = Status.IO_ERROR
    procedure = recover(harness)
    assert is_closed_at(harness, 9)
    assert harness.metadata.fragments == (
        Fragment(0, ("b0", "b1", "b2")),
        Fragment(3, ("b0", "s0", "b2")),
    )
    assert [len(one.fragments) for one in harness.history] == [1, 1, 2]
    assert set(range(3, 10)) <= set(harness.bookies["s0"].entries)
    assert (procedure.stats.bookies_replaced, procedure.stats.copies_missing) == (1, 0)


def test_without_a_replacement_the_ack_quorum_is_enough() -> None:
    harness = three()
    for entry_id in range(4):
        harness.write(entry_id, lac=-1)
    harness.bookies["b0"].add_status = Status.IO_ERROR
    procedure = recover(harness)
    assert is_closed_at(harness, 3)
    assert procedure.stats.copies_missing == 4
    assert harness.metadata.fragments[-1].ensemble == ("b0", "b1", "b2")


def test_without_an_ack_quorum_it_tries_again_then_says_why() -> None:
    harness = three(3)
    harness.bookies["b0"].add_status = harness.bookies["b1"].add_status = Status.IO_ERROR
    client, procedure = recoverer(harness)
    client.run()
    with pytest.raises(NotEnoughBookies, match="entry 2 could not be written") as caught:
        procedure.value()
    assert caught.value.replicas == {"b0": "IO_ERROR", "b1": "IO_ERROR"}
    assert harness.metadata.state is LedgerState.IN_RECOVERY
    harness.bookies["b0"].add_status = None
    recover(harness)
    assert is_closed_at(harness, 2)


def test_a_bookie_that_comes_back_while_nobody_can_replace_it_takes_the_entries() -> None:
    harness = three(3)
    harness.bookies["b0"].add_status = harness.bookies["b1"].add_status = Status.IO_ERROR
    client, procedure = recoverer(harness)
    client.run(until=lambda: any(isinstance(one, Sleep) for one in client.pending.values()))
    harness.bookies["b1"].add_status = None
    client.run()
    assert procedure.error is None
    assert is_closed_at(harness, 2)


def test_a_bookie_that_has_no_time_just_now_is_not_replaced() -> None:
    harness = three(3, spare=1)
    harness.bookies["b0"].add_status = Status.TOO_MANY_REQUESTS
    harness.bookies["b1"].add_status = Status.NOT_READY
    client, procedure = recoverer(harness)
    client.run(until=lambda: sum(isinstance(one, Sleep) for one in client.log) == 4)
    assert not any(isinstance(one, Choose) for one in client.log)
    harness.bookies["b0"].add_status = harness.bookies["b1"].add_status = None
    client.run()
    assert procedure.error is None
    assert procedure.stats.bookies_replaced == 0
    assert is_closed_at(harness, 2)


def test_a_bookie_that_never_has_time_is_replaced() -> None:
    harness = three(3, spare=1)
    harness.bookies["b0"].add_status = harness.bookies["b1"].add_status = Status.TOO_MANY_REQUESTS
    recover(harness)
    assert is_closed_at(harness, 2)
    assert "s0" in harness.metadata.fragments[-1].ensemble


def test_what_is_in_hand_is_bounded_by_entries_and_bytes() -> None:
    for entries_max, size_bytes_max, most in ((5, 1 << 20, 5), (16, 20, 4), (16, 1, 1)):
        harness = three()
        for entry_id in range(40):
            harness.write(entry_id, ["b0", "b1"], lac=-1)
        client, procedure = recoverer(
            harness, entries_max=entries_max, size_bytes_max=size_bytes_max
        )
        in_hand = 0

        def look(client: Client = client) -> bool:
            nonlocal in_hand
            asked = {
                entry_asked(one)
                for kind in (ReadEntry, AddEntry)
                for one in client.asks(kind)
                if one.bookie_id != "b2"
            }
            in_hand = max(in_hand, len(asked - {-1}))
            return False

        client.run(until=look)
        assert procedure.error is None
        assert is_closed_at(harness, 39)
        assert 1 <= in_hand <= most + 1


def test_every_read_of_a_recovery_fences_with_priority() -> None:
    harness = three(5)
    harness.write(5, ["b0"])
    client, _ = recoverer(harness)
    client.run()
    reads = [one.request for one in client.log if isinstance(one, SendRequest)]
    reads = [one for one in reads if isinstance(one, ReadEntry)]
    assert len(reads) > 6
    assert all(one.fence and one.high_priority for one in reads)  # type: ignore[union-attr]


@pytest.mark.parametrize("trouble", ["CANNOT_TELL", "damaged", "away"])
def test_answers_that_prove_nothing_do_not_count_as_fenced(trouble: str) -> None:
    harness = three(3)
    for name in ("b0", "b1"):
        harness.bookies[name].away = trouble == "away"
        harness.bookies[name].read_status = Status.CANNOT_TELL if trouble == "CANNOT_TELL" else None
        harness.bookies[name].damaged = {2} if trouble == "damaged" else set()
    client, procedure = recoverer(harness)
    client.run()
    kind = DigestMismatch if trouble == "damaged" else NotEnoughBookies
    with pytest.raises(kind, match="fenced") as caught:
        procedure.value()
    assert set(caught.value.replicas) == {"b0", "b1"}
    paused = any(isinstance(one, Sleep) for one in client.log)
    assert paused == (trouble == "away")


def test_bookies_that_come_back_in_time_are_asked_again() -> None:
    harness = three(3)
    harness.bookies["b0"].away = harness.bookies["b1"].away = True
    client, procedure = recoverer(harness)
    client.run(until=lambda: sum(isinstance(one, Sleep) for one in client.log) == 3)
    harness.bookies["b0"].away = False
    client.run()
    assert procedure.error is None
    assert is_closed_at(harness, 2)
    pauses = [one.pause_s for one in client.log if isinstance(one, Sleep)]
    assert pauses[:3] == [0.02, 0.04, 0.08]


def test_asking_again_ends_when_patience_does() -> None:
    harness = three(3)
    harness.bookies["b0"].away = harness.bookies["b1"].away = True
    client, procedure = recoverer(harness)
    client.run()
    assert isinstance(procedure.error, NotEnoughBookies)
    assert client.now_s <= PACING.give_up_s + 0.1


def test_another_password_ends_it_at_once() -> None:
    harness = three(3)
    harness.bookies["b1"].read_status = Status.UNAUTHORIZED
    client, procedure = recoverer(harness)
    client.run(until=lambda: bool(client.asks(ReadEntry)))
    client.deliver(client.asks(ReadEntry, "b1")[0])
    with pytest.raises(Unauthorized):
        procedure.value()
    assert not client.pending


def test_a_start_is_taken_from_the_best_lac_heard() -> None:
    harness = FakeQuorum.of(metadata_of(3, 3, 2))
    for entry_id in range(100):
        harness.write(entry_id, lac=entry_id - 5)
    harness.bookies["b0"].entries = {0: entry_of(0)}
    client, procedure = recoverer(harness)
    client.run()
    asked = {
        one.request.entry_id
        for one in client.log
        if isinstance(one, SendRequest) and isinstance(one.request, ReadEntry)
    }
    assert min(asked - {-1}) == 95
    assert procedure.stats.entries_rewritten == 5
    assert is_closed_at(harness, 99)
