"""Rig `roll`: `fastbk cluster roll` takes a cluster from the released version to this one and back, under load.

Three bookies begin with the released version. The writers of the rig `rolling` write with this version's clients, and
one with the released one's. Two rolls follow: to this version, and back, which operators may do until they finalize.
Then every acknowledged entry must be read, and no copy be missing. The worst append of each roll is noted. INV-U3.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import fastbk
from fastbk.devcluster.cluster import find_jars
from fastbk.errors import ConfigError
from fastbk.formats import LEVEL_PROPERTY
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.testing import LocalCluster
from fastbk.units import MIB
from tests.fixtures import released
from tests.fixtures.cli import Cli
from tests.fixtures.pages import metrics
from tests.fixtures.released import ReleasedCluster
from tests.fixtures.restart_server import restart_server, restarts_into
from tests.fixtures.wait import wait_until_async
from tests.rigs.adopting import adopting, new_files
from tests.rigs.report import Plan, Report
from tests.rigs.rolling import judge, metadata_in, under_load
from tests.rigs.rolling_writers import LOADS, Load, Round

BOOKIES = 3
OLD_WRITER_END_S = 60.0
ADOPT_S = 60.0
ADOPTED = "fastbk_index_adopted_bytes_total"
ADOPTED_BYTES_MIN = MIB

# Runs with the released version until its stdin ends.
_OLD_WRITER = """
import asyncio, json, sys, threading, time
import fastbk

def batch(ledger_id, first):
    return [(b"%d/%d " % (ledger_id, first + one)).ljust(1000, b".") for one in range(20)]

async def main():
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    count, worst_s = 0, 0.0
    async with fastbk.connect(sys.argv[1]) as client, await client.create_ledger(3, 3, 2) as writer:
        print("ready", flush=True)
        while not over.is_set():
            began_s = time.monotonic()
            await writer.append_many(batch(writer.ledger_id, count))
            worst_s = max(worst_s, time.monotonic() - began_s)
            count += 20
            await asyncio.sleep(0.05)
    print(json.dumps({"ledger_id": writer.ledger_id, "count": count, "worst_s": worst_s}), flush=True)

asyncio.run(main())
"""


@dataclass
class RollFigures:
    """What one roll took, in seconds."""

    to: str
    took_s: float
    worst_append_s: float

    def __str__(self) -> str:
        return f"to {self.to}: {self.took_s:.1f} s, worst append {self.worst_append_s * 1e3:.0f} ms"


@asynccontextmanager
async def _old_writer(life: Round, figures: list[str]) -> AsyncIterator[None]:
    """Have a client of the released version write a ledger while the block runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", _OLD_WRITER, life.uri,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=released.environment(released.build()),
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n", "the released client did not start"
        yield
        process.stdin.close()
        said = await asyncio.wait_for(process.stdout.read(), OLD_WRITER_END_S)
        wrote = json.loads(said)
        life.acknowledged[wrote["ledger_id"]] = wrote["count"]
        figures.append(
            f"released client: {wrote['count']} entries, worst append {wrote['worst_s'] * 1e3:.0f} ms"
        )
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def there_and_back(
    cluster: LocalCluster, life: Round, folder: Path, loads: tuple[Load, ...] = LOADS
) -> tuple[list[str], list[str]]:
    """Roll to this version and back under load; return what went wrong, and figures."""
    wrong: list[str] = []
    figures: list[str] = []
    cli = Cli(life.uri)
    trees = {fastbk.__version__: None, released.VERSION: released.build()}
    async with _old_writer(life, figures), under_load(life, loads):
        for version, tree in trees.items():
            life.take_worst_s()
            began_s = time.monotonic()
            async with restart_server(folder, restarts_into(cluster, tree)) as command:
                code, answer, said = await cli.answer_async(
                    "cluster",
                    "roll",
                    "--restart",
                    command,
                    "--to",
                    version,
                    "--whole-timeout",
                    "5min",
                )
            took_s = time.monotonic() - began_s
            if code != 0 or len(answer["restarted"]) != len(cluster.bookies):
                wrong.append(
                    f"the roll to {version} stopped: {answer and answer['stopped']}: {said}"
                )
                break
            life.counts["restarts"] += len(answer["restarted"])
            figures.append(str(RollFigures(version, took_s, life.take_worst_s())))
            wrong += await _versions_wrong(life.uri, is_new=tree is None)
    return wrong + await judge(cluster, life), figures


async def finalized_and_back(
    cluster: LocalCluster, life: Round, loads: tuple[Load, ...] = LOADS
) -> tuple[list[str], list[str]]:
    """Finalize, write until journal files stay as logs, go back by `unadopt`; return what went wrong, and figures."""
    cli = Cli(life.uri)
    data = cluster.data
    if files := new_files(data):
        return [f"below level 4 this version wrote {files}"], []
    for restart_is_due in (True, False):
        for number, bookie in enumerate(cluster.bookies):
            await cluster.stop_bookie_async(number)
            bookie.tree = None
            await cluster.start_bookie_async(number)
        await cluster.wait_ready_async()
        if restart_is_due:  # a journal file that is begun stays as it is
            code, _, said = await cli.answer_async("cluster", "finalize", "--yes")
            if code != 0:
                return [f"finalize failed: {said}"], []
    later = Round(life.uri, life.bookies, life.rng)
    # the stream is there already, and is read once more
    async with under_load(later, tuple(load for load in loads if load.kind != "stream")):
        await wait_until_async(
            lambda: asyncio.to_thread(_all_adopt, cluster), "journal files that are logs", ADOPT_S
        )
    wrong, began_s = [], time.monotonic()
    reports = []
    for number, bookie in enumerate(cluster.bookies):
        await cluster.stop_bookie_async(number)
        config = str(bookie.directory / "bookie.toml")
        code, answer, said = await cli.answer_async("bookie", "unadopt", "--config", config)
        if code != 0:
            return [f"{bookie.name}: unadopt ended with {code}: {said}"], []
        reports += answer
        wrong += [f"left by unadopt: {path}" for path in new_files(bookie.directory)]
        bookie.tree = released.build()
        await cluster.start_bookie_async(number)
    await cluster.wait_ready_async()
    moved = sum(report["entries"] for report in reports)
    if not all(report["logs"] for report in reports):
        wrong.append("a bookie had no journal file that is a log: the case shows nothing")
    figures = [f"unadopt: {moved} entries moved, {time.monotonic() - began_s:.1f} s with restarts"]
    later.acknowledged.update(life.acknowledged)
    later.records = life.records
    life.counts += later.counts
    return wrong + await judge(cluster, later), figures


def _all_adopt(cluster: LocalCluster) -> bool:
    return all(metrics(bookie)[ADOPTED] >= ADOPTED_BYTES_MIN for bookie in cluster.bookies)


async def _versions_wrong(uri: str, *, is_new: bool) -> list[str]:
    """Return which bookies are not of the version that they were rolled to."""
    async with fastbk.connect(uri) as client:
        return [
            f"bookie {one.service.bookie_id} is of the wrong version after its roll"
            for one in await client.list_bookies()
            if (LEVEL_PROPERTY in one.service.properties) != is_new
        ]


def _released_metadata(location: ZooKeeperLocation) -> None:
    """Have the released version make the cluster: this one would give it a level that has no way back."""
    released.run(released.build(), location.uri, "metadata", "init")


async def _run(plan: Plan, report: Report, folder: Path) -> None:
    loads = tuple(load for load in LOADS if re.search(plan.only, load.name))
    rng = random.Random(plan.seed)
    while plan.begins(report.cases):
        data, metadata = folder / f"case-{report.cases}", folder / f"metadata-{report.cases}"
        async with (
            metadata_in(metadata, plan.metadata, _released_metadata) as uri,
            ReleasedCluster(BOOKIES, data=data, metadata_uri=uri) as cluster,
        ):
            life = Round(cluster.metadata_uri, BOOKIES, rng)
            with adopting():
                wrong, figures = await there_and_back(cluster, life, folder, loads)
                if not wrong:
                    wrong, more = await finalized_and_back(cluster, life, loads)
                    figures += more
        report.lose(wrong, f"seed {plan.seed}, kept in {data}")
        report.counts += life.counts
        report.notes += figures
        report.cases += 1
        if not wrong:
            shutil.rmtree(data)


def run(plan: Plan) -> Report:
    """Roll there and back; the folder is kept when something is lost."""
    report = Report("roll")
    report.skipped = released.why_not()
    if plan.metadata == "zookeeper" and not report.skipped:
        try:
            find_jars()
        except ConfigError as error:
            report.skipped = str(error)
    if report.skipped:
        return report
    with report.folder(plan) as folder:
        asyncio.run(_run(plan, report, folder))
    return report
