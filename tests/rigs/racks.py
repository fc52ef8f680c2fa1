"""Rig `racks`: bookies and whole racks are lost under load, and each write set of each ledger spans what is enforced.

Nine bookies are at three places, by the cluster's table of locations. The seed draws what these are: three racks, with
the rule `rack`, or three regions of three racks each, with the rule `region`. Either wants two of them, enforced.
Nobody else is told of it: writers, AutoRecovery and the commands find it in metadata.

    one           a bookie is killed: writers replace it, AutoRecovery copies what it held
    two           two bookies of a place are killed, one during the copies of the other: no entry loses its last copy
    rack          a whole rack, or region, is killed and comes back later
    recover       a bookie is killed, and an operator recovers it by hand
    decommission  a bookie is stopped and decommissioned, and a new, empty one of that name joins

After each, when no copy is missing any more, and again when all bookies are back, the judge reads all metadata itself
(INV-P3, INV-P4). `ONLY=rack` chooses.
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
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.placement.choose_ensemble import choose_replacements
from fastbk.placement.config import BookieView, PlacementConfig, Policy
from fastbk.placement.rules import ClusterRules
from tests.fixtures.registrations import until_down
from tests.fixtures.wait import wait_until_async
from tests.rigs.healing import HEALED_S, Life, healed, life_of
from tests.rigs.report import Plan, Report
from tests.rigs.rolling import judge
from tests.rigs.rolling_writers import data_of

PLACES = 3
BOOKIES = 9
DOMAINS_MIN = 2
POLICIES: tuple[Policy, ...] = ("rack", "region")
SHAPES = ((3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 2, 2))
WRITERS = 4
LEDGER_ENTRIES = 300
PAUSE_S = 0.01
APPENDS_MIN = 2000
NO_PLACE = "no bookie to copy to"
DELAY_S = 1
"""Of AutoRecovery, before it copies what a lost bookie held."""
LEDGERS_KEPT_MAX = 60
"""Old ledgers are deleted beyond it, so that a long run has as much to heal at its end as at its beginning."""
DECOMMISSION_TRIES_MAX = 5


def location_of(bookie_id: str, policy: Policy) -> str:
    """Return where a bookie is, as the table has it. Racks of different regions have the same names."""
    number = int(bookie_id.rpartition("-")[2])
    if policy == "rack":
        return f"/rack-{number % PLACES}"
    return f"/region-{number % PLACES}/rack-{number // PLACES}"


def bookies_at(place: int) -> list[int]:
    """Return the numbers of the bookies of a rack, or of a region."""
    return [number for number in range(BOOKIES) if (number + 1) % PLACES == place]


def of_one_place(
    ledgers: Mapping[LedgerId, LedgerMetadata], place_of: Callable[[BookieId], str]
) -> list[str]:
    """Return a line for each write set that spans fewer racks, or regions, than the rule enforces.

    `place_of`: the rack of a bookie, or its region.
    """
    found = []
    for ledger_id, metadata in ledgers.items():
        quorum = metadata.write_quorum
        for fragment in metadata.fragments:
            ensemble = fragment.ensemble
            for first in range(len(ensemble) if quorum < len(ensemble) else 1):
                members = [ensemble[(first + n) % len(ensemble)] for n in range(quorum)]
                places = {place_of(one) for one in members}
                if len(places) < min(DOMAINS_MIN, quorum):
                    found.append(
                        f"ledger {ledger_id}, entries from {fragment.first_entry_id}: {', '.join(members)} are all in"
                        f" {', '.join(places)}"
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
    """Lose two of a place, the second after a moment."""
    numbers = rng.sample(bookies_at(rng.randrange(PLACES)), 2)
    await kill(life, numbers[0])
    if rng.random() < 0.5:
        await wait_until_async(life.copied_bytes, "copies are made", HEALED_S)
    await kill(life, numbers[1])
    return numbers


async def lose_place(life: Life, rng: random.Random) -> list[int]:
    """Lose all of a rack, or of a region, at once."""
    numbers = bookies_at(rng.randrange(PLACES))
    await asyncio.gather(*(kill(life, number) for number in numbers))
    return numbers


async def recover_by_hand(life: Life, rng: random.Random) -> list[int]:
    """Lose one, and have `bookie recover` copy what it held, beside AutoRecovery."""
    (number,) = await lose_one(life, rng)
    life.round.counts["recovered"] += await command(life, "recover", number) == 0
    return [number]


async def decommission(life: Life, rng: random.Random) -> list[int]:
    """Stop one, decommission it beside AutoRecovery, and clear its disks: who is started then is new."""
    number = rng.randrange(BOOKIES)
    bookie = life.cluster.bookies[number]
    await life.cluster.stop_bookie_async(number)
    await until_down(life.client, bookie.name)
    for _ in range(DECOMMISSION_TRIES_MAX):
        # It leaves ledgers for which another one holds the lock, and those that were made on it meanwhile.
        if await command(life, "decommission", number, "--yes") == 0:
            break
    else:
        raise TimeoutError(f"{bookie.name} could not be decommissioned")
    for name in ("journal", "ledgers"):
        shutil.rmtree(bookie.directory / name)
    life.round.counts["decommissioned"] += 1
    return [number]


async def command(life: Life, verb: str, number: int, *words: str) -> int:
    """Run `fastbk bookie VERB` about a bookie; return its exit code."""
    name = life.cluster.bookies[number].name
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fastbk.cli", "bookie", verb, name, *words),
        *("--metadata", life.round.uri),
        stdout=DEVNULL,
    )
    return await running.wait()


async def more_appends(life: Life) -> None:
    """Wait until some more were acknowledged: fragments of before and behind a loss are what is judged."""
    enough = life.round.counts["appends"] + APPENDS_MIN
    await wait_until_async(
        lambda: life.round.counts["appends"] >= enough, "appends are acknowledged", HEALED_S
    )


async def without_place(life: Life, policy: Policy) -> set[LedgerId]:
    """Return the ledgers of which a lost member cannot be replaced by the rule: workers list only some they parked."""
    names = {one.service.bookie_id for one in await life.client.list_bookies()}
    views = [BookieView(one, location=location_of(one, policy)) for one in sorted(names)]
    lost = [
        BookieView(one.name, location=location_of(one.name, policy), writable=False)
        for one in life.cluster.bookies
        if one.name not in names
    ]
    rule, found = PlacementConfig(policy=policy, enforce=True), set()
    for ledger_id, metadata in (await life.client.call_store(read_all)).items():
        for fragment in metadata.fragments:
            bad = [index for index, one in enumerate(fragment.ensemble) if one not in names]
            quorums = (metadata.write_quorum, metadata.ack_quorum)
            try:
                choose_replacements(
                    [*views, *lost], fragment.ensemble, bad, *quorums, rule, random.Random(0)
                )
            except NotEnoughBookies:
                found.add(ledger_id)
    return found


async def healed_or_parked(life: Life, policy: Policy) -> None:
    """Wait until copies are missing only of ledgers for which no bookie that is left keeps the rule."""

    async def is_so() -> bool:
        missing = {one.ledger_id async for one in under_replicated(life.client)}
        parked = {
            each.ledger_id
            for one in await life.reports()
            for each in one.parked
            if NO_PLACE in each.reason
        }
        if missing - parked:
            parked |= await without_place(life, policy)
        if missing and missing <= parked:
            life.round.counts["parked"] += len(missing)
        return missing <= parked

    await wait_until_async(is_so, "copies are made", HEALED_S)


CASES: dict[str, Callable[[Life, random.Random], Awaitable[list[int]]]] = {
    "one": lose_one,
    "two": lose_two,
    "rack": lose_place,
    "recover": recover_by_hand,
    "decommission": decommission,
}


async def judged(life: Life, policy: Policy) -> list[str]:
    """Return what lies against the rule now, by metadata alone."""
    ledgers = await life.client.call_store(read_all)
    life.round.counts["judgements"] += 1
    life.round.counts["ledgers judged"] += len(ledgers)
    # The first name of a location: the rack of the rule `rack`, the region of `region`.
    return of_one_place(ledgers, lambda one: location_of(one, policy).split("/")[1])


async def forget_old(life: Life) -> None:
    """Delete the oldest ledgers."""
    ledgers = sorted(await life.client.call_store(read_all))
    for ledger_id in ledgers[: max(0, len(ledgers) - LEDGERS_KEPT_MAX)]:
        await life.client.delete_ledger(ledger_id)


async def _turn(life: Life, name: str, policy: Policy, rng: random.Random) -> list[str]:
    """Lose and heal; return what lies against the rule then."""
    life.round.acknowledged.clear()
    async with writers(life):
        await more_appends(life)
        lost = await CASES[name](life, rng)
        await more_appends(life)
    await healed_or_parked(life, policy)
    found = await judged(life, policy)
    for number in lost:
        await life.cluster.start_bookie_async(number)
    await healed(life)
    found += await judged(life, policy)
    found += await judge(life.cluster, life.round)
    await forget_old(life)
    return found


async def _run(plan: Plan, report: Report, folder: Path) -> None:
    rng = random.Random(plan.seed)
    policy = rng.choice(POLICIES)
    names = [name for name in CASES if re.search(plan.only, name)]
    report.notes.append(f"the rule is {policy}, two of three, enforced")
    async with life_of(BOOKIES, folder, rng) as life:
        table = {one.name: location_of(one.name, policy) for one in life.cluster.bookies}
        rule = PlacementConfig(policy=policy, enforce=True)
        await life.client.call_store(
            lambda store: change_rules(store, lambda _: ClusterRules(rule, table))
        )
        await life.set_rules(DELAY_S)
        while names and plan.begins(report.cases):
            name = rng.choice(names)
            wrong = await _turn(life, name, policy, rng)
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
