"""`./dev bench pulsar`: Pulsar's broker on bookies of ours and on Apache's, in turn in one run, under a sustained load.

Each side has a broker and three bookies, which have every message and of which two are waited for; journals are synced
on both. One producer of Pulsar's Java client publishes messages of 1 KiB with its own batching: first as many as 1,000
under way allow, then RATE=5000 a second. ROUNDS=3 of SECONDS=20 each, after WARM=5 seconds; the sides swap their order
each round. Needs a JDK and Maven, as `./dev compat` does.

Each round of a side has bookies of its own, whose data is deleted afterwards: a load writes up to 20 GB. Then all
is written to the disk, for what one side has left in the page cache would be written beside the other side's load.

A message's latency is the producer's: from the call, or from when it was due, to its acknowledgement. Bytes to disk are
what the kernel counts for the bookies' processes (/proc/PID/io).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.compat.jars import programs
from tests.compat.pulsar_rig import BROKER_NEEDS, Broker, Clients, pulsar_clients, pulsar_cluster
from tests.compat.rig import Cluster, Rig
from tools.bench_compat import APACHE_SETTINGS
from tools.bench_costs import written_of
from tools.part import scratch, setting, write

LOAD_MAIN = "fastbk.compat.PulsarLoad"
BOOKIES = 3
MESSAGE_BYTES = 1024
UNDER_WAY = 1000
BOOKIE_OPTIONS = ("-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m")
BROKER_OPTIONS = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", *BROKER_NEEDS)
CLIENT_OPTIONS = ("-Xms512m", "-Xmx512m", *BROKER_NEEDS)
BROKER_SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": 50_000,
    "managedLedgerMinLedgerRolloverTimeMinutes": 10,
    "managedLedgerCacheSizeMB": 128,
    "transactionCoordinatorEnabled": "false",
}
"""Pulsar's own values: the cells' ledgers are as short as their waits."""
SIDES = ("ours", "Apache's")
LOAD_S_MAX = 120.0
COLUMNS = {
    "messages_per_s": ",.0f", "p50_ms": ".2f", "p99_ms": ".1f", "p999_ms": ".1f",
    "broker_cpu_us": ".1f", "bookies_cpu_us": ".1f", "client_cpu_us": ".1f", "disk_bytes": ",.0f",
}  # fmt: skip
"""Columns of the table: what of a run, and how it is written."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one round of a load came to. Processor time and bytes are those of one message."""

    side: str
    rate: int
    """Messages a second that are due; 0: as many as may be under way."""
    messages_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    broker_cpu_us: float
    bookies_cpu_us: float
    client_cpu_us: float
    disk_bytes: float
    """The bytes of all three bookies."""


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    cluster: Cluster
    broker: Broker
    clients: Clients

    def run(self, rate: int, warm_s: float, seconds: float) -> Run:
        """Publish to the topic of that rate. Raises SystemExit if a message failed."""
        topic = f"persistent://public/default/load-{rate}"
        words = [self.broker.service_url, topic, warm_s, seconds, rate, UNDER_WAY, MESSAGE_BYTES]
        command = self.clients.java.command(LOAD_MAIN, *map(str, words), options=CLIENT_OPTIONS)
        with (
            open(self.cluster.folder / "load.log", "ab") as log,
            _program(command, warm_s + seconds + LOAD_S_MAX, log.fileno()) as process,
        ):
            _line(process, "READY")
            before = self._spent()
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            found = [float(word) for word in _line(process, "LOAD").split()[1:]]
            after = self._spent()
        count, took_s, p50_us, p99_us, p999_us, client_s, failed = found
        if failed or not count:
            raise SystemExit(
                f"{self.name}: {failed:.0f} messages failed; see {self.cluster.folder}"
            )
        broker_s, bookies_s, written = (
            (late - early) / count for early, late in zip(before, after, strict=True)
        )
        return Run(
            self.name,
            rate,
            messages_per_s=round(count / took_s, 1),
            p50_ms=round(p50_us / 1000, 3),
            p99_ms=round(p99_us / 1000, 3),
            p999_ms=round(p999_us / 1000, 3),
            broker_cpu_us=round(broker_s * 1e6, 2),
            bookies_cpu_us=round(bookies_s * 1e6, 2),
            client_cpu_us=round(client_s / count * 1e6, 2),
            disk_bytes=round(written, 1),
        )

    def _spent(self) -> tuple[float, float, float]:
        """Return the seconds of the broker's and the bookies' processors so far, and the bookies' bytes to disk."""
        members = self.cluster.members
        pids = [pid for member in members for pid in member.processes().values()]
        return (
            self.broker.cpu_s(),
            sum(member.cpu_s() for member in members),
            float(sum(map(written_of, pids))),
        )


@contextmanager
def _program(command: list[str], seconds_max: float, log: int) -> Iterator[subprocess.Popen[str]]:
    """Give a program with pipes, which is killed at the end; it ends by itself after so many seconds."""
    with subprocess.Popen(
        ["timeout", str(seconds_max), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _line(process: subprocess.Popen[str], start: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line
    raise SystemExit(f"the load ended with {process.wait()} before it said {start}")


def measure(
    folder: Path, rounds: int, warm_s: float, seconds: float, rates: tuple[int, ...]
) -> list[Run]:
    """Run all rounds. Raises SystemExit if what it needs cannot be had."""
    runs = []
    with Rig(folder, programs()) as rig:
        clients = pulsar_clients(rig)
        if isinstance(clients, str):
            raise SystemExit(clients)
        for number in range(rounds):
            for name in SIDES if number % 2 == 0 else reversed(SIDES):
                with _side(rig, clients, name) as side:
                    for rate in rates:
                        runs.append(side.run(rate, warm_s, seconds))
                        print(runs[-1], flush=True)
                shutil.rmtree(side.cluster.folder)
                os.sync()
    return runs


@contextmanager
def _side(rig: Rig, clients: Clients, name: str) -> Iterator[Side]:
    def add(cluster: Cluster) -> None:
        if name == "ours":
            cluster.add_ours(BOOKIES)
        else:
            cluster.add_apache(BOOKIES, dict(APACHE_SETTINGS), BOOKIE_OPTIONS)

    with pulsar_cluster(
        rig, clients, "v2", add, java_options=BROKER_OPTIONS, more_settings=BROKER_SETTINGS
    ) as (cluster, broker):
        yield Side(name, cluster, broker, clients)


def table(runs: list[Run]) -> str:
    """Return medians in Markdown, and the medians of ratios, round by round."""
    lines = [
        "| load | bookies | messages/s | p50 ms | p99 ms | p99.9 ms"
        " | CPU µs a message: broker | bookies | client | bytes to disk a message |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for rate in dict.fromkeys(run.rate for run in runs):
        load = f"{rate:,} a second" if rate else f"{UNDER_WAY:,} under way"
        by_side = [[run for run in runs if (run.rate, run.side) == (rate, side)] for side in SIDES]
        rows: list[tuple[str, dict[str, float]]] = []
        for side, of_side in zip(SIDES, by_side, strict=True):
            values = {name: [getattr(run, name) for run in of_side] for name in COLUMNS}
            rows.append((side, {name: statistics.median(all_) for name, all_ in values.items()}))
        for side, row in rows:
            cells = [format(row[name], how) for name, how in COLUMNS.items()]
            lines.append(f"| {load} | {side} | {' | '.join(cells)} |")
        ratios = [
            statistics.median(
                getattr(ours, name) / max(getattr(theirs, name), 1e-9)
                for ours, theirs in zip(*by_side, strict=True)
            )
            for name in COLUMNS
        ]
        lines.append(f"| {load} | ours ÷ Apache's | {' | '.join(f'{one:.2f}' for one in ratios)} |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print the table and write all runs."""
    rounds, seconds = setting("ROUNDS", 3), setting("SECONDS", 20.0)
    rates = (0, setting("RATE", 5000))
    with scratch() as folder:
        runs = measure(folder, rounds, setting("WARM", 5.0), seconds, rates)
    write("bench-pulsar", [dataclasses.asdict(run) for run in runs])
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
