"""A range of an unstriped ledger is read ahead: several batches under way, in order, bounded, and let go in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastbk.errors import NoSuchEntry
from fastbk.replication.procedure import ReadEntries, Reply, SendRequest
from fastbk.replication.reading import BATCHED_PARTS, ReadRange
from tests.fixtures.fake_quorum import Client
from tests.unit.replication.test_reading import asked, drain, reading_of, world_of

ENTRY_BYTES_MAX = 11
BATCH_BYTES = 1000
"""More than ten entries of the harness's: these tests' batches are bounded by their count."""


def reading_ahead(
    entries: int, room_batches: int = 4, **options: object
) -> tuple[Client, ReadRange]:
    """Return a read of so many entries whose first answer has come."""
    client, reading = reading_of(
        world_of(entries),
        entries - 1,
        batch_bytes=BATCH_BYTES,
        size_bytes_max=room_batches * BATCH_BYTES,
        **options,  # type: ignore[arg-type]
    )
    assert asked(client) == ["b0"]
    client.deliver(client.asks(ReadEntries)[0])
    return client, reading


def ranges(client: Client) -> list[tuple[int, int]]:
    """Return what is asked for now."""
    return [(one.request.first, one.request.last) for one in client.asks(ReadEntries)]  # type: ignore[union-attr]


def test_what_follows_the_first_answer_is_asked_for_side_by_side() -> None:
    client, reading = reading_ahead(200, 5)
    assert ranges(client) == [(10, 19), (20, 29), (30, 39), (40, 49)]
    assert len(ranges(client)) == BATCHED_PARTS
    assert drain(client, reading) == list(range(200))
    firsts = [one.request.first for one in client.log if isinstance(one, SendRequest)]  # type: ignore[union-attr]
    assert firsts == list(range(0, 200, 10)), "nothing was asked for twice"
    assert not client.pending


def test_it_is_handed_out_in_order_however_the_answers_come() -> None:
    client, reading = reading_ahead(100, 5)
    first = client.asks(ReadEntries)[0]
    client.run(but=lambda one: one is first)
    runs = reading.take_tables(client.now_s)
    assert [one.entry_id for run in runs for one in run] == list(range(10))
    assert reading.take_tables(client.now_s) == []
    client.deliver(first)
    runs = reading.take_tables(client.now_s)
    assert [run[0].entry_id for run in runs] == [10, 20, 30, 40], "an answer each"
    client.take()
    assert drain(client, reading) == list(range(50, 100))


@pytest.mark.parametrize("room", [1, 2, 3])
def test_no_more_is_under_way_than_there_may_be_bytes(room: int) -> None:
    client, reading = reading_ahead(2000, room)
    most = 1
    while client.pending:
        most = max(most, len(ranges(client)))
        client.deliver(client.asks(ReadEntries)[-1])
    assert most == max(1, room - 1), "the first answer takes some of it"
    assert not reading.is_finished
    assert reading.found_bytes <= room * BATCH_BYTES + 10 * ENTRY_BYTES_MAX
    assert drain(client, reading) == list(range(2000))


def test_a_gap_comes_behind_all_that_is_before_it() -> None:
    client, reading = reading_of(world_of(100), 99, batch_bytes=BATCH_BYTES)
    for bookie in client.harness.bookies.values():
        bookie.entries.pop(25, None)
    client.deliver(client.asks(ReadEntries)[0])
    first = client.asks(ReadEntries)[0]
    client.run(but=lambda one: one is first)
    assert not reading.is_finished, "what is before the gap has not come yet"
    client.deliver(first)
    client.run()
    assert drain(client, reading) == list(range(25))
    with pytest.raises(NoSuchEntry) as caught:
        reading.value()
    assert caught.value.entry_id == 25
    assert not client.pending, "what was asked for behind it is let go"


def test_a_bookie_that_falls_silent_in_the_midst_is_passed_by() -> None:
    client, reading = reading_ahead(100, 5, speculative_s=0.01)
    client.harness.bookies["b0"].away = True
    assert drain(client, reading) == list(range(100))
    assert reading.error is None
    assert "b0" in reading.slow


def test_an_answer_that_ends_early_is_gone_on_with() -> None:
    """Entries may be larger than those before them: a bookie ends its answer by its bytes."""
    client, reading = reading_ahead(100, 5)
    second = client.asks(ReadEntries)[1]
    whole = client.harness.outcome(second)
    assert isinstance(whole, Reply)
    client.complete(second, replace(whole, found=whole.found[:3], next_entry_id=23))
    assert (23, 29) in ranges(client)
    assert drain(client, reading) == list(range(100))
