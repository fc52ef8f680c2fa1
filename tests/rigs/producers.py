"""Rig `producers`: sixteen producers in eight processes append to one stream, and everything under them fails.

Producers, services, bookies and ZooKeeper are killed and frozen at random moments. Each producer goes on behind its
`last_number`, and notes what was acknowledged. The rig reads along, and demands that each name's numbers come one by
one, without a hole and without a repeat, and that nothing that was acknowledged is missing at the end. With ONLY=hard
the stream rolls each second, is truncated behind the reader, and has 10,000 names. INV-S23 to INV-S27.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import fastbk
from fastbk.devcluster.cluster import ZooKeeperServer, find_jars
from fastbk.errors import ConfigError, Error, ProducerFenced
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.native.process import die_with_parent
from fastbk.stream.client import Client
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async
from tests.fixtures.zookeeper import free_ports
from tests.rigs.report import Plan, Report

if TYPE_CHECKING:
    from fastbk.stream.stream import Stream

NAMESPACE, NAME = "producers", "one"
PROCESSES, NAMES_EACH, SERVICES, BOOKIES = 8, 2, 3, 4
MANY_NAMES = 9_900
"""With those of the producers below the 10,000 that a stream takes."""
IN_FLIGHT_MAX = 100
RATE = 150
"""Records a second of each producer: the machine is to be busy with failures, not with bytes."""
PATIENCE_S = 120.0


def payload_of(name: str, number: int) -> bytes:
    """Return a record's bytes: a function of its producer and number, of many sizes."""
    return b"%s %d " % (name.encode(), number) + bytes([number % 251]) * (number * 7919 % 700)


async def produce_until_killed(metadata_uri: str, names: list[str], notes: int) -> None:
    """One process: its producers go on behind what is there, and note what is acknowledged, in order."""
    async with fastbk.connect(metadata_uri) as client:
        stream = client.namespace(NAMESPACE).stream(NAME)
        await asyncio.gather(*(_produce(stream, name, notes) for name in names))


async def _produce(stream: Stream, name: str, notes: int) -> None:
    while True:
        with suppress(
            Error
        ):  # services, bookies or metadata are away for longer than an append may take
            async with stream.producer(name) as producer:
                number = producer.last_number + 1
                os.write(notes, b"%s opened %d\n" % (name.encode(), number - 1))
                pending: deque[tuple[int, asyncio.Future[DLSN | None]]] = deque()
                while True:
                    await producer.ready()
                    future = producer.append_nowait(payload_of(name, number), number=number)
                    pending.append((number, future))
                    number += 1
                    acknowledged = -1
                    while pending and (pending[0][1].done() or len(pending) >= IN_FLIGHT_MAX):
                        acknowledged, future = pending.popleft()
                        await future
                    if acknowledged >= 0:
                        os.write(notes, b"%s stored %d\n" % (name.encode(), acknowledged))
                    await asyncio.sleep(1 / RATE)
        await asyncio.sleep(0.1)


async def open_names(metadata_uri: str, count: int) -> None:
    """Fill the stream's table: so many names with a record each."""
    async with fastbk.connect(metadata_uri) as client:
        stream = client.namespace(NAMESPACE).stream(NAME)
        turns = asyncio.Semaphore(50)

        async def one_record(name: str) -> None:
            async with turns, stream.producer(name) as producer:
                await producer.append(payload_of(name, 0), number=0)

        await asyncio.gather(*(one_record(f"name-{number}") for number in range(count)))


@dataclass(slots=True)
class Worker:
    """A process that may be killed, frozen, and begun again; `command`: what it runs."""

    command: list[str]
    output: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin it, or begin it again."""
        with self.output.open("ab") as out, self.output.with_suffix(".err").open("ab") as err:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=err)

    def kill(self) -> None:
        """End it, as SIGKILL does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def freeze(self, rng: random.Random, most_s: float) -> None:
        """Stop it for a while."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(rng.uniform(0.5, most_s))
        finally:
            self.process.send_signal(signal.SIGCONT)


@dataclass(slots=True)
class Judge:
    """Reads along, and knows what each name has in the stream."""

    last: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    records: int = 0
    position: DLSN = field(default_factory=lambda: DLSN(1, 0, 0))

    async def read(self, client: Client) -> None:
        """Read for ever, from the stream's beginning on."""
        async with client.namespace(NAMESPACE).stream(NAME).reader("earliest") as reader:
            async for chunk in reader.chunks():
                for payload in chunk.payloads():
                    self.take(bytes(payload))
                self.position = chunk.next_dlsn

    def take(self, payload: bytes) -> None:
        """Take the next record of the stream."""
        name, number_text, _ = payload.split(b" ", 2)
        label, number = name.decode(), int(number_text)
        last = self.last.get(label, -1)
        if number != last + 1 or payload != payload_of(label, number):
            self.wrong.append(f"{label}: number {number} follows {last} ({len(payload)} bytes)")
        self.last[label] = max(last, number)
        self.records += 1

    def missing(self, stored: dict[str, int]) -> list[str]:
        """Return what was acknowledged and is not there."""
        return [
            f"{name}: {number} was acknowledged, the stream ends at {self.last.get(name, -1)}"
            for name, number in stored.items()
            if self.last.get(name, -1) < number
        ]


def stored_of(outputs: list[Path]) -> dict[str, int]:
    """Return the highest number of each name that was acknowledged, by what its processes noted."""
    stored: dict[str, int] = {}
    for output in outputs:
        for line in output.read_bytes().split(b"\n")[:-1]:
            name, _, number = line.split()
            stored[name.decode()] = max(stored.get(name.decode(), -1), int(number))
    return stored


class Chaos:
    """What fails, one thing at a time or two; each is a case."""

    def __init__(
        self,
        rng: random.Random,
        cluster: LocalCluster,
        producers: list[Worker],
        services: list[Worker],
        metadata: ZooKeeperServer | None,
        report: Report,
    ) -> None:
        self._kinds = [
            "kill_producer", "freeze_producer", "kill_service", "kill_service", "freeze_service",
            "stop_service", "kill_bookie", "freeze_bookie", *(["freeze_metadata"] if metadata else []),
        ]  # fmt: skip
        self._metadata = metadata
        self._rng = rng
        self._cluster = cluster
        self._producers = producers
        self._services = services
        self._report = report

    async def step(self) -> None:
        """Have something fail, and bring it back."""
        rng = self._rng
        what = rng.choice(self._kinds)
        self._report.counts[what] += 1
        await getattr(self, f"_{what}")()
        await asyncio.sleep(rng.uniform(0.1, 1.5))

    async def _kill_producer(self) -> None:
        worker = self._rng.choice(self._producers)
        worker.kill()
        worker.start()

    async def _freeze_producer(self) -> None:
        await self._rng.choice(self._producers).freeze(self._rng, 3)

    async def _kill_service(self) -> None:
        rng = self._rng
        worker = rng.choice(self._services)
        worker.kill()
        await asyncio.sleep(rng.uniform(0, 2))
        worker.start()

    async def _stop_service(self) -> None:
        worker = self._rng.choice(self._services)
        assert worker.process is not None
        worker.process.terminate()
        await asyncio.to_thread(worker.process.wait, PATIENCE_S)
        worker.start()

    async def _freeze_service(self) -> None:
        await self._rng.choice(self._services).freeze(self._rng, 6)

    async def _kill_bookie(self) -> None:
        rng = self._rng
        bookie = rng.randrange(BOOKIES)
        await self._cluster.kill_async(bookie)
        await asyncio.sleep(rng.uniform(0, 2))
        await self._cluster.start_bookie_async(bookie)

    async def _freeze_bookie(self) -> None:
        rng = self._rng
        async with self._cluster.frozen(rng.randrange(BOOKIES)):
            await asyncio.sleep(rng.uniform(0.5, 3))

    async def _freeze_metadata(self) -> None:
        rng = self._rng
        assert self._metadata is not None
        os.kill(self._metadata.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(rng.uniform(0.5, 8))
        finally:
            os.kill(self._metadata.pid, signal.SIGCONT)


def service_command(metadata_uri: str, port: int) -> list[str]:
    """Return the command of a write service on that port of this machine."""
    listen = f"127.0.0.1:{port}"
    return [sys.executable, "-m", "fastbk.cli", "serve", "--metadata", metadata_uri, "--listen", listen]  # fmt: skip


async def _truncate_behind(stream: Stream, judge: Judge) -> None:
    while True:
        await asyncio.sleep(2.0)
        with suppress(Error):
            await stream.truncate(judge.position)


@asynccontextmanager
async def _metadata_in(folder: Path, kind: str) -> AsyncIterator[ZooKeeperServer | None]:
    """Run a ZooKeeper for the cluster; None: its metadata is sqlite."""
    if kind == "sqlite":
        yield None
        return
    server = ZooKeeperServer(folder, tick_ms=100, session_timeout_max_s=10)
    await asyncio.to_thread(server.start)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.stop)


async def _run(plan: Plan, report: Report, folder: Path) -> None:
    async with _metadata_in(folder / "metadata", plan.metadata) as metadata:
        uri = None
        if metadata is not None:
            location = ZooKeeperLocation((metadata.address,), "/producers/ledgers", None)
            await asyncio.to_thread(zookeeper_admin.init, location)
            uri = location.uri
        async with LocalCluster(
            BOOKIES, data=folder / "cluster", metadata_uri=uri, write_services=0
        ) as cluster:
            await _run_on(plan, report, folder, cluster, metadata)


async def _run_on(
    plan: Plan,
    report: Report,
    folder: Path,
    cluster: LocalCluster,
    metadata: ZooKeeperServer | None,
) -> None:
    rng, uri, is_hard = random.Random(plan.seed), cluster.metadata_uri, plan.only == "hard"
    async with fastbk.connect(uri) as client:
        namespace = client.namespace(NAMESPACE)
        await namespace.create(PolicyPatch(roll_age_s=1.0) if is_hard else None)
        await namespace.create_stream(NAME)
        names = [f"till-{number}" for number in range(PROCESSES * NAMES_EACH)]
        services = [
            Worker(service_command(uri, port), folder / f"service-{number}.out")
            for number, port in enumerate(free_ports(SERVICES))
        ]
        producers = [
            Worker(
                [sys.executable, "-m", "tests.rigs.producers", uri, *names[at::PROCESSES]],
                folder / f"producer-{at}.notes",
            )
            for at in range(PROCESSES)
        ]
        judge = Judge()
        reading = asyncio.create_task(judge.read(client))
        tasks = [reading]
        try:
            for worker in services:
                worker.start()
            if is_hard:
                await open_names(uri, MANY_NAMES)
                tasks.append(asyncio.create_task(_truncate_behind(namespace.stream(NAME), judge)))
            for worker in producers:
                worker.start()
            await wait_until_async(
                lambda: judge.last.keys() >= set(names), "the first records", PATIENCE_S
            )
            chaos = Chaos(rng, cluster, producers, services, metadata, report)
            while plan.begins(report.cases) and not judge.wrong and not reading.done():
                await chaos.step()
                report.cases += 1
            for worker in producers:
                worker.kill()
            stored = stored_of([worker.output for worker in producers])
            with suppress(AssertionError):  # what is missing is said below
                await wait_until_async(lambda: not judge.missing(stored), "all of it", PATIENCE_S)
            if reading.done():
                reading.result()
            report.lose(judge.wrong + judge.missing(stored), f"seed {plan.seed}, kept in {folder}")
            idle = [name for name in names if stored.get(name, -1) < 0]
            report.lose([f"{name} appended nothing" for name in idle], str(folder))
            report.counts["records"] = judge.records
            report.counts["names"] = len(judge.last)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for worker in (*producers, *services):
                worker.kill()


def run(plan: Plan) -> Report:
    """Have `plan.cases` things fail; the folder is kept when something is lost."""
    report = Report("producers")
    if plan.metadata == "zookeeper":
        try:
            find_jars()
        except ConfigError as error:
            report.skipped = str(error)
            return report
    with report.folder(plan) as folder:
        asyncio.run(_run(plan, report, folder))
    return report


if __name__ == "__main__":
    die_with_parent()
    with suppress(ProducerFenced):
        asyncio.run(produce_until_killed(sys.argv[1], sys.argv[2:], sys.stdout.fileno()))
