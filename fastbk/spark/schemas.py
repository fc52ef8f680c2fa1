"""The columns as Spark has them: those of `fastbk.arrow`, which are the only ones there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from fastbk.arrow import ledger_schema, stream_schema
from fastbk.errors import ConfigError
from fastbk.spark.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def arrow_schema(options: ReadOptions) -> pa.Schema:
    """Return the columns that a read of these options has."""
    if options.reads_ledgers:
        return ledger_schema(payload=options.payload)
    return stream_schema(payload=options.payload, headers=options.headers)


def spark_schema(options: ReadOptions) -> StructType:
    """Return the same as Spark's types."""
    return from_arrow_schema(arrow_schema(options))


def check_schema(given: StructType, options: ReadOptions) -> None:
    """Raise ConfigError unless the schema that Spark was given, as by `.schema(...)`, is that of the options."""
    ours = spark_schema(options)
    if [(one.name, one.dataType) for one in given] != [(our.name, our.dataType) for our in ours]:
        raise ConfigError(
            f"the columns are {ours.simpleString()}, and not {given.simpleString()}: leave .schema(...) out,"
            ' and choose columns by .select(...), .option("payload", "false"), .option("includeHeaders", "true")'
        )


def json(rows: DataFrame, schema: StructType | str, column: str = "value") -> DataFrame:
    """Return rows whose `column` is a struct of this schema (or DDL): `value.*`, `value.name`.

    What the text lacks is null, and all of it is null where the text is no JSON.
    """
    return rows.withColumn(column, f.from_json(f.col(column).cast("string"), schema))
