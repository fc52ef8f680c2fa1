"""A Spark session as the jobs want it; what `spark-submit` or a running session says comes first."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

_DEFAULTS = {
    # Workers start what PATH calls python3, which may have neither us nor Arrow.
    "spark.pyspark.python": sys.executable,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


def session(name: str, master: str | None = None, **settings: str) -> SparkSession:
    """Return the session that runs, or a new one. `master` None: what spark-submit says, else local[*].

    `settings`: Spark's own, with _ for each dot (`spark_executor_memory="2g"`).
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"fastbk {name}")
    if master is not None:
        builder = builder.master(master)
    elif "PYSPARK_GATEWAY_PORT" not in os.environ and "MASTER" not in os.environ:
        builder = builder.master("local[*]")
    for key, value in _DEFAULTS.items():
        builder = builder.config(key, value)
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    return builder.getOrCreate()
