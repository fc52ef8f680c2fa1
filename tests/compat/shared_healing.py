"""Rounds of lost bookies that Apache's AutoRecovery daemon and ours heal together, in one cluster of our bookies.

Each round writes ledgers, stops a bookie, waits until nothing names it any more, and starts it again. Meanwhile a
client changes the ledgers' custom metadata: no update of anybody may be lost. Locks are Apache's, so nothing is copied
twice (bookies count copies that they have already), unless a session of one of the three processes expires. In every
tenth round one of them is stopped for so long that it does.

Half of the rounds have Apache's auditor, half ours.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import fastbk
from fastbk.admin.cluster import under_replicated
from fastbk.autorecovery.state import ClusterState
from fastbk.client import Client
from fastbk.errors import Error
from fastbk.model.ids import LedgerId
from tests.compat.autorecovery import daemon
from tests.compat.members import FASTBK, children_of, http_text, send_signal
from tests.compat.results import Result, run_cell
from tests.compat.rig import Cluster, Rig
from tests.fixtures.wait import wait_until_async

SHAPES = ((3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 2))
LEDGERS = 60
ENTRIES = 300
DELAY_S = 1
HEALERS = 2
HEALED_S_MAX = 120.0
EXPIRES_S = 12.0, 15.0
"""Longer than any session here lasts."""
DUPLICATES = re.compile(r"^fastbk_index_duplicates_total(?:\{[^}]*\})? (\d+)", re.MULTILINE)
KEY = "count"


@dataclass(slots=True)
class Tally:
    """What all rounds came to."""

    rounds: int = 0
    updates: int = 0
    copied_by_us: int = 0
    copied: int = 0
    double_copies: int = 0
    expiries: int = 0

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds, {self.updates} updates of metadata beside them, none lost; {self.copied} copies,"
            f" {self.copied_by_us} of them ours; {self.expiries} rounds with an expired session, in which"
            f" {self.double_copies} copies were made twice; none in the others"
        )


def shared_healing(rig: Rig, rounds: int, seed: int) -> Iterator[Result]:
    """Run them on five of our bookies."""
    with rig.cluster(ours=5) as cluster:
        tally = Tally()
        for auditor in ("apache", "ours"):
            name = f"healing-beside-apache-{auditor}-auditor"
            half = Rounds(cluster, random.Random(f"{seed} {auditor}"), tally, auditor)
            yield run_cell(
                "both daemons > ours",
                name,
                lambda half=half: asyncio.run(half.run((rounds + 1) // 2)),
            )
        print(tally, flush=True)


class Rounds:
    """Rounds with one auditor: the process that is started first."""

    def __init__(self, cluster: Cluster, rng: random.Random, tally: Tally, auditor: str) -> None:
        self._cluster = cluster
        self._rng = rng
        self._tally = tally
        self._auditor = auditor
        self._ours: list[subprocess.Popen[bytes]] = []
        self._apaches: list[int] = []

    async def run(self, rounds: int) -> None:
        """Run so many."""
        async with fastbk.connect(self._cluster.metadata_uri) as client, self._processes(client):
            for number in range(rounds):
                await self._round(client, number)
                self._tally.rounds += 1

    @asynccontextmanager
    async def _processes(self, client: Client) -> AsyncIterator[None]:
        await client.call_store(lambda store: store.coordination.set_lost_bookie_delay(DELAY_S))
        state = ClusterState(client.records)
        try:
            if self._auditor == "ours":
                self._start_ours()
                await _auditor(client, lambda name: "-" in name and ":" not in name)
            before = set(children_of(os.getpid()))
            with daemon(self._cluster, {"lostBookieRecoveryDelay": DELAY_S}):
                self._apaches = sorted(set(children_of(os.getpid())) - before)
                if self._auditor == "apache":
                    await _auditor(client, lambda name: ":" in name)
                    self._start_ours()
                await wait_until_async(
                    lambda: _are_working(state), "our workers work", HEALED_S_MAX
                )
                yield
        finally:
            for one in self._ours:
                one.send_signal(signal.SIGCONT)
                one.terminate()
            for one in self._ours:
                one.wait(30)
            self._ours.clear()

    def _start_ours(self) -> None:
        for number in range(HEALERS):
            words = ("autorecovery", "--metadata", self._cluster.metadata_uri, "--grace", "2")
            with open(self._cluster.folder / f"healer-{self._auditor}-{number}.log", "wb") as log:
                self._ours.append(subprocess.Popen([*FASTBK, *words], stdout=log, stderr=log))

    # --- one round ---------------------------------------------------------------------------------------------

    async def _round(self, client: Client, number: int) -> None:
        rng, tally = self._rng, self._tally
        expires = number % 10 == 9
        ledgers = [await _write(client, rng.choice(SHAPES)) for _ in range(LEDGERS)]
        doubles, ours = self._doubles(), await _copied_by_us(client)
        victim = rng.choice(self._cluster.members)
        victim.stop()
        copied = await _copies_on(client, ledgers, victim.bookie_id)
        counts = dict.fromkeys(ledgers, 0)
        updating = asyncio.create_task(_update(client, counts))
        try:
            if expires:
                await self._expire(client, ledgers)
            await wait_until_async(
                lambda: _is_healed(client, ledgers, victim.bookie_id),
                f"round {number} is healed",
                HEALED_S_MAX,
            )
        finally:
            updating.cancel()
            await asyncio.wait([updating])
        await _check(client, counts)
        tally.updates += sum(counts.values())
        made_twice = self._doubles() - doubles
        if expires:
            tally.expiries += 1
            tally.double_copies += made_twice
        else:
            assert not made_twice, f"round {number}: {made_twice} copies were made twice"
        tally.copied += copied
        tally.copied_by_us += await _copied_by_us(client) - ours
        for ledger_id in ledgers:
            await client.delete_ledger(ledger_id)
        self._cluster.restore(victim.bookie_id)

    async def _expire(self, client: Client, ledgers: list[LedgerId]) -> None:
        """Stop a process that has a ledger's lock, or any, until its session has expired."""

        async def is_begun() -> bool:
            return any([await client.locks.holder_of(one) for one in ledgers])

        await wait_until_async(is_begun, "somebody repairs", HEALED_S_MAX)
        rng = self._rng
        pid = rng.choice([*self._apaches, *(one.pid for one in self._ours)])
        send_signal([pid], signal.SIGSTOP)
        try:
            await asyncio.sleep(rng.uniform(*EXPIRES_S))
        finally:
            send_signal([pid], signal.SIGCONT)

    def _doubles(self) -> int:
        """Return how many entries bookies were given that they had."""
        return sum(
            int(each)
            for one in self._cluster.members
            if one.is_running
            for each in DUPLICATES.findall(http_text(one.http_port, "/metrics?names=fastbk"))
        )


async def _auditor(client: Client, is_wanted: Callable[[str], bool]) -> None:
    async def found() -> bool:
        name = await client.call_store(lambda store: store.coordination.auditor())
        return name is not None and is_wanted(name)

    await wait_until_async(found, "the auditor is elected", HEALED_S_MAX)


async def _are_working(state: ClusterState) -> bool:
    return sum(one.counter > 0 for one in (await state.workers()).values()) >= HEALERS


async def _copied_by_us(client: Client) -> int:
    return sum(
        one.entries_copied for one in (await ClusterState(client.records).workers()).values()
    )


async def _write(client: Client, shape: tuple[int, int, int]) -> LedgerId:
    async with await client.create_ledger(*shape) as writer:
        await writer.append_many(
            [b"%d/%d" % (writer.ledger_id, one) * 20 for one in range(ENTRIES)]
        )
    return writer.ledger_id


async def _copies_on(client: Client, ledgers: list[LedgerId], bookie_id: str) -> int:
    """Return how many entries a bookie holds of these."""
    found = 0
    for ledger_id in ledgers:
        metadata = (await client.ledger_info(ledger_id)).metadata
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        for fragment in metadata.fragments:
            if bookie_id in fragment.ensemble:
                index = fragment.ensemble.index(bookie_id)
                found += sum((index - one) % size < quorum for one in range(ENTRIES))
    return found


async def _update(client: Client, counts: dict[LedgerId, int]) -> None:
    """Count up in each ledger's custom metadata, as long as it is let; `counts`: what was acknowledged."""
    while True:
        for ledger_id in counts:
            await client.edit_metadata(ledger_id, {KEY: b"%d" % (counts[ledger_id] + 1)})
            counts[ledger_id] += 1
        await asyncio.sleep(random.uniform(0.01, 0.05))


async def _is_healed(client: Client, ledgers: list[LedgerId], lost: str) -> bool:
    for ledger_id in ledgers:
        metadata = (await client.ledger_info(ledger_id)).metadata
        if any(lost in one.ensemble for one in metadata.fragments):
            return False
    try:
        return not [one async for one in under_replicated(client) if one.ledger_id in ledgers]
    except Error:
        return False


async def _check(client: Client, counts: dict[LedgerId, int]) -> None:
    """Read every entry, and what was counted."""
    for ledger_id, known in counts.items():
        info = await client.ledger_info(ledger_id)
        counted = int(info.metadata.custom.get(KEY, b"0"))
        # One update may have been under way.
        assert known <= counted <= known + 1, f"ledger {ledger_id}: {counted} counted of {known}"
        reader = await client.open_ledger(ledger_id, recovery=False)
        entries = [bytes(one.data) async for one in reader.read()]
        assert entries == [b"%d/%d" % (ledger_id, one) * 20 for one in range(ENTRIES)]
