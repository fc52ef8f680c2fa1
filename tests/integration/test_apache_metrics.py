"""`/metrics` by Apache's names: types and labels as in a checked-in table, sums as exact as the load."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import fastbk
from fastbk.testing import LocalCluster
from tests.fixtures import apache_wire as apache
from tests.fixtures.exposition import Exposition, scraped
from tests.fixtures.pages import page
from tests.fixtures.wait import wait_until_async
from tests.fixtures.worker_harness import connected

TABLE = Path(__file__).parents[1] / "golden" / "apache_metrics.txt"
SERIES_MAX = 410
QUANTILES = {"0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0"}


def is_apaches(name: str) -> bool:
    return name.startswith(("bookie_", "bookkeeper_"))


def table_of(shown: Exposition) -> list[str]:
    """Return `name type labels` of each of Apache's names; the directory in a name is DIR."""
    rows = set()
    types = shown.types
    for name, labels in shown.samples:
        base = re.sub(r"_(?:count|sum)$", "", name) if name not in types else name
        if is_apaches(base):
            keys = ",".join(sorted({key for key, _ in labels} - {"quantile"}))
            rows.add(
                f"{re.sub('_dir_.*_usage', '_dir_DIR_usage', base)} {types[base]} {keys}".rstrip()
            )
    return sorted(rows)


async def test_names_types_labels_exact_sums_and_pages_within_their_budget() -> None:
    async with LocalCluster(1) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        async with await client.create_ledger(1, 1, 1) as writer:
            for _ in range(321):
                await writer.append(b"x" * 700)
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        assert len([entry async for entry in reader.read(0, 320)]) == 321

        async def all_taken() -> bool:
            return (await scraped(cluster)).value("fastbk_index_entries_total") == 321

        await wait_until_async(all_taken, "the index takes all")
        shown = await scraped(cluster)
        await check_pages(cluster)
    assert table_of(shown) == TABLE.read_text().splitlines()
    value = shown.value
    assert value("bookkeeper_server_ADD_ENTRY_REQUEST_count", success="true") == 321
    assert value("bookie_WRITE_BYTES") == 321 * (700 + 36), (
        "with header and digest, as Apache counts"
    )
    assert value("bookie_READ_BYTES") == 321 * (700 + 36)
    for name in ("journal_entries_total", "worker_add_seconds_count", "index_read_entries_total"):
        assert value(f"fastbk_{name}") == 321, name
    assert value("fastbk_worker_acks_total") >= 321
    assert value("fastbk_journal_bytes_total") >= 321 * 700
    assert value("fastbk_journal_commit_seconds_count") == value("fastbk_journal_batches_total")
    seconds = value("fastbk_worker_add_seconds_sum")
    assert seconds > 0
    for name in ("bookkeeper_server_ADD_ENTRY_REQUEST", "bookie_journal_JOURNAL_ADD_ENTRY"):
        assert abs(value(f"{name}_sum", success="true") - 1000 * seconds) < 1e-6
    synced = value("bookie_journal_JOURNAL_SYNC_sum", success="true")
    assert abs(synced - 1000 * value("fastbk_journal_commit_seconds_sum")) < 1e-4
    assert value("bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES_sum", success="true") == 321
    quantiles = {
        dict(keys)["quantile"]: one
        for (name, keys), one in shown.samples.items()
        if name == "bookkeeper_server_ADD_ENTRY_REQUEST"
    }
    assert set(quantiles) == QUANTILES
    assert 0 < quantiles["0.5"] <= quantiles["0.99"] <= quantiles["1.0"] <= 1000 * seconds


async def test_one_family_without_old_names_and_labels_of_pairs_where_configured(
    tmp_path: Path,
) -> None:
    settings: dict[str, dict[str, object]] = {
        "metrics": {"legacy_names": False, "names": "apache"},
        "journal": {"directory": "", "directories": [str(tmp_path / "j0"), str(tmp_path / "j1")]},
        "ledgers": {"directory": "", "directories": [str(tmp_path / "l0"), str(tmp_path / "l1")]},
    }
    async with LocalCluster(1, settings=settings) as cluster:
        shown, all_of_them = await scraped(cluster), await scraped(cluster, "?names=all")
    types, samples = shown.types, shown.samples
    assert {name.split("_")[0] for name in types} == {"bookie", "bookkeeper"}
    assert len(all_of_them.types) > len(types)
    assert not [name for name in types if name.endswith("_COUNT")]
    assert types["bookie_DELETED_LEDGER_TOTAL"] == "counter"
    indexes = {
        dict(keys)["journalIndex"]
        for name, keys in samples
        if name == "bookie_journal_JOURNAL_SYNC_count"
    }
    assert indexes == {"0", "1"}
    directories = {
        dict(keys)["ledgerDir"] for name, keys in samples if name == "bookie_ledgers_count"
    }
    assert directories == {str(tmp_path / "l0"), str(tmp_path / "l1")}


async def check_pages(cluster: LocalCluster) -> None:
    """Users of the field pay by the series. Both together are what an operator sees who asks for neither."""
    apaches, ours, both = [
        await scraped(cluster, query) for query in ("?names=apache", "?names=fastbk", "")
    ]
    status, _ = await asyncio.to_thread(page, cluster.bookies[0], "/metrics?names=java")
    assert status == 400
    assert all(is_apaches(name) for name, _ in apaches.samples)
    assert all(name.startswith("fastbk_") for name, _ in ours.samples)
    assert both.samples.keys() == apaches.samples.keys() | ours.samples.keys()
    assert len(apaches.samples) < SERIES_MAX
    assert len(ours.samples) < SERIES_MAX


async def test_what_is_rejected_is_counted_exactly() -> None:
    settings: dict[str, dict[str, object]] = {"network": {"apache_adds_pending_max": 1}}
    async with LocalCluster(1, settings=settings) as cluster:
        client = await connected(cluster.bookies[0].port)
        client.send(b"".join(apache.v2_add(entry_id) for entry_id in range(20)))
        statuses = [(await apache.hear_v2(client)).error for _ in range(20)]
        shown = await scraped(cluster)
        await client.close()
    rejected = statuses.count(apache.V2_STATUSES[apache.ETOOMANYREQUESTS])
    assert 0 < rejected == 20 - statuses.count(0)
    assert shown.value("bookkeeper_server_ADD_ENTRY_REJECTED") == rejected
    assert shown.value("bookkeeper_server_ADD_ENTRY_REQUEST_count", success="true") == 20 - rejected
    assert shown.value("bookkeeper_server_ADD_ENTRY_REQUEST_count", success="false") == rejected


async def test_entries_are_counted_in_caches_and_files() -> None:
    async with LocalCluster(1) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        async with await client.create_ledger(1, 1, 1) as writer:
            for _ in range(40):
                await writer.append(b"x" * 700)

        async def stored() -> tuple[float, float]:
            shown = await scraped(cluster)
            return shown.value("bookie_entries_count"), shown.value("bookie_write_cache_count")

        async def is_stored(entries: int, in_the_cache: int) -> bool:
            return await stored() == (entries, in_the_cache)

        await wait_until_async(lambda: is_stored(40, 40), "the gauges of a full cache")
        await cluster.restart_bookie_async(0)  # a stop flushes
        await wait_until_async(lambda: is_stored(40, 0), "the gauges of an empty one")
