"""Folders, small files and manifests of a place that Spark writes to, on any file system, by Hadoop's own classes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from fastbk.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

SQL_TYPES = {"int": "long", "str": "string"}
PATTERN_CHARACTERS = "*?[]{}\\"


def check_place(place: str) -> str:
    """Return it without slashes at its end. Raises ConfigError for one that has no name, or that Spark cannot read."""
    if any(pattern_character in place for pattern_character in PATTERN_CHARACTERS):
        raise ConfigError(
            f"{place} has one of {PATTERN_CHARACTERS} in its name, which Spark takes for patterns: name another place"
        )
    if not place.rstrip("/"):
        raise ConfigError(f"{place!r} is no place: name a folder of its own")
    return place.rstrip("/")


def names_in(spark: SparkSession, place: str) -> list[str]:
    """Return the names in a folder, sorted; none if it is not there."""
    system, path = _opened(spark, place)
    if not system.exists(path):
        return []
    return sorted(one.getPath().getName() for one in system.listStatus(path))


def number_of(name: str, prefix: str) -> int:
    """Return the number behind the prefix of a folder's name; 0: it has none."""
    number = name.removeprefix(prefix)
    return int(number) if number != name and number.isdigit() else 0


def write_manifest(spark: SparkSession, place: str, lines: Sequence[Any]) -> None:
    """Write lines, of one dataclass of str and int, as JSON in one file of a folder, in place of what is there."""
    made = spark.createDataFrame([astuple(line) for line in lines], _schema_of(type(lines[0])))
    made.coalesce(1).write.mode("overwrite").json(place)


def read_manifests(spark: SparkSession, places: str, kind: type, more: str = "") -> list[Row]:
    """Return a row for each line there, as `write_manifest` wrote it; none where nothing is. `more`: columns."""
    from pyspark.errors import AnalysisException

    try:
        return spark.read.schema(_schema_of(kind) + more).json(places).collect()
    except AnalysisException:  # no such path
        return []


def _schema_of(kind: Any) -> str:  # noqa: ANN401 -- a dataclass
    return ", ".join(f"{field.name} {SQL_TYPES[str(field.type)]}" for field in fields(kind))


def delete(spark: SparkSession, place: str) -> None:
    """Delete a folder and all in it; nothing happens if it is not there."""
    system, path = _opened(spark, place)
    system.delete(path, True)


def _opened(spark: SparkSession, place: str) -> tuple[Any, Any]:
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path


def read_text(spark: SparkSession, place: str) -> str:
    """Return what is in a small file. Raises Spark's errors where there is none."""
    system, path = _opened(spark, place)
    stream = system.open(path)
    try:
        utils: Any = cast(Any, spark.sparkContext)._jvm.org.apache.commons.io.IOUtils
        return str(utils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession, place: str, text: str) -> None:
    """Write a small file that is not there yet, whole or not at all: beside it, then renamed."""
    system, path = _opened(spark, place)
    _, beside = _opened(spark, f"{place}.new")
    stream = system.create(beside, True)
    try:
        stream.write(text.encode())
    finally:
        stream.close()
    if not system.rename(beside, path):
        raise StorageError(f"{place} cannot be written: something is there")


@dataclass(frozen=True, slots=True)
class FileStatus:
    """A file: where Spark reads it, what it is known by and sorted by, bytes, and when it was changed, in ms."""

    path: str
    uri: str
    size_bytes: int
    modified_ms: int


def files_of(spark: SparkSession, pattern: str) -> list[FileStatus]:
    """Return the file, or all that match, or what is in a folder and those below it, but for hidden ones; by name.

    Names that begin with _ or . are hidden, as for Spark. Raises ConfigError where there is none.
    """
    system, path = _opened(spark, pattern)
    found: list[FileStatus] = []
    statuses = system.globStatus(path)
    for status in statuses or ():
        if not status.isDirectory():
            found.append(_found(status))
            continue
        root = str(status.getPath().toString())
        below = system.listFiles(status.getPath(), True)
        while below.hasNext():
            one = _found(below.next())
            names = one.path.removeprefix(root).strip("/").split("/")
            if not any(name.startswith(("_", ".")) for name in names):
                found.append(one)
    if not found:
        raise ConfigError(f"there is no file at {pattern}")
    return sorted(found, key=lambda one: one.uri)


def uri_of(spark: SparkSession, place: str) -> str:
    """Return what a place is known by, as FileStatus.uri has it."""
    system, path = _opened(spark, place)
    return _uri(system.makeQualified(path))


def _found(status: Any) -> FileStatus:  # noqa: ANN401 -- Java's
    path = status.getPath()
    size_bytes, modified_ms = int(status.getLen()), int(status.getModificationTime())
    return FileStatus(str(path.toString()), _uri(path), size_bytes, modified_ms)


def _uri(path: Any) -> str:  # noqa: ANN401 -- Java's
    # A local file is file:/a or file:///a, depending on how it was found, and is one file.
    return re.sub("^file:/+", "file:/", str(path.toUri().toString()))
