"""The example of windows over a stream does what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from fastbk.testing import LocalCluster
from tests.fixtures.spark import patiently

pytestmark = pytest.mark.timeout(300)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spark_windows.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_windows", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_windows_are_closed_once_with_the_right_sums(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    module = example()
    tries = iter(range(10))

    def run() -> str:
        checkpoint = str(tmp_path / str(next(tries)))
        return str(module.run(spark, cluster.metadata_uri, checkpoint))

    assert patiently(run).endswith("each sum as counted without Spark; 3 sales came too late")
