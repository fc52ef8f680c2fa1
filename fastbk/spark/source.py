"""What Spark calls: the data source `fastbk`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class FastbkSource(DataSource):
    """Streams and ledgers of a fastbk cluster."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format()` takes."""
        return "fastbk"
