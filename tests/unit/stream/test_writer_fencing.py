"""What a fenced writer's appends fail with: a client that follows the errors leaves the stream to the new writer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import pytest

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import (
    AppendUnknown,
    Error,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    NoSuchLedger,
    NotEnoughBookies,
    WriterFailed,
    WriterFenced,
)
from fastbk.stream.options import WriterOptions
from fastbk.stream.sync import SyncStreamWriter
from fastbk.stream.sync_appends import PendingRecord
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import (
    cluster_with_stream,
    context_of,
    new_stream,
    records_of,
    writer_of,
)
from tests.fixtures.wait import wait_until

if TYPE_CHECKING:
    from fastbk.stream.positions import DLSN

WAIT_S = 10.0


class HeldAppends(Plan):
    """Appends wait while `holds`, or fail with `error`."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.error: Error | None = None
        self.times = 1_000_000

    async def before(self, client: FakeClient, what: str) -> None:
        if what == "append":
            await self.go.wait()
            if self.error is not None and client.name == "former" and self.times > 0:
                self.times -= 1
                raise self.error


def former_of(cluster: Cluster, **options: object) -> StreamWriter:
    """Return the writer that is to be fenced."""
    return StreamWriter(context_of(cluster.client("former")), WriterOptions(**options))  # type: ignore[arg-type]


async def error_of(future: asyncio.Future[DLSN]) -> Error:
    with pytest.raises(Error) as caught:
        await asyncio.wait_for(future, WAIT_S)
    return caught.value


async def test_appends_in_flight_are_fenced_with_an_unknown_outcome() -> None:
    plan = HeldAppends()
    cluster, _ = await cluster_with_stream(plan)
    former = former_of(cluster, entries_in_flight=2, batch_bytes=1)
    await former.open()
    await former.append(b"kept")
    plan.go.clear()
    sent = [former.append_nowait(b"sent"), former.append_nowait(b"sent")]
    await asyncio.sleep(0)
    unsent = former.append_nowait(b"unsent")
    async with writer_of(cluster) as later:
        plan.go.set()
        for future in sent:
            error = await error_of(future)
            assert type(error) is WriterFenced and error.outcome == "unknown"
            assert isinstance(error.__cause__, LedgerFenced), "the cause is kept"
            assert "may be kept" in str(error) and "look at last_txid" not in str(error)
        error = await error_of(unsent)
        assert type(error) is WriterFenced and error.outcome == "not_written"
        for call in (
            lambda: former.append_nowait(b"x"),
            lambda: former.append_batch_nowait([b"x"]),
        ):
            with pytest.raises(WriterFenced) as refused:
                call()
            assert refused.value.outcome == "not_written"
            assert isinstance(refused.value.__cause__, LedgerFenced)
        with pytest.raises(WriterFenced) as flushed:
            await former.flush()
        assert flushed.value.outcome == "unknown"
        assert isinstance(former.failure, WriterFenced)
        await later.append(b"the new writer goes on")
    former.abort()


@pytest.mark.parametrize(
    "cause",
    [
        LedgerClosed("closed by another client", outcome="unknown"),
        LedgerFenced("is being recovered"),
        NoSuchLedger("deleted, since it was empty"),
        MetadataConflict("another ensemble"),
    ],
)
async def test_only_another_writer_of_the_stream_fences(cause: Error) -> None:
    """INV-S16. Who empties a bookie closes ledgers, too; the writer said that another one had opened the stream."""
    plan = HeldAppends()
    cluster, _ = await cluster_with_stream(plan)
    former = former_of(cluster)
    await former.open()
    await former.append(b"a")
    plan.error, plan.times = cause, 2
    futures = [former.append_nowait(b"b"), former.append_nowait(b"c")]
    positions = await asyncio.wait_for(asyncio.gather(*futures), WAIT_S)
    assert positions == sorted(positions)
    await former.append(b"d")
    plan.go.clear()
    last = former.append_nowait(b"e")
    async with writer_of(cluster):
        plan.error, plan.times = cause, 2
        plan.go.set()
        error = await error_of(last)
        assert type(error) is WriterFenced and error.outcome == "unknown"
        assert type(error.__cause__) is type(cause)
        former.abort()
    assert [one.payload for one in await records_of(cluster)] == [b"a", b"b", b"c", b"d"]


async def test_a_takeover_that_metadata_shows_first_fences_what_is_in_flight() -> None:
    plan = HeldAppends()
    cluster, _ = await cluster_with_stream(plan)
    former = former_of(cluster)
    await former.open()
    await former.append(b"kept")
    plan.go.clear()
    sent = former.append_nowait(b"sent")
    await asyncio.sleep(0)
    assert former._engine is not None
    former._engine.fail(MetadataConflict("the stream has another epoch"))
    error = await error_of(sent)
    assert type(error) is WriterFenced and error.outcome == "unknown"
    assert isinstance(error.__cause__, MetadataConflict)
    plan.go.set()
    former.abort()


async def test_other_failures_are_unknown_as_before_and_keep_their_cause() -> None:
    plan = HeldAppends()
    cluster, _ = await cluster_with_stream(plan)
    former = former_of(cluster)
    await former.open()
    plan.error = NotEnoughBookies("away", replicas={"a": "silent"})
    error = await error_of(former.append(b"x"))
    assert type(error) is AppendUnknown and isinstance(error.__cause__, NotEnoughBookies)
    with pytest.raises(WriterFailed) as refused:
        former.append_nowait(b"y")
    assert refused.value.outcome == "not_written"
    assert isinstance(refused.value.__cause__, NotEnoughBookies)
    with pytest.raises(WriterFailed) as flushed:
        await former.flush()
    assert flushed.value.outcome == "unknown"
    former.abort()


async def test_two_clients_that_follow_the_errors_leave_one_writer() -> None:
    """Each opens the stream again after AppendUnknown, as it is told, and stops when it is fenced."""
    cluster, _ = await cluster_with_stream(HeldAppends())
    opened: list[str] = []
    causes: list[Error] = []
    is_enough = asyncio.Event()

    async def client(name: str, first: Callable[[], object]) -> None:
        while True:
            opened.append(name)
            writer = StreamWriter(context_of(cluster.client(name)), WriterOptions())
            await writer.open()
            first()
            try:
                while not is_enough.is_set():
                    await writer.append(name.encode())
                await writer.close()
                return
            except AppendUnknown as error:
                causes.append(error)
            except WriterFenced:
                return
            finally:
                writer.abort()

    is_begun = asyncio.Event()
    old = asyncio.ensure_future(client("old", is_begun.set))
    await asyncio.wait_for(is_begun.wait(), WAIT_S)
    new = asyncio.ensure_future(client("new", lambda: None))
    await asyncio.wait_for(old, WAIT_S)
    is_enough.set()
    await asyncio.wait_for(new, WAIT_S)
    assert (opened, causes) == (["old", "new"], [])


@pytest.mark.parametrize("is_settled", [True, False], ids=["settled", "before_it_is_settled"])
def test_the_blocking_writer_says_the_same(
    is_settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_settled:
        monkeypatch.setattr(SyncStreamWriter, "_settled", lambda *_: None)
    plan = HeldAppends()
    cluster = Cluster(plan)
    loop = LoopThread(lambda: cluster.client("former"))  # type: ignore[arg-type, return-value]
    try:
        loop.call(lambda: new_stream(cluster))
        writer = SyncStreamWriter(loop, lambda: former_of(cluster), WriterOptions())
        writer.open()
        writer.append(b"kept", timeout=WAIT_S)
        loop.call_plain(plan.go.clear)
        sent: PendingRecord = writer.append_nowait(b"sent")
        wait_until(lambda: sent._future is not None, "the append was sent")
        loop.call(lambda: _take_over(cluster))
        loop.call_plain(plan.go.set)
        with pytest.raises(WriterFenced) as fenced:
            sent.result(WAIT_S)
        assert fenced.value.outcome == "unknown"
        assert isinstance(fenced.value.__cause__, LedgerFenced)
        with pytest.raises(WriterFenced) as refused:
            writer.append_nowait(b"x")
        assert refused.value.outcome == "not_written"
        assert isinstance(refused.value.__cause__, LedgerFenced)
        writer.abort()
    finally:
        loop.close(WAIT_S)


Told = Callable[[StreamWriter], Awaitable[object]]


async def _told_by_flush(writer: StreamWriter) -> object:
    writer.append_nowait(b"x")
    return await writer.flush()


async def _told_by_nowait(writer: StreamWriter) -> object:
    with suppress(WriterFenced):
        await writer.append_nowait(b"x")
    return writer.append_nowait(b"x")


@pytest.mark.parametrize(
    "tell",
    [
        lambda writer: writer.append(b"x"),
        lambda writer: writer.append(b"x", timeout=WAIT_S),
        lambda writer: writer.append_batch([b"x"]),
        lambda writer: writer.append_many([b"x"]),
        _told_by_flush,
        _told_by_nowait,
    ],
)
async def test_the_end_of_a_block_says_nothing_that_was_said_before(tell: Told) -> None:
    """An application that was told that it is fenced, and stops, shuts down in order."""
    cluster, _ = await cluster_with_stream()
    async with former_of(cluster) as former:
        await former.append(b"kept")
        await _take_over(cluster)
        with pytest.raises(WriterFenced):
            await tell(former)
    with pytest.raises(WriterFenced):
        await former.close()  # who calls this asks for it
    with pytest.raises(WriterFenced, match="so it was") as caught:
        async with former_of(cluster) as former:
            await _take_over(cluster)
            await former.flush()
            try:
                await former.append(b"x")
            except WriterFenced as error:
                raise WriterFenced("so it was") from error
    assert caught.value.__context__ is caught.value.__cause__, "the end raised nothing"


async def test_the_end_of_a_block_says_what_nobody_was_told() -> None:
    cluster, _ = await cluster_with_stream()
    with pytest.raises(WriterFenced):
        async with former_of(cluster) as former:
            await former.append(b"kept")
            await _take_over(cluster)
            former.append_nowait(b"lost")
    with pytest.raises(WriterFenced):
        async with former_of(cluster) as former:
            await former.append(b"kept")
            await _take_over(cluster)


def test_without_await_the_end_of_a_block_says_it_once() -> None:
    cluster = Cluster()
    loop = LoopThread(lambda: cluster.client("former"))  # type: ignore[arg-type, return-value]
    try:
        loop.call(lambda: new_stream(cluster))
        for is_told in (True, False):
            made = SyncStreamWriter(loop, lambda: former_of(cluster), WriterOptions())
            with nullcontext() if is_told else pytest.raises(WriterFenced), made as writer:
                writer.append(b"kept", timeout=WAIT_S)
                loop.call(lambda: _take_over(cluster))
                pending = writer.append_nowait(b"x")
                if is_told:
                    with pytest.raises(WriterFenced):
                        pending.result(WAIT_S)
    finally:
        loop.close(WAIT_S)


async def _take_over(cluster: Cluster) -> None:
    writer = writer_of(cluster)
    await writer.open()
    writer.abort()
