"""Rig `racks`: bookies and whole racks are lost under load, and no write set of any ledger lies in one rack.

Nine bookies are in three racks, by the cluster's table of locations. Its rule is `rack`, two racks, enforced. Nobody
else is told of it: writers, AutoRecovery and the command `bookie recover` find it in metadata.

    one       a bookie is killed: writers replace it, AutoRecovery copies what it held
    two       two bookies of a rack are killed, one during the copies of the other: no entry loses its last copy
    rack      a whole rack is killed and comes back later
    recover   a bookie is killed, and an operator recovers it by hand

After each, when no copy is missing any more, the judge reads all metadata itself (INV-P3, INV-P4). `ONLY=rack` chooses.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL

import fastbk
from fastbk.admin.cluster import under_replicated
from fastbk.errors import NotEnoughBookies, QuorumTimeout
from fastbk.meta.api import MetadataStore, all_ledgers
from fastbk.meta.placement_record import change_rules
from fastbk.meta.records import BadRecord
from fastbk.model.ids import LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import ClusterRules
from tests.fixtures.registrations import until_down
from tests.fixtures.wait import wait_until_async
from tests.rigs.healing import HEALED_S, Life, healed, life_of
from tests.rigs.report import Plan, Report
from tests.rigs.rolling import judge
from tests.rigs.rolling_writers import data_of

RACKS = 3
BOOKIES = 9
RACKS_MIN = 2
SHAPES = ((3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 2, 2))
WRITERS = 4
LEDGER_ENTRIES = 300
PAUSE_S = 0.01
APPENDS_MIN = 2000
NO_PLACE = "no bookie to copy to"
DELAY_S = 1
"""Of AutoRecovery, before it copies what a lost bookie held."""


def rack_of(bookie_id: str) -> str:
    """Return the rack, as the table has it."""
    return f"/rack-{int(bookie_id.rpartition('-')[2]) % RACKS}"


def bookies_of(rack: int) -> list[int]:
    """Return the numbers of the bookies of a rack."""
    return [number for number in range(BOOKIES) if (number + 1) % RACKS == rack]


def of_one_rack(ledgers: Mapping[LedgerId, LedgerMetadata]) -> list[str]:
    """Return a line for each write set that spans fewer racks than the rule wants."""
    found = []
    for ledger_id, metadata in ledgers.items():
        quorum = metadata.write_quorum
        for fragment in metadata.fragments:
            ensemble = fragment.ensemble
            for first in range(len(ensemble)):
                members = [ensemble[(first + n) % len(ensemble)] for n in range(quorum)]
                racks = {rack_of(one) for one in members}
                if len(racks) < min(RACKS_MIN, quorum):
                    found.append(
                        f"ledger {ledger_id}, entries from {fragment.first_entry_id}: {', '.join(members)} are all in"
                        f" {', '.join(racks)}"
                    )
    return found


def read_all(store: MetadataStore) -> dict[LedgerId, LedgerMetadata]:
    """Return the metadata of all ledgers."""
    return {
        ledger_id: ledger.metadata
        for ledger_id, ledger in all_ledgers(store)
        if not isinstance(ledger, BadRecord)
    }


async def write(life: Life, stop: asyncio.Event) -> None:
    """Write ledgers of several shapes, one after the other, with a client that was told nothing of placement."""
    rng = life.round.rng
    async with fastbk.connect(life.round.uri, replace_after=0.5) as client:
        while not stop.is_set():
            with suppress(NotEnoughBookies):
                async with await client.create_ledger(*rng.choice(SHAPES)) as writer:
                    count = 0
                    while count < LEDGER_ENTRIES and not stop.is_set():
                        entries = [data_of(writer.ledger_id, count + n) for n in range(10)]
                        with suppress(QuorumTimeout):
                            await writer.append_many(entries)
                            count += 10
                            life.round.counts["appends"] += 10
                            life.round.acknowledged[writer.ledger_id] = count
                        await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def writers(life: Life) -> AsyncIterator[None]:
    """Have some write while the block runs."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            group.create_task(write(life, stop))
        try:
            yield
        finally:
            stop.set()


async def kill(life: Life, number: int) -> None:
    """Lose a bookie."""
    await life.cluster.kill_async(number)
    await until_down(life.client, life.cluster.bookies[number].name)
    life.round.counts["kills"] += 1


async def lose_one(life: Life, rng: random.Random) -> list[int]:
    """Lose any."""
    number = rng.randrange(BOOKIES)
    await kill(life, number)
    return [number]


async def lose_two(life: Life, rng: random.Random) -> list[int]:
    """Lose two of a rack, the second after a moment."""
    numbers = rng.sample(bookies_of(rng.randrange(RACKS)), 2)
    await kill(life, numbers[0])
    if rng.random() < 0.5:
        await wait_until_async(life.copied_bytes, "copies are made", HEALED_S)
    await kill(life, numbers[1])
    return numbers


async def lose_rack(life: Life, rng: random.Random) -> list[int]:
    """Lose all of a rack at once."""
    numbers = bookies_of(rng.randrange(RACKS))
    await asyncio.gather(*(kill(life, number) for number in numbers))
    return numbers


async def recover_by_hand(life: Life, rng: random.Random) -> list[int]:
    """Lose one, and have `bookie recover` copy what it held, beside AutoRecovery."""
    (number,) = await lose_one(life, rng)
    words = ("bookie", "recover", life.cluster.bookies[number].name, "--metadata", life.round.uri)
    recovering = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fastbk.cli", *words, stdout=DEVNULL
    )
    life.round.counts["recovered"] += await recovering.wait() == 0
    return [number]


async def more_appends(life: Life) -> None:
    """Wait until some more were acknowledged: fragments of before and behind a loss are what is judged."""
    enough = life.round.counts["appends"] + APPENDS_MIN
    await wait_until_async(
        lambda: life.round.counts["appends"] >= enough, "appends are acknowledged", HEALED_S
    )


async def healed_or_parked(life: Life) -> None:
    """Wait until copies are missing only of ledgers for which no bookie that is left keeps the rule."""

    async def is_so() -> bool:
        missing = {one.ledger_id async for one in under_replicated(life.client)}
        parked = {
            each.ledger_id
            for one in await life.reports()
            for each in one.parked
            if NO_PLACE in each.reason
        }
        if missing and missing <= parked:
            life.round.counts["parked"] += len(missing)
        return missing <= parked

    await wait_until_async(is_so, "copies are made", HEALED_S)


CASES: dict[str, Callable[[Life, random.Random], Awaitable[list[int]]]] = {
    "one": lose_one,
    "two": lose_two,
    "rack": lose_rack,
    "recover": recover_by_hand,
}


async def _turn(life: Life, name: str, rng: random.Random) -> list[str]:
    """Lose and heal; return what lies in one rack then."""
    life.round.acknowledged.clear()
    async with writers(life):
        await more_appends(life)
        lost = await CASES[name](life, rng)
        await more_appends(life)
    await healed_or_parked(life)
    found = of_one_rack(await life.client.call_store(read_all))
    for number in lost:
        await life.cluster.start_bookie_async(number)
    await healed(life)
    found += of_one_rack(await life.client.call_store(read_all))
    return found + await judge(life.cluster, life.round)


async def _run(plan: Plan, report: Report, folder: Path) -> None:
    rng = random.Random(plan.seed)
    names = [name for name in CASES if re.search(plan.only, name)]
    async with life_of(BOOKIES, folder, rng) as life:
        table = {one.name: rack_of(one.name) for one in life.cluster.bookies}
        rule = PlacementConfig(policy="rack", enforce=True, min_racks_per_write_quorum=RACKS_MIN)
        await life.client.call_store(
            lambda store: change_rules(store, lambda _: ClusterRules(rule, table))
        )
        await life.set_rules(DELAY_S)
        while names and plan.begins(report.cases):
            name = rng.choice(names)
            wrong = await _turn(life, name, rng)
            report.lose(wrong, f"{name}, case {report.cases}, seed {plan.seed}")
            report.counts[name] += 1
            report.cases += 1
            if wrong:
                break
        ledgers = await life.client.call_store(read_all)
        report.counts["ledgers"] += len(ledgers)
        report.counts["fragments"] += sum(len(one.fragments) for one in ledgers.values())
        report.counts += life.round.counts


def run(plan: Plan) -> Report:
    """Run cases in any order in one cluster; its folder is kept when something is wrong."""
    report, began_s = Report("racks"), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fastbk-racks-", dir=plan.folder))
    asyncio.run(_run(plan, report, folder))
    if report.is_good:
        shutil.rmtree(folder)
    report.seconds = time.monotonic() - began_s
    return report
