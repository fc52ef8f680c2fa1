"""`./dev bench tls`: what TLS costs an add: at window 1 its latency, at window 100 the processors of worker and client.

Two bookies, one in the clear and one with TLS and clients' certificates, take turns (ROUNDS=20 of SECONDS_EACH=1); the
client is Python's on uvloop. Ratios are pairs of neighbours, and their median stands in the table.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

import fastbk
from fastbk.devcluster import cpu_seconds
from fastbk.testing import LocalCluster
from tools.part import percentile, print_table, scratch, setting, write

if TYPE_CHECKING:
    from fastbk.client.ledger_writer import LedgerWriter

SIZES_BYTES = (100, 1024, 8 * 1024, 64 * 1024)
WINDOW = 100
BYTES_MAX = 256 << 20
"""Maximum bytes of one round: more is of no use, and fills the disk."""


class Side:
    """A bookie and a writer to it."""

    def __init__(self, cluster: LocalCluster, writer: LedgerWriter) -> None:
        self._pids = dict(cluster.bookies[0].pids)
        self._writer = writer

    async def alone(self, size_bytes: int, seconds: float) -> float:
        """Append one after the other; return the median in µs."""
        data, took_s = b"x" * size_bytes, []
        end_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < end_s:
            await self._writer.append(data)
            took_s.append(time.monotonic() - began_s)
        return percentile(took_s, 0.5) * 1e6

    async def many(self, size_bytes: int, seconds: float) -> tuple[float, float]:
        """Append a hundred at a time; return the µs of the worker's and of our processor for an add."""
        data, count = b"x" * size_bytes, 0
        before, own_s = cpu_seconds(self._pids)["worker.0"], time.process_time()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and count * size_bytes < BYTES_MAX:
            await self._writer.append_many([data] * WINDOW)
            count += WINDOW
        worker_s = cpu_seconds(self._pids)["worker.0"] - before
        return worker_s * 1e6 / count, (time.process_time() - own_s) * 1e6 / count


async def measure(folder: Path, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return the figures by name."""
    async with (
        LocalCluster(1, data=folder / "clear") as clear,
        LocalCluster(1, data=folder / "tls", tls=True) as secure,
        fastbk.connect(clear.metadata_uri, tls=None) as clear_client,
        fastbk.connect(secure.metadata_uri, tls=secure.tls_options) as secure_client,
    ):
        sides = [
            Side(cluster, await client.create_ledger(1, 1, 1))
            for cluster, client in ((clear, clear_client), (secure, secure_client))
        ]
        figures: dict[str, dict[str, float]] = {}
        for size_bytes in SIZES_BYTES:
            pairs: list[list[float]] = []
            costs: list[list[tuple[float, float]]] = []
            for number in range(rounds):
                order = (0, 1) if number % 2 == 0 else (1, 0)
                p50_us, cpu_us = [0.0, 0.0], [(0.0, 0.0)] * 2
                for at in order:
                    p50_us[at] = await sides[at].alone(size_bytes, seconds)
                for at in order:
                    cpu_us[at] = await sides[at].many(size_bytes, seconds / 2)
                pairs.append(p50_us)
                costs.append(cpu_us)
            figures[f"{size_bytes} bytes"] = {
                "clear_p50_us": round(statistics.median(one[0] for one in pairs), 1),
                "tls_p50_us": round(statistics.median(one[1] for one in pairs), 1),
                "p50_ratio": round(statistics.median(one[1] / one[0] for one in pairs), 3),
                "worker_added_us": _added(costs, 0),
                "client_added_us": _added(costs, 1),
                "worker_clear_us": round(statistics.median(one[0][0] for one in costs), 2),
            }
            print_table({f"{size_bytes} bytes": figures[f"{size_bytes} bytes"]})
        return figures


def _added(costs: list[list[tuple[float, float]]], which: int) -> float:
    return round(statistics.median(one[1][which] - one[0][which] for one in costs), 2)


def main() -> int:
    """Measure and write the figures."""
    with scratch() as folder:
        figures = uvloop.run(measure(folder, setting("ROUNDS", 20), setting("SECONDS_EACH", 1.0)))
    write("bench-tls", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
