"""A Spark session as the jobs want it; what the environment, `spark-submit` or a running session says comes first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


def session(name: str, master: str | None = None, **settings: str) -> SparkSession:
    """Return the session that runs, or a new one. `master` None: what spark-submit says, else local[*].

    `settings`: Spark's own, with _ for each dot (`spark_executor_memory="2g"`).
    """
    # Workers start what PATH calls python3, which may have neither us nor Arrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {"spark.pyspark.python": os.environ["PYSPARK_PYTHON"], **_DEFAULTS}
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit's JVM is there, and knows what it was told
        SparkContext._ensure_initialized()
        told = SparkConf()
        defaults = {key: value for key, value in defaults.items() if not told.contains(key)}
    builder = SparkSession.builder.appName(f"fastbk {name}")
    if master is not None:
        builder = builder.master(master)
    elif "PYSPARK_GATEWAY_PORT" not in os.environ and "MASTER" not in os.environ:
        builder = builder.master("local[*]")
    for key, value in defaults.items():
        builder = builder.config(key, value)
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    return builder.getOrCreate()


def light_home(folder: Path) -> Path:
    """Make a folder that Spark takes for its own (SPARK_HOME), without its zipped copy of PySpark; return it.

    Spark on this machine puts that copy in front of the path of each Python process that it starts, about a dozen a
    query, and each compiles what it needs of it anew: a second of a processor, where the installed one takes a quarter.
    """
    home, installed = folder / "home", Path(pyspark.__file__).parent
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(installed / name)
    return home
