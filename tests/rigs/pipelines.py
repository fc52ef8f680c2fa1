"""Rig `pipeline`: pipelines are killed by SIGKILL at random moments, and the next one goes on.

Two sources are written all the time. One kind of pipeline has one sink and a transform whose outputs are never the
same; the other one has two sinks. Each life is a process of its own. Some are killed while they open, some while the
next one has the sinks already, some while a bookie is dead. At the end each sink must have each output once, in the
order of each source. INV-S44, INV-S45, INV-S46.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import fastbk
from fastbk.errors import Error
from fastbk.native.process import die_with_parent
from fastbk.pipelines.pipeline import Output, Pipeline
from fastbk.stream.client import Client
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.records import Chunk, Record
from fastbk.testing import LocalCluster
from tests.rigs.report import Plan, Report

NAMESPACE = "pipeline"
SOURCES = ("orders", "returns")
ALL, GOOD, BAD = "all", "good", "bad"
KINDS = {"one": (ALL,), "two": (GOOD, BAD)}
ROLL_BYTES = 100_000
WRITE_EVERY_S, BURST = 0.02, 20
PATIENCE_S = 60.0
BOOKIES, BOOKIE_EVERY = 4, 10
CONNECTED, OPENED = b"connected\n", b"opened\n"


def payload_of(source: str, number: int) -> bytes:
    """Return the bytes of a source's record: a function of its number, of many sizes."""
    return f"{source} {number} ".encode() + bytes([number % 251]) * (number * 7919 % 300)


def key_of(payload: bytes) -> tuple[str, int]:
    """Return which source's record this is, and its number."""
    source, number, _ = payload.split(b" ", 2)
    return source.decode(), int(number)


def sinks_of(number: int) -> tuple[str, ...]:
    """Return which of two sinks get a record, by its number alone: none, one or both."""
    return ((), (GOOD,), (BAD,), (GOOD, BAD))[number % 4]


def numbered(chunk: Chunk) -> list[bytes | None]:
    """Return an output for each record that nobody makes twice; none of every seventh."""
    payloads = [bytes(view) for view in chunk.payloads()]
    return [
        payload + secrets.token_bytes(8) if key_of(payload)[1] % 7 else None for payload in payloads
    ]


def routed(record: Record) -> list[Output]:
    """Return the outputs of a record for two sinks, one with a key."""
    source, number = key_of(record.value)
    return [Output(record.value, key=source.encode(), sink=sink) for sink in sinks_of(number)]


def made(namespace: Namespace, kind: str) -> Pipeline:
    """Return the pipeline of a kind."""
    sources = [namespace.stream(name) for name in SOURCES]
    sinks = [namespace.stream(name) for name in KINDS[kind]]
    if kind == "one":
        return fastbk.pipeline(source=sources, sinks=sinks, transform_many=numbered)
    return fastbk.pipeline(source=sources, sinks=sinks, transform=routed, deterministic=True)


async def run_until_killed(metadata_uri: str, kind: str, *, until_caught_up: bool) -> None:
    """One life: go on behind what is there."""
    async with fastbk.connect(metadata_uri) as client:
        os.write(1, CONNECTED)
        async with made(client.namespace(NAMESPACE), kind) as pipeline:
            os.write(1, OPENED)
            await pipeline.run(until_caught_up=until_caught_up)


class Life:
    """A pipeline's process, and what it noted."""

    def __init__(self, metadata_uri: str, kind: str, notes: Path, mode: str = "run") -> None:
        self._notes = notes
        with notes.open("wb") as out, notes.with_suffix(".err").open("wb") as err:
            command = [sys.executable, "-m", "tests.rigs.pipelines", metadata_uri, kind, mode]
            self.process = subprocess.Popen(command, stdout=out, stderr=err)

    async def until_noted(self, what: bytes) -> bool:
        """Return whether it noted that before it ended; RuntimeError if neither happens."""
        end_s = time.monotonic() + PATIENCE_S
        while what not in self._notes.read_bytes():
            if self.process.poll() is not None:
                return False
            if time.monotonic() > end_s:
                raise RuntimeError(f"a pipeline did nothing for {PATIENCE_S:g} s: {self._notes}")
            await asyncio.sleep(0.005)
        return True

    def kill(self) -> None:
        """End it, as SIGKILL does."""
        self.process.kill()
        self.process.wait()


async def lives(
    plan: Plan, report: Report, metadata_uri: str, folder: Path, cluster: LocalCluster | None
) -> None:
    """Begin and kill pipelines; under every tenth one a bookie of the cluster, too."""
    rng = random.Random(plan.seed)
    overtaken: Life | None = None
    kind = "one"
    while plan.begins(report.cases):
        if overtaken is None:
            kind = rng.choice(list(KINDS))
        bookie = None
        if cluster is not None and report.cases % BOOKIE_EVERY == BOOKIE_EVERY - 1:
            bookie = report.cases // BOOKIE_EVERY % BOOKIES
            await cluster.kill_async(bookie)
            report.counts["bookies_killed"] += 1
        life = Life(metadata_uri, kind, folder / f"{report.cases}.notes")
        try:
            manner = rng.random()
            awaited = CONNECTED if manner < 0.2 else OPENED  # every fifth while it opens
            if await life.until_noted(awaited):
                await asyncio.sleep(rng.uniform(0, 0.05 if manner < 0.2 else 0.6))
                report.counts["killed_opening" if manner < 0.2 else "opened"] += 1
        finally:
            if overtaken is not None:
                overtaken.kill()
                overtaken = None
            if manner > 0.7 and life.process.poll() is None:
                overtaken = life  # the next one takes the sinks from one that lives
                report.counts["overtaken_alive"] += 1
            else:
                life.kill()
        if cluster is not None and bookie is not None:
            await cluster.start_bookie_async(bookie)
        report.cases += 1
    if overtaken is not None:
        overtaken.kill()


async def write_sources(namespace: Namespace) -> None:
    """Append to both sources until cancelled."""
    async with (
        namespace.stream(SOURCES[0]).writer() as first,
        namespace.stream(SOURCES[1]).writer() as second,
    ):
        number = 0
        try:
            while True:
                for _ in range(BURST):
                    for name, writer in zip(SOURCES, (first, second), strict=True):
                        writer.append_nowait(payload_of(name, number))
                    number += 1
                await first.ready()
                await second.ready()
                await asyncio.sleep(WRITE_EVERY_S)
        except asyncio.CancelledError:
            return


async def payloads_of(namespace: Namespace, name: str) -> list[bytes]:
    """Return the payloads of a stream's records."""
    async with namespace.stream(name).reader(tail=False) as reader:
        return [record.value async for record in reader]


def judge(outputs: dict[str, list[bytes]], counts: dict[str, int]) -> list[str]:
    """Return what was lost, repeated, reordered or made up. `counts`: records of each source."""
    wrong: list[str] = []
    for sink, payloads in outputs.items():
        for source, count in counts.items():
            stored = [payload for payload in payloads if key_of(payload)[0] == source]
            numbers = [
                number
                for number in range(count)
                if (number % 7 if sink == ALL else sink in sinks_of(number))
            ]
            wrong += _differences(f"{sink}, outputs of {source}", stored, numbers)
            for payload in stored:
                body = payload[:-8] if sink == ALL else payload
                if body != payload_of(*key_of(payload)):
                    wrong.append(f"{sink}: {key_of(payload)} has other bytes")
        if sink == ALL and len({*payloads}) < len(payloads):
            wrong.append(f"{sink}: an output is there twice")
    return wrong


def _differences(what: str, stored: Sequence[bytes], wanted: Sequence[int]) -> list[str]:
    numbers = [key_of(payload)[1] for payload in stored]
    if numbers == wanted:
        return []
    lost, twice = {*wanted} - {*numbers}, len(numbers) - len({*numbers})
    return [f"{what}: {len(numbers)} for {len(wanted)}, {len(lost)} lost, {twice} twice"]


async def _run(
    plan: Plan, report: Report, folder: Path, uri: str, cluster: LocalCluster | None
) -> None:
    async with fastbk.connect(uri) as client:
        namespace = client.namespace(NAMESPACE)
        await namespace.create(PolicyPatch(roll_bytes=ROLL_BYTES))
        await namespace.create_streams([*SOURCES, ALL, GOOD, BAD])
        writing = asyncio.get_running_loop().create_task(write_sources(namespace))
        try:
            await lives(plan, report, uri, folder, cluster)
        finally:
            writing.cancel()
            await writing
        for kind in KINDS:
            last = Life(uri, kind, folder / f"last-{kind}.notes", "catch-up")
            code = await asyncio.to_thread(last.process.wait, PATIENCE_S)
            if code:
                report.lose([f"the last pipeline of kind {kind} ended with {code}"], str(folder))
        counts = {name: len(await payloads_of(namespace, name)) for name in SOURCES}
        outputs = {name: await payloads_of(namespace, name) for name in (ALL, GOOD, BAD)}
        report.lose(judge(outputs, counts), f"seed {plan.seed}, kept in {folder}")
        report.counts["records"] = sum(counts.values())
        report.counts["outputs"] = sum(map(len, outputs.values()))
        report.counts["segments"] = await _segments(client)


async def _segments(client: Client) -> int:
    namespace = client.namespace(NAMESPACE)
    return sum([len(await namespace.stream(name).segments()) for name in (ALL, GOOD, BAD)])


def run(plan: Plan, uri: str = "") -> Report:
    """Kill `plan.cases` pipelines; the folder is kept when something is lost.

    `uri`: of a cluster's metadata that nobody else uses now; empty: of bookies that this starts, and kills.
    """
    report = Report("pipeline")
    with report.folder(plan) as folder, ExitStack() as stack:
        cluster = None
        if not uri:
            cluster = stack.enter_context(LocalCluster(BOOKIES, data=folder / "cluster"))
            uri = cluster.metadata_uri
        asyncio.run(_run(plan, report, folder, uri, cluster))
    return report


if __name__ == "__main__":
    die_with_parent()
    try:
        asyncio.run(
            run_until_killed(sys.argv[1], sys.argv[2], until_caught_up=sys.argv[3] == "catch-up")
        )
    except Error as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None
