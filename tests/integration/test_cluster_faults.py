"""The faults of `LocalCluster`, as an application sees them through a client, and their ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.client.client import Client
from fastbk.client.ledger_writer import LedgerWriter
from fastbk.devcluster import is_alive
from fastbk.errors import ConfigError
from fastbk.testing import LocalCluster
from tests.fixtures.fork import exit_code_of_fork
from tests.fixtures.pages import json_page
from tests.fixtures.wait import DEADLINE_S, wait_until, wait_until_async
from tests.fixtures.zookeeper import ZooKeeperPlace

DELAY_MS = 30
QUICK = {"bookie_timeout": 0.3, "replace_after": 0.3, "quarantine_time": 0.5}


@pytest.fixture(scope="module")
def one() -> Iterator[LocalCluster]:
    """A bookie for those that end their faults."""
    with LocalCluster(1, proxies=True) as made:
        yield made


@pytest.fixture(scope="module")
def four() -> Iterator[LocalCluster]:
    with LocalCluster(4, proxies=True) as made:
        yield made


async def append_until_replaced(writer: LedgerWriter, bookie_id: str) -> None:
    """Append until the writer does without a bookie."""

    async def is_replaced() -> bool:
        await writer.append(b"x")
        return bookie_id not in writer.metadata.fragments[-1].ensemble

    await wait_until_async(is_replaced, f"{bookie_id} is replaced")


@pytest.mark.parametrize("fault", ["killed", "frozen", "filled", "partitioned", "silent"])
async def test_a_writer_goes_on_without_a_faulty_bookie(four: LocalCluster, fault: str) -> None:
    faults: dict[str, Callable[[int], AbstractAsyncContextManager[None]]] = {
        "killed": four.killed,
        "frozen": four.frozen,
        "filled": four.filled,
        "partitioned": four.partitioned,
        "silent": lambda number: four.partitioned(number, silently=True),
    }
    async with fastbk.connect(four.metadata_uri, **QUICK) as client:
        writer = await client.create_ledger(3, 3, 2)
        bookie_id = writer.metadata.fragments[0].ensemble[0]
        number = int(bookie_id.removeprefix("bookie-")) - 1
        async with faults[fault](number):
            await append_until_replaced(writer, bookie_id)
        last = await writer.append(b"last")
        await writer.close()
        await serves(client, four, number)
        reader = await client.open_ledger(writer.ledger_id)
        assert [entry.entry_id async for entry in reader.read(0, last)] == list(range(last + 1))


async def serves(client: Client, cluster: LocalCluster, number: int) -> None:
    """Return once every bookie, the one that had a fault too, takes adds."""
    await wait_until_async(
        lambda: asyncio.to_thread(lambda: json_page(cluster.bookies[number], "/readyz")["ready"]),
        "ready again",
    )

    async def all_take() -> bool:
        try:
            writer = await client.create_ledger(4, 4, 4)
        except fastbk.NotEnoughBookies:
            return False
        await writer.append(b"on all four")
        await writer.close()
        return True

    await wait_until_async(all_take, "all bookies take adds")


async def test_a_delayed_journal_delays_appends_also_after_its_death_and_no_longer(
    one: LocalCluster,
) -> None:
    cluster = one
    async with fastbk.connect(cluster.metadata_uri) as client:
        writer = await client.create_ledger(1, 1, 1)

        async def append_ms() -> float:
            began_s = time.perf_counter()
            await writer.append(b"x" * 100)
            return (time.perf_counter() - began_s) * 1e3

        async with cluster.delayed(0, journal_ms=DELAY_MS):
            assert min([await append_ms() for _ in range(10)]) >= DELAY_MS

            def blames_the_disk() -> bool:
                found = json_page(cluster.bookies[0], "/slow")["records"]
                return any((one["process"], one["verdict"]) == ("journal", "disk") for one in found)

            async def is_blamed() -> bool:
                await append_ms()
                return await asyncio.to_thread(blames_the_disk)

            # Of some the scheduler is to blame, too, where a machine has much to do.
            await wait_until_async(is_blamed, "slow commits are recorded")
            boots = cluster.bookies[0].boots
            await cluster.kill_async(0, "journal")
            await cluster.wait_ready_async(0, boots + 1)

            async def are_slow() -> bool:
                return min([await append_ms() for _ in range(10)]) >= DELAY_MS

            # The first append waits for a connection, and the next journal is without the fault for a moment.
            await wait_until_async(are_slow, "the next journal is delayed, too")

        async def is_quick() -> bool:
            return await append_ms() < DELAY_MS

        await wait_until_async(is_quick, "an append without the delay")


async def test_batches_under_way_when_a_delay_begins_and_ends_are_all_acknowledged(
    one: LocalCluster,
) -> None:
    async with fastbk.connect(one.metadata_uri) as client:
        writer = await client.create_ledger(1, 1, 1)
        is_over = False

        async def load() -> int:
            count = 0
            while not is_over:
                await asyncio.gather(*(writer.append(b"y" * 20_000) for _ in range(200)))
                count += 200
            return count

        loading = asyncio.create_task(load())
        for delay_ms in (5, 20, 0, 10, 0):
            before = await writer.append(b"")
            await one.delay_async(0, journal_ms=delay_ms)
            assert await writer.append(b"") > before
        is_over = True
        appended = await loading + 10
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert await reader.last_add_confirmed() + 1 == appended


async def test_a_full_disk_is_reported_reads_go_on_and_adds_wait_for_room(
    one: LocalCluster,
) -> None:
    cluster = one
    # The add waits while an index ends and another one starts.
    async with fastbk.connect(cluster.metadata_uri, append_timeout=2 * DEADLINE_S) as client:
        async with await client.create_ledger(1, 1, 1) as before:
            await before.append(b"before")
        reader = await client.open_ledger(before.ledger_id)
        writer = await client.create_ledger(1, 1, 1)

        def is_full() -> bool:
            disks = json_page(cluster.bookies[0], "/readyz")["disks"]
            return "exhausted" in [one["state"] for one in disks if one["role"] == "ledger"]

        async with cluster.filled(0):
            waiting = writer.append_nowait(b"waits")
            assert is_full()
            assert [bytes(entry.data) async for entry in reader.read(0, 0)] == [b"before"]
            assert not waiting.done()
            boots = cluster.bookies[0].boots
            await cluster.kill_async(0, "index")
            await cluster.wait_ready_async(0, boots + 1)
            await wait_until_async(
                lambda: asyncio.to_thread(is_full), "the next index finds it full, too"
            )
        assert await waiting == 0
        assert not is_full()


async def test_a_network_delay_is_added_each_way(one: LocalCluster) -> None:
    async with fastbk.connect(one.metadata_uri) as client:
        writer = await client.create_ledger(1, 1, 1)
        await writer.append(b"connected")
        async with one.delayed(0, network_ms=DELAY_MS):
            began_s = time.perf_counter()
            await writer.append(b"x")
            assert time.perf_counter() - began_s >= 2 * DELAY_MS / 1e3


async def test_a_bookie_that_is_cut_off_from_metadata_is_not_listed(
    zookeeper: ZooKeeperPlace,
) -> None:
    settings = {"metadata": {"session_timeout": "1s"}}
    async with (
        LocalCluster(2, metadata_uri=zookeeper.uri(), settings=settings, proxies=True) as cluster,
        fastbk.connect(cluster.metadata_uri) as client,
    ):

        async def are_listed(*wanted: str) -> bool:
            return {one.service.bookie_id for one in await client.pool.bookies()} == set(wanted)

        assert await are_listed("bookie-1", "bookie-2")
        writer = await client.create_ledger(2, 2, 2)
        async with cluster.partitioned(0, "metadata"):
            await wait_until_async(lambda: are_listed("bookie-2"), "its session is over")
            assert await writer.append(b"clients still reach it") == 0
        await wait_until_async(lambda: are_listed("bookie-1", "bookie-2"), "it is registered again")


async def test_proxies_work_with_tls() -> None:
    async with (
        LocalCluster(1, tls=True, proxies=True) as cluster,
        fastbk.connect(cluster.metadata_uri, tls=cluster.tls_options, **QUICK) as client,
    ):
        writer = await client.create_ledger(1, 1, 1)
        assert await writer.append(b"encrypted") == 0
        async with cluster.partitioned(0):
            waiting = writer.append_nowait(b"waits")
        assert await waiting == 1


def test_faults_end_with_their_block_and_with_the_cluster() -> None:
    with LocalCluster(1) as cluster:
        bookie = cluster.bookies[0]
        with pytest.raises(KeyError), cluster.frozen(0, "worker.0"):
            raise KeyError
        with pytest.raises(KeyError), cluster.filled(0), cluster.delayed(0, journal_ms=1):
            assert (bookie.faults.is_full, bookie.faults.commit_delay_ms) == (True, 1)
            raise KeyError
        assert (bookie.faults.is_full, bookie.faults.commit_delay_ms) == (False, 0)
        cluster.fill(0)
        cluster.freeze(0)
        pids = list(bookie.pids.values())
    assert not any(map(is_alive, pids)), "a frozen bookie stops cleanly with its cluster"


def test_faults_that_cannot_be_say_why() -> None:
    with LocalCluster(1) as cluster:
        with pytest.raises(ConfigError, match="proxies=True"):
            cluster.cut_off(0)
        with pytest.raises(ConfigError, match="proxies=True"):
            cluster.delay(0, network_ms=1)
        with pytest.raises(ConfigError, match="give journal_ms or network_ms"):
            cluster.delay(0)
        with pytest.raises(ConfigError, match="0 to 10000"):
            cluster.delay(0, journal_ms=10_001)
        with pytest.raises(ConfigError, match="it has supervisor"):
            cluster.freeze(0, "journals")
        with pytest.raises(ConfigError, match="it has supervisor"):
            cluster.kill(0, "journals")
        for wrong in (
            cluster.kill,
            cluster.start_bookie,
            cluster.stop_bookie,
            cluster.fill,
            cluster.freeze,
        ):
            with pytest.raises(
                ConfigError, match="there is no bookie 1: they count from 0, and the last one is 0"
            ):
                wrong(1)
        with pytest.raises(ConfigError, match="bookie-1 runs already"):
            cluster.start_bookie(0)
        with cluster.frozen(0), pytest.raises(ConfigError, match=r"`thaw\(0\)`"):
            cluster.fill(0)
        cluster.kill(0)
        for fault in (cluster.fill, cluster.freeze, cluster.kill):
            with pytest.raises(ConfigError, match=r"`start_bookie\(0\)`"):
                fault(0)
        for end in (cluster.unfill, cluster.thaw, cluster.rejoin):
            end(0)


HOLDER = """
import sys
from fastbk.testing import LocalCluster
with LocalCluster(1, data=sys.argv[1]) as cluster:
    cluster.freeze(0)
    print(*cluster._running.bookies[0].pids.values(), flush=True)
    sys.stdin.read()
"""


def test_a_frozen_bookie_ends_when_whoever_froze_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "data")]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
    ) as holder:
        assert holder.stdout is not None
        pids = [int(pid) for pid in holder.stdout.readline().split()]
        assert len(pids) == 5
        holder.send_signal(signal.SIGKILL)
    try:
        wait_until(lambda: not any(map(is_alive, pids)), "its processes end")
    finally:
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_a_forked_child_that_leaves_the_block_stops_nothing(one: LocalCluster) -> None:
    pids = dict(one.bookies[0].pids)

    def child() -> int:
        one.__exit__(None, None, None)
        return 0

    assert exit_code_of_fork(child) == 0
    assert one.bookies[0].pids == pids
    with fastbk.sync.connect(one.metadata_uri) as client:
        writer = client.create_ledger(1, 1, 1)
        assert writer.append(b"x") == 0
        writer.close()
