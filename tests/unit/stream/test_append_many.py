"""Many records in one call, with and without `await`; what the loop of the calls without `await` meets is told."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import (
    BufferFull,
    ConfigError,
    Error,
    RecordTooLarge,
    TxidOutOfOrder,
    WrongType,
)
from fastbk.invariant import InvariantError
from fastbk.meta.records import Change
from fastbk.stream.chain import Chain, put_chain
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.sync_cursor import SyncCursor
from fastbk.stream.options import WriterOptions
from fastbk.stream.paths import chain_path
from fastbk.stream.positions import DLSN
from fastbk.stream.sync import SyncStreamWriter
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import STREAM, context_of, new_stream, records_of, writer_of

WRONG_COUNTS = [([b"a", b"b"], [1]), ([b"a"], [1, 2]), ([], []), ([], None)]


async def test_the_first_and_last_position_of_many() -> None:
    cluster = Cluster()
    await new_stream(cluster)
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
    cluster = Cluster()
    await new_stream(cluster)
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
    cluster = Cluster()
    await new_stream(cluster)
    async with writer_of(cluster) as writer:
        for wrong, error in WRONG_BESIDE:
            with pytest.raises(error):
                await writer.append_many([b"x", b"y", b"z"], **wrong)
        assert writer.last_txid == -1
        await writer.append_many([b"x", b"y", b"z"], keys=iter(KEYS), headers=HEADERS)
    assert await parts_of(cluster) == EXPECTED


async def test_a_batch_larger_than_the_room_that_is_left_waits_until_it_fits() -> None:
    cluster = Cluster()
    await new_stream(cluster)
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
