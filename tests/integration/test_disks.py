"""Real disks that fill, vanish, turn read-only and fail under a real bookie: it says so, loses nothing, comes back."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import fastbk
from fastbk.client import Client, LedgerWriter
from fastbk.devcluster import Bookie, DevCluster
from fastbk.errors import Error
from fastbk.native import client_codec as codec
from fastbk.units import MIB
from fastbk.wire.statuses import Status
from tests.fixtures.cli import Cli
from tests.fixtures.memory import own_memory_bytes
from tests.fixtures.mounts import SmallDisk, run, small_disk
from tests.fixtures.pages import page
from tests.fixtures.raw_bookie import raw_bookie
from tests.fixtures.wait import wait_until, wait_until_async

WAIT_S = 40.0
SETTINGS: dict[str, dict[str, object]] = {
    "bookie": {"drain_timeout": "3s"},
    "limits": {"frame_size_max": "1MiB", "add_ring_size": "4MiB", "reply_ring_size": "4MiB"},
    "journal": {"limit": "32MiB", "file_size": "16MiB", "first_file_size": "16MiB"},
    "ledgers": {"write_cache_size": "8MiB", "flush_interval": "1s", "entry_log_size": "16MiB"},
    "disk": {"check_interval": "200ms", "near_check_interval": "50ms"},
}
"""So that a flush of a full journal may need 72 MiB: repairs end below 90 MiB, adds below 108 MiB."""


def payload(entry_id: int) -> bytes:
    return hashlib.sha256(b"%d" % entry_id).digest() * 512


class World:
    """One bookie on small disks, and what it acknowledged."""

    def __init__(self, cluster: DevCluster, disks: dict[str, SmallDisk]) -> None:
        self.cluster = cluster
        self.disks = disks
        self.acknowledged: dict[int, int] = {}
        """Ledger id -> how many entries of it, from 0."""

    @property
    def bookie(self) -> Bookie:
        return self.cluster.bookies[0]

    def page(self, path: str) -> tuple[int, Any]:
        status, text = page(self.bookie, path)
        return status, json.loads(text)

    def state(self, role: str) -> str:
        """How the directory's disk is, by /readyz."""
        disks = self.page("/readyz")[1]["disks"]
        return str(next((each["state"] for each in disks if each["role"] == role), "unknown"))

    def slow(self, role: str) -> str:
        """Why the directory's disk is called slow."""
        disks = self.page("/readyz")[1]["disks"]
        return str(next((each["slow"] for each in disks if each["role"] == role), ""))

    def is_ready(self) -> bool:
        self.bookie.refresh()
        return self.bookie.is_ready and self.page("/readyz")[0] == 200

    def log(self) -> str:
        return self.bookie.log_path.read_text()

    async def write(self, until: Callable[[], bool]) -> None:
        """Append to one ledger after the other, as fast as it goes, until `until`; refusals are borne."""
        while not until():
            async with self.client() as client:
                try:
                    writer = await client.create_ledger(1, 1, 1)
                    await self.write_ledger(writer, until)
                except Error:
                    await asyncio.sleep(0.05)

    async def write_ledger(self, writer: LedgerWriter, until: Callable[[], bool]) -> None:
        self.acknowledged[writer.ledger_id] = 0
        waiting: list[asyncio.Future[int]] = []
        for entry_id in range(100_000):
            waiting.append(asyncio.ensure_future(writer.append(payload(entry_id))))
            if len(waiting) >= 50 or until():
                try:
                    for each in waiting:
                        await each
                        self.acknowledged[writer.ledger_id] += 1
                finally:
                    await asyncio.gather(*waiting, return_exceptions=True)
                waiting.clear()
                if until():
                    return

    async def check(self) -> None:
        """Every acknowledged entry is there, with its bytes."""
        assert sum(self.acknowledged.values()) > 0
        async with self.client() as client:
            for ledger_id, count in self.acknowledged.items():
                reader = await client.open_ledger(ledger_id, recovery=False)
                for first in range(0, count, 200):
                    last = min(count, first + 200) - 1
                    found = await reader.read_unconfirmed(first, last)
                    assert [bytes(entry.data) for entry in found] == [
                        payload(n) for n in range(first, last + 1)
                    ]

    def client(self) -> Client:
        return fastbk.connect(self.cluster.metadata_uri, append_timeout=5.0, read_timeout=30.0)


@contextmanager
def world(folder: Path, sizes: dict[str, int]) -> Iterator[World]:
    """A bookie whose `journal` and `ledgers` lie on disks of these sizes; where one is left out, on the other."""
    with ExitStack() as stack:
        disks = {
            name: stack.enter_context(small_disk(folder, name, size_bytes))
            for name, size_bytes in sizes.items()
        }
        settings = {section: dict(keys) for section, keys in SETTINGS.items()}
        for section in ("journal", "ledgers"):
            disk = disks.get(section) or next(iter(disks.values()))
            settings[section]["directory"] = str(disk.path / section)
        cluster = DevCluster(folder / "data", 1, settings=settings)
        try:
            cluster.start()
            yield World(cluster, disks)
        finally:
            cluster.stop()


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what, WAIT_S)


async def fill_and_recover(here: World, *, kill: str) -> None:
    """Fill the ledger's disk to 100 % under load, give the room back, and have it go on by itself.

    `kill`: what is killed while nothing at all is free: the boots that follow can't flush what they replay.
    """
    disk = here.disks["ledgers"]
    writing = asyncio.create_task(here.write(lambda: here.page("/readyz")[0] != 200))
    await until(lambda: sum(here.acknowledged.values()) > 200, "load")
    await asyncio.to_thread(disk.fill)
    await until(lambda: here.state("ledger") == "exhausted", "the state")
    await asyncio.wait_for(writing, WAIT_S)
    raw = await raw_bookie(here.bookie)
    assert await raw.add(1 << 40, 0, b"new") == Status.READ_ONLY
    assert await raw.add(1 << 40, 0, b"repair", recovery=True) == Status.READ_ONLY
    raw.close()
    status, answer = await asyncio.to_thread(here.page, "/readyz")
    assert status == 503
    assert any(str(disk.path) in reason for reason in answer["reasons"])
    if kill:
        here.bookie.kill(kill)
        if kill == "supervisor":
            await asyncio.to_thread(here.bookie.spawn)
        await until(lambda: "bookie.broke_down_with_a_disk" in here.log(), "boots that lack room")
    await asyncio.to_thread(disk.empty)
    await until(here.is_ready, "it is ready again by itself")
    await here.check()


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param("", id="alive", marks=pytest.mark.soak),
        pytest.param("journal", id="journal_killed"),
        pytest.param("supervisor", id="killed", marks=pytest.mark.soak),
    ],
)
async def test_a_disk_filled_under_load_loses_nothing_and_is_written_again(
    tmp_path: Path, kill: str
) -> None:
    with world(tmp_path, {"journal": 128 * MIB, "ledgers": 300 * MIB}) as here:
        await fill_and_recover(here, kill=kill)
        async with here.client() as client, await client.create_ledger(1, 1, 1) as writer:
            await writer.append(b"again")
            (registered,) = await client.list_bookies()
            assert registered.writable


async def test_repairs_and_fences_go_on_while_room_is_kept_for_them(tmp_path: Path) -> None:
    """A13; and people are told everywhere."""
    with world(tmp_path, {"journal": 128 * MIB, "ledgers": 300 * MIB}) as here:
        disk = here.disks["ledgers"]
        disk.fill(but_bytes=98 * MIB)
        await until(lambda: here.state("ledger") == "full", "the state")
        raw = await raw_bookie(here.bookie)
        assert await raw.add(7, 0, b"normal") == Status.READ_ONLY
        assert await raw.add(7, 0, b"repair", recovery=True) == Status.OK
        assert await raw.fence(7, 0) == Status.OK
        info = await raw.info()
        assert not info.writable
        async with here.client() as client:

            async def is_read_only() -> bool:
                (registered,) = await client.list_bookies()
                return not registered.writable

            await wait_until_async(is_read_only, "metadata says so", WAIT_S)
        for verb, text in (("info", "read_only for"), ("disk", "because: too little space")):
            cli = Cli(here.cluster.metadata_uri)
            code, said = await asyncio.to_thread(cli.run, "bookie", verb)
            assert (code, text in said.decode()) == (1, True), cli.err
        disk.empty()
        await until(here.is_ready, "ready again")
        assert await raw.add(8, 0, b"normal") == Status.OK
        assert await raw.read(7, 0) == b"repair"
        raw.close()


async def test_a_mount_that_vanishes_is_waited_for(tmp_path: Path) -> None:
    """INV-D2: neither does the living bookie write elsewhere, nor does a boot take an empty journal for a lost one."""
    with world(tmp_path, {"journal": 128 * MIB, "ledgers": 300 * MIB}) as here:
        await here.write(lambda: sum(here.acknowledged.values()) > 500)
        for name, role in (("journal", "journal"), ("ledgers", "ledger")):
            disk = here.disks[name]
            disk.vanish()
            await until(lambda role=role: here.state(role) == "gone", f"{role}: gone")  # type: ignore[misc]
            raw = await raw_bookie(here.bookie)
            assert await raw.add(1 << 40, 0, b"new", recovery=True) == Status.READ_ONLY
            raw.close()
            await here.check()
            before = here.bookie.boots
            here.bookie.kill("journal")
            await until(lambda: "bookie.waits_for_disk" in here.log(), "the wait")
            assert list(disk.path.iterdir()) == [], "nothing was made on the disk below"
            reasons = here.page("/readyz")[1]["reasons"]
            assert any("was its disk unmounted?" in each for each in reasons)
            disk.mount()
            await until(here.is_ready, "ready again")
            assert here.bookie.boots == before + 1
            here.bookie.log_path.write_text("")
            await here.check()
        await here.write(lambda: sum(here.acknowledged.values()) > 600)
        raw = await raw_bookie(here.bookie)
        unknown = await raw.status(codec.put_read, 1 << 41, 0)
        assert unknown == Status.NO_LEDGER, "no damage is on record"
        raw.close()


async def test_a_journal_that_cannot_be_written_leaves_reads_until_it_can(tmp_path: Path) -> None:
    with world(tmp_path, {"journal": 128 * MIB, "ledgers": 300 * MIB}) as here:
        await here.write(lambda: sum(here.acknowledged.values()) > 500)
        journal = str(here.disks["journal"].path / "journal")
        run("chattr", "+i", journal)
        try:
            here.bookie.kill("journal")

            def reads_only() -> bool:
                here.bookie.refresh()
                return "cannot be written" in here.bookie.reads_only

            await until(reads_only, "a boot without a journal")
            await here.check()
        finally:
            run("chattr", "-i", journal)
        await until(here.is_ready, "ready again by itself")
        assert here.page("/info")[1]["restarts"] == 0, "a disk's trouble is no crash loop"
        await here.write(lambda: sum(here.acknowledged.values()) > 600)
        await here.check()


@pytest.mark.parametrize("name", ["ledgers", pytest.param("journal", marks=pytest.mark.long)])
async def test_a_file_system_that_fails_is_left_alone_and_after_its_repair_all_is_there(
    tmp_path: Path, name: str
) -> None:
    """Turned read-only by itself, as after an error of the disk: reads go on, nothing is acknowledged any more."""
    with world(tmp_path, {"journal": 128 * MIB, "ledgers": 300 * MIB}) as here:
        disk = here.disks[name]
        writing = asyncio.create_task(here.write(lambda: here.page("/readyz")[0] != 200))
        await until(lambda: sum(here.acknowledged.values()) > 500, "load")
        disk.abort()
        await asyncio.wait_for(writing, WAIT_S)

        def is_told() -> bool:
            here.bookie.refresh()
            return here.page("/readyz")[0] == 503 and (
                "cannot be written" in here.bookie.reads_only
                or here.state("ledger") in ("read_only", "failed")
            )

        await until(is_told, "the state")
        await here.check()
        assert here.cluster.stop() or name == "ledgers", "without its ledger disk it cannot flush"
        disk.unmount()
        disk.check()
        disk.mount()
        await asyncio.to_thread(here.cluster.start)
        await here.check()


async def test_a_disk_that_hangs_is_told_of_and_waited_for(tmp_path: Path) -> None:
    """Nothing is refused and nothing grows: writers wait, reads of what is in memory go on."""
    with world(tmp_path, {"journal": 128 * MIB, "ledgers": 300 * MIB}) as here:
        await here.write(lambda: sum(here.acknowledged.values()) > 500)
        before_bytes = own_memory_bytes(here.bookie.pids.values())
        journal = str(here.disks["journal"].path)
        goes_on = True
        writing = asyncio.create_task(here.write(lambda: not goes_on))
        run("fsfreeze", "--freeze", journal)
        try:
            await until(lambda: "under way" in here.slow("journal"), "it is told of")
            assert here.state("journal") == "ok"
            assert here.is_ready()
            raw = await raw_bookie(here.bookie)
            ledger_id = next(iter(here.acknowledged))
            assert await raw.read(ledger_id, 0) == payload(0)
            raw.close()
            grown_bytes = own_memory_bytes(here.bookie.pids.values()) - before_bytes
            assert grown_bytes < 64 * MIB, f"{grown_bytes / MIB:.0f} MiB more"
        finally:
            run("fsfreeze", "--unfreeze", journal)
        count = sum(here.acknowledged.values())
        await until(lambda: sum(here.acknowledged.values()) > count, "it goes on")
        await until(lambda: here.slow("journal") == "", "that is told, too")
        goes_on = False
        await asyncio.wait_for(writing, WAIT_S)
        await here.check()
