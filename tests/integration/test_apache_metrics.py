"""`/metrics` by Apache's names: types and labels as in a checked-in table, sums as exact as the load."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import fastbk
from fastbk.testing import LocalCluster

TABLE = Path(__file__).parents[1] / "golden" / "apache_metrics.txt"
SERIES_MAX = 200
QUANTILES = {"0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0"}
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> tuple[dict[str, str], Samples]:
    """Return the types by name, and all samples of an exposition; AssertionError for what is none."""
    types: dict[str, str] = {}
    samples: Samples = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name}: two types"
            types[name] = kind
        elif not line.startswith("#"):
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            labels = tuple(_LABEL.findall(match[2] or ""))
            assert "".join(f'{key}="{value}",' for key, value in labels).rstrip(",") == (
                match[2] or ""
            ), line
            key = (match[1], labels)
            assert key not in samples, f"{line}: twice"
            samples[key] = float(match[3])
    return types, samples


def is_apaches(name: str) -> bool:
    return name.startswith(("bookie_", "bookkeeper_"))


def table_of(types: dict[str, str], samples: Samples) -> list[str]:
    """Return `name type labels` of each of Apache's names; the directory in a name is DIR."""
    rows = set()
    for name, labels in samples:
        base = re.sub(r"_(?:count|sum)$", "", name) if name not in types else name
        if is_apaches(base):
            keys = ",".join(sorted({key for key, _ in labels} - {"quantile"}))
            rows.add(
                f"{re.sub('_dir_.*_usage', '_dir_DIR_usage', base)} {types[base]} {keys}".rstrip()
            )
    return sorted(rows)


def scraped(cluster: LocalCluster) -> tuple[dict[str, str], Samples]:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{cluster.bookies[0].http_port}/metrics", timeout=10
    ) as answer:
        return parsed(answer.read().decode())


async def test_names_types_labels_and_exact_sums() -> None:
    async with LocalCluster(1) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        async with await client.create_ledger(1, 1, 1) as writer:
            for _ in range(321):
                await writer.append(b"x" * 700)
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        assert len([entry async for entry in reader.read(0, 320)]) == 321
        types, samples = await asyncio.to_thread(scraped, cluster)

    assert table_of(types, samples) == TABLE.read_text().splitlines()
    assert sum(is_apaches(name) for name, _ in samples) <= SERIES_MAX

    def value(name: str, **labels: str) -> float:
        (found,) = [
            one
            for (at, keys), one in samples.items()
            if at == name and labels.items() <= dict(keys).items()
        ]
        return found

    assert value("bookkeeper_server_ADD_ENTRY_REQUEST_count", success="true") == 321
    assert value("bookie_WRITE_BYTES") == 321 * (700 + 36), (
        "with header and digest, as Apache counts"
    )
    assert value("bookie_READ_BYTES") == 321 * (700 + 36)
    seconds = value("fastbk_worker_add_seconds_sum")
    for name in ("bookkeeper_server_ADD_ENTRY_REQUEST", "bookie_journal_JOURNAL_ADD_ENTRY"):
        assert abs(value(f"{name}_sum", success="true") - 1000 * seconds) < 1e-6
    synced = value("bookie_journal_JOURNAL_SYNC_sum", success="true")
    assert abs(synced - 1000 * value("fastbk_journal_commit_seconds_sum")) < 1e-4
    assert value("bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES_sum", success="true") == 321
    quantiles = {
        dict(keys)["quantile"]: one
        for (name, keys), one in samples.items()
        if name == "bookkeeper_server_ADD_ENTRY_REQUEST"
    }
    assert set(quantiles) == QUANTILES
    assert 0 < quantiles["0.5"] <= quantiles["0.99"] <= quantiles["1.0"] <= 1000 * seconds


async def test_old_names_are_left_out_and_pairs_have_labels_where_configured(
    tmp_path: Path,
) -> None:
    settings: dict[str, dict[str, object]] = {
        "metrics": {"legacy_names": False},
        "journal": {"directory": "", "directories": [str(tmp_path / "j0"), str(tmp_path / "j1")]},
        "ledgers": {"directory": "", "directories": [str(tmp_path / "l0"), str(tmp_path / "l1")]},
    }
    async with LocalCluster(1, settings=settings) as cluster:
        types, samples = await asyncio.to_thread(scraped, cluster)
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
