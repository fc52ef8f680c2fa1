"""`./dev bench quotas`: what a principal at its quota costs another one: the other's latency alone and beside it.

One bookie. The other appends one after the other in ROUNDS=10 rounds of SECONDS_EACH=3 of each kind: alone, beside a
process whose WINDOW adds under way go through at its quota's RATE=2000 a second, and beside one without a quota.
Ratios are of neighbours, and their median stands in the table.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

import fastbk
from fastbk.security.credentials import Credentials
from fastbk.testing import LocalCluster
from tests.fixtures.users import as_user, sasl_section
from tools.part import percentile, print_table, scratch, setting, write

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

    from fastbk.client.ledger_writer import LedgerWriter

USERS = ("limited", "unlimited", "other")
WINDOW = 50
DATA = b"x" * 100
SETTLE_S = 0.5


class Neighbour:
    """A process that appends as much as it may while it is told to."""

    def __init__(self, uri: str, credentials: Credentials) -> None:
        context = multiprocessing.get_context("spawn")
        self._go, self._end = context.Event(), context.Event()
        self._count = context.Value("Q")
        arguments = (uri, credentials, self._go, self._end, self._count)
        self._process = context.Process(target=_append, args=arguments, daemon=True)
        self._process.start()

    @property
    def count(self) -> int:
        """How many of its appends were acknowledged."""
        return int(self._count.value)

    def go(self) -> None:
        """Append."""
        self._go.set()

    def rest(self) -> None:
        """Append no more."""
        self._go.clear()

    def end(self) -> None:
        """End the process."""
        self._end.set()
        self._go.set()
        self._process.join(30.0)


def _append(uri: str, credentials: Credentials, go: Event, end: Event, count) -> None:
    async def run() -> None:
        async with (
            fastbk.connect(uri, credentials=credentials, append_timeout=60.0) as client,
            await client.create_ledger(1, 1, 1) as writer,
        ):

            async def one() -> None:
                while not end.is_set():
                    while not go.is_set():
                        await asyncio.to_thread(go.wait)
                    await writer.append(DATA)
                    count.value += 1

            await asyncio.gather(*(one() for _ in range(WINDOW)))

    uvloop.run(run())


async def latencies_ms(writer: LedgerWriter, seconds: float) -> tuple[float, float]:
    """Append one after the other; return p50 and p99."""
    took_s = []
    end_s = time.monotonic() + seconds
    while (began_s := time.monotonic()) < end_s:
        await writer.append(DATA)
        took_s.append(time.monotonic() - began_s)
    return percentile(took_s, 0.5) * 1e3, percentile(took_s, 0.99) * 1e3


async def measure(
    folder: Path, rounds: int, seconds: float, rate: int
) -> dict[str, dict[str, float]]:
    """Return the figures by name."""
    settings: dict[str, dict[str, object]] = {
        "authentication": sasl_section(folder, *USERS),
        "quotas": {"exceptions": [f"user:limited adds_rate={rate}"]},
    }
    async with (
        LocalCluster(1, data=folder / "data", settings=settings) as cluster,
        fastbk.connect(cluster.metadata_uri, credentials=as_user(folder, "other")) as client,
        await client.create_ledger(1, 1, 1) as writer,
    ):
        neighbours = {
            name: Neighbour(cluster.metadata_uri, as_user(folder, name)) for name in USERS[:2]
        }
        found: dict[str, list[tuple[float, float]]] = {"alone": [], "limited": [], "unlimited": []}
        rates: dict[str, list[float]] = {"limited": [], "unlimited": []}
        for number in range(rounds):
            kinds = list(found) if number % 2 == 0 else list(reversed(found))
            for kind in kinds:
                neighbour = neighbours.get(kind)
                if neighbour is not None:
                    neighbour.go()
                await latencies_ms(writer, SETTLE_S)
                before, began_s = neighbour.count if neighbour else 0, time.monotonic()
                found[kind].append(await latencies_ms(writer, seconds))
                if neighbour is not None:
                    rates[kind].append((neighbour.count - before) / (time.monotonic() - began_s))
                    neighbour.rest()
                    await latencies_ms(writer, SETTLE_S)
        for neighbour in neighbours.values():
            neighbour.end()
    return {
        kind: {
            "p50_ms": round(statistics.median(p50 for p50, _ in ones), 3),
            "p99_ms": round(statistics.median(p99 for _, p99 in ones), 3),
            "p99_ratio": round(
                statistics.median(
                    one[1] / alone[1] for one, alone in zip(ones, found["alone"], strict=True)
                ),
                3,
            ),
            "neighbour_adds_per_s": round(statistics.median(rates.get(kind) or [0.0])),
        }
        for kind, ones in found.items()
    }


def main() -> int:
    """Measure and write the figures."""
    with scratch() as folder:
        figures = uvloop.run(
            measure(
                folder, setting("ROUNDS", 10), setting("SECONDS_EACH", 3.0), setting("RATE", 2000)
            )
        )
    print_table(figures)
    write("bench-quotas", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
