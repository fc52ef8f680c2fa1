"""The LAC by quorum and by what there is: coverage, proofs, patience. INV-C1."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ClientClosed, NotEnoughBookies, QuorumTimeout
from fastbk.model.quorum import AckSets
from fastbk.replication.lac_procedures import ReadLastConfirmed, TryReadLastConfirmed
from fastbk.replication.procedure import ReadLac, Sleep
from fastbk.replication.replicas import Pacing
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import LEDGER, Client, FakeQuorum, metadata_of

PACING = Pacing(request_timeout_s=1.0, give_up_s=2.0, pause_min_s=0.02, pause_max_s=0.5)


def reading_of(
    harness: FakeQuorum, kind: type[ReadLastConfirmed]
) -> tuple[Client, ReadLastConfirmed]:
    reading = kind(LEDGER, harness.metadata, PACING)
    return Client(harness, reading), reading  # type: ignore[arg-type]


def world_of(entries: int) -> FakeQuorum:
    harness = FakeQuorum.of(metadata_of(3, 3, 2))
    for entry_id in range(entries):
        harness.write(entry_id)
    return harness


@given(st.integers(0, 2**32 - 1))
def test_a_covered_lac_is_the_best_that_is_proven(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(1, 6)
    write_quorum = chance.randint(1, size)
    metadata = metadata_of(size, write_quorum, chance.randint(1, write_quorum), 10)
    harness = FakeQuorum.of(metadata)
    ensemble = metadata.fragments[-1].ensemble
    valid: set[int] = set()
    best = 9  # of the fragment before
    for index, name in enumerate(ensemble):
        bookie = harness.bookies[name]
        state = chance.choice(["good", "good", "empty", "away", "damaged", "cannot tell"])
        if state == "good":
            entry_id = chance.randint(10, 30)
            harness.write(entry_id, [name], lac=chance.randint(-1, entry_id - 1))
            bookie.explicit_lac = chance.choice([-1, chance.randint(0, 40)])
        elif state == "damaged":
            harness.write(50, [name])
            bookie.damaged = {50}
            bookie.explicit_lac = chance.choice([-1, chance.randint(0, 40)])
        elif state == "cannot tell":
            bookie.read_status = Status.CANNOT_TELL
        bookie.away = state == "away"
        if state in ("good", "empty"):
            valid.add(index)
        if state != "away":
            best = max(best, bookie.explicit_lac, bookie.lac() if state == "good" else -1)
    covered = AckSets(size, write_quorum, metadata.ack_quorum).none_without(valid)
    client, reading = reading_of(harness, ReadLastConfirmed)
    client.run(chance)
    assert (reading.error is None) == covered
    assert 9 <= reading.best <= best
    client, attempt = reading_of(harness, TryReadLastConfirmed)
    client.run(chance)
    assert (attempt.error is None) == bool(valid)
    if covered:
        assert reading.value() == reading.best


def test_it_waits_for_no_more_than_covers_it() -> None:
    harness = world_of(5)
    client, reading = reading_of(harness, ReadLastConfirmed)
    client.deliver(client.asks(ReadLac, "b2")[0])
    assert not reading.is_finished
    client.deliver(client.asks(ReadLac, "b0")[0])
    assert reading.value() == 3
    assert not client.pending


def test_a_fence_is_told() -> None:
    harness = world_of(5)
    for bookie in harness.bookies.values():
        bookie.fenced = True
    client, reading = reading_of(harness, ReadLastConfirmed)
    client.run()
    assert reading.fenced


def test_those_that_are_away_are_asked_again_while_it_helps() -> None:
    harness = world_of(5)
    harness.bookies["b0"].away = harness.bookies["b1"].away = True
    client, reading = reading_of(harness, ReadLastConfirmed)
    client.run(until=lambda: any(isinstance(one, Sleep) for one in client.pending.values()))
    harness.bookies["b1"].away = False
    client.run()
    assert reading.value() == 3
    harness.bookies["b1"].away = True
    client, reading = reading_of(harness, ReadLastConfirmed)
    client.run()
    with pytest.raises(NotEnoughBookies, match="LAC") as caught:
        reading.value()
    assert set(caught.value.replicas) == {"b0", "b1"}
    assert client.now_s <= PACING.give_up_s + 0.1
    harness.bookies["b0"].away = False
    harness.bookies["b0"].read_status = harness.bookies["b2"].read_status = Status.CANNOT_TELL
    client, reading = reading_of(harness, ReadLastConfirmed)
    client.run()
    assert reading.error is not None
    # the one that may come back would not be enough
    assert not any(isinstance(one, Sleep) for one in client.log)


def test_trying_takes_what_there_is() -> None:
    harness = world_of(5)
    harness.bookies["b0"].away = harness.bookies["b1"].away = True
    client, reading = reading_of(harness, TryReadLastConfirmed)
    client.run()
    assert reading.value() == 3
    assert not any(isinstance(one, Sleep) for one in client.log)
    harness.bookies["b2"].away = True
    client, reading = reading_of(harness, TryReadLastConfirmed)
    client.run()
    with pytest.raises(NotEnoughBookies, match="no bookie told its LAC") as caught:
        reading.value()
    assert len(caught.value.replicas) == 3


@pytest.mark.parametrize("kind", [ReadLastConfirmed, TryReadLastConfirmed])
def test_a_closed_client_and_a_cancel_end_it(kind: type[ReadLastConfirmed]) -> None:
    client, reading = reading_of(world_of(5), kind)
    client.complete(client.asks(ReadLac)[0], ClientClosed("closed"))
    with pytest.raises(ClientClosed):
        reading.value()
    client, reading = reading_of(world_of(5), kind)
    client.complete(client.asks(ReadLac)[0], QuorumTimeout("silent"))
    reading.cancel()
    client.take()
    assert not client.pending
