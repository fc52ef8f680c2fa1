"""The examples do what they say, twice on the same cluster."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from fastbk.testing import LocalCluster
from tests.fixtures.spark import patiently

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ledgers_and_streams", "a new start read a snapshot and 50 changes"),
        ("publish_subscribe", "audit handled 1000 orders"),
    ],
)
def test_an_example_runs_and_runs_again(cluster: LocalCluster, name: str, says: str) -> None:
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / f"{name}.py"), cluster.metadata_uri],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert says in done.stdout


def test_the_example_of_tests_with_faults_passes() -> None:
    words = ["-q", "-p", "no:cacheprovider", str(EXAMPLES / "test_with_faults.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_windows", EXAMPLES / "spark_windows.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
@pytest.mark.timeout(300)
def test_windows_are_closed_once_with_the_right_sums(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    module = example()
    tries = iter(range(10))

    def run() -> str:
        checkpoint = str(tmp_path / str(next(tries)))
        return str(module.run(spark, cluster.metadata_uri, checkpoint))

    assert patiently(run).endswith("each sum as counted without Spark; 3 sales came too late")
