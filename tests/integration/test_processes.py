"""SIGKILL of every kind of process: nothing acknowledged is lost, nothing is left, it is back in about a second."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import fastbk
from fastbk.devcluster import is_alive, memory_pss_bytes
from fastbk.errors import Error
from fastbk.testing import LocalCluster
from tests.fixtures.wait import crowd, wait_until, wait_until_async

KINDS = ["worker.0", "journal", "index", "gc", "supervisor"]
RESTART_S_MAX = 5.0
"""About a second where the machine is idle; a loaded one, which gets more in proportion, must not fail the test."""
IDLE_S = 2.0
IDLE_CPU_SHARE_MAX = 0.1
"""Of one processor, for all five processes."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One bookie; each test leaves it running."""
    with LocalCluster(1) as running:
        yield running


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


def test_no_process_gets_new_privileges(cluster: LocalCluster) -> None:
    for name, pid in cluster.bookies[0].pids.items():
        assert "NoNewPrivs:\t1" in Path(f"/proc/{pid}/status").read_text(), name


async def append_until(writer: fastbk.client.LedgerWriter, stop: asyncio.Event) -> list[bytes]:
    """Append until told to stop or the writer ends; return what was acknowledged, in order."""
    acknowledged: list[bytes] = []
    number = 0
    while not stop.is_set():
        entry = b"entry %d " % number + os.urandom(100)
        try:
            assert await writer.append(entry) == number
        except Error:
            break
        acknowledged.append(entry)
        number += 1
    return acknowledged


@pytest.mark.parametrize("kind", KINDS)
async def test_a_killed_process_costs_no_acknowledged_entry(
    cluster: LocalCluster, kind: str
) -> None:
    bookie = cluster.bookies[0]
    before = dict(bookie.pids)
    stop = asyncio.Event()
    async with fastbk.connect(cluster.metadata_uri) as client:
        writer = await client.create_ledger(1, 1, 1)
        appending = asyncio.create_task(append_until(writer, stop))
        await wait_until_async(lambda: writer.last_add_confirmed >= 200, "200 entries")
        began_s = time.monotonic()
        boots = bookie.boots
        await cluster.kill_async(0, kind)
        if kind == "supervisor":
            assert not any(map(is_alive, before.values()))
            assert refuses(bookie.port)
            await cluster.start_bookie_async(0)
        else:
            await cluster.wait_ready_async(0, boots + 1)
        assert time.monotonic() - began_s < RESTART_S_MAX * crowd()
        assert not any(map(is_alive, [pid for name, pid in before.items() if name != "supervisor"]))
        at = writer.last_add_confirmed
        with suppress(AssertionError):
            # The writer goes on through the restart; were it to end, its error says so below.
            await wait_until_async(lambda: writer.last_add_confirmed > at + 50, "more entries", 5.0)
        stop.set()
        acknowledged = await appending
        with suppress(Error):
            await writer.close()
    async with fastbk.connect(cluster.metadata_uri) as client:
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        found = [bytes(entry.data) async for entry in reader.read(0, len(acknowledged) - 1)]
        await reader.close()
    assert len(acknowledged) > 200
    assert found == acknowledged


async def test_after_a_drain_under_load_nothing_is_left_and_nothing_is_replayed(
    cluster: LocalCluster,
) -> None:
    """SIGTERM while a writer is at it: all that was acknowledged is checkpointed, the writer goes on later."""
    stop = asyncio.Event()
    bookie = cluster.bookies[0]
    pids = dict(bookie.pids)
    assert set(pids) == {"supervisor", "worker.0", "journal", "index", "gc"}
    async with fastbk.connect(cluster.metadata_uri) as client:
        writer = await client.create_ledger(1, 1, 1)
        appending = asyncio.create_task(append_until(writer, stop))
        await wait_until_async(lambda: writer.last_add_confirmed >= 200, "200 entries")
        assert await cluster.stop_bookie_async(0) == 0
        assert not any(map(is_alive, pids.values()))
        assert refuses(bookie.port)
        at = writer.last_add_confirmed
        await cluster.start_bookie_async(0)  # at once: neither port nor lock is left behind
        assert '"records":0' in replay_of(cluster)
        await wait_until_async(lambda: writer.last_add_confirmed > at + 50, "more entries")
        stop.set()
        acknowledged = await appending
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        assert [bytes(entry.data) async for entry in reader.read()] == acknowledged
        await reader.close()


def replay_of(cluster: LocalCluster) -> str:
    """Return what the index logged of its last replay."""
    log = (cluster.bookies[0].directory / "bookie.log").read_text().splitlines()
    return [line for line in log if '"journal.replayed"' in line][-1]


def test_a_bookie_ends_with_whoever_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom fastbk.devcluster import DevCluster\n"
        "c = DevCluster(Path(sys.argv[1]), 1)\nc.start()\n"
        "print(*c.bookies[0].pids.values(), flush=True)\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "data")]
    starter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pids = [int(word) for word in starter.stdout.readline().split()]
    assert len(pids) == 5
    starter.kill()
    starter.communicate()
    wait_until(lambda: not any(map(is_alive, pids)), "the end of the bookie")


def test_a_second_bookie_on_the_same_data_is_refused(cluster: LocalCluster) -> None:
    config = cluster.data / "bookie-1" / "bookie.toml"
    text = config.read_text().replace(f":{cluster.bookies[0].port}", ":0")
    other = cluster.data / "other.toml"
    other.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "fastbk.server", "--config", str(other)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 75
    assert (
        f"in use by a running bookie (process {cluster.bookies[0].pids['supervisor']})"
        in done.stderr
    )


def test_a_port_that_a_stranger_has_is_named(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        config = tmp_path / "bookie.toml"
        config.write_text(
            f"[bookie]\nlisten = '127.0.0.1:{port}'\n[metadata]\nuri = 'sqlite:{tmp_path}/m'\n"
            f"[journal]\ndirectory = '{tmp_path}/j'\n[ledgers]\ndirectory = '{tmp_path}/l'\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "fastbk.server", "--config", str(config)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 75
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr


def test_children_see_only_their_own_descriptors(cluster: LocalCluster) -> None:
    """Each child holds what the table names, its control socket and the standard three, and what it opened."""
    pids = cluster.bookies[0].pids
    for name in ("worker.0", "journal", "index", "gc"):
        links = []
        for path in Path(f"/proc/{pids[name]}/fd").iterdir():
            with suppress(FileNotFoundError):  # the process has just closed it
                links.append(os.readlink(path))
        assert links
        assert not any("metadata.sqlite" in link for link in links) or name == "gc"
        assert sum("fastbk" in link and "memfd" in link for link in links) <= 4


def test_the_default_bookie_stays_below_300_mb_under_load(cluster: LocalCluster) -> None:
    """A21: proportional set size of all processes, caches included, with the write cache run past."""

    async def load() -> None:
        async with fastbk.connect(cluster.metadata_uri) as client:
            writer = await client.create_ledger(1, 1, 1)
            chunk = [os.urandom(1024)] * 1000
            async with writer:
                for _ in range(160):  # 160 MB: more than both write caches
                    await writer.append_many(chunk)
            reader = await client.open_ledger(writer.ledger_id, recovery=False)
            async for _ in reader.read_batches(0, 80_000):
                pass
            await reader.close()

    asyncio.run(load())
    assert memory_pss_bytes(cluster.bookies[0].pids.values()) < 300 * 10**6


def test_ctrl_c_reaches_only_the_supervisor(cluster: LocalCluster) -> None:
    groups = {name: os.getpgid(pid) for name, pid in cluster.bookies[0].pids.items()}
    assert len(set(groups.values())) == len(groups)
    os.kill(cluster.bookies[0].pids["journal"], signal.SIGINT)
    os.kill(cluster.bookies[0].pids["index"], signal.SIGTERM)
    assert not refuses(cluster.bookies[0].port)
    assert cluster.bookies[0].is_ready


def test_idle_costs_next_to_nothing(cluster: LocalCluster) -> None:
    pids = cluster.bookies[0].pids.values()
    before_s = sum(map(cpu_s, pids))
    end_s = time.monotonic() + IDLE_S
    wait_until(lambda: time.monotonic() > end_s, "some time without requests")
    assert sum(map(cpu_s, pids)) - before_s < IDLE_CPU_SHARE_MAX * IDLE_S


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shared_memory_of(pid: int) -> Iterator[Path]:
    """Yield the descriptors of shared memory that a process has."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if "fastbk-segment" in os.readlink(link):
                yield link


def test_no_descriptor_of_any_process_can_be_mapped_for_writing_again(
    cluster: LocalCluster,
) -> None:
    """INV-R1: whoever takes over a worker cannot write to the memory of another process."""
    (bookie,) = cluster.bookies
    assert "bookie.memory_not_sealed" not in bookie.log_path.read_text()
    links = [link for pid in bookie.pids.values() for link in shared_memory_of(pid)]
    assert len(links) >= 8, "the supervisor's, a worker's, the journal's, the index's, gc's"
    for link in links:
        attacker = os.open(link, os.O_RDWR)
        try:
            with pytest.raises(PermissionError):
                mmap.mmap(attacker, 4096)
            with pytest.raises(PermissionError):
                os.pwrite(attacker, b"x", 4096)
        finally:
            os.close(attacker)
