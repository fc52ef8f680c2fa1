"""`./dev bench objects`: objects in and out, beside a plain file's copy in the same run.

SIZE_MIB=512 of each object or file, RUNS=3 in turn, one client and three bookies on this machine, three copies of each
byte. SMALL=2000 objects of 1 KiB, a ledger each, and ten times as many that share one. A plain file is written once and
synced; an object is written three times, to the journal of each bookie, and the bookies, the client and the disk are
one machine's.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import fastbk
from fastbk.objects import Objects
from fastbk.testing import LocalCluster
from fastbk.units import MIB
from tools.part import print_table, scratch, setting

Figures = dict[str, dict[str, float]]
PIECE = os.urandom(4 * MIB)
SMALL_BYTES, SMALL_TOGETHER = 1024, 16


async def _pieces(size_mib: int) -> AsyncGenerator[bytes, None]:
    for _ in range(size_mib // 4):
        yield PIECE


def _write_file(path: Path, size_mib: int) -> None:
    with path.open("wb") as file:
        for _ in range(size_mib // 4):
            file.write(PIECE)
        file.flush()
        os.fsync(file.fileno())


def _copy_file(path: Path, target: Path) -> None:
    with path.open("rb") as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, 4 * MIB)
        copy.flush()
        os.fsync(copy.fileno())


async def _seconds(act: Callable[[], Awaitable[object]]) -> float:
    began_s = time.perf_counter()
    await act()
    return time.perf_counter() - began_s


async def run(folder: Path, uri: str, size_mib: int, runs: int, small: int) -> Figures:
    """Return MB/s of each way, of its best run, and how many small objects went a second."""
    took_s: dict[str, list[float]] = {}
    plain, copy = folder / "plain", folder / "copy"
    async with fastbk.connect(uri) as client:
        namespace = client.namespace("bench")
        await namespace.create()
        objects = Objects(namespace)

        async def read_all() -> None:
            async with objects.open("big") as reader:
                async for _ in reader.chunks():
                    pass

        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "plain file, written and synced": lambda: asyncio.to_thread(
                _write_file, plain, size_mib
            ),
            "plain file, copied and synced": lambda: asyncio.to_thread(_copy_file, plain, copy),
            "object in": lambda: objects.put("big", _pieces(size_mib), if_absent=False),
            "object out, checked": read_all,
        }
        for _ in range(runs):
            for way, act in ways.items():
                took_s.setdefault(way, []).append(await _seconds(act))
        figures = {
            way: {"MB/s": round(size_mib * MIB / min(some) / 1e6)} for way, some in took_s.items()
        }
        turns = asyncio.Semaphore(SMALL_TOGETHER)

        async def put(number: int) -> None:
            async with turns:
                await objects.put(f"small/{number}", PIECE[:SMALL_BYTES])

        async def put_all() -> None:
            await asyncio.gather(*map(put, range(small)))

        figures["small objects in"] = {"a second": round(small / await _seconds(put_all))}

        many = {f"many/{number}": PIECE[:SMALL_BYTES] for number in range(10 * small)}
        took = await _seconds(lambda: objects.put_many(many))
        figures["small objects in, sharing a ledger"] = {"a second": round(len(many) / took)}

        async def list_all() -> None:
            assert sum([1 async for _ in objects.list("small/")]) == small

        figures["small objects listed"] = {"a second": round(small / await _seconds(list_all))}
    return figures


def main() -> Figures:
    """Measure, print a table, and return the figures."""
    size_mib, runs = setting("SIZE_MIB", 512), setting("RUNS", 3)
    small = setting("SMALL", 2000)
    with (
        scratch() as folder,
        LocalCluster(3, write_services=0, data=folder / "cluster") as cluster,
    ):
        figures = asyncio.run(run(folder, cluster.metadata_uri, size_mib, runs, small))
    print_table(figures)
    return figures
