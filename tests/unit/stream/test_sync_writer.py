"""The writer without `await`, on ledgers in memory: order, room, refusals, ends, and a forked child. INV-S5."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import (
    BufferFull,
    ClientClosed,
    ConfigError,
    Error,
    QuorumTimeout,
    RecordTooLarge,
    TxidOutOfOrder,
    WriterFenced,
)
from fastbk.meta.records import Change
from fastbk.stream.chain import Chain, put_chain
from fastbk.stream.chain_store import ChainStore
from fastbk.stream.context import StreamContext
from fastbk.stream.options import WriterOptions
from fastbk.stream.paths import chain_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Record, chunk_of
from fastbk.stream.sync import SyncStreamWriter
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.fork import exit_code_of_fork


class Stuck(Plan):
    """Appends wait until they are let go."""

    def __init__(self) -> None:
        self.is_stuck = False

    async def before(self, client: FakeClient, what: str) -> None:
        while what == "append" and self.is_stuck:
            await asyncio.sleep(0.001)


class Harness:
    """A cluster in memory with one stream, and a loop in a thread."""

    def __init__(self) -> None:
        self.plan = Stuck()
        self.cluster = Cluster(self.plan)
        client = self.cluster.client()
        client.close = self._closed  # type: ignore[attr-defined]
        self.is_client_closed = False
        self.loop = LoopThread(lambda: client)  # type: ignore[arg-type, return-value]
        change = Change(chain_path("ab"), put_chain(Chain("ab")))
        self.loop.call(lambda: client.records.change(change))

    async def _closed(self, timeout: float | None = None) -> None:
        self.is_client_closed = True

    def context(self) -> StreamContext:
        async def current() -> StreamPolicy:
            return StreamPolicy()

        client = self.loop.client()
        return StreamContext(client, ChainStore(client.records, "ab", 10.0), "test/ab", current)

    def writer(self, options: WriterOptions | None = None) -> SyncStreamWriter:
        found = options or WriterOptions()
        return SyncStreamWriter(self.loop, lambda: StreamWriter(self.context(), found), found)

    def records(self) -> list[Record]:
        """Return all that a reader would find, once all is closed."""

        async def all_rows() -> list[Record]:
            chain = (await self.context().store.read()).chain
            found: list[Record] = []
            for row in chain.rows:
                datas = self.cluster.ledger(row.ledger_id).entries[: row.last_entry_id + 1]
                found += chunk_of(row.number, 0, datas, row.base_seq, row.base_txid)
            return found

        return self.loop.call(all_rows)


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    made.plan.is_stuck = False
    made.loop.close(5.0)


def test_records_are_kept_in_the_order_of_the_calls(harness: Harness) -> None:
    with harness.writer() as writer:
        pending = [
            writer.append_nowait(b"%d" % at, key=b"k", headers=[("n", b"v")]) for at in range(999)
        ]
        batch = writer.append_batch_nowait([b"a", b"b"], txids=[2000, 2001], keys=[b"x", None])
        first, last = writer.append_many([b"c", b"d"], txids=[3000, 3000])
        assert [one.result() for one in pending] == sorted(one.result() for one in pending)
        assert pending[998].result() < batch.result() < first < last == writer.last_dlsn
        writer.flush()
        assert (writer.last_txid, writer.unacked_bytes, writer.epoch) == (3000, 0, 1)
    found = harness.records()
    assert [bytes(one.payload) for one in found[:999]] == [b"%d" % at for at in range(999)]
    assert {(one.key, one.headers) for one in found[:999]} == {(b"k", (("n", b"v"),))}
    assert [(one.txid, one.key) for one in found[999:]] == [
        (2000, b"x"), (2001, None), (3000, None), (3000, None)
    ]  # fmt: skip
    assert [one.seq for one in found] == list(range(1003))


def test_many_threads_append_and_nothing_is_lost(harness: Harness) -> None:
    with harness.writer() as writer:

        def some(number: int) -> None:
            for at in range(200):
                writer.append_nowait(b"%d %d" % (number, at))

        threads = [threading.Thread(target=some, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert writer.flush() == writer.last_dlsn
    found = [bytes(one.payload).split() for one in harness.records()]
    assert len(found) == 1000
    for number in range(5):
        mine = [int(at) for who, at in found if int(who) == number]
        assert mine == list(range(200)), "the order of each thread's calls"


def test_a_wrong_record_is_refused_at_once_and_nothing_is_taken(harness: Harness) -> None:
    with harness.writer(WriterOptions(entry_bytes_max=1000)) as writer:
        writer.append_nowait(b"a", txid=7)
        with pytest.raises(TxidOutOfOrder):
            writer.append_nowait(b"b", txid=6)
        with pytest.raises(RecordTooLarge):
            writer.append_nowait(bytes(1000))
        with pytest.raises(ConfigError, match="at least one record"):
            writer.append_batch_nowait([])
        with pytest.raises(ConfigError, match="at least one record"):
            writer.append_many([])
        writer.append(b"c")
        assert writer.last_txid == 8
    assert [(one.txid, bytes(one.payload)) for one in harness.records()] == [(7, b"a"), (8, b"c")]


def test_an_append_waits_for_room_and_gives_up(harness: Harness) -> None:
    with harness.writer(WriterOptions(unacked_bytes_max=1000)) as writer:
        writer.append(b"first")
        harness.plan.is_stuck = True
        pending = writer.append_nowait(bytes(1000))
        with pytest.raises(BufferFull):
            writer.append_nowait(b"no")
        for call in (
            lambda: writer.append(b"no", timeout=0.05),
            lambda: writer.append_batch([b"no"], timeout=0.05),
        ):
            with pytest.raises(QuorumTimeout, match="not acknowledged after") as late:
                call()
            assert late.value.outcome == "not_written"
        with pytest.raises(BufferFull):
            writer.ready(timeout=0.05)
        with pytest.raises(QuorumTimeout):
            pending.result(0.05)
        assert not pending.done()
        threading.Timer(0.05, lambda: setattr(harness.plan, "is_stuck", False)).start()
        last = writer.append(b"waits, and there is room")
        assert pending.result() < last == writer.last_dlsn, "it is acknowledged when it returns"
        harness.plan.is_stuck = True
        with pytest.raises(QuorumTimeout) as late:
            writer.append(b"kept late", timeout=0.05)
        assert late.value.outcome == "unknown"
        harness.plan.is_stuck = False
    assert [len(one.payload) for one in harness.records()] == [5, 1000, 24, 9]


def test_who_is_fenced_is_told_and_takes_no_more(harness: Harness) -> None:
    old, new = harness.writer(), harness.writer()
    old.open()
    old.append(b"old")
    new.open()
    new.append(b"new")
    lost = old.append_nowait(b"too late")
    with pytest.raises(Error):
        lost.result()
    with pytest.raises(WriterFenced):
        old.append_nowait(b"never")
    with pytest.raises(WriterFenced):
        old.flush()
    old.abort()
    new.close()
    assert [bytes(one.payload) for one in harness.records()] == [b"old", b"new"]


def test_leaving_by_an_exception_aborts(harness: Harness) -> None:
    writer = harness.writer()
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError
    with pytest.raises(Error):
        writer.append_nowait(b"x")


def test_sealed_and_closed_take_no_more(harness: Harness) -> None:
    with harness.writer() as writer:
        writer.append_nowait(b"a")
        writer.roll()
        writer.append_nowait(b"b")
        assert writer.publish() == DLSN(2, 0, 0)
        assert writer.seal() == DLSN(2, 0, 0)
        with pytest.raises(ClientClosed):
            writer.append_nowait(b"c")
    with pytest.raises(Error, match="has ended"):
        harness.writer().open()


@pytest.mark.slow
def test_a_closed_loop_ends_waits_and_refuses(harness: Harness) -> None:
    writer = harness.writer()
    with pytest.raises(ClientClosed, match="not open"):
        writer.append_nowait(b"x")
    writer.open()
    writer.append(b"first")
    harness.plan.is_stuck = True
    pending = writer.append_nowait(b"x")
    threading.Timer(0.1, lambda: harness.loop.close(1.0)).start()
    with pytest.raises(ClientClosed):
        pending.result(30)
    with pytest.raises(ClientClosed):
        writer.append_nowait(b"x")
    with pytest.raises(ClientClosed):
        harness.loop.call_plain(lambda: None)
    harness.loop.close(1.0)
    assert harness.is_client_closed


def test_what_is_acknowledged_while_the_client_closes_ends_its_wait_at_once(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """The callback of the acknowledgement raised ClientClosed, which the loop logged, and woke nobody."""
    writer = harness.writer()
    writer.open()
    harness.plan.is_stuck = True
    pending = writer.append_nowait(b"under way")
    woken: list[bool] = []
    told = writer._changed.notify

    async def closed(timeout: float | None = None) -> None:
        harness.plan.is_stuck = False
        assert pending._future is not None
        await pending._future

    harness.loop.call_plain(lambda: setattr(harness.loop.client(), "close", closed))
    writer._changed.notify = lambda: (woken.append(pending.done()), told())  # type: ignore[assignment, func-returns-value]
    harness.loop.close(5.0)
    assert pending.result() == DLSN(1, 0, 0)
    assert woken == [True]
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []


def test_a_forked_child_is_refused(harness: Harness) -> None:
    with harness.writer() as writer:
        harness.plan.is_stuck = True
        pending = writer.append_nowait(b"x")
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            """A fork may come while another thread has the lock; the child has no such thread."""
            with writer._queue.lock:
                held.set()
                done.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()

        def child() -> int:
            signal.alarm(10)
            batch = lambda: writer.append_batch_nowait([b"y"])  # noqa: E731
            for call in (
                lambda: writer.append_nowait(b"y"), batch, pending.result, writer.ready, writer.flush
            ):  # fmt: skip
                try:
                    call()
                    return 1
                except ClientClosed:
                    pass
            return 0

        try:
            code = exit_code_of_fork(child)
        finally:
            done.set()
            holder.join()
        assert code == 0
        harness.plan.is_stuck = False
        assert pending.result() == DLSN(1, 0, 0)
