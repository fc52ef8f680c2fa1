"""The columns as Spark has them: those of `fastbk.arrow`, which are the only ones there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fastbk.arrow import ledger_schema, stream_schema
from fastbk.errors import ConfigError
from fastbk.spark.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)


def arrow_schema(options: ReadOptions) -> pa.Schema:
    """Return the columns that a read of these options has."""
    if options.reads_ledgers:
        return ledger_schema(payload=options.payload)
    return stream_schema(payload=options.payload, headers=options.headers)


def spark_schema(options: ReadOptions) -> StructType:
    """Return the same as Spark's types."""
    return StructType([StructField(one.name, _type(one.type)) for one in arrow_schema(options)])


def _type(given: pa.DataType) -> DataType:
    if pa.types.is_list(given):
        return _HEADERS
    plain: list[tuple[pa.DataType, DataType]] = [
        (pa.string(), StringType()),
        (pa.binary(), BinaryType()),
        (pa.int32(), IntegerType()),
        (pa.int64(), LongType()),
        (pa.timestamp("us", tz="UTC"), TimestampType()),
    ]
    return next(ours for theirs, ours in plain if theirs.equals(given))


def check_schema(given: StructType, options: ReadOptions) -> None:
    """Raise ConfigError unless the schema that Spark was given, as by `.schema(...)`, is that of the options."""
    ours = spark_schema(options)
    if [(one.name, one.dataType) for one in given] != [(one.name, one.dataType) for one in ours]:
        raise ConfigError(
            f"the columns are {ours.simpleString()}, and not {given.simpleString()}: leave .schema(...) out,"
            ' and choose columns by .select(...), .option("payload", "false"), .option("includeHeaders", "true")'
        )


def json(rows: DataFrame, schema: StructType | str, column: str = "value") -> DataFrame:
    """Return rows whose `column` is a struct of this schema (or DDL): `value.*`, `value.name`.

    What the text lacks is null, and all of it is null where the text is no JSON.
    """
    return rows.withColumn(column, f.from_json(f.col(column).cast("string"), schema))
