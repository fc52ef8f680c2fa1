"""Rig `shutdown`: the power of a whole cluster goes at once, under load.

Three bookies, each on a small file system of its own. The kernel is told to stop all three (the shutdown of ext4 and
xfs: nothing that is not durable yet ever reaches the device, the file system's own log included), the processes are
killed, the file systems mounted again, the bookies started; then every ledger is recovered and read. An entry was
acknowledged by two bookies of three, so all of them are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import fastbk
from fastbk.errors import Error
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async
from tests.rigs import mounts
from tests.rigs.judge import Found, Key, Known, judge
from tests.rigs.kill_points import SETTINGS, payload
from tests.rigs.recording import work_folder
from tests.rigs.report import Plan, Report

if TYPE_CHECKING:
    from fastbk.client.client import Client

BOOKIES = 3
SIZE_BYTES = 320 << 20
KINDS = ("ext4", "xfs")
WRITERS = 3
WINDOW = 48
CUTS_A_CLUSTER = 4
ACKS_MIN = 200
STARTS_S = 60.0
LINGER_S_MAX = 0.15


@dataclass
class Ledgers:
    """What writers were told."""

    acked: dict[Key, bytes] = field(default_factory=dict)
    sent: dict[Key, list[bytes]] = field(default_factory=dict)


async def write(client: Client, ledgers: Ledgers) -> None:
    """Append to one ledger until something fails."""
    writer = await client.create_ledger(ensemble=BOOKIES, write_quorum=BOOKIES, ack_quorum=2)
    ledger_id, number = writer.ledger_id, 0
    pending: set[asyncio.Future[int]] = set()

    def note(key: Key, done: asyncio.Future[int]) -> None:
        if not done.cancelled() and done.exception() is None:
            ledgers.acked[key] = ledgers.sent[key][0]

    with contextlib.suppress(Error):
        while True:
            while len(pending) < WINDOW:
                key = (ledger_id, number)
                ledgers.sent[key] = [payload(*key)]
                future = writer.append_nowait(ledgers.sent[key][0])
                future.add_done_callback(lambda done, key=key: note(key, done))  # type: ignore[misc]
                pending.add(future)
                number += 1
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
    await asyncio.gather(*pending, return_exceptions=True)


async def read_all(uri: str, ledgers: Ledgers) -> Found:
    """Recover every ledger and read it."""
    found = Found()
    async with fastbk.connect(uri) as client:
        for ledger_id in sorted({key[0] for key in ledgers.sent}):
            reader = await client.open_ledger(ledger_id)
            if reader.last_known >= 0:
                async for entry in reader.read(0, reader.last_known):
                    found.entries[ledger_id, entry.entry_id] = bytes(entry.data)
    return found


async def cut(cluster: LocalCluster, disks: Disks, ledgers: Ledgers, rng: random.Random) -> None:
    """Write, stop all file systems, kill everything, mount again, start."""
    async with fastbk.connect(cluster.metadata_uri, append_timeout=5.0) as client:
        before = len(ledgers.acked)
        wanted = before + ACKS_MIN + rng.randrange(3000)
        writers = [asyncio.ensure_future(write(client, ledgers)) for _ in range(WRITERS)]
        await wait_until_async(lambda: len(ledgers.acked) >= wanted, "entries to lose", 30.0)
        disks.shut_down(rng)
        linger_s = rng.random() * LINGER_S_MAX
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*writers), linger_s)
        for number in range(BOOKIES):
            await cluster.kill_async(number)
        await asyncio.gather(*writers, return_exceptions=True)
    disks.remount()
    await asyncio.gather(*(cluster.start_bookie_async(number) for number in range(BOOKIES)))


@dataclass
class Disks:
    """The file systems of a cluster's bookies."""

    kind: str
    devices: dict[Path, str] = field(default_factory=dict)

    def shut_down(self, rng: random.Random) -> None:
        """Stop them all, in any order."""
        for folder in rng.sample(list(self.devices), len(self.devices)):
            mounts.shut_down(folder)

    def remount(self) -> None:
        """Mount them again, as after the power came back."""
        for folder, device in self.devices.items():
            mounts.unmount(folder)
            mounts.mount(device, folder, self.kind)


@contextlib.contextmanager
def small_disks(folder: Path, kind: str) -> Iterator[Disks]:
    """Mount a file system where each bookie's folder will be."""
    disks = Disks(kind)
    with contextlib.ExitStack() as stack:
        for number in range(1, BOOKIES + 1):
            image, place = folder / f"disk-{number}", folder / "cluster" / f"bookie-{number}"
            mounts.make_file_system(image, kind, SIZE_BYTES)
            place.mkdir(parents=True)
            device = mounts.attach(image)
            stack.callback(mounts.detach, device)
            mounts.mount(device, place, kind)
            stack.callback(mounts.unmount, place)
            disks.devices[place] = device
        yield disks


async def run_cluster(plan: Plan, report: Report, kind: str, folder: Path, seed: int) -> None:
    """One cluster, cut a few times."""
    rng = random.Random(seed)
    with small_disks(folder, kind) as disks:
        async with LocalCluster(BOOKIES, data=folder / "cluster", settings=SETTINGS) as cluster:
            for number in range(CUTS_A_CLUSTER):
                if not plan.goes_on(report.cases) and report.cases:
                    break
                ledgers = Ledgers()
                await cut(cluster, disks, ledgers, rng)
                found = await asyncio.wait_for(read_all(cluster.metadata_uri, ledgers), STARTS_S)
                report.cases += 1
                report.counts[kind] += 1
                report.counts["entries"] += len(ledgers.acked)
                known = Known(ledgers.acked, ledgers.sent)
                report.lose(judge(known, found), f"seed {seed} {kind} cut {number}")


def run(plan: Plan) -> Report:
    """Cut clusters until there are enough cases; at least once."""
    report = Report("shutdown", skipped=mounts.why_not())
    if report.skipped:
        return report
    began_s = time.monotonic()
    seed = plan.seed
    while plan.goes_on(report.cases) or not report.cases:
        with work_folder(plan) as folder:
            asyncio.run(run_cluster(plan, report, KINDS[seed % len(KINDS)], folder, seed))
        seed += 1
    report.seconds = time.monotonic() - began_s
    return report
