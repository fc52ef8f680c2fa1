"""A crash loop ends in serving reads (A13): without a journal, until the next try or a restart by hand."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fastbk
from fastbk.devcluster import Bookie, DevCluster, is_alive
from fastbk.errors import Error, NotEnoughBookies, StorageError
from fastbk.native.process import FILE_VARIABLE, POINT_VARIABLE
from fastbk.wire.statuses import Status
from tests.fixtures.logs import events
from tests.fixtures.pages import page
from tests.fixtures.raw_bookie import raw_bookie
from tests.fixtures.wait import wait_until
from tests.integration.test_dev import Dev

LONG = {"crash_loop_pause_min": "1h", "crash_loop_pause_max": "1h"}
SETTINGS = {"bookie": {"restarts_max": 2, **LONG}, "gc": {"interval": "200ms"}}
TRIES = {
    "restarts_max": 1,
    "restarts_window": "2s",
    "crash_loop_pause_min": "500ms",
    "crash_loop_pause_max": "2s",
}
FEW_RESTARTS = """
import functools, sys
from fastbk import devcluster
from fastbk.cli.__main__ import main

settings = {"bookie": {"restarts_max": 2}}
devcluster.DevCluster = functools.partial(devcluster.DevCluster, settings=settings)
sys.exit(main(sys.argv[1:]))
"""
"""`fastbk dev` has no option for settings."""
ENTRIES = 300
WAIT_S = 60.0


def payload(entry_id: int) -> bytes:
    return hashlib.sha256(b"%d" % entry_id).digest() * (1 + entry_id % 60)


@contextmanager
def armed(point: str, died: Path) -> Iterator[None]:
    """Have processes that are started meanwhile die at `point`, once for each removal of `died`."""
    os.environ[POINT_VARIABLE] = f"{point}:1"
    os.environ[FILE_VARIABLE] = str(died)
    try:
        yield
    finally:
        del os.environ[POINT_VARIABLE], os.environ[FILE_VARIABLE]


def until_replaced(bookie: Bookie, died: Path, worker_pid: int) -> None:
    """As `until_reads_only`, but for a boot with another worker: the last one's end is told when all of it is gone."""

    def is_another() -> bool:
        until_reads_only(bookie, died)
        return bookie.pids.get("worker.0", worker_pid) != worker_pid

    wait_until(is_another, "another worker", WAIT_S)


def until_reads_only(bookie: Bookie, died: Path) -> None:
    """Let the armed point kill at every start, until only reads are served."""

    def is_there() -> bool:
        died.unlink(missing_ok=True)
        bookie.refresh()
        assert bookie.is_running, bookie.log_tail(10)
        return bool(bookie.reads_only)

    wait_until(is_there, "reads only", WAIT_S)


def journal_files(bookie: Bookie) -> dict[str, tuple[int, str]]:
    """Return time and content of every file of the journal's directory."""
    return {
        path.name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted((bookie.directory / "journal").iterdir())
        if path.is_file()
    }


async def fill(cluster: DevCluster) -> int:
    """Write a closed ledger and return its id."""
    async with (
        fastbk.connect(cluster.metadata_uri) as client,
        await client.create_ledger(1, 1, 1) as writer,
    ):
        await asyncio.gather(*(writer.append_nowait(payload(n)) for n in range(ENTRIES)))
    return writer.ledger_id


async def read_back(cluster: DevCluster, ledger_id: int) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        reader = await client.open_ledger(ledger_id)
        found = [(entry.entry_id, bytes(entry.data)) async for entry in reader.read(0, ENTRIES - 1)]
    assert found == [(n, payload(n)) for n in range(ENTRIES)]


async def check_reads_only(cluster: DevCluster, ledger_id: int) -> None:
    """Everything can be read, nothing written, and everybody who asks is told why."""
    bookie = cluster.bookies[0]
    await read_back(cluster, ledger_id)
    async with fastbk.connect(cluster.metadata_uri) as client:
        (registered,) = await client.list_bookies()
        assert not registered.writable
        assert "journal: killed by signal 9" in registered.service.properties["reads_only"]
        with pytest.raises(NotEnoughBookies):
            await client.create_ledger(1, 1, 1)
    raw = await raw_bookie(bookie)
    assert await raw.read(ledger_id, 7) == payload(7)
    assert await raw.fence(ledger_id) == Status.READ_ONLY
    assert await raw.add(ledger_id + 1, 0, b"new") == Status.READ_ONLY
    raw.close()
    status, text = await asyncio.to_thread(page, bookie, "/readyz")
    assert status == 503
    assert "2 times" in json.loads(text)["reasons"][0]
    assert (await asyncio.to_thread(page, bookie, "/livez"))[0] == 200
    metrics = (await asyncio.to_thread(page, bookie, "/metrics"))[1].splitlines()
    assert "fastbk_supervisor_reads_only 1" in metrics
    assert "bookie_SERVER_STATUS 0" in metrics


@pytest.mark.parametrize(
    ("point", "replaces_a_worker"),
    [
        ("journal.before_ready", True),
        pytest.param("journal.roll_after_headers", False, marks=pytest.mark.long),
    ],
)
async def test_a_journal_that_dies_at_each_start_leaves_reads(
    tmp_path: Path, point: str, replaces_a_worker: bool
) -> None:
    cluster = DevCluster(tmp_path / "data", 1, settings=SETTINGS)
    died = tmp_path / "died"
    try:
        await asyncio.to_thread(cluster.start)
        bookie = cluster.bookies[0]
        ledger_id = await fill(cluster)
        bookie.kill()  # something is left to replay
        with armed(point, died):
            bookie.spawn()
        await asyncio.to_thread(until_reads_only, bookie, died)
        assert set(bookie.pids) == {"supervisor", "worker.0", "index"}
        assert "journal: killed by signal 9" in bookie.reads_only
        files = journal_files(bookie)
        await check_reads_only(cluster, ledger_id)
        (told,) = events(bookie.log_path, "bookie.reads_only")
        assert told["level"] == "error"
        assert "a restart of the bookie tries at once" in told["next"]
        with pytest.raises(StorageError, match="reads only: children died 2 times"):
            cluster.wait_ready()
        assert journal_files(bookie) == files

        if replaces_a_worker:
            # What it serves stays the same.
            pids = dict(bookie.pids)
            bookie.kill("worker.0")
            await asyncio.to_thread(
                wait_until, lambda: not is_alive(pids["index"]), "the end of that boot", WAIT_S
            )
            await asyncio.to_thread(until_replaced, bookie, died, pids["worker.0"])
            await check_reads_only(cluster, ledger_id)
            assert journal_files(bookie) == files

        bookie.request_stop()
        assert await asyncio.to_thread(bookie.wait_gone) == 0
        await asyncio.to_thread(cluster.start)
        assert bookie.is_ready
        assert not bookie.reads_only
        await read_back(cluster, ledger_id)
        await read_back(cluster, await fill(cluster))
        assert "fastbk_supervisor_reads_only 0" in page(bookie, "/metrics")[1]
        assert (await asyncio.to_thread(page, bookie, "/readyz"))[0] == 200
    finally:
        assert cluster.stop()


async def test_a_writer_is_told_and_a_journal_that_dies_under_load_loses_nothing(
    tmp_path: Path,
) -> None:
    """Deaths while it serves count the same; what was acknowledged before is read."""
    cluster = DevCluster(tmp_path / "data", 1, settings={"bookie": {"restarts_max": 1, **LONG}})
    acknowledged: list[bytes] = []
    try:
        await asyncio.to_thread(cluster.start)
        bookie = cluster.bookies[0]
        async with fastbk.connect(cluster.metadata_uri, append_timeout=5.0) as client:
            writer = await client.create_ledger(1, 1, 1)
            for n in range(ENTRIES):
                await writer.append(payload(n))
                acknowledged.append(payload(n))
            bookie.kill("journal")
            with pytest.raises(Error):
                while True:
                    await writer.append(b"more")
                    acknowledged.append(b"more")
        await asyncio.to_thread(until_reads_only, bookie, tmp_path / "none")
        async with fastbk.connect(cluster.metadata_uri) as client:
            reader = await client.open_ledger(writer.ledger_id, recovery=False)
            found = await reader.read_unconfirmed(0, len(acknowledged) - 1)
            assert [bytes(entry.data) for entry in found] == acknowledged
    finally:
        assert cluster.stop()


async def test_it_takes_writes_again_by_itself_once_the_cause_is_gone(tmp_path: Path) -> None:
    """The journal dies at each start, through several tries whose pauses grow; then it does not any more."""
    cluster = DevCluster(tmp_path / "data", 1, settings={"bookie": TRIES})
    died = tmp_path / "died"
    try:
        await asyncio.to_thread(cluster.start)
        bookie = cluster.bookies[0]
        ledger_id = await fill(cluster)
        supervisor = bookie.pids["supervisor"]
        bookie.kill()
        with armed("journal.before_ready", died):
            bookie.spawn()

        def has_tried(times: int) -> bool:
            died.unlink(missing_ok=True)
            return len(events(bookie.log_path, "bookie.reads_only")) >= times

        await asyncio.to_thread(wait_until, lambda: has_tried(3), "three crash loops", WAIT_S)
        pauses_s = [one["pause_s"] for one in events(bookie.log_path, "bookie.reads_only")]
        assert pauses_s[0] <= 0.5 < pauses_s[2] <= 2.0
        await read_back(cluster, ledger_id)
        died.touch()  # from here on nobody dies
        await asyncio.to_thread(wait_until, lambda: refreshed(bookie).is_ready, "writes", WAIT_S)
        assert bookie.pids["supervisor"] != supervisor, "that was the one before the kill"
        assert is_alive(bookie.pids["supervisor"])
        await read_back(cluster, await fill(cluster))
        metrics = (await asyncio.to_thread(page, bookie, "/metrics"))[1]
        assert "fastbk_supervisor_reads_only 0" in metrics
        assert (
            "fastbk_supervisor_crash_loops_total 3" in metrics or "crash_loops_total 4" in metrics
        )
        assert events(bookie.log_path, "bookie.tries_again")
        kinds = (bookie.directory / "ledgers").rglob("events.jsonl")
        assert any("bookie.tries_again" in file.read_text() for file in kinds)
    finally:
        assert cluster.stop()


def refreshed(bookie: Bookie) -> Bookie:
    bookie.refresh()
    assert bookie.is_running, bookie.log_tail(10)
    return bookie


def test_an_index_that_dies_while_reads_are_served_is_tried_again(tmp_path: Path) -> None:
    """Nothing is served in between, but the process is there and says why."""
    pauses = {"crash_loop_pause_min": "1s", "crash_loop_pause_max": "8s"}
    cluster = DevCluster(tmp_path / "data", 1, settings={"bookie": {"restarts_max": 1, **pauses}})
    try:
        cluster.start()
        bookie = cluster.bookies[0]
        supervisor = bookie.pids["supervisor"]
        bookie.kill("gc")
        until_reads_only(bookie, tmp_path / "none")
        pids = bookie.pids
        bookie.kill("index")
        wait_until(
            lambda: events(bookie.log_path, "bookie.down") != [], "no process any more", WAIT_S
        )
        (down,) = events(bookie.log_path, "bookie.down")
        assert "serving reads only failed too: index: killed by signal 9" in down["reason"]
        assert "gc: killed by signal 9" in down["reason"]
        assert not any(is_alive(pid) for name, pid in pids.items() if name != "supervisor")
        status, text = page(bookie, "/readyz")
        assert (status, "serving reads only failed too" in text) == (503, True)
        assert page(bookie, "/livez")[0] == 200
        wait_until(lambda: refreshed(bookie).is_ready, "writes", WAIT_S)
        assert bookie.pids["supervisor"] == supervisor
    finally:
        assert cluster.stop()


@pytest.mark.long
def test_fastbk_dev_keeps_such_a_bookie_and_says_so(tmp_path: Path) -> None:
    died = tmp_path / "died"
    # Ten deaths are as many starts of all processes: two do.
    program = (sys.executable, "-c", FEW_RESTARTS)
    with armed("journal.before_ready", died):
        dev = Dev(tmp_path / "data", "--bookies", "1", "--json", program=program)
    try:
        log = tmp_path / "data" / "bookie-1" / "bookie.log"

        def is_reads_only() -> bool:
            died.unlink(missing_ok=True)
            assert dev.process.poll() is None, dev.process.communicate()
            return log.exists() and "bookie.reads_only" in log.read_text()

        wait_until(is_reads_only, "reads only", WAIT_S)
        assert dev.process.stdout is not None
        assert dev.process.stderr is not None
        (bookie,) = json.loads(dev.process.stdout.readline())["bookies"]
        assert bookie["state"].startswith("reads only: children died 2 times")
        assert "bookie-1: reads only: children died" in dev.process.stderr.readline()
        assert is_alive(bookie["pid"])
        assert not dev.ready_file.exists(), "that file promises that writes are taken"
    finally:
        _, text = dev.stop()
    assert dev.process.returncode == 0, text
    assert "starting it again" not in text
