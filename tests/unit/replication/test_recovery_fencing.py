"""What a recovery takes for an answer (INV-Q2).

P... are the known ways to get replication wrong, #... Apache's reports.
"""

from __future__ import annotations

import pytest

from fastbk.errors import (
    DigestMismatch,
    NotEnoughBookies,
    QuorumTimeout,
    Unauthorized,
)
from fastbk.model.ledger import LedgerState
from fastbk.replication.actions import (
    ReadEntry,
    Reply,
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
    is_read_of,
    recoverer,
    three,
)


def test_p1_recovery_reads_fence_the_bookie_that_the_first_fence_did_not_reach() -> None:
    """#2614: the fence to b2 is lost; entry 0 of the old writer reaches b1 only, and b2 after the recovery."""
    harness = three()
    client, _ = recoverer(harness)
    client.run(until=lambda: len(client.asks(ReadEntry)) == 3)
    fences = client.asks(ReadEntry)
    client.complete(client.asks(ReadEntry, "b2")[0], QuorumTimeout("lost"))
    harness.write(0, ["b1"])
    for ask in fences:
        if ask.bookie_id == "b0":
            client.deliver(ask)
    client.complete(client.asks(ReadEntry, "b1")[0], Reply(Status.NO_LEDGER, fenced=True))
    client.run(but=lambda one: isinstance(one, SendRequest) and one.bookie_id == "b1")
    assert is_closed_at(harness, -1)
    assert harness.bookies["b2"].add(entry_of(0)).status == Status.FENCED


def test_every_read_of_a_recovery_fences_with_priority() -> None:
    harness = three(5)
    harness.write(5, ["b0"])
    client, _ = recoverer(harness)
    client.run()
    reads = [one.request for one in client.log if isinstance(one, SendRequest)]
    reads = [one for one in reads if isinstance(one, ReadEntry)]
    assert len(reads) > 6
    assert all(one.fence and one.high_priority for one in reads)  # type: ignore[union-attr]


def test_p2_recovery_starts_at_the_last_fragment() -> None:
    """#2615: bookies of the last fragment know no LAC; nothing below it is in doubt."""
    harness = FakeQuorum.of(metadata_of(2, 2, 2, 1000))
    harness.write(999)
    client, _ = recoverer(harness)
    client.run()
    asked = {
        one.request.entry_id
        for one in client.log
        if isinstance(one, SendRequest) and isinstance(one.request, ReadEntry)
    }
    assert asked == {-1, 1000}
    assert is_closed_at(harness, 999)


def test_p5_one_dead_bookie_stops_nothing() -> None:
    """#1067: Qw - Qa + 1 times "no" is enough; nobody waits for the dead one."""
    harness = three(3)
    client, procedure = recoverer(harness)
    client.run(but=lambda one: isinstance(one, SendRequest) and one.bookie_id == "b0")
    assert procedure.is_finished
    assert is_closed_at(harness, 2)
    assert procedure.stats.copies_missing == 1


def test_p5_the_dead_never_count_as_no() -> None:
    harness = three(2)
    client, procedure = recoverer(harness)
    client.run(until=lambda: any(is_read_of(one, 2) for one in client.pending.values()))
    # All three were fenced; now one says no, two are dead: entry 2 may be on those.
    harness.bookies["b0"].away = harness.bookies["b1"].away = True
    client.run()
    with pytest.raises(NotEnoughBookies) as caught:
        procedure.value()
    assert {"b0", "b1"} <= set(caught.value.replicas)
    assert caught.value.entry_id in (1, 2)
    assert harness.metadata.state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize("status", [Status.CANNOT_TELL, Status.IO_ERROR])
def test_p6_a_bookie_that_cannot_tell_does_not_make_an_end(status: Status) -> None:
    """#2908, #2909, #2612: trouble of a disk, or a bookie that came back without its data, is no "no"."""
    harness = three(2)
    client, procedure = recoverer(harness)
    client.run(until=lambda: any(is_read_of(one, 2) for one in client.pending.values()))
    harness.bookies["b0"].read_status = harness.bookies["b1"].read_status = status
    client.run()
    with pytest.raises(NotEnoughBookies) as caught:
        procedure.value()
    assert caught.value.replicas["b0"] == status.name
    assert not harness.metadata.is_closed


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


def test_p19_a_lac_that_no_digest_covers_is_ignored() -> None:
    harness = three(3)
    client, _ = recoverer(harness)
    client.run(until=lambda: len(client.asks(ReadEntry)) == 3)
    lie = Reply(Status.OK, damaged=True, lacs=())  # a LAC of 10^9 in a copy that fails its digest
    client.complete(client.asks(ReadEntry, "b0")[0], lie)
    client.run()
    assert is_closed_at(harness, 2)


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
