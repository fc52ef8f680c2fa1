"""Rounds of faults against a live cluster, then the reckoning: heal, recover everything, read all, check the histories.

Bookies are real processes; clients are processes of their own behind proxies, one set of proxies for each kind of
client, so that a writer and a recoverer can see different halves of the cluster. At most `QA - 1` bookies are down for
good at any time: none is ever wiped, so every acknowledged entry must come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import fastbk
from fastbk.errors import Error
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async
from tests.live.checker import Report, check
from tests.live.history import Recorder, load
from tests.live.proxied_store import proxied
from tests.live.proxy import Direction, FrameProxy
from tests.live.worker import Settings, Worker
from tests.rigs.adopting import adopting, switch

BOOKIES = 5
ROLES = {"writer": 2, "recoverer": 2, "tailer": 1}
FINAL_READERS = 3
ROUND_S_MAX = 2.0
ROUND_ACKS = 50
BEGINS_S = 120.0
ADOPTING_SHARE = 0.7
"""Of the starts of bookies."""
RUN_BYTES_MIN = 1
PROCESSES = ["supervisor", "supervisor", "journal", "index", "worker.0", "gc"]


@dataclass
class Torture:
    """One run.

    Attributes:
        rounds: how many faults.
        counts: how often each fault was made.
    """

    folder: Path
    seed: int
    rounds: int
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.proxies: dict[tuple[str, int], FrameProxy] = {}
        self.workers: dict[str, asyncio.subprocess.Process] = {}
        self.generation = 0

    async def run(self) -> Report:
        """Do all rounds and return what the checker says."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {"bookie": {"restarts_max": 1_000_000}}
        async with AsyncExitStack() as stack:
            stack.enter_context(adopting(run_bytes_min=RUN_BYTES_MIN))
            cluster = await stack.enter_async_context(
                LocalCluster(BOOKIES, data=self.folder / "cluster", settings=settings)
            )
            self.cluster = cluster
            await self._start_proxies()
            nemesis = Recorder(self.folder / "nemesis.history", "nemesis")
            try:
                for role, count in ROLES.items():
                    for number in range(count):
                        await self._start_worker(role, number)
                await self._work_begins()
                for number in range(self.rounds):
                    await self._round(number, nemesis)
                await self._heal_all()
            finally:
                await self._stop_workers()
            await self._reckon()
            for proxy in self.proxies.values():
                await proxy.stop()
            nemesis.close()
        return check(load(self.folder))

    # --- set-up ------------------------------------------------------------------------------------------------

    async def _start_proxies(self) -> None:
        for role in ROLES:
            for index in range(BOOKIES):
                proxy = FrameProxy(
                    lambda index=index: self.cluster.bookies[index].port,  # type: ignore[misc]
                    random.Random(self.rng.random()),
                )
                await proxy.start()
                self.proxies[role, index] = proxy

    def _ports(self, role: str) -> dict[str, int]:
        return {
            bookie.name: self.proxies[role, index].port
            for index, bookie in enumerate(self.cluster.bookies)
        }

    async def _start_worker(self, role: str, number: int) -> None:
        self.generation += 1
        name = f"{role}-{number}"
        seed = self.rng.randrange(1 << 32)
        called = f"{name}.{self.generation}"
        settings = self._settings(called, self._ports(role), self.generation, seed)
        path = self.folder / f"{name}.{self.generation}.json"
        path.write_text(json.dumps(asdict(settings)))
        with open(self.folder / f"{name}.log", "ab") as log:
            self.workers[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.live.worker", role, str(path), stdout=log, stderr=log
            )

    async def _stop_workers(self) -> None:
        for process in self.workers.values():
            if process.returncode is None:
                process.kill()
            await process.wait()

    # --- rounds ------------------------------------------------------------------------------------------------

    async def _round(self, number: int, nemesis: Recorder) -> None:
        rng = self.rng
        # A bookie that does not adopt any more has the files of a life that did.
        switch(rng.random() < ADOPTING_SHARE, run_bytes_min=RUN_BYTES_MIN)
        faults = [
            self._kill,
            self._kill,
            self._stop_and_start,
            self._freeze,
            self._partition,
            self._partition,
            self._one_way,
            self._noise,
            self._cut,
            self._kill_client,
        ]
        fault = rng.choice(faults)
        name = fault.__name__.strip("_")
        self.counts[name] += 1
        nemesis.note("fault", text=f"{number}: {name}")
        await fault()
        await self._let_it_work()
        if rng.random() < 0.7:
            await self._heal_all()
        for worker, process in list(self.workers.items()):
            if process.returncode is not None:
                role, _, which = worker.rpartition("-")
                if process.returncode > 0:
                    log = (self.folder / f"{worker}.log").read_text()
                    raise AssertionError(f"{worker} ended by itself:\n{log[-2000:]}")
                await self._start_worker(role, int(which))

    async def _work_begins(self) -> None:
        """Wait until the writers have done something: a fault before it strikes nobody."""
        await wait_until_async(
            lambda: self._history_bytes() > 100 * ROUND_ACKS, "the first writes", BEGINS_S
        )

    async def _let_it_work(self) -> None:
        """Wait until some acknowledgements came, or the longest time of a round is over."""
        wanted = self._history_bytes() + 100 * ROUND_ACKS
        # A round in which nothing can be acknowledged is a round all the same.
        with contextlib.suppress(AssertionError):
            await wait_until_async(
                lambda: self._history_bytes() >= wanted, "acknowledgements", ROUND_S_MAX
            )

    def _history_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("writer*.history"))

    async def _heal_all(self) -> None:
        for proxy in self.proxies.values():
            proxy.heal()
        for index, bookie in enumerate(self.cluster.bookies):
            if not bookie.is_running:
                await self.cluster.start_bookie_async(index)
        await self.cluster.wait_ready_async()

    async def _kill(self) -> None:
        index = self.rng.randrange(BOOKIES)
        bookie = self.cluster.bookies[index]
        if bookie.is_running and bookie.is_ready:
            with contextlib.suppress(KeyError, ProcessLookupError):
                await self.cluster.kill_async(index, self.rng.choice(PROCESSES))
        # With Qa = 2 of 3 a second dead one would only stop everything.
        for other, down in enumerate(self.cluster.bookies):
            if other != index and not down.is_running:
                await self.cluster.start_bookie_async(other)

    async def _stop_and_start(self) -> None:
        index = self.rng.randrange(BOOKIES)
        if self.cluster.bookies[index].is_running:
            await self.cluster.stop_bookie_async(index)
        await self.cluster.start_bookie_async(index)

    async def _freeze(self) -> None:
        rng = self.rng
        bookie = rng.choice(self.cluster.bookies)
        pid = bookie.pids.get(rng.choice(["journal", "index", "worker.0"]))
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(rng.uniform(0.05, 1.0))
            finally:
                os.kill(pid, signal.SIGCONT)

    async def _partition(self) -> None:
        """Cut some bookies off from one kind of client, or from all of them."""
        roles = self.rng.choice([[role] for role in ROLES] + [list(ROLES)])
        away = set(self.rng.sample(range(BOOKIES), self.rng.choice([1, 1, 2, 3])))
        refuse = self.rng.random() < 0.5
        for (role, index), proxy in self.proxies.items():
            if role in roles and index in away:
                hold = Direction(hold=not refuse)
                proxy.set(hold, hold, refuse=refuse)

    async def _one_way(self) -> None:
        """Requests arrive and answers do not, or the other way round."""
        proxy = self.rng.choice(list(self.proxies.values()))
        held, free = Direction(hold=True), Direction()
        if self.rng.random() < 0.5:
            proxy.set(held, free)
        else:
            proxy.set(free, held)

    async def _noise(self) -> None:
        rng = self.rng
        for proxy in self.proxies.values():
            if rng.random() < 0.5:
                proxy.set(*(self._noisy() for _ in range(2)))

    def _noisy(self) -> Direction:
        rng = self.rng
        return Direction(
            delay_s=rng.choice([0, 0, 0.002, 0.05]),
            duplicate=rng.choice([0, 0.05, 0.3]),
            reorder=rng.choice([0, 0.1]),
            corrupt=rng.choice([0, 0, 0.01]),
            cut=rng.choice([0, 0, 0.005]),
        )

    async def _cut(self) -> None:
        for proxy in self.proxies.values():
            if self.rng.random() < 0.3:
                proxy.cut()

    async def _kill_client(self) -> None:
        process = self.rng.choice(list(self.workers.values()))
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()

    # --- the reckoning -----------------------------------------------------------------------------------------

    async def _reckon(self) -> None:
        """Recover every ledger, then read each with several readers, each without one bookie."""
        uri = self.cluster.metadata_uri
        async with fastbk.connect(uri) as client:
            settings = self._settings("recover", {})
            worker = Worker(settings, client)
            ids = [one.ledger_id async for one in client.list_ledgers()]
            for ledger_id in ids:
                reader = await client.open_ledger(ledger_id, recovery=True)
                metadata = reader.metadata
                worker.recorder.note(
                    "opened",
                    ledger=ledger_id,
                    last=metadata.last_entry_id,
                    length=metadata.length,
                    by=settings.name,
                )
        for number in range(FINAL_READERS):
            role = list(ROLES)[number]
            away = self.rng.randrange(BOOKIES)
            self.proxies[role, away].set(Direction(), Direction(), refuse=True)
            settings = self._settings(f"final-{number}-without-{away}", self._ports(role))
            store = proxied(uri, settings.ports)
            async with fastbk.connect(store, read_timeout=60.0) as client:
                worker = Worker(settings, client)
                for ledger_id in ids:
                    reader = await client.open_ledger(ledger_id, recovery=False)
                    # What cannot be read is missing in the history: the checker says so.
                    with contextlib.suppress(Error):
                        await worker.read_all(reader, settings.name, is_final=True)

    def _settings(
        self, name: str, ports: dict[str, int], number: int = 0, seed: int | None = None
    ) -> Settings:
        return Settings(
            name=name,
            run=self.seed & 0xFFFFFFFF,
            number=number,
            seed=self.seed if seed is None else seed,
            uri=self.cluster.metadata_uri,
            ports=ports,
            history=str(self.folder / f"{name}.history"),
            bookies=BOOKIES,
        )
