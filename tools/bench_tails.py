"""`./dev bench tails`: what readers that wait cost their process, and how long a lone append takes to a tailing reader.

READERS=1,100,1000 readers that wait for SECONDS=60; STREAMS=200 that they share. Then APPENDS=400 each 50 ms and a
tenth as many each second, to a reader in another process, where none and as many as the most of READERS wait beside
it. METADATA=sqlite or zookeeper; three bookies on this machine. The tables of docs/performance.md, ready to be put in,
and JSON in build/bench-tails.json. `opening one more`: of 200 readers that are opened beside those that wait.

Latencies are from before `append` is called: until it returns (`ack`), and until the reader has the record (`seen`).
"The disk alone" is what no log on this disk is below: three files get a block each at the same moment, written past the
page cache and synced as a journal's blocks are, and two of them have to be done.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Coroutine
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, ExitStack

import fastbk
from fastbk.client.connection import Connection
from fastbk.stream.client import Client
from fastbk.stream.writer.stream_writer import StreamWriter
from tools import ROOT
from tools.bench_cluster import MetadataCount, bench_cluster, timed
from tools.part import percentile, print_table, setting

Figures = dict[str, float]
SETTLE_S = 5.0
OPENED_BESIDE = 200
WARM_UP = 20
INTERVALS_S = (0.05, 1.0)
FILES, FILES_DONE = 3, 2
BLOCK_BYTES = 4096
END = b"end"


# --- the process of the readers ---------------------------------------------------------------------------------------


class Requests:
    """Counts what this process asks of bookies, appends left out."""

    def __init__(self) -> None:
        self.count = 0
        send = Connection.send_request

        def counted(connection: Connection, *given: object) -> None:
            self.count += 1
            send(connection, *given)  # type: ignore[arg-type]

        Connection.send_request = counted  # type: ignore[method-assign, assignment]


def _latencies(name: str, took_s: list[float]) -> Figures:
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        f"{name}_{key}_ms": round(percentile(took_s, share) * 1e3, 2)
        for key, share in shares.items()
    }


async def _waiting(
    client: Client, stack: AsyncExitStack, count: int, stream_count: int
) -> list[float]:
    """Open readers that have read what is there and wait for more; return the seconds that each opening took."""

    async def one(number: int) -> float:
        async def opened() -> None:
            stream = client.namespace("bench").stream(f"s{number % stream_count}")
            reader = await stack.enter_async_context(stream.reader())
            assert await reader.read()
            task = asyncio.ensure_future(reader.read())
            stack.callback(task.cancel)

        return (await timed(opened))[1]

    return [await one(number) for number in range(count)]


async def readers_alone(uri: str, count: int, seconds: float, stream_count: int) -> Figures:
    requests = Requests()
    async with fastbk.connect(uri) as client, AsyncExitStack() as stack:
        opening_s = await _waiting(client, stack, count, stream_count)
        await asyncio.sleep(SETTLE_S)
        metadata = MetadataCount(client)
        before, cpu_s, began_s = requests.count, time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        took_s = time.perf_counter() - began_s
        figures = {
            "cpu_percent": round((time.process_time() - cpu_s) / took_s * 100, 2),
            "metadata_calls_per_s": round(metadata.calls / took_s, 2),
            "requests_per_s": round((requests.count - before) / took_s, 2),
        }
        beside_s = await _waiting(client, stack, OPENED_BESIDE, stream_count)
        return {**figures, **_latencies("open", opening_s), **_latencies("open_beside", beside_s)}


async def tail(uri: str, count: int, stream_count: int) -> list[float]:
    """Read a stream to its last record, while others wait; return the seconds from each record's time to now."""
    seen_s: list[float] = []
    async with fastbk.connect(uri) as client, AsyncExitStack() as stack:
        await _waiting(client, stack, count, stream_count)
        async with client.namespace("bench").stream("lone").reader("latest") as reader:
            reading = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(SETTLE_S)
            print("ready", flush=True)
            while bytes((await reading).payload) != END:
                seen_s.append(time.monotonic() - float(bytes((await reading).payload)))
                reading = asyncio.ensure_future(anext(reader))
    return seen_s[WARM_UP:]


def child(role: str, uri: str, count: str, seconds: str, stream_count: str) -> None:
    call: Coroutine[object, object, object]
    if role == "tail":
        call = tail(uri, int(count), int(stream_count))
    else:
        call = readers_alone(uri, int(count), float(seconds), int(stream_count))
    print(json.dumps(asyncio.run(call)))


# --- the process of the writers ---------------------------------------------------------------------------------------


async def _child(*given: object) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "tools.bench_tails", *map(str, given)]
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)


async def _lone(
    writer: StreamWriter, uri: str, interval_s: float, appends: int, count: int, streams: int
) -> Figures:
    process = await _child("tail", uri, count, 0, streams)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    ack_s = []
    for _ in range(WARM_UP + appends):
        await asyncio.sleep(interval_s)
        now_s = time.monotonic()
        await writer.append(b"%.9f" % now_s)
        ack_s.append(time.monotonic() - now_s)
    await writer.append(END)
    seen_s = json.loads((await process.communicate())[0])
    assert len(seen_s) == appends
    return {**_latencies("ack", ack_s[WARM_UP:]), **_latencies("seen", seen_s)}


def disk_alone(interval_s: float, appends: int) -> Figures:
    """Write blocks to files as journals get them from lone appends; return how long the ack quorum of them took."""
    block = mmap.mmap(-1, BLOCK_BYTES)  # aligned, as O_DIRECT wants it
    took_s: list[float] = []
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder, ExitStack() as stack:
        files = []
        for number in range(FILES):
            file = os.open(
                f"{folder}/{number}", os.O_CREAT | os.O_WRONLY | os.O_DIRECT | os.O_DSYNC
            )
            stack.callback(os.close, file)
            os.posix_fallocate(file, 0, (WARM_UP + appends) * BLOCK_BYTES)
            files.append(file)
        pool = stack.enter_context(ThreadPoolExecutor(FILES))
        for number in range(WARM_UP + appends):
            time.sleep(interval_s)
            began_s = time.monotonic()
            left = {pool.submit(os.pwrite, file, block, number * BLOCK_BYTES) for file in files}
            while len(left) > FILES - FILES_DONE:
                left = wait(left, return_when=FIRST_COMPLETED).not_done
            took_s.append(time.monotonic() - began_s)
            wait(left)
    return _latencies("ack", took_s[WARM_UP:])


async def run() -> dict[str, Figures]:
    counts = [int(one) for one in setting("READERS", "1,100,1000").split(",")]
    seconds, appends, stream_count = (
        setting("SECONDS", 60.0),
        setting("APPENDS", 400),
        setting("STREAMS", 200),
    )
    figures: dict[str, Figures] = {
        f"the disk alone, each {one:g} s": disk_alone(
            one, max(appends // 10, 1) if one >= 1 else appends
        )
        for one in INTERVALS_S
    }
    async with (
        bench_cluster() as cluster,
        fastbk.connect(cluster.metadata_uri) as client,
        AsyncExitStack() as stack,
    ):
        uri, namespace = cluster.metadata_uri, client.namespace("bench")
        await namespace.create()

        async def written(name: str) -> StreamWriter:
            writer = await stack.enter_async_context((await namespace.create_stream(name)).writer())
            await writer.append(b"first")
            return writer

        for number in range(stream_count):
            await written(f"s{number}")
        lone = await written("lone")
        for count in counts:
            out, _ = await (await _child("wait", uri, count, seconds, stream_count)).communicate()
            figures[f"{count} readers wait"] = json.loads(out)
        for beside in (0, max(counts)):
            for interval_s in INTERVALS_S:
                name = f"append each {interval_s:g} s, {beside} readers wait beside"
                number = max(appends // 10, 1) if interval_s >= 1 else appends
                figures[name] = await _lone(lone, uri, interval_s, number, beside, stream_count)
    return figures


def tables(figures: dict[str, Figures]) -> str:
    """Return what docs/performance.md has of this, as Markdown."""
    lines = [
        "| readers that wait | processor, of one core | calls of metadata a second | requests to bookies a second"
        " | opening one more: p50, p99 |",
        "|---|---|---|---|---|",
    ]
    lone = [
        "| a lone append | acknowledged: p50, p99 | read by a tail: p50, p99 |",
        "|---|---|---|",
    ]
    for name, one in figures.items():
        if "cpu_percent" in one:
            count = int(name.split()[0])
            rates = " | ".join(
                f"{one[key]:g}" for key in ("metadata_calls_per_s", "requests_per_s")
            )
            lines.append(
                f"| {count:,} | {one['cpu_percent']:g} % | {rates} | {_both(one, 'open_beside')} |"
            )
        else:
            lone.append(
                f"| {name} | {_both(one, 'ack')} | {_both(one, 'seen') if 'seen_p50_ms' in one else '-'} |"
            )
    return "\n".join([*lines, "", *lone])


def _both(figures: Figures, name: str) -> str:
    return f"{figures[f'{name}_p50_ms']:.1f}, {figures[f'{name}_p99_ms']:.1f} ms"


def main() -> dict[str, Figures]:
    figures = asyncio.run(run())
    print_table(figures)
    print(f"\n{tables(figures)}")
    return figures


if __name__ == "__main__":
    child(*sys.argv[1:])
