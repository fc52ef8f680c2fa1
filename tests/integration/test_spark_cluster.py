"""A job on a Spark cluster of its own, submitted as the documents say: `spark-submit --master spark://… job.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
SPECULATIVE = """
import os, sys, time
from pathlib import Path
from pyspark import TaskContext
from fastbk.spark.session import session

uri, stream, folder = sys.argv[1:]
spark = session("job")


def passed(partition, rows):
    # The first attempt at partition 3 has written when it stops, until the one that Spark begins beside it writes, too.
    attempt = TaskContext.get().attemptNumber()
    for at, row in enumerate(rows):
        if partition == 3 and at == 1500:
            (Path(folder) / f"attempt{attempt}").touch()
            end_s = time.monotonic() + 120
            while not (Path(folder) / "attempt1").exists() and time.monotonic() < end_s:
                time.sleep(0.05)
        yield (str(row.id),)


rows = spark.range(0, 8000, numPartitions=4).rdd.mapPartitionsWithIndex(passed)
spark.createDataFrame(rows, "value string").write.format("fastbk").mode("append").options(
    metadata=uri, stream=stream, create="true", idempotencyKey="once", entryBytes="1KiB"
).save()
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


def submit(
    spark: StandaloneSpark, job: Path, words: Sequence[str], more: Mapping[str, str] | None = None
) -> str:
    """Submit a job; return what it printed."""
    home = Path(spark.environment["SPARK_HOME"])
    settings = [f"--conf={name}={value}" for name, value in {**SETTINGS, **(more or {})}.items()]
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


def check(uri: str, count: int) -> None:
    """The stream has the numbers up to `count` once and in order, and nothing else is left."""
    with fastbk.sync.connect(uri) as client:
        stream = client.namespace("shop").stream("orders")
        with stream.reader("earliest") as reader:
            found = [int(bytes(one.payload)) for one in islice(reader, count)]
        assert found == list(range(count)) and stream.info().records == count
        assert stream.drafts() == []
        assert len(list(client.list_ledgers())) == stream.info().segments


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
        check(uri, 2000)


@pytest.mark.soak
def test_of_two_attempts_side_by_side_one_is_given_up(tmp_path: Path) -> None:
    home, job = light_home(tmp_path), tmp_path / "job.py"
    job.write_text(SPECULATIVE)
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    with (
        LocalCluster() as cluster,
        StandaloneSpark(home, tmp_path / "spark", 2, environment_of(home), workers=2) as spark,
    ):
        uri = cluster.metadata_uri
        submit(spark, job, [uri, "shop/orders", str(tmp_path)], speculation)
        assert (tmp_path / "attempt1").exists(), "Spark began no second attempt"
        check(uri, 8000)
