"""`./dev bench manystreams`: STREAMS=5000 streams that one client writes at once, on three bookies of this machine.

METADATA=sqlite or zookeeper; RATE=2000 appends a second over all of them, each timed from when it was due; SECONDS=15
of each load; AGE=60: the age that all segments roll at, begun in the same moment, so that all of them are due together.
At the end another client takes all of them over. A table, and JSON in build/bench-manystreams.json.

A roll by age is on time when the segment behind it is written within AGE; `busiest_s` is how many were in one second.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import fastbk
from fastbk.errors import Error, QuorumTimeout, WriterFenced
from fastbk.stream.client import Client
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.stream import Stream
from fastbk.stream.writer.stream_writer import StreamWriter
from tools.bench_cluster import MetadataCount, bench_cluster
from tools.part import percentile, print_table, rss_bytes, setting

RECORD = bytes(200)
TICK_S = 0.01
SINGLES = 100
SINGLES_AT_ONCE = 8
LIMIT_S = 900.0


class Load:
    """Appends at a fixed rate, to one stream after the other; says how long they took from when they were due."""

    def __init__(self, writers: Sequence[StreamWriter], per_s: float) -> None:
        self._writers = writers
        self._per_s = per_s
        self._sent = 0
        self._pending = 0
        self.took_ms: list[float] = []
        self.errors: list[str] = []

    def _send(self, due_s: float) -> None:
        writer = self._writers[self._sent % len(self._writers)]
        self._sent += 1

        def done(future: asyncio.Future[Any]) -> None:
            self._pending -= 1
            if future.cancelled() or future.exception() is not None:
                self.errors.append(str(future.exception()))
            else:
                self.took_ms.append((time.perf_counter() - due_s) * 1e3)

        try:
            writer.append_nowait(RECORD).add_done_callback(done)
            self._pending += 1
        except Error as error:
            self.errors.append(str(error))

    async def run(self, until: Callable[[float], bool]) -> dict[str, float]:
        """Append until `until(seconds)`; return rates and latencies."""
        began_s, cpu_s, first = time.perf_counter(), time.process_time(), self._sent
        while not until(time.perf_counter() - began_s):
            while (due_s := began_s + (self._sent - first) / self._per_s) <= time.perf_counter():
                self._send(due_s)
            await asyncio.sleep(TICK_S)
        while self._pending:
            await asyncio.sleep(TICK_S)
        took_s = time.perf_counter() - began_s
        if not self.took_ms:
            return {"errors": len(self.errors)}
        return {
            "per_s": round(len(self.took_ms) / took_s),
            "p50_ms": round(percentile(self.took_ms, 0.5), 2),
            "p99_ms": round(percentile(self.took_ms, 0.99), 2),
            "max_ms": round(max(self.took_ms), 1),
            "errors": len(self.errors),
            "client_cpu": round((time.process_time() - cpu_s) / took_s, 2),
        }


def segment_numbers(writers: Sequence[StreamWriter]) -> list[int]:
    engines = [writer._engine for writer in writers]
    return [0 if one is None or one.segment is None else one.segment.number for one in engines]


class Bench:
    """One client with many writers, and what is measured of them."""

    def __init__(self, client: Client, rate: float) -> None:
        self.figures: dict[str, dict[str, float]] = {}
        self.writers: list[StreamWriter] = []
        self._client = client
        self._rate = rate
        self._count = MetadataCount(client)
        self._before_bytes = rss_bytes()

    def say(self, name: str, figures: dict[str, float]) -> None:
        self.figures[name] = figures
        print_table({name: figures})

    async def all_at_once(self, name: str, some: Callable[[StreamWriter], Awaitable[Any]]) -> None:
        before, busy_s, failed = self._count.calls, self._count.busy_s, 0
        commits = self._count.commits

        async def one(writer: StreamWriter) -> None:
            nonlocal failed
            try:
                await some(writer)
            except QuorumTimeout:
                failed += 1

        began_s = time.perf_counter()
        await asyncio.gather(*map(one, self.writers))
        took_s = time.perf_counter() - began_s
        self.say(
            name,
            {
                "s": round(took_s, 2),
                "per_s": round(len(self.writers) / took_s),
                "too_late": failed,
                "metadata_calls_each": round((self._count.calls - before) / len(self.writers), 1),
                "commits_each": round((self._count.commits - commits) / len(self.writers), 2),
                "metadata_busy": round((self._count.busy_s - busy_s) / took_s, 2),
            },
        )

    def memory(self, name: str) -> None:
        loop: Any = asyncio.get_running_loop()
        count = len(self.writers)
        self.say(
            name,
            {
                "kib_each": round((rss_bytes() - self._before_bytes) / count / 1024, 1),
                "tasks_each": round(len(asyncio.all_tasks()) / count, 2),
                "timers_each": round(
                    sum(not one.cancelled() for one in loop._scheduled) / count, 2
                ),
                "files": len(os.listdir("/proc/self/fd")),
            },
        )

    async def load(self, name: str, seconds: float) -> None:
        self.say(name, await Load(self.writers, self._rate).run(lambda s: s >= seconds))

    async def rolls(self, name: str, limit_s: float, to_roll: int) -> None:
        """Append at the rate until each writer has rolled so often; say how rolls and metadata calls were spread."""
        load, began = Load(self.writers, self._rate), segment_numbers(self.writers)
        calls, rolled = [self._count.calls], [0]

        async def look() -> None:
            while True:
                await asyncio.sleep(1.0)
                calls.append(self._count.calls)
                pairs = zip(segment_numbers(self.writers), began, strict=True)
                rolled.append(sum(min(now - then, to_roll) for now, then in pairs))

        looking = asyncio.create_task(look())
        every = to_roll * len(self.writers)
        figures = await load.run(lambda s: rolled[-1] >= every or s >= limit_s)
        looking.cancel()
        each_s = [now - then for then, now in pairwise(rolled)]
        calls_each_s = [now - then for then, now in pairwise(calls)]
        figures |= {
            "s": len(each_s),
            "rolled": rolled[-1],
            "rolls_busiest_s": max(each_s),
            "rolls_seconds": sum(one > 0 for one in each_s),
            "calls_per_s": round(sum(calls_each_s) / len(calls_each_s)),
            "calls_busiest_s": max(calls_each_s),
        }
        self.say(name, figures)


async def creations(bench: Bench, namespace: Namespace, count: int) -> list[Stream]:
    """Create streams singly, some at a time, and many at once; return `count` of the latter."""
    single = namespace.namespace("single")
    await single.create()
    turns = asyncio.Semaphore(SINGLES_AT_ONCE)

    async def one(at: int) -> None:
        async with turns:
            await single.create_stream(f"s{at}")

    for name, at_once in (("one by one", 1), (f"{SINGLES_AT_ONCE} at once", SINGLES_AT_ONCE)):
        turns = asyncio.Semaphore(at_once)
        began_s = time.perf_counter()
        await asyncio.gather(*[one(at + at_once * SINGLES) for at in range(SINGLES)])
        took_s = time.perf_counter() - began_s
        bench.say(f"create, {name}", {"s": round(took_s, 2), "per_s": round(SINGLES / took_s)})
    began_s = time.perf_counter()
    streams = await namespace.create_streams([f"s{at}" for at in range(count)])
    took_s = time.perf_counter() - began_s
    bench.say("create, 100 in one call", {"s": round(took_s, 2), "per_s": round(count / took_s)})
    return streams


async def taken_over(bench: Bench, other: Client, namespace: str) -> Bench:
    """Have another client open all streams; all former writers must be fenced."""
    later = Bench(other, 0.0)
    names = [writer._given.name.rpartition("/")[2] for writer in bench.writers]
    later.writers = [other.namespace(namespace).stream(name).writer() for name in names]
    await later.all_at_once("takeover: open", lambda writer: writer.open())
    ends = await asyncio.gather(
        *[_appended(writer) for writer in bench.writers], return_exceptions=True
    )
    fenced = sum(isinstance(one, WriterFenced) for one in ends)
    kept = sum(not isinstance(one, BaseException) for one in ends)
    if kept:
        raise SystemExit(f"bench: {kept} writers went on that were taken over")
    later.say("takeover: former writers", {"fenced": fenced, "unknown": len(ends) - fenced})
    await later.all_at_once("takeover: first append", lambda writer: writer.append(RECORD))
    return later


async def _appended(writer: StreamWriter) -> object:
    return await writer.append(RECORD)


async def run(count: int, rate: float, seconds: float, age_s: float) -> dict[str, Any]:
    async with bench_cluster() as cluster, fastbk.connect(cluster.metadata_uri) as client:
        namespace = client.namespace("many")
        await namespace.create()
        bench = Bench(client, rate)
        streams = await creations(bench, namespace, count)
        bench.writers = [stream.writer() for stream in streams]
        await bench.all_at_once("open", lambda writer: writer.open())
        bench.memory("idle")
        await bench.all_at_once("first append", lambda writer: writer.append(RECORD))
        await bench.load("appends", seconds)
        bench.memory("active")
        await namespace.set_policy(PolicyPatch(roll_age_s=age_s))
        await bench.all_at_once("roll, all at once", lambda writer: writer.roll())
        if age_s > 0:
            await bench.rolls("appends, all roll by age", 3 * age_s, 2)
            bench.memory("after rolls")
        async with fastbk.connect(cluster.metadata_uri) as other:
            later = await taken_over(bench, other, "many")
            figures = bench.figures | later.figures
            for writer in later.writers:
                writer.abort()
        return figures


def main() -> dict[str, Any]:
    count, rate = setting("STREAMS", 5000), setting("RATE", 2000.0)
    work = run(count, rate, setting("SECONDS", 15.0), setting("AGE", 60.0))
    return asyncio.run(asyncio.wait_for(work, LIMIT_S))
