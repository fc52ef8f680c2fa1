"""Rig `rebalance`: three bookies hold everything, three more come, and copies move under load.

    grow      `fastbk cluster rebalance` runs undisturbed: spread of bytes, bytes that moved, p99 of appends
    kills     the mover, bookies that give and bookies that get are killed meanwhile, in turns, and come back

All the time a checker reads metadata and has bookies list what they hold: a bookie that answers has every copy that
metadata names it for (INV-P6). In the end every copy is read. `GIB=10` is what three bookies hold before, together.
`RATE=64MiB` is the cluster's rate. `ONLY=grow` chooses.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

from fastbk.admin.copy_audit import audit_all
from fastbk.replication.copy_check import share_bytes
from fastbk.replication.repair_options import RepairOptions
from fastbk.units import parse_size
from tests.rigs.healing import HEALED_S, Life, appends, healed, life_of, until
from tests.rigs.report import Plan, Report

OLD, BOOKIES = 3, 6
ENTRY_BYTES = 64 * 1024
LEDGER_ENTRIES = 128
APPENDS_PER_S = 400
BASELINE_S = 10.0
DELAY_S = 3600
"""No bookie that is killed here counts as lost: what moves is moved by the mover."""
CHECK_PAUSE_S = 5.0
KILLS = 6
SPREAD_MAX = 0.05


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    """Return the bytes of an entry."""
    return (b"%d/%d " % (ledger_id, entry_id)).ljust(ENTRY_BYTES, b".")


@dataclass
class Turn:
    """One cluster's turn. `checks`: looks at all copies; `kills`: what was killed."""

    life: Life
    rng: random.Random
    ledgers: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    checks: int = 0
    kills: int = 0

    async def held_bytes(self) -> dict[str, int]:
        """Return what bookies hold of the ledgers, by metadata."""
        held = dict.fromkeys((bookie.name for bookie in self.life.cluster.bookies), 0)
        wanted = set(self.ledgers)
        async for info in self.life.client.list_ledgers():
            if info.ledger_id in wanted:
                for name in held:
                    held[name] += share_bytes(info.metadata, name)  # type: ignore[arg-type]
        return held

    async def check(self) -> None:
        """Have every bookie that answers list what metadata names it for; not in the process whose appends count."""
        words = ("cluster", "under-replicated", "--verify")
        for missing in (await answer_of(self.life, *words))["missing"]:
            if missing["ledger_id"] in self.ledgers and missing["count"]:
                self.wrong.append(
                    f"{missing['bookie_id']} lacks {missing['count']} entries of ledger {missing['ledger_id']}:"
                    f" {missing['reason']}"
                )
        self.checks += 1


def disk_bytes(life: Life) -> dict[str, int]:
    """Return what bookies' directories have on disk."""
    return {
        bookie.name: sum(
            path.stat().st_blocks * 512 for path in bookie.directory.rglob("*") if path.is_file()
        )
        for bookie in life.cluster.bookies
    }


def spread(held: Mapping[str, int]) -> str:
    """Return the least and the most in parts of the mean."""
    mean = statistics.mean(held.values())
    return f"{min(held.values()) / mean:.2f} to {max(held.values()) / mean:.2f} times the mean"


async def fill(turn: Turn, size_bytes: int) -> None:
    """Write closed ledgers on the bookies that are up."""
    life = turn.life
    for number in range(OLD, BOOKIES):
        await life.cluster.stop_bookie_async(number)
    for _ in range(max(12, size_bytes // (OLD * LEDGER_ENTRIES * ENTRY_BYTES))):
        async with await life.client.create_ledger(3, 3, 2) as writer:
            entries = [payload_of(writer.ledger_id, one) for one in range(LEDGER_ENTRIES)]
            await writer.append_many(entries)
        turn.ledgers.append(writer.ledger_id)
    for number in range(OLD, BOOKIES):
        await life.cluster.start_bookie_async(number)


@asynccontextmanager
async def checked(turn: Turn) -> AsyncIterator[None]:
    """Check all copies again and again while the block runs."""

    async def check() -> None:
        while True:
            await turn.check()
            await asyncio.sleep(CHECK_PAUSE_S)

    checking = asyncio.create_task(check())
    try:
        yield
    finally:
        checking.cancel()
        await asyncio.wait([checking])
        if not checking.cancelled() and checking.exception() is not None:
            raise checking.exception()  # type: ignore[misc]


async def start(life: Life, *words: str) -> asyncio.subprocess.Process:
    """Start a command."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fastbk.cli", *words, "--json", "--metadata", life.round.uri,
        stdout=PIPE, stderr=PIPE,
    )  # fmt: skip


async def answer_of(life: Life, *words: str) -> Any:
    """Run a command to its end; return its answer."""
    process = await start(life, *words)
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    assert out, err.decode()
    return json.loads(out)


async def start_mover(life: Life, *words: str) -> asyncio.subprocess.Process:
    """Start the command that moves."""
    return await start(life, "cluster", "rebalance", *words)


async def run_mover(life: Life, *words: str) -> dict[str, int]:
    """Run it to its end; return its answer."""
    answer: dict[str, int] = await answer_of(life, "cluster", "rebalance", *words)
    return answer


async def grow(turn: Turn) -> list[str]:
    """Even out under load; return what is to be told."""
    life = turn.life
    before, on_disk = await turn.held_bytes(), disk_bytes(life)
    plan = await run_mover(life, "--dry-run")
    async with appends(life, APPENDS_PER_S):
        began_s = time.monotonic()
        await until(lambda: time.monotonic() - began_s > BASELINE_S, "a baseline")
        moving_s = time.monotonic()
        async with checked(turn):
            done = await run_mover(life, "--yes")
        moved_s = time.monotonic()
    after = await turn.held_bytes()
    before_ms, during_ms = life.p99_ms(began_s, moving_s), life.p99_ms(moving_s, moved_s)
    took_s = moved_s - moving_s
    gib = sum(before.values()) / 2**30
    if done["failed"] or done["parked"]:
        turn.wrong.append(f"moves were given up: {done}")
    if done["bytes_copied"] > 1.05 * plan["least_bytes"]:
        turn.wrong.append(f"{done['bytes_copied']} bytes moved, {plan['least_bytes']} would do")
    return [
        f"grow: {OLD} to {BOOKIES} bookies, {gib:.2f} GiB of copies: {spread(before)} before, {spread(after)} after;"
        f" on disk {spread(on_disk)}, then {spread(disk_bytes(life))} with the old copies, which gc drops after a day",
        f"grow: {done['bytes_copied'] / 2**20:.0f} MiB moved, {plan['least_bytes'] / 2**20:.0f} MiB at least; "
        f"{took_s:.0f} s, {done['bytes_copied'] / 2**20 / took_s:.0f} MiB/s",
        f"grow: p99 of {APPENDS_PER_S} appends a second: {before_ms:.1f} ms before, {during_ms:.1f} ms meanwhile"
        f" ({during_ms / before_ms:.2f} times)",
    ]


async def kill_all_kinds(turn: Turn) -> list[str]:
    """Even out under load while movers and bookies are killed."""
    life, rng = turn.life, turn.rng
    before = await turn.held_bytes()
    plan = await run_mover(life, "--dry-run")
    end_s = time.monotonic() + 2 * HEALED_S
    async with appends(life, APPENDS_PER_S), checked(turn):
        mover = await start_mover(life, "--yes")
        for number in range(KILLS):
            had_bytes = await _moved_bytes(turn)
            mover = await _until_moves(turn, mover, had_bytes, end_s)
            kind = ("mover", "source", "target")[number % 3]
            turn.kills += 1
            if kind == "mover":
                with suppress(ProcessLookupError):
                    mover.kill()
                await mover.communicate()
                mover = await start_mover(life, "--yes")
            else:
                victim = rng.randrange(OLD) if kind == "source" else rng.randrange(OLD, BOOKIES)
                await life.cluster.kill_async(victim)
                await life.cluster.start_bookie_async(victim)
        await mover.communicate()
        while (await run_mover(life, "--dry-run"))["moving"]:
            assert time.monotonic() < end_s, "it does not come to an end"
            await run_mover(life, "--yes")
    after = await turn.held_bytes()
    on_new = sum(list(after.values())[OLD:])
    return [
        f"kills: {turn.kills} of mover, sources and targets: {spread(before)} before, {spread(after)} after,"
        f" {on_new / 2**20:.0f} MiB moved, {plan['least_bytes'] / 2**20:.0f} MiB at least"
    ]


async def _moved_bytes(turn: Turn) -> int:
    return sum(list((await turn.held_bytes()).values())[OLD:])


async def _until_moves(
    turn: Turn, mover: asyncio.subprocess.Process, had_bytes: int, end_s: float
) -> asyncio.subprocess.Process:
    """Wait until more has moved; return the mover, another one if that one has ended."""
    while await _moved_bytes(turn) <= had_bytes and time.monotonic() < end_s:
        if mover.returncode is not None:
            if not (await run_mover(turn.life, "--dry-run"))["moving"]:
                return mover
            mover = await start_mover(turn.life, "--yes")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await mover.wait()
    return mover


CASES: dict[str, Callable[[Turn], Awaitable[list[str]]]] = {"grow": grow, "kills": kill_all_kinds}


async def _judge(turn: Turn) -> None:
    """Read every copy, and every entry."""
    await healed(turn.life)
    audited = await audit_all(turn.life.client, turn.ledgers, RepairOptions())  # type: ignore[arg-type]
    if not audited.is_whole:
        turn.wrong += [str(finding) for finding in audited.findings[:10]]
    for ledger_id in turn.ledgers:
        reader = await turn.life.client.open_ledger(ledger_id, recovery=False)
        number = 0
        async for entry in reader.read():
            if bytes(entry.data) != payload_of(ledger_id, number):
                turn.wrong.append(f"entry {number} of ledger {ledger_id} is another one")
            number += 1
        if number != LEDGER_ENTRIES:
            turn.wrong.append(f"ledger {ledger_id} has {number} entries")
    held = await turn.held_bytes()
    mean, ledger_bytes = statistics.mean(held.values()), LEDGER_ENTRIES * ENTRY_BYTES
    if any(abs(each - mean) > SPREAD_MAX * mean + ledger_bytes for each in held.values()):
        turn.wrong.append(f"bookies hold {spread(held)}")
    if not turn.checks:
        turn.wrong.append("nothing was checked meanwhile")


async def _run(plan: Plan, report: Report, folder: Path) -> None:
    rng = random.Random(plan.seed)
    size_bytes = int(float(os.environ.get("GIB", "0.25")) * 2**30)
    rate = float(parse_size(os.environ.get("RATE", "64MiB")))
    names = [name for name in CASES if re.search(plan.only, name)]
    while names and plan.begins(report.cases):
        name = names[report.cases % len(names)]
        data = folder / f"{report.cases}-{name}"
        async with life_of(BOOKIES, data, rng) as life:
            turn = Turn(life, rng)
            await life.set_rules(DELAY_S, rate)
            await fill(turn, size_bytes)
            report.notes += await CASES[name](turn)
            await _judge(turn)
        report.lose(turn.wrong, f"{name}, seed {plan.seed}, kept in {data}")
        report.counts["checks"] += turn.checks
        report.counts["kills"] += turn.kills
        report.counts["appends"] += len(life.latencies_ms)
        report.cases += 1
        if not turn.wrong:
            shutil.rmtree(data)


def run(plan: Plan) -> Report:
    """Run the cases in turns; the folder of a case is kept when something is wrong."""
    report, began_s = Report("rebalance"), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fastbk-rebalance-", dir=plan.folder))
    asyncio.run(_run(plan, report, folder))
    if report.is_good:
        shutil.rmtree(folder)
    report.seconds = time.monotonic() - began_s
    return report
