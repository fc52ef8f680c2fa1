"""A rule of racks that a cluster of ours enforces, and those who do not read it: Apache's client and AutoRecovery.

Nine bookies are in three racks, by the cluster's table. Each has an address of its own on loopback, so that a topology
script tells them apart, too. Who breaks the rule is counted, by a judge that reads metadata itself;
`fastbk cluster placement check` has to find the same ledgers.

- Apache's client writes, with ensemble changes: as it comes, and configured to the same rule.
- Bookies are lost, and healed: by our AutoRecovery, by Apache's as it comes, by Apache's configured to the same rule,
  and by ours and Apache's side by side. The ledgers are ours, so each lies right before. Ours alone may break nothing.

What was broken our AutoRecovery then has to mend.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fastbk
from fastbk.client import Client
from fastbk.meta.placement_record import change_rules
from fastbk.model.ids import BookieId, LedgerId
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import ClusterRules
from tests.compat.autorecovery import daemon
from tests.compat.java_cells import run_cells
from tests.compat.members import FASTBK, free_port
from tests.compat.results import Result, is_wanted, run_cell
from tests.compat.rig import Cluster, Rig
from tests.fixtures.wait import wait_until_async
from tests.rigs.racks import of_one_place, read_all

BOOKIES, RACKS = 9, 3
SHAPES = ((3, 3, 2), (3, 2, 2), (2, 2, 2), (5, 3, 2), (4, 2, 2))
LEDGERS, ENTRIES = 40, 20
JAVA_LEDGERS = 100
HEALED_S_MAX = 180.0
APACHE_S_MAX = 60.0
MENDED_S_MAX = 300.0
DELAY_S = 1
RULE = PlacementConfig(policy="rack", enforce=True)
SAME_RULE: Mapping[str, object] = {
    "reppDnsResolverClass": "org.apache.bookkeeper.net.ScriptBasedMapping",
    "minNumRacksPerWriteQuorum": 2,
    "enforceMinNumRacksPerWriteQuorum": "true",
}
"""Of Apache's, beside the script."""
HEALERS = {
    "ours": (True, None),
    "apache": (False, {}),
    "apache-configured": (False, SAME_RULE),
    "both": (True, {}),
    "both-configured": (True, SAME_RULE),
}
"""Whether ours run, and the settings of Apache's if it does."""


def placement_cells(rig: Rig, only: list[str], rounds: int, seed: int) -> Iterator[Result]:
    """Run them; each healer heals `rounds` lost bookies."""
    column = "java v3 > ours"
    for kind in ("plain", "configured"):
        if is_wanted(name := f"placement-writers-{kind}", only):
            with racks(rig) as (cluster, script):
                options = [f"-Dfastbk.compat.ledgers={JAVA_LEDGERS}", "-Dfastbk.compat.seconds=600"]
                if kind == "configured":
                    options.append(f"-Dfastbk.compat.racks={script}")
                words = [cluster.metadata_uri, "v3", "placement"]
                results = list(run_cells(column, cluster, rig.programs, words, options=options))
                yield from (one for one in results if one.verdict != "pass")
                yield run_cell(column, name, lambda: mend(cluster, name))
    for kind in HEALERS:
        if is_wanted(name := f"placement-healing-{kind}", only):
            with racks(rig) as (cluster, script):
                healing = Healing(cluster, script, kind, random.Random(f"{seed} {kind}"))
                yield run_cell(
                    "autorecovery > ours",
                    name,
                    lambda healing=healing: asyncio.run(healing.run(rounds)),
                )


@contextmanager
def racks(rig: Rig) -> Iterator[tuple[Cluster, Path]]:
    """Run nine bookies in three racks; yield a topology script, too."""
    with rig.cluster(is_started=False) as cluster:
        cluster.add_ours(BOOKIES)
        assert cluster.ours is not None
        for number, bookie in enumerate(cluster.ours.bookies):
            address = f"127.0.0.{number + 2}:{free_port()}"
            bookie.sections["bookie"] |= {"id": address, "listen": address}
        cluster.start()
        table = {one.bookie_id: rack_of(BookieId(one.bookie_id)) for one in cluster.members}
        asyncio.run(_set_rule(cluster.metadata_uri, table))
        script = cluster.folder / "racks"
        rows = "".join(
            f"{bookie_id.rpartition(':')[0]}) echo {rack};;\n" for bookie_id, rack in table.items()
        )
        script.write_text(
            f'#!/bin/sh\nfor host; do case "$host" in\n{rows}*) echo /default-rack;;\nesac; done\n'
        )
        script.chmod(0o755)
        yield cluster, script


async def _set_rule(uri: str, table: Mapping[str, str]) -> None:
    async with fastbk.connect(uri) as client:
        await client.call_store(
            lambda store: change_rules(store, lambda _: ClusterRules(RULE, table))
        )


def rack_of(bookie_id: BookieId) -> str:
    """Return the rack of a bookie, by the last number of its address."""
    return f"/rack-{int(bookie_id.partition(':')[0].rpartition('.')[2]) % RACKS}"


def mend(cluster: Cluster, what: str) -> None:
    """Print how many ledgers lie against the rule, and have our AutoRecovery move what does."""
    asyncio.run(_mend(cluster, what))


async def _mend(cluster: Cluster, what: str) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        broken, ledgers = await judged(client)
        await asyncio.to_thread(_check_agrees, cluster, broken)
        said = f"{what}: {len(broken)} of {ledgers} ledgers lie against the enforced rule"
        with healer(cluster):
            mended_s = await until_mended(cluster, client)
        print(f"{said}; 0 after {mended_s:.0f} s of our AutoRecovery", flush=True)


async def judged(client: Client) -> tuple[set[LedgerId], int]:
    """Return the ledgers that lie against the rule, and how many there are."""
    ledgers = await client.call_store(read_all)
    broken = {one for one in ledgers if of_one_place({one: ledgers[one]}, rack_of)}
    return broken, len(ledgers)


async def until_mended(cluster: Cluster, client: Client) -> float:
    """Wait until no ledger lies against the rule; return how long it took."""
    began_s = time.monotonic()

    async def is_mended() -> bool:
        return not (await judged(client))[0]

    await wait_until_async(is_mended, "nothing lies against the rule", MENDED_S_MAX)
    await asyncio.to_thread(_check_agrees, cluster, set())
    return time.monotonic() - began_s


@contextmanager
def healer(cluster: Cluster) -> Iterator[None]:
    """Run our AutoRecovery."""
    words = ("autorecovery", "--metadata", cluster.metadata_uri, "--grace", "2")
    words += ("--placement-interval", "10s")
    with open(cluster.folder / "healer.log", "ab") as log:
        process = subprocess.Popen([*FASTBK, *words], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _check_agrees(cluster: Cluster, broken: set[LedgerId]) -> None:
    words = ("cluster", "placement", "check", "--json", "--metadata", cluster.metadata_uri)
    found = json.loads(cluster.fastbk(*words, codes=(0, 1)))["enforced"]["ledgers"]
    assert found == len(broken), f"cluster placement check finds {found} ledgers, not {len(broken)}"


class Healing:
    """Lost bookies that one kind of AutoRecovery heals."""

    def __init__(self, cluster: Cluster, script: Path, kind: str, rng: random.Random) -> None:
        self._cluster = cluster
        self._kind = kind
        self._rng = rng
        self._has_ours, self._apaches = HEALERS[kind]
        self._script = script
        self.healed = 0
        self.left = 0
        self.broken = 0

    async def run(self, rounds: int) -> None:
        """Lose so many bookies, one after the other."""
        async with fastbk.connect(self._cluster.metadata_uri) as client:
            await client.call_store(lambda store: store.coordination.set_lost_bookie_delay(DELAY_S))
            with ExitStack() as stack:
                if self._has_ours:
                    stack.enter_context(healer(self._cluster))
                    await wait_until_async(
                        lambda: _has_auditor(client), "ours is the auditor", HEALED_S_MAX
                    )
                if self._apaches is not None:
                    changes = {"lostBookieRecoveryDelay": DELAY_S, **self._apaches}
                    if self._apaches:
                        changes["networkTopologyScriptFileName"] = self._script
                    stack.enter_context(daemon(self._cluster, changes))
                for number in range(rounds):
                    await self._round(client, number)
                if self._has_ours:
                    mended_s = await until_mended(self._cluster, client)
            if not self._has_ours:
                with healer(self._cluster):
                    mended_s = await until_mended(self._cluster, client)
        print(
            f"placement-healing-{self._kind}: {rounds} bookies lost, {self.healed} ledgers healed, {self.left} not;"
            f" at that moment {self.broken} lie against the rule; 0 after {mended_s:.0f} s of our AutoRecovery",
            flush=True,
        )
        if self._kind == "ours":
            assert not self.broken

    async def _round(self, client: Client, number: int) -> None:
        before, _ = await judged(client)
        made = {await _write(client, self._rng.choice(SHAPES)) for _ in range(LEDGERS)}
        assert not made & (await judged(client))[0], "writers of ours keep to the rule"
        victim = self._rng.choice(self._cluster.members)
        held = await _named(client, victim.bookie_id)
        victim.stop()

        async def is_healed() -> bool:
            return not await _named(client, victim.bookie_id)

        if not self._apaches:
            await wait_until_async(is_healed, f"round {number} is healed", HEALED_S_MAX)
        else:
            # Where Apache's enforces racks, it finds no place for copies of some striped ledgers. It keeps the locks of
            # these for up to five minutes (lockReleaseOfFailedLedgerGracePeriod), so nobody else repairs them.
            with contextlib.suppress(AssertionError):
                await wait_until_async(is_healed, f"round {number} is healed", APACHE_S_MAX)
        broken, _ = await judged(client)
        left = len(await _named(client, victim.bookie_id))
        self.healed += len(held) - left
        self.left += left
        self.broken += len(broken - before)
        self._cluster.restore(victim.bookie_id)


async def _has_auditor(client: Client) -> bool:
    return await client.call_store(lambda store: store.coordination.auditor()) is not None


async def _write(client: Client, shape: tuple[int, int, int]) -> LedgerId:
    async with await client.create_ledger(*shape) as writer:
        await writer.append_many([b"%d" % number for number in range(ENTRIES)])
    return writer.ledger_id


async def _named(client: Client, bookie_id: str) -> set[LedgerId]:
    """Return the ledgers that name a bookie."""
    ledgers = await client.call_store(read_all)
    return {
        ledger_id
        for ledger_id, metadata in ledgers.items()
        if any(bookie_id in fragment.ensemble for fragment in metadata.fragments)
    }
