"""How a range chooses replicas: order, speculation, all at once; its window; its patience; copies that moved.

An absence is proven by the newest metadata only (INV-Q2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fastbk.errors import (
    ClientClosed,
    DigestMismatch,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    ProtocolError,
    QuorumTimeout,
    Unauthorized,
)
from fastbk.model.ids import ID_MAX
from fastbk.model.ledger import Fragment
from fastbk.replication.procedure import (
    Found,
    Outcome,
    ReadEntries,
    ReadMetadata,
    Reply,
    SendRequest,
    Sleep,
    Withdraw,
)
from fastbk.replication.reading import ReadOptions, ReadRange
from fastbk.replication.replicas import BAD_DIGEST, Pacing
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import LEDGER, Client, FakeQuorum, entry_of, metadata_of

PACING = Pacing(request_timeout_s=5.0, give_up_s=2.0, pause_min_s=0.02, pause_max_s=0.5)


def world_of(entries: int, *quorums: int) -> FakeQuorum:
    harness = FakeQuorum.of(metadata_of(*(quorums or (3, 3, 2))), spare=3)
    for entry_id in range(entries):
        harness.write(entry_id)
    return harness


def reading_of(
    harness: FakeQuorum, last: int, first: int = 0, order: object = None, **options: object
) -> tuple[Client, ReadRange]:
    chosen = replace(ReadOptions(pacing=PACING, batch_entries=10), **options)  # type: ignore[arg-type]
    reading = ReadRange(
        LEDGER,
        harness.metadata,
        first,
        last,
        chosen,
        order or (lambda names: names),  # type: ignore[arg-type]
    )
    return Client(harness, reading), reading  # type: ignore[arg-type]


def drain(client: Client, reading: ReadRange) -> list[int]:
    """Run it to its end, taking what is found; return the ids."""
    ids: list[int] = []
    for _ in range(20_000):
        found = reading.take_found(client.now_s)
        client.take()
        ids += [one.entry_id for one in found]
        if not found:
            if reading.is_finished:
                return ids
            pending = list(client.pending.values())
            awake = [one for one in pending if not isinstance(one, Sleep)]
            client.deliver((awake or pending)[0])
    raise AssertionError("it never ends")


def asked(client: Client) -> list[str]:
    return [one.bookie_id for one in client.asks(ReadEntries)]


def test_the_first_of_the_order_is_asked_and_no_other() -> None:
    def order(names: Sequence[str]) -> Sequence[str]:
        return sorted(names, key=lambda one: one != "b2")

    harness = world_of(100)
    client, reading = reading_of(harness, 99, order=order)
    assert drain(client, reading) == list(range(100))
    assert {one.bookie_id for one in client.log if isinstance(one, SendRequest)} == {"b2"}


def test_a_bookie_that_does_not_answer_is_asked_last_from_then_on() -> None:
    harness = world_of(50)
    harness.bookies["b0"].away = True
    client, reading = reading_of(harness, 49)
    assert drain(client, reading) == list(range(50))
    names = [one.bookie_id for one in client.log if isinstance(one, SendRequest)]
    assert names.count("b0") == 1
    assert reading.slow == {"b0": 1}


def test_speculation_asks_the_next_one_after_a_while_and_grows() -> None:
    harness = world_of(10)
    client, reading = reading_of(harness, 9, speculative_s=0.01)
    assert asked(client) == ["b0"]
    pauses = []
    for count in (2, 3):
        sleep = next(one for one in client.pending.values() if isinstance(one, Sleep))
        pauses.append(sleep.pause_s)
        client.deliver(sleep)
        assert len(asked(client)) == count
    assert pauses == [0.01, 0.02]
    client.deliver(client.asks(ReadEntries, "b2")[0])
    assert reading.is_finished
    assert not client.pending  # the others were let go
    assert [one.entry_id for one in reading.take_found(0.0)] == list(range(10))
    assert reading.slow == {"b0": 1, "b1": 1}


def test_speculation_costs_nothing_when_answers_come_in_time() -> None:
    harness = world_of(100)
    client, reading = reading_of(harness, 99, speculative_s=0.01)
    assert drain(client, reading) == list(range(100))
    assert {one.bookie_id for one in client.log if isinstance(one, SendRequest)} == {"b0"}
    assert reading.slow == {}


def test_in_parallel_all_are_asked_and_the_first_answer_counts() -> None:
    harness = world_of(10)
    client, reading = reading_of(harness, 9, parallel=True)
    assert asked(client) == ["b0", "b1", "b2"]
    client.deliver(client.asks(ReadEntries, "b1")[0])
    assert reading.is_finished
    assert reading.slow == {}
    assert [one.entry_id for one in reading.take_found(0.0)] == list(range(10))


def test_a_reader_that_does_not_take_stops_the_asking() -> None:
    for quorums in ((3, 3, 2), (5, 2, 2)):
        harness = world_of(3000, *quorums)
        client, reading = reading_of(harness, 2999, size_bytes_max=500)
        for _ in range(2000):
            if not client.pending:
                break
            client.deliver(next(iter(client.pending.values())))
        assert not client.pending
        assert not reading.is_finished
        assert 500 <= reading.found_bytes < 1500
        assert drain(client, reading) == list(range(3000))


def test_parts_that_wait_for_room_never_block_the_first() -> None:
    """What later parts found must not use up the room that the first needs to go on."""
    harness = world_of(600, 5, 2, 2)
    client, reading = reading_of(harness, 599, size_bytes_max=50)
    first = harness.metadata.fragments[0].ensemble
    assert len(first) == 5
    held = [one for one in client.asks(ReadEntries) if one.request.first < 64]  # type: ignore[union-attr]
    client.run(but=lambda one: one in held)
    assert reading.found_bytes > 50
    assert drain(client, reading) == list(range(600))


def test_an_empty_answer_without_a_word_about_the_entry_proves_nothing() -> None:
    harness = world_of(10)
    client, reading = reading_of(harness, 9)
    while client.asks(ReadEntries):
        client.complete(client.asks(ReadEntries)[0], Reply(Status.OK, next_entry_id=0))
    client.run()
    with pytest.raises(NotEnoughBookies):
        reading.value()


def test_an_answer_about_other_entries_gives_none() -> None:
    harness = world_of(10)
    client, reading = reading_of(harness, 3)
    strange = (Found(1, 0, 1, b"x"), Found(0, -1, 1, b"x"))
    client.complete(client.asks(ReadEntries)[0], Reply(Status.OK, strange, next_entry_id=4))
    beyond = tuple(harness.bookies["b0"].entries[one] for one in range(10))
    client.complete(client.asks(ReadEntries)[0], Reply(Status.OK, beyond, next_entry_id=10))
    assert drain(client, reading) == [0, 1, 2, 3]


def test_what_each_bookie_said_is_in_the_error() -> None:
    harness = world_of(10)
    harness.bookies["b0"].damaged = {5}
    del harness.bookies["b1"].entries[5]
    harness.bookies["b2"].read_status = Status.IO_ERROR
    client, reading = reading_of(harness, 9)
    drain(client, reading)
    with pytest.raises(DigestMismatch) as caught:
        reading.value()
    assert caught.value.replicas == {"b0": BAD_DIGEST, "b1": "NO_ENTRY", "b2": "IO_ERROR"}
    whys = {
        Status.UNAUTHORIZED: "the password is not",
        Status.FORBIDDEN: "role or token does not allow",
    }
    for status, why in whys.items():
        for bookie in harness.bookies.values():
            bookie.damaged.clear()
            bookie.read_status = status
        client, reading = reading_of(harness, 9)
        drain(client, reading)
        with pytest.raises(Unauthorized, match=why):
            reading.value()


def test_a_closed_client_ends_it_at_once() -> None:
    client, reading = reading_of(world_of(10), 9)
    client.complete(client.asks(ReadEntries)[0], ClientClosed("closed"))
    with pytest.raises(ClientClosed):
        reading.value()
    assert not client.pending


def test_those_that_are_away_or_busy_are_asked_again_until_patience_ends() -> None:
    harness = world_of(10)
    for name, status in (("b0", Status.NOT_READY), ("b1", Status.TOO_MANY_REQUESTS)):
        harness.bookies[name].read_status = status
    harness.bookies["b2"].away = True
    client, reading = reading_of(harness, 9)
    client.run(until=lambda: sum(isinstance(one, Sleep) for one in client.log) == 3)
    harness.bookies["b1"].read_status = None
    assert drain(client, reading) == list(range(10))
    harness.bookies["b1"].read_status = Status.NOT_READY
    client, reading = reading_of(harness, 9)
    client.run()
    with pytest.raises(NotEnoughBookies):
        reading.value()
    assert client.now_s <= PACING.give_up_s + 0.2


@pytest.mark.parametrize(
    "answers",
    [
        [Reply(Status.NO_ENTRY), Reply(Status.NO_ENTRY), NotEnoughBookies("refused")],
        [Reply(Status.CANNOT_TELL), Reply(Status.CANNOT_TELL), Reply(Status.NO_ENTRY)],
        [Reply(Status.UNAUTHORIZED), NotEnoughBookies("refused"), NotEnoughBookies("refused")],
        [Reply(Status.IO_ERROR), Reply(Status.CANNOT_TELL), ProtocolError("another one is there")],
    ],
)
def test_what_will_not_pass_is_an_error_at_once(answers: list[Outcome]) -> None:
    client, reading = reading_of(world_of(10), 9)
    for answer in answers:
        client.complete(client.asks(ReadEntries)[0], answer)
    client.run()
    assert reading.error is not None
    assert not any(isinstance(one, Sleep) for one in client.log)


def test_only_those_are_asked_again_whose_reasons_may_have_passed() -> None:
    client, reading = reading_of(world_of(10), 9)
    said: list[Outcome] = [Reply(Status.NO_ENTRY), NotEnoughBookies("no"), Reply(Status.NOT_READY)]
    for answer in said:
        client.complete(client.asks(ReadEntries)[0], answer)
    again = []
    client.run(until=lambda: bool(client.asks(ReadEntries)))
    while client.asks(ReadEntries):
        again.append(client.asks(ReadEntries)[0].bookie_id)
        client.complete(client.asks(ReadEntries)[0], Reply(Status.NO_ENTRY))
    client.run()  # the metadata once more, behind the last "no"
    # The one that was not reached comes last; it may have the entry all the same.
    assert again == ["b2", "b1"]
    assert isinstance(reading.error, NoSuchEntry)


def test_bookies_that_cannot_be_found_without_metadata_are_asked_again() -> None:
    client, reading = reading_of(world_of(10), 9)
    for _ in range(3):
        client.complete(client.asks(ReadEntries)[0], MetadataUnavailable("away"))
    assert drain(client, reading) == list(range(10))


def test_one_silent_bookie_gets_only_its_share_of_the_time() -> None:
    harness = world_of(10)
    client, reading = reading_of(harness, 9)
    ask = client.asks(ReadEntries)[0]
    assert ask.timeout_s == pytest.approx(PACING.give_up_s / 4)
    client.complete(ask, QuorumTimeout("silent"))
    assert drain(client, reading) == list(range(10))


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2)])
def test_ids_up_to_the_last_one(quorums: tuple[int, int, int]) -> None:
    """P25: the same write set for every id."""
    first = ID_MAX - 99
    harness = FakeQuorum.of(metadata_of(*quorums))
    ensemble = harness.metadata.fragments[0].ensemble
    for entry_id in range(first, ID_MAX + 1):
        for at in range(quorums[1]):
            name = ensemble[(entry_id + at) % quorums[0]]
            harness.bookies[name].entries[entry_id] = Found(entry_id, -1, 1, b"x")
    client, reading = reading_of(harness, ID_MAX, first)
    assert drain(client, reading) == list(range(first, ID_MAX + 1))
    assert reading.skipped == 0


def test_an_empty_range_is_read_at_once() -> None:
    client, reading = reading_of(world_of(1), -1)
    assert reading.is_finished
    assert reading.take_found(0.0) == []
    assert not any(isinstance(one, SendRequest | Withdraw) for one in client.log)


# --- when nobody has an entry: the newest metadata says who should ----------------------------------------------------


def test_copies_that_moved_are_found_by_the_newest_metadata() -> None:
    harness = world_of(10)
    client, reading = reading_of(harness, 9)
    for at in range(3):
        harness.bookies[f"s{at}"].entries = dict(harness.bookies[f"b{at}"].entries)
        harness.bookies[f"b{at}"].away = True
    harness.edit(fragments=(Fragment(0, ("s0", "s1", "s2")),))
    assert drain(client, reading) == list(range(10))
    assert reading.metadata == harness.metadata
    assert sum(isinstance(one, ReadMetadata) for one in client.log) == 1


def _until_metadata_is_asked(client: Client) -> ReadMetadata:
    client.run(until=lambda: any(isinstance(one, ReadMetadata) for one in client.pending.values()))
    return next(one for one in client.pending.values() if isinstance(one, ReadMetadata))


@pytest.mark.parametrize("is_back", [True, False])
def test_a_bookie_replaced_before_an_entry_came_proves_nothing_without_metadata(
    is_back: bool,
) -> None:
    """Qw = Qa: one "no" would be proof, and the old member says it in good faith."""
    harness = world_of(0, 2, 2, 2)
    client, reading = reading_of(harness, 0)
    for name in ("s0", "s1"):
        harness.bookies[name].take(entry_of(0))
    harness.edit(fragments=(Fragment(0, ("s0", "s1")),))
    client.complete(_until_metadata_is_asked(client), MetadataUnavailable("away"))
    if is_back:
        assert drain(client, reading) == [0]
        return
    while not reading.is_finished:
        client.complete(_until_metadata_is_asked(client), MetadataUnavailable("away"))
        if not reading.is_finished:
            client.run(until=lambda: not any(isinstance(o, Sleep) for o in client.pending.values()))
    with pytest.raises(MetadataUnavailable):
        reading.value()


def test_a_no_that_came_after_the_metadata_was_read_proves_nothing_yet() -> None:
    """Qw = Qa: a member that lost its disk was replaced while it was away, and comes back saying "no" in good faith."""
    harness = world_of(1, 2, 2, 2)
    client, reading = reading_of(harness, 0)
    for name in ("b0", "b1"):
        harness.bookies[name].away = True
    client.run(until=lambda: any(isinstance(one, Sleep) for one in client.pending.values()))
    for name in ("s0", "s1"):
        harness.bookies[name].take(entry_of(0))
    harness.edit(fragments=(Fragment(0, ("s0", "s1")),))
    harness.bookies["b0"].away = False
    harness.bookies["b0"].entries.clear()
    assert drain(client, reading) == [0]
    assert reading.error is None


def test_bookies_of_an_older_ensemble_prove_nothing_beside_newer_metadata() -> None:
    """Another part of the range has read the newer metadata, after this one had asked them."""
    harness = world_of(1, 3, 3, 2)
    client, reading = reading_of(harness, 0)
    for name in ("b0", "b1"):
        harness.bookies[name].entries.clear()
    harness.bookies["b2"].away = True
    client.run(until=lambda: asked(client)[-1:] == ["b2"])
    for name in ("s0", "s1"):
        harness.bookies[name].take(entry_of(0))
        harness.bookies[name].away = True
    harness.edit(fragments=(Fragment(0, ("s0", "s1", "b2")),))
    reading.metadata = harness.metadata
    client.run(until=lambda: any(isinstance(one, Sleep) for one in client.pending.values()))
    assert not reading.is_finished, "three are away: that is no proof"
    harness.bookies["s1"].away = False
    assert drain(client, reading) == [0]
    assert reading.error is None


def test_a_ledger_that_was_deleted_is_said_to_be() -> None:
    client, reading = reading_of(world_of(0), 0)
    client.complete(_until_metadata_is_asked(client), NoSuchLedger("deleted"))
    with pytest.raises(NoSuchLedger):
        reading.value()
