"""The writer on ledgers in memory: appends of one and of many records, room, ends.

Takeovers, crashes and outages at random moments: tests/simulation/streams.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastbk
import fastbk.sync
from fastbk.client.ledger_writer import CALLS_PER_TURN as LEDGER_CALLS_PER_TURN
from fastbk.client.loop_thread import LoopThread
from fastbk.errors import (
    BufferFull,
    ConfigError,
    Error,
    InvariantError,
    MetadataUnavailable,
    QuorumTimeout,
    RecordTooLarge,
    TxidOutOfOrder,
    WriterFailed,
    WrongType,
)
from fastbk.meta.records import Change
from fastbk.stream.chain import Chain, put_chain
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.sync_cursor import SyncCursor
from fastbk.stream.options import WriterOptions
from fastbk.stream.paths import chain_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.reader import read_ahead
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk, chunk_of
from fastbk.stream.sync import SyncStreamWriter
from fastbk.stream.writer import segment_lifecycle, stream_writer
from fastbk.stream.writer.stream_writer import CALLS_PER_TURN, StreamWriter
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import (
    STREAM,
    chain_of,
    cluster_with_stream,
    context_of,
    filled,
    records_of,
    writer_of,
)
from tests.unit.client.fake_cluster import fake_cluster
from tests.unit.stream.test_writer_fencing import HeldAppends


async def payloads_of(cluster: Cluster) -> list[tuple[int, int, bytes]]:
    """Return sequence number, transaction id and payload of all that a reader would find, once all is closed."""
    await writer_of(cluster).open()
    chain = await chain_of(cluster)
    found = []
    for row in chain.rows:
        datas = cluster.ledger(row.ledger_id).entries[: row.last_entry_id + 1]
        chunk = chunk_of(row.number, 0, datas, row.base_seq, row.base_txid)
        found += [(one.seq, one.txid, bytes(one.payload)) for one in chunk]
    return found


# Many records in one call, with and without `await`; what the loop of the calls without `await`
# meets is told.


WRONG_COUNTS = [([b"a", b"b"], [1]), ([b"a"], [1, 2]), ([], []), ([], None)]


async def test_the_first_and_last_position_of_many() -> None:
    cluster, _ = await cluster_with_stream()
    async with writer_of(cluster, unacked_bytes_max=4096) as writer:
        first, last = await writer.append_many(b"%500d" % at for at in range(100))
        assert (first, last, writer.last_txid) == (DLSN(1, 0, 0), writer.last_dlsn, 99)
        await writer.append_many([b"x", b"y"], txids=iter([200, 200]))
        with pytest.raises(TxidOutOfOrder):
            await writer.append_many([b"z"], txids=[7])
    records = await records_of(cluster)
    assert [one.txid for one in records] == [*range(100), 200, 200]
    assert records[99].dlsn == last


@pytest.mark.parametrize(("payloads", "txids"), WRONG_COUNTS)
async def test_another_number_of_ids_sends_nothing(
    payloads: list[bytes], txids: list[int] | None
) -> None:
    cluster, _ = await cluster_with_stream()
    async with writer_of(cluster) as writer:
        with pytest.raises(ConfigError):
            await writer.append_many(payloads, txids=txids)
        assert writer.last_txid == -1


KEYS = [b"k", None, bytearray(b"l")]
HEADERS = [[("a", b"1")], (), {"b": b"2"}]
EXPECTED = [(b"x", b"k", (("a", b"1"),)), (b"y", None, ()), (b"z", b"l", (("b", b"2"),))]
WRONG_BESIDE: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"keys": [b"k"]}, ConfigError), ({"headers": [(), ()]}, ConfigError), ({"keys": b"abc"}, WrongType),
    ({"headers": {"a": b"1", "b": b"2", "c": b"3"}}, WrongType),
]  # fmt: skip


async def parts_of(cluster: Cluster) -> list[tuple[bytes, bytes | None, Any]]:
    return [(one.value, one.key, one.headers) for one in await records_of(cluster)]


async def test_many_have_keys_and_headers() -> None:
    cluster, _ = await cluster_with_stream()
    async with writer_of(cluster) as writer:
        for wrong, error in WRONG_BESIDE:
            with pytest.raises(error):
                await writer.append_many([b"x", b"y", b"z"], **wrong)
        assert writer.last_txid == -1
        await writer.append_many([b"x", b"y", b"z"], keys=iter(KEYS), headers=HEADERS)
    assert await parts_of(cluster) == EXPECTED


async def test_a_batch_larger_than_the_room_that_is_left_waits_until_it_fits() -> None:
    cluster, _ = await cluster_with_stream()
    async with writer_of(cluster, unacked_bytes_max=1000, entry_bytes_max=10_000) as writer:
        small = [writer.append_nowait(b"x" * 100) for _ in range(5)]
        with pytest.raises(BufferFull):
            writer.append_batch_nowait([b"y" * 2000] * 2)
        waiting = [
            asyncio.ensure_future(writer.append_batch([b"%d" % at * 2000] * 2)) for at in range(3)
        ]
        first = await waiting[0]
        assert all(one.done() for one in small), "it waited until it was alone"
        assert [(await one).slot for one in waiting] == [0, 0, 0] and first < await waiting[2]
        assert await writer.append(b"z" * 5000) > await waiting[2]
        await writer.append_many([b"a", b"b" * 5000, b"c"])
        with pytest.raises(RecordTooLarge):
            await writer.append_batch([b"y" * 5000] * 2)
    found = [one.value[:1] for one in await records_of(cluster)]
    assert found == [b"x"] * 5 + [b"0", b"0", b"1", b"1", b"2", b"2", b"z", b"a", b"b", b"c"]


Make = Callable[[], SyncStreamWriter]


@pytest.fixture
def cluster() -> Cluster:
    """One with the stream."""
    made = Cluster()
    made.client().records._change([Change(chain_path(STREAM), put_chain(Chain(STREAM)))])
    return made


@pytest.fixture
def loop(cluster: Cluster) -> Iterator[LoopThread[Any]]:
    client = cluster.client()

    async def closed(timeout: float | None = None) -> None:
        del timeout

    client.close = closed  # type: ignore[attr-defined]
    made = LoopThread(lambda: client)  # type: ignore[arg-type, return-value]
    yield made
    made.close(5.0)


@pytest.fixture
def blocking(cluster: Cluster, loop: LoopThread[Any]) -> Make:
    """What makes writers without `await`."""
    options = WriterOptions()

    def make() -> StreamWriter:
        return StreamWriter(context_of(cluster.client()), options)

    return lambda: SyncStreamWriter(loop, make, options)


@pytest.mark.parametrize(("payloads", "txids"), WRONG_COUNTS)
def test_another_number_of_ids_sends_nothing_without_await(
    blocking: Make, payloads: list[bytes], txids: list[int] | None
) -> None:
    with blocking() as writer:
        with pytest.raises(ConfigError):
            writer.append_many(payloads, txids=txids)
        assert writer.last_txid == -1
        assert writer.append_many(iter([b"a", b"b"]), txids=iter([5, 6]))[0] == DLSN(1, 0, 0)


def test_many_have_keys_and_headers_without_await(blocking: Make, cluster: Cluster) -> None:
    with blocking() as writer:
        for wrong, error in WRONG_BESIDE:
            with pytest.raises(error):
                writer.append_many([b"x", b"y", b"z"], **wrong)
        assert writer.last_txid == -1
        writer.append_many([b"x", b"y", b"z"], keys=KEYS, headers=iter(HEADERS))
    assert asyncio.run(parts_of(cluster)) == EXPECTED


def test_a_large_batch_waits_without_await(cluster: Cluster, loop: LoopThread[Any]) -> None:
    options = WriterOptions(unacked_bytes_max=1000, entry_bytes_max=10_000)
    make = functools.partial(StreamWriter, context_of(cluster.client()), options)
    with SyncStreamWriter(loop, make, options) as writer:
        for at in range(20):
            writer.append_nowait(b"x" * 100) if at % 5 else writer.append(b"x" * 100)
            writer.append_batch([b"y" * 2000] * 2)
        with pytest.raises(RecordTooLarge):
            writer.append_batch([b"y" * 5000] * 2)
        assert writer.last_txid == 59


def test_who_was_told_of_an_acknowledgement_has_its_room(
    cluster: Cluster, loop: LoopThread[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is quicker than the loop, which has told of the record and not counted it yet."""
    options = WriterOptions(unacked_bytes_max=1000, entry_bytes_max=10_000)
    make = functools.partial(StreamWriter, context_of(cluster.client()), options)
    counted, goes_on = SyncStreamWriter._settled, threading.Event()

    def late(writer: SyncStreamWriter, given_bytes: int, future: object) -> None:
        writer._changed.notify()  # others' news, as of a record behind it
        goes_on.wait(0.2)
        counted(writer, given_bytes, future)

    monkeypatch.setattr(SyncStreamWriter, "_settled", late)
    with SyncStreamWriter(loop, make, options) as writer:
        for _ in range(3):
            writer.append_batch([b"y" * 2000] * 2)
            writer.append_nowait(b"x" * 100).result()
        goes_on.set()


def test_a_bug_on_the_loop_ends_the_writer(blocking: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is told, and nothing is sent behind what was not."""
    writer = blocking()
    writer.open()
    kept = writer.append(b"kept", timeout=5.0)

    both_wait = threading.Event()

    def broken(*_args: object, **_options: object) -> None:
        both_wait.wait(5.0)  # else the second one may be refused, since the first was quicker
        raise InvariantError("a bug")

    monkeypatch.setattr(StreamWriter, "_admit", broken)
    pending = [writer.append_nowait(b"lost"), writer.append_nowait(b"lost, too")]
    both_wait.set()
    for one in pending:
        with pytest.raises(Error, match="a bug"):
            one.result(5.0)
    monkeypatch.undo()
    with pytest.raises(Error, match="a bug"):
        writer.append_nowait(b"behind it")
    with pytest.raises(Error, match="aborted"):
        writer.close()
    with blocking() as later:
        assert later.last_dlsn == kept


def test_what_is_no_record_is_not_acknowledged(
    cluster: Cluster, loop: LoopThread[Any], blocking: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking() as writer:
        writer.append_many([b"a", b"b", b"c"])
    cursor = SyncCursor(loop, lambda: Cursor(context_of(cluster.client()), "c", tail=False))
    with cursor:
        records = list(cursor)[:1] or []
    with SyncCursor(loop, lambda: Cursor(context_of(cluster.client()), "c")) as cursor:
        with pytest.raises(TypeError, match="int"):
            cursor.ack(5)  # type: ignore[arg-type]
        cursor.ack(records[0]).result()
        assert cursor.mark_seq == 1

        def broken(*_args: object, **_options: object) -> None:
            raise InvariantError("a bug")

        monkeypatch.setattr(Cursor, "ack", broken)
        cursor.ack(records[0])
        with pytest.raises(Error, match="a bug"):
            cursor.flush()
        with pytest.raises(Error, match="a bug"):
            cursor.ack(records[0])


async def test_a_gap_is_not_acknowledged(cluster: Cluster) -> None:
    async with Cursor(context_of(cluster.client()), "c") as cursor:
        with pytest.raises(TypeError, match="tuple"):
            cursor.ack((1, 2, 3))  # type: ignore[arg-type]


# One way to append: `append` waits for room and durability, `append_nowait` and `ready` are for
# pipelines.


WAIT_S = 10.0
SMALL = 100


async def harness(**options: object) -> tuple[Cluster, HeldAppends, StreamWriter]:
    plan = HeldAppends()
    cluster, _ = await cluster_with_stream(plan)
    writer = StreamWriter(
        context_of(cluster.client("former")),
        WriterOptions(unacked_bytes_max=SMALL, **options),  # type: ignore[arg-type]
    )
    return cluster, plan, writer


def begun(calls: Iterable[Coroutine[Any, Any, DLSN]]) -> list[asyncio.Task[DLSN]]:
    return [asyncio.create_task(call) for call in calls]


async def test_an_append_waits_for_room_in_the_order_of_the_calls() -> None:
    """INV-S5."""
    cluster, plan, writer = await harness()
    async with writer:
        plan.go.clear()
        pending = begun(writer.append(b"%03d" % at + bytes(50)) for at in range(40))
        batch = begun([writer.append_batch([b"040", b"041"])])
        await asyncio.sleep(0)
        with pytest.raises(BufferFull, match=r"ready\(\)"):
            writer.append_nowait(b"may not pass those that wait")
        plan.go.set()
        positions = await asyncio.wait_for(asyncio.gather(*pending, *batch), WAIT_S)
        assert positions == sorted(positions)
        assert await writer.append_nowait(b"at last") > positions[-1]
    found = await payloads_of(cluster)
    assert [payload[:3] for _, _, payload in found[:-1]] == [b"%03d" % at for at in range(42)]


async def test_so_many_appends_may_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-B1."""
    monkeypatch.setattr(stream_writer, "WAITING_MAX", 3)
    _, plan, writer = await harness()
    async with writer:
        plan.go.clear()
        pending = begun(writer.append(one) for one in (bytes(SMALL), b"x", b"x", b"x"))
        await asyncio.sleep(0)
        with pytest.raises(BufferFull, match="3 appends wait"):
            await writer.append(b"x")
        plan.go.set()
        await asyncio.wait_for(asyncio.gather(*pending), WAIT_S)


@pytest.mark.parametrize(("ahead", "outcome"), [(0, "unknown"), (3, "not_written")])
async def test_an_append_that_takes_too_long_says_what_became_of_it(
    ahead: int, outcome: str
) -> None:
    _, plan, writer = await harness()
    async with writer:
        plan.go.clear()
        before = begun(writer.append(bytes(SMALL)) for _ in range(ahead))
        await asyncio.sleep(0)
        with pytest.raises(QuorumTimeout) as caught:
            await writer.append(b"late", timeout=0.01)
        assert caught.value.outcome == outcome
        with pytest.raises(QuorumTimeout):
            await writer.flush(timeout=0.01)
        plan.go.set()
        await asyncio.wait_for(asyncio.gather(*before), WAIT_S)
        plan.go.clear()
        slow = asyncio.create_task(writer.append(b"goes on", timeout=WAIT_S))
        await asyncio.sleep(0)
        await writer.ready()
        beside = writer.append_nowait(b"one that is taken holds up no other")
        plan.go.set()
        assert await slow < await asyncio.wait_for(beside, WAIT_S)


async def test_flush_waits_for_appends_that_wait_for_room() -> None:
    _, plan, writer = await harness()
    async with writer:
        plan.go.clear()
        pending = begun(writer.append(bytes(SMALL)) for _ in range(10))
        flushing = asyncio.create_task(writer.flush())
        plan.go.set()
        last = await asyncio.wait_for(flushing, WAIT_S)
        assert (
            last == await pending[-1] == writer.last_dlsn
            and writer.last_txid == 9
            and not writer.unacked_bytes
        )


async def test_a_close_that_takes_too_long_ends_the_writer() -> None:
    _, plan, writer = await harness()
    await writer.open()
    plan.go.clear()
    pending = writer.append_nowait(b"x")
    with pytest.raises(QuorumTimeout) as caught:
        await writer.close(timeout=0.01)
    assert caught.value.outcome == "unknown"
    plan.go.set()
    with pytest.raises(fastbk.errors.Error):
        await asyncio.wait_for(pending, WAIT_S)


async def turns_during(calls: int, ready: Callable[[], object]) -> int:
    """Return how often another task ran during so many calls of `ready`."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(calls):
        await ready()  # type: ignore[misc]
    task.cancel()
    return turns


async def test_a_loop_of_ready_lets_other_tasks_run() -> None:
    """A loop of `drain` once stalled all others for half a second: it never yielded while there was room."""
    _, _, writer = await harness()
    async with writer:
        assert await turns_during(5 * CALLS_PER_TURN, writer.ready) >= 5
    async with fake_cluster() as (client, _, _), await client.create_ledger() as ledger:
        assert await turns_during(5 * LEDGER_CALLS_PER_TURN, ledger.ready) >= 5


@pytest.mark.filterwarnings("error")
async def test_an_append_that_nobody_awaits_names_the_line_that_called_it() -> None:
    """It appends nothing. The warning comes where the append is let go, which may be anywhere."""
    cluster, _, writer = await harness()
    async with writer, fake_cluster() as (client, _, _), await client.create_ledger() as ledger:
        line = inspect.getlineno(inspect.currentframe()) + 2  # type: ignore[arg-type]
        forgotten = [
            writer.append(b"x"),
            writer.append(b"x", timeout=1),
            writer.append_batch([b"x", b"y"]),
            writer.append_many([b"x"]),
            ledger.append(b"x"),
            ledger.append(b"x", timeout=1),
            ledger.append_many([b"x"]),
        ]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            forgotten.clear()
            gc.collect()
        said = sorted(str(one.message).partition("\n")[0] for one in told)
        assert said == sorted(
            f"coroutine '{name} (called at {__file__}:{line + at})' was never awaited"
            for at, name in enumerate(
                ["StreamWriter.append"] * 2
                + ["StreamWriter.append_batch", "StreamWriter.append_many"]
                + ["LedgerWriter.append"] * 2
                + ["LedgerWriter.append_many"]
            )
        )
        assert {one.category for one in told} == {RuntimeWarning}
        assert writer.last_txid == -1 and ledger.last_add_confirmed == -1
    assert await payloads_of(cluster) == []


def test_former_names_are_gone() -> None:
    """They were deprecated in 0.2."""
    for kind, name in [
        (fastbk.StreamWriter, "drain"),
        (fastbk.sync.StreamWriter, "drain"),
        (fastbk.Stream, "tail"),
        (fastbk.sync.Stream, "tail"),
        (fastbk.LedgerWriter, "tell_last_add_confirmed"),
        (fastbk.sync.LedgerWriter, "tell_last_add_confirmed"),
    ]:
        assert not hasattr(kind, name)


# A second `close` waits for the first one, and says what that one says.


class Held(Plan):
    """Calls of one kind wait until they may go on; then they fail, if they are to."""

    def __init__(self, what: str) -> None:
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.error: Exception | None = None
        self._what = what

    async def before(self, client: FakeClient, what: str) -> None:
        if what == self._what:
            await self.may_go_on.wait()
            if self.error is not None:
                raise self.error


async def held_writer() -> tuple[Held, StreamWriter]:
    """A writer that has appended a record, and whose next appends wait."""
    plan = Held("append")
    cluster, _ = await cluster_with_stream(plan)
    writer = writer_of(cluster)
    await writer.open()
    await writer.append(b"0")
    plan.may_go_on.clear()
    return plan, writer


async def _turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_second_close_of_a_writer_waits_for_what_the_first_one_flushes() -> None:
    plan, writer = await held_writer()
    late = writer.append_nowait(b"1")
    first = asyncio.ensure_future(writer.close())
    await _turns()
    second = asyncio.ensure_future(writer.close())
    await _turns()
    assert not first.done() and not second.done()
    plan.may_go_on.set()
    await asyncio.wait_for(asyncio.gather(first, second), 10)
    assert late.done()
    await writer.close()


async def test_both_closes_of_a_writer_raise_what_went_wrong() -> None:
    plan, writer = await held_writer()
    plan.error = MetadataUnavailable("whatever")
    writer.append_nowait(b"1")
    closing = [asyncio.ensure_future(writer.close()) for _ in range(3)]
    await _turns()
    plan.may_go_on.set()
    ends = await asyncio.gather(*closing, return_exceptions=True)
    assert [type(end) for end in ends] == [WriterFailed] * 3
    assert len({id(end) for end in ends}) == 3, "each has an exception of its own"
    with pytest.raises(WriterFailed):
        await writer.close()


async def test_whoever_gives_up_a_close_that_others_wait_for_does_not_end_theirs() -> None:
    plan, writer = await held_writer()
    late = writer.append_nowait(b"1")
    first = asyncio.ensure_future(writer.close())
    await _turns()
    with pytest.raises(QuorumTimeout):
        await writer.close(timeout=0.01)
    plan.may_go_on.set()
    await asyncio.wait_for(first, 10)
    assert (await late).entry == 1


async def test_a_second_close_of_a_cursor_waits_until_what_was_acknowledged_is_kept() -> None:
    plan = Held("metadata.change")
    cluster, _ = await cluster_with_stream(plan)
    records = await filled(cluster, [3])
    cursor = Cursor(context_of(cluster.client()), "c", flush_interval=60)
    await cursor.open()
    plan.may_go_on.clear()
    cursor.ack(records[1])
    first = asyncio.ensure_future(cursor.close())
    await _turns()
    second = asyncio.ensure_future(cursor.close())
    await _turns()
    assert not first.done() and not second.done()
    plan.may_go_on.set()
    await asyncio.wait_for(asyncio.gather(first, second), 10)
    async with Cursor(context_of(cluster.client()), "c") as again:
        assert again.mark_seq == 2


# Whatever is appended, rolled and away: appends go on (S13), and a tailing reader has all of it
# by itself (S16).


PATIENCE_S = 10.0
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("batch"), st.integers(1, 5)),
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("away"), st.integers(1, 30)),
        st.tuples(st.just("turns"), st.integers(1, 20)),
    ),
    min_size=1,
    max_size=12,
)


class Away(Plan):
    """Metadata is away, while told so."""

    def __init__(self) -> None:
        self.is_away = False

    async def before(self, client: FakeClient, what: str) -> None:
        if self.is_away and what.startswith("metadata"):
            raise MetadataUnavailable("it is away")


async def _read(reader: StreamReader, count: int) -> list[int]:
    """Return the ids of what comes, in the time that it may take."""
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            chunk = await reader.read()
            assert isinstance(chunk, Chunk)
            found += chunk.txids()
    return found


async def _history(steps: list[tuple[str, int]]) -> None:
    plan = Away()
    cluster, context = await cluster_with_stream(plan)
    txid = 0
    async with writer_of(cluster, StreamPolicy(roll_bytes=600)) as writer:
        await writer.append(b"the first one makes a segment")
        async with StreamReader(context) as reader:
            assert await _read(reader, 1) == [0]
            for step, count in steps:
                begin = txid
                if step == "roll":
                    await writer.roll()
                elif step == "turns":
                    for _ in range(count):
                        await asyncio.sleep(0)
                else:
                    plan.is_away = step == "away"
                    futures: list[asyncio.Future[DLSN]] = []
                    if step == "batch":
                        futures.append(writer.append_batch_nowait([bytes(50)] * count))
                    else:
                        futures += [writer.append_nowait(bytes(100)) for _ in range(count)]
                    txid += count
                    await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
                    plan.is_away = False
                # Nothing more is appended: what is acknowledged comes into sight by itself.
                assert await _read(reader, txid - begin) == list(range(begin + 1, txid + 1))


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_what_is_acknowledged_is_seen_without_another_append(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (read_ahead, segment_lifecycle):
            patch.setattr(module, "AGAIN_S", 0.001)
            patch.setattr(module, "AGAIN_S_MAX", 0.01)
        asyncio.run(_history(steps))


def _hidden(cluster: Cluster) -> list[int]:
    """Return how many acknowledged entries of each ledger readers cannot see at this moment."""
    return [ledger.acknowledged - ledger.visible for ledger in cluster.ledgers.values()]


@pytest.mark.parametrize("tasks", [1, 2, 30])
async def test_readers_see_a_record_before_its_appender_goes_on(tasks: int) -> None:
    """INV-S17: whatever the appender does then, such as to keep the loop for itself."""
    cluster, _ = await cluster_with_stream()
    async with writer_of(cluster, StreamPolicy(roll_bytes=2000), entries_in_flight=3) as writer:
        await writer.append(b"the first one makes a segment")

        async def append(number: int) -> None:
            for at in range(10):
                await writer.append(b"%d" % number * (1 + at))
                assert not any(_hidden(cluster))

        await asyncio.gather(*map(append, range(tasks)))


class _Stop(Exception):
    pass


@pytest.mark.parametrize("publish", ["immediate", "piggyback"])
async def test_readers_see_what_a_block_that_failed_has_appended(publish: str) -> None:
    """INV-S17"""
    cluster, context = await cluster_with_stream()
    with suppress(_Stop):
        async with writer_of(cluster, publish=publish) as writer:
            await writer.append(b"0")
            raise _Stop
    async with StreamReader(context) as reader:
        assert await _read(reader, 1) == [0]
