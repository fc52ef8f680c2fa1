"""`./dev bench tail`: reading a stream, and how soon a tailing reader in another process has what was appended.

Three bookies on this machine, records of 1 KiB. RATE=1000 records a second for SECONDS=10, one at a time, each with
the time at which it was handed to `append`; MIB=256 of records read again as records and as chunks, from a stream of
entries of one record, and from one of batches of 64. ROUNDS=3 of tailing. A table, and JSON in
build/bench-tail.json.
"""

from __future__ import annotations

import asyncio
import json
import resource
import struct
import sys
import time

import fastbk
from fastbk.stream.client import Client
from fastbk.stream.records import Chunk, Record
from fastbk.stream.stream import Stream
from fastbk.testing import LocalCluster
from tests.tools.part import ROOT, print_table, setting

RECORD_BYTES = 1024
FILLING = bytes(RECORD_BYTES - 8)
SENT = struct.Struct("<Q")
BATCH = 64
LAST = 2**64 - 1
"""In place of a time: nothing follows."""

Figures = dict[str, float]


def quantiles(took_us: list[float]) -> Figures:
    took_us.sort()
    at = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p999_us": 0.999}
    figures = {name: round(took_us[int(len(took_us) * part)]) for name, part in at.items()}
    return {**figures, "max_us": round(took_us[-1]), "records": len(took_us)}


# --- tailing --------------------------------------------------------------------------------------------------------


async def tail(uri: str, path: str) -> Figures:
    """Tail a stream of the namespace "bench" until its last record; return how late each record was."""
    took_us: list[float] = []
    cpu_s = 0.0
    async with (
        fastbk.connect(uri) as client,
        client.namespace("bench").stream(path).reader("latest") as reader,
    ):
        print("ready", flush=True)
        async for record in reader:
            assert isinstance(record, Record)
            (sent_ns,) = SENT.unpack_from(record.payload)
            if sent_ns == LAST:
                break
            took_us.append((time.monotonic_ns() - sent_ns) / 1e3)
            cpu_s = cpu_s or time.process_time()
    busy_us = (time.process_time() - cpu_s) / max(len(took_us), 1) * 1e6
    return {**quantiles(took_us), "reader_cpu_us_per_record": round(busy_us, 1)}


async def appended_and_tailed(
    client: Client, uri: str, name: str, seconds: float, rate: int
) -> dict[str, Figures]:
    """Append one record each 1/rate seconds while another process tails."""
    stream = await client.namespace("bench").create_stream(name)
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.tools.bench_tail", uri, name,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert reader.stdout is not None
    acked_us: list[float] = []
    async with stream.writer() as writer:
        await writer.append(SENT.pack(time.monotonic_ns()) + FILLING)
        assert await reader.stdout.readline() == b"ready\n"

        async def one(sent_ns: int) -> None:
            await writer.append(SENT.pack(sent_ns) + FILLING)
            acked_us.append((time.monotonic_ns() - sent_ns) / 1e3)

        tasks: set[asyncio.Task[None]] = set()
        began_s = time.monotonic()
        for count in range(int(seconds * rate)):
            while (early_s := began_s + count / rate - time.monotonic()) > 0:
                await asyncio.sleep(early_s)
            task = asyncio.create_task(one(time.monotonic_ns()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        await writer.append(SENT.pack(LAST) + FILLING)
    said = await asyncio.wait_for(reader.stdout.read(), 30)
    await reader.wait()
    return {"append to ack": quantiles(acked_us), "append to tailing reader": json.loads(said)}


# --- reading again --------------------------------------------------------------------------------------------------


async def filled(client: Client, name: str, count: int, batch: int) -> Stream:
    """Return a sealed stream of so many records."""
    stream = await client.namespace("bench").create_stream(name)
    async with stream.writer() as writer:
        for at in range(0, count, batch):
            if batch == 1:
                writer.append(bytes(RECORD_BYTES))
            else:
                writer.append_batch([bytes(RECORD_BYTES)] * min(batch, count - at))
            if at % (64 * batch) == 0:
                await writer.ready()
                await asyncio.sleep(0)
        await writer.flush()
    return stream


async def read(stream: Stream, count: int, *, by_chunks: bool) -> Figures:
    cpu_s, began_s, seen, size_bytes = time.process_time(), time.perf_counter(), 0, 0
    async with stream.reader("earliest") as reader:
        if by_chunks:
            async for chunk in reader.chunks(max_records=4096):
                assert isinstance(chunk, Chunk)
                seen += len(chunk)
                if seen >= count:
                    break
        else:
            async for record in reader:
                assert isinstance(record, Record)
                size_bytes += len(record.payload)
                seen += 1
                if seen >= count:
                    break
    took_s = time.perf_counter() - began_s
    return {
        "records_per_s": round(seen / took_s),
        "mb_per_s": round(seen * RECORD_BYTES / took_s / 1e6),
        "client_cpu_us_per_record": round((time.process_time() - cpu_s) / seen * 1e6, 2),
    }


async def run(seconds: float, rate: int, mib: int, rounds: int) -> dict[str, Figures]:
    figures: dict[str, Figures] = {}
    count = mib * 2**20 // RECORD_BYTES
    async with LocalCluster(3) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        await client.namespace("bench").create()
        for turn in range(rounds):
            found = await appended_and_tailed(
                client, cluster.metadata_uri, f"tail-{turn}", seconds, rate
            )
            figures |= {f"{name}, {rate}/s, round {turn + 1}": one for name, one in found.items()}
        for batch in (1, BATCH):
            stream = await filled(client, f"read-{batch}", count, batch)
            for by_chunks in (False, True):
                name = f"read {'chunks' if by_chunks else 'records'}, {batch} an entry"
                await read(
                    stream, count, by_chunks=by_chunks
                )  # the second time all caches are warm
                figures[name] = await read(stream, count, by_chunks=by_chunks)
    figures["this process"] = {
        "rss_max_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    }
    return figures


def main() -> dict[str, Figures]:
    seconds, rate = setting("SECONDS", 10.0), setting("RATE", 1000)
    figures = asyncio.run(run(seconds, rate, setting("MIB", 256), setting("ROUNDS", 3)))
    print_table(figures)
    return figures


if __name__ == "__main__":  # the tailing reader's process
    print(json.dumps(asyncio.run(tail(*sys.argv[1:]))))
