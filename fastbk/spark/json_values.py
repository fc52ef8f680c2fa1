"""JSON in the column `value`, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def json(rows: DataFrame, schema: StructType | str, column: str = "value") -> DataFrame:
    """Return rows whose `column` is a struct of this schema (or DDL): `value.*`, `value.name`.

    What the text lacks is null, and all of it is null where the text is no JSON.
    """
    return rows.withColumn(column, f.from_json(f.col(column).cast("string"), schema))
