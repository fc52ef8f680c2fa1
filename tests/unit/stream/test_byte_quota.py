"""Quotas of bytes: counted by the janitor, exact over truncation and deletion, and told to writers at a new segment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastbk.errors import QuotaExceeded
from fastbk.stream.catalog import Catalog
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.namespace import Namespace
from fastbk.stream.paths import STORED
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Record
from fastbk.stream.stream import Stream
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.fake_streams import as_client

RECORD = b"x" * 1000


def namespace_of(cluster: Cluster, path: str = "a") -> Namespace:
    return Namespace(Catalog(as_client(cluster.client())), path)


async def counted(cluster: Cluster) -> None:
    janitor = Janitor(as_client(cluster.client()), JanitorOptions(roll_grace_s=1e6))
    assert (await janitor.pass_once()).errors == 0


async def append_segments(stream: Stream, count: int) -> None:
    async with stream.writer() as writer:
        for _ in range(count):
            await writer.append(RECORD)
            await writer.roll()


async def test_the_count_is_what_listings_say_over_truncation_and_deletion() -> None:
    cluster = Cluster()
    top, below = namespace_of(cluster), namespace_of(cluster, "a/b")
    await below.create()
    await top.set_policy(PolicyPatch(bytes_max=1_000_000))
    await below.set_policy(PolicyPatch(bytes_max=500_000))
    await counted(cluster)
    assert await top.stored_bytes() is None, "nothing is there to be counted"
    streams = [await top.create_stream("s"), await below.create_stream("t")]

    async def sums() -> tuple[int, int]:
        every = [info async for info in top.streams(recursive=True)]
        size = sum(one.size_bytes for one in every)
        return size, sum(one.size_bytes for one in every if one.path.startswith("a/b/"))

    async def check(is_so: Callable[[int], bool]) -> None:
        await counted(cluster)
        found = (await top.stored_bytes(), await below.stored_bytes())
        assert found == await sums() and is_so(found[0] or 0)

    for stream in streams:
        await append_segments(stream, 4)
    await check(lambda size: size > 8000)
    await streams[1].truncate(DLSN(4, 0, 0))
    await check(lambda size: 5000 < size < 6000)
    await below.delete_stream("t")
    await check(lambda size: 4000 < size < 5000)
    await top.delete_stream("s")
    await check(lambda size: size == 0)
    await top.set_policy(inherit=["bytes_max"])
    await below.delete()
    await counted(cluster)
    assert await top.stored_bytes() is None
    assert not any(path.startswith(f"{STORED}/") for path in cluster.records.values)


async def test_a_writer_is_told_at_its_opening_and_nobody_is_fenced() -> None:
    cluster = Cluster()
    space = namespace_of(cluster)
    await space.create(PolicyPatch(bytes_max=2500))
    stream = await space.create_stream("s")
    await append_segments(stream, 2)
    await counted(cluster)
    async with stream.writer() as first:
        await first.append(RECORD)
        await first.roll()
        await first.append(RECORD)
        await counted(cluster)
        with pytest.raises(QuotaExceeded, match="of 2,500"):
            async with namespace_of(cluster).stream("s").writer():
                pass
        await first.append(RECORD)
    async with stream.reader(tail=False) as reader:
        found = [one async for one in reader]
    assert len(found) == 5 and all(isinstance(one, Record) for one in found)
    await stream.truncate(DLSN(4, 0, 0))
    await space.set_policy(PolicyPatch(bytes_max=6000))
    await counted(cluster)
    await append_segments(stream, 1)


async def test_a_writer_whose_segment_is_full_is_told_and_what_it_sent_is_kept() -> None:
    cluster = Cluster()
    space = namespace_of(cluster)
    await space.create(PolicyPatch(bytes_max=2000, roll_bytes=5000))
    stream, other = await space.create_stream("s"), await space.create_stream("other")
    sent = 0
    with pytest.raises(QuotaExceeded, match="raise bytes_max") as told:
        async with stream.writer() as writer:
            await writer.append(RECORD)
            await append_segments(other, 3)
            await counted(cluster)
            sent = 1
            for _ in range(50):
                await writer.append(RECORD)
                sent += 1
    assert told.value.outcome == "not_written"
    assert 4 <= sent <= 8, "the segment it had was filled"
    await space.set_policy(inherit=["bytes_max"])
    async with stream.writer() as writer:
        assert writer.last_txid == sent - 1
        await writer.append(RECORD)


async def test_a_first_append_is_refused_at_once() -> None:
    cluster = Cluster()
    space = namespace_of(cluster)
    await space.create(PolicyPatch(bytes_max=500))
    stream, other = await space.create_stream("s"), await space.create_stream("other")
    writer = other.writer()
    await writer.open()
    await append_segments(stream, 1)
    await counted(cluster)
    with pytest.raises(QuotaExceeded):
        await writer.append(RECORD)
    assert isinstance(writer.failure, QuotaExceeded)
