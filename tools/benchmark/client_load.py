"""A load by the Python client on three bookies, as a program: it runs with the package of any tree that it is told.

usage: client_load.py append WINDOW SECONDS | beside PAIRS | ledgers COUNT | arrow MIB ROUNDS.

Prints JSON: figures as in `run.py`.

It imports only what users import, so that it runs with earlier versions, too.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections import deque
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

import fastbk
from fastbk.client import Client
from fastbk.devcluster import cpu_seconds, memory_pss_bytes
from fastbk.testing import LocalCluster

ENTRY = b"x" * 1024
QUORUM = (3, 3, 2)
WARM_UP_S = 0.5
ENTRIES_A_LEDGER = 10
PAIR_S = 0.25


def pids_of(cluster: LocalCluster) -> list[int]:
    """Return the processes of all bookies."""
    return [pid for bookie in cluster.bookies for pid in bookie.pids.values()]


def bookies_cpu_s(cluster: LocalCluster) -> float:
    """Return the processor time of all bookies so far."""
    return sum(cpu_seconds({str(pid): pid for pid in pids_of(cluster)}).values())


def percentile(values: list[float], share: float) -> float:
    """Return the value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


async def append_for(client: Client, window: int, seconds: float) -> tuple[list[float], float]:
    """Keep `window` appends in flight; return each one's microseconds, and how many seconds it all took."""
    took_us: list[float] = []
    flight: deque[tuple[asyncio.Future[int], float]] = deque()
    async with await client.create_ledger(*QUORUM) as writer:
        await writer.append(ENTRY)
        began_s = time.perf_counter()
        end_s = began_s + seconds
        while (now_s := time.perf_counter()) < end_s or flight:
            while len(flight) < window and now_s < end_s:
                flight.append((writer.append_nowait(ENTRY), now_s))
            await flight[0][0]
            now_s = time.perf_counter()
            while flight and flight[0][0].done():
                future, sent_s = flight.popleft()
                future.result()
                took_us.append((now_s - sent_s) * 1e6)
        return took_us, time.perf_counter() - began_s


async def append(window: int, seconds: float) -> dict[str, float]:
    """Append to a ledger of three bookies."""
    async with (
        LocalCluster(3, data="cluster") as cluster,
        fastbk.connect(cluster.metadata_uri, entries_in_flight_max=max(window, 1)) as client,
    ):
        await append_for(client, window, WARM_UP_S)
        before_s, client_s = bookies_cpu_s(cluster), time.process_time()
        took_us, took_s = await append_for(client, window, seconds)
        client_s, count = time.process_time() - client_s, len(took_us)
        return {
            "per_s": count / took_s,
            "p50_us": percentile(took_us, 0.5),
            "p99_us": percentile(took_us, 0.99),
            "p999_us": percentile(took_us, 0.999),
            "bookie_us": (bookies_cpu_s(cluster) - before_s) / count * 1e6,
            "client_us": client_s / count * 1e6,
            "memory_mb": memory_pss_bytes(pids_of(cluster)) / 1e6,
        }


async def beside(pairs: int) -> dict[str, float]:
    """Append one at a time to one bookie: in C and by the client, in turn; both in this process."""
    from fastbk.model.entry import master_key
    from fastbk.native.load import Load, LoadOptions
    from fastbk.wire.messages import Hello, encode_hello

    hello = encode_hello(0, Hello(client_name="bench"))
    found: list[tuple[float, float]] = []
    client_s, count = 0.0, 0
    async with (
        LocalCluster(1, data="cluster") as cluster,
        fastbk.connect(cluster.metadata_uri, explicit_lac_interval=0.0) as client,
    ):
        options = LoadOptions("127.0.0.1", cluster.bookies[0].port, master_key(b""))
        for _ in range(pairs + 1):
            async with await client.create_ledger(1, 1, 1) as writer:
                load = Load(options, [writer.ledger_id], hello)
                load.append(PAIR_S)
                c_us = load.result().latencies.percentile_us(50)
                load.close()
            async with await client.create_ledger(1, 1, 1) as writer:
                took_us = []
                began_s, before_s = time.perf_counter(), time.process_time()
                while (sent_s := time.perf_counter()) < began_s + PAIR_S:
                    await writer.append(ENTRY)
                    took_us.append((time.perf_counter() - sent_s) * 1e6)
                client_s += time.process_time() - before_s
                count += len(took_us)
            found.append((c_us, statistics.median(took_us)))
    del found[0]  # the first pair warms all up
    return {
        "p50_us": statistics.median(own_us for _, own_us in found),
        "c_p50_us": statistics.median(c_us for c_us, _ in found),
        "behind_c_us": statistics.median(own_us - c_us for c_us, own_us in found),
        "client_us": client_s / count * 1e6,
    }


async def ledgers(count: int) -> dict[str, float]:
    """Create, close, open and recover ledgers of ten entries; their metadata are in a ZooKeeper."""
    from fastbk.devcluster.cluster import ZooKeeperServer
    from fastbk.meta.uri import parse_zookeeper
    from fastbk.meta.zookeeper import admin as zookeeper_admin

    took: dict[str, list[float]] = {
        name: [] for name in ("create", "close", "open", "recover", "recover_dead")
    }

    async def timed(name: str, call: object) -> object:
        began_s = time.perf_counter()
        found = await call  # type: ignore[misc]
        took[name].append((time.perf_counter() - began_s) * 1e6)
        return found

    server = ZooKeeperServer(Path("zookeeper"), is_durable=False)
    server.start()
    try:
        location = parse_zookeeper(f"zk+hierarchical://{server.address}/ledgers")
        zookeeper_admin.init(location)
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(
                LocalCluster(3, data="cluster", metadata_uri=location.uri)
            )
            before_s, client_s = bookies_cpu_s(cluster), time.process_time()
            closed, left_open = [], []
            async with fastbk.connect(cluster.metadata_uri, explicit_lac_interval=0.0) as client:
                for to_close in (True, False):
                    for _ in range(count if to_close else 2 * count):
                        writer = await timed("create", client.create_ledger(*QUORUM))
                        assert isinstance(writer, fastbk.client.LedgerWriter)
                        await writer.append_many([ENTRY] * ENTRIES_A_LEDGER)
                        if to_close:
                            await timed("close", writer.close())
                        (closed if to_close else left_open).append(writer.ledger_id)
            async with fastbk.connect(cluster.metadata_uri) as client:
                for ledger_id in closed:
                    await timed("open", client.open_ledger(ledger_id))
                for ledger_id in left_open[:count]:
                    await timed("recover", client.open_ledger(ledger_id))
            used_s = bookies_cpu_s(cluster) - before_s
            memory_mb = memory_pss_bytes(pids_of(cluster)) / 1e6
            await cluster.kill_async(1)
            async with fastbk.connect(cluster.metadata_uri) as client:
                # The first one finds out which bookie is dead.
                await client.open_ledger(left_open.pop())
                for ledger_id in left_open[count:]:
                    await timed("recover_dead", client.open_ledger(ledger_id))
            return {
                **{f"{name}_p50_us": statistics.median(values) for name, values in took.items()},
                "bookie_us": used_s / (3 * count) * 1e6,
                "client_us": (time.process_time() - client_s) / (3 * count) * 1e6,
                "memory_mb": memory_mb,
            }
    finally:
        server.kill()


def arrow(mib: int, rounds: int) -> dict[str, float]:
    """Read a stream, 64 records an entry, into Arrow batches: the fastest of some rounds, from warm caches."""
    import fastbk.sync
    from fastbk.arrow import read_stream

    count = mib * 1024
    best: dict[str, float] = {}
    with (
        LocalCluster(3, data="cluster") as cluster,
        fastbk.sync.connect(cluster.metadata_uri) as client,
    ):
        client.namespace("bench").create()
        with client.namespace("bench").create_stream("one").writer() as writer:
            # Versions before 0.3 have no `append_batch_nowait`: there it is called `append_batch`.
            append_batch = getattr(writer, "append_batch_nowait", None) or writer.append_batch
            for _ in range(count // 4096):
                for _ in range(64):
                    append_batch([ENTRY] * 64)
                writer.flush()
        for _ in range(rounds + 1):
            before_s, client_s, began_s = (
                bookies_cpu_s(cluster),
                time.process_time(),
                time.perf_counter(),
            )
            rows = sum(batch.num_rows for batch in read_stream(client, "bench/one"))
            took_s = time.perf_counter() - began_s
            if rows / took_s > best.get("per_s", 0.0):
                best = {
                    "per_s": rows / took_s,
                    "mb_per_s": rows * len(ENTRY) / 1e6 / took_s,
                    "bookie_us": (bookies_cpu_s(cluster) - before_s) / rows * 1e6,
                    "client_us": (time.process_time() - client_s) / rows * 1e6,
                    "memory_mb": memory_pss_bytes(pids_of(cluster)) / 1e6,
                }
    return best


def main(arguments: list[str]) -> None:
    """Run the named load."""
    what, *numbers = arguments
    if what == "append":
        found = uvloop.run(append(int(numbers[0]), float(numbers[1])))
    elif what in ("beside", "ledgers"):
        found = uvloop.run((beside if what == "beside" else ledgers)(int(numbers[0])))
    else:
        found = arrow(int(numbers[0]), int(numbers[1]))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
