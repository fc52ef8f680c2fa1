"""`stats()` of writers, readers and cursors, and what OpenTelemetry's SDK collects of them, on a real cluster."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import fastbk
import fastbk.sync
from fastbk.observe.meter import CONSUMED, SENT, Latency
from fastbk.testing import LocalCluster
from tests.fixtures.metrics import collected
from tests.fixtures.wait import wait_until_async

SIZE, PENDING, BUFFERED = (f"fastbk.client.send.{name}" for name in ("size", "pending", "buffered"))
LAG, P99 = "fastbk.client.receive.lag", "fastbk.client.send.duration.p99"


def is_plausible(latency: Latency, count: int) -> bool:
    """Whether appends or reads took a time, of which the quantiles are quantiles."""
    return (
        latency.count == count
        and 0 < latency.p50_s <= latency.p99_s * 1.07 < 60
        and latency.total_s > 0
    )


async def test_a_ledgers_writer_and_reader_tell_their_figures(cluster: LocalCluster) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        async with await client.create_ledger(3, 3, 2) as writer:
            assert writer.stats().append_latency == Latency()
            await writer.append_many([b"x" * 100] * 50)
            futures = [writer.append_nowait(b"y") for _ in range(10)]
            assert (writer.stats().entries, writer.stats().entries_in_flight) == (50, 10)
            assert writer.stats().bytes_in_flight == 10
            await asyncio.gather(*futures)
            found = writer.stats()
            assert (
                found.entries,
                found.bytes,
                found.entries_in_flight,
                found.ensemble_changes,
            ) == (60, 5010, 0, 0)
            assert is_plausible(found.append_latency, 60)
        with pytest.raises(dataclasses.FrozenInstanceError):
            found.entries = 1  # type: ignore[misc]
        reader = await client.open_ledger(writer.ledger_id)
        assert len([one async for one in reader.read()]) == 60
        read = reader.stats()
        assert (read.last_known, read.entries, read.bytes, read.copies_skipped) == (59, 60, 5010, 0)
        assert is_plausible(read.read_latency, 1)


async def test_a_streams_writer_reader_and_cursor_tell_their_figures(
    cluster: LocalCluster, own_name: str
) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        namespace = client.namespace(own_name)
        await namespace.create(exist_ok=True)
        stream = namespace.stream("figures")
        async with stream.writer(create=True) as writer:
            futures = [writer.append_nowait(b"x" * 10, key=b"k") for _ in range(100)]
            waiting = writer.stats()
            assert (waiting.records, waiting.appends_in_flight, waiting.appends_waiting) == (
                0,
                100,
                0,
            )
            assert waiting.bytes_in_flight >= 1100
            await asyncio.gather(*futures)
            await writer.roll()
            await writer.append(b"behind it")
            found = writer.stats()
            assert (found.records, found.bytes, found.segments) == (101, 1109, found.segments)
            assert (found.appends_in_flight, found.bytes_in_flight, found.entries_resent) == (
                0,
                0,
                0,
            )
            assert found.segments >= 2 and is_plausible(found.append_latency, 101)
        async with stream.reader(tail=False) as reader:
            await wait_until_async(
                lambda: reader.stats().buffered_bytes > 0, "something was read ahead"
            )
            assert reader.stats().records == 0
            chunk = await reader.read(30)
            assert chunk is not None
            part = reader.stats()
            assert (part.records, part.lag.records >= 71 - 1) == (30, True)
            rest = [one async for one in reader]
            done = reader.stats()
            assert (done.records, len(rest), done.lag.records) == (101, 71, 0)
            assert (
                done.bytes > part.bytes > 300 and done.bytes_read > 0 and done.copies_skipped == 0
            )
            assert is_plausible(done.read_latency, done.read_latency.count)
        async with stream.cursor("c", tail=False) as cursor:
            first = await anext(aiter(cursor))
            assert isinstance(first, fastbk.Record)
            cursor.ack(first)
            told = cursor.stats()
            assert (told.mark_seq, told.ranges, told.gap_records) == (1, 0, 0)
            assert told.changes_unstored >= 1 and told.reader.records == 1
            assert told.reader.lag.records == cursor.lag.records == 100
            await cursor.flush()
            assert cursor.stats().changes_unstored == 0


def test_calls_without_await_tell_the_same(cluster: LocalCluster, own_name: str) -> None:
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        with client.create_ledger(3, 3, 2) as ledger:
            ledger.append(b"four")
            assert (ledger.stats().entries, ledger.stats().bytes) == (1, 4)
            assert is_plausible(ledger.stats().append_latency, 1)
        reading = client.open_ledger(ledger.ledger_id)
        assert [len(one.data) for one in reading.read()] == [4]
        assert (reading.stats().entries, reading.stats().bytes) == (1, 4)
        client.namespace(own_name).create(exist_ok=True)
        stream = client.namespace(own_name).stream("blocking")
        with stream.writer(create=True) as writer:
            writer.append_many([b"1", b"2", b"3"])
            assert (writer.stats().records, writer.stats().bytes) == (3, 3)
            pending = writer.append_nowait(b"4")
            stats = writer.stats()  # once: an append may be acknowledged at any moment
            assert stats.records + stats.appends_in_flight in (4, 5), "what is on its way counts"
            pending.result()
        with stream.reader(tail=False) as reader:
            assert len(list(reader)) == 4
            assert reader.stats().records == 4 and reader.stats().lag.records == 0
        with stream.cursor("c", tail=False) as cursor:
            cursor.ack(next(iter(cursor))).result()
            assert cursor.stats().mark_seq == 1


async def test_opentelemetry_collects_them(cluster: LocalCluster, own_name: str) -> None:
    metrics = InMemoryMetricReader()
    provider = MeterProvider([metrics], shutdown_on_exit=False)
    tracing = fastbk.Tracing(spans=False, meter_provider=provider)
    path = f"{own_name}/measured"
    async with fastbk.connect(cluster.metadata_uri, tracing=tracing) as client:
        await client.namespace(own_name).create(exist_ok=True)
        stream = client.namespace(own_name).stream("measured")
        async with stream.writer(create=True) as writer:
            futures = [writer.append_nowait(b"x" * 10) for _ in range(100)]
            found = collected(metrics)
            assert (found[SENT, path], found[PENDING, path]) == (0, 100) and found[
                BUFFERED, path
            ] > 1000
            await asyncio.gather(*futures)
            found = collected(metrics)
            assert (found[SENT, path], found[SIZE, path], found[PENDING, path]) == (100, 1000, 0)
            assert found[P99, path] > 0
            assert (SENT, "") not in found, "ledgers of streams count in their streams"
        async with stream.writer() as writer:
            await writer.append(b"another writer")
        assert collected(metrics)[SENT, path] == 101, "counters go on where a writer has ended"
        async with stream.reader(tail=False) as reader, stream.cursor("c", tail=False) as cursor:
            assert len([one async for one in reader]) == 101
            await anext(aiter(cursor))
            found = collected(metrics)
            assert (found[CONSUMED, path], found[LAG, path]) == (101, 0)
            assert found[CONSUMED, f"{path}:c"] == 1 and found[LAG, f"{path}:c"] > 0
        async with await client.create_ledger(3, 3, 2) as ledger:
            await ledger.append_many([b"12345"] * 3)
        opened = await client.open_ledger(ledger.ledger_id)
        assert len([one async for one in opened.read()]) == 3
        await opened.close()
        found = collected(metrics)
        assert (found[SENT, ""], found[SIZE, ""], found[CONSUMED, ""]) == (3, 15, 3)
    assert collected(metrics)[SENT, path] == 101
    before = collected(metrics)
    async with (
        fastbk.connect(cluster.metadata_uri) as client,
        await client.create_ledger(3, 3, 2) as ledger,
    ):
        await ledger.append(b"not measured")
    assert collected(metrics) == before


async def test_what_was_sent_again_and_replaced_is_counted() -> None:
    metrics = InMemoryMetricReader()
    tracing = fastbk.Tracing(
        spans=False, meter_provider=MeterProvider([metrics], shutdown_on_exit=False)
    )
    async with (
        LocalCluster(4) as cluster,
        fastbk.connect(
            cluster.metadata_uri, tracing=tracing, bookie_timeout=0.3, replace_after=0.3
        ) as client,
    ):
        await client.namespace("shop").create()
        stream = client.namespace("shop").stream("a")
        async with stream.writer(create=True) as writer:
            await writer.append(b"x")
            segments = await stream.segments()
            ensemble = (
                (await client.ledger_info(segments[0].ledger_id)).metadata.fragments[0].ensemble
            )
            await cluster.kill_async(int(ensemble[0].removeprefix("bookie-")) - 1)
            for _ in range(20):
                await writer.append(b"y" * 1000)
            await wait_until_async(lambda: writer.stats().ensemble_changes == 1, "another bookie")
            assert collected(metrics)["fastbk.client.send.ensemble_changes", "shop/a"] == 1
