"""A process dies at a named point under load; what was acknowledged is there, and fences stay fences.

The points are those in the source (`FBK_KILL_POINT` in C, `kill_point` in Python), so a new one is tested by itself.
Small files and caches make rolls, recycling, flushes, merges and deletions happen within a second. A run is for a
point and the number of the pass at which its process dies: load, kill -9 of the whole bookie, start it armed (so replay
has something to do), load until the point's file says that it happened, load until everybody is served again, kill -9
once more, and read everything back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import fastbk
from fastbk.admin.page_client import AdminClient
from fastbk.devcluster import is_alive
from fastbk.errors import Error, NoSuchLedger, NotEnoughBookies
from fastbk.native.process import FILE_VARIABLE, POINT_VARIABLE
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures.raw_bookie import raw_bookie
from tests.fixtures.wait import wait_until_async

if TYPE_CHECKING:
    from fastbk.client.client import Client
    from fastbk.client.ledger_writer import LedgerWriter

SOURCE = Path(fastbk.__file__).parent
NAME = re.compile(r"""(?:FBK_KILL_POINT|\bkill_point)\(\s*"([a-z0-9_.]+)"\s*\)""")

SETTINGS = {
    "bookie": {"restarts_max": 50},
    "limits": {"frame_size_max": "256KiB"},
    "journal": {"first_file_size": "4MiB", "file_size": "16MiB", "limit": "32MiB"},
    "ledgers": {"write_cache_size": "4MiB", "flush_interval": "200ms", "entry_log_size": "4MiB"},
    "gc": {
        "interval": "100ms",
        "unconfirmed_age": "300ms",
        "delete_ratio_max": 1.0,
        "minor_interval": "300ms",
        "minor_ratio_max": 0.99,
        "major_interval": "1s",
        "major_ratio_max": 0.99,
    },
}
# For points that are passed with every so many files: the smallest that a bookie takes, and no rest between them.
BRISK_SETTINGS = {
    **SETTINGS,
    "ledgers": {**SETTINGS["ledgers"], "flush_interval": "50ms", "entry_log_size": "1MiB"},
    "gc": {**SETTINGS["gc"], "compaction_rate": "1GiB"},
}
BRISK = re.compile(r"index\.(merge|compact|recount|delete|before_unlink|after_unlink)|gc\.")
# With a limit of two files a free one is one too many: the next is always made anew, and none ever used again ...
PREWRITING_SETTINGS = {**SETTINGS, "journal": {**SETTINGS["journal"], "first_file_size": "16MiB"}}
PREWRITES = re.compile(r"journal\.prewrite_")
# ... with more room it is the other way round.
RECYCLING_SETTINGS = {**SETTINGS, "journal": {**SETTINGS["journal"], "limit": "128MiB"}}
RECYCLES = re.compile(r"journal\.recycle_")
# Passed only by a bookie whose journal files stay as logs.
ADOPTS = re.compile(r"index\.journal_files_free|journal\.cut_")
# For supervisors that have many children die: none of these deaths makes the next start wait.
PATIENT_SETTINGS = {**SETTINGS, "bookie": {"restarts_max": 50, "restarts_window": "1s"}}
ENTRY_BYTES_MAX = 8000
BULK_BYTES_MAX = 200_000
READ_ENTRIES = 1000
HAPPENS_S = 40.0
SERVED_S = 40.0
# Clients bear more than one case takes: of a supervisor that dies at its tenth boot they hear nothing until then.
AWAY_S = 300.0
PROCESSES = ("worker", "journal", "index", "gc", "supervisor")
# Passed once in the life of a process, at its start: there is no second pass to ask for.
ONCE = re.compile(r"(index|journal)\.before_ready|journal\.cut_|index\.replay_(before|after)_")
# Passed with each directory at a bookie's start, and never again in the life of its supervisor.
DIRECTORIES = "supervisor.start_counted"
# A supervisor passes its other points once a boot, and boots again when a child dies.
BOOTS = re.compile(r"supervisor\.(?!start_counted)")
# How often an index passes these hangs on what there is to replay, and whether a journal does on where that ends.
REPLAYS = re.compile(r"index\.replay_|journal\.cut_")
# Passed with every journal file, of 16 MiB at least.
BULKY = re.compile(r"journal\.(roll|recycle|prewrite)_")


def points() -> list[str]:
    """Return every point in the source that a running bookie can pass."""
    return [name for name in all_points() if name.partition(".")[0] in PROCESSES]


def all_points() -> list[str]:
    """Return every point in the source, those of commands and of a rebirth included: they have tests of their own."""
    found: set[str] = set()
    for path in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.c")]:
        found.update(NAME.findall(path.read_text("utf-8")))
    return sorted(found)


def payload(ledger_id: int, entry_id: int, bytes_max: int = ENTRY_BYTES_MAX) -> bytes:
    """The bytes of one entry: a function of its place."""
    head = f"{ledger_id}:{entry_id}:".encode()
    size_bytes = zlib.crc32(head) % bytes_max
    return (head * (size_bytes // len(head) + 1))[: max(size_bytes, len(head))]


@dataclass
class World:
    """What clients were told."""

    acknowledged: dict[int, int] = field(default_factory=dict)
    """Ledger -> entries acknowledged, ids 0.. in order."""
    disorder: list[tuple[int, int]] = field(default_factory=list)
    """Entries that were acknowledged before an earlier one of their ledger."""
    fenced: set[int] = field(default_factory=set)
    bytes_max: dict[int, int] = field(default_factory=dict)
    """Ledger -> bound of its entries' sizes, where it is not `ENTRY_BYTES_MAX`."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def payload(self, ledger_id: int, entry_id: int) -> bytes:
        """What was sent for an entry."""
        return payload(ledger_id, entry_id, self.bytes_max.get(ledger_id, ENTRY_BYTES_MAX))

    def note(self, ledger_id: int, entry_id: int) -> None:
        """Note an acknowledgement; called back by the loop, which would only log what is raised."""
        if entry_id != self.acknowledged[ledger_id]:
            self.disorder.append((ledger_id, entry_id))
        self.acknowledged[ledger_id] += 1


async def append(world: World, writer: LedgerWriter, window: int, most: int) -> None:
    """Keep `window` appends in flight until told to stop, or `most` are sent."""
    ledger_id = writer.ledger_id
    world.acknowledged[ledger_id] = 0
    pending: set[asyncio.Future[int]] = set()
    sent = 0

    def note(done: asyncio.Future[int]) -> None:
        if not done.cancelled() and done.exception() is None:  # else the wait for it below raises
            world.note(ledger_id, done.result())

    while sent < most and not world.stop.is_set():
        while len(pending) < window and sent < most:
            future = writer.append_nowait(world.payload(ledger_id, sent))
            future.add_done_callback(note)
            pending.add(future)
            sent += 1
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*pending)


async def create(client: Client) -> LedgerWriter:
    """Create a ledger, however long the bookie is away."""
    deadline_s = time.monotonic() + AWAY_S
    while True:
        try:
            return await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
        except NotEnoughBookies:
            assert time.monotonic() < deadline_s, "the bookie does not come back"
            await asyncio.sleep(0.01)


async def write_endlessly(world: World, client: Client, window: int, most: int) -> None:
    """One ledger after the other, each closed."""
    while not world.stop.is_set():
        async with await create(client) as writer:
            await append(world, writer, window, most)


async def write_and_delete(
    world: World, client: Client, window: int, most: int, bytes_max: int = ENTRY_BYTES_MAX
) -> None:
    """Ledgers that live a moment, for gc."""
    while not world.stop.is_set():
        async with await create(client) as writer:
            world.bytes_max[writer.ledger_id] = bytes_max
            await append(world, writer, window, most)
        del world.acknowledged[writer.ledger_id]
        await client.delete_ledger(writer.ledger_id)


async def read_back(world: World, client: Client, rng: random.Random) -> None:
    """What was acknowledged can be read at once."""
    while not world.stop.is_set():
        known = [(ledger_id, count) for ledger_id, count in world.acknowledged.items() if count]
        if not known:
            await asyncio.sleep(0.01)
            continue
        ledger_id, count = rng.choice(known)
        first = rng.randrange(count)
        last = min(count - 1, first + 20)
        try:
            reader = await client.open_ledger(ledger_id, recovery=False)
            found = [
                (e.entry_id, bytes(e.data)) for e in await reader.read_unconfirmed(first, last)
            ]
        except Error:
            # The bookie is away, or the ledger was deleted meanwhile. Nothing is ever taken for "not there".
            await asyncio.sleep(0.01)
            continue
        if ledger_id in world.acknowledged:
            wanted = [(n, world.payload(ledger_id, n)) for n in range(first, last + 1)]
            assert found == wanted, f"ledger {ledger_id} from {first}"


async def fence_some(world: World, cluster: LocalCluster, client: Client) -> None:
    """Fence ledgers, some of which the bookie has never heard of; an answered fence holds at once."""
    turn = 0
    while not world.stop.is_set():
        turn += 1
        try:
            async with await create(client) as writer:
                if turn % 2:
                    await append(world, writer, 8, 8)
            bookie = await raw_bookie(cluster.bookies[0])
        except Error:
            await asyncio.sleep(0.01)
            continue
        try:
            status = await bookie.fence(writer.ledger_id)
            assert status in (Status.OK, Status.NO_ENTRY, Status.NO_LEDGER), status
            world.fenced.add(writer.ledger_id)
            assert await bookie.add(writer.ledger_id, 1000, b"late") == Status.FENCED
        except Error:
            await asyncio.sleep(0.01)
        finally:
            bookie.close()
        await asyncio.sleep(0.02)


async def compact_often(world: World, cluster: LocalCluster) -> None:
    """Ask for compactions again and again, instead of waiting for one to be due."""
    while not world.stop.is_set():
        port = cluster.bookies[0].http_port
        with contextlib.suppress(Error):  # the bookie is away, or has no gc process just now
            if port:
                page = AdminClient("127.0.0.1", port, timeout_s=2.0)
                await asyncio.to_thread(page.post, "/gc/run", {"what": ["major"]})
        await asyncio.sleep(0.3)


async def check(world: World, cluster: LocalCluster) -> None:
    """Everything acknowledged is there with its bytes, and every answered fence holds."""
    assert not world.disorder, f"acknowledged too early: {world.disorder[:10]}"
    async with fastbk.connect(cluster.metadata_uri) as client:
        for ledger_id, count in world.acknowledged.items():
            if count == 0:
                continue
            reader = await client.open_ledger(ledger_id, recovery=False)
            for first in range(0, count, READ_ENTRIES):
                ids = range(first, min(count, first + READ_ENTRIES))
                found = await reader.read_unconfirmed(ids[0], ids[-1])
                assert [entry.entry_id for entry in found] == list(ids), f"ledger {ledger_id}: gaps"
                for entry in found:
                    wanted = world.payload(ledger_id, entry.entry_id)
                    assert bytes(entry.data) == wanted, f"ledger {ledger_id}: {entry.entry_id}"
    bookie = await raw_bookie(cluster.bookies[0])
    for ledger_id in world.fenced:
        status = await bookie.add(ledger_id, 2000, b"late")
        assert status == Status.FENCED, f"ledger {ledger_id} was fenced: {status!r}"
    bookie.close()


def is_written(died: Path) -> bool:
    """Whether the proof of a death is there: the file is made first, its text comes a moment later."""
    return died.exists() and died.stat().st_size > 0


def spawn_armed(cluster: LocalCluster, point: str, number: int, died: Path) -> None:
    """Start the bookie with a point armed, and do not wait for it."""
    os.environ[POINT_VARIABLE] = f"{point}:{number}"
    os.environ[FILE_VARIABLE] = str(died)
    try:
        cluster.bookies[0].spawn()
    finally:
        del os.environ[POINT_VARIABLE], os.environ[FILE_VARIABLE]


async def until_served(world: World) -> None:
    """Wait until acknowledgements come again."""
    before = sum(world.acknowledged.values())
    await wait_until_async(
        lambda: sum(world.acknowledged.values()) > before + 500, "acks after the kill", SERVED_S
    )


class NotReached(Exception):
    """The process did not pass the point so often within the time."""


async def until_it_dies(
    world: World,
    cluster: LocalCluster,
    point: str,
    number: int,
    died: Path,
    rng: random.Random,
    happens_s: float,
) -> None:
    """Start the bookie armed and wait for the death, which at some points takes others before. Raises NotReached."""
    deadline_s = time.monotonic() + happens_s
    bookie = cluster.bookies[0]
    boots = bookie.boots
    spawn_armed(cluster, point, number, died)

    def is_next() -> bool:
        bookie.refresh()
        return is_written(died) or (is_turn and bookie.is_ready and bookie.boots > boots)

    is_turn = bool(BOOTS.match(point) or REPLAYS.match(point))
    while True:
        try:
            await wait_until_async(is_next, "passed", deadline_s - time.monotonic())
        except AssertionError:
            raise NotReached(f"{point} was not passed {number} times in {happens_s:g} s") from None
        if is_written(died):
            return
        boots = bookie.boots
        if BOOTS.match(point):
            bookie.kill(rng.choice([name for name in bookie.pids if name != "supervisor"]))
        else:
            # There was less to replay than that: a flush had come just before.
            await until_served(world)
            await cluster.kill_async(0)
            spawn_armed(cluster, point, number, died)


async def forget(world: World, cluster: LocalCluster) -> None:
    """Delete all ledgers that are known of, so that the next case does not carry them along."""
    async with fastbk.connect(cluster.metadata_uri) as client:
        for ledger_id in {*world.acknowledged, *world.fenced}:
            with contextlib.suppress(NoSuchLedger):
                await client.delete_ledger(ledger_id)


async def run_point(
    cluster: LocalCluster, point: str, number: int, rng: random.Random, happens_s: float = HAPPENS_S
) -> None:
    """Load, arm, load until it happens, load on, stop, kill, compare. Raises NotReached after `happens_s`."""
    died = cluster.data / f"died-{point}-{number}"
    died.unlink(missing_ok=True)
    world = World()
    async with (
        fastbk.connect(cluster.metadata_uri, append_timeout=AWAY_S) as client,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(write_endlessly(world, client, 64, 20_000))
        group.create_task(write_endlessly(world, client, 4, 500))
        group.create_task(write_and_delete(world, client, 8, 40))
        # Enough of them that entry logs are worth a compaction.
        group.create_task(write_and_delete(world, client, 64, 1000))
        if BULKY.match(point):
            group.create_task(write_and_delete(world, client, 8, 100, BULK_BYTES_MAX))
        group.create_task(compact_often(world, cluster))
        group.create_task(read_back(world, client, rng))
        group.create_task(fence_some(world, cluster, client))
        await wait_until_async(
            lambda: sum(world.acknowledged.values()) > 300, "first acks", SERVED_S
        )
        await cluster.kill_async(0)
        await until_it_dies(world, cluster, point, number, died, rng, happens_s)
        assert died.read_text() == point
        if point.startswith("supervisor."):
            await asyncio.to_thread(cluster.bookies[0].wait_gone)
            await cluster.start_bookie_async(0)
        await until_served(world)
        assert cluster.bookies[0].is_running, "a child's death ended the bookie"
        world.stop.set()
    pids = list(cluster.bookies[0].pids.values())
    await cluster.kill_async(0)
    assert not [pid for pid in pids if is_alive(pid)], "an orphan"
    await cluster.start_bookie_async(0)
    assert world.fenced
    await check(world, cluster)
    await forget(world, cluster)
