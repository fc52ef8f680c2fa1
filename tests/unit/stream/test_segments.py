"""Segments as metadata tells them to readers that share the work."""

from __future__ import annotations

import asyncio

from fastbk.stream.reader.search import segments_of
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import filled, new_stream, writer_of


async def test_segments_say_what_they_hold_and_the_open_one_only_where_it_begins() -> None:
    cluster = Cluster()
    context = await new_stream(cluster)
    records = await filled(cluster, [5, 1, 40], 2)
    writer = writer_of(cluster)
    await writer.open()
    await writer.append(b"open")
    found = await segments_of(context, 1)
    for one in (one for one in found if not one.is_open):
        inside = [record for record in records if record.dlsn.segment == one.number]
        assert (one.first_seq, one.records) == (inside[0].seq, len(inside))
        assert one.last_entry_id == inside[-1].dlsn.entry
        assert (one.first_time_us, one.last_time_us) == (inside[0].time_us, inside[-1].time_us)
        assert one.size_bytes > 0
    assert [one.number for one in found] == [1, 2, 3, 4]
    assert (found[3].is_open, found[3].first_seq) == (True, len(records))
    assert [one.number for one in await segments_of(context, 3)] == [3, 4]
    writer.abort()
    await asyncio.sleep(0)
