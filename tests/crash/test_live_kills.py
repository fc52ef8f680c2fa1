"""Three real bookies under load, one process killed after another, every kind of process; then the history is checked.

What is checked (the names are those of the invariants in docs/invariants.md): acks come in entry order (INV-C1), every
acknowledged entry is read back with exactly its bytes by a new client (INV-J1, INV-A1), also when any one bookie is
down (so the ack quorum really held it), entries are dense, and nothing runs on afterwards.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

import fastbk
from fastbk.devcluster import is_alive
from fastbk.testing import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.client.ledger_writer import LedgerWriter

PROCESSES = ("supervisor", "worker.0", "journal", "index", "gc")
ENTRY_BYTES_MAX = 4000
WINDOW = 64
BURST, REST_S = 256, 0.2
"""As long as the kills take the load goes on: at full speed it would leave more to read back than can be learned."""
KILLS = 10  # two of each kind of process
CAUGHT_UP_S = 60.0


@functools.cache
def noise(seed: int) -> bytes:
    """What entries are cut from: to draw each of them anew, at each look, would be most of the test's work."""
    return random.Random(seed).randbytes((1 << 16) + ENTRY_BYTES_MAX)


def payload(ledger_id: int, entry_id: int, seed: int) -> bytes:
    """The bytes of one entry: a function of its place, so that any reader can tell where they belong."""
    head = f"{ledger_id}:{entry_id}:{seed}:".encode()
    place = zlib.crc32(head)
    start = place & 0xFFFF
    return head + noise(seed)[start : start + (place >> 16) % ENTRY_BYTES_MAX]


@dataclass
class History:
    """What one writer was told."""

    ledger_id: int
    acknowledged: list[int] = field(default_factory=list)

    def note(self, done: asyncio.Future[int]) -> None:
        """Take in one append's end; a failed one says nothing about the entry."""
        if not done.cancelled() and done.exception() is None:
            self.acknowledged.append(done.result())


async def write_until(
    stop: asyncio.Event, writer: LedgerWriter, seed: int, history: History, rest_s: float = 0.0
) -> None:
    """Keep WINDOW appends in flight until told to stop; note every ack in the order it came.

    `rest_s`: how long nothing new is appended after each burst.
    """
    pending: set[asyncio.Future[int]] = set()
    entry_id = 0
    while not stop.is_set():
        while len(pending) < WINDOW:
            future = writer.append_nowait(payload(writer.ledger_id, entry_id, seed))
            future.add_done_callback(history.note)
            pending.add(future)
            entry_id += 1
            if entry_id % BURST == 0:
                await asyncio.sleep(rest_s)
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*pending)


async def until_caught_up(writers: Sequence[LedgerWriter]) -> None:
    """Wait until every bookie answers every writer again, so that the next kill is the only one at its time."""
    deadline_s = time.monotonic() + CAUGHT_UP_S
    while True:
        stats = [writer.stats() for writer in writers]
        # Under load a bookie always owes the last few answers; one that is away owes more and more.
        if all(not one.trouble and max(one.lagging.values(), default=0) <= 2 * WINDOW for one in stats):
            return
        assert time.monotonic() < deadline_s, f"a bookie did not catch up: {stats}"
        await asyncio.sleep(0.01)


async def kill_one(cluster: LocalCluster, bookie: int, process: str) -> float:
    """Kill, wait until that bookie takes writes again, and return how long that took."""
    boots = cluster.bookies[bookie].boots
    started_s = time.monotonic()
    await cluster.kill_async(bookie, process)
    if process == "supervisor":
        await cluster.start_bookie_async(bookie)
    else:
        await cluster.wait_ready_async(bookie, boots + 1)
    return time.monotonic() - started_s


async def check(cluster: LocalCluster, histories: Sequence[History], seed: int) -> None:
    """Read everything through a new client and compare."""
    async with fastbk.connect(cluster.metadata_uri) as client:
        for history in histories:
            assert history.acknowledged == list(range(len(history.acknowledged))), "acks out of order"
            reader = await client.open_ledger(history.ledger_id, recovery=False)
            # A ledger whose writer died is read past its LAC: the last acks told nobody but the writer.
            entries = await reader.read_unconfirmed(0, len(history.acknowledged) - 1)
            for expected, entry in enumerate(entries):
                assert entry.entry_id == expected, "a gap"
                assert bytes(entry.data) == payload(history.ledger_id, expected, seed), "other bytes"
            assert len(entries) == len(history.acknowledged), "an acknowledged entry is gone"
            await reader.close()


@pytest.mark.timeout(600)  # ten kills, each with waits that have bounds of their own
@pytest.mark.filterwarnings("ignore::fastbk.errors.WeakQuorumWarning")
async def test_no_acknowledged_entry_is_lost_whatever_process_is_killed(
    rng: random.Random, seed: int
) -> None:
    settings = {"bookie": {"restarts_max": KILLS + 1}}
    async with LocalCluster(3, settings=settings) as cluster:
        stop = asyncio.Event()
        async with fastbk.connect(cluster.metadata_uri) as client:
            writers = [
                await client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2),
                await client.create_ledger(ensemble=3, write_quorum=2, ack_quorum=1),
                await client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2, digest="crc32"),
            ]
            histories = [History(writer.ledger_id) for writer in writers]
            async with asyncio.TaskGroup() as group:
                for writer, history in zip(writers, histories, strict=True):
                    group.create_task(write_until(stop, writer, seed, history, REST_S))
                plan = [PROCESSES[n % len(PROCESSES)] for n in range(KILLS)]
                rng.shuffle(plan)
                took = []
                for process in plan:
                    took.append((await kill_one(cluster, rng.randrange(3), process), process))
                    await until_caught_up(writers)
                stop.set()
            for writer in writers:
                await writer.close()
        print("seconds from kill to writable:", sorted(took))
        assert all(len(history.acknowledged) > KILLS for history in histories)
        await check(cluster, histories, seed)
        pids = [pid for bookie in cluster.bookies for pid in bookie.pids.values()]
        # An ack quorum of two of three has it: any one bookie may be gone.
        for bookie in range(3):
            await cluster.kill_async(bookie)
            await check(cluster, [histories[0], histories[2]], seed)
            await cluster.start_bookie_async(bookie)
            pids += cluster.bookies[bookie].pids.values()
    assert not [pid for pid in pids if is_alive(pid)], "a process was left behind"


async def test_everything_acknowledged_survives_the_kill_of_all_bookies_at_once(
    rng: random.Random, seed: int
) -> None:
    async with LocalCluster(3) as cluster:
        histories = []
        for _ in range(3):
            stop = asyncio.Event()
            async with fastbk.connect(cluster.metadata_uri, append_timeout=5.0) as client:
                writer = await client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2)
                history = History(writer.ledger_id)
                histories.append(history)
                writing = asyncio.ensure_future(write_until(stop, writer, seed, history))
                wanted = rng.randrange(500, 3000)
                deadline_s = time.monotonic() + CAUGHT_UP_S
                while len(history.acknowledged) < wanted:
                    assert time.monotonic() < deadline_s
                    assert not writing.done(), writing
                    await asyncio.sleep(0.001)
                await asyncio.gather(*(cluster.kill_async(bookie) for bookie in range(3)))
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
            await asyncio.gather(*(cluster.start_bookie_async(bookie) for bookie in range(3)))
            await check(cluster, histories, seed)
