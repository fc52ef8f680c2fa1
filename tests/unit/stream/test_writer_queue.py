"""The writer's queue: groups, bounds, transaction ids; and the index that a segment's writer collects."""

from __future__ import annotations

import random

import pytest

from fastbk.errors import BufferFull, ProtocolError, RecordTooLarge, TxidOutOfOrder
from fastbk.stream.segment_contents import RECORD, ROWS_MAX, TIME, TXID, IndexBuilder, SegmentIndex
from fastbk.stream.writer.engine import WriterQueue


def queue(
    entry: int = 10_000, batch: int = 1000, unacked: int = 100_000, last: int = -1
) -> WriterQueue:
    return WriterQueue(entry, batch, unacked, last)


def test_records_fill_groups_in_their_order() -> None:
    some = queue()
    for at in range(30):
        some.put(bytes([at]) * 100, None, None, b"", at)
    sizes = [len(group.payloads) for group in some.groups]
    assert sum(sizes) == 30 and max(sizes) < 10
    assert [waiter for group in some.groups for waiter in group.waiters] == list(range(30))
    assert [txid for group in some.groups for txid in group.txids] == list(range(30))


def test_a_batch_stays_alone_and_whole() -> None:
    some = queue()
    some.put(b"a", None, None, b"", 1)
    some.put_batch([b"b"] * 50, None, None, None, 2)
    some.put(b"c", None, None, b"", 3)
    assert [len(group.payloads) for group in some.groups] == [1, 50, 1]
    assert some.last_txid == 51


def test_the_last_group_waits_for_more_only_where_something_else_is_under_way() -> None:
    some = queue()
    some.put(b"a", None, None, b"", 1)
    assert some.take(only_full=True) is None
    some.put_batch([b"b"], None, None, None, 2)
    assert some.take(only_full=True) is not None
    assert some.take(only_full=True) is not None, "a batch gets no more"
    assert some.take(only_full=False) is None


def test_what_is_refused_changes_nothing() -> None:
    some = queue(unacked=1000)
    some.put(b"a", 5, None, b"", 1)
    before = some.unacked_bytes
    for txid in (4, -1, 2**62 + 1):
        with pytest.raises(TxidOutOfOrder):
            some.put(b"x", txid, None, b"", 2)
    with pytest.raises(TxidOutOfOrder):
        some.put_batch([b"x", b"y"], [7, 6], None, None, 2)
    with pytest.raises(RecordTooLarge):
        some.put(bytes(10_000), None, None, b"", 2)
    with pytest.raises(BufferFull):
        some.put(bytes(2000), None, None, b"", 2)
    assert (some.unacked_bytes, some.last_txid, len(some.groups)) == (before, 5, 1)
    some.put(b"x", 5, None, b"", 2)


def test_room_comes_back_with_acknowledgements() -> None:
    some = queue(unacked=1000)
    while some.has_room:
        some.put(bytes(100), None, None, b"", 0)
    while (group := some.take(only_full=False)) is not None:
        some.acknowledged(group)
    assert some.unacked_bytes == 0 and some.has_room


def test_an_index_leads_to_the_entry_that_has_a_key(rng: random.Random) -> None:
    for entries in (1, 2, 100, ROWS_MAX, 3 * ROWS_MAX + 17):
        builder = IndexBuilder()
        firsts, record, txid, time_us = [], 0, 7, 1000
        for entry_id in range(entries):
            builder.add(entry_id, record, txid, time_us)
            firsts.append((record, txid, time_us))
            record += rng.randrange(1, 5)
            txid += rng.choice([0, 0, 1, 9])
            time_us += rng.choice([0, 5])
        raw = builder.entry(3, record, txid, time_us)
        assert len(raw) < 140_000
        index = SegmentIndex(raw)
        assert index.records == record
        for column, place in ((RECORD, 0), (TXID, 1), (TIME, 2)):
            for _ in range(50):
                at = rng.randrange(entries)
                key = firsts[at][place]
                first, end = index.entries_for(column, key)
                # The first entry whose first key is not less, and the one before it, may have the record.
                wanted = (
                    at
                    if column == RECORD
                    else next(i for i, one in enumerate(firsts) if one[place] >= key)
                )
                assert first <= max(wanted - 1, 0) or first <= wanted
                assert end is None or wanted < end


@pytest.mark.parametrize("cut", [0, 10, 60])
def test_what_is_no_index_is_refused(cut: int) -> None:
    builder = IndexBuilder()
    builder.add(0, 0, 0, 0)
    with pytest.raises(ProtocolError):
        SegmentIndex(builder.entry(1, 1, 0, 0)[:cut])
