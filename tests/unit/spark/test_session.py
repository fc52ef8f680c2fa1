"""What Spark complains of is told in a line, and what to do where it does not start at all."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException

from fastbk.cli import spark as cli
from fastbk.errors import ConfigError, Error
from fastbk.spark.session import as_error
from tests.fixtures.metadata import new_cluster

SAID = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan: Traceback (most recent call last):
  File "/x/source.py", line 71, in reader
    return batch_reader(self.options)
fastbk.errors.ConfigError: there is no stream shop/x
\tat org.apache.spark.Somewhere.call(Somewhere.scala:1)
 SQLSTATE: 38000"""


@pytest.mark.slow
def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    uri = new_cluster(tmp_path / "m.sqlite")
    command = [sys.executable, "-m", "fastbk.cli.__main__", "spark", "audit", "--metadata", uri]
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=100, env=environment
    )
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("fastbk: Spark's JVM did not start")
    assert "Java 17 or later" in last and f"JAVA_HOME, which is {tmp_path}" in last


def test_what_spark_says_is_told_without_stacks() -> None:
    told = as_error(AnalysisException(SAID))
    assert str(told) == (
        "Spark: [PYTHON_DATA_SOURCE_ERROR] Failed to plan: Traceback (most recent call last):"
        " fastbk.errors.ConfigError: there is no stream shop/x"
    )
    assert as_error(ValueError("ours")) is None


def test_a_job_that_spark_ends_tells_so_and_ends_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped: list[bool] = []
    spark = SimpleNamespace(
        sparkContext=SimpleNamespace(setLogLevel=lambda _: None), stop=lambda: stopped.append(True)
    )

    def run(*_: object) -> int:
        raise AnalysisException("no such place")

    job = SimpleNamespace(prepare=lambda _: run)
    monkeypatch.setattr("fastbk.spark.session.session", lambda *_: spark)
    monkeypatch.setitem(cli.JOBS, "usage", job)
    uri = new_cluster(tmp_path / "m.sqlite")
    options = argparse.Namespace(verb="usage", metadata=uri, master=None)
    with pytest.raises(Error, match="Spark: no such place"):
        cli.run(options)
    assert stopped == [True]

    def start(*_: object) -> None:
        raise AnalysisException("no such master")

    monkeypatch.setattr("fastbk.spark.session.session", start)
    with pytest.raises(Error, match="Spark: no such master"):
        cli.run(options)


def test_a_wrong_cluster_is_told_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fastbk.spark.session.session", lambda *_: pytest.fail("Spark was started"))
    monkeypatch.setitem(cli.JOBS, "usage", SimpleNamespace(prepare=lambda _: None))
    options = argparse.Namespace(verb="usage", metadata=f"sqlite:{tmp_path}/m", master=None)
    with pytest.raises(ConfigError, match="there is no cluster"):
        cli.run(options)
