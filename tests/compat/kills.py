"""Rounds of SIGKILL in a cluster of bookies of both kinds, judged for lost entries: by Java's client and by ours."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import fastbk
from fastbk.client.client import Client
from fastbk.client.ledger_writer import LedgerWriter
from fastbk.errors import Error, MetadataUnavailable, NotEnoughBookies, QuorumTimeout
from tests.compat.java_cells import Answer, run_cells
from tests.compat.python_side import PASSWORD, payload
from tests.compat.results import Result, run_cell
from tests.compat.rig import Cluster, Rig

BACK_S_MAX = 120.0
ROUND_S_MAX = 60
RUNNING_MIN = 4
"""The largest ensemble: writers always find bookies."""
WRITERS = 4
ENTRIES_MAX = 2000
WINDOW = 100
TRIES_MAX = 20
QUORUMS = ((3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 3), (4, 3, 2))
LATER = (NotEnoughBookies, QuorumTimeout, MetadataUnavailable)
"""What too few bookies end with: to be tried again when all are back."""


def kill_rounds(rig: Rig, rounds: int, seed: int, *, kind: str) -> Iterator[Result]:
    """Seven bookies, of both kinds or all of Apache's; Java's writers and readers over both protocols."""
    ours, apache = {"mixed": (5, 2), "apache": (0, 7)}[kind]
    with rig.cluster(ours=ours, apache=apache) as cluster:
        killer = Killer(cluster)
        arguments = [cluster.metadata_uri, "v3", "kills"]
        options = [
            f"-Dfastbk.compat.rounds={rounds}",
            f"-Dfastbk.compat.seed={seed}",
            f"-Dfastbk.compat.seconds={rounds * ROUND_S_MAX}",
        ]
        answers: dict[str, Answer] = {"kill-some": killer.kill, "all-back": killer.all_back}
        yield from run_cells(
            f"java > {kind}, kills",
            cluster,
            rig.programs,
            arguments,
            options=options,
            more_answers=answers,
            run_s_max=rounds * ROUND_S_MAX,
        )


class Killer:
    """Kills, and starts again at once, so that writers see bookies come back, too."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._starting: dict[str, threading.Thread] = {}
        self._errors: list[Exception] = []

    def kill(self, count: str, seed: str) -> str:
        """SIGKILL so many bookies, of those that are back, and have them started again; returns their ids."""
        while len(self._back()) - int(count) < RUNNING_MIN:
            self._check()
            time.sleep(0.05)
        victims = random.Random(int(seed)).sample(self._back(), int(count))
        for bookie_id in victims:
            self._cluster.member(bookie_id).kill()
            self._starting[bookie_id] = threading.Thread(target=self._restore, args=(bookie_id,))
            self._starting[bookie_id].start()
        return ",".join(victims)

    def _back(self) -> list[str]:
        """Return the ids of the bookies that take writes."""
        ids = [each.bookie_id for each in self._cluster.members]
        return [
            each
            for each in ids
            if each not in self._starting or not self._starting[each].is_alive()
        ]

    def _restore(self, bookie_id: str) -> None:
        try:
            self._cluster.restore(bookie_id)
        except Exception as error:
            self._errors.append(error)

    def _check(self) -> None:
        if self._errors:
            raise self._errors[0]

    def all_back(self) -> None:
        for thread in self._starting.values():
            thread.join(BACK_S_MAX)
        self._check()


@dataclass(slots=True)
class Written:
    ledger_id: int
    acknowledged: int = -1


class Rounds:
    def __init__(self, killer: Killer, clients: list[Client], seed: int) -> None:
        self._killer = killer
        self._clients = clients
        self._rng = random.Random(seed)
        self.entries = 0
        self.ended_early = 0
        self._is_over = False

    async def run(self, rounds: int) -> None:
        """Run so many; raises AssertionError at the first lost entry."""
        for done in range(1, rounds + 1):
            ledgers = await self._round()
            for number, ledger in enumerate(ledgers):
                await self._judge(self._clients[(number + 1) % 2], ledger)
                self.entries += ledger.acknowledged + 1
            if done % 10 == 0 or done == rounds:
                print(
                    f"{done} rounds, {self.entries:,} acknowledged entries read back,"
                    f" {self.ended_early} writers ended early, 0 lost",
                    flush=True,
                )

    async def _round(self) -> list[Written]:
        rng = self._rng
        self._is_over = False
        writers = [await self._create(self._clients[number % 2]) for number in range(WRITERS)]
        ledgers = [Written(writer.ledger_id) for writer in writers]
        tasks = [
            asyncio.create_task(self._write(*pair, is_closed=self._rng.random() < 0.5))
            for pair in zip(writers, ledgers, strict=True)
        ]
        await asyncio.sleep(rng.random() * 0.2)
        count = "2" if self._rng.random() < 0.2 else "1"
        await asyncio.to_thread(self._killer.kill, count, str(self._rng.randrange(1 << 30)))
        await asyncio.sleep(rng.random() * 0.2)
        self._is_over = True
        await asyncio.gather(*tasks)
        return ledgers

    async def _create(self, client: Client) -> LedgerWriter:
        quorum = self._rng.choice(QUORUMS)
        for attempt in range(TRIES_MAX):
            try:
                return await client.create_ledger(
                    *quorum, self._rng.choice(("crc32c", "hmac")), PASSWORD
                )
            except LATER:
                await self._patience(attempt)
        raise AssertionError("no ledger could be made")

    async def _write(self, writer: LedgerWriter, ledger: Written, *, is_closed: bool) -> None:
        try:
            under_way: list[asyncio.Future[int]] = []
            for entry_id in range(ENTRIES_MAX):
                if self._is_over:
                    break
                under_way.append(writer.append_nowait(payload(ledger.ledger_id, entry_id)))
                if len(under_way) == WINDOW:
                    ledger.acknowledged = await under_way.pop(0)
            for future in under_way:
                ledger.acknowledged = await future
            if is_closed:
                await writer.close()
        except Error:
            self.ended_early += 1

    async def _judge(self, client: Client, ledger: Written) -> None:
        for attempt in range(TRIES_MAX):
            try:
                async with await client.open_ledger(ledger.ledger_id, password=PASSWORD) as reader:
                    last = await reader.last_add_confirmed()
                    assert last >= ledger.acknowledged, (
                        f"ledger {ledger.ledger_id} ends at {last}, acknowledged: {ledger.acknowledged}"
                    )
                    next_id = 0
                    async with contextlib.aclosing(reader.read(0, last)) as entries:
                        async for entry in entries:
                            assert entry.entry_id == next_id
                            assert bytes(entry.data) == payload(ledger.ledger_id, next_id), (
                                f"bytes of {next_id}"
                            )
                            next_id += 1
                    assert next_id == last + 1, (
                        f"ledger {ledger.ledger_id} has {next_id} of {last + 1} entries"
                    )
                    return
            except LATER:
                await self._patience(attempt)
        raise AssertionError(f"ledger {ledger.ledger_id} could not be read")

    async def _patience(self, attempt: int) -> None:
        await asyncio.to_thread(self._killer.all_back)
        rng = self._rng
        if attempt:
            await asyncio.sleep(rng.random())


def python_kill_rounds(rig: Rig, rounds: int, seed: int) -> Iterator[Result]:
    """Seven bookies, of both kinds; clients that speak v3 and v2 to those of Apache's."""
    with rig.cluster(ours=5, apache=2) as cluster:

        async def run() -> None:
            options: dict[str, object] = {"apache_protocol": "v2"}
            async with (
                fastbk.connect(cluster.metadata_uri) as v3,
                fastbk.connect(cluster.metadata_uri, **options) as v2,
            ):
                await Rounds(Killer(cluster), [v3, v2], seed).run(rounds)

        result = run_cell("python > mixed, kills", "python-kill-rounds", lambda: asyncio.run(run()))
    yield result
