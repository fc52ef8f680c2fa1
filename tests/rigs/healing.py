"""Rig `healing`: bookies are lost for good under load, and AutoRecovery brings every copy back, and not too soon.

    one       one of four is killed: nothing is copied within its delay, then all, at the rate that was set
    two       two of five are killed: nothing is copied before their delay ends
    rolling   five bookies are restarted in turns, twice, and the clients end at once: holes go without an operator
    auditor   the auditor is killed in its delay, and the next one in its scan: another one goes on where it was
    parked    the last holder of a ledger is lost: it is parked, and blocks nobody

AutoRecovery runs as users run it: two processes of `fastbk autorecovery`. `ONLY=one` chooses. INV-H1 to INV-H5.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import fastbk
from fastbk.admin.cluster import under_replicated
from fastbk.autorecovery.auditor import REASON
from fastbk.autorecovery.state import ClusterState, Settings, WorkerReport
from fastbk.client import Client
from fastbk.testing import LocalCluster
from tests.fixtures.registrations import until_down
from tests.fixtures.wait import wait_until_async
from tests.rigs.report import Plan, Report
from tests.rigs.rolling import judge, roll
from tests.rigs.rolling_writers import Round, data_of

HEALERS = 2
LEDGERS = 40
LEDGER_ENTRIES = 1000
"""Of ledgers that are closed when a bookie is lost."""
BIG_LEDGER_ENTRIES = 4000
"""160 MB, of which each of four bookies has half: 20 s of copying at the rate that is set."""
APPENDS_PER_S = 8000
"""Half of what one client reaches here with four bookies on two cores before its p99 rises above 10 ms."""
BASELINE_APPENDS = 8 * APPENDS_PER_S
COPY_BYTES_PER_S = 4 << 20
HEALED_S = 180.0
PARKED_S = 60.0


@dataclass
class Life:
    """One cluster's life, with the processes of AutoRecovery beside it."""

    cluster: LocalCluster
    client: Client
    round: Round
    healers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    latencies_ms: list[tuple[float, float]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def state(self) -> ClusterState:
        """What AutoRecovery stores."""
        return ClusterState(self.client.records)

    async def reports(self) -> list[WorkerReport]:
        """What the workers said last, also those that are gone."""
        return list((await self.state.workers()).values())

    async def copied_bytes(self) -> int:
        """How much was copied."""
        return sum(one.bytes_copied for one in await self.reports())

    async def lost_ms(self, bookie_id: str) -> int:
        """When it was lost, 0: it is not."""
        lost = (await self.state.lost_bookies.read()).lost.get(bookie_id)
        return 0 if lost is None else lost.lost_ms

    async def set_rules(self, delay_s: int, bytes_per_s: float = 0.0) -> None:
        """Set the delay of lost bookies and the copy rate."""
        await self.client.call_store(
            lambda store: store.coordination.set_lost_bookie_delay(delay_s)
        )
        await self.state.settings.put(Settings(bytes_per_s))

    def p99_ms(self, first_s: float, end_s: float) -> float:
        """Of appends that began within."""
        found = sorted(took_ms for at_s, took_ms in self.latencies_ms if first_s <= at_s < end_s)
        return found[int(0.99 * len(found))] if found else float("nan")

    def kill_healer(self, name: str) -> None:
        """Kill -9 the one of that name, `host-pid`, and start another one."""
        (process,) = (one for one in self.healers if one.pid == int(name.rpartition("-")[2]))
        process.kill()
        process.wait()
        self.healers.remove(process)
        self.start_healer()

    def start_healer(self) -> None:
        """Start a process of AutoRecovery."""
        number = len(list(self.cluster.data.glob("healer-*.log")))
        words = ("autorecovery", "--metadata", self.round.uri, "--grace", "3")
        with open(self.cluster.data / f"healer-{number}.log", "wb") as log:
            self.healers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "fastbk.cli", *words], stdout=log, stderr=log
                )
            )


@asynccontextmanager
async def life_of(bookies: int, folder: Path, rng: random.Random) -> AsyncIterator[Life]:
    """Run a cluster, and AutoRecovery beside it."""
    async with (
        LocalCluster(bookies, data=folder) as cluster,
        fastbk.connect(cluster.metadata_uri) as client,
    ):
        life = Life(cluster, client, Round(cluster.metadata_uri, bookies, rng))
        try:
            for _ in range(HEALERS):
                life.start_healer()
            await until(lambda: _is_audited(life), "an auditor has looked")
            yield life
        finally:
            for one in life.healers:
                one.terminate()
            for one in life.healers:
                one.wait(30)


async def _is_audited(life: Life) -> bool:
    return (await life.state.audit.read()).pass_ms > 0


async def until(
    condition: Callable[[], Awaitable[object] | object], what: str, deadline_s: float = 60.0
) -> None:
    """Wait; the rig fails if it does not come."""
    await wait_until_async(condition, what, deadline_s)


async def fill(
    life: Life, write_quorum: int = 2, ledgers: int = LEDGERS, entries: int = LEDGER_ENTRIES
) -> None:
    """Write closed ledgers."""
    for _ in range(ledgers):
        async with await life.client.create_ledger(3, write_quorum, 2) as writer:
            for first in range(0, entries, LEDGER_ENTRIES):
                ids = range(first, first + LEDGER_ENTRIES)
                await writer.append_many([data_of(writer.ledger_id, one) for one in ids])
        life.round.acknowledged[writer.ledger_id] = entries


@asynccontextmanager
async def appends(life: Life, per_s: int = APPENDS_PER_S) -> AsyncIterator[None]:
    """Append at a fixed rate while the block runs, and note how long each append took, from when it was due."""
    stop = asyncio.Event()

    async def one(writer: fastbk.LedgerWriter, entry: int, due_s: float) -> None:
        await writer.append(data_of(writer.ledger_id, entry))
        life.latencies_ms.append((due_s, (time.monotonic() - due_s) * 1000))

    async def write() -> None:
        async with (
            fastbk.connect(life.round.uri) as client,
            await client.create_ledger(3, 2, 2) as writer,
        ):
            under_way: set[asyncio.Task[None]] = set()
            began_s, count = time.monotonic(), 0
            while not stop.is_set():
                while (due_s := began_s + count / per_s) <= time.monotonic():
                    task = asyncio.create_task(one(writer, count, due_s))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                    count += 1
                await asyncio.sleep(0.001)
            await asyncio.gather(*under_way)
            life.round.acknowledged[writer.ledger_id] = count

    writing = asyncio.create_task(write())
    try:
        yield
    finally:
        stop.set()
        await writing


async def healed(life: Life, left: frozenset[int] = frozenset()) -> None:
    """Wait until no ledger but those of `left` misses copies, by what the bookies themselves answer."""
    end_s = time.monotonic() + HEALED_S
    while (found := {one.ledger_id async for one in under_replicated(life.client)}) != left:
        if time.monotonic() > end_s:
            raise TimeoutError(f"ledgers {sorted(found)[:20]} still miss copies")
        await asyncio.sleep(0.5)  # asking every bookie is work, too


async def _watch_delay(life: Life, bookies: list[str], delay_s: int) -> float:
    """Return when the delays of these have ended; it is wrong if anything is copied or marked before."""
    for one in bookies:
        await until(lambda: life.lost_ms(one), f"{one} is lost")  # noqa: B023
    due_ms = {one: await life.lost_ms(one) + 1000 * delay_s for one in bookies}
    first_ms = min(due_ms.values())
    while time.time() * 1000 < first_ms:
        if (copied := await life.copied_bytes()) and time.time() * 1000 < first_ms:
            life.wrong.append(f"{copied} bytes were copied within the delay")
            break
        await asyncio.sleep(0.1)
    await until(lambda: _are_due(life, bookies), "all are due")
    async for page in life.client.marks.pages():
        for mark in page:
            life.wrong += [
                f"ledger {mark.ledger_id} was marked {due_ms[each.bookie_id] - each.marked_ms} ms too soon"
                for each in mark.missing
                if each.reason == REASON and each.marked_ms < due_ms[each.bookie_id]
            ]
    return time.monotonic()


async def _are_due(life: Life, bookies: list[str]) -> bool:
    return set(bookies) <= set((await life.state.audit.read()).due)


# --- what is lost ------------------------------------------------------------------------------------------------


async def lose_one(life: Life) -> None:
    """One of four, under load."""
    delay_s = 10
    await life.set_rules(delay_s, COPY_BYTES_PER_S)
    await fill(life, entries=BIG_LEDGER_ENTRIES)
    async with appends(life):
        began_s = time.monotonic()
        await until(lambda: len(life.latencies_ms) >= BASELINE_APPENDS, "a baseline")
        killed_s = time.monotonic()
        await life.cluster.kill_async(0)
        due_s = await _watch_delay(life, ["bookie-1"], delay_s)
        await until(life.copied_bytes, "copies are made", HEALED_S)
        await until(lambda: _are_all_busy(life), "all workers are busy", HEALED_S)
        copying_s, first_bytes = time.monotonic(), await life.copied_bytes()
        # Until a worker has nothing left: then its part of the rate is unused for one lease time.
        await until(lambda: _has_an_idle_worker(life), "half of the copies are made", HEALED_S)
        busy_s, busy_bytes = time.monotonic(), await life.copied_bytes()
        await until(lambda: _no_marks(life), "all copies are made", HEALED_S)
        copied_s, copied_bytes = time.monotonic(), await life.copied_bytes()
    await healed(life)
    before_ms, wait_ms = life.p99_ms(began_s, killed_s), life.p99_ms(killed_s + 2, due_s)
    copy_ms = life.p99_ms(copying_s, copied_s)
    rate = (busy_bytes - first_bytes) / max(busy_s - copying_s, 0.001)
    life.notes.append(
        f"one: p99 {before_ms:.1f} ms before, {wait_ms:.1f} ms in the delay, {copy_ms:.1f} ms while it copies"
        f" ({copy_ms / before_ms:.2f} times); {copied_bytes / 2**20:.0f} MiB copied at {rate / 2**20:.2f} MiB/s"
        f" of {COPY_BYTES_PER_S / 2**20:.0f}"
    )


async def _are_all_busy(life: Life) -> bool:
    return all(len(one.active) > 2 for one in await life.reports())


async def _has_an_idle_worker(life: Life) -> bool:
    return any(len(one.active) < 2 for one in await life.reports())


async def _no_marks(life: Life) -> bool:
    return not [one async for page in life.client.marks.pages() for one in page]


async def lose_two(life: Life) -> None:
    """Two of five."""
    delay_s = 60
    await life.set_rules(delay_s)
    await fill(life, 3)
    async with appends(life):
        await life.cluster.kill_async(0)
        await life.cluster.kill_async(1)
        await _watch_delay(life, ["bookie-1", "bookie-2"], delay_s)
    await healed(life)


async def restart_all(life: Life) -> None:
    """All of five in turns, twice; clients that end leave what they have not repaired."""
    await life.set_rules(3600)
    await roll(life.cluster, life.round, [*range(5)] * 2, waits_for_repairs=False)
    left = len([one async for one in under_replicated(life.client)])
    life.notes.append(f"rolling: {left} fragments missed copies when the clients ended")
    await healed(life)


async def kill_auditors(life: Life) -> None:
    """The auditor in the delay, and the next one in its scan."""
    delay_s = 15
    await life.set_rules(delay_s, COPY_BYTES_PER_S)
    await fill(life)
    await life.cluster.kill_async(0)
    await until(lambda: life.lost_ms("bookie-1"), "the loss is stored")
    lost_ms = await life.lost_ms("bookie-1")
    first = (await life.state.audit.read()).auditor
    life.kill_healer(first)
    await until(lambda: _are_due(life, ["bookie-1"]), "it is due")
    audit = await life.state.audit.read()
    late_s = time.time() - lost_ms / 1000 - delay_s
    if audit.auditor == first or await life.lost_ms("bookie-1") != lost_ms:
        life.wrong.append("the next auditor did not go on with the count of the first one")
    await until(life.copied_bytes, "copies are made")
    second = audit.auditor
    life.kill_healer(second)
    await healed(life)
    last = (await life.state.audit.read()).auditor
    if last == second:
        life.wrong.append("no third auditor was elected")
    life.notes.append(
        f"auditor: due {late_s:.1f} s after the delay, though its auditor had died in it"
    )


async def lose_the_last(life: Life) -> None:
    """The only holder of a ledger, and a copy of others."""
    await life.set_rules(1)
    await fill(life, 2, ledgers=10)
    async with await life.client.create_ledger(1, 1, 1) as writer:
        await writer.append_many([data_of(writer.ledger_id, one) for one in range(100)])
    holder = writer.metadata.fragments[0].ensemble[0]
    number = [one.name for one in life.cluster.bookies].index(holder)
    await life.cluster.kill_async(number)
    await until_down(life.client, holder)
    began_s = time.monotonic()

    async def is_parked() -> bool:
        return writer.ledger_id in {
            each.ledger_id for one in await life.reports() for each in one.parked
        }

    await until(is_parked, "the ledger is parked", PARKED_S)
    parked_s = time.monotonic() - began_s

    await healed(life, frozenset({writer.ledger_id}))
    await life.cluster.start_bookie_async(number)
    await healed(life)
    life.notes.append(
        f"parked: {parked_s:.1f} s after the registration ended, and whole when its bookie returned"
    )


CASES: dict[str, tuple[int, Callable[[Life], Awaitable[None]]]] = {
    "one": (4, lose_one),
    "two": (5, lose_two),
    "rolling": (5, restart_all),
    "auditor": (4, kill_auditors),
    "parked": (4, lose_the_last),
}


async def _run(plan: Plan, report: Report, folder: Path) -> None:
    rng = random.Random(plan.seed)
    names = [name for name in CASES if re.search(plan.only, name)]
    while names and plan.goes_on(report.cases):
        name = names[report.cases % len(names)]
        bookies, scenario = CASES[name]
        data = folder / f"{report.cases}-{name}"
        async with life_of(bookies, data, rng) as life:
            await scenario(life)
            wrong = life.wrong + await judge(life.cluster, life.round, restarted=name == "rolling")
        report.lose(wrong, f"{name}, seed {plan.seed}, kept in {data}")
        report.notes += life.notes
        report.counts += life.round.counts
        report.cases += 1
        if not wrong:
            shutil.rmtree(data)


def run(plan: Plan) -> Report:
    """Run the cases in turns; the folder of a case is kept when something is wrong."""
    report = Report("healing")
    with report.folder(plan) as folder:
        asyncio.run(_run(plan, report, folder))
    ratios = [
        float(found[1]) for one in report.notes if (found := re.search(r"\(([\d.]+) times\)", one))
    ]
    if ratios:
        report.notes.append(
            f"one: median of {len(ratios)} rounds: {statistics.median(ratios):.2f} times the p99"
        )
    return report
