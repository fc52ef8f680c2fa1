"""`./dev bench pipeline`: records a second through a pipeline, beside plain appends, in turn.

RECORDS=100000 of 1 KiB, ROUNDS=3, three bookies on this machine. A plain append is a writer's `append_nowait` in a
loop, as fast as it has room; `append_batch` is 64 records at once. A pipeline reads a stream that is there, and each
of its outputs is durable at the end. A table, and JSON in build/bench-pipeline.json.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import fastbk
from fastbk.stream.client import Client
from fastbk.stream.records import Chunk, Record
from fastbk.stream.stream import Stream
from fastbk.testing import LocalCluster
from tools.part import print_table, setting

RECORD = bytes(1024)
BURST, BATCH = 256, 64

Figures = dict[str, float]
Round = Callable[[Stream], Awaitable[None]]


def value_of(record: Record) -> bytes:
    """Return a record as it is."""
    return record.value


def values_of(chunk: Chunk) -> list[bytes]:
    """Return all records of a chunk as they are."""
    return [bytes(view) for view in chunk.payloads()]


def rounds_of(source: Stream, count: int) -> dict[str, Round]:
    """Return what is measured: each appends `count` records to the stream that it is given."""

    async def append(sink: Stream) -> None:
        async with sink.writer() as writer:
            for _ in range(0, count, BURST):
                for _ in range(BURST):
                    writer.append_nowait(RECORD)
                await writer.ready()
                await asyncio.sleep(0)
            await writer.flush()

    async def append_batch(sink: Stream) -> None:
        async with sink.writer() as writer:
            for _ in range(0, count, BATCH):
                writer.append_batch_nowait([RECORD] * BATCH)
                await writer.ready()
                await asyncio.sleep(0)
            await writer.flush()

    async def read(_: Stream) -> None:
        async with source.reader(tail=False) as reader:
            async for chunk in reader.chunks():
                chunk.payloads()

    async def by_record(sink: Stream) -> None:
        async with fastbk.pipeline(source=source, sinks=sink, transform=value_of) as pipeline:
            await pipeline.run(until_caught_up=True)

    async def by_chunk(sink: Stream) -> None:
        async with fastbk.pipeline(source=source, sinks=sink, transform_many=values_of) as pipeline:
            await pipeline.run(until_caught_up=True)

    return {
        "stream, append": append,
        "stream, append_batch(64)": append_batch,
        "stream, read by chunks": read,
        "pipeline, transform": by_record,
        "pipeline, transform_many": by_chunk,
    }


async def run(client: Client, count: int, rounds: int) -> dict[str, Figures]:
    namespace = client.namespace("bench")
    await namespace.create()
    source = await namespace.create_stream("source")
    count -= count % (BURST * BATCH)
    measured = rounds_of(source, count)
    await measured["stream, append"](source)
    rates: dict[str, list[float]] = {name: [] for name in measured}
    cpu_us: dict[str, list[float]] = {name: [] for name in measured}
    for number in range(rounds):
        order = list(measured)
        for name in order if number % 2 == 0 else reversed(order):
            sink = await namespace.create_stream(
                f"sink-{number}-{len(rates[name])}-{order.index(name)}"
            )
            began_s, cpu_s = time.perf_counter(), time.process_time()
            await measured[name](sink)
            rates[name].append(count / (time.perf_counter() - began_s))
            cpu_us[name].append((time.process_time() - cpu_s) / count * 1e6)
            await namespace.delete_stream(sink.name)
    plain = rates["stream, append"]
    return {
        name: {
            "records_per_s": round(sorted(rates[name])[rounds // 2]),
            "client_cpu_us_per_record": round(sorted(cpu_us[name])[rounds // 2], 2),
            "of_append": round(
                sorted(rate / other for rate, other in zip(rates[name], plain, strict=True))[
                    rounds // 2
                ],
                2,
            ),
        }
        for name in measured
    }


def main() -> dict[str, Figures]:
    async def measured() -> dict[str, Figures]:
        async with LocalCluster(3) as cluster, fastbk.connect(cluster.metadata_uri) as client:
            return await run(client, setting("RECORDS", 100_000), setting("ROUNDS", 3))

    figures = asyncio.run(measured())
    print_table(figures)
    return figures
