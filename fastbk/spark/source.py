"""What Spark calls: the data source `fastbk`.

Decision 74.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from fastbk.errors import ConfigError
from fastbk.spark.options import read_options
from fastbk.spark.schemas import check_schema, spark_schema

SPARK_MIN = (4, 2)


def check_version(version: str) -> None:
    """Raise ConfigError for a version of Spark that has not what is needed, such as admission control in Python."""
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < SPARK_MIN:
        raise ConfigError(
            f"this is Spark {version}, and fastbk needs 4.2 or later: pip install 'fastbk[spark]'"
        )


class FastbkSource(DataSource):
    """Streams and ledgers of a fastbk cluster. Options: docs/spark.md. What is wrong is said before any task starts."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """`options`: as they were given to the reader or writer; Spark compares names without regard to case."""
        check_version(pyspark.__version__)
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name that `format()` takes."""
        return "fastbk"

    def schema(self) -> StructType:
        """Return the columns of what is read. Raises ConfigError."""
        return spark_schema(read_options(self.options, streaming=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of what is there when it is planned. Raises ConfigError."""
        from fastbk.spark.readers import BatchReader, FilteringReader

        options = read_options(self.options, streaming=False)
        check_schema(schema, options)
        return FilteringReader(options) if options.pushdown else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader that goes on. Raises ConfigError."""
        from fastbk.spark.readers import StreamReader

        options = read_options(self.options, streaming=True)
        check_schema(schema, options)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer of a DataFrame to a stream. Raises ConfigError, StreamBusy."""
        from fastbk.spark.sink import FastbkBatchWriter, write_options

        options = write_options(self.options, schema, streaming=False, overwrite=overwrite)
        return FastbkBatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return a writer of a query's batches to a stream. Raises ConfigError, StreamBusy."""
        from fastbk.spark.sink import FastbkStreamWriter, write_options

        options = write_options(self.options, schema, streaming=True, overwrite=overwrite)
        return FastbkStreamWriter(options)
