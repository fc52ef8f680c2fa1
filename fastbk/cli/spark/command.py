"""`fastbk spark ...`: jobs over the whole data of a cluster, on Spark. Each is a module of this folder."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Protocol, cast

from fastbk.cli.options import add_json, add_metadata, metadata_uri
from fastbk.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = {
    "archive": "what streams hold as Parquet by stream and day, verified; then only what is new",
    "audit": "read every copy of every entry from every bookie, and compare them",
    "ingest": "files into a stream, each once, in their order; then only those that are new",
    "rebuild": "a stream of changes, replayed into the current state by key as a table; then only what is new",
    "restore": "an archived stream into a new one, compared with the archive at the end",
    "usage": "how much namespaces, streams and bookies hold, and how it grows: tables and a chart",
}
"""Each is a module `fastbk.cli.spark.JOB`, which has what Job says."""


class Job(Protocol):
    """What the module of a job has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare its own options; --metadata, --master and --json are there."""

    def check(self, options: argparse.Namespace) -> None:
        """Say what is wrong before Spark, which takes seconds, is started. Raises ConfigError."""

    def run(self, spark: SparkSession, uri: str, options: argparse.Namespace) -> int:
        """Do it on the cluster whose metadata is at `uri`; return the exit code."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the jobs."""
    jobs = parser.add_subparsers(dest="verb", required=True, metavar="JOB")
    for name, text in JOBS.items():
        one = jobs.add_parser(name, help=text, description=text)
        _module_of(name).add_arguments(one)
        one.add_argument("--master", metavar="URL", help="Spark's (spark-submit's, else local[*])")
        add_metadata(one)
        add_json(one)


def run(options: argparse.Namespace) -> int:
    """Run one job."""
    try:
        from fastbk.spark.session import as_error, session
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Spark needs the package {error.name}: pip install 'fastbk[spark]'"
        ) from error
    from fastbk.meta import open_store

    uri = metadata_uri(options)
    job = _module_of(options.verb)
    job.check(options)
    open_store(
        uri, may_make=False
    ).close()  # a wrong URI is told in a moment, where Spark takes seconds to start
    try:
        spark = session(options.verb, options.master)
        try:
            spark.sparkContext.setLogLevel("ERROR")  # a place that is not there yet is no news
            return job.run(spark, uri, options)
        finally:
            spark.stop()
    except Exception as error:
        if (told := as_error(error)) is None:
            raise
        raise told from error


def _module_of(job: str) -> Job:
    return cast(Job, importlib.import_module(f"fastbk.cli.spark.{job}"))
