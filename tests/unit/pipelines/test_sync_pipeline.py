"""Pipelines without `await`, on ledgers in memory: the transform runs in the caller's thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

import fastbk.sync
from fastbk.client.loop_thread import LoopThread
from fastbk.errors import ClientClosed, ConfigError, WrongType
from fastbk.pipelines.pipeline import Output
from fastbk.pipelines.sync_pipeline import SyncPipeline, sync_pipeline
from fastbk.stream.records import Record
from fastbk.stream.stream import Stream
from fastbk.stream.sync import SyncStream
from tests.fixtures.fake_ledgers import Cluster, FakeClient
from tests.fixtures.streams import context_of, new_stream, records_of


class Harness:
    """A cluster in memory with streams, and a loop in a thread."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.client = self.cluster.client()
        self.client.close = self._closed  # type: ignore[attr-defined]
        self.loop: LoopThread[Any] = LoopThread(lambda: cast("Any", self.client))
        for name in ("a1", "b1", "b2"):
            self.loop.call(lambda name=name: new_stream(self.cluster, name))  # type: ignore[misc]

    async def _closed(self, **_: object) -> None:
        """Nothing has to be closed."""

    def stream(self, name: str) -> SyncStream:
        def found() -> Stream:
            client: FakeClient = self.client
            context = context_of(client, stream_id=name)
            return Stream(cast("Any", None), ("test",), name, context)

        return SyncStream(self.loop, found, name)

    def write(self, first: int, count: int) -> None:
        with self.stream("a1").writer() as writer:
            for number in range(first, first + count):
                writer.append(b"%d" % number)

    def payloads(self, name: str) -> list[bytes]:
        return [record.value for record in self.loop.call(lambda: records_of(self.cluster, name))]


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    made.loop.close(10.0)


def test_the_transform_runs_in_the_callers_thread(harness: Harness) -> None:
    threads = set()

    def each(record: Record) -> bytes:
        threads.add(threading.get_ident())
        return record.value

    for first in (0, 5):
        harness.write(first, 5)
        with sync_pipeline(
            source=harness.stream("a1"), sinks=harness.stream("b1"), transform=each
        ) as pipeline:
            assert pipeline.run(until_caught_up=True).records == 5
            assert pipeline.stats().outputs == 5
            assert pipeline.positions["b1"]["test/a1"].segment == 1 + first // 5
    assert harness.payloads("b1") == [b"%d" % number for number in range(10)]
    assert threads == {threading.get_ident()}


def test_what_a_transform_raises_reaches_the_caller_behind_what_is_stored(harness: Harness) -> None:
    harness.write(0, 4)

    def fragile(record: Record) -> list[Output]:
        if record.seq == 2:
            raise ZeroDivisionError
        return [Output(record.value, sink="b2")]

    sinks = [harness.stream(name) for name in ("b1", "b2")]
    source = harness.stream("a1")
    with (
        pytest.raises(ZeroDivisionError),
        sync_pipeline(
            source=[source], sinks=sinks, transform=fragile, deterministic=True
        ) as pipeline,
    ):
        pipeline.run()
    with pytest.raises(ClientClosed):
        pipeline.run()
    with sync_pipeline(
        source=source, sinks=harness.stream("b2"), transform_many=lambda chunk: [b"x"] * len(chunk)
    ) as again:
        again.run(until_caught_up=True)
    assert harness.payloads("b2") == [b"0", b"1", b"x", b"x"]


def test_another_thread_stops_it(harness: Harness) -> None:
    with sync_pipeline(
        source=harness.stream("a1"),
        sinks=harness.stream("b1"),
        transform=lambda record: record.value,
    ) as pipeline:
        thread = threading.Thread(target=pipeline.run)
        thread.start()
        pipeline.stop()
        thread.join(10)
        assert not thread.is_alive()


def test_wrong_arguments_are_told_at_once(harness: Harness) -> None:
    source, sink = harness.stream("a1"), harness.stream("b1")
    with pytest.raises(ConfigError, match="transform"):
        sync_pipeline(source=source, sinks=sink)

    async def waiting(record: Record) -> bytes:
        return record.value

    harness.write(0, 1)
    with (
        pytest.raises(WrongType, match="async def"),
        sync_pipeline(source=source, sinks=sink, transform=waiting) as pipeline,  # type: ignore[arg-type]
    ):
        pipeline.run(until_caught_up=True)
    with pytest.raises(ClientClosed):
        sync_pipeline(source=source, sinks=sink, transform=lambda _: None).run()


def test_the_public_names_are_there() -> None:
    assert fastbk.sync.pipeline is sync_pipeline
    assert fastbk.sync.Pipeline is SyncPipeline
