"""A writer at its worst moments: answers that are lost, calls that are cancelled, ledgers that cannot be ended.

INV-S1, INV-S2, INV-S3, INV-S5, INV-S8. Each test failed once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fastbk.errors import (
    AppendUnknown,
    ClientClosed,
    Error,
    InvariantError,
    MetadataUnavailable,
    NotEnoughBookies,
    QuorumTimeout,
    TxidOutOfOrder,
    WriterFailed,
    WriterFenced,
)
from fastbk.stream import chain as changes
from fastbk.stream.chain import DOOMED_MAX, Chain
from fastbk.stream.chain_store import ChainStore
from fastbk.stream.context import StreamContext
from fastbk.stream.options import WriterOptions
from fastbk.stream.paths import chain_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.unit.stream.test_writer import new_stream, payloads_of

PATIENCE_S = 20


class Script(Plan):
    """Fails what `fails` says, before or after it takes effect, and holds what `holds` names until `go` is set."""

    def __init__(self) -> None:
        self.fails: Callable[[str, bool], Error | None] = lambda what, is_after: None
        self.holds: set[str] = set()
        self.go = asyncio.Event()

    async def before(self, client: FakeClient, what: str) -> None:
        if what in self.holds:
            await self.go.wait()
        if error := self.fails(what, False):
            raise error

    async def after(self, client: FakeClient, what: str) -> None:
        if error := self.fails(what, True):
            raise error


class Harness:
    """A stream and what its writers share."""

    def __init__(self, **policy: int) -> None:
        self.plan = Script()
        self.cluster = Cluster(self.plan)
        self.policy = StreamPolicy(**policy)  # type: ignore[arg-type]

    def context(self, timeout_s: float = 0.02) -> StreamContext:
        """Return another client's view of the stream."""
        client = self.cluster.client()
        client.config = type(client.config)(close_timeout=0.5)

        async def policy() -> StreamPolicy:
            return self.policy

        store = ChainStore(client.records, "ab", timeout_s)  # type: ignore[arg-type]
        return StreamContext(client, store, "test/ab", policy)  # type: ignore[arg-type]

    async def writer(self, **options: object) -> StreamWriter:
        """Return another writer, open."""
        if chain_path("ab") not in self.cluster.records.values:
            await new_stream(self.cluster)
        writer = StreamWriter(self.context(), WriterOptions(**options))  # type: ignore[arg-type]
        await writer.open()
        return writer

    async def chain(self) -> Chain:
        """Return the chain as it is."""
        return (await self.context().store.read()).chain

    async def payloads(self) -> list[bytes]:
        """Return all that is in the stream, once it is taken over."""
        self.plan.fails, self.plan.holds = lambda what, is_after: None, set()
        self.plan.go.set()
        return [payload for _, _, payload in await payloads_of(self.cluster)]


async def turns(count: int = 50) -> None:
    """Let everything go on that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    """Return when `holds()`."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.001)


async def test_a_cancelled_append_is_waited_for_by_flush_and_close() -> None:
    """Else what was not sent yet would be sent behind the index of its segment."""
    harness = Harness()
    writer = await harness.writer(entries_in_flight=1)
    await writer.append(b"first")
    harness.plan.holds.add("append")
    futures = [writer.append_nowait(b"%d" % at) for at in range(3)]
    await turns()
    futures += [writer.append_nowait(b"unsent"), writer.append_nowait(b"cancelled")]
    futures[-1].cancel()
    closing = asyncio.ensure_future(writer.close())
    await turns()
    assert not closing.done()
    harness.plan.go.set()
    await closing
    assert await harness.payloads() == [b"first", b"0", b"1", b"2", b"unsent", b"cancelled"]


async def test_a_segment_that_was_added_without_an_answer_is_the_one_that_is_written() -> None:
    """INV-S1: with an empty open segment before it, what is acknowledged would be dropped by the next one who opens."""
    harness = Harness()
    writer = await harness.writer()
    is_cut = False

    def fails(what: str, is_after: bool) -> Error | None:
        nonlocal is_cut
        is_cut = is_cut or (what == "create" and is_after)
        if is_cut and what.startswith("metadata") and (is_after or what == "metadata.read"):
            return MetadataUnavailable("no answer")
        return None

    harness.plan.fails = fails
    future = writer.append_nowait(b"kept")
    await until(lambda: writer._opened().lifecycle.trouble is not None)
    harness.plan.fails = lambda what, is_after: None
    assert await asyncio.wait_for(future, PATIENCE_S) == DLSN(1, 0, 0)
    assert len((await harness.chain()).open_rows) == 1
    assert await harness.payloads() == [b"kept"]
    writer.abort()


async def test_a_segment_whose_index_cannot_be_written_ends_without_it() -> None:
    harness = Harness()
    writer = await harness.writer()
    await writer.append(b"kept")
    harness.plan.fails = lambda what, is_after: QuorumTimeout("slow") if what == "append" else None
    await asyncio.wait_for(writer.close(), PATIENCE_S)
    (row,) = (await harness.chain()).rows
    assert not row.is_open and (row.last_entry_id, row.index_entry_id) == (0, -1)
    assert harness.cluster.ledger(row.ledger_id).metadata.is_closed
    assert await harness.payloads() == [b"kept"]


async def test_what_is_no_bytes_and_no_number_is_refused_and_changes_nothing() -> None:
    harness = Harness()
    writer = await harness.writer()
    for wrong in (5, "text", None):
        with pytest.raises(TypeError):
            writer.append_nowait(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            writer.append_batch_nowait([b"x", wrong])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        writer.append_nowait(b"x", txid=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        writer.append_nowait(b"x", key="key")  # type: ignore[arg-type]
    with pytest.raises(TxidOutOfOrder):
        writer.append_nowait(b"x", txid=2**62 + 1)
    await writer.append(bytearray(b"good"), txid=2**62)
    with pytest.raises(TxidOutOfOrder):
        writer.append_nowait(b"nothing is behind it")
    await writer.close()
    assert await harness.payloads() == [b"good"]


async def test_a_cancelled_close_leaves_no_append_without_an_answer() -> None:
    harness = Harness()
    writer = await harness.writer()
    harness.plan.holds.add("create")
    future = writer.append_nowait(b"never sent")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await writer.close()
    with pytest.raises(WriterFailed):
        await asyncio.wait_for(future, PATIENCE_S)
    assert await harness.payloads() == []


async def test_abort_answers_everything_at_once() -> None:
    harness = Harness()
    writer = await harness.writer(entries_in_flight=1)
    await writer.append(b"kept")
    harness.plan.holds.add("append")
    sent = writer.append_nowait(b"sent")
    await turns()
    unsent = writer.append_nowait(b"unsent")
    order: list[str] = []
    sent.add_done_callback(lambda _: order.append("sent"))
    unsent.add_done_callback(lambda _: order.append("unsent"))
    writer.abort()
    await turns()
    assert order == ["sent", "unsent"], "INV-S5"
    assert type(sent.exception()) is AppendUnknown
    error = unsent.exception()
    assert type(error) is WriterFailed and error.outcome == "not_written"
    with pytest.raises(WriterFailed):
        await writer.ready()
    harness.plan.go.set()
    await turns()


async def test_a_roll_beside_appends_rolls() -> None:
    harness = Harness()
    writer = await harness.writer()
    await writer.append(b"one")
    rolling = asyncio.ensure_future(writer.roll())
    futures = []
    while not rolling.done():
        futures.append(writer.append_nowait(b"more"))
        await asyncio.sleep(0)
    await rolling
    assert (await writer.append(b"behind")).segment == 2
    await writer.close()
    assert len(await harness.payloads()) == len(futures) + 2


@pytest.mark.slow
async def test_a_roll_without_metadata_ends_in_time_and_the_writer_goes_on() -> None:
    """The old segment is written until metadata is back; then the roll is made up for."""
    harness = Harness(roll_bytes=300)
    writer = await harness.writer()
    await writer.append(b"one")
    await turns()
    harness.plan.fails = lambda what, is_after: (
        MetadataUnavailable("away") if what.startswith("metadata") else None
    )
    places = [await writer.append(bytes(100)) for _ in range(50)]
    assert {place.segment for place in places[-40:]} == {places[-1].segment}
    with pytest.raises(QuorumTimeout):
        await writer.roll()
    assert (await writer.append(b"on")).segment == places[-1].segment
    harness.plan.fails = lambda what, is_after: None
    async with asyncio.timeout(PATIENCE_S):
        while (await writer.append(b"next")).segment == places[-1].segment:
            await asyncio.sleep(0.01)
    await writer.close()
    assert not (await harness.chain()).open_rows


async def test_a_segment_that_another_opener_drops_meanwhile_is_no_error() -> None:
    harness = Harness()
    former = await harness.writer()
    harness.plan.holds.add("append")
    future = former.append_nowait(b"in flight")
    await until(lambda: bool(harness.cluster.ledgers))
    await turns()
    harness.plan.holds, raced = set(), False
    original = FakeClient.open_ledger

    async def open_ledger(
        self: FakeClient, ledger_id: int, *rest: object, **named: object
    ) -> object:
        nonlocal raced
        if not raced:
            raced = True
            await StreamWriter(harness.context(), WriterOptions()).open()
        return await original(self, ledger_id, *rest, **named)  # type: ignore[arg-type]

    later = StreamWriter(harness.context(), WriterOptions())
    later._context.client.open_ledger = open_ledger.__get__(later._context.client)  # type: ignore[method-assign]
    await later.open()
    assert later.epoch == 3 and raced
    harness.plan.go.set()
    with pytest.raises(WriterFenced):
        await future


async def test_opening_makes_room_where_too_many_ledgers_are_doomed() -> None:
    harness = Harness()
    former = await harness.writer()
    harness.plan.holds.add("append")
    former.append_nowait(b"in flight")
    await until(lambda: bool(harness.cluster.ledgers))
    store = harness.context().store
    doomed = tuple(range(1000, 1000 + DOOMED_MAX))
    await store.change(lambda chain: changes.replace(chain, doomed=doomed))
    harness.plan.holds = set()
    async with asyncio.timeout(PATIENCE_S):
        later = await harness.writer()
        await later.append(b"good")
        await later.close()
    assert (await harness.chain()).doomed == ()
    former.abort()
    harness.plan.go.set()
    await turns()


@pytest.mark.parametrize("bug", [RuntimeError("a bug"), InvariantError("a bug")])
async def test_a_bug_behind_the_writer_ends_it_and_is_said(bug: BaseException) -> None:
    harness = Harness()
    writer = await harness.writer()

    async def policy() -> StreamPolicy:
        raise bug

    object.__setattr__(writer._context, "policy", policy)
    with pytest.raises(WriterFailed, match="a bug"):
        await asyncio.wait_for(writer.append(b"x"), PATIENCE_S)
    task = writer._opened().lifecycle._task
    assert task is not None
    with pytest.raises(type(bug)):
        await task


async def test_flush_does_not_linger() -> None:
    harness = Harness()
    writer = await harness.writer(linger=60.0)
    future = writer.append_nowait(b"x")
    await asyncio.wait_for(writer.flush(), PATIENCE_S)
    assert future.done()
    batch = writer.append_batch_nowait([b"a", b"b"])
    await asyncio.wait_for(batch, PATIENCE_S)  # nothing can be put to a batch
    await writer.close()


async def test_publish_right_behind_a_roll_shows_all_of_the_segment_before() -> None:
    harness = Harness()
    writer = await harness.writer(publish="piggyback")
    await writer.append(b"one")
    ledger = harness.cluster.ledger((await harness.chain()).rows[0].ledger_id)
    rolling = asyncio.ensure_future(writer.roll())
    await until(lambda: writer._opened().lifecycle.unended != () or rolling.done())
    await writer.publish()
    assert ledger.visible >= 1
    await rolling
    await writer.close()
    assert await writer.publish() == DLSN(1, 0, 0)


async def test_a_writer_opens_once_and_is_sealed_again_after_an_answer_was_lost() -> None:
    harness = Harness()
    writer = await harness.writer()
    with pytest.raises(ClientClosed):
        await writer.open()
    await writer.append(b"one")
    await writer.close()
    harness.plan.fails = lambda what, is_after: (
        MetadataUnavailable("away") if what.startswith("metadata") else None
    )
    with pytest.raises(MetadataUnavailable):
        await writer.seal()
    harness.plan.fails = lambda what, is_after: None
    assert await writer.seal() == DLSN(1, 0, 0)
    assert await writer.seal() == DLSN(1, 0, 0)
    assert (await harness.chain()).is_sealed


async def test_a_first_append_waits_for_its_turn_and_fails_by_trouble_alone() -> None:
    """Thousands of first appends at once: the last ones' segments are made later than any limit."""
    harness = Harness()
    writer = await harness.writer(first_segment_timeout=0.01)
    harness.plan.holds.add("create")
    future = writer.append_nowait(b"in its turn")
    await asyncio.wait({future}, timeout=0.1)
    assert not future.done()
    harness.plan.go.set()
    assert await asyncio.wait_for(future, PATIENCE_S) == DLSN(1, 0, 0)
    await writer.close()
    harness.plan.fails = lambda what, is_after: (
        NotEnoughBookies("few") if what == "create" else None
    )
    later = await harness.writer(first_segment_timeout=0.01)
    with pytest.raises(WriterFailed, match="few"):
        await asyncio.wait_for(later.append(b"x"), PATIENCE_S)
