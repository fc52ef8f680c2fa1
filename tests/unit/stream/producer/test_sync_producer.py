"""The producer of `fastbk.sync`: several threads append with one, and each is told what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import fastbk.sync
from fastbk.errors import (
    BufferFull,
    ClientClosed,
    ConfigError,
    ProducerFenced,
    QuorumTimeout,
    RecordTooLarge,
)
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.stream.positions import DLSN
from fastbk.stream.producer.sync_producer import SyncProducer
from tests.fixtures.fake_service import FakeService, FakeStream, fake_services


@contextmanager
def producer_of(
    store: MemoryStore, name: str | None = "till-1", **options: int
) -> Iterator[SyncProducer]:
    with fastbk.sync.connect(store) as client:
        stream = client.namespace("shop").stream("orders")
        with stream.producer(name, **options) as producer:  # type: ignore[arg-type]
            yield producer


async def run(test: Callable[[MemoryStore, FakeService], None]) -> FakeStream:
    """Run a test's threads beside the service."""
    async with fake_services() as (_, (service,), stream, store):
        await asyncio.to_thread(test, store, service)
        return stream


async def test_the_issues_program() -> None:
    """As it stands there, but for how many; the second run goes on behind the first."""

    def program(store: MemoryStore, _: FakeService) -> None:
        for end in (700, 1000):
            with producer_of(store) as producer:
                for number in range(producer.last_number + 1, end):
                    producer.ready()
                    producer.append_nowait(b"%d" % number, key=b"k", number=number)
                producer.flush()
                assert producer.last_number == end - 1

    stream = await run(program)
    assert stream.records("till-1") == [(number, b"%d" % number) for number in range(1000)]
    assert len(stream.log) < 200, "records that queue up go together"


async def test_threads_append_with_one_producer() -> None:
    def program(store: MemoryStore, _: FakeService) -> None:
        with producer_of(store, None) as producer, ThreadPoolExecutor(4) as pool:
            assert producer.name.startswith("~")

            def append(thread: int) -> None:
                for number in range(100):
                    producer.append(b"%d %d" % (thread, number))

            list(pool.map(append, range(4)))
            assert producer.append_batch([b"a", b"b"]) == producer.last_dlsn._replace(slot=0)  # type: ignore[union-attr]
            first, last = producer.append_many([b"c", b"d"])
            assert first is not None and last is not None and first < last
            assert producer.stats().records == 404

    stream = await run(program)
    (name,) = {name for name, _, _ in stream.log}
    records = stream.records(name)
    assert [number for number, _ in records] == list(range(404))
    for thread in range(4):
        mine = [payload for _, payload in records if payload.startswith(b"%d " % thread)]
        assert mine == [b"%d %d" % (thread, number) for number in range(100)]


async def test_what_is_wrong_is_said_in_the_callers_thread() -> None:
    def program(store: MemoryStore, service: FakeService) -> None:
        with producer_of(store, unacked_bytes_max=1000) as producer:
            assert producer.append(b"", number=7) == DLSN(1, 0, 0)
            for wrong in (7, 3, -1):
                with pytest.raises(ConfigError, match="last_number"):
                    producer.append_nowait(b"", number=wrong)
            with pytest.raises(ConfigError):
                producer.append_batch([b"", b""], numbers=[9, 9])
            with pytest.raises(RecordTooLarge):
                producer.append_nowait(bytes(70_000))
            service.faults.silent = True
            pending = producer.append_nowait(b"")
            with pytest.raises(QuorumTimeout):
                pending.result(0.01)
            with pytest.raises(BufferFull):
                for _ in range(100):
                    producer.append_nowait(bytes(100))
            with pytest.raises(BufferFull):
                producer.ready(timeout=0.01)
            with pytest.raises(QuorumTimeout) as told:
                producer.append(b"", timeout=0.01)
            assert told.value.outcome == "not_written"
            service.faults.silent = False
            producer._loop.call_plain(lambda: None)
            cut(service)
            assert pending.result() is not None or producer.last_number >= 8
            producer.ready()
        with pytest.raises(ClientClosed):
            producer.append(b"")

    loop = asyncio.get_running_loop()

    def cut(service: FakeService) -> None:
        loop.call_soon_threadsafe(service.cut)

    await run(program)


async def test_a_fenced_producer_says_it_once() -> None:
    def program(store: MemoryStore, _: FakeService) -> None:
        with producer_of(store) as first:
            first.append(b"")
            with producer_of(store) as second:
                second.append(b"")
                with pytest.raises(ProducerFenced):
                    first.append(b"")
                with pytest.raises(ProducerFenced) as told:
                    first.append_nowait(b"")
                assert told.value.outcome == "not_written"
        with pytest.raises(ProducerFenced), producer_of(store) as first, producer_of(store):
            first.append_nowait(b"")

    stream = await run(program)
    assert [number for number, _ in stream.records("till-1")] == [0, 1]
