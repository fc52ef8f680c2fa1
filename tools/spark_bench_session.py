"""Spark for the bench tools: a session on two threads that is gone at the end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from tests.fixtures.spark import spark_in
from tools import ROOT
from tools.spark_memory_source import MemoryRows


@contextmanager
def bench_spark(memory: str = "600m", java_options: str = "") -> Iterator[SparkSession]:
    """Give a session on two threads whose workers know `memory_rows`."""
    # Workers are to import what is defined here, and this folder need not be where they start.
    os.environ["PYTHONPATH"] = str(ROOT)
    settings = {"spark.driver.memory": memory, "spark.driver.extraJavaOptions": java_options}
    with (
        tempfile.TemporaryDirectory(prefix="fastbk-bench-spark-") as folder,
        contextmanager(spark_in)(Path(folder), settings) as made,
    ):
        made.dataSource.register(MemoryRows)
        yield made
