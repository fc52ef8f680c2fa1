"""Segments and streams that are deleted by somebody who is killed at any step (INV-S8, INV-S9; S18 of the design)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext

import pytest

from fastbk.errors import Error, StreamNotFound
from fastbk.meta.records import Change
from fastbk.stream import chain as changes
from fastbk.stream import chain_store
from fastbk.stream.chain import condemn
from fastbk.stream.chain_store import ChainStore
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.deletion import Audit, Deleter, delete_below, delete_stream
from fastbk.stream.janitor import Janitor
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.options import WriterOptions
from fastbk.stream.paths import STREAMS, pages_path, stream_path
from fastbk.stream.positions import DLSN, AtSeq
from fastbk.stream.reader.search import tail_position
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.stream import truncate
from fastbk.stream.writer import stream_writer
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_kills import run_and_kill
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import (
    as_client,
    chain_of,
    cluster_with_stream,
    context_of,
    mark_deleted,
    named_ledgers,
    store_of,
    write_segments,
    writer_of,
)

Work = Callable[[FakeClient], Awaitable[object]]


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of four rows, so that a short stream has some."""
    monkeypatch.setattr(chain_store, "ROWS_MAX", 5)
    monkeypatch.setattr(chain_store, "PAGE_ROWS", 4)
    # A killed process publishes nothing on its way out, so nobody waits for that.
    monkeypatch.setattr(stream_writer, "PUBLISH_S", 0.01)


async def paged_stream() -> Cluster:
    """Return a stream of 14 closed segments in two pages and rows, one that is open, and a page that nobody names."""
    cluster, _ = await cluster_with_stream()
    client = cluster.client()
    await write_segments(client, 14, records=2)
    writer = StreamWriter(context_of(client), WriterOptions())
    await writer.open()
    await writer.append(b"open")
    writer.abort()
    await client.records.change(Change(f"{pages_path('ab')}/0-00000000000000ff", b"lost a race"))
    chain = await chain_of(cluster)
    assert len(chain.pages) >= 2 and len(chain.open_rows) == 1
    return cluster


def below(cluster: Cluster) -> set[str]:
    """Return what lies below the stream's record, and that itself."""
    return {
        path for path in cluster.records.values if f"{path}/".startswith(f"{stream_path('ab')}/")
    }


async def each_kill(make: Callable[[], Awaitable[Cluster]], work: Work, check: Work) -> int:
    """Kill `work` at each of its calls, before and after it took effect; `check(client)` is to hold each time."""
    kills, made = 0, await make()
    for is_after in (False, True):
        for number in itertools.count():
            cluster = made.copy()
            if not await run_and_kill(cluster, work, number, is_after=is_after):
                break
            kills += 1
            await check(cluster.client())
    return kills


async def delete_ten(client: FakeClient) -> None:
    store = store_of(client)
    await delete_below(Deleter(as_client(client)), store, await store.read(), 11, "test")


@pytest.mark.usefixtures("few_rows")
@pytest.mark.slow
async def test_segments_are_deleted_however_often_it_is_begun() -> None:
    async def check(client: FakeClient) -> None:
        await delete_ten(client)
        await Janitor(as_client(client)).pass_once(thorough=True)
        chain = await chain_of(client.cluster)
        assert (chain.head, chain.deleting, chain.trim) == (11, 11, DLSN(11, 0, 0))
        assert chain.head_seq == 20
        assert set(client.cluster.ledgers) == await named_ledgers(client.cluster), "S18"
        pages = {f"{pages_path('ab')}/{chain_store.page_name(page)}" for page in chain.pages}
        assert {path for path in below(client.cluster) if "/pages/" in path} == pages

    assert await each_kill(paged_stream, delete_ten, check) > 20


@pytest.mark.usefixtures("few_rows")
@pytest.mark.slow
async def test_the_newest_closed_segment_stays() -> None:
    cluster = await paged_stream()
    store = store_of(cluster.client())
    deleter = Deleter(as_client(cluster.client()))
    known = await delete_below(deleter, store, await store.read(), 10**6, "test")
    assert [(row.number, row.is_open) for row in known.chain.rows] == [(14, False), (15, True)]
    assert deleter.ledgers == 13
    await writer_of(cluster).open()
    chain = await chain_of(cluster)
    assert chain.last_dlsn == DLSN(15, 0, 0) and chain.end_seq == 29


@pytest.mark.usefixtures("few_rows")
@pytest.mark.slow
async def test_ledgers_go_only_after_the_mark_and_the_line_in_the_audit_log() -> None:
    """INV-S9: two steps. Without the line nothing is deleted."""
    cluster = await paged_stream()
    store, before = store_of(cluster.client()), set(cluster.ledgers)

    def full(events: object) -> None:
        raise OSError("disk full")

    deleter = Deleter(as_client(cluster.client()), Audit(full))
    with pytest.raises(Error, match="disk full"):
        await delete_below(deleter, store, await store.read(), 11, "test")
    assert set(cluster.ledgers) == before
    chain = await chain_of(cluster)
    assert (chain.head, chain.deleting, chain.trim) == (1, 11, DLSN(11, 0, 0))


async def delete(client: FakeClient) -> None:
    await delete_stream(as_client(client), "ab")


async def doomed_stream() -> Cluster:
    cluster = await paged_stream()
    await mark_deleted(cluster)
    return cluster


@pytest.mark.usefixtures("few_rows")
@pytest.mark.slow
async def test_a_stream_goes_with_all_it_had_however_often_it_is_begun() -> None:
    async def check(client: FakeClient) -> None:
        await Janitor(as_client(client)).pass_once()
        assert client.cluster.ledgers == {} and below(client.cluster) == set(), "S18"

    assert await each_kill(doomed_stream, delete, check) > 30
    cluster = Cluster()
    await delete(cluster.client())  # there is none


@pytest.mark.usefixtures("few_rows")
@pytest.mark.slow
async def test_a_writer_of_a_deleted_stream_leaves_nothing_behind() -> None:
    """Killed at any call of its life, in a stream that is deleted by others at that moment: nothing of it stays."""

    async def make() -> Cluster:
        cluster, _ = await cluster_with_stream()
        return cluster

    async def write(client: FakeClient) -> None:
        await write_segments(client, 8, records=1)

    async def check(client: FakeClient) -> None:
        await mark_deleted(client.cluster)
        await Janitor(as_client(client)).pass_once()
        assert client.cluster.ledgers == {} and below(client.cluster) == set(), "S18"

    assert await each_kill(make, write, check) > 60


@pytest.mark.usefixtures("few_rows")
@pytest.mark.slow
async def test_a_stream_is_deleted_under_a_writer_that_goes_on() -> None:
    cluster, _ = await cluster_with_stream()
    writer = writer_of(cluster)
    await writer.open()
    await writer.append(b"x")
    await mark_deleted(cluster)
    await delete(cluster.client())
    with pytest.raises(Error):
        await writer.append(bytes(10))
        await writer.roll()
        await writer.append(bytes(10))
    writer.abort()
    # A page that it wrote on the way comes below a record that is gone; ids are never used again.
    client = cluster.client()
    await client.records.change(Change(f"{pages_path('ab')}/0-00000000000000ff", b"slow"))
    await Janitor(as_client(client)).pass_once()
    assert cluster.ledgers == {} and below(cluster) == set()


@pytest.mark.usefixtures("few_rows")
@pytest.mark.slow
def test_a_condemned_chain_takes_nothing_more() -> None:
    chain = changes.open_for_append(changes.Chain("a"), "w")
    chain = changes.add_segment(changes.reserve(chain, 1, 7), 1, 7, 0)
    gone = changes.condemn(chain)
    assert changes.condemn(gone) == gone
    for change in (
        lambda: changes.reserve(gone, 1, 8),
        lambda: changes.add_segment(gone, 1, 8, 0),
        lambda: changes.open_for_append(gone, "x"),
        lambda: changes.attach(gone, (), "k", 1, 0),
    ):
        with pytest.raises(Error):
            change()


@pytest.mark.usefixtures("few_rows")
@pytest.mark.slow
async def test_what_is_cut_off_is_deleted_by_the_next_pass() -> None:
    cluster = await paged_stream()
    client = cluster.client()
    await truncate(context_of(client), DLSN(12, 1, 0))
    counts = await Janitor(as_client(client)).pass_once()
    assert (counts.segments_deleted, counts.ledgers_deleted) == (11, 11)
    chain = await chain_of(cluster)
    assert (chain.head, chain.trim) == (12, DLSN(12, 1, 0))


@pytest.mark.usefixtures("few_rows")
@pytest.mark.slow
async def test_a_stream_that_is_deleted_by_name_leaves_nothing() -> None:
    cluster = Cluster()
    client = as_client(cluster.client())
    space = Namespace(Catalog(client), "shop")
    await space.create()
    stream = await space.create_stream("orders")
    async with stream.writer() as writer:
        await writer.append(b"x")
        await writer.roll()
        await writer.append(b"y")
    assert await stream.truncate(AtSeq(1)) == DLSN(2, 0, 0)
    await space.delete_stream("orders")
    assert cluster.ledgers == {}
    assert not any(path.startswith(f"{STREAMS}/") for path in cluster.records.values), "S18"


# What those meet who use a stream while it is deleted: they are told that it was deleted, and
# nothing else.


IN_TIME_S = 1.0
"""In which the next append fails."""


async def _deleted(cluster: Cluster) -> None:
    await mark_deleted(cluster)
    await delete_stream(as_client(cluster.client()), "ab")


async def _writer(cluster: Cluster) -> StreamWriter:
    writer = writer_of(cluster)
    await writer.open()
    return writer


@pytest.mark.parametrize("records", [0, 3])
async def test_a_writer_learns_of_it_by_its_next_append(records: int) -> None:
    """INV-S19"""
    cluster, _ = await cluster_with_stream()
    writer = await _writer(cluster)
    for _ in range(records):
        await writer.append(b"x")
    await _deleted(cluster)
    async with asyncio.timeout(IN_TIME_S):
        with pytest.raises(StreamNotFound, match="test/ab was deleted") as told:
            await writer.append(b"y")
    assert told.value.outcome in ("unknown", "not_written")
    with pytest.raises(StreamNotFound, match="test/ab was deleted") as told:
        await writer.append(b"z")
    assert told.value.outcome == "not_written"
    with pytest.raises(StreamNotFound):
        await writer.close()


@pytest.mark.parametrize("is_told", [True, False])
async def test_the_end_of_its_block_says_it_where_no_call_has(is_told: bool) -> None:
    cluster, _ = await cluster_with_stream()
    with nullcontext() if is_told else pytest.raises(StreamNotFound, match="test/ab was deleted"):
        async with writer_of(cluster) as writer:
            await writer.append(b"x")
            await _deleted(cluster)
            lost = writer.append_nowait(b"y")
            if is_told:
                with pytest.raises(StreamNotFound):
                    await writer.flush()
    assert isinstance(lost.exception(), StreamNotFound)


class Together(Plan):
    """Appends wait until they are let go."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def before(self, client: FakeClient, what: str) -> None:
        if what == "append":
            await self.may_go_on.wait()


async def test_appends_under_way_fail_in_their_order() -> None:
    """INV-S19, INV-S5"""
    plan = Together()
    cluster, _ = await cluster_with_stream(plan)
    writer = await _writer(cluster)
    await writer.append(b"x")
    plan.may_go_on.clear()
    futures = [writer.append_nowait(bytes(40_000)) for _ in range(6)]
    await asyncio.sleep(0)
    await _deleted(cluster)
    plan.may_go_on.set()
    async with asyncio.timeout(IN_TIME_S):
        ends = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(end) for end in ends] == [StreamNotFound] * 6


@asynccontextmanager
async def _condemned(cluster: Cluster) -> AsyncIterator[None]:
    """The block runs between the first and the last step of a deletion."""
    await mark_deleted(cluster)
    store = ChainStore(as_client(cluster.client()).records, "ab", 10.0, is_deleter=True)
    await store.change(condemn)
    yield
    await delete_stream(as_client(cluster.client()), "ab")


@pytest.mark.parametrize("is_at_end", [True, False])
@pytest.mark.parametrize("on_gap", ["raise", "yield"])
async def test_a_reader_is_told_that_the_stream_is_gone_and_nothing_of_loss(
    is_at_end: bool, on_gap: str
) -> None:
    """INV-S19"""
    cluster, _ = await cluster_with_stream()
    await write_segments(cluster.client(), 4)
    writer = await _writer(cluster)
    await writer.append(b"open")
    reader = StreamReader(context_of(cluster.client()), on_gap=on_gap, prefetch_bytes=1)  # type: ignore[arg-type]
    async with reader:
        for _ in range(13 if is_at_end else 2):
            await anext(reader)
        waiting = asyncio.ensure_future(anext(reader)) if is_at_end else None
        await asyncio.sleep(0)
        async with _condemned(cluster):
            if waiting is not None:
                with pytest.raises(StreamNotFound):
                    await asyncio.wait_for(waiting, 10)
            with pytest.raises(StreamNotFound):
                async with asyncio.timeout(10):
                    while True:
                        await anext(reader)
        for _ in range(3):
            with pytest.raises(StreamNotFound, match="ab any more: it was deleted"):
                await anext(reader)
        with pytest.raises(StreamNotFound):
            await reader.wait_caught_up()
    writer.abort()


async def test_a_cursor_is_told_that_the_stream_is_gone() -> None:
    """INV-S19"""
    cluster, _ = await cluster_with_stream()
    await write_segments(cluster.client(), 2)
    cursor = Cursor(context_of(cluster.client()), "c")
    await cursor.open()
    for _ in range(6):
        await anext(cursor)
    waiting = asyncio.ensure_future(anext(cursor))
    await asyncio.sleep(0)
    await _deleted(cluster)
    with pytest.raises(StreamNotFound):
        await asyncio.wait_for(waiting, 10)
    with pytest.raises(StreamNotFound):
        await anext(cursor)
    await cursor.abort()


async def test_nobody_begins_to_use_a_stream_that_is_being_deleted() -> None:
    """INV-S19"""
    cluster, _ = await cluster_with_stream()
    await write_segments(cluster.client(), 2)
    async with _condemned(cluster):
        context = context_of(cluster.client())
        begun: list[Awaitable[object]] = [
            StreamReader(context).open(),
            StreamWriter(context, WriterOptions()).open(),
            Cursor(context, "c").open(),
            tail_position(context),
        ]
        for one in begun:
            with pytest.raises(StreamNotFound, match="it was deleted"):
                await one


async def test_open_ledgers_are_fenced_before_they_are_deleted() -> None:
    """INV-S19"""
    seen: list[bool] = []

    class Watching(Plan):
        async def before(self, client: FakeClient, what: str) -> None:
            if client.name == "deleter" and what == "metadata.change":
                ledger = cluster.ledgers.get(0)
                seen.append(ledger is None or ledger.metadata.is_closed)

    cluster, _ = await cluster_with_stream(Watching())
    writer = await _writer(cluster)
    await writer.append(b"x")
    await mark_deleted(cluster)
    await delete_stream(as_client(cluster.client("deleter")), "ab")
    assert seen[0] is False and all(seen[1:]), "condemned, then fenced, then deleted"
    writer.abort()
