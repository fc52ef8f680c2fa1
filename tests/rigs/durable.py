"""Rig `durable`: a rack is lost at a random moment, and nothing that was acknowledged in two racks is lost with it.

Six bookies are in three racks. Ledgers of E = Qw = 3 and Qa = 2 are made while one rack is away, so two members of each
are in one rack: by the plain count, both acknowledgements of an append may come from there. The rule wants them from
two racks. In each turn

1. the rack that was lost before comes back,
2. in some turns the bookies of another rack stand still for a moment, so that appends would do without them,
3. all bookies of a rack are killed (SIGKILL) at a random moment; with those that stand still their writers die, too: so
   nobody gives them what they miss when they are started again,
4. other clients recover and read all ledgers while the rack is away: nothing of its disks is read. Writers that still
   live are fenced, some at once, others go on for a while.

What was acknowledged has to be there, with its bytes, and every ledger has to be closed. INV-Q5, INV-P5.

`python -m tests.rigs.durable URI [FAULT]` is the process of the writers; FAULT (one of the simulator) is planted there.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE

import fastbk
from fastbk.client import Client
from fastbk.errors import Error
from fastbk.meta.placement_record import change_rules
from fastbk.model.ids import LedgerId
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import ClusterRules
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async
from tests.rigs.report import Plan, Report
from tests.rigs.rolling_writers import data_of
from tests.simulation.mutations import MUTATIONS
from tests.simulation.planting import planted

RACKS = 3
BOOKIES = 6
RULE = PlacementConfig(policy="rack", enforce=True, min_racks_per_ack_quorum=2)
WRITERS = 6
BATCH = 5
APPENDS_MIN = 50
"""Of each writer before a rack is lost."""
MOMENT_S = 0.5
"""A rack is lost within so long."""
STILL_S = 0.5
STILL_SHARE = 0.5
APPENDS_AFTER = 50
"""Of those writers that go on behind the loss."""
LIMIT_S = 60.0


def rack_of(number: int) -> int:
    """Return the rack of a bookie, by its number."""
    return number % RACKS


def bookies_of(rack: int) -> list[int]:
    """Return the numbers of a rack's bookies."""
    return [number for number in range(BOOKIES) if rack_of(number) == rack]


# --- the process of the writers -----------------------------------------------------------------------------------


async def _write(writer: fastbk.LedgerWriter) -> None:
    """Append until somebody else has the ledger, or too few bookies are there; say what was acknowledged."""
    count = 0
    with suppress(Error):
        while True:
            entries = [data_of(writer.ledger_id, count + n) for n in range(BATCH)]
            await writer.append_many(entries)
            count += BATCH
            print(writer.ledger_id, count, flush=True)
            await asyncio.sleep(0.001)
    print(writer.ledger_id, "over", flush=True)


async def _write_all(uri: str) -> None:
    async with fastbk.connect(uri, replace_after=0.5) as client, asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            group.create_task(_write(await client.create_ledger(3, 3, 2, placement=RULE)))


@dataclass
class Written:
    """A ledger that is being written, and how many entries were acknowledged."""

    ledger_id: LedgerId
    acknowledged: int = 0
    is_over: bool = False


@dataclass
class Writers:
    """The process, and what it has said."""

    process: asyncio.subprocess.Process
    ledgers: dict[LedgerId, Written] = field(default_factory=dict)

    async def listen(self) -> None:
        """Take in what it says, to its end."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed on the way
            ledger_id, what = line.decode().split()
            one = self.ledgers.setdefault(
                LedgerId(int(ledger_id)), Written(LedgerId(int(ledger_id)))
            )
            if what == "over":
                one.is_over = True
            else:
                one.acknowledged = int(what)
        for one in self.ledgers.values():
            one.is_over = True

    def is_under_way(self) -> bool:
        """Whether each ledger has come so far that a loss is worth something."""
        ledgers = self.ledgers.values()
        return len(ledgers) == WRITERS and all(
            one.is_over or one.acknowledged >= APPENDS_MIN for one in ledgers
        )

    def have_gone_on(self, ends: dict[LedgerId, int]) -> bool:
        """Whether each of these ledgers has come so far, or has ended."""
        return all(
            self.ledgers[ledger_id].is_over or self.ledgers[ledger_id].acknowledged >= end
            for ledger_id, end in ends.items()
        )


@asynccontextmanager
async def writers_of(uri: str, fault: str) -> AsyncIterator[Writers]:
    """Have a process write while the block runs."""
    words = ("-m", "tests.rigs.durable", uri, *([fault] if fault else []))
    writers = Writers(await asyncio.create_subprocess_exec(sys.executable, *words, stdout=PIPE))
    listening = asyncio.create_task(writers.listen())
    try:
        yield writers
    finally:
        with suppress(ProcessLookupError):
            writers.process.kill()
        await writers.process.wait()
        await listening


# --- the judge ----------------------------------------------------------------------------------------------------


async def judge(client: Client, written: Written) -> str:
    """Recover a ledger and read all of it; return what is wrong."""
    ledger_id = written.ledger_id
    try:
        reader = await client.open_ledger(ledger_id)
        found = [bytes(one.data) async for one in reader.read()]
    except Error as error:
        return f"ledger {ledger_id}: {written.acknowledged} were acknowledged: {error}"
    count = len(found)
    if count < written.acknowledged or not reader.is_closed:
        return (
            f"ledger {ledger_id}: {written.acknowledged} were acknowledged, it ends behind {count}"
        )
    if found != [data_of(ledger_id, number) for number in range(count)]:
        return f"ledger {ledger_id}: not all of its {count} entries are what was appended"
    return ""


async def restart_frozen(cluster: LocalCluster, number: int) -> None:
    """Kill a bookie that stands still, with all that lies in its sockets, and start it again on its disk."""
    bookie = cluster.bookies[number]
    for pid in set(bookie.pids.values()):
        os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(bookie.wait_gone)
    await cluster.thaw_async(number)
    await cluster.start_bookie_async(number)


async def _turn(
    cluster: LocalCluster, rng: random.Random, away: int, counts: Counter[str], fault: str
) -> tuple[int, list[str]]:
    """Lose a rack, and return which, and what is wrong then. `away`: the one that was lost before."""
    uri = cluster.metadata_uri
    async with writers_of(uri, fault) as writers:
        # All are made without that rack.
        await wait_until_async(writers.is_under_way, "appends are acknowledged", LIMIT_S)
        await asyncio.gather(*(cluster.start_bookie_async(number) for number in bookies_of(away)))
        lost, other = rng.sample([rack for rack in range(RACKS) if rack != away], 2)
        await asyncio.sleep(rng.random() * MOMENT_S)
        stills = bookies_of(other) if rng.random() < STILL_SHARE else []
        await asyncio.gather(*(cluster.freeze_async(number) for number in stills))
        if stills:
            await asyncio.sleep(rng.random() * STILL_S)
            writers.process.kill()
            counts["writers_killed"] += 1
        await asyncio.gather(*(cluster.kill_async(number) for number in bookies_of(lost)))
        await asyncio.gather(*(restart_frozen(cluster, number) for number in stills))
        ledgers = list(writers.ledgers.values())
        at_once = rng.sample(ledgers, rng.randrange(WRITERS + 1))
        later = [one for one in ledgers if one not in at_once]
        async with fastbk.connect(uri) as client:
            wrong = list(await asyncio.gather(*(judge(client, one) for one in at_once)))
            ends = {one.ledger_id: one.acknowledged + APPENDS_AFTER for one in later}
            await wait_until_async(
                lambda: writers.have_gone_on(ends), "writers go on or end", LIMIT_S
            )
            counts["went_on"] += sum(not one.is_over for one in later)
            wrong += await asyncio.gather(*(judge(client, one) for one in later))
            # Whatever was acknowledged until a writer was fenced counts, too.
            await wait_until_async(
                lambda: all(one.is_over for one in ledgers), "writers are fenced", LIMIT_S
            )
            wrong += await asyncio.gather(*(judge(client, one) for one in ledgers))
            for one in ledgers:
                await client.delete_ledger(one.ledger_id)
    counts["ledgers"] += len(ledgers)
    counts["acknowledged"] += sum(one.acknowledged for one in ledgers)
    counts["recovered_at_once"] += len(at_once)
    return lost, [one for one in wrong if one]


async def _run(plan: Plan, report: Report, folder: Path, fault: str) -> None:
    rng = random.Random(plan.seed)
    async with LocalCluster(BOOKIES, data=folder) as cluster:
        names = [one.name for one in cluster.bookies]
        table = {name: f"/rack-{rack_of(number)}" for number, name in enumerate(names)}
        async with fastbk.connect(cluster.metadata_uri) as client:
            await client.call_store(
                lambda store: change_rules(store, lambda _: ClusterRules(RULE, table))
            )
        away = rng.randrange(RACKS)
        await asyncio.gather(*(cluster.kill_async(number) for number in bookies_of(away)))
        while plan.begins(report.cases):
            away, wrong = await _turn(cluster, rng, away, report.counts, fault)
            report.lose(wrong, f"rack {away}, case {report.cases}, seed {plan.seed}")
            report.cases += 1
            if wrong:
                break


def run(plan: Plan, fault: str = "") -> Report:
    """Lose racks of one cluster; its folder is kept when something is wrong. `fault`: planted into the writers."""
    report, began_s = Report("durable"), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fastbk-durable-", dir=plan.folder))
    asyncio.run(_run(plan, report, folder, fault))
    if report.is_good:
        shutil.rmtree(folder)
    report.seconds = time.monotonic() - began_s
    return report


if __name__ == "__main__":
    with planted(MUTATIONS[sys.argv[2]] if len(sys.argv) > 2 else None):
        asyncio.run(_write_all(sys.argv[1]))
