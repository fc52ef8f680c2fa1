"""A Spark session as the jobs want it; what the environment, `spark-submit` or a running session says comes first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fastbk.errors import ConfigError, Error

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}

_LINES_SHOWN = 5
"""Of a message of Spark's; what follows repeats it, mostly."""


def session(name: str, master: str | None = None, **settings: str) -> SparkSession:
    """Return the session that runs, or a new one. `master` None: what spark-submit says, else local[*].

    `settings`: Spark's own, with _ for each dot (`spark_executor_memory="2g"`).

    Raises ConfigError where Spark's JVM does not start.
    """
    try:
        return _session(name, master, settings)
    except PySparkException as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        java = os.environ.get("JAVA_HOME")
        raise ConfigError(
            "Spark's JVM did not start; what it said stands above, if it did. Spark needs Java 17 or later"
            f" {f'in JAVA_HOME, which is {java}' if java else 'in PATH or JAVA_HOME'}"
            " (Debian: apt-get install default-jre-headless)"
        ) from error


def as_error(error: Exception) -> Error | None:
    """Return what Spark complains of without the stacks of Python and Java; None: it is nothing of Spark's."""
    if isinstance(error, PySparkException):
        message = (error.getMessage() or str(error)).removeprefix("[None] ")
    elif isinstance(error, Py4JJavaError):
        message = str(error.java_exception)
    elif isinstance(error, Py4JError):
        message = str(error)
    else:
        return None
    # What is indented are places in sources, Java's and Python's, and causes with more of them.
    kept = [line for line in message.splitlines() if line.strip() and not line[0].isspace()]
    return Error(f"Spark: {' '.join(kept[:_LINES_SHOWN])}")


def _session(name: str, master: str | None, settings: dict[str, str]) -> SparkSession:
    # Workers start what PATH calls python3, which may have neither us nor Arrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {"spark.pyspark.python": os.environ["PYSPARK_PYTHON"], **_DEFAULTS}
    # spark-submit's JVM is there, and knows what it was told
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
        given = SparkConf()
        defaults = {key: value for key, value in defaults.items() if not given.contains(key)}
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
