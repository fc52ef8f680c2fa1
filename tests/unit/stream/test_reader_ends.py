"""A reader with an end asks for nothing that lies behind it."""

from __future__ import annotations

import asyncio

import pytest

from fastbk.stream.positions import DLSN
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Record
from tests.fixtures.fake_ledgers import Cluster, Counting
from tests.fixtures.streams import context_of, filled, new_stream, plain


async def all_of(reader: StreamReader) -> list[Record]:
    async with reader:
        return [one async for one in reader if isinstance(one, Record)]


@pytest.mark.parametrize(
    ("start", "end", "opens", "reads"),
    [
        (DLSN(1, 0, 0), DLSN(1, 14, 0), 1, 2),
        (DLSN(1, 0, 0), DLSN(1, 14, 1), 1, 3),
        (DLSN(1, 3, 1), DLSN(1, 4, 0), 1, 1),
        (DLSN(1, 0, 0), DLSN(2, 0, 0), 1, 10),
        (DLSN(1, 63, 0), DLSN(1, 900, 0), 1, 1),
        (DLSN(2, 0, 0), DLSN(3, 7, 0), 2, 11),
        (DLSN(3, 0, 0), DLSN(3, 0, 0), 0, 0),
    ],
)
async def test_nothing_behind_the_end_is_read_ahead(
    start: DLSN, end: DLSN, opens: int, reads: int
) -> None:
    plan = Counting()
    cluster = Cluster(plan)
    await new_stream(cluster)
    records = await filled(cluster, [70, 70, 70], 2)
    context = context_of(cluster.client())
    plan.calls.clear()
    reader = StreamReader(context, start, end=end)
    found = await asyncio.wait_for(all_of(reader), 5)
    assert plain(found) == plain([one for one in records if start <= one.dlsn < end])
    for _ in range(100):
        await asyncio.sleep(0)
    # Entries come by seven, and a closed segment needs nothing else.
    assert (plan.calls["open"], plan.calls["read"]) == (opens, reads)
