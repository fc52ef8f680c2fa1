"""`./dev bench streams`: what a stream's writer does, beside ledgers in the same run.

SECONDS=5 of each case, records of 1 KiB, three bookies on this machine. A table, and JSON in build/bench-streams.json.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import fastbk
from fastbk.stream.client import Client
from fastbk.stream.writer.stream_writer import StreamWriter
from fastbk.testing import LocalCluster
from tools.part import latencies_us, print_table, setting

RECORD = bytes(1024)
BURST, BATCH = 256, 64
LONE_APPENDS = 1000
NAMES_AT_ONCE = 500

Figures = dict[str, float]


async def rate(
    seconds: float, some: Callable[[], Awaitable[int]], settle: Callable[[], Awaitable[object]]
) -> Figures:
    """Call `some`, which returns how many records it appended, for so long; return rates."""
    count, cpu_s, began_s = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        count += await some()
    await settle()
    took_s = time.perf_counter() - began_s
    cpu_us = (time.process_time() - cpu_s) / count * 1e6
    return {"records_per_s": round(count / took_s), "client_cpu_us_per_record": round(cpu_us, 2)}


async def one_by_one(append: Callable[[bytes], Awaitable[object]]) -> Figures:
    """Append records each behind the last one's acknowledgement; return latencies."""
    took_us = []
    for _ in range(LONE_APPENDS):
        began_s = time.perf_counter()
        await append(RECORD)
        took_us.append((time.perf_counter() - began_s) * 1e6)
    return latencies_us(took_us)


async def one_stream(writer: StreamWriter, seconds: float) -> dict[str, Figures]:
    async def singly() -> int:
        for _ in range(BURST):
            writer.append_nowait(RECORD)
        await writer.ready()
        await asyncio.sleep(0)
        return BURST

    async def by_batches() -> int:
        writer.append_batch_nowait([RECORD] * BATCH)
        await writer.ready()
        await asyncio.sleep(0)
        return BATCH

    await writer.append(RECORD)
    return {
        "stream, append": await rate(seconds, singly, writer.flush),
        "stream, append_batch(64)": await rate(seconds, by_batches, writer.flush),
        "stream, one at a time": await one_by_one(writer.append),
    }


async def one_ledger(client: Client, seconds: float) -> dict[str, Figures]:
    ledger = await client.create_ledger(3, 3, 2)

    async def some() -> int:
        await ledger.ready()
        count = 0
        with suppress(fastbk.errors.BufferFull):
            while count < BURST:
                ledger.append_nowait(RECORD)
                count += 1
        await asyncio.sleep(0)
        return count

    await ledger.append(RECORD)
    figures = {
        "ledger, append_nowait": await rate(seconds, some, ledger.flush),
        "ledger, one at a time": await one_by_one(ledger.append),
    }
    await ledger.close()
    return figures


async def run(seconds: float) -> dict[str, Figures]:
    async with LocalCluster(3) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        namespace = client.namespace("bench")
        await namespace.create()
        figures = await one_ledger(client, seconds)
        async with (await namespace.create_stream("one")).writer() as writer:
            figures |= await one_stream(writer, seconds)
        return figures


def main() -> dict[str, Figures]:
    figures = asyncio.run(run(setting("SECONDS", 5.0)))
    print_table(figures)
    return figures
