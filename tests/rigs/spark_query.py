"""A streaming query from one stream to another, to be killed: the driver that rig `spark` starts again and again.

    python -m tests.rigs.spark_query '{"uri": …, "checkpoint": …, "folder": …, "kills": [[who, [call, when], …], …], …}'

It ends when it has written what was there; a query that fails because one of its processes was killed is started again
in the same JVM.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSourceStreamArrowWriter, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from fastbk.native.process import die_with_parent
from fastbk.spark.options import ReadOptions, read_options
from fastbk.spark.readers import StreamReader
from fastbk.spark.sink import (
    AttemptWriter,
    CommitMessage,
    Committer,
    FastbkStreamWriter,
    Messages,
    TaskAttempt,
    WriteOptions,
    write_options,
)
from fastbk.spark.source import FastbkSource
from fastbk.spark.worker_client import client_of
from tests.rigs.spark_points import Kills, Wrapped, changes_looked_at

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from fastbk.sync import Client

NAMESPACE, INPUT, OUTPUT = "rig", "in", "out"
RECORDS_A_BATCH = 60
TRIES_MORE = 5
JVM_S = 180


class KilledWriter(FastbkStreamWriter):
    """The sink, with steps to die at."""

    def __init__(self, options: WriteOptions, kills: Kills) -> None:
        self._kills = kills
        super().__init__(options)

    def attempt(self, place: TaskAttempt) -> AttemptWriter:
        return AttemptWriter(self._client("task"), self._options, place)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        written = super().write(iterator)
        self._kills.look("task.write", "after")
        return written

    def commit(self, messages: Messages, batchId: int) -> None:
        with changes_looked_at(self._kills):
            super().commit(messages, batchId)
        self._kills.look("commit.commit", "after")

    def _committer(self) -> Committer:
        return Committer(self._client("commit"), self._options)

    def _client(self, role: str) -> Client:
        return cast("Client", Wrapped(client_of(self._options.metadata), self._kills, role))


class KilledReader(StreamReader):
    """The source, with steps to die at."""

    def __init__(self, options: ReadOptions, kills: Kills) -> None:
        self._kills = kills
        super().__init__(options)

    def latestOffset(self, start: Mapping[str, object], limit: ReadLimit) -> dict[str, object]:
        self._kills.look("plan.latestOffset", "before")
        found = super().latestOffset(start, limit)
        self._kills.look("plan.latestOffset", "after")
        return found

    def partitions(
        self, start: Mapping[str, object], end: Mapping[str, object]
    ) -> Sequence[InputPartition]:
        self._kills.look("plan.partitions", "before")
        found = super().partitions(start, end)
        self._kills.look("plan.partitions", "after")
        return found


class KilledSource(FastbkSource):
    """The data source, of which processes die. Its option `kills` says where."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        own = dict(options)
        self._kills = Kills.of(own.pop("kills"))
        super().__init__(own)

    @classmethod
    def name(cls) -> str:
        return "fastbk-killed"

    def streamReader(self, schema: StructType) -> StreamReader:
        return KilledReader(read_options(self.options, streaming=True), self._kills)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = write_options(self.options, schema, streaming=True, overwrite=overwrite)
        return KilledWriter(options, self._kills)


def run(said: Mapping[str, Any]) -> None:
    """Run the query to the end of what is there."""
    from fastbk.spark.session import session
    from tests.rigs import spark_query  # so that workers find the class by its module's name

    kills = Kills.of(json.dumps({**said, "group": os.getpgid(0)}))
    spark = session("rig", said["master"], **said["settings"])
    spark.dataSource.register(spark_query.KilledSource)
    options = {"metadata": said["uri"], "kills": kills.text()}
    tries = 0
    while True:
        try:
            _run_query(spark, options, said["checkpoint"])
            break
        except StreamingQueryException:
            tries += 1
            if tries > len(kills.kills) + TRIES_MORE:
                raise
    gateway = SparkContext._gateway
    spark.stop()
    if gateway is not None:  # its JVM may have an archive of its classes to write
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(JVM_S)


def _run_query(spark: SparkSession, options: Mapping[str, str], checkpoint: str) -> None:
    rows = (
        spark.readStream.format("fastbk-killed")
        .options(**options, stream=f"{NAMESPACE}/{INPUT}", minPartitions="2")
        .option("startingOffsets", "earliest")
        .option("maxEntriesPerTrigger", str(RECORDS_A_BATCH))
        .load()
    )
    query = (
        rows.select("key", "value")
        .writeStream.format("fastbk-killed")
        .options(**options, stream=f"{NAMESPACE}/{OUTPUT}", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    die_with_parent()
    Path(json.loads(sys.argv[1])["folder"]).mkdir(exist_ok=True)
    run(json.loads(sys.argv[1]))
