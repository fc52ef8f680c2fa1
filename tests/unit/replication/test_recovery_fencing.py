"""What a recovery takes for an answer (INV-Q2). P1 to P19 are scripts of the simulator."""

from __future__ import annotations

import pytest

from fastbk.errors import (
    DigestMismatch,
    NotEnoughBookies,
    Unauthorized,
)
from fastbk.replication.actions import (
    ReadEntry,
    SendRequest,
    Sleep,
)
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import (
    FakeQuorum,
    entry_of,
    is_closed_at,
    metadata_of,
)
from tests.fixtures.recovering import (
    PACING,
    recoverer,
    three,
)


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
