"""Ranges of streams on ledgers in memory: cut off, lost, in parts: each record comes once or is told gone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from fastbk.arrow import (
    EntryGap,
    ledger_batches,
    ledger_schema,
    read_ledger,
    stream_batches,
    stream_schema,
)
from fastbk.client.loop_thread import LoopThread
from fastbk.errors import (
    ConfigError,
    DataLost,
    DigestMismatch,
    NoSuchEntry,
    PositionTruncated,
    StorageError,
)
from fastbk.stream.positions import DLSN, AtSeq, AtTxid
from fastbk.stream.records import Chunk, Gap, Record
from fastbk.stream.stream import Stream
from fastbk.stream.sync import SyncStream
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import STREAM, context_of, filled, new_stream, truncated_to, writer_of
from tests.fixtures.sync_cluster import FakeBookies, sync_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    import fastbk.sync
    from fastbk.stream.reader.sync_reader import SyncStreamReader

PLACE = ["segment", "entry", "slot", "seq", "txid", "value"]


class Harness:
    """A cluster in memory with one stream, and a loop in a thread."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        client = self.cluster.client()

        async def closed(timeout: float | None = None) -> None:
            return None

        client.close = closed  # type: ignore[attr-defined]
        self.loop = LoopThread(lambda: client)  # type: ignore[arg-type, return-value]
        self.context = self.loop.call(lambda: new_stream(self.cluster))
        self.stream = SyncStream(self.loop, self._stream, STREAM)

    def _stream(self) -> Stream:
        found = Stream(None, ("test",), STREAM)  # type: ignore[arg-type]
        found._context = context_of(self.cluster.client())
        return found

    def filled(self, segments: list[int], batch: int) -> list[Record]:
        return self.loop.call(lambda: filled(self.cluster, segments, batch))

    def truncate(self, before: DLSN) -> None:
        self.loop.call(lambda: truncated_to(self.context, before))

    def rows(self) -> list[int]:
        """Return the ledgers of the segments."""

        async def found() -> list[int]:
            return [row.ledger_id for row in (await self.context.store.read()).chain.rows]

        return self.loop.call(found)


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    made.loop.close(5.0)


def places(batches: list[pa.RecordBatch]) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in PLACE) for batch in batches for row in batch.to_pylist()]


def place(record: Record) -> tuple[object, ...]:
    return (*record.dlsn, record.seq, record.txid, bytes(record.payload))


def some_place(rng: random.Random, records: list[Record]) -> DLSN:
    """Return a record's position, or one where no record is."""
    segment, entry, slot = rng.choice(records).dlsn
    return rng.choice(
        [
            DLSN(segment, entry, slot),
            DLSN(segment, entry, slot + 5),
            DLSN(segment, entry + 50, 0),
            DLSN(segment + 1, 0, 0),
        ]
    )


@pytest.mark.parametrize("turn", range(12))
def test_parts_of_a_stream_give_each_record_once_or_tell_that_it_is_gone(
    turn: int, seed: int, harness: Harness
) -> None:
    rng = random.Random(f"{seed}-{turn}")
    records = harness.filled(
        [rng.randint(1, 12) for _ in range(rng.randint(1, 8))], rng.randint(1, 4)
    )
    for ledger_id in harness.rows():
        ledger, chance = harness.cluster.ledger(ledger_id), rng.random()
        if chance < 0.3:
            count = len(ledger.entries)
            ledger.lost = {rng.randrange(count) for _ in range(rng.randint(1, 4))}
        elif chance < 0.4:
            del harness.cluster.ledgers[ledger_id]
    if rng.random() < 0.4:
        harness.truncate(rng.choice(records).dlsn)
    behind = DLSN(records[-1].dlsn.segment + 1, 0, 0)
    inner = {some_place(rng, records) for _ in range(rng.randint(0, 6))}
    cuts = [DLSN(1, 0, 0), *sorted(one for one in inner if one < behind), behind]
    found: list[tuple[object, ...]] = []
    gaps: list[Gap] = []
    rows_max, bytes_max = rng.randint(1, 30), rng.choice([1, 40, 1 << 20])
    for first, end in pairwise(cuts):
        told = len(gaps)
        batches = list(
            stream_batches(
                harness.stream,
                first,
                end,
                rows_max=rows_max,
                bytes_max=bytes_max,
                skip_gaps=True,
                on_gap=gaps.append,
                wait_s=20,
            )
        )
        assert all(0 < one.num_rows <= rows_max for one in batches)
        assert all(first <= one.first < one.next <= end for one in gaps[told:])
        found += places(batches)
    gone = {one.seq for one in records if any(gap.first <= one.dlsn < gap.next for gap in gaps)}
    assert found == [place(one) for one in records if one.seq not in gone], "INV-S11"
    kept = {ledger_id for ledger_id in harness.rows() if ledger_id in harness.cluster.ledgers}
    if len(kept) == len(harness.rows()) and not any(
        harness.cluster.ledger(one).lost for one in kept
    ):
        assert {gap.kind for gap in gaps} <= {"trimmed"}


def test_batches_are_full_over_entries_and_segments_and_end_before_a_gap(harness: Harness) -> None:
    records = harness.filled([5, 5, 5], 3)
    batches = list(stream_batches(harness.stream, "earliest", rows_max=8))
    assert [one.num_rows for one in batches] == [8, 8, 8, 8, 8, 5]
    assert places(batches) == [place(one) for one in records]
    harness.cluster.ledger(harness.rows()[1]).lost = {2}
    sizes: list[object] = []
    for batch in stream_batches(
        harness.stream, "earliest", rows_max=1000, skip_gaps=True, on_gap=sizes.append
    ):
        sizes.append(batch.num_rows)
    assert sizes == [21, Gap("lost", DLSN(2, 2, 0), DLSN(2, 3, 0), 3), 21]


def test_bytes_end_a_batch_too(harness: Harness) -> None:
    harness.filled([40], 1)
    batches = list(stream_batches(harness.stream, "earliest", bytes_max=30))
    # What was read at once, seven entries from these bookies, is not cut.
    assert [one.num_rows for one in batches] == [7, 7, 7, 7, 7, 5]


def test_a_gap_is_an_error_behind_all_that_was_before_it(harness: Harness) -> None:
    records = harness.filled([4, 4], 2)
    harness.cluster.ledger(harness.rows()[1]).lost = {1}
    found: list[pa.RecordBatch] = []
    with pytest.raises(DataLost) as lost:
        found.extend(stream_batches(harness.stream, "earliest"))
    batches = stream_batches(harness.stream, "earliest")
    found.append(next(batches))
    with pytest.raises(DataLost):
        next(batches)
    assert places(found[-1:]) == [place(one) for one in records[:10]]
    assert (lost.value.first, lost.value.next) == ("2.1.0", "2.2.0")
    harness.truncate(records[3].dlsn)
    with pytest.raises(PositionTruncated) as truncated:
        next(stream_batches(harness.stream, DLSN(1, 0, 0)))
    assert truncated.value.first_available == str(records[3].dlsn)


@pytest.mark.parametrize(
    ("start", "end", "seqs"),
    [
        ("earliest", None, range(24)),
        (AtSeq(3), AtSeq(9), range(3, 9)),
        (AtTxid(9), AtTxid(21), range(4, 10)),
        (AtSeq(3), AtSeq(500), range(3, 24)),
        (DLSN(2, 0, 0), "latest", range(8, 24)),
        ("latest", None, []),
        (DLSN(1, 2, 0), DLSN(1, 2, 0), []),
        (DLSN(2, 0, 0), DLSN(1, 0, 0), []),
    ],
)
def test_starts_and_ends_are_those_of_readers(
    harness: Harness, start: object, end: object, seqs: object
) -> None:
    harness.filled([4, 4, 4], 2)
    batches = list(stream_batches(harness.stream, start, end))  # type: ignore[arg-type]
    assert [seq for *_, seq, _, _ in places(batches)] == list(seqs)  # type: ignore[call-overload]


def test_a_position_that_never_comes_is_an_error_and_a_sealed_stream_says_so_at_once(
    harness: Harness,
) -> None:
    async def written() -> None:
        async with writer_of(harness.cluster) as writer:
            await writer.append(b"a")
            await writer.seal()

    harness.loop.call(written)
    batches = stream_batches(harness.stream, "earliest", DLSN(9, 0, 0), wait_s=100)
    assert next(batches).num_rows == 1
    with pytest.raises(NoSuchEntry, match=r"9\.0\.0 .* is sealed") as caught:
        next(batches)
    assert not caught.value.retryable


def test_nothing_is_wrong_with_an_empty_stream_or_an_end_that_is_reached(harness: Harness) -> None:
    assert list(stream_batches(harness.stream, "earliest")) == []
    assert list(stream_batches(harness.stream, "earliest", DLSN(1, 0, 0))) == []


def test_arguments_are_looked_at_before_anything_is_read(harness: Harness) -> None:
    for wrong in ({"rows_max": 0}, {"bytes_max": 0}, {"schema": pa.schema([("a", pa.int8())])}):
        with pytest.raises(ConfigError):
            stream_batches(harness.stream, "earliest", **wrong)  # type: ignore[arg-type]
    some = pa.schema([stream_schema().field("value")])
    harness.filled([2], 1)
    assert [one.schema for one in stream_batches(harness.stream, "earliest", schema=some)] == [some]


# Ranges of ledgers on fake bookies: whole, parts, entries that no bookie has undamaged, an end
# that is not there.


def written(client: fastbk.sync.Client, count: int) -> int:
    with client.create_ledger() as writer:
        writer.append_many([b"%d" % at for at in range(count)])
    return writer.ledger_id


def lose(fakes: FakeBookies, ledger_id: int, entry_id: int, *, damaged: bool) -> None:
    for fake in fakes.fakes:
        entries = fake.ledgers[ledger_id].entries
        if damaged:
            entries[entry_id] = entries[entry_id][:-1] + bytes([entries[entry_id][-1] ^ 1])
        else:
            del entries[entry_id]


def values(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@pytest.mark.slow
def test_entries_come_once_in_order_in_batches_of_what_was_asked_for() -> None:
    with sync_cluster() as (client, _, _):
        ledger_id = written(client, 3000)
        batches = list(ledger_batches(client, ledger_id, 5, 2904, rows_max=1000))
        assert [one.num_rows for one in batches] == [1000, 1000, 900]
        assert values(batches) == [b"%d" % at for at in range(5, 2905)]
        lengths = [sum(len(b"%d" % one) for one in range(at + 1)) for at in range(8)]
        (few,) = ledger_batches(client, ledger_id, 5, 7)
        assert few.column("length").to_pylist() == lengths[5:8]
        part = ledger_schema(payload=False)
        assert [one.schema for one in ledger_batches(client, ledger_id, schema=part)] == [part]
        assert len(list(ledger_batches(client, ledger_id, bytes_max=1))) > 1
        assert list(ledger_batches(client, ledger_id, 3000)) == []
        with pytest.raises(
            NoSuchEntry, match="entry 3000 is beyond the last acknowledged one, 2999"
        ):
            next(ledger_batches(client, ledger_id, 0, 3000))
        for first, last, more in ((-1, None, {}), (3, 2, {}), (0, None, {"rows_max": 0})):
            with pytest.raises(ConfigError):
                list(ledger_batches(client, ledger_id, first, last, **more))


def test_what_no_bookie_gives_is_an_error_behind_what_was_before_it_or_told() -> None:
    rng = random.Random(3)
    with sync_cluster(read_timeout=5) as (client, fakes, _):
        ledger_id = written(client, 60)
        gone = {0, 1, 59, *rng.sample(range(60), 5)}
        for entry_id in gone:
            lose(fakes, ledger_id, entry_id, damaged=entry_id % 2 == 0)
        batches = ledger_batches(client, ledger_id, 2)
        with pytest.raises((NoSuchEntry, DigestMismatch)) as caught:
            list(batches)
        assert caught.value.entry_id == min(gone - {0, 1})
        gaps: list[EntryGap] = []
        reader = read_ledger(client, ledger_id, skip_gaps=True, on_gap=gaps.append)
        assert reader.read_all().column("entry").to_pylist() == sorted({*range(60)} - gone)
        told = [at for gap in gaps for at in range(gap.first, gap.next)]
        assert told == sorted(gone)
        assert all(one.next < two.first for one, two in pairwise(gaps))


def test_an_open_ledger_is_read_and_its_writer_goes_on() -> None:
    with sync_cluster() as (client, _, _):
        writer = client.create_ledger()
        writer.append_many([b"a", b"b"])
        writer.write_last_add_confirmed()
        reader = read_ledger(client, writer.ledger_id)
        writer.append(b"later")  # behind the range, which was fixed
        assert reader.read_all().column("value").to_pylist() == [b"a", b"b"]
        with pytest.raises(NoSuchEntry) as caught:
            read_ledger(client, writer.ledger_id, 0, 77)
        assert caught.value.retryable
        assert not client.is_closed(writer.ledger_id)
        writer.close()


# What is at hand comes in one call: bounded, in order, and nothing is lost where something goes
# wrong behind it.


ENTRIES = 7
"""That come together from the ledgers of tests; small ones are joined as far as they have room."""


def at_hand(harness: Harness, reader: SyncStreamReader, records: int) -> None:  # type: ignore[type-arg]
    """Wait until so many records were read ahead."""
    inner = reader._opened()

    async def there() -> None:
        while inner._ahead is None or inner._ahead.plan.next_seq < records:
            inner._arrived.clear()
            await inner._arrived.wait()

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
