"""A job on a Spark cluster of its own, submitted as the documents say: `spark-submit --master spark://… job.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.spark.session import light_home
from fastbk.testing import LocalCluster
from tests.fixtures.spark import TRIES
from tests.fixtures.spark_standalone import StandaloneSpark

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
SUBMIT_S = 300
JOB = """
import os, sys
from pathlib import Path
from pyspark import TaskContext
from fastbk.spark.session import session

uri, stream, died = sys.argv[1:]
spark = session("job")
print("told", spark.conf.get("spark.sql.session.timeZone"), flush=True)


def passed(partition, rows):
    # The first attempt at partition 1 takes its executor with it, which is a process of Java's.
    for row in rows:
        if partition == 1 and TaskContext.get().attemptNumber() == 0:
            from tests.rigs.spark_points import executor_of

            Path(died).touch()
            os.kill(executor_of(os.getpid()), 9)
            os.kill(os.getpid(), 9)  # as its daemon would, a little later
        yield (str(row.id),)


rows = spark.range(0, 2000, numPartitions=3).rdd.mapPartitionsWithIndex(passed)
rows = spark.createDataFrame(rows, "value string")
rows.write.format("fastbk").mode("append").options(
    metadata=uri, stream=stream, create="true", idempotencyKey="once"
).save()
read = spark.read.format("fastbk").options(metadata=uri, stream=stream).load()
print("read", read.selectExpr("sum(int(cast(value as string)))").first()[0], flush=True)
"""
SETTINGS = {
    "spark.driver.memory": "600m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.session.timeZone": "Europe/Paris",
    "spark.log.level": "ERROR",
}


def submit(spark: StandaloneSpark, job: Path, words: Sequence[str]) -> str:
    """Submit a job; return what it printed."""
    home = Path(spark.environment["SPARK_HOME"])
    settings = [f"--conf={name}={value}" for name, value in SETTINGS.items()]
    for _ in range(TRIES):
        done = subprocess.run(
            [
                str(home / "bin" / "spark-submit"),
                "--master",
                spark.url,
                *settings,
                str(job),
                *words,
            ],
            env={**spark.environment, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=SUBMIT_S,
        )
        if "failed to connect back" not in done.stdout:  # see `patiently`
            break
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def environment_of(home: Path) -> dict[str, str]:
    python = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, **python, "SPARK_HOME": str(home)}


@pytest.mark.long
def test_a_submitted_job_survives_its_executor_and_settings_of_the_command_line_hold(
    tmp_path: Path,
) -> None:
    home, job, died = light_home(tmp_path), tmp_path / "job.py", tmp_path / "died"
    job.write_text(JOB)
    with (
        LocalCluster() as cluster,
        StandaloneSpark(home, tmp_path / "spark", 2, environment_of(home)) as spark,
    ):
        uri = cluster.metadata_uri
        said = submit(spark, job, [uri, "shop/orders", str(died)])
        assert said.splitlines()[-2:] == ["told Europe/Paris", "read 1999000"]
        assert died.exists()
        # The stream has the numbers once and in order, and nothing else is left.
        with fastbk.sync.connect(uri) as client:
            stream = client.namespace("shop").stream("orders")
            with stream.reader("earliest") as reader:
                found = [int(bytes(one.payload)) for one in islice(reader, 2000)]
            assert found == list(range(2000)) and stream.info().records == 2000
            assert stream.drafts() == []
            assert len(list(client.list_ledgers())) == stream.info().segments
