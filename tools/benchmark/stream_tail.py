"""How soon a tailing reader in another process has what was appended to a stream: a case of `./dev bench`.

Three bookies on this machine, records of 1 KiB, so many a second, one at a time, each with the time at which it was
handed to `append`.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time

import fastbk
from fastbk.devcluster import cpu_seconds, memory_pss_bytes
from fastbk.stream.client import Client
from fastbk.stream.records import Record
from fastbk.testing import LocalCluster
from tools import ROOT
from tools.part import latencies_us

RECORD_BYTES = 1024
FILLING = bytes(RECORD_BYTES - 8)
SENT = struct.Struct("<Q")
LAST = 2**64 - 1
"""Stands in place of a time: nothing follows."""

Figures = dict[str, float]


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
    return {**latencies_us(took_us), "reader_cpu_us_per_record": round(busy_us, 1)}


async def appended_and_tailed(
    client: Client, uri: str, name: str, seconds: float, rate: int
) -> dict[str, Figures]:
    """Append one record each 1/rate seconds while another process tails."""
    stream = await client.namespace("bench").create_stream(name)
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tools.benchmark.stream_tail", uri, name,
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
    return {"append to ack": latencies_us(acked_us), "append to tailing reader": json.loads(said)}


async def measure(seconds: float, rate: int) -> Figures:
    """Return the latencies of appends and of the reader, and what a record costs the bookies."""
    async with (
        LocalCluster(3, data="cluster") as cluster,
        fastbk.connect(cluster.metadata_uri) as client,
    ):
        await client.namespace("bench").create()
        pids = {
            f"{at}": pid
            for at, pid in enumerate(pid for b in cluster.bookies for pid in b.pids.values())
        }
        before_s = sum(cpu_seconds(pids).values())
        found = await appended_and_tailed(client, cluster.metadata_uri, "tail", seconds, rate)
        used_s = sum(cpu_seconds(pids).values()) - before_s
        acked, tailed = found["append to ack"], found["append to tailing reader"]
        return {
            "per_s": acked["count"] / seconds,
            **{name: acked[name] for name in ("p50_us", "p99_us", "p999_us")},
            "tail_p50_us": tailed["p50_us"],
            "tail_p99_us": tailed["p99_us"],
            "bookie_us": used_s * 1e6 / acked["count"],
            "client_us": tailed["reader_cpu_us_per_record"],
            "memory_mb": memory_pss_bytes(pids.values()) / 1e6,
        }


def main(arguments: list[str]) -> None:
    """Run the measurement (`once RATE SECONDS`), or its reader's process."""
    if arguments[0] == "once":
        found = asyncio.run(measure(float(arguments[2]), int(arguments[1])))
    else:
        found = asyncio.run(tail(*arguments))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
