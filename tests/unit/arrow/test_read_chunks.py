"""What is at hand comes in one call: bounded, in order, and nothing is lost where something goes wrong behind it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pytest

from fastbk.errors import ConfigError, StorageError
from fastbk.stream.positions import DLSN
from fastbk.stream.reader.sync_reader import SyncStreamReader
from fastbk.stream.records import Chunk, Record
from tests.unit.arrow.test_streams import Harness, place

ENTRIES = 7
"""That come together from the ledgers of tests; small ones are joined as far as they have room."""


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    made.loop.close(5.0)


def at_hand(harness: Harness, reader: SyncStreamReader, records: int) -> None:  # type: ignore[type-arg]
    """Wait until so many records were read ahead."""
    inner = reader._opened()

    async def there() -> None:
        while inner._ahead is None or inner._ahead.plan.next_seq < records:
            inner._told.clear()
            await inner._told.wait()

    harness.loop.call(there)


def taken(items: list[Chunk]) -> list[Record]:
    return list(chain.from_iterable(items))


def test_all_that_is_there_comes_at_once_as_far_as_it_may(harness: Harness) -> None:
    records = harness.filled([60, 40], 1)
    size = len(records[0].payload)
    with harness.stream.reader(tail=False) as reader:
        at_hand(harness, reader, 100)
        first = reader.read_chunks(30, 1 << 20)
        second = reader.read_chunks(1000, 10 * size)
        assert len(second) >= 1
        rest: list[Record] = []
        while items := reader.read_chunks(1000, 1 << 20):
            rest += taken(items)  # type: ignore[arg-type]
        assert reader.is_at_end
    got = taken(first) + taken(second) + rest  # type: ignore[arg-type]
    assert len(taken(first)) == 30  # type: ignore[arg-type]
    assert len(taken(second)) < 60  # type: ignore[arg-type]
    assert list(map(place, got)) == list(map(place, records))


def test_records_before_what_cannot_be_decoded_are_not_lost(harness: Harness) -> None:
    records = harness.filled([3 * ENTRIES], 1)
    ledger = harness.cluster.ledger(harness.rows()[0])
    bytes_of_batch = sum(map(len, ledger.entries[:ENTRIES])) + 200 * ENTRIES
    ledger.entries[ENTRIES + 2] = b"this is no entry of a stream" * 3
    with harness.stream.reader(tail=False) as reader:
        at_hand(harness, reader, 3 * ENTRIES)
        chunks = reader.read_chunks(1000, bytes_of_batch + 1)
        got = taken(chunks)  # type: ignore[arg-type]
        assert list(map(place, got)) == list(map(place, records[: ENTRIES + 2]))
        for _ in range(2):  # it takes nothing, so it is told again
            with pytest.raises(
                StorageError, match=r"entry at 1\.9\.0 cannot be decoded.* 1\.10\.0"
            ):
                reader.read_chunks(1000, bytes_of_batch + 1)
        reader.seek(DLSN(1, ENTRIES + 3, 0))
        assert reader.read_chunks(1, 1)[0].first_seq == ENTRIES + 3  # type: ignore[union-attr]


def test_bounds_that_cannot_be_are_refused(harness: Harness) -> None:
    harness.filled([5], 1)
    with harness.stream.reader(tail=False) as reader, pytest.raises(ConfigError):
        reader.read_chunks(0, 1)
