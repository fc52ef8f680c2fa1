"""Folders of a place that Spark writes to, on any file system: listed and deleted by Hadoop's own classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def names_in(spark: SparkSession, place: str) -> list[str]:
    """Return the names in a folder, sorted; none if it is not there."""
    system, path = _opened(spark, place)
    if not system.exists(path):
        return []
    return sorted(one.getPath().getName() for one in system.listStatus(path))


def delete(spark: SparkSession, place: str) -> None:
    """Delete a folder and all in it; nothing happens if it is not there."""
    system, path = _opened(spark, place)
    system.delete(path, True)


def _opened(spark: SparkSession, place: str) -> tuple[Any, Any]:
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path
