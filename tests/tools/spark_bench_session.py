"""Spark for the bench tools: a session on two threads and a cluster of three bookies, both gone at the end."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from fastbk.spark.session import light_home, session
from tests.fixtures.spark import STOP_S
from tests.tools.part import ROOT
from tests.tools.spark_memory_source import MemoryRows


@contextmanager
def bench_spark(memory: str = "600m", **settings: str) -> Iterator[SparkSession]:
    """Give a session on two threads whose workers know `memory_rows`."""
    with tempfile.TemporaryDirectory(prefix="fastbk-bench-spark-") as folder:
        # Workers are to import what is defined here, and this folder need not be where they start.
        os.environ["PYTHONPATH"] = str(ROOT)
        os.environ["SPARK_HOME"] = str(light_home(Path(folder)))
        made = session(
            "bench",
            "local[2]",
            spark_driver_memory=memory,
            spark_driver_bindAddress="127.0.0.1",
            spark_driver_host="127.0.0.1",
            spark_local_dir=f"{folder}/local",
            spark_sql_warehouse_dir=f"{folder}/warehouse",
            spark_sql_shuffle_partitions="2",
            **settings,
        )
        try:
            made.sparkContext.setLogLevel("OFF")
            logging.getLogger("py4j").setLevel(logging.CRITICAL)
            made.dataSource.register(MemoryRows)
            yield made
        finally:
            _end(made)


def _end(made: SparkSession) -> None:
    gateway = SparkContext._gateway
    made.stop()
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(STOP_S)
        SparkContext._gateway = SparkContext._jvm = None
