"""A deleted ledger's data leaves the disk, with its reason written down; everybody else's stays."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import fastbk
from fastbk.errors import Error
from fastbk.testing import LocalCluster
from tests.fixtures.confirmed import wait_until_confirmed
from tests.fixtures.wait import wait_until

ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
SETTINGS = {
    "gc": {"interval": "200ms"},
    # Small flushes and logs, so that there is something on disk soon, and logs that can die.
    "ledgers": {"flush_interval": "200ms", "entry_log_size": "1MiB"},
}


async def write(client: fastbk.Client, count: int, size_bytes: int) -> int:
    async with await client.create_ledger(**ONE) as writer:
        for at in range(0, count, 50):
            await asyncio.gather(
                *(writer.append_nowait(bytes([n % 256]) * size_bytes) for n in range(at, min(at + 50, count)))
            )
    return writer.ledger_id


async def read_all(client: fastbk.Client, ledger_id: int) -> int:
    reader = await client.open_ledger(ledger_id, recovery=False)
    last = await reader.last_add_confirmed()
    return len([entry async for entry in reader.read(0, last)])


def log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "ledgers" / "logs").glob("*.log"))


def mark_is_past(folder: Path, size_bytes: int) -> bool:
    return log_bytes(folder) >= size_bytes


async def test_deleted_ledgers_free_their_files() -> None:
    async with LocalCluster(1, settings=SETTINGS) as cluster:
        folder = cluster.bookies[0].directory
        async with fastbk.connect(cluster.metadata_uri) as client:
            doomed = await write(client, 1500, 4096)
            await asyncio.to_thread(
                wait_until, lambda: mark_is_past(folder, 1500 * 4096), "the doomed ledger is flushed", 30
            )
            kept = await write(client, 300, 4096)
            await wait_until_confirmed(cluster.bookies)
            await client.delete_ledger(doomed)
            await asyncio.to_thread(
                wait_until, lambda: log_bytes(folder) < 1500 * 4096, "dead logs are gone", 30
            )
            audit = (folder / "ledgers" / "audit.log").read_text().splitlines()
            events = [json.loads(line) for line in audit]
            assert any(doomed in event.get("ledgers", []) and "two cycles" in event["reason"] for event in events)
            assert not any(kept in event.get("ledgers", []) for event in events)
            assert await read_all(client, kept) == 300
            cluster.kill(0, "index")
            await asyncio.to_thread(
                wait_until, lambda: cluster.bookies[0].boots == 2, "the bookie is back", 30
            )
        async with fastbk.connect(cluster.metadata_uri) as client:
            assert await read_all(client, kept) == 300
            with pytest.raises(Error):
                await read_all(client, doomed)
