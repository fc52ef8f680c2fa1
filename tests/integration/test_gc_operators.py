"""`fastbk bookie gc` against a running bookie: nothing goes that is suspended, everything that is asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import fastbk
from fastbk.cli.__main__ import main
from fastbk.devcluster import Bookie
from fastbk.testing import LocalCluster
from tests.fixtures.confirmed import wait_until_confirmed
from tests.fixtures.wait import wait_until_async

WAIT_S = 30.0
# By itself it does nothing while the test runs.
SETTINGS = {
    "gc": {"interval": "1h", "unchecked_ledgers_max": 3},
    "ledgers": {"flush_interval": "200ms", "entry_log_size": "1MiB"},
}


@asynccontextmanager
async def bookie_with(ledgers: int) -> AsyncIterator[tuple[LocalCluster, fastbk.Client, list[int]]]:
    async with (
        LocalCluster(1, settings=SETTINGS) as cluster,
        fastbk.connect(cluster.metadata_uri) as client,
    ):
        ids = []
        for _ in range(ledgers):
            async with await client.create_ledger(
                ensemble=1, write_quorum=1, ack_quorum=1
            ) as writer:
                await writer.append(b"x" * 1000)
            ids.append(writer.ledger_id)
        yield cluster, client, ids


async def gc(bookie: Bookie, *words: str) -> int:
    return await asyncio.to_thread(
        main, ["bookie", "gc", *words, "--http", f"127.0.0.1:{bookie.http_port}"]
    )


def deleted(bookie: Bookie) -> set[int]:
    path = bookie.directory / "ledgers" / "audit.log"
    if not path.exists():
        return set()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return {one for event in events for one in event.get("ledgers", [])}


async def test_suspended_run_and_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    async with bookie_with(4) as (cluster, client, ids):
        bookie = cluster.bookies[0]
        assert await gc(bookie, "suspend") == 0
        assert "ledgers, major, minor" in capsys.readouterr().out
        await cluster.kill_async(0, "gc")
        await wait_until_async(lambda: cluster.bookies[0].boots == 2, "the bookie is back", WAIT_S)
        bookie = cluster.bookies[0]
        await wait_until_confirmed(cluster.bookies)  # no deletion, so not suspended
        await client.delete_ledger(ids[0])
        assert await gc(bookie, "status", "--json") == 0
        status = json.loads(capsys.readouterr().out)
        assert status["suspended"] == ["ledgers", "major", "minor"], (
            "over the death of a child, too"
        )
        assert status["running"]
        for _ in range(2):
            assert await gc(bookie, "run") == 0
        assert "1 not in metadata" in capsys.readouterr().out
        await wait_until_async(
            lambda: deleted(bookie) == {ids[0]}, "a run deletes all the same", WAIT_S
        )
        assert await gc(bookie, "resume", "--minor") == 0
        assert await gc(bookie, "resume", "--json") == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"suspended": []}


async def test_most_of_all_ledgers_go_by_force_only(capsys: pytest.CaptureFixture[str]) -> None:
    async with bookie_with(8) as (cluster, client, ids):
        bookie = cluster.bookies[0]
        await wait_until_confirmed(cluster.bookies)
        for ledger_id in ids[:6]:
            await client.delete_ledger(ledger_id)
        assert await gc(bookie, "run") == 0, "the first look only takes note"
        assert await gc(bookie, "run") == 1
        assert "6 of 8 ledgers are not in metadata" in capsys.readouterr().out
        assert deleted(bookie) == set()
        assert await gc(bookie, "run", "--force") == 0
        await wait_until_async(
            lambda: deleted(bookie) == set(ids[:6]), "an operator's word", WAIT_S
        )
        reader = await client.open_ledger(ids[7], recovery=False)
        assert [bytes(entry.data) async for entry in reader.read(0, 0)] == [b"x" * 1000]
