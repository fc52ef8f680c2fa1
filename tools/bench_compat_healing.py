"""`./dev compat BENCH=heal`: a lost bookie is healed by our AutoRecovery on our bookies, and by Apache's on Apache's.

Four bookies, ledgers with E = 3 and Qw = 2 of 64 KiB entries, until each bookie holds GIB of copies. One is killed
while a client of ours appends at a fixed rate. Apache's daemon has its default settings; ours runs at its default rate,
and once more without a limit. Told: bytes a second from the first mark to the last copy, processor time a GiB, and the
p99 of the appends before the loss, once the disk has digested the ledgers, and while copies are made.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass

import fastbk
from fastbk.autorecovery.state import ClusterState, Settings
from fastbk.client import Client
from fastbk.devcluster.processes import cpu_seconds
from fastbk.meta import MetadataStore
from fastbk.meta.replica_marks import LedgerMark
from fastbk.model.ids import BookieId
from tests.compat.autorecovery import daemon
from tests.compat.jars import BUILD
from tests.compat.members import FASTBK, children_of
from tests.compat.rig import Cluster, Rig
from tests.fixtures.wait import wait_until_async
from tools.bench_compat import APACHE_SETTINGS, BOOKIE_OPTIONS

SYSTEMS = ("ours", "ours without a limit", "apache")
BOOKIES = 4
ENTRY_BYTES = 64 * 1024
LEDGER_ENTRIES = 1024
"""64 MiB of data."""
APPENDS_PER_S = 400
APPEND_BYTES = 1024
CALM_APPENDS = 20 * APPENDS_PER_S
"""Appends before the baseline: some ten seconds after a fill, commits took 0.2 s for some seconds (a virtual disk)."""
BASELINE_APPENDS = 15 * APPENDS_PER_S
DELAY_S = 1
HEALED_S_MAX = 3600.0
UNLIMITED = float(1 << 40)


@dataclass(frozen=True, slots=True)
class Healed:
    system: str
    gib: float
    """Copied."""
    seconds: float
    mib_per_s: float
    cpu_s_per_gib: float
    """Of bookies and daemons."""
    p99_before_ms: float
    p99_ms: float
    """Of appends while copies were made."""


def heal_bench(rig: Rig, environment: Mapping[str, str]) -> int:
    """Measure each system once; print a table, keep it in build/compat/heal.json."""
    gib = float(environment.get("GIB", "") or 4)
    chosen = [one for one in environment.get("SYSTEMS", "").split(",") if one] or SYSTEMS
    runs = []
    for system in chosen:
        is_apache = system == "apache"
        with rig.cluster(
            ours=0 if is_apache else BOOKIES,
            apache=BOOKIES if is_apache else 0,
            apache_settings=APACHE_SETTINGS,
            java_options=BOOKIE_OPTIONS,
        ) as cluster:
            run = asyncio.run(_heal(cluster, system, gib))
        shutil.rmtree(cluster.folder)
        print(run, flush=True)
        runs.append(run)
    (BUILD / "heal.json").write_text(json.dumps([asdict(one) for one in runs], indent=1) + "\n")
    print(_table(runs))
    return 0


async def _heal(cluster: Cluster, system: str, gib: float) -> Healed:
    lost = cluster.members[0]
    async with fastbk.connect(cluster.metadata_uri) as client:
        await client.call_store(lambda store: store.coordination.set_lost_bookie_delay(DELAY_S))
        if system == "ours without a limit":
            await ClusterState(client.records).settings.put(Settings(UNLIMITED))
        await _fill(client, gib)
        copied_gib = await _held_gib(client, lost.bookie_id)
        with _daemons(cluster, system):
            async with _appends(client) as latencies:
                await wait_until_async(
                    lambda: len(latencies) >= CALM_APPENDS, "a calm disk", HEALED_S_MAX
                )
                began_s, count = time.monotonic(), len(latencies) + BASELINE_APPENDS
                await wait_until_async(lambda: len(latencies) >= count, "a baseline", HEALED_S_MAX)
                killed_s = time.monotonic()
                lost.kill()
                total = await _named(client, lost.bookie_id)
                await wait_until_async(
                    lambda: _is_marked(client), "the loss is noticed", HEALED_S_MAX
                )
                first_s, cpu_s = time.monotonic(), _cpu_s(cluster)
                while left := await _named(client, lost.bookie_id):
                    assert time.monotonic() < first_s + HEALED_S_MAX, (
                        f"{left} of {total} fragments are left"
                    )
                    print(f"{system}: {total - left} of {total} fragments", end="\r", flush=True)
                    await asyncio.sleep(0.5)
                healed_s = time.monotonic()
                spent_s = _cpu_s(cluster) - cpu_s
    seconds = healed_s - first_s
    return Healed(
        system,
        round(copied_gib, 2),
        round(seconds, 1),
        round(copied_gib * 1024 / seconds, 1),
        round(spent_s / copied_gib, 1),
        _p99(latencies, began_s, killed_s),
        _p99(latencies, first_s, healed_s),
    )


async def _fill(client: Client, gib: float) -> None:
    count = max(1, round(gib * BOOKIES / 2 * 1024 / (LEDGER_ENTRIES * ENTRY_BYTES / 2**20)))
    data = os.urandom(ENTRY_BYTES + 4096)
    for number in range(count):
        async with await client.create_ledger(3, 2, 2) as writer:
            for first in range(0, LEDGER_ENTRIES, 64):
                await writer.append_many(
                    [data[one % 4096 :][:ENTRY_BYTES] for one in range(first, first + 64)]
                )
        print(f"{number + 1} of {count} ledgers are written", end="\r", flush=True)


async def _held_gib(client: Client, bookie_id: BookieId) -> float:
    found = 0.0
    async for info in client.list_ledgers():
        for fragment in info.metadata.fragments:
            if bookie_id in fragment.ensemble and info.metadata.is_closed:
                found += (
                    info.metadata.length * info.metadata.write_quorum / info.metadata.ensemble_size
                )
    return found / 2**30


async def _named(client: Client, bookie_id: BookieId) -> int:
    """Return in how many fragments of closed ledgers it is."""
    fragments = [
        fragment
        async for info in client.list_ledgers()
        if info.metadata.is_closed
        for fragment in info.metadata.fragments
    ]
    return sum(bookie_id in one.ensemble for one in fragments)


async def _is_marked(client: Client) -> bool:
    return bool(await client.marks.list()) or bool(await client.call_store(_apaches_marks))


def _apaches_marks(store: MetadataStore) -> list[LedgerMark]:
    return list(store.marks.foreign())


@contextmanager
def _daemons(cluster: Cluster, system: str) -> Iterator[None]:
    with ExitStack() as stack:
        if system == "apache":
            settings: dict[str, object] = {
                "lostBookieRecoveryDelay": DELAY_S,
                "auditorPeriodicCheckInterval": 0,
                "auditorReplicasCheckInterval": 0,
            }
            stack.enter_context(daemon(cluster, settings))
        else:
            for number in range(2):
                log = stack.enter_context(open(cluster.folder / f"healer-{number}.log", "wb"))
                words = ("autorecovery", "--metadata", cluster.metadata_uri)
                process = subprocess.Popen([*FASTBK, *words], stdout=log, stderr=log)
                stack.callback(process.wait, 30)
                stack.callback(process.terminate)
        yield


@asynccontextmanager
async def _appends(client: Client) -> AsyncIterator[list[tuple[float, float]]]:
    """Append at a fixed rate while the block runs: when each was due, and how long it took from then, in ms."""
    latencies: list[tuple[float, float]] = []

    async def one(writer: fastbk.LedgerWriter, due_s: float) -> None:
        await writer.append(bytes(APPEND_BYTES))
        latencies.append((due_s, (time.monotonic() - due_s) * 1000))

    async def write() -> None:
        async with await client.create_ledger(3, 2, 2) as writer:
            under_way: set[asyncio.Task[None]] = set()
            began_s, count = time.monotonic(), 0
            while True:
                while (due_s := began_s + count / APPENDS_PER_S) <= time.monotonic():
                    task = asyncio.create_task(one(writer, due_s))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                    count += 1
                await asyncio.sleep(0.001)

    writing = asyncio.create_task(write())
    try:
        yield latencies
    finally:
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing


def _cpu_s(cluster: Cluster) -> float:
    """Return what bookies and daemons have used: all children of this process, and the bookies' processes."""
    pids = {str(pid): pid for pid in children_of(os.getpid())}
    for member in cluster.members:
        if member.is_running:
            pids |= {f"{member.bookie_id} {name}": pid for name, pid in member.processes().items()}
    return sum(cpu_seconds({str(pid): pid for pid in set(pids.values())}).values())


def _p99(latencies: Sequence[tuple[float, float]], first_s: float, end_s: float) -> float:
    found = sorted(took_ms for at_s, took_ms in latencies if first_s <= at_s < end_s)
    return round(found[int(0.99 * len(found))], 1) if found else float("nan")


def _table(runs: Sequence[Healed]) -> str:
    names = list(asdict(runs[0])) if runs else []
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(str(value) for value in asdict(one).values())} |" for one in runs]
    return "\n".join(lines)
