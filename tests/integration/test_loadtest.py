"""Locust against a real cluster, headless; and the histogram that keeps what locust rounds away."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from fastbk.errors import StorageError
from fastbk.testing import LocalCluster
from loadtest.latency import Latency, bucket_of, top_of
from tests.tools.load import ROOT, ensure_venv, run_locust

SECONDS = 30 if os.environ.get("FASTBK_TIER") == "all" else 3


@pytest.mark.timeout(400)  # the first run makes locust's virtual environment
def test_a_headless_run_appends_and_reads_without_a_failure(tmp_path: Path) -> None:
    with LocalCluster(3) as cluster:
        summary = run_locust(cluster.metadata_uri, SECONDS, 5, tmp_path / "load.json")
    for name in ("append", "read"):
        figures = summary[name]
        assert figures["failures"] == 0
        assert figures["count"] > SECONDS
        # Microseconds: a bookie answers in far less than a second, and in no less than one of them.
        assert 1 <= figures["p50_us"] <= figures["p99_us"] <= figures["max_us"]
        assert figures["p50_us"] < 1_000_000


@pytest.mark.timeout(400)
def test_clients_of_one_process_share_gevents_thread() -> None:
    """One native thread runs one event loop at a time: with a loop for each client the second would fail."""
    with LocalCluster(3) as cluster:
        command = [str(ensure_venv()), "-m", "tests.fixtures.gevent_clients", cluster.metadata_uri]
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
    assert (ended.returncode, ended.stdout) == (0, "fine\n"), ended.stderr[-3000:]


@pytest.mark.timeout(400)
def test_without_a_cluster_it_says_so_and_shows_no_stacks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StorageError, match="locust ended with 1"):
        run_locust(f"sqlite:{tmp_path}/m.sqlite", 1, 1, tmp_path / "load.json")
    said = capfd.readouterr().err
    assert "this user cannot begin: there is no cluster at sqlite:" in said
    assert "Traceback" not in said


@pytest.mark.no_service
def test_every_value_lies_in_its_bucket_and_a_bucket_is_narrow() -> None:
    for value in [*range(5000), *(2**n + d for n in range(12, 40) for d in (-1, 0, 1))]:
        bucket = bucket_of(value)
        assert value <= top_of(bucket)
        assert bucket == 0 or top_of(bucket - 1) < value
        assert top_of(bucket) <= value * (1 + 1 / 64) + 1


@pytest.mark.no_service
def test_percentiles_are_those_of_the_sorted_values(rng: random.Random) -> None:
    latency = Latency()
    values = sorted(int(rng.lognormvariate(6, 1)) for _ in range(5000))
    for value in values:
        latency.record(value)
    for percent in (1, 50, 99, 99.9, 100):
        exact = values[max(0, -(-len(values) * int(percent * 10) // 1000) - 1)]
        assert exact <= latency.percentile_us(percent) <= exact * (1 + 1 / 32) + 1
