"""Journal files that stay as entry logs, on a real bookie: what lies in them, restarts, and files taken again."""

from __future__ import annotations

import asyncio
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fastbk
from fastbk.devcluster import Bookie
from fastbk.meta import open_store
from fastbk.meta.format_level import raise_level
from fastbk.testing import LocalCluster
from fastbk.units import KIB, MIB
from tests.fixtures.cli import Cli
from tests.fixtures.confirmed import wait_until_confirmed
from tests.fixtures.files import files_bytes, look_whole
from tests.fixtures.logs import json_lines
from tests.fixtures.metadata import set_level
from tests.fixtures.pages import metrics
from tests.fixtures.wait import wait_until_async
from tests.integration.test_gc_space import gc

pytestmark = pytest.mark.waits

WAIT_S = 30.0
ENTRY_BYTES = 64 * KIB
SETTINGS: dict[str, dict[str, Any]] = {
    "limits": {"frame_size_max": "1MiB"},
    "journal": {"first_file_size": "16MiB", "file_size": "16MiB", "limit": "64MiB"},
    "ledgers": {"flush_interval": "200ms"},
    "gc": {"interval": "200ms", "unchecked_ledgers_max": 1000},
}
ADOPTED = "fastbk_index_adopted_bytes_total"
JOURNAL_LOGS = "fastbk_index_journal_logs"
REASON = "fastbk_journal_adopt_reason"


def body(ledger_id: int, entry_id: int) -> bytes:
    return (b"%d/%d " % (ledger_id, entry_id) * ENTRY_BYTES)[:ENTRY_BYTES]


async def write(client: fastbk.Client, size_mib: int) -> int:
    """Write a ledger in large pieces: 32 entries wait at a time."""
    async with await client.create_ledger(1, 1, 1) as writer:
        for at in range(0, size_mib * MIB // ENTRY_BYTES, 32):
            await asyncio.gather(
                *(writer.append_nowait(body(writer.ledger_id, n)) for n in range(at, at + 32))
            )
    return writer.ledger_id


async def check_whole(client: fastbk.Client, ledger_id: int, size_mib: int) -> None:
    reader = await client.open_ledger(ledger_id, recovery=False)
    count = size_mib * MIB // ENTRY_BYTES
    found = [(one.entry_id, bytes(one.data)) async for one in reader.read(0, count - 1)]
    assert [entry_id for entry_id, _ in found] == list(range(count))
    assert all(data == body(ledger_id, entry_id) for entry_id, data in found)


def versions(bookie: Bookie) -> dict[str, int]:
    """Return the highest version of each format among the files that were used."""
    journal, ledgers = bookie.directory / "journal", bookie.directory / "ledgers"
    return look_whole(
        lambda: {
            "journal": max(_version(path) for path in journal.glob("*.journal")),
            "locations": max(map(_version, ledgers.glob("locations/*.loc")), default=0),
            "manifest": max(_version(path) for path in ledgers.glob("manifest.?")),
        }
    )


def _version(path: Path) -> int:
    """All three formats have their version behind eight bytes of magic."""
    with path.open("rb") as file:
        front = file.read(12)
    return int(struct.unpack("<8xI", front)[0]) if len(front) == 12 else 0


async def flushed(bookie: Bookie) -> None:
    def is_flushed() -> bool:
        found = metrics(bookie)
        return found["fastbk_index_journal_behind"] < MIB

    await wait_until_async(lambda: asyncio.to_thread(is_flushed), "the flush", WAIT_S)


async def metric(bookie: Bookie, name: str) -> float:
    return (await asyncio.to_thread(metrics, bookie))[name]


async def test_what_comes_in_large_pieces_stays_in_the_journals_files() -> None:
    """INV-J3, INV-X3: nothing is lost by a kill, and files are taken again when their ledgers are gone."""
    async with (
        LocalCluster(1, settings=SETTINGS) as cluster,
        fastbk.connect(cluster.metadata_uri) as client,
    ):
        bookie = cluster.bookies[0]
        first = await write(client, 160)
        await flushed(bookie)
        adopted_bytes = await metric(bookie, ADOPTED)
        assert adopted_bytes > 48 * MIB, "the first 64 MiB say only that the others may stay"
        assert await metric(bookie, REASON) == 0
        log_bytes = files_bytes(bookie.directory / "ledgers/logs", "*.log")
        assert log_bytes + adopted_bytes < 176 * MIB, "each byte once"
        _, shown, _ = await Cli(cluster.metadata_uri).answer_async("top", "--interval", "0.5")
        files = shown["bookies"][0]["journal_files"]
        # what lay below a MiB behind may have been flushed meanwhile
        assert files["adopted_bytes"] >= adopted_bytes and files["reason"] == ""
        assert files["entry_bytes"] >= 160 * MIB

        async def has_free_bytes() -> bool:
            # The journal may have taken the one that was free, and the next one is being made.
            _, shown, _ = await Cli(cluster.metadata_uri).answer_async("top", "--interval", "0.5")
            return bool(shown["bookies"][0]["journal_files"]["free_bytes"] > 0)

        await wait_until_async(has_free_bytes, "there is a free journal file")
        await check_whole(client, first, 160)
        await cluster.kill_async(0)
        await cluster.start_bookie_async(0)
        await check_whole(client, first, 160)
        logs = await metric(bookie, JOURNAL_LOGS)
        assert logs >= 3
        names = {path.name for path in (bookie.directory / "journal").glob("*.journal")}
        await wait_until_confirmed([bookie])
        await client.delete_ledger(first)

        async def are_gone() -> bool:
            await gc(bookie, "run")
            return await metric(bookie, JOURNAL_LOGS) == 0

        await wait_until_async(are_gone, "no journal file is a log any more", WAIT_S)
        second = await write(client, 96)
        await flushed(bookie)
        await check_whole(client, second, 96)
        left = {path.name for path in (bookie.directory / "journal").glob("*.journal")}
        assert not names & left, "all of them were taken again, or removed"
        journal_bytes = files_bytes(bookie.directory / "journal", "*.journal")
        assert journal_bytes <= (64 + 32 + 96) * MIB


async def test_files_are_taken_again_beside_readers() -> None:
    """INV-J3: nobody meets another file's bytes, however often a ledger is read while others are deleted."""
    async with (
        LocalCluster(1, settings=SETTINGS) as cluster,
        fastbk.connect(cluster.metadata_uri) as client,
    ):
        bookie = cluster.bookies[0]
        kept = [await write(client, 96)]
        doomed: list[int] = []
        before = await metric(bookie, "fastbk_journal_files_recycled_total")

        async def read_all() -> None:
            for ledger_id in kept:
                await check_whole(client, ledger_id, 96 if ledger_id == kept[0] else 16)

        for n in range(6):
            reads = asyncio.create_task(read_all())
            fresh = await write(client, 48 if n % 2 else 16)
            if n % 2:
                doomed.append(fresh)
            await wait_until_confirmed([bookie])
            while len(doomed) > 1:
                await client.delete_ledger(doomed.pop(0))
            await gc(bookie, "run")
            await reads
            if not n % 2:
                kept.append(fresh)
        assert await metric(bookie, JOURNAL_LOGS) > 0
        for ledger_id in doomed:
            await client.delete_ledger(ledger_id)
        await read_all()

        async def are_taken_again() -> bool:
            await gc(bookie, "run")
            await write(client, 16)
            found = await metric(bookie, "fastbk_journal_files_recycled_total")
            return found >= before + 6

        await wait_until_async(are_taken_again, "files are taken again", WAIT_S)
        await read_all()
        found = await asyncio.to_thread(metrics, bookie)
        assert found["fastbk_index_quarantined"] == 0
        assert found["fastbk_index_damaged"] == 0
        assert "read.damaged" not in bookie.log_path.read_text()


async def test_below_level_4_nothing_of_version_3_is_written_and_then_it_is() -> None:
    """INV-U1: the running journal hears of the level, and begins with its next file."""
    async with LocalCluster(1, settings=SETTINGS) as cluster:
        bookie = cluster.bookies[0]
        with closing(open_store(cluster.metadata_uri)) as store:
            set_level(store, 3)
            await cluster.restart_bookie_async(0)
            async with fastbk.connect(cluster.metadata_uri) as client:
                await write(client, 128)
                await flushed(bookie)
                assert versions(bookie) == {"journal": 2, "locations": 2, "manifest": 2}
                found = await asyncio.to_thread(metrics, bookie)
                assert (found[ADOPTED], found[REASON]) == (0, 2)
                _, shown, _ = await Cli(cluster.metadata_uri).answer_async(
                    "top", "--interval", "0.5"
                )
                assert shown["bookies"][0]["journal_files"]["reason"] == "level"
                raise_level(store, 4)

                def has_heard() -> bool:
                    return any(
                        one["event"] == "formats.level_rose" for one in json_lines(bookie.log_path)
                    )

                await wait_until_async(has_heard, "the bookie reads the level", WAIT_S)
                await write(client, 64)
                await flushed(bookie)
                assert versions(bookie) == {"journal": 3, "locations": 3, "manifest": 3}
                assert await metric(bookie, ADOPTED) > 16 * MIB


async def test_a_stopped_bookie_gets_its_old_files_back() -> None:
    """`fastbk bookie unadopt`: every byte is served from entry logs, by files that the version before reads."""
    async with LocalCluster(1, settings=SETTINGS) as cluster:
        bookie, cli = cluster.bookies[0], Cli(cluster.metadata_uri)
        config = bookie.directory / "bookie.toml"
        async with fastbk.connect(cluster.metadata_uri) as client:
            first = await write(client, 128)
            await flushed(bookie)
            assert await metric(bookie, ADOPTED) > 16 * MIB
            code, answer, said = await cli.answer_async(
                "bookie", "unadopt", "--config", str(config)
            )
            assert code == 2 and "error" in answer, "it runs"
            await cluster.kill_async(0)

            async def is_unclean() -> bool:
                code, _, said = await cli.answer_async("bookie", "unadopt", "--config", str(config))
                assert code == 2
                # Its children end a moment after it.
                assert "in use" in said or "stop it by SIGTERM" in said, said
                return "stop it by SIGTERM" in said

            await wait_until_async(is_unclean, "nothing of the bookie runs")
            await cluster.start_bookie_async(0)
            await cluster.stop_bookie_async(0)
            code, answer, said = await cli.answer_async(
                "bookie", "unadopt", "--config", str(config)
            )
            assert code == 0 and 'adopt = "never"' in said, said
            (report,) = answer
            assert report["logs"] >= 2 and report["moved_bytes"] > 16 * MIB
            assert report["bad_entries"] == 0
            assert versions(bookie) == {"journal": 2, "locations": 2, "manifest": 2}
            checked = await asyncio.to_thread(cli.json, "bookie", "check", "--config", str(config))
            assert checked["damage_count"] == 0
            bookie.sections["ledgers"] = {**bookie.sections["ledgers"], "adopt": "never"}
            await cluster.start_bookie_async(0)
            await check_whole(client, first, 128)
            second = await write(client, 96)
            await flushed(bookie)
            await check_whole(client, second, 96)
            assert versions(bookie) == {"journal": 2, "locations": 2, "manifest": 2}
            assert await metric(bookie, JOURNAL_LOGS) == 0
