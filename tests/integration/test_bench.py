"""`fastbk bench` as a user runs it: its own service, its JSON, and nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fastbk.testing import LocalCluster


def bench(folder: Path, *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "fastbk.cli", "bench", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("window", [1, 100])
def test_append_says_all_that_is_promised_and_leaves_nothing(tmp_path: Path, window: int) -> None:
    answer = bench(tmp_path, "append", "--window", str(window), "--seconds", "0.5", "--ledgers", "3")
    assert answer["errors"] == 0
    assert answer["entries"] > 0
    assert answer["adds_per_s"] > 0
    assert set(answer["latency_us"]) == {"p50", "p99", "p999", "max"}
    assert 0 < answer["latency_us"]["p50"] <= answer["latency_us"]["max"]
    assert set(answer["cpu_us_per_entry"]) == {"bookie", "client"}
    assert answer["cpu_us_per_entry"]["bookie"] > 0
    assert 0 < answer["disk_commit_us"]["p50"] <= answer["disk_commit_us"]["p99"]
    assert 20 < answer["bookie_pss_mb"] < 300
    assert answer["sample"]["checked"] > 0
    assert answer["sample"]["wrong"] == 0
    assert answer["quorum"] == {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
    assert answer["backend"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["--entries-a-read", "32", "--connections", "2", "--ledgers", "2"]])
def test_reads_are_checked_byte_by_byte(tmp_path: Path, arguments: list[str]) -> None:
    answer = bench(tmp_path, "read", "--window", "20", "--seconds", "0.3", "--size", "300", *arguments)
    assert answer["errors"] == 0
    assert answer["reads_per_s"] > 0
    assert answer["entries_written"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["append", "--protocol", "v2", "--connections", "2", "--ledgers", "3"],
        ["append", "--protocol", "v3"],
        ["read", "--protocol", "v2", "--entries-a-read", "32"],
        ["read", "--protocol", "v3"],
    ],
)
def test_apaches_protocols_are_measured_and_checked_as_ours(tmp_path: Path, arguments: list[str]) -> None:
    answer = bench(tmp_path, *arguments, "--window", "20", "--seconds", "0.3", "--size", "300")
    assert answer["errors"] == 0
    assert answer["entries" if arguments[0] == "append" else "entries_written"] > 0
    assert answer["sample"]["checked"] > 0
    assert answer["sample"]["wrong"] == 0


def test_an_open_loop_keeps_its_rate_and_its_data_dir(tmp_path: Path) -> None:
    data = tmp_path / "data"
    answer = bench(
        tmp_path, "append", "--rate", "500", "--window", "50", "--seconds", "2", "--data", str(data)
    )
    assert 800 <= answer["entries"] <= 1000
    assert (data / "metadata.sqlite").exists()


def test_a_running_cluster_is_measured_and_left_running(tmp_path: Path) -> None:
    with LocalCluster(1) as cluster:
        answer = bench(tmp_path, "append", "--metadata", cluster.metadata_uri, "--seconds", "1")
        assert answer["entries"] > 0
        assert answer["errors"] == 0
        # What is not ours to see is said to be unknown, in the same places.
        assert answer["disk_commit_us"] == {"p50": None, "p99": None, "direct": None}
        assert answer["cpu_us_per_entry"]["bookie"] is None
        assert answer["bookie_pss_mb"] is None
        assert cluster.bookies[0].is_ready


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--window", "0"], "--window must be at least 1"),
        (["--connections", "2"], "--ledgers must be at least --connections"),
        (["--metadata", "sqlite:/nowhere/x"], "nowhere"),
    ],
)
def test_a_wrong_call_is_one_line(tmp_path: Path, arguments: list[str], says: str) -> None:
    command = [sys.executable, "-m", "fastbk.cli", "bench", "append", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
