"""What gc does, by Apache's names: bytes, logs and times as exact as what was done."""

from __future__ import annotations

import asyncio
from typing import Any

import fastbk
from fastbk.testing import LocalCluster
from tests.fixtures.confirmed import wait_until_confirmed
from tests.fixtures.exposition import Exposition, scraped
from tests.fixtures.logs import json_lines
from tests.fixtures.pages import json_page
from tests.fixtures.wait import wait_until_async
from tests.integration.test_gc_space import deletion_log, gc, log_bytes, started, write, write_mixed

RUNTIMES = ("THREAD_RUNTIME", "GC_LEDGER_RUNTIME", "COMPACT_RUNTIME", "EXTRACT_META_RUNTIME")
ENTRIES = 600
BYTES = ENTRIES * 4096


def buried(cluster: LocalCluster) -> dict[str, int]:
    """Return size by path of each log that the deletion log says is gone because nothing lived in it."""
    return {
        event["deleted"]: event["bytes"]
        for event in json_lines(deletion_log(cluster.bookies[0]))
        if "nothing" in event.get("reason", "") and "deleted" in event
    }


async def test_what_is_deleted_is_counted_in_bytes_and_times() -> None:
    async with started() as (cluster, client):
        bookie = cluster.bookies[0]
        doomed = await write(client, ENTRIES)
        await wait_until_async(lambda: log_bytes(bookie) >= BYTES, "it is flushed", 30)
        await write(client, 50)
        shown = await scraped(cluster)
        assert shown.value("bookie_RECLAIMED_DELETION_SPACE_BYTES") == 0
        await wait_until_confirmed(cluster.bookies)
        await client.delete_ledger(doomed)
        await wait_until_async(lambda: len(buried(cluster)) > 0, "logs are dead", 30)
        (deletion,) = [
            one for one in json_lines(deletion_log(bookie)) if doomed in one.get("ledgers", [])
        ]
        assert "in two cycles" in deletion["reason"]

        async def agrees() -> bool:
            """Gc goes on: what the page shows is what was written down before, or after."""
            before = sum(buried(cluster).values())
            shown = await scraped(cluster)
            after = sum(buried(cluster).values())
            counted = shown.value("bookie_RECLAIMED_DELETION_SPACE_BYTES")
            return before == after == counted > 0

        await wait_until_async(agrees, "the counter is the sum of the deletion log", 30)
        assert await gc(bookie, "run", "--major") == 0
        shown = await scraped(cluster)
        assert shown.value("bookie_RECLAIM_FAILED_TO_DELETE") == 0
        status = await asyncio.to_thread(json_page, bookie, "/gc")
        check_times(shown, status)


async def test_compactions_are_counted_and_their_share_of_all_logs() -> None:
    async with started() as (cluster, client):
        bookie = cluster.bookies[0]
        ids = await write_mixed(client, 240)
        await wait_until_async(lambda: log_bytes(bookie) >= 8 * 240 * 4096, "all is flushed", 30)
        await wait_until_confirmed(cluster.bookies)
        for ledger_id in ids[1:]:
            await client.delete_ledger(ledger_id)

        async def are_deleted() -> bool:
            return (await scraped(cluster)).value("bookie_DELETED_LEDGER_TOTAL") == 7

        await wait_until_async(are_deleted, "gc has deleted them", 30)
        assert (await scraped(cluster)).value("bookie_ENTRY_LOG_COMPACT_RATIO") == 0
        files = len(list((bookie.directory / "ledgers" / "logs").glob("*.log")))
        before = (await scraped(cluster)).value("bookie_COMPACT_RUNTIME_count", success="true")
        assert await gc(bookie, "run", "--major") == 0
        shown = await scraped(cluster)
        assert shown.value("bookie_COMPACT_RUNTIME_count", success="true") == before + 1
        run = (await asyncio.to_thread(json_page, bookie, "/gc"))["compactions"][0]
        assert run["logs"] > 0
        ratio = shown.value("bookie_ENTRY_LOG_COMPACT_RATIO")
        assert 0 < ratio <= 1
        # The one that is written to is not among them, if there is one.
        assert round(run["logs"] / ratio, 2) in (files, files - 1)
        check_times(shown, None)


def check_times(shown: Exposition, status: dict[str, Any] | None) -> None:
    for name in RUNTIMES:
        counted = shown.value(f"bookie_{name}_count", success="true")
        assert counted > 0, name
        assert shown.value(f"bookie_{name}_sum", success="true") > 0, name
        assert shown.value(f"bookie_{name}_count", success="false") == 0, name
    looks = [shown.value(f"bookie_{name}_sum", success="true") for name in RUNTIMES[:2]]
    assert looks[0] > looks[1], "looks for copies too many are among the turns"
    if status is not None:
        ended = sum(each["count"] for each in status["ended"].values())
        assert shown.value("bookie_COMPACT_RUNTIME_count", success="true") == ended


async def test_looks_that_are_refused_failed() -> None:
    """More than half of the ledgers are gone from metadata: that takes a person's word."""
    settings: dict[str, dict[str, Any]] = {
        "gc": {"interval": "200ms", "unchecked_ledgers_max": 0},
        "ledgers": {"flush_interval": "200ms"},
    }
    async with (
        LocalCluster(1, settings=settings) as cluster,
        fastbk.connect(cluster.metadata_uri) as client,
    ):
        ledger_ids = [await write(client, 3) for _ in range(4)]
        await wait_until_confirmed(cluster.bookies)
        for ledger_id in ledger_ids:
            await client.delete_ledger(ledger_id)

        async def is_refused() -> bool:
            shown = await scraped(cluster)
            refused = shown.value("fastbk_gc_cycles_stopped_total")
            failed = shown.value("bookie_GC_LEDGER_RUNTIME_count", success="false")
            whole = shown.value("fastbk_gc_cycles_total")
            done = shown.value("bookie_GC_LEDGER_RUNTIME_count", success="true")
            return 0 < refused == failed and done + failed == whole

        await wait_until_async(is_refused, "looks are refused, and counted", 30)
