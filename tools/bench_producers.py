"""`./dev bench producers`: what many producers of one stream get, beside one direct writer and Redis in the same run.

SECONDS=4 of each load, records of 1 KiB, three bookies and one write service on this machine. TAKEOVERS=20: how often
the stream's service is killed, frozen and stopped while one producer appends every few milliseconds; the pause that it
sees is measured. ONLY=loads,takeovers. A table, and JSON in build/bench-producers.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import fastbk
from fastbk.devcluster.processes import cpu_seconds
from fastbk.native.process import die_with_parent
from fastbk.stream.client import Client
from fastbk.stream.services import read_services
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async
from tests.fixtures.zookeeper import free_ports
from tests.rigs.producers import Worker, service_command
from tools.benchmark.cases import Append
from tools.benchmark.redis_streams import RedisStreams
from tools.part import latencies_us, print_table, scratch, setting

RECORD = bytes(1024)
NAMESPACE, NAME = "bench", "one"
BATCH, BURST, LONE_APPENDS = 64, 256, 1000
PRODUCERS = (1, 16, 256)
PROCESSES_MAX = 4
EVERY_S = 0.002
Figures = dict[str, float]
Append_ = Callable[[bytes], Awaitable[object]]


# --- one process of a load -------------------------------------------------------------------------


async def _lone(append: Append_, end_s: float, took_us: list[float]) -> int:
    count = 0
    while time.perf_counter() < end_s:
        began_s = time.perf_counter()
        await append(RECORD)
        took_us.append((time.perf_counter() - began_s) * 1e6)
        count += 1
    return count


async def load(uri: str, first: int, count: int, how: str, seconds: float) -> dict[str, object]:
    """Append by producers `first` to `first + count`, each by itself; return how many, and the latencies."""
    async with fastbk.connect(uri) as client:
        stream = client.namespace(NAMESPACE).stream(NAME)
        producers = [stream.producer(f"{how}-{first + number}") for number in range(count)]
        await asyncio.gather(*(producer.open() for producer in producers))
        await asyncio.gather(*(producer.append(RECORD) for producer in producers))
        took_us: list[float] = []
        cpu_s, began_s = time.process_time(), time.perf_counter()
        end_s = began_s + seconds
        if how == "lone":
            work = [_lone(producer.append, end_s, took_us) for producer in producers]
        else:
            work = [_batches(producer, end_s) for producer in producers]
        done = sum(await asyncio.gather(*work))
        length_s = time.perf_counter() - began_s
        cpu_us = (time.process_time() - cpu_s) / max(done, 1) * 1e6
        await asyncio.gather(*(producer.close() for producer in producers))
    return {"records": done, "seconds": length_s, "took_us": took_us, "cpu_us": cpu_us}


async def _batches(producer: fastbk.Producer, end_s: float) -> int:
    count = 0
    while time.perf_counter() < end_s:
        await producer.ready()
        producer.append_batch_nowait([RECORD] * BATCH)
        count += BATCH
        await asyncio.sleep(0)
    await producer.flush()
    return count


# --- loads --------------------------------------------------------------------------------------------


async def _by_processes(
    uri: str, producers: int, how: str, seconds: float, service: Worker
) -> Figures:
    """Share producers out over processes; return what they did together."""
    processes = min(producers, PROCESSES_MAX)
    each = producers // processes
    assert service.process is not None
    pids = {"service": service.process.pid}
    before_s = cpu_seconds(pids)["service"]
    commands = [
        [sys.executable, "-m", "tools.bench_producers", uri, str(number * each), str(each), how, str(seconds)]
        for number in range(processes)
    ]  # fmt: skip
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    outputs = await asyncio.gather(*(asyncio.to_thread(process.communicate) for process in running))
    used_s = cpu_seconds(pids)["service"] - before_s
    parts = [json.loads(output) for output, _ in outputs]
    records = sum(part["records"] for part in parts)
    figures: Figures = {
        "records_per_s": round(sum(part["records"] / part["seconds"] for part in parts)),
        "service_cpu_us_per_record": round(used_s / max(records, 1) * 1e6, 2),
        "client_cpu_us_per_record": round(
            sum(part["cpu_us"] * part["records"] for part in parts) / max(records, 1), 2
        ),
    }
    took_us = [one_us for part in parts for one_us in part["took_us"]]
    return figures | (latencies_us(took_us) if took_us else {})


async def _direct(client: Client, seconds: float) -> dict[str, Figures]:
    """What one writer of a stream of its own does without a service."""
    stream = await client.namespace(NAMESPACE).create_stream("direct")
    async with stream.writer() as writer:
        await writer.append(RECORD)
        took_us: list[float] = []
        await _lone(writer.append, time.perf_counter() + seconds, took_us)
        count, began_s, cpu_s = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began_s < seconds:
            writer.append_batch_nowait([RECORD] * BATCH)
            await writer.ready()
            await asyncio.sleep(0)
            count += BATCH
        await writer.flush()
        rate = round(count / (time.perf_counter() - began_s))
        cpu_us = round((time.process_time() - cpu_s) / count * 1e6, 2)
    return {
        "writer, one at a time": latencies_us(took_us),
        "writer, batches of 64": {"records_per_s": rate, "client_cpu_us_per_record": cpu_us},
    }


def _redis(seconds: float) -> dict[str, Figures]:
    """The same number of connections to Redis, each with one append on its way."""
    system = RedisStreams()
    found: dict[str, Figures] = {}
    with system:
        for producers in PRODUCERS:
            append = Append(producers, size_bytes=len(RECORD), connections=producers)
            figures = system.measure(append, seconds)
            found[f"Redis, {producers} connections, one at a time"] = {
                "records_per_s": round(figures["per_s"]),
                "p50_us": figures["p50_us"],
                "p99_us": figures["p99_us"],
            }
    return found


async def loads(cluster: LocalCluster, folder: Path, seconds: float) -> dict[str, Figures]:
    """Return rates and latencies by numbers of producers."""
    uri = cluster.metadata_uri
    service = Worker(service_command(uri, free_ports(1)[0]), folder / "service.out")
    service.start()
    try:
        async with fastbk.connect(uri) as client:
            await client.namespace(NAMESPACE).create()
            await client.namespace(NAMESPACE).create_stream(NAME)
            figures = await _direct(client, seconds)
            for producers in PRODUCERS:
                for how, label in (("lone", "one at a time"), ("batches", "batches of 64")):
                    name = f"{producers} producers, {label}"
                    figures[name] = await _by_processes(uri, producers, how, seconds, service)
    finally:
        service.kill()
    return figures


# --- takeovers ------------------------------------------------------------------------------------------


async def takeovers(cluster: LocalCluster, folder: Path, times: int) -> dict[str, Figures]:
    """Return the pause that a producer sees when its service is killed, frozen or stopped."""
    uri = cluster.metadata_uri
    services = [
        Worker(service_command(uri, port), folder / f"service-{number}.out")
        for number, port in enumerate(free_ports(2))
    ]
    found: dict[str, Figures] = {}
    for service in services:
        service.start()
    try:
        async with fastbk.connect(uri) as client:
            stream = await client.namespace(NAMESPACE).create_stream("takeovers")
            async with stream.producer("one") as producer:
                for what in ("planned stop", "kill -9", "SIGSTOP"):
                    pauses_us = [
                        await _pause(client, stream, producer, services, what) for _ in range(times)
                    ]
                    found[f"takeover, {what}"] = latencies_us(pauses_us)
    finally:
        for service in services:
            service.kill()
    return found


async def _are_all_there(client: Client, services: list[Worker]) -> bool:
    """Whether each service counts on in metadata: only then the others name it."""
    found = {
        known.service.address: known.service.beat for known in await read_services(client.records)
    }
    return all(found.get(service.command[-1], 0) > 2 for service in services)


async def _pause(
    client: Client,
    stream: fastbk.Stream,
    producer: fastbk.Producer,
    services: list[Worker],
    what: str,
) -> float:
    """Have the stream's service fail while a producer appends; return its longest wait in microseconds."""
    await wait_until_async(lambda: _are_all_there(client, services), "both services", 60.0)
    await producer.append(RECORD)
    owner = (await stream.info()).owner
    service = next(one for one in services if one.command[-1] in owner)
    assert service.process is not None
    longest_s, fails_s = 0.0, time.perf_counter() + 0.2
    has_failed, until_s = False, time.perf_counter() + 60.0
    while time.perf_counter() < until_s:
        if not has_failed and time.perf_counter() >= fails_s:
            has_failed = True
            until_s = time.perf_counter() + 15.0
            number = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}.get(
                what, signal.SIGTERM
            )
            service.process.send_signal(number)
        began_s = time.perf_counter()
        await producer.append(RECORD)
        took_s = time.perf_counter() - began_s
        longest_s = max(longest_s, took_s)
        is_moved = has_failed and service.command[-1] not in (await stream.info()).owner
        if is_moved:
            break
        await asyncio.sleep(EVERY_S)
    if what == "SIGSTOP":
        with suppress(ProcessLookupError):
            os.kill(service.process.pid, signal.SIGCONT)
    if what != "SIGSTOP":
        await asyncio.to_thread(service.process.wait, 30)
        service.start()
    return longest_s * 1e6


async def run(seconds: float, times: int, only: str) -> dict[str, Figures]:
    """Measure what ONLY names."""
    figures: dict[str, Figures] = {}
    with scratch() as folder:
        async with LocalCluster(3, data=folder / "cluster", write_services=0) as cluster:
            if "loads" in only:
                figures |= await loads(cluster, folder, seconds)
            if "takeovers" in only:
                async with fastbk.connect(cluster.metadata_uri) as client:
                    await client.namespace(NAMESPACE).create(exist_ok=True)
                figures |= await takeovers(cluster, folder, times)
    if "loads" in only and shutil.which("redis-server"):
        figures |= _redis(seconds)
    elif "loads" in only:
        print("bench: without Redis: apt-get install redis-server", file=sys.stderr)
    return figures


def main() -> dict[str, Figures]:
    """Measure, print and return the figures."""
    only = setting("ONLY", "loads,takeovers")
    figures = asyncio.run(run(setting("SECONDS", 4.0), setting("TAKEOVERS", 20), only))
    print_table(figures)
    return figures


if __name__ == "__main__":
    die_with_parent()
    one_uri, first_text, count_text, one_how, seconds_text = sys.argv[1:]
    one_load = load(one_uri, int(first_text), int(count_text), one_how, float(seconds_text))
    print(json.dumps(asyncio.run(one_load)))
