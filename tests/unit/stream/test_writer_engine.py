"""A writer at its worst moments: answers that are lost, calls that are cancelled, ledgers that cannot be ended.

INV-S1, INV-S2, INV-S3, INV-S5, INV-S8. Each test failed once.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import (
    AppendUnknown,
    BufferFull,
    ClientClosed,
    Error,
    InvariantError,
    MetadataUnavailable,
    NotEnoughBookies,
    ProtocolError,
    QuorumTimeout,
    RecordTooLarge,
    TxidOutOfOrder,
    WriterFailed,
    WriterFenced,
)
from fastbk.stream import chain as changes
from fastbk.stream.chain import DOOMED_MAX, Chain
from fastbk.stream.chain_store import ChainStore, VersionedChain
from fastbk.stream.context import StreamContext
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.store import StateStorage
from fastbk.stream.opening import SLOTS_MAX, SegmentSlots, slots_of
from fastbk.stream.options import WriterOptions
from fastbk.stream.paths import chain_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.reader.read_ahead import ReadAhead
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk
from fastbk.stream.segment_contents import RECORD, ROWS_MAX, TIME, TXID, IndexBuilder, SegmentIndex
from fastbk.stream.writer.engine import Rolling
from fastbk.stream.writer.queue import WriterQueue
from fastbk.stream.writer.segment_lifecycle import CHECK_S_MIN, LAST_SHARE, READY_FROM, roll_times
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import cluster_with_stream, context_of, filled, new_stream, writer_of
from tests.simulation.streams.loop import Clock, run_simulated
from tests.unit.stream.test_stream_writer import payloads_of

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator, Callable

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


# Segments that began together roll by age one after the other, never late, and in time for those
# behind them.
#
# Thousands of streams roll or close at once: nobody fails because its turn has not come, only
# because of trouble.


@given(st.integers(0, 2**63 - 1), st.floats(0.01, 1e9))
def test_a_segment_rolls_in_the_last_tenth_of_its_age_with_the_next_one_ready(
    ledger_id: int, age_s: float
) -> None:
    times = roll_times(age_s, ledger_id)
    assert READY_FROM * age_s <= times.ready_s < times.roll_s <= age_s
    assert times.roll_s >= (1 - LAST_SHARE) * age_s * 0.999_999


@pytest.mark.parametrize("step", [1, 2, 3, 10, 256, 1 << 32])
def test_thousands_that_began_together_are_spread(step: int) -> None:
    """Ids of one client's ledgers follow each other, at even distances where others draw, too."""
    count, parts = 5000, 20
    for name, width in (("roll_s", LAST_SHARE), ("ready_s", 0.3)):
        dues = [getattr(roll_times(1.0, 77 + step * at), name) for at in range(count)]
        low = min(dues)
        in_part = [0] * (parts + 1)
        for due in dues:
            in_part[int((due - low) / width * parts)] += 1
        assert max(in_part) < 2 * count / parts


@given(st.integers(0, 2**63 - 1), st.floats(1.0, 1e6), st.floats(0, 2e6))
def test_who_looks_when_told_misses_nothing(ledger_id: int, age_s: float, now_s: float) -> None:
    times = roll_times(age_s, ledger_id)
    behind_s = now_s + times.check_s(now_s)
    assert behind_s > now_s
    for due_s in (times.ready_s, times.roll_s):
        if now_s < due_s:
            assert behind_s <= due_s + CHECK_S_MIN
            break


def test_without_a_limit_nothing_is_ever_due() -> None:
    times = roll_times(0.0, 5)
    assert times.ready_s > 1e300 and times.roll_s > 1e300 and times.check_s(1e9) > 0


@pytest.mark.slow
async def test_a_segment_that_nobody_writes_to_any_more_rolls_when_it_is_due() -> None:
    """Not before, though it is looked at several times."""
    harness = Harness(roll_age_s=2)
    writer = await harness.writer()
    began_s = asyncio.get_running_loop().time()
    await writer.append(b"x")
    segment = writer._opened().segment
    assert segment is not None
    due_s = writer._opened().rolling._times.roll_s
    await until(lambda: writer._opened().segment is not segment)
    took_s = asyncio.get_running_loop().time() - began_s
    assert due_s * 0.99 <= took_s
    await writer.close()


# In simulated time: a limit of 50 ms is a pause of a busy machine's scheduler, too.


LIMIT_S = 0.05


async def impatient_writer(harness: Harness, records: int = 1) -> StreamWriter:
    """Return a writer whose client gives calls that end segments `LIMIT_S`."""
    writer = await harness.writer()
    client: Any = writer._context.client
    client.config = type(client.config)(close_timeout=LIMIT_S)
    for _ in range(records):
        await writer.append(b"x")
    return writer


async def take_all(works: SegmentSlots, taken: AsyncExitStack) -> None:
    for _ in range(SLOTS_MAX):
        await taken.enter_async_context(works)


@pytest.mark.parametrize("call", ["roll", "close", "seal"])
def test_a_call_that_waits_for_its_turn_is_not_too_late(call: str) -> None:
    async def main(_: Clock) -> None:
        harness = Harness()
        writer = await impatient_writer(harness)
        async with AsyncExitStack() as turns_of_others:
            await take_all(slots_of(writer._context.client), turns_of_others)
            under_way = asyncio.ensure_future(getattr(writer, call)())
            await asyncio.wait({under_way}, timeout=4 * LIMIT_S)
            assert not under_way.done()
        await asyncio.wait_for(under_way, PATIENCE_S)
        if call == "roll":
            assert (await writer.append(b"behind")).segment == 2
            await writer.close()
        chain = await harness.chain()
        assert not chain.open_rows and chain.is_sealed == (call == "seal")

    run_simulated(main)


def test_a_close_waits_for_its_turn_to_drop_a_segment_that_was_ready() -> None:
    async def main(_: Clock) -> None:
        harness = Harness(roll_bytes=500)
        writer = await impatient_writer(harness, 6)
        await until(lambda: writer._opened().lifecycle.ready is not None)
        engine, works = writer._opened(), slots_of(writer._context.client)
        original, others = engine.lifecycle.until_idle, AsyncExitStack()

        async def until_idle() -> None:
            await original()
            await take_all(works, others)

        engine.lifecycle.until_idle = until_idle  # type: ignore[method-assign]
        closing = asyncio.ensure_future(writer.close())
        await asyncio.wait({closing}, timeout=4 * LIMIT_S)
        assert not closing.done()
        await others.aclose()
        await asyncio.wait_for(closing, PATIENCE_S)
        assert not (await harness.chain()).open_rows

    run_simulated(main)


@pytest.mark.parametrize("what", ["create", "metadata.change"])
def test_once_its_turn_has_come_the_limit_counts(what: str) -> None:
    async def main(clock: Clock) -> None:
        harness = Harness()
        writer = await impatient_writer(harness)
        harness.plan.holds.add(what)
        async with AsyncExitStack() as turns_of_others:
            await take_all(slots_of(writer._context.client), turns_of_others)
            rolling = asyncio.ensure_future(writer.roll())
            await asyncio.wait({rolling}, timeout=2 * LIMIT_S)
            assert not rolling.done()
            turn_s = clock.monotonic()
        with pytest.raises(QuorumTimeout):
            await asyncio.wait_for(rolling, PATIENCE_S)
        assert LIMIT_S <= clock.monotonic() - turn_s < 2 * LIMIT_S
        harness.plan.go.set()
        await until(
            lambda: writer._opened().segment is not None and not writer._opened().rolling.is_due
        )
        assert (await writer.append(b"rolled after all")).segment == 2
        await writer.close()

    run_simulated(main)


def test_an_outage_ends_the_wait_for_a_turn_that_never_comes() -> None:
    async def main(_: Clock) -> None:
        harness = Harness()
        writer = await impatient_writer(harness)
        works = slots_of(writer._context.client)
        away: Error = MetadataUnavailable("away")
        with pytest.raises(MetadataUnavailable):
            async with works:
                raise away
        async with AsyncExitStack() as turns_of_others:
            await take_all(works, turns_of_others)
            with pytest.raises(QuorumTimeout, match="away"):
                await asyncio.wait_for(writer.roll(), PATIENCE_S)
        writer.abort()

    run_simulated(main)


# A bug in the background reaches whoever calls next, and nobody waits for ever: writers, readers,
# cursors.


CALL_S = 5.0
BUGS = [RuntimeError("a bug"), InvariantError("a bug")]


@pytest.fixture(params=BUGS, ids=["exception", "invariant"])
def bug(request: pytest.FixtureRequest) -> BaseException:
    """What a background task runs into."""
    found: BaseException = request.param
    return found


async def test_reading_ahead(bug: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, context = await cluster_with_stream()
    await filled(cluster, [3])

    async def broken(_ahead: ReadAhead) -> None:
        raise bug

    monkeypatch.setattr(ReadAhead, "_step", broken)
    async with StreamReader(context) as reader:
        with pytest.raises(Error, match="a bug") as told:
            await asyncio.wait_for(reader.read(), CALL_S)
        assert told.value.__cause__ is None or told.value.__cause__ is bug
        monkeypatch.undo()
        found = await asyncio.wait_for(reader.read(), CALL_S)
        assert isinstance(found, Chunk) and len(found) == 3, "it can be tried again"


async def test_following_the_chain(bug: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, and waiting for another task's reading, both end."""
    context = await new_stream(Cluster())

    async def broken(_store: ChainStore) -> AsyncGenerator[VersionedChain, None]:
        await asyncio.sleep(0)
        raise bug
        yield  # type: ignore[unreachable]

    monkeypatch.setattr(ChainStore, "follow", broken)
    async with StreamReader(context) as reader:
        with pytest.raises(Error, match="a bug"):
            await asyncio.wait_for(reader.read(), CALL_S)
        with pytest.raises(Error, match="a bug"):
            await asyncio.wait_for(anext(reader), CALL_S)


async def test_waiting_beside_a_reader_of_a_deleted_stream() -> None:
    cluster, context = await cluster_with_stream()
    await filled(cluster, [3])
    async with StreamReader(context) as reader:
        waiting = asyncio.ensure_future(reader.wait_caught_up())
        await asyncio.sleep(0)
        follower = reader._follower
        assert follower is not None
        follower.failure = Error("it is gone")
        with pytest.raises(Error, match="it is gone"):
            await reader.read()
        with pytest.raises(Error, match="it is gone"):
            await asyncio.wait_for(waiting, CALL_S)


async def test_sending(bug: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was appended fails, and so does what is appended next; closing ends."""
    cluster, _ = await cluster_with_stream()
    writer = writer_of(cluster)
    await writer.open()
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: logged.append(what))

    def broken(_rolling: Rolling) -> None:
        raise bug

    monkeypatch.setattr(Rolling, "segment_for_next", broken)
    future = writer.append_nowait(b"x")
    with pytest.raises(WriterFailed, match="a bug"):
        await asyncio.wait_for(future, CALL_S)
    with pytest.raises(WriterFailed, match="a bug"):
        writer.append_nowait(b"y")
    with pytest.raises(WriterFailed, match="a bug"):
        await asyncio.wait_for(writer.close(), CALL_S)
    assert logged, "the bug itself is there to be seen, too"


async def test_keeping_a_cursor(bug: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _ = await cluster_with_stream()
    await filled(cluster, [3])

    async def broken(_keeper: StateStorage) -> int:
        raise bug

    cursor = Cursor(context_of(cluster.client()), "c")
    await cursor.open()
    record = await anext(cursor)
    monkeypatch.setattr(StateStorage, "keep", broken)
    with pytest.raises(Error, match="a bug"):
        await asyncio.wait_for(_awaited(cursor, record), CALL_S)
    for call in (cursor.flush(), anext(cursor), cursor.close()):
        with pytest.raises(Error, match="a bug"):
            await asyncio.wait_for(call, CALL_S)


async def _awaited(cursor: Cursor, record: object) -> None:
    await cursor.ack(record)  # type: ignore[arg-type]


async def test_a_writer_without_records_says_so(
    bug: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a roll that waits ends."""
    cluster, _ = await cluster_with_stream()
    writer: StreamWriter = writer_of(cluster)
    await writer.open()
    await writer.append(b"x")
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def broken(_rolling: Rolling) -> None:
        raise bug

    monkeypatch.setattr(Rolling, "segment_for_next", broken)
    with pytest.raises(WriterFailed, match="a bug"):
        await asyncio.wait_for(writer.roll(), CALL_S)


# The writer's queue: groups, bounds, transaction ids; and the index that a segment's writer
# collects.


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
