"""Quotas of bytes: counted by the janitor, exact over truncation and deletion, and told to writers at a new segment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fastbk.errors import QuotaExceeded, WriterFenced
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.paths import STORED
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Record
from fastbk.stream.stream import Stream
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import as_client

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


async def full_writer(cluster: Cluster, path: str = "a") -> tuple[Stream, StreamWriter]:
    """Return a stream in a namespace that has all it may, and its writer, who has a segment with room for three."""
    space = namespace_of(cluster, path)
    await space.create(PolicyPatch(bytes_max=500, roll_bytes=5000))
    stream = await space.create_stream("s")
    writer = stream.writer()
    await writer.open()
    await writer.append(RECORD)
    await append_segments(await space.create_stream("other"), 1)
    await counted(cluster)
    return stream, writer


async def refused(writer: StreamWriter) -> QuotaExceeded:
    """Append until that is refused."""
    with pytest.raises(QuotaExceeded) as told:
        for _ in range(50):
            await writer.append(RECORD)
    return told.value


def is_all_closed(cluster: Cluster) -> bool:
    return all(ledger.metadata.is_closed for ledger in cluster.ledgers.values())


@pytest.mark.parametrize("how", ["left", "closed", "waited for"])
async def test_a_writer_that_is_refused_ends_its_segment(how: str) -> None:
    cluster = Cluster()
    stream, writer = await full_writer(cluster)
    if how == "left":
        with pytest.raises(QuotaExceeded):
            await writer.__aexit__(QuotaExceeded, await refused(writer), None)
            raise QuotaExceeded("as the block does")
    elif how == "closed":
        await refused(writer)
        with pytest.raises(QuotaExceeded):
            await writer.close()
    else:
        await refused(writer)
        await asyncio.wait_for(writer._opened().lifecycle.until_idle(), 20)
    info = await stream.info()
    assert info.open_segments == 0 and is_all_closed(cluster)
    async with stream.reader(tail=False) as reader:
        assert len([one async for one in reader]) == info.records > 3
    writer.abort()


async def test_a_refused_writer_that_is_aborted_or_overtaken_ends() -> None:
    cluster = Cluster()
    stream, writer = await full_writer(cluster)
    held = asyncio.Event()

    class Held(Plan):
        async def before(self, client: FakeClient, what: str) -> None:
            if what == "close":
                await held.wait()

    cluster.plan = Held()
    await refused(writer)
    async with stream.writer(over_quota=True):
        held.set()
        cluster.plan = Plan()
    await asyncio.wait_for(writer._opened().lifecycle.until_idle(), 20)
    assert isinstance(writer.failure, QuotaExceeded)
    writer.abort()
    assert not [one for one in asyncio.all_tasks() if "SegmentLifecycle" in repr(one.get_coro())]


async def test_a_roll_for_which_there_is_no_room_is_told_and_the_writer_goes_on() -> None:
    cluster = Cluster()
    stream, writer = await full_writer(cluster)
    with pytest.raises(QuotaExceeded):
        await asyncio.wait_for(writer.roll(), 5)
    assert (await writer.append(RECORD)).segment == 1
    await writer.close()
    assert (await stream.info()).open_segments == 0


async def test_a_stream_over_its_quota_can_be_ended_and_sealed_but_not_appended_to() -> None:
    cluster = Cluster()
    stream, former = await full_writer(cluster)
    with pytest.raises(QuotaExceeded):
        await stream.writer().open()
    with pytest.raises(QuotaExceeded):
        async with stream.writer(over_quota=True) as writer:
            assert (await stream.info()).open_segments == 0, "what the former one left is ended"
            await writer.append(RECORD)
    with pytest.raises(WriterFenced):
        await former.append(RECORD)
    async with stream.writer(over_quota=True) as writer:
        assert await writer.seal() == DLSN(1, 0, 0)
    assert (await stream.info()).is_sealed and is_all_closed(cluster)


async def test_the_refusal_names_the_namespace_with_its_path() -> None:
    cluster = Cluster()
    await namespace_of(cluster, "a").create()
    _, writer = await full_writer(cluster, "a/b")
    told = await refused(writer)
    assert "namespace a/b has" in str(told) and str(told).startswith("a/b/s:")
    await namespace_of(cluster, "").set_policy(PolicyPatch(bytes_max=10))
    await namespace_of(cluster, "a/b").set_policy(PolicyPatch(bytes_max=10**9))
    await counted(cluster)
    with pytest.raises(QuotaExceeded, match=r"namespace \(the root\) has"):
        await namespace_of(cluster, "a/b").stream("s").writer().open()
