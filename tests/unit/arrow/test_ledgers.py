"""Ranges of ledgers on fake bookies: whole, parts, entries that no bookie has undamaged, an end that is not there."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa
import pytest

import fastbk.sync
from fastbk.arrow import EntryGap, ledger_batches, ledger_schema, read_ledger
from fastbk.errors import ConfigError, DigestMismatch, NoSuchEntry
from tests.fixtures.sync_cluster import FakeBookies, sync_cluster


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
