"""Reads a range that is fixed when it is planned: `spark.read.format("fastbk")`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from fastbk.spark.filter_pushdown import PushedFilters, pushed
from fastbk.spark.offset_resolver import Cluster
from fastbk.spark.options import ReadOptions
from fastbk.spark.partition_reader import read_part
from fastbk.spark.partitions import Parts


class BatchReader(DataSourceReader):
    """Plans in one process of Spark's and reads in others: it holds nothing but options."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        """Return what tasks read. Raises, before any of them starts, whatever is wrong with what is to be read."""
        cluster = Cluster(self._options)
        return cluster.patiently(lambda: self._parts(cluster), retries=0)

    def _parts(self, cluster: Cluster) -> Sequence[InputPartition]:
        options, filters = self._options, self._pushed
        start = cluster.edge(options.start, "startingOffsets")
        end = cluster.edge(options.end, "endingOffsets")
        parts = Parts(cluster, filters.bounds)
        if options.reads_ledgers:
            return parts.of_ledgers(*filters.ledgers(start, end))
        return parts.of_streams(*filters.streams(cluster, start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a part's batches."""
        return read_part(self._options, partition)


class FilteringReader(BatchReader):
    """The same with push-down; Spark refuses a reader that has it unless its own configuration allows it, too."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Leave out what no row can be in; Spark looks at each row all the same, so all filters are given back."""
        self._pushed = pushed(filters)
        return filters
