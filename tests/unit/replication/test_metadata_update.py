"""One change of the metadata through conflicts, lost answers and outages (INV-M1; P4)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import LedgerClosed, MetadataConflict, MetadataUnavailable, NoSuchLedger
from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.procedure import ReadMetadata, Sleep, UpdateMetadata
from tests.fixtures.fake_quorum import Client, FakeQuorum, metadata_of


def to_recovery(current: LedgerMetadata) -> LedgerMetadata | None:
    if current.state is not LedgerState.OPEN:
        return None
    return replace(current, state=LedgerState.IN_RECOVERY)


def add_one(current: LedgerMetadata) -> LedgerMetadata:
    """Not idempotent on purpose: done twice would show."""
    count = int(current.custom.get("count", b"0")) + 1
    return replace(current, custom={"count": b"%d" % count})


def update_of(
    harness: FakeQuorum, decide: object = to_recovery, known: VersionedLedger | None = None
) -> tuple[Client, MetadataUpdate]:
    update = MetadataUpdate(decide, known, 2.0)  # type: ignore[arg-type]
    return Client(harness, update), update  # type: ignore[arg-type]


def world_of() -> FakeQuorum:
    return FakeQuorum.of(metadata_of(3, 3, 2))


def test_what_is_known_saves_a_read() -> None:
    harness = world_of()
    client, update = update_of(harness, known=harness.current)
    client.run()
    assert [type(one) for one in client.log] == [UpdateMetadata]
    assert update.value() == harness.current
    assert update.is_ours


def test_nothing_to_change_changes_nothing() -> None:
    harness = world_of()
    harness.edit(state=LedgerState.IN_RECOVERY)
    client, update = update_of(harness)
    client.run()
    assert [type(one) for one in client.log] == [ReadMetadata]
    assert update.value() == harness.current
    assert not update.is_ours


def test_a_decision_may_refuse() -> None:
    def refuse(current: LedgerMetadata) -> LedgerMetadata | None:
        raise LedgerClosed("no")

    client, update = update_of(world_of(), refuse)
    client.run()
    with pytest.raises(LedgerClosed):
        update.value()


def test_a_lost_answer_is_no_reason_to_do_it_twice() -> None:
    harness = world_of()
    harness.lose_update_answers = 1
    client, update = update_of(harness, add_one)
    client.run()
    assert harness.metadata.custom == {"count": b"1"}
    assert update.value() == harness.current
    assert update.is_ours


def test_an_outage_is_waited_out_with_growing_pauses() -> None:
    harness = world_of()
    harness.store_away = True
    client, update = update_of(harness)
    client.run(until=lambda: sum(isinstance(one, Sleep) for one in client.log) == 5)
    pauses = [one.pause_s for one in client.log if isinstance(one, Sleep)]
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16]
    harness.store_away = False
    client.run()
    assert update.value() == harness.current


def test_an_outage_that_lasts_leaves_the_outcome_unknown() -> None:
    harness = world_of()
    harness.store_away = True
    client, update = update_of(harness, known=harness.current)
    client.run()
    with pytest.raises(MetadataUnavailable) as caught:
        update.value()
    assert caught.value.outcome == "unknown"
    assert client.now_s <= 2.1


def test_endless_conflicts_end() -> None:
    """Somebody else is always quicker; and when the last conflict was with itself, it says that it was done."""
    harness = world_of()
    client, update = update_of(harness, add_one, harness.current)
    for _ in range(10_000):
        if update.is_finished:
            break
        harness.edit(creation_token=harness.metadata.creation_token + 1)
        client.deliver(next(iter(client.pending.values())))
    with pytest.raises(MetadataConflict):
        update.value()
    assert client.now_s < 2.1
    assert "count" not in harness.metadata.custom


def test_a_deleted_ledger_ends_it() -> None:
    harness = world_of()
    known = harness.current
    harness.current = None
    for start in (known, None):
        client, update = update_of(harness, known=start)
        client.run()
        with pytest.raises(NoSuchLedger):
            update.value()


@given(st.integers(0, 2**32 - 1))
def test_with_others_at_work_no_change_is_lost_or_done_twice(seed: int) -> None:
    """Each of three clients adds a key of its own; requests and answers are lost, and arrive late."""
    chance = random.Random(seed)
    harness = world_of()

    def decide_of(key: str) -> Callable[[LedgerMetadata], LedgerMetadata | None]:
        def decide(current: LedgerMetadata) -> LedgerMetadata | None:
            if key in current.custom:
                return None
            return replace(current, custom={**current.custom, key: b"1"})

        return decide

    clients = {
        key: update_of(harness, decide_of(key), chance.choice([None, harness.current]))
        for key in ("a", "b", "c")
    }
    late: list[UpdateMetadata] = []
    for _ in range(300):
        running = [client for client, update in clients.values() if not update.is_finished]
        if not running:
            break
        client = chance.choice(running)
        action = chance.choice(list(client.pending.values()))
        kind = chance.random()
        if isinstance(action, UpdateMetadata) and kind < 0.2:
            late.append(action)
            client.complete(action, MetadataUnavailable("lost"))
        elif isinstance(action, UpdateMetadata) and kind < 0.4:
            harness.outcome(action)
            client.complete(action, MetadataUnavailable("lost"))
        elif late and kind < 0.5:
            harness.outcome(late.pop())
        else:
            client.deliver(action)
    # Every version added one key, so none was added twice and nothing of the others was undone.
    sizes = [len(one.custom) for one in harness.history]
    assert sizes == list(range(len(sizes)))
    for key, (_, update) in clients.items():
        if update.is_finished and update.error is None:
            assert key in harness.metadata.custom
        elif update.error is not None:
            assert update.error.outcome == "unknown"
